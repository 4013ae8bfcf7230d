"""Verification of model files on the machine that uses them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import torch
from torch import nn

from elflow._model_file import read_model
from elflow.flows import ELF, ImageELF
from elflow.flows.known_scores import score_fixed_points
from elflow.serialization import TableModel, build_model, save
from elflow.tabular import FlowDensity
from elflow.training import Training

__all__ = ["TOLERANCES", "Verification", "verify"]

Model: TypeAlias = ELF | ImageELF | TableModel
"""A model that `save` writes."""

TOLERANCES = {torch.float64: 1e-6, torch.float32: 1e-3}
"""Maximum difference of a score from the stored one, relative to 1 + |score|, by the dtype of the computation.

Other processors, thread counts and versions of torch round differently; estimators compute in double precision.
"""


@dataclass(frozen=True)
class Verification:
    """Result of `verify`, all of whose checks have passed."""

    format_version: int
    """Version of the format of the file."""
    digest: str | None
    """SHA-256 of the file; None for format version 1, which has none."""
    saved_by: dict[str, str]
    """Versions of the programs that saved the file."""
    torch: str
    """Version of torch that verified it."""
    n_scores: int
    """Number of stored scores that were recomputed."""
    max_difference: float
    """Maximum difference of a recomputed score from the stored one, relative to 1 + |score|."""
    tolerance: float
    """Maximum difference that is allowed: see `TOLERANCES`."""

    def describe_scores(self) -> str:
        """Result of the comparison of scores as a phrase."""
        if not self.n_scores:
            return "none stored"
        return f"{self.n_scores} as stored, up to {self.max_difference:.1e} (tolerance {self.tolerance:g})"


def verify(path: str | os.PathLike[str]) -> Verification:
    """Verify a model file; raise an error if a check fails.

    The checks: the digest of the file; configuration and weights match; scores of fixed points are those which were
    computed when the file was saved; and saving and loading it once more changes neither weights nor scores.

    Arguments:
        path: The file.

    Example:
        >>> import elflow, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     elflow.save(elflow.ELF(features=3), f"{folder}/model.elf")
        ...     verify(f"{folder}/model.elf").n_scores
        4
    """
    file = read_model(Path(path))
    model = build_model(file)
    scores = _score(model)
    stored = file.known_scores
    tolerance = TOLERANCES.get(_find_dtype(model), max(TOLERANCES.values()))
    pairs = [] if stored is None else list(zip(stored, scores, strict=len(stored) == len(scores)))
    if stored is not None and (len(stored) != len(scores) or any((a is None) != (b is None) for a, b in pairs)):
        raise ValueError(f"path must be a model that scores here as where it was saved, got {path}: {pairs}")
    differences = [abs(a - b) / (1 + abs(a)) for a, b in pairs if a is not None and b is not None]
    worst = max(differences, default=0.0)
    if not worst <= tolerance:
        raise ValueError(
            f"path must be a model that scores here as where it was saved, to {tolerance:g}, got {path} with a "
            f"difference of {worst:.1e}: the scores of this machine are wrong, or those of the machine that saved it"
        )
    _check_round_trip(path, file.training, model, scores)
    return Verification(file.version, file.digest, file.saved_by, torch.__version__, len(differences), worst, tolerance)


def _score(model: Model) -> list[float | None]:
    return _get_density(model).score_fixed_rows() if isinstance(model, TableModel) else score_fixed_points(model)


def _get_module(model: Model) -> nn.Module:
    return _get_density(model).model_ if isinstance(model, TableModel) else model


def _get_density(model: TableModel) -> FlowDensity:
    return model if isinstance(model, FlowDensity) else model.density_


def _find_dtype(model: Model) -> torch.dtype:
    return next(value.dtype for value in _get_module(model).state_dict().values() if value.is_floating_point())


def _check_round_trip(path: object, training: dict[str, Any] | None, model: Model, scores: list[float | None]) -> None:
    """Raise an error unless a copy of the model in a new file is the same."""
    with TemporaryDirectory(prefix="elflow-") as folder:
        copy = Path(folder, "copy.elf")
        record = None if isinstance(model, TableModel) or training is None else Training.from_dict(training)
        save(model, copy, record)
        again = build_model(read_model(copy))
        states = [_get_module(each).state_dict() for each in (model, again)]
        if states[0].keys() != states[1].keys() or not all(
            torch.equal(states[0][key], states[1][key]) for key in states[0]
        ):
            raise ValueError(f"path must be a model whose weights stay the same in a new file, got {path}")
        if _score(again) != scores or again.config != model.config:
            raise ValueError(f"path must be a model that stays the same in a new file, got {path}")
