"""Estimators on top of a density: what their model files hold besides the density."""

from __future__ import annotations

import json
import os
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from elflow._json_types import check_json
from elflow._model_file import ModelFile, encode_json
from elflow.tabular.estimator import FlowDensity
from elflow.tabular.saving._config import build_density, encode_parameters, encode_seed
from elflow.tabular.saving._density_file import ESTIMATOR, write_density
from elflow.tabular.schema import Schema

__all__ = ["PATH", "SavedEstimator", "SavedState"]

PATH = f"config.{ESTIMATOR}"
"""Name of the state of an estimator in errors."""


class SavedState(TypedDict):
    """What every estimator has besides its fitted density, in a model file."""

    density: dict[str, Any] | None
    random_state: int | None
    feature_names: list[str] | None


class SavedEstimator(BaseEstimator):
    """Base class of estimators on top of a density, with model files.

    A subclass has the parameters `density` and `random_state`, and `fit` sets `density_`. If it has more to store, it
    extends `_get_state` and `_from_state`, and declares the types in `_state_type`; if its density has a context, it
    replaces `_find_input_schema`.
    """

    _state_type: ClassVar[Any] = SavedState
    """Types of the state, a typed dictionary."""
    density: FlowDensity | None
    density_: FlowDensity
    random_state: int | np.random.RandomState | None

    def save(self, path: str | os.PathLike[str], notes: dict[str, Any] | None = None) -> None:
        """Write the fitted estimator to one safetensors file, atomically; `elflow.load` reads it.

        The loaded estimator gives the same answers, bit for bit. Its `random_state` is None if it was a generator.
        Settings of scikit-learn that are no parameters, such as `set_output`, are not stored.

        Arguments:
            path: The file; an existing one is replaced.
            notes: Anything else to store, as JSON: see `elflow.serialization.read_notes`.
        """
        check_is_fitted(self, "density_")
        name = type(self).__name__
        if SavedEstimator not in type(self).__bases__:
            raise TypeError(
                f"{name} must be a class of elflow to be saved, got a subclass, which elflow.load cannot know"
            )
        state = self._get_state()
        self._from_state(json.loads(encode_json(state)), self.density_)  # writes no file that `load` would refuse
        write_density(self.density_, Path(path), notes, name, state)

    @property
    def config(self) -> dict[str, Any]:
        """Configuration of a fitted estimator for JSON: all but its weights and its training record."""
        return self.density_.config | {ESTIMATOR: self._get_state()}

    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        """Build an estimator from the content of a model file."""
        config = dict(file.config)
        state = deepcopy(config.pop(ESTIMATOR, None))
        return cls._from_state(state, FlowDensity.from_file(replace(file, config=config)))

    def _get_state(self) -> dict[str, Any]:
        """What the estimator has besides its fitted density, as JSON: see `_state_type`."""
        names = getattr(self, "feature_names_in_", None)
        return {
            "density": None if self.density is None else encode_parameters(self.density),
            "random_state": encode_seed(self.random_state),
            "feature_names": None if names is None else names.tolist(),
        }

    @classmethod
    def _from_state(cls, state: dict[str, Any], density: FlowDensity) -> Self:
        """Build an estimator from its state and its fitted density."""
        check_json(state, cls._state_type, PATH)
        parameters, names = state["density"], state["feature_names"]
        unfitted = None if parameters is None else build_density(FlowDensity, parameters, f"{PATH}.density")
        estimator = cls(unfitted, random_state=state["random_state"])
        estimator.density_ = density
        schema = cls._find_input_schema(density)
        known = [*schema.names, *schema.ignored]
        if names is not None:
            if sorted(names) != sorted(known):
                raise ValueError(f"{PATH}.feature_names must be the columns of the density, {known}, got {names}")
            estimator.feature_names_in_ = np.array(names, dtype=object)
        estimator.n_features_in_ = len(known)
        return estimator

    @classmethod
    def _find_input_schema(cls, density: FlowDensity) -> Schema:
        """Columns of the tables that the estimator takes; raise an error if the density is not of such an estimator."""
        if density.context_schema_ is not None:
            raise ValueError(f"config.context_schema must be null for a {cls.__name__}, got columns")
        return density.schema_
