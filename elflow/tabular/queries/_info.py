"""Diagnostics of answers: how they were computed, and their effective sample sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from elflow._checks import warn_user
from elflow.tabular._arrays import FloatArray

__all__ = ["POOR_SAMPLE_SIZE", "Info", "PoorSampleWarning", "describe_info", "make_info", "warn_if_poor"]

POOR_SAMPLE_SIZE = 5.0
"""Effective sample size below which an answer has a warning."""


class PoorSampleWarning(UserWarning):
    """An answer by importance sampling has a small effective sample size."""


class Info(NamedTuple):
    """How an answer was computed, and how precise it is."""

    method: str
    """`"exact"` if nothing had to be integrated by sampling, or `"importance sampling"`."""
    effective_sample_size: FloatArray
    """Number of independent points that would be as precise, for each row, `(N,)`; infinite where it is exact."""


def make_info(sizes: FloatArray) -> Info:
    return Info("exact" if np.isinf(sizes).all() else "importance sampling", sizes)


def describe_info(info: Info) -> dict[str, Any]:
    """Diagnostics as plain values: the method, and the smallest and the median effective sample size."""
    if info.method == "exact" or not len(info.effective_sample_size):
        return {"method": info.method}
    sizes = info.effective_sample_size
    return {
        "method": info.method,
        "min_effective_sample_size": round(float(sizes.min()), 1),
        "median_effective_sample_size": round(float(np.median(sizes)), 1),
    }


def warn_if_poor(info: Info, least: float = POOR_SAMPLE_SIZE) -> None:
    """Warn about rows whose effective sample size is small."""
    is_poor = info.effective_sample_size < least
    if n_poor := int(is_poor.sum()):
        first = int(np.flatnonzero(is_poor)[0])
        warn_user(
            f"{n_poor:,} of {len(is_poor):,} rows have an effective sample size below {least:g}, first row {first} "
            f"with {info.effective_sample_size[first]:.1f}: their conditions are very unlikely under the density, "
            "and the answers for them are imprecise",
            PoorSampleWarning,
        )
