"""Checkpoints of a training run, written atomically and tied to their data by a fingerprint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from elflow._files import replacing

__all__ = ["read_checkpoint", "write_checkpoint"]


def write_checkpoint(path: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Write a checkpoint, which replaces an existing one only when it is complete.

    Arguments:
        path: The file.
        state: The state to store: tensors, numbers, strings, and lists and dictionaries of these.
        fingerprint: Identifies data and settings.
    """
    with replacing(path) as temporary:
        torch.save({"fingerprint": fingerprint, "state": state}, temporary)


def read_checkpoint(path: Path | None, fingerprint: str) -> dict[str, Any] | None:
    """Read the state in a checkpoint; None if there is no such file. Nothing in the file is executed.

    Arguments:
        path: The file, or None.
        fingerprint: Identifies data and settings; a checkpoint with another fingerprint is refused.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_checkpoint(Path(folder, "c"), {"step": 10}, "data")
        ...     read_checkpoint(Path(folder, "c"), "data")
        {'step': 10}
    """
    if path is None or not path.exists():
        return None
    try:
        content = torch.load(path, weights_only=True)
        stored: str = content["fingerprint"]
        state: dict[str, Any] = content["state"]
    except Exception as error:  # torch.load raises errors of many kinds for damaged files
        raise ValueError(
            f"checkpoint must be a file written by elflow, got {path}, which is damaged: {error}"
        ) from None
    if stored != fingerprint:
        raise ValueError(
            f"checkpoint must belong to the same data and settings, got {path} from different data or settings: "
            "delete it to start again"
        )
    return state
