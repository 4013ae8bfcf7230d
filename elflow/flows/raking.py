"""Factors of cells with which samples have the frequencies of data, by raking: see `Tilted`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import rel_entr

from elflow.flows.tilted import MAX_LOG_FACTOR, MAX_LOG_PART, MIN_LOG_FACTOR

__all__ = ["TableFactors", "fit_factors"]

MAX_CELLS = 1_024
"""Maximum number of cells of a table of factors."""
MAX_ROUNDS, N_SWEEPS = 12, 50
"""Maximum number of searches for cells with wrong probabilities, and of sweeps over the tables after each."""
ROUND_SHARES = (0.5, 0.9, 1.0)
"""Shares of the largest gain of a table that others must have to be corrected in the same round: the next one is tried
if the rows do not become more likely, since factors of many tables are limited too often."""
MAX_CHANGE = 1e-3
"""Change of the logarithms of factors in a sweep below which there are no further ones."""
MIN_GAIN = 1e-4
"""Nats per row that a round must gain."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class TableFactors(NamedTuple):
    """Factors of tables of cells."""

    tables: list[list[int]]
    """Features of each table."""
    factors: list[FloatArray]
    """Logarithms of the factors of each table."""
    log_constant: float
    """Logarithm of the constant with which the density has an integral of one."""


class _Table:
    """Shares of rows and of samples in the cells of a table, and the factors that make them equal.

    Arguments:
        positions: The features.
        sizes: Their numbers of cells.
        rows: Cells of the rows by feature.
        weight: Weights of the rows, which add up to their number.
        samples: Cells of the samples by feature.
    """

    def __init__(
        self,
        positions: Sequence[int],
        sizes: Sequence[int],
        rows: Mapping[int, IntArray],
        weight: FloatArray,
        samples: Mapping[int, IntArray],
    ) -> None:
        self.positions = list(positions)
        self.sizes = list(sizes)
        self.of_rows, self.of_samples = (
            np.ravel_multi_index([codes[position] for position in positions], self.sizes) for codes in (rows, samples)
        )
        n_cells = math.prod(sizes)
        self.observed = np.bincount(self.of_rows, weight, minlength=n_cells) / weight.sum()
        # The minimax estimate of a share (Hodges and Lehmann, 1950), with the share of the samples as its prior mean.
        # All tables mix the same two distributions, so that there are factors that suit all of them.
        trust = 1 / (1 + weight.sum() ** -0.5)
        drawn = np.bincount(self.of_samples, minlength=n_cells) / len(self.of_samples)
        # A cell without rows and without samples keeps its share: values that nobody has seen are not made less likely.
        least = 0.5 / len(self.of_samples)
        self.target = np.where((drawn == 0) & (self.observed == 0), least, trust * self.observed + (1 - trust) * drawn)
        self.is_chosen: BoolArray = np.zeros(n_cells, np.bool_)
        self.log_factor = np.zeros(n_cells)

    def copy_state(self) -> tuple[BoolArray, FloatArray]:
        """Copies of `is_chosen` and of `log_factor`."""
        return self.is_chosen.copy(), self.log_factor.copy()

    def measure_shares(self, weight: FloatArray) -> FloatArray:
        """Shares of the weights of the samples in each cell; one without samples has half of one."""
        shares = np.bincount(self.of_samples, weight, minlength=len(self.observed)) / weight.sum()
        return np.maximum(shares, 0.5 / len(weight))

    def measure_gains(self, weight: FloatArray, size: float) -> FloatArray:
        """Log-likelihood ratio of each cell that is not chosen, in nats for `size` rows: see `_compare_cells`."""
        gain = size * _compare_cells(self.observed, self.measure_shares(weight), self.sizes)
        return np.where(self.is_chosen, 0.0, gain)

    def rake(self, weight: FloatArray) -> FloatArray:
        """Change the factors so that the chosen cells would have their shares.

        Arguments:
            weight: Present weights of the samples.

        Returns:
            The changes of the logarithms of the factors.
        """
        shares, least = self.measure_shares(weight), 0.5 / len(weight)
        change = np.log(self.target / shares)
        if not self.is_chosen.all():  # all other cells together have what is left
            rest, present = (max(part[~self.is_chosen].sum(), least) for part in (self.target, shares))
            change[~self.is_chosen] = np.log(rest / present)
        change = (self.log_factor + change).clip(-MAX_LOG_PART, MAX_LOG_PART) - self.log_factor
        self.log_factor = self.log_factor + change
        return change


def _compare_cells(observed: FloatArray, expected: FloatArray, sizes: Sequence[int]) -> FloatArray:
    """Divergence of the shares of each cell from those expected, in nats per row, `(cells,)`.

    For two features, it is that of the table of two by two that remains if all other cells of each feature are merged,
    beyond the divergences of its margins: a category that always goes with one value shows even if few rows have it.
    """
    if len(sizes) == 1:
        return _diverge(np.stack([observed, 1 - observed]), np.stack([expected, 1 - expected]))
    cells, margins = [], []
    for shares in (observed, expected):
        table = shares.reshape(sizes)
        first, second = np.broadcast_arrays(table.sum(1, keepdims=True), table.sum(0))
        cells.append(np.stack([table, first - table, second - table, 1 - first - second + table]))
        margins.append([np.stack([margin, 1 - margin]) for margin in (first, second)])
    gain = _diverge(*cells) - sum(_diverge(*pair) for pair in zip(*margins, strict=True))
    return np.ravel(gain)


