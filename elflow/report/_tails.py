"""Tails of columns: whether sampled values are as often extreme as real ones, overall and for each category."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from elflow.report._groups import iter_groups, select_groupings, select_numbers
from elflow.report._tables import Column

__all__ = ["Tail", "compare_tails"]

TAIL_SHARE = 0.02
"""Share of the values in a tail. With fewer, hundreds of rows show no difference."""


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
    cases = itertools.product(select_numbers(columns), [None, *select_groupings(columns)], (False, True))
    return tuple(tail for case in cases if (tail := _compare_tail(*case)) is not None)


def _compare_tail(column: Column, given: Column | None, is_upper: bool) -> Tail | None:
    """Compare one tail; None if no category has enough rows, or if most values are equal."""
    sign = 1.0 if is_upper else -1.0
    n_real = n_sampled = 0
    totals = np.zeros(2)
    for _, real, sampled in iter_groups(column, given):
        real, sampled = sign * real, sign * sampled
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
