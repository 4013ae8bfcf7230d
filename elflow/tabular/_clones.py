"""Densities inside other estimators: a copy of the density to fit, its columns, and weights of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from elflow.tabular._arrays import FloatArray
from elflow.tabular.estimator import FlowDensity

__all__ = ["check_weights", "clone_density", "copy_features"]


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


def check_weights(sample_weight: ArrayLike | None, count: int) -> FloatArray | None:
    """Weights of rows as numbers, `(count,)`, one of which at least is positive; None for None.

    Example:
        >>> check_weights([1, 0, 2], 3)
        array([1., 0., 2.])
        >>> check_weights([0, 0], 2)
        Traceback (most recent call last):
        ...
        ValueError: sample_weight must have a positive weight, got 2 zeros
    """
    if sample_weight is None:
        return None
    if not np.asarray(sample_weight).any():
        raise ValueError(f"sample_weight must have a positive weight, got {np.size(sample_weight)} zeros")
    rows = np.empty((count, 1))
    return np.asarray(_check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True))
