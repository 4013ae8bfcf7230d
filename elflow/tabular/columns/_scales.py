"""Scale of numbers that is robust to outliers."""

from __future__ import annotations

import numpy as np

from elflow.tabular._arrays import FloatArray

__all__ = ["MAX_FLOAT", "NORMAL_IQR", "robust_scale"]

NORMAL_IQR = 1.349
"""Interquartile range of the standard normal distribution."""
MAX_FLOAT = float(np.finfo(np.float64).max)
"""Largest absolute value of a sampled number."""


def robust_scale(y: FloatArray) -> float:
    """Standard deviation of a normal distribution with the interquartile range of y, or a wider range if that is 0."""
    for tail in (0.25, 0.1, 0.02, 0.0):
        low, high = (float(end) for end in np.quantile(y, [tail, 1 - tail]))
        # Differences within the rounding of these two quantiles are none; values further out have no say.
        if high - low > 4 * np.spacing(max(abs(low), abs(high))):
            return min(high - low, MAX_FLOAT) / NORMAL_IQR
    return 1.0
