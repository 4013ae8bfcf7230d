"""Trainings that are interrupted: the checkpoint beside the model, and what is said about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from elflow.cli._terminal import note


def checkpoint_of(output: Path, resume: bool) -> Path:
    """Where the checkpoint of a model's training is. What is there is not to be lost by beginning anew."""
    checkpoint = output.with_name(output.name + ".checkpoint")
    if checkpoint.exists() and not resume:
        raise ValueError(f"{checkpoint} is of a training that was interrupted: add --resume to go on, or delete it")
    return checkpoint


@contextmanager
def keeping(checkpoint: Path) -> Iterator[None]:
    """Says after Ctrl-C what there is to go on from."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):  # Lightning makes the one of the other
        kept = f"{checkpoint} is kept: --resume goes on from it"
        note(f"interrupted; {kept if checkpoint.exists() else 'there is nothing yet to go on from'}")
        raise typer.Exit(130) from None
