"""Atomic file writes and locks: a file is either complete or unchanged, and has one writer at a time."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: there are no locks, and what a killed process has left is not removed
    fcntl = None  # type: ignore[assignment]

__all__ = ["locking", "remove_temporaries", "replacing"]

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors of a full disk, of a quota, and of a limit on the size of files."""
MAX_PREFIX = 100
"""Maximum number of characters of a file's name in that of its temporary folder: names are limited to 255 bytes."""

_temporaries: set[tuple[int, Path]] = set()
"""Temporary folders in use, with the process that made them: a forked process must not remove those of its parent."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that replaces `path` by a new file atomically.

    It yields the path of a file in a temporary folder beside `path`. If the block succeeds, this file is flushed to the
    disk and renamed to `path`; if the block fails, it is deleted and `path` stays unchanged. Symbolic links are
    followed: the target of a link is replaced. Temporary folders of `path` that killed processes have left are deleted.

    Errors about a full disk name `path` instead of the temporary file.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "notes.txt"
        ...     with replacing(path) as temporary:
        ...         _ = temporary.write_text("complete")
        ...     path.read_text()
        'complete'
    """
    path = path.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path must be in an existing folder, got {path}")
    if path.exists() and not path.is_file():
        raise ValueError(f"path must be a regular file, got {path}")
    prefix = f".{path.name[:MAX_PREFIX]}."
    _remove_abandoned(path.parent, prefix)
    folder = path.parent / f"{prefix}{secrets.token_hex(4)}.tmp"
    entry = os.getpid(), folder
    _temporaries.add(entry)  # before the folder exists, so that an interrupt at any moment leaves nothing behind
    handle = None
    try:
        folder.mkdir(mode=0o700)
        # A folder, not a file: some writers replace the file that they write, and the lock would be of the first one.
        handle = _try_lock(folder)
        temporary = folder / path.name
        temporary.touch()
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        mask = os.umask(0)  # the only way to read the mask is to set it
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # the mode of any new file: some writers make files that only the owner can read
        temporary.replace(path)
    except OSError as error:
        if error.errno in DISK_ERRORS or (error.errno and str(error.filename).startswith(str(folder))):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if handle is not None:
            os.close(handle)
        _temporaries.discard(entry)


def remove_temporaries() -> None:
    """Delete the temporary folders of this process, which an exception in the midst of their removal may leave."""
    for process, folder in list(_temporaries):
        if process == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)
            _temporaries.discard((process, folder))


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Delete the temporary folders of a file that no process has locked: their writers have been killed."""
    with suppress(OSError):
        for entry in list(os.scandir(parent)):
            if not (entry.name.startswith(prefix) and entry.name.endswith(".tmp") and entry.is_dir()):
                continue
            handle = _try_lock(Path(entry.path))
            if handle is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(handle)


def _try_lock(path: Path) -> int | None:
    """Open and lock a file or folder; None if another process has locked it, or where there are no locks."""
    if fcntl is None:
        return None
    with suppress(OSError):  # another process may just have removed it, and some network disks have no locks
        handle = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
        else:
            return handle
    return None


@contextmanager
def locking(path: Path) -> Iterator[None]:
    """Context manager that holds a lock on an output file, which need not exist; raise an error if another holds it.

    The kernel releases the lock when the process ends, however it ends. The lock is a hidden file beside the output,
    which is removed at the end of the block; one that a killed process has left is used again.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder, locking(Path(folder) / "model.elf"):
        ...     print(*os.listdir(folder))
        .model.elf.lock
    """
    target = path.resolve()
    lock = target.with_name(f".{target.name[:MAX_PREFIX]}.lock")
    if fcntl is None or not target.parent.is_dir():  # a missing folder is reported when the file is written
        yield
        return
    handle = _acquire(lock, path)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def _acquire(lock: Path, path: Path) -> int:
    """Create and lock a file."""
    while True:
        try:
            handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last owner may have removed the file after it was opened here: a lock on it would exclude nobody.
            if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise ValueError(
                f"{path} must have one writer, got a second one: another process is writing it; wait for its end, or "
                "choose another file"
            ) from None
        except FileNotFoundError:  # removed between the two calls
            pass
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):  # some network disks have no locks
                return handle
            os.close(handle)
            raise
        os.close(handle)
