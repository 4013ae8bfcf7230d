"""Models of tables: loaded, described, and the tables that fit them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

STOPPED = {
    "patience": "the held-out likelihood grew no more",
    "max_steps": "all steps were done",
    "time_limit": "the time was up",
}
"""What is said about why a training ended."""


def load_density(path: Path) -> Any:
    """The `FlowDensity` in a file."""
    import elflow
    from elflow.tabular import FlowDensity

    model = elflow.load(path)
    if isinstance(model, elflow.ImageELF):
        raise ValueError(
            f"{path} must be a model of a table, got one of images: `elflow score-images` and `elflow sample-images` "
            "are for these"
        )
    if not isinstance(model, FlowDensity):
        raise ValueError(f"{path} must be a model of a table, as `elflow fit` makes them, got a flow without columns")
    return model


def use_threads(threads: int | None) -> None:
    """Lets torch compute on so many threads."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def known_columns(est: Any) -> list[Any]:
    """All that a table must have for the model: its columns and those of its context."""
    return [*est.schema_.columns, *(est.context_schema_.columns if est.context_schema_ is not None else ())]


def split(est: Any, frame: Any) -> tuple[Any, Any]:
    """The rows, and their context or None."""
    if est.context_schema_ is None:
        return frame[[column.name for column in est.schema_.columns]], None
    context = frame[[column.name for column in est.context_schema_.columns]]
    return frame[[column.name for column in est.schema_.columns]], context


def described(schema: Any, role: str) -> list[dict[str, Any]]:
    """Each column of a schema in words."""
    if schema is None:
        return []
    return [{**column, "role": role} for column in schema.describe()]


def why_stopped(reason: str) -> str:
    """Why a training ended, in words."""
    return STOPPED.get(reason, reason)


def check_output(path: Path, *inputs: Path) -> None:
    """That a file can be written there, before hours are spent on what is to be in it."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be a file, got a folder")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} must be an ordinary file")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path} must be in a folder that exists")
    for other in inputs:
        if path.exists() and other.exists() and path.samefile(other):
            raise ValueError(f"{path} must not be what is read: choose another name for -o")
