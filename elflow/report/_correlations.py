"""Rank correlations of real and of sampled rows, and which differences between them chance explains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from elflow.report._tables import Column

__all__ = ["Correlations", "PairDifference", "compare_correlations"]

Floats = NDArray[np.float64]

SIGNIFICANCE = 0.01
"""Probability with which chance makes any pair of columns differ."""
MIN_PAIRED_ROWS = 10
"""Number of rows below which a correlation may have any value by chance."""
MAX_CORRELATION = 1 - 1e-6
"""Correlations are limited to this, so that Fisher's transform is finite."""


@dataclass(frozen=True)
class PairDifference:
    """Rank correlation of two columns in the real and in the sampled rows."""

    names: tuple[str, str]
    real: float
    sampled: float
    limit: float
    """Difference up to which chance explains it, for all pairs together."""

    @property
    def difference(self) -> float:
        """Correlation of the sampled rows minus that of the real rows."""
        return self.sampled - self.real

    @property
    def is_chance(self) -> bool:
        """Whether chance explains the difference."""
        return abs(self.difference) <= self.limit


@dataclass(frozen=True)
class Correlations:
    """Spearman rank correlations between columns, 0 for a constant column."""

    names: tuple[str, ...]
    real: Floats
    """Correlations of the real rows, `(columns, columns)`."""
    sampled: Floats
    """Correlations of the sampled rows, `(columns, columns)`."""
    limits: Floats
    """Differences up to which chance explains them, for all pairs together, `(columns, columns)`."""

    def largest_differences(self, count: int) -> list[PairDifference]:
        """The pairs of columns with the largest difference."""
        i, j = np.tril_indices(len(self.names), -1)
        order = np.argsort(-np.abs(self.sampled - self.real)[i, j], kind="stable")[:count]
        return [self._get_pair(int(a), int(b)) for a, b in zip(i[order], j[order], strict=True)]

    @property
    def worst(self) -> PairDifference | None:
        """The pair with the largest difference that is not chance, else that with the largest; None without pairs."""
        i, j = np.tril_indices(len(self.names), -1)
        if not len(i):
            return None
        differences = np.abs(self.sampled - self.real)[i, j]
        order = np.lexsort((-differences, differences <= self.limits[i, j]))
        return self._get_pair(int(i[order[0]]), int(j[order[0]]))

    def _get_pair(self, a: int, b: int) -> PairDifference:
        names = self.names[b], self.names[a]
        return PairDifference(names, float(self.real[a, b]), float(self.sampled[a, b]), float(self.limits[a, b]))


def compare_correlations(columns: Sequence[Column]) -> Correlations:
    """Compute rank correlations of real and of sampled rows, over the rows in which both columns have a value.

    The limit of each difference is that of Fisher's transforms z = atanh(r) of the two correlations at the significance
    of 1 %, divided by the number of pairs (Bonferroni).
    """
    real, real_errors = _correlate([column.real for column in columns])
    sampled, sampled_errors = _correlate([column.sampled for column in columns])
    n_pairs = max(1, len(columns) * (len(columns) - 1) // 2)
    reach = stats.norm.isf(SIGNIFICANCE / n_pairs / 2) * np.hypot(real_errors, sampled_errors)
    # Centred between both: a difference is below the limit exactly if that of the transforms is below `reach`.
    centre = (_transform(real) + _transform(sampled)) / 2
    limits = np.tanh(centre + reach / 2) - np.tanh(centre - reach / 2)
    return Correlations(tuple(column.name for column in columns), real, sampled, limits)


def _transform(correlations: Floats) -> Floats:
    return np.arctanh(np.clip(correlations, -MAX_CORRELATION, MAX_CORRELATION))


class _Ranks(NamedTuple):
    """Ranks of the values of a column."""

    standardized: Floats
    """Ranks with mean 0 and variance 1; zeros for a constant column."""
    n_rare: int
    """Number of values other than the most frequent one."""


def _rank(values: Floats) -> _Ranks:
    if not len(values):
        return _Ranks(values, 0)
    ranks = stats.rankdata(values)
    ranks -= ranks.mean()
    n_rare = len(values) - int(np.unique(values, return_counts=True)[1].max())
    return _Ranks(ranks / max(float(np.sqrt((ranks**2).mean())), 1e-300), n_rare)


def _correlate(columns: Sequence[Floats]) -> tuple[Floats, Floats]:
    """Rank correlations, and standard errors of their Fisher transforms, `(columns, columns)` each."""
    correlations, errors = np.eye(len(columns)), np.zeros((len(columns), len(columns)))
    is_known = [~np.isnan(values) for values in columns]
    ranks = [_rank(values) for values in columns]
    for a in range(len(columns)):
        for b in range(a):
            both = is_known[a] & is_known[b]
            u, v = (ranks[a], ranks[b]) if both.all() else (_rank(columns[a][both]), _rank(columns[b][both]))
            correlations[a, b], errors[a, b] = _correlate_pair(u, v)
            correlations[b, a], errors[b, a] = correlations[a, b], errors[a, b]
    return correlations, errors


def _correlate_pair(first: _Ranks, second: _Ranks) -> tuple[float, float]:
    """Correlation of two columns, and the standard error of its Fisher transform; infinite if rows are few."""
    u, v = first.standardized, second.standardized
    if not len(u):
        return 0.0, np.inf
    r = float((u * v).mean())
    # Ten rows with a rare value say as much about a correlation as twenty rows of a balanced column.
    n_rows = min(len(u), 2 * first.n_rare, 2 * second.n_rare)
    if n_rows < MIN_PAIRED_ROWS:
        return r, np.inf
    # Fisher's error holds for normal distributions, that of the influence function for others too.
    influence = u * v - r * (u**2 + v**2) / 2
    spread = float(np.sqrt((influence**2).mean())) / max(1 - r**2, 1 - MAX_CORRELATION**2)
    return r, float(max(np.sqrt((1 + r**2 / 2) / (n_rows - 3)), spread / np.sqrt(len(u))))
