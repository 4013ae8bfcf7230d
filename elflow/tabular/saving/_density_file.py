"""Model file of a density or an estimator on top of it: weights, configuration, hashes of rows, held-out counts."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elflow._model_file import ModelFile, fill_module, write_model
from elflow.tabular.drift._queries import check_held_out
from elflow.tabular.fitting._row_hashes import RowHashes
from elflow.tabular.saving._boxes import check_boxes
from elflow.tabular.saving._config import check_config, set_config
from elflow.tabular.saving._known_scores import check_schemas

if TYPE_CHECKING:
    from elflow.tabular.estimator import FlowDensity

__all__ = ["ESTIMATOR", "read_density", "write_density"]

D = TypeVar("D", bound="FlowDensity")
ROW_HASHES = "row_hashes"
"""Name of the hashes of rows among the tensors of a model file."""
ESTIMATOR = "estimator"
"""Name of the entry of the configuration for an estimator on top of the density."""


def write_density(
    density: FlowDensity,
    path: Path,
    notes: dict[str, Any] | None,
    class_name: str = "FlowDensity",
    estimator: dict[str, Any] | None = None,
) -> None:
    """Write a fitted density to a file, or an estimator on top of it.

    Arguments:
        density: The density.
        path: The file.
        notes: Notes of the user, as JSON.
        class_name: Name of the class of the estimator.
        estimator: What the estimator has besides the density, as JSON.
    """
    hashes = density.row_hashes_
    extra = {} if hashes is None else {ROW_HASHES: hashes.to_tensor()}
    # The weights were trained in single precision: a file of half the size stores them exactly.
    weights = deepcopy(density.model_).float()
    training, known = density.training_.to_dict(), density.score_fixed_rows()
    config = density.config if estimator is None else density.config | {ESTIMATOR: estimator}
    write_model(path, class_name, config, weights, training, notes, extra, known, density.held_out_)


def read_density(kind: type[D], file: ModelFile) -> D:
    """Build a density of this class from the content of a model file."""
    config = deepcopy(file.config)
    check_config(kind, config, file.n_values)
    density = set_config(kind(**config["parameters"]), config, file.training)
    tensors = dict(file.tensors)
    hashes = tensors.pop(ROW_HASHES, None)
    density.row_hashes_ = None if hashes is None else RowHashes.from_tensor(hashes, file.config["hash_limit"])
    fill_module(density.model_, tensors, file.version)
    density.model_.double()  # files are in single precision, scores in double
    check_schemas(density)
    check_boxes(density.model_, density.schema_)
    density.held_out_ = check_held_out(file.held_out, density.schema_, density.context_schema_)
    return density
