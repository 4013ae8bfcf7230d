"""Standard input as a file, so that it can be read more than once."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from elflow.io._compression import open_stream

MAGIC = {
    b"PAR1": ".parquet",
    b"ARROW1": ".feather",
    b"PK\x03\x04": ".xlsx",
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"\x04\x22\x4d\x18": ".lz4",
    b"\xfd7zXZ\x00": ".xz",
}
"""First bytes of files by format; all others are text."""
_spooled: WeakKeyDictionary[Any, Path] = WeakKeyDictionary()
"""Copies of standard input: it can be read only once, but a table may be opened several times."""


def spool_stdin() -> Path:
    """Copy standard input to a temporary file, whose name has the suffix of its format. The file is deleted at exit."""
    stream = getattr(sys.stdin, "buffer", sys.stdin)
    if stream in _spooled:
        return _spooled[stream]
    folder = Path(tempfile.mkdtemp(prefix="elflow-"))
    atexit.register(_remove, folder, os.getpid())
    path = folder / "standard-input"
    with path.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    suffix = _find_suffix(path)
    if suffix in (".parquet", ".feather", ".xlsx"):
        path = path.rename(path.with_suffix(suffix))
    else:
        path = path.rename(path.with_name(path.name + suffix))  # compressed, or without a suffix
        kind = ".jsonl" if _holds_json(path) else ".csv"
        path = path.rename(path.with_name(f"standard-input{kind}{suffix}"))
    _spooled[stream] = path
    return path


def _find_suffix(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(8)
    return next((suffix for magic, suffix in MAGIC.items() if start.startswith(magic)), "")


def _holds_json(path: Path) -> bool:
    """Whether text, which may be compressed, begins like an object of JSON."""
    stream, file = open_stream(path)
    with file, stream:
        try:
            return bool(stream.read(1 << 12).lstrip().startswith(b"{"))
        except (OSError, EOFError):  # the reader of the table explains what is wrong
            return False


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a process that was forked must not delete the files of the first one
        shutil.rmtree(folder, ignore_errors=True)