def _diverge(observed: FloatArray, expected: FloatArray) -> FloatArray:
    """Kullback-Leibler divergence of shares along the first axis."""
    divergence: FloatArray = rel_entr(np.maximum(observed, 0.0), np.maximum(expected, 1e-12)).sum(0)
    return divergence


def fit_factors(
    rows: Mapping[int, IntArray], samples: Mapping[int, IntArray], sizes: Mapping[int, int], weight: FloatArray
) -> TableFactors | None:
    """Factors with which the samples of a flow have the combinations of cells of data; None if they have them already.

    Cells of one feature are chosen if their share of the samples is wrong by more than chance, by the Bayesian
    information criterion and the number of cells that are compared. Cells of two features are chosen if their two
    values depend on each other more, or less, than in the samples; with them, all cells of the features by themselves.
    Their factors are found by raking, first for the tables that gain most, then for others, as long as the rows become
    more likely.

    Arguments:
        rows: Cells of the data by feature, `(N,)` each.
        samples: Cells of the samples by feature, `(M,)` each.
        sizes: Number of cells of each feature.
        weight: Weights of the rows of the data, `(N,)`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> first, second = rng.integers(2, size=(2, 1000))
        >>> sizes, of_samples = {0: 2, 1: 2}, dict(enumerate(rng.integers(2, size=(2, 9000))))
        >>> fit_factors({0: first, 1: second}, of_samples, sizes, np.ones(1000)) is None
        True
        >>> fit_factors({0: first, 1: first}, of_samples, sizes, np.ones(1000)).tables
        [[0], [1], [0, 1]]
    """
    subsets = [[position] for position in sizes] + [list(pair) for pair in combinations(sizes, 2)]
    shapes = [[sizes[position] for position in subset] for subset in subsets]
    weight = weight / weight.mean()
    tables = [
        _Table(subset, shape, rows, weight, samples)
        for subset, shape in zip(subsets, shapes, strict=True)
        if math.prod(shape) <= MAX_CELLS
    ]
    n_samples = len(next(iter(samples.values())))
    n_cells = sum(len(table.observed) for table in tables)
    size = 1 / ((weight**2).sum() / weight.sum() ** 2 + 1 / n_samples)  # shares of samples are estimates, too
    penalty = 0.5 * math.log(size) + math.log(n_cells)
    best: TableFactors | None = None
    best_gain, of_samples, shares = 0.0, np.ones(n_samples), list(ROUND_SHARES)
    for _ in range(MAX_ROUNDS):
        before = [table.copy_state() for table in tables]
        gains = [np.where(gains > penalty, gains, 0.0) for gains in (t.measure_gains(of_samples, size) for t in tables)]
        if not shares or not any(part.any() for part in gains):
            break
        used = _choose_cells(tables, gains, shares[0])
        _rake_in_turn(used)
        found, total_gain = _normalize(used, weight)
        if total_gain >= best_gain + MIN_GAIN:
            best, best_gain, of_samples = found, total_gain, _weigh(_add_factors(used))
        else:
            shares.pop(0)
            for table, state in zip(tables, before, strict=True):
                table.is_chosen, table.log_factor = state
    return best


def _choose_cells(tables: Sequence[_Table], gains: Sequence[FloatArray], share: float) -> list[_Table]:
    """Choose the cells with a gain of the tables that have this share of the largest gain; return all chosen tables."""
    least = share * max(gain.sum() for gain in gains)
    for table, gain in zip(tables, gains, strict=True):
        if gain.sum() >= least:
            table.is_chosen |= gain > 0
    # Factors of a combination also change the shares of both categories, which must stay those of the rows.
    corrected = {position for table in tables if table.is_chosen.any() for position in table.positions}
    for table in tables:
        if len(table.positions) == 1 and table.positions[0] in corrected:
            table.is_chosen[:] = True
    return [table for table in tables if table.is_chosen.any()]


def _rake_in_turn(tables: Sequence[_Table]) -> None:
    """Rake tables one after the other until their factors hardly change."""
    total = _add_factors(tables)
    for _ in range(N_SWEEPS):
        largest = 0.0
        for table in tables:
            change = table.rake(_weigh(total))
            total = total + change[table.of_samples]
            largest = max(largest, float(np.abs(change).max()))
        if largest < MAX_CHANGE:
            return


def _normalize(tables: Sequence[_Table], weight: FloatArray) -> tuple[TableFactors, float]:
    """Factors whose mean is one before any is limited, and the nats per row that they gain for the data."""
    total = _add_factors(tables)
    shift = -math.log(np.exp(total - total.max()).mean()) - float(total.max())
    factors = [table.log_factor.reshape(table.sizes) for table in tables]
    factors[0] = (factors[0] + shift).clip(-MAX_LOG_PART, MAX_LOG_PART)
    log_constant = -math.log(_weigh(total + shift).mean())
    of_rows = sum((table.log_factor[table.of_rows] for table in tables), np.zeros(len(weight))) + shift
    gain = float(weight @ of_rows.clip(MIN_LOG_FACTOR, MAX_LOG_FACTOR)) / len(weight) + log_constant
    return TableFactors([table.positions for table in tables], factors, log_constant), gain


def _add_factors(tables: Sequence[_Table]) -> FloatArray:
    """Sum of the logarithms of the factors of each sample."""
    return sum((table.log_factor[table.of_samples] for table in tables), np.zeros(len(tables[0].of_samples)))


def _weigh(log_factor: FloatArray) -> FloatArray:
    """Weights of samples with these logarithms of factors."""
    weight: FloatArray = np.exp(log_factor.clip(MIN_LOG_FACTOR, MAX_LOG_FACTOR))
    return weight
