"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place once the block has gone well, and is gone otherwise."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"path must be in a folder that exists, got {path}")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=path.suffix)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as written:  # what is there now may be another file than the one made above
            os.fsync(written.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # as any new file; mkstemp lets nobody else read it
        temporary.replace(path)
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)
