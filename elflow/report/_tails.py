"""Tails of columns: whether sampled values are as often extreme as real ones, overall and for each category."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from elflow.report._tables import Column

__all__ = ["Tail", "compare_tails"]

Floats = NDArray[np.float64]

TAIL_SHARE = 0.02
"""Share of the values in a tail. With fewer, hundreds of rows show no difference."""
MIN_REAL_ROWS, MIN_SAMPLED_ROWS = 20, 50
"""Minimum number of real and of sampled rows of a category."""
MAX_NUMBERS, MAX_GROUPINGS, MAX_LABELS = 16, 8, 30
"""Maximum number of columns of numbers, of columns of categories, and of categories of a column."""


@dataclass(frozen=True)
class Tail:
    """Number of real and of sampled values in one tail of a column."""

    name: str
    given: str
    """Column whose categories have tails of their own; empty if all rows have the same."""
    is_upper: bool
    n_real: int
    """Number of real values in the tail."""
    n_sampled: int
    """Number of sampled values in the tail."""
    share: float
    """Share of the real rows among all real and sampled rows."""
    p_value: float
    """Probability of a difference at least as large by chance."""

    @property
    def ratio(self) -> float:
        """How many times as often sampled values are in the tail as real ones."""
        return float((self.n_sampled + 0.5) / (1 - self.share) / ((self.n_real + 0.5) / self.share))


def compare_tails(columns: Sequence[Column]) -> tuple[Tail, ...]:
    """Compare both tails of all columns of numbers, overall and given each column of categories.

    A tail begins at a quantile of the real and the sampled values together, for each category at its own. Given the
    number of values in it, that of real ones has a binomial distribution if samples are distributed like real rows.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> real, sampled = rng.normal(size=1000), rng.standard_t(3, size=10_000)
        >>> upper = compare_tails([Column("x", "continuous", real, sampled)])[1]
        >>> upper.is_upper, upper.ratio > 3, upper.p_value < 1e-3
        (True, True, True)
    """
    numbers = [column for column in columns if column.kind in ("continuous", "integer")][:MAX_NUMBERS]
    labels = [column for column in columns if column.has_labels and len(column.labels) <= MAX_LABELS]
    cases = itertools.product(numbers, [None, *labels[:MAX_GROUPINGS]], (False, True))
    return tuple(tail for case in cases if (tail := _compare_tail(*case)) is not None)


def _compare_tail(column: Column, given: Column | None, is_upper: bool) -> Tail | None:
    """Compare one tail; None if no category has enough rows, or if most values are equal."""
    sign = 1.0 if is_upper else -1.0
    n_real = n_sampled = 0
    totals = np.zeros(2)
    for real, sampled in _split_by_label(sign * column.real, sign * column.sampled, given):
        both = np.concatenate([real, sampled])
        threshold = np.quantile(both, 1 - TAIL_SHARE)
        n_real += int((real > threshold).sum())
        n_sampled += int((sampled > threshold).sum())
        totals += len(real), len(sampled)
    if n_real + n_sampled == 0:
        return None
    share = float(totals[0] / totals.sum())
    below, above = stats.binom.cdf([n_real, n_real - 1], n_real + n_sampled, share)
    p_value = min(1.0, 2 * min(below, 1 - above))
    return Tail(column.name, "" if given is None else given.name, is_upper, n_real, n_sampled, share, float(p_value))


def _split_by_label(real: Floats, sampled: Floats, given: Column | None) -> list[tuple[Floats, Floats]]:
    """Real and sampled values of each category that has enough of both, none of them missing."""
    if given is None:
        parts = [(real, sampled)]
    else:
        codes = range(len(given.labels))
        parts = [(real[given.real == code], sampled[given.sampled == code]) for code in codes]
    present = [(a[~np.isnan(a)], b[~np.isnan(b)]) for a, b in parts]
    return [(a, b) for a, b in present if len(a) >= MIN_REAL_ROWS and len(b) >= MIN_SAMPLED_ROWS]
