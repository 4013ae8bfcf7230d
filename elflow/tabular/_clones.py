"""Densities inside of other estimators: a copy of the density to fit, and its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state

from elflow.tabular.estimator import FlowDensity

__all__ = ["clone_density", "copy_features"]


def clone_density(
    density: FlowDensity | None, random_state: int | np.random.RandomState | None = None, **parameters: Any
) -> FlowDensity:
    """An unfitted copy of a density, or the default density, with other parameters.

    Arguments:
        density: The density to copy; None for the default one.
        random_state: Seed or generator of its seed; None keeps that of the density.
        parameters: Further parameters to set.

    Example:
        >>> clone_density(FlowDensity(max_steps=5), random_state=0, missing="model").get_params()["max_steps"]
        5
    """
    if not isinstance(density, FlowDensity | None):
        raise TypeError(f"density must be a FlowDensity or None, got {type(density).__name__}")
    copy = FlowDensity() if density is None else clone(density)
    if random_state is not None:
        parameters["random_state"] = int(check_random_state(random_state).randint(2**31 - 1))
    return copy.set_params(**parameters)


def copy_features(estimator: BaseEstimator, density: FlowDensity) -> None:
    """Set the number and the names of the columns of an estimator to those of its fitted density."""
    estimator.n_features_in_ = density.n_features_in_
    estimator.__dict__.pop("feature_names_in_", None)
    if hasattr(density, "feature_names_in_"):
        estimator.feature_names_in_ = density.feature_names_in_
