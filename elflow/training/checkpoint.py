"""Checkpoints of a training run, written atomically, with a digest, and tied to their data by a fingerprint."""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elflow._digest import BLANK, compute_digest, seal_file
from elflow._files import locking, replacing
from elflow.training.recipe import Recipe
from elflow.training.rows import Rows, RowSource, StreamSource

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["compute_fingerprint", "read_checkpoint", "read_shared_checkpoint", "write_checkpoint"]


MAGIC = b"elflow checkpoint 2\n"
"""Start of a checkpoint, before its digest."""


def write_checkpoint(path: Path, state: dict[str, Any], fingerprint: str) -> None:
    """Write a checkpoint, which replaces an existing one only when it is complete.

    Arguments:
        path: The file.
        state: The state to store: tensors, numbers, strings, and lists and dictionaries of these.
        fingerprint: Identifies data and settings.
    """
    with replacing(path) as temporary:
        with temporary.open("wb") as file:
            file.write(MAGIC + BLANK.encode())
            # Into memory first: torch reports errors of a file as RuntimeError, and writes its content twice.
            content = io.BytesIO()
            torch.save({"fingerprint": fingerprint, "state": state}, content)
            file.write(content.getbuffer())
        seal_file(temporary, len(MAGIC))


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
    start = len(MAGIC) + len(BLANK)
    with path.open("rb") as file:
        head = file.read(start)
        if head[: len(MAGIC)] != MAGIC:
            raise ValueError(
                f"checkpoint must be a file written by elflow, got {path}, which is damaged or of another version of "
                "elflow: delete it to start again"
            )
        if compute_digest(path, len(MAGIC)).encode() != head[len(MAGIC) :]:
            raise ValueError(
                f"checkpoint must be a file written by elflow, got {path}, which is damaged: it does not match its "
                "digest; delete it to start again"
            )
        content = torch.load(io.BytesIO(file.read()), map_location="cpu", weights_only=True)
    stored: str = content["fingerprint"]
    state: dict[str, Any] = content["state"]
    if stored != fingerprint:
        raise ValueError(
            f"checkpoint must belong to the same data and settings, got {path} from different data or settings: "
            "delete it to start again"
        )
    return state


def read_shared_checkpoint(path: Path, fingerprint: str, fabric: Fabric, stack: ExitStack) -> dict[str, Any] | None:
    """The state in a checkpoint, which the first process reads for all of them.

    Arguments:
        path: The file.
        fingerprint: Identifies data and settings.
        fabric: The processes.
        stack: Context of the training, in which the first process holds a lock on the checkpoint.
    """
    outcome: dict[str, Any] | ValueError | None = None
    if fabric.is_global_zero:
        try:
            stack.enter_context(locking(path))
            outcome = read_checkpoint(path, fingerprint)
        except ValueError as error:
            outcome = error
    outcome = fabric.broadcast(outcome)
    if isinstance(outcome, ValueError):
        raise outcome
    return outcome


def compute_fingerprint(
    text: str,
    flow: nn.Module,
    source: RowSource | StreamSource,
    validation: Rows | None,
    recipe: Recipe,
    seed: int,
) -> str:
    """Digest of all that the weights of a training run depend on, which must not change when it resumes."""
    shapes = {key: list(value.shape) for key, value in flow.state_dict().items()}
    settings = [text, shapes, recipe.to_dict() | {"time_limit": None}, seed]
    digest = hashlib.sha256(json.dumps(settings).encode())
    if isinstance(source, RowSource):
        source.rows.update_digest(digest)
    if validation is not None:
        validation.update_digest(digest)
    return digest.hexdigest()
