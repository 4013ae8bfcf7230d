"""Atomic file writes: a file is either complete or unchanged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that replaces `path` by a new file atomically.

    It yields the path of a temporary file in the same folder. If the block succeeds, this file is flushed to the disk
    and renamed to `path`; if the block fails, it is deleted and `path` stays unchanged. Symbolic links are
    followed: the target of a link is replaced.

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
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    temporary = Path(name)
    try:
        yield temporary
        # Opened again instead of using `handle`: some writers replace the file, and the handle is of the first one.
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        mask = os.umask(0)  # the only way to read the mask is to set it
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # the mode of any new file; mkstemp makes files that only the owner can read
        temporary.replace(path)
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)
