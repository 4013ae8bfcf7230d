"""Anomaly scores: percentiles of log-densities, continued beyond the range of the rows that they are compared with."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from elflow.tabular._arrays import FloatArray

__all__ = ["rank_log_density", "summarize_log_density"]

N_QUANTILES = 1_000
"""Number of quantiles that are stored of these rows' log-densities."""
TAIL_SHARE, MIN_TAIL = 0.1, 10
"""Fraction, and minimum number, of the quantiles to which the tail is fitted: the lowest ones."""
MAX_SCORE = 1e300
"""Score of a row with density zero: finite, since scikit-learn's metrics refuse infinity."""


def summarize_log_density(log_density: FloatArray) -> FloatArray:
    """Quantiles of finite log-densities, in increasing order, `(quantiles,)`."""
    finite = log_density[np.isfinite(log_density)]
    finite = finite if len(finite) else np.zeros(1)
    return np.quantile(finite, np.linspace(0, 1, min(N_QUANTILES, len(finite))))


def rank_log_density(log_density: ArrayLike, reference: FloatArray) -> FloatArray:
    """Anomaly score of each log-density: see `FlowDensity.anomaly_score`.

    Arguments:
        log_density: Log-densities, `(N,)`.
        reference: Quantiles of the log-densities of reference rows: see `summarize_log_density`.

    Example:
        >>> reference = np.linspace(-20.0, -10.0, 101)
        >>> for score in rank_log_density([-5.0, -15.0, -20.0, -25.0, -np.inf], reference):
        ...     print(f"{score:.4g}")
        1.48e-05
        50.5
        100
        104.8
        1e+300
    """
    values = np.asarray(log_density, np.float64)
    lowest, highest = reference[0], reference[-1]
    first = 100 / len(reference)
    percentages = np.interp(values, reference, np.linspace(100, first, len(reference)))
    # The lowest log-densities are about exponentially distributed; those of a Gaussian in two dimensions exactly. Their
    # mean distance from a threshold is then the number of nats over which the tail probability falls by a factor e.
    tail = reference[: max(MIN_TAIL, round(TAIL_SHARE * len(reference)))]
    scale = max(float(tail[-1] - tail.mean()), 1e-6)
    below = 100 + np.maximum(lowest - values, 0) / (scale * np.log(10))
    above = first * np.exp(-np.maximum(values - highest, 0) / scale)
    score = np.select([values < lowest, values > highest], [below, above], percentages)
    return np.nan_to_num(score, nan=np.nan, posinf=MAX_SCORE)
