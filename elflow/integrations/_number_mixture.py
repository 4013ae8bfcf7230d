"""Gaussian mixture of the numbers of a table: the second view of `FlowDetector`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture

from elflow.tabular import Schema, rank_log_density, summarize_log_density

__all__ = ["NumberMixture", "measure_surprise"]

FloatArray = NDArray[np.float64]
NUMBERS = ["continuous", "integer", "boolean"]
"""Kinds of columns whose values have distances."""
N_COMPONENTS = (1, 2, 4, 8, 16, 32)
"""Numbers of Gaussians that are tried, as long as the held-out log-likelihood increases."""
NOISE = (0.003, 0.03, 0.3)
"""Variances that are tried as additions to those of the Gaussians, relative to the variance of a column."""
MIN_ROWS_PER_COMPONENT = 20
MAX_ROWS = 10_000
"""Maximum number of rows that the mixture is fitted to."""
MAX_FEATURES = 64
"""Maximum number of features; more columns are reduced to this number of principal components."""
MAX_DISTANCE = 1e6
"""Maximum distance of a value from the mean, in standard deviations, so that squares stay finite."""
N_STEPS = 50
"""Maximum number of steps of expectation maximisation."""
N_HELD_OUT, N_FOLDS = 5, 3
"""Every fifth row is held out to select the mixture; reference rows are scored by mixtures of the two other folds."""


def measure_surprise(log_density: FloatArray, reference: FloatArray) -> FloatArray:
    """Minus the logarithm of the share of reference rows that are as unlikely, in nats, `(N,)`.

    Beyond the range of the reference rows, the share is extrapolated: see `FlowDensity.anomaly_score`.

    Arguments:
        log_density: Log-densities, `(N,)`.
        reference: Quantiles of the log-densities of reference rows.

    Example:
        >>> measure_surprise(np.array([-10.0, -15.0, -20.0]), np.linspace(-20.0, -10.0, 101)).round(3)
        array([0.   , 0.683, 4.615])
    """
    score, count = rank_log_density(log_density, reference), len(reference)
    inside = -np.log(1 - np.minimum(score, 100) / 100 + 1 / count)
    return np.asarray(inside + np.maximum(score - 100, 0) * np.log(10))


@dataclass
class NumberMixture:
    """Gaussian mixture of the columns of a table of numbers, each divided by its standard deviation.

    Its number of components, and the noise that is added to their covariances, are those with the highest held-out
    log-likelihood.
    """

    names: list[str]
    """The columns that are not constant."""
    mean: FloatArray
    scale: FloatArray
    """Means and standard deviations of the columns, `(columns,)`."""
    projection: FloatArray | None
    """Principal axes, `(columns, features)`, if there are many columns."""
    mixture: GaussianMixture
    reference: FloatArray
    """Quantiles of the log-densities of fitted rows, each by a mixture that was not fitted to it."""

    @classmethod
    def fit(cls, frame: pd.DataFrame, schema: Schema, rng: np.random.RandomState) -> NumberMixture | None:
        """Fit the mixture to rows; None if not all columns are numbers, if fewer than two vary, or with too few rows.

        A mixture that sees some columns of a row only, and not its categories, has little to say about the row.

        Arguments:
            frame: The rows.
            schema: The columns of the fitted density.
            rng: Source of the random order of the rows.

        Example:
            >>> from elflow import FlowDensity
            >>> frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "b"])
            >>> mixture = NumberMixture.fit(frame, FlowDensity().fit_schema(frame).schema_, np.random.RandomState(0))
            >>> mixture.measure_surprise(pd.DataFrame({"a": [0.0, 9.0], "b": [0.0, -9.0]})).round().tolist()[0]
            0.0
        """
        if any(column.kind not in NUMBERS for column in schema.columns):
            return None
        names = list(schema.names)
        rows = rng.permutation(len(frame))[:MAX_ROWS]
        numbers = _to_numbers(frame.iloc[rows], names)
        with warnings.catch_warnings(), np.errstate(over="ignore", invalid="ignore"):
            warnings.simplefilter("ignore")  # of columns without any value
            mean, scale = np.nanmean(numbers, 0), np.nanstd(numbers, 0)
        is_used = np.isfinite(mean) & np.isfinite(scale) & (scale > 0)
        if is_used.sum() < 2 or len(rows) < N_HELD_OUT * MIN_ROWS_PER_COMPONENT:
            return None
        names = [name for name, used in zip(names, is_used, strict=True) if used]
        view = cls(names, mean[is_used], scale[is_used], None, GaussianMixture(), np.zeros(0))
        x = view._encode(frame.iloc[rows])
        if len(names) > MAX_FEATURES:
            view.projection = PCA(min(MAX_FEATURES, len(x) - 1), random_state=0).fit(x).components_.T
            x = x @ view.projection
        components, noise = _choose_mixture(x)
        view.mixture = _fit_mixture(x, components, noise)
        fold = np.arange(len(x)) % N_FOLDS
        scores = [_fit_mixture(x[fold != k], components, noise).score_samples(x[fold == k]) for k in range(N_FOLDS)]
        view.reference = summarize_log_density(np.concatenate(scores))
        return view

    def measure_surprise(self, frame: pd.DataFrame) -> FloatArray:
        """Minus the logarithm of the share of fitted rows that are as unlikely as each row, in nats, `(N,)`."""
        x = self._encode(frame)
        x = x if self.projection is None else x @ self.projection
        return measure_surprise(self.mixture.score_samples(x) if len(x) else np.zeros(0), self.reference)

    def to_dict(self) -> dict[str, Any]:
        """Configuration for JSON; `from_dict` reads it."""
        return {
            "names": self.names,
            "mean": self.mean.tolist(),
            "scale": self.scale.tolist(),
            "projection": None if self.projection is None else self.projection.tolist(),
            "weights": self.mixture.weights_.tolist(),
            "means": self.mixture.means_.tolist(),
            "precisions": self.mixture.precisions_cholesky_.tolist(),
            "reference": self.reference.tolist(),
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> NumberMixture:
        """Build a mixture from the output of `to_dict`."""
        mixture = GaussianMixture(len(state["weights"]))
        mixture.weights_, mixture.means_ = np.array(state["weights"]), np.array(state["means"])
        mixture.precisions_cholesky_ = np.array(state["precisions"])
        projection = None if state["projection"] is None else np.array(state["projection"])
        mean, scale, reference = (np.array(state[name]) for name in ("mean", "scale", "reference"))
        return cls(state["names"], mean, scale, projection, mixture, reference)

    def _encode(self, frame: pd.DataFrame) -> FloatArray:
        """Standardised numbers, `(N, columns)`; a missing value becomes the mean."""
        with np.errstate(over="ignore"):
            x = (_to_numbers(frame, self.names) - self.mean) / self.scale
        return np.clip(np.nan_to_num(x, nan=0.0), -MAX_DISTANCE, MAX_DISTANCE)


def _to_numbers(frame: pd.DataFrame, names: list[str]) -> FloatArray:
    columns = [pd.to_numeric(frame[name], errors="coerce").to_numpy(np.float64, na_value=np.nan) for name in names]
    return np.stack(columns, 1) if columns else np.zeros((len(frame), 0))


def _fit_mixture(x: FloatArray, components: int, noise: float) -> GaussianMixture:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of EM that has not converged: its likelihood decides
        return GaussianMixture(components, reg_covar=noise, max_iter=N_STEPS, random_state=0).fit(x)


def _choose_mixture(x: FloatArray) -> tuple[int, float]:
    """Number of components and noise with the highest held-out log-likelihood of rows in random order."""
    is_held_out = np.arange(len(x)) % N_HELD_OUT == 0
    training, held_out = x[~is_held_out], x[is_held_out]
    found = []
    for noise in NOISE:
        best = -np.inf
        for components in N_COMPONENTS:
            if components > max(1, len(training) // MIN_ROWS_PER_COMPONENT):
                break
            score = float(_fit_mixture(training, components, noise).score(held_out))
            found.append((score, components, noise))
            if score <= best:
                break
            best = score
    return max(found)[1:]
