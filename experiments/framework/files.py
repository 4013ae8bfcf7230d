"""Reading and writing the files of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elflow._files import replacing

__all__ = ["read_json", "write_text"]


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None if it does not exist or is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all, and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
