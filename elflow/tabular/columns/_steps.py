"""`Steps`: cells of integers, as wide as the integers are frequent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from elflow.tabular._arrays import FloatArray, IntArray

__all__ = ["Steps", "gain_from_cells"]

MAX_DISCOUNT = 0.5
"""Maximum part of a count that an integer loses to the gaps next to it."""
MAX_SINGLE_CELLS = 512
"""Maximum number of distinct integers that each have a separate probability; more of them are binned."""
MAX_REPEATED_CELLS = 2048
"""Maximum number of repeated integers that have a separate probability among bins."""
N_BINS = (128, 64, 32, 16, 8)
"""Approximate numbers of bins that are tried where integers are binned."""
MIN_SINGLE_ROWS = 5
"""Minimum number of rows of an integer that has a separate probability among bins."""
N_FOLDS = 4
"""Number of parts of the values each of which is predicted from all others, to choose between cells and bins."""
MAX_DISTANCE = 2**61
"""Distance from the fitted range beyond which all integers share the width of their cells."""
MAX_ROWS = 20_000
"""Maximum number of values that cells are selected on."""


@dataclass(frozen=True)
class Steps:
    """Partition of (0, 1) into one cell per integer, in order, with widths proportional to frequencies.

    The cumulative distribution is linear between `edges`. An edge is an integer, and the cell of an integer k is the
    image of [k, k + 1). Integers outside the fitted range have narrow cells, whose widths fall with the distance.

    Example:
        >>> steps = Steps.fit(np.array([0, 0, 0, 1]))
        >>> low, width = steps.encode(np.array([0, 1, 7]))
        >>> width.round(3)
        array([0.591, 0.227, 0.003])
        >>> steps.decode(low[:2] + width[:2] / 2)
        array([0, 1])
    """

    edges: IntArray
    """Increasing integers, `(K,)`."""
    cumulative: FloatArray
    """Cumulative probability below each edge, `(K,)`."""

    @classmethod
    def fit(
        cls, values: IntArray, ordered: bool = True, counts: IntArray | None = None, has_gaps: bool = True
    ) -> Steps:
        """Estimate the cumulative distribution of integers, `(N,)`.

        Integers have separate probabilities, or share those of bins where they have an order and each is rare:
        whichever predicts other values better. Smoothing: gaps have the probability of new values, half a count is
        spread over the fitted range, and one count over all integers outside it.

        Arguments:
            values: The integers.
            ordered: Whether the integers have an order.
            counts: Numbers of rows of the integers from 0 to K - 1 in the whole table, `(K,)`, if `values` are only
                some of its rows.
            has_gaps: Whether integers without rows may occur; not those of categories, which are all listed.
        """
        if counts is None:
            distinct, counts = np.unique(values, return_counts=True)
        else:
            distinct = np.flatnonzero(counts)
            counts = counts[distinct]
        partitions = _list_cells(distinct) if ordered else _list_cells(distinct)[:1]
        best = partitions[0] if len(partitions) == 1 else max(partitions, key=lambda p: _cross_validate(p, values))
        return cls._fit_cells(best, distinct, counts, has_gaps)

    @classmethod
    def _fit_cells(cls, partition: Partition, distinct: IntArray, counts: IntArray, has_gaps: bool = True) -> Steps:
        edges = partition(distinct, counts)
        bins = np.searchsorted(edges, distinct, side="right") - 1
        return cls._from_counts(edges, np.bincount(bins, counts, len(edges) - 1), has_gaps)

    def count(self, values: IntArray) -> IntArray:
        """Numbers of integers between edges, `(K - 1,)`; those outside the fitted range are not counted."""
        inside = values[(values >= self.edges[0]) & (values < self.edges[-1])]
        return np.bincount(np.searchsorted(self.edges, inside, side="right") - 1, minlength=len(self.edges) - 1)

    def with_counts(self, counts: IntArray, has_gaps: bool = True) -> Steps:
        """The same cells with the frequencies of other integers: see `count`.

        Arguments:
            counts: Numbers of integers between edges, `(K - 1,)`.
            has_gaps: Whether integers without rows may occur; not those of categories, which are all listed.
        """
        return self._from_counts(self.edges, counts, has_gaps)

    @classmethod
    def _from_counts(cls, edges: IntArray, counts: IntArray | FloatArray, has_gaps: bool) -> Steps:
        lengths = np.diff(edges).astype(np.float64)
        mass = (_fill_gaps(counts, lengths) if has_gaps else counts) + 0.5 * lengths / lengths.sum()
        total = mass.sum() + 1.0
        return cls(edges, (0.5 + np.concatenate([[0.0], np.cumsum(mass)])) / total)

    def encode(self, values: IntArray) -> tuple[FloatArray, FloatArray]:
        """Lower end and width of the cell of each integer, `(N,)` both."""
        first, last = int(self.edges[0]), int(self.edges[-1])
        values = np.clip(
            values, max(first - MAX_DISTANCE, -MAX_DISTANCE * 2), min(last + MAX_DISTANCE, MAX_DISTANCE * 2)
        )
        bins = np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, len(self.edges) - 2)
        slopes = np.diff(self.cumulative) / np.diff(self.edges)
        low = self.cumulative[bins] + (values - self.edges[bins]) * slopes[bins]
        width = slopes[bins]
        span = float(last - first)
        below, above = np.maximum(first - values, 1.0), np.maximum(values - last, 0.0)
        left, right = self.cumulative[0] * span, (1 - self.cumulative[-1]) * span
        low = np.where(values < first, left / (span + below), low)
        low = np.where(values >= last, 1 - right / (span + above), low)
        width = np.where(values < first, left / ((span + below) * (span + below - 1)), width)
        width = np.where(values >= last, right / ((span + above) * (span + above + 1)), width)
        return low, np.maximum(width, 1e-300)  # far out the width underflows, and its logarithm must stay finite

    def decode(self, u: FloatArray) -> IntArray:
        """Integers whose cells contain u, `(N,)`; u outside the fitted range gives the nearest end of that range."""
        bins = np.clip(np.searchsorted(self.cumulative, u, side="right") - 1, 0, len(self.edges) - 2)
        share = (u - self.cumulative[bins]) / (self.cumulative[bins + 1] - self.cumulative[bins])
        lengths = (self.edges[bins + 1] - self.edges[bins]).astype(np.int64)
        inside = np.floor(np.clip(share, 0, 1) * lengths).astype(np.int64)
        return self.edges[bins] + np.minimum(inside, lengths - 1)

    def __post_init__(self) -> None:
        rising = (np.diff(self.edges) > 0).all() and (np.diff(self.cumulative) > 0).all()
        if len(self.edges) != len(self.cumulative) or len(self.edges) < 2 or not rising:
            raise ValueError("edges and cumulative must increase and have the same length of at least 2")
        if not 0 <= self.cumulative[0] < self.cumulative[-1] <= 1:
            raise ValueError("cumulative must hold probabilities")

    def to_dict(self) -> dict[str, Any]:
        """Configuration for JSON; `from_dict` reads it."""
        return {"edges": self.edges.tolist(), "cumulative": self.cumulative.tolist()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Steps:
        """Build steps from the output of `to_dict`."""
        return cls(np.array(state["edges"], np.int64), np.array(state["cumulative"], np.float64))


def _fill_gaps(counts: IntArray | FloatArray, lengths: FloatArray) -> FloatArray:
    """Move counts of single integers to the gaps next to them, so that gaps have the probability of new integers.

    If n1 of n values are unique, the next value is a new one with a probability of about n1 / n (Good and Turing).
    Each integer loses the same part of a count, at most n1 / (n1 + 2 n2), where n2 integers occur twice (absolute
    discounting, Ney and Essen), and at most half a count: an observed integer stays more likely than its neighbours.

    Arguments:
        counts: Numbers of rows of cells, `(K,)`.
        lengths: Numbers of integers in the cells, `(K,)`.

    Example:
        >>> _fill_gaps(np.array([1, 0, 1, 0, 2]), np.array([1.0, 5.0, 1.0, 3.0, 1.0]))
        array([0.5 , 0.75, 0.5 , 0.75, 1.5 ])
    """
    is_single = (lengths == 1) & (counts > 0)
    n_once, n_twice = (int((counts[is_single] == n).sum()) for n in (1, 2))
    discount = min(MAX_DISCOUNT, n_once / max(1, int(is_single.sum()), n_once + 2 * n_twice))
    is_gap = counts == 0
    has_left, has_right = is_single & np.append(False, is_gap[:-1]), is_single & np.append(is_gap[1:], False)
    part = discount / np.maximum(1, has_left.astype(int) + has_right)
    moved = np.append((part * has_left)[1:], 0.0) + np.append(0.0, (part * has_right)[:-1])
    # Neighbouring cells without rows are one gap: values of validation rows are as likely there as any other new ones.
    gap = np.cumsum(np.append(True, is_gap[1:] != is_gap[:-1])) - 1
    density = np.bincount(gap, moved * is_gap) / np.bincount(gap, lengths)
    return counts - part * has_left - part * has_right + np.where(is_gap, density[gap] * lengths, 0.0)


Partition = Callable[[IntArray, IntArray], IntArray]
"""Edges of the cells of integers, `(K,)`, for distinct integers and their numbers of rows, `(D,)` each."""


def _separate(distinct: IntArray, counts: IntArray) -> IntArray:
    """Edges of one cell for each distinct integer, and of the gaps between them."""
    return np.union1d(distinct, distinct + 1)


def _bin(distinct: IntArray, counts: IntArray, n_bins: int, min_rows: float | None = None) -> IntArray:
    """Edges of bins with about the same number of distinct integers each; frequent integers are separate.

    Arguments:
        distinct: The distinct integers, `(D,)`.
        counts: Their numbers of rows, `(D,)`.
        n_bins: Number of bins.
        min_rows: Number of rows from which an integer may be separate; the most frequent ones are. By default they
            have more rows than half of the smallest bins.
    """
    if min_rows is None:
        min_rows = max(counts.sum() // (2 * N_BINS[0]) + 1, MIN_SINGLE_ROWS)
    inner = distinct[np.linspace(0, len(distinct) - 1, min(n_bins, len(distinct))).astype(int)]
    separate = np.argsort(-counts, kind="stable")[:MAX_REPEATED_CELLS]
    frequent = distinct[separate[counts[separate] >= min_rows]]
    return np.unique(np.concatenate([inner, frequent, frequent + 1, distinct[-1:] + 1]))


def _list_cells(distinct: IntArray) -> list[Partition]:
    """Partitions in which integers are separate: all of them, unless they are too many, or those that are repeated."""
    n_distinct = len(distinct)
    bins = [partial(_bin, n_bins=n, min_rows=min_rows) for min_rows in (None, 2) for n in N_BINS if n <= n_distinct / 4]
    return [_separate, *bins] if n_distinct <= MAX_SINGLE_CELLS else list(bins)


def _cross_validate(partition: Partition, values: IntArray) -> float:
    """Mean log-probability of integers, each under cells that are fitted to the other folds."""
    values = _take_sample(values)
    total = 0.0
    for fold in range(N_FOLDS):
        fitted, held_out = np.delete(values, np.s_[fold::N_FOLDS]), values[fold::N_FOLDS]
        steps = Steps._fit_cells(partition, *np.unique(fitted, return_counts=True))
        total += float(np.log(steps.encode(held_out)[1]).sum())
    return total / len(values)


def _take_sample(values: IntArray) -> IntArray:
    """Up to `MAX_ROWS` of the values in random order."""
    return values[np.random.RandomState(0).permutation(len(values))[:MAX_ROWS]]


def gain_from_cells(values: IntArray) -> float:
    """Nats by which frequencies of single integers, `(N,)`, predict other ones better than bins of several do.

    Infinite if there are too few distinct integers for bins.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> bool(gain_from_cells(rng.integers(100, size=1000) * 5) > 1)
        True
        >>> bool(gain_from_cells(rng.integers(100_000, size=1000)) < 0.01)
        True
    """
    values = _take_sample(values)
    distinct = np.unique(values)
    smooth = [partial(_bin, n_bins=n, min_rows=np.inf) for n in N_BINS if n <= len(distinct) / 4]
    best, best_smooth = (
        max((_cross_validate(partition, values) for partition in partitions), default=-np.inf)
        for partitions in (_list_cells(distinct), smooth)
    )
    return best - best_smooth
