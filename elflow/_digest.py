"""Digests inside files: SHA-256 of a whole file, stored in the file itself."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["BLANK", "compute_digest", "seal_file"]

BLANK = "0" * 64
"""What stands in place of the digest while it is computed."""
BLOCK = 2**20


def compute_digest(path: Path, position: int) -> str:
    """SHA-256 of a file, as 64 hexadecimal digits, with zeros in place of the 64 bytes at `position`.

    Every other byte counts, so that a file with any changed, missing or additional bit has another digest.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "file"
        ...     _ = path.write_bytes(b"digest: " + BLANK.encode() + b", content")
        ...     seal_file(path, position=8)
        ...     path.read_bytes()[8:72].decode() == compute_digest(path, position=8)
        True
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        digest.update(file.read(position))
        file.seek(len(BLANK), 1)
        digest.update(BLANK.encode())
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def seal_file(path: Path, position: int) -> None:
    """Write the digest of a file into it, at `position`, where it has `BLANK` so far."""
    digest = compute_digest(path, position)
    with path.open("r+b") as file:
        file.seek(position)
        file.write(digest.encode())
