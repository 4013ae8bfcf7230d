"""Saving and loading of flows and densities."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from elflow._model_file import fill_module, naming, read_model, write_model
from elflow.flows import ELF, ImageELF
from elflow.tabular import FlowDensity
from elflow.training import Training

__all__ = ["load", "read_notes", "read_training", "save"]

FLOWS: dict[str, type[ELF] | type[ImageELF]] = {"ELF": ELF, "ImageELF": ImageELF}
MODELS: dict[str, type[ELF] | type[ImageELF] | type[FlowDensity]] = FLOWS | {"FlowDensity": FlowDensity}
"""Classes that can be saved, by their name in the file.

Each has `config`, the JSON from which `from_config` builds an untrained model, and `min_numbers(config)`, which tells
without building it how many numbers such a model has at least: a damaged file must not make a model of any size.
"""


def save(
    model: ELF | ImageELF | FlowDensity,
    path: str | os.PathLike[str],
    training: Training | None = None,
    notes: dict[str, Any] | None = None,
) -> None:
    """Writes a flow or a fitted density to one file, whole or not at all.

    Arguments:
        model: An `elflow.ELF` or `elflow.ImageELF`, on any device, or a fitted `elflow.FlowDensity`.
        path: The file; an existing one is replaced.
        training: The record of the training, for `read_training`. A `FlowDensity` stores its own.
        notes: Anything else to store, as JSON: see `read_notes`.

    Example:
        >>> import elflow, tempfile
        >>> flow = elflow.ELF(features=3)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     elflow.save(flow, f"{folder}/model.elf")
        ...     same = elflow.load(f"{folder}/model.elf")
        >>> x = torch.randn(5, 3)
        >>> torch.allclose(same().log_prob(x), flow.eval()().log_prob(x))
        True
    """
    name = type(model).__name__
    if isinstance(model, FlowDensity) and hasattr(model, "model_"):
        model.save(path, notes)
    elif isinstance(model, ELF | ImageELF) and FLOWS.get(name) is type(model):
        record = None if training is None else training.to_dict()
        write_model(Path(path), name, model.config, model, record, notes)
    else:
        raise TypeError(f"model must be an ELF or ImageELF of elflow or a fitted FlowDensity, got {name}")


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Any:
    """Reads a model: a flow in evaluation mode, or a fitted `FlowDensity`. Nothing in the file is executed.

    Arguments:
        path: The file.
        device: Device of a flow.
    """
    path = Path(path)
    file = read_model(path, str(device), _min_numbers)
    with torch.random.fork_rng(devices=[]), naming(path, "whose parts do not match"):  # initial weights are random
        if file.kind == "FlowDensity":
            density = FlowDensity.from_config(file.config, file.training)
            fill_module(density.model_, file.tensors)
            return density
        flow = FLOWS[file.kind].from_config(file.config)
        fill_module(flow, file.tensors)
    return flow.to(device)


def read_training(path: str | os.PathLike[str]) -> Training | None:
    """The record of the training of the model in a file; None if it has none."""
    file = read_model(Path(path))
    with naming(file.path, "whose training record is damaged"):
        return None if file.training is None else Training.from_dict(file.training)


def read_notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The notes in a model file; empty if it has none."""
    return read_model(Path(path)).notes


def _min_numbers(kind: str, config: dict[str, Any]) -> int:
    if kind not in MODELS:
        raise ValueError(f"model must be one of {list(MODELS)}, got {kind!r}")
    return MODELS[kind].min_numbers(config)
