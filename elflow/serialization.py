"""Saving and loading of models: `save` and `load`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

import torch

from elflow._checks import check_choice
from elflow._json_types import check_arguments
from elflow._model_file import ModelFile, fill_module, name_file_in_errors, read_model, write_model
from elflow._sizes import check_integers, limit_sizes
from elflow.flows import ELF, ImageELF
from elflow.flows.known_scores import score_fixed_points
from elflow.tabular import FlowClassifier, FlowDensity, FlowImputer, FlowRegressor
from elflow.training import Training, choose_device

__all__ = ["find_density", "load", "read_notes", "read_training", "save"]

FLOWS: dict[str, type[ELF] | type[ImageELF]] = {"ELF": ELF, "ImageELF": ImageELF}
"""Flows that can be saved, by their name in the file. Each has `config`, its arguments as JSON, and `from_config`."""
TableModel: TypeAlias = FlowDensity | FlowClassifier | FlowRegressor | FlowImputer
"""An estimator that can be saved."""
TABLE_MODELS: dict[str, type[TableModel]] = {
    "FlowDensity": FlowDensity,
    "FlowClassifier": FlowClassifier,
    "FlowRegressor": FlowRegressor,
    "FlowImputer": FlowImputer,
}
"""Estimators that can be saved, by their name in the file. Each has `config`, `save` and `from_file`."""


def save(
    model: ELF | ImageELF | TableModel,
    path: str | os.PathLike[str],
    training: Training | None = None,
    notes: dict[str, Any] | None = None,
) -> None:
    """Write a model to one safetensors file, atomically: after a failure, the old file is still there.

    Arguments:
        model: An `elflow.ELF` or `elflow.ImageELF`, on any device, or a fitted `elflow.FlowDensity`, `FlowClassifier`,
            `FlowRegressor` or `FlowImputer`.
        path: The file; an existing one is replaced.
        training: The training record, for `read_training`. Estimators store their own.
        notes: Notes to store, as JSON: see `read_notes`.

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
    if isinstance(model, TableModel):
        model.save(path, notes)
    elif isinstance(model, ELF | ImageELF) and FLOWS.get(name) is type(model):
        record = None if training is None else training.to_dict()
        known = score_fixed_points(model)
        write_model(Path(path), name, model.config, model, record, notes, known_scores=known)
    else:
        raise TypeError(f"model must be one of {', '.join([*FLOWS, *TABLE_MODELS])}, got {name}")


def load(path: str | os.PathLike[str], device: str | torch.device = "cpu") -> Any:
    """Read a model from a file. Nothing in the file is executed.

    Arguments:
        path: The file.
        device: The device of a flow: see `elflow.training.choose_device`. Estimators are always on the CPU.

    Returns:
        The model that was saved: an `elflow.ELF` or `elflow.ImageELF` in evaluation mode, or a fitted estimator.

    Example:
        >>> import elflow, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     elflow.save(elflow.ELF(features=3), f"{folder}/model.elf")
        ...     elflow.load(f"{folder}/model.elf").features
        3
    """
    return build_model(read_model(Path(path)), choose_device(device))


def build_model(file: ModelFile, device: torch.device | None = None) -> Any:
    """Build the model of a file that has been read: see `load`."""
    # Building a model draws initial weights: the caller's random state must not change.
    with (
        torch.random.fork_rng(devices=[]),
        name_file_in_errors(file.path, "whose configuration and weights do not match"),
        limit_sizes(file.n_values, len(file.tensors)),
    ):
        check_choice("model", file.class_name, [*FLOWS, *TABLE_MODELS])
        if file.training is not None:
            Training.from_dict(file.training)
        if file.class_name in TABLE_MODELS:
            return TABLE_MODELS[file.class_name].from_file(file)
        flow_class = FLOWS[file.class_name]
        check_arguments(flow_class, file.config, "config")
        check_integers(file.config, file.n_values, "config")
        flow = flow_class.from_config(file.config)
        fill_module(flow, file.tensors, file.version)
    return flow if device is None else flow.to(device)


def find_density(model: object) -> FlowDensity | None:
    """The joint density of a table's columns in a loaded model; None if it has none.

    That of a `FlowImputer` is its `density_`. The densities of a `FlowClassifier` and of a `FlowRegressor` are those of
    a table given a class, and of a number given a table.

    Example:
        >>> import elflow
        >>> find_density(elflow.ELF(features=3)) is None
        True
    """
    density = model.density_ if isinstance(model, FlowImputer) else model
    return density if isinstance(density, FlowDensity) else None


def read_training(path: str | os.PathLike[str]) -> Training | None:
    """Read the training record of a model file; None if it has none.

    Example:
        >>> import elflow, tempfile
        >>> training = Training([{"step": 2000}], seconds=120.0, stopped="time_limit")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     elflow.save(elflow.ELF(features=3), f"{folder}/model.elf", training)
        ...     read_training(f"{folder}/model.elf").describe()
        '2,000 steps in 2 min 0 s, stopped at the time limit'
    """
    file = read_model(Path(path), header_only=True)
    with name_file_in_errors(file.path, "whose training record is damaged"):
        return None if file.training is None else Training.from_dict(file.training)


def read_notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the notes of a model file; empty if it has none.

    Example:
        >>> import elflow, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     elflow.save(elflow.ELF(features=3), f"{folder}/model.elf", notes={"data": "wine.csv"})
        ...     read_notes(f"{folder}/model.elf")
        {'data': 'wine.csv'}
    """
    return read_model(Path(path), header_only=True).notes
