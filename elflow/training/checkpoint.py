"""Checkpoints of a training: written whole or not at all, refused if they belong to other data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from elflow._files import replacing

__all__ = ["read_checkpoint", "write_checkpoint"]


def write_checkpoint(path: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Replaces the checkpoint by one of this state."""
    with replacing(path) as temporary:
        torch.save({"fingerprint": fingerprint, "state": state}, temporary)


def read_checkpoint(path: Path | None, fingerprint: str) -> dict[str, Any] | None:
    """The state in a checkpoint, or None if the file does not exist.

    Arguments:
        path: The file, or None.
        fingerprint: Identifies data and settings, which must be those of the checkpoint.
    """
    if path is None or not path.exists():
        return None
    try:
        content = torch.load(path, weights_only=True)
        found: str = content["fingerprint"]
        state: dict[str, Any] = content["state"]
    except Exception as error:
        raise ValueError(
            f"checkpoint must be a file written by elflow, got {path}, which is damaged: {error}"
        ) from None
    if found != fingerprint:
        raise ValueError(
            f"checkpoint must belong to the same data and settings, got {path} of others: delete it to start again"
        )
    return state
