"""Compressed files: streams of decompressed bytes, and files that compress what is written to them."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4", ".xz": "xz"}
"""Compression by file name suffix."""


def find_codec(path: Path) -> str | None:
    """Name of the compression of a file, by its suffix; None if it is not compressed."""
    return CODECS.get(path.suffix.lower())


def open_stream(path: Path) -> tuple[Any, Any]:
    """The stream of decompressed bytes, and the file below it, whose position is the progress."""
    codec = find_codec(path)
    if codec == "xz":  # which Arrow does not have
        raw = path.open("rb")
        return pa.PythonFile(_XzFile(raw), "r"), raw
    file = pa.OSFile(str(path), "rb")
    return (file if codec is None else pa.CompressedInputStream(file, codec)), file


class _XzFile(lzma.LZMAFile):
    """Reader whose errors about damaged files are those of Arrow's readers."""

    def read(self, size: int | None = -1) -> bytes:
        try:
            return super().read(size)
        except (lzma.LZMAError, EOFError) as error:
            raise OSError(str(error)) from None


def compress(raw: IO[bytes], codec: str) -> Any:
    """File that compresses bytes into another one, which is to be closed after it."""
    if codec == "gzip":
        return gzip.GzipFile("", "wb", 6, raw, mtime=0)  # without name and time: equal content has equal bytes
    if codec == "bz2":
        return bz2.BZ2File(raw, "wb")
    if codec == "xz":
        return lzma.LZMAFile(raw, "wb")
    return pa.CompressedOutputStream(pa.PythonFile(raw, "w"), codec)
