"""Bins in which the values of columns are counted, to compare tables without storing their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from elflow.flows.dequantization import Cells
from elflow.tabular._arrays import BoolArray, FloatArray, IntArray
from elflow.tabular.columns import Column
from elflow.tabular.columns._steps import Steps
from elflow.tabular.columns._warps import Warp
from elflow.tabular.schema import Schema
from elflow.training import Rows

__all__ = ["BINS_VERSION", "ColumnBins", "PairBins", "Values", "make_bins", "read_values"]

BINS_VERSION = 1
"""Version of the bins: counts in files of other versions cannot be compared with."""
MAX_BINS = 32
"""Maximum number of bins of a column whose values have an order, besides its atoms."""
MAX_LEVELS = 48
"""Maximum number of categories that are counted separately: the most frequent ones."""
N_GROUPS = 6
"""Number of groups of bins that are counted for pairs of columns."""


@dataclass(frozen=True)
class Values:
    """Values of one column, as numbers: see `read_values`."""

    u: FloatArray
    """Point of (0, 1) that represents the value, about uniform over the fitted rows, `(N,)`."""
    states: IntArray
    """State of each value: see `Column.encode_states`, `(N,)`."""
    is_known: BoolArray
    """Whether the value is in the fitted range; others of a column with categories are unknown categories, `(N,)`."""


class ColumnBins:
    """Bins of one column: intervals of values, atoms or categories, and one for missing values.

    The bins follow from the column alone, and not from the rows that are counted.

    Arguments:
        column: The column.
        is_context: Whether it is a column of the context.
    """

    def __init__(self, column: Column, is_context: bool = False) -> None:
        self.column = column
        self.is_context = is_context
        self.is_ordered = column.has_order
        self._edges = _choose_edges(column)
        if self.is_ordered:
            self._lookup = np.arange(len(self._edges) + 1)
            places = self._place_atoms()
        else:
            self._lookup, places = self._choose_levels(), []
        n_values = int(self._lookup.max()) + 1
        # Bins in the order of values: an atom follows the interval that contains it.
        order = np.argsort([*range(n_values), *(place + 0.5 for place in places)], kind="stable")
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        self._ranks, self._n_values, self.n_bins = ranks, n_values, len(ranks)
        self.groups = self._choose_groups(self._find_probabilities())

    @property
    def has_missing(self) -> bool:
        """Whether missing values are counted: in a bin after all others."""
        return bool(self.column.missing)

    @property
    def n_groups(self) -> int:
        """Number of groups of bins, without that of missing values."""
        return int(self.groups.max()) + 1

    def find_bins(self, values: Values) -> IntArray:
        """Bin of each value, `(N,)`; `n_bins` for a missing value."""
        if self.is_ordered:
            index = np.searchsorted(self._edges, values.u, side="right")
        else:
            index = np.clip(np.searchsorted(self._edges, values.u, side="right"), 0, len(self._lookup) - 2)
            index = np.where(values.is_known, index, len(self._lookup) - 1)
        bins = self._ranks[self._lookup[index]]
        position, n_atoms = self.column.position, len(self.column.atoms)
        for state in range(n_atoms + 1):
            if state != position:
                bins = np.where(values.states == state, self._ranks[self._n_values + state - (state > position)], bins)
        return np.where(values.states > n_atoms, self.n_bins, bins)

    def describe_level(self, index: int) -> str:
        """Name of a bin of a column of categories."""
        if index == self._lookup[-1]:
            return "unknown categories"
        inside = np.flatnonzero(self._lookup[:-1] == index)
        levels = self.column.levels or ()
        assert isinstance(self.column.map, Steps)
        first = int(self.column.map.edges[inside[0]])
        if len(inside) > 1 or int(self.column.map.edges[inside[0] + 1]) - first > 1 or first >= len(levels):
            return "other categories"
        return str(levels[first])

    def find_quantile(self, counts: IntArray, q: float) -> object:
        """Approximate quantile of the values in the bins of an ordered column, interpolated in their scale."""
        cumulative = np.append(0.0, np.cumsum(counts[: self.n_bins])) / counts[: self.n_bins].sum()
        index = int(np.clip(np.searchsorted(cumulative, q, side="right") - 1, 0, self.n_bins - 1))
        share = (q - cumulative[index]) / max(cumulative[index + 1] - cumulative[index], 1e-300)
        return self.find_values([index], share)[0]

    def find_values(self, indices: Sequence[int], share: float = 0.5) -> list[object]:
        """Values of an ordered column in some bins, at this share of each bin."""
        originals = np.argsort(self._ranks)[np.asarray(indices)]
        ends = np.concatenate([[0.0], self._edges, [1.0]])
        inside = np.minimum(originals, self._n_values - 1)
        u = ends[inside] + np.clip(share, 0, 1) * (ends[inside + 1] - ends[inside])
        values = self.column.decode(ndtri(np.clip(u, 1e-6, 1 - 1e-6))).tolist()
        atoms = originals - self._n_values
        return [self.column.atoms[k] if k >= 0 else value for k, value in zip(atoms, values, strict=True)]

    def _place_atoms(self) -> list[int]:
        """For each atom the interval of values that contains it."""
        if not self.column.atoms:
            return []
        assert isinstance(self.column.map, Warp)
        u = ndtr(self.column.map(np.array(self.column.atoms))[0])
        return [int(place) for place in np.searchsorted(self._edges, u, side="right")]

    def _choose_levels(self) -> IntArray:
        """Bin of each cell of a column of categories, and of unknown categories, which are last."""
        assert isinstance(self.column.map, Steps)
        widths = np.diff(self.column.map.cumulative)
        lookup = np.arange(len(widths) + 1)
        if len(widths) > MAX_LEVELS:
            separate = np.sort(np.argsort(-widths, kind="stable")[:MAX_LEVELS])
            lookup = np.full(len(widths) + 1, MAX_LEVELS)
            lookup[separate] = np.arange(MAX_LEVELS)
            lookup[-1] = MAX_LEVELS + 1
        return lookup

    def _find_probabilities(self) -> FloatArray:
        """Share of each bin among the values of the training rows, about, `(bins,)`."""
        if self.is_ordered:
            shares = np.diff(np.concatenate([[0.0], self._edges, [1.0]]))
        else:
            assert isinstance(self.column.map, Steps)
            cumulative = self.column.map.cumulative
            widths = np.append(np.diff(cumulative), 1 - cumulative[-1] + cumulative[0])
            shares = np.bincount(self._lookup, widths)
        of_states = np.array(self.column.shares[: len(self.column.atoms) + 1] or (1.0,))
        of_atoms = np.delete(of_states, self.column.position)
        result = np.empty(self.n_bins)
        result[self._ranks] = np.concatenate([shares * of_states[self.column.position], of_atoms]) / of_states.sum()
        return result

    def _choose_groups(self, probabilities: FloatArray) -> IntArray:
        """Group of each bin: about equally frequent ones, or the most frequent categories and all others."""
        if self.is_ordered:
            middle = np.cumsum(probabilities) - probabilities / 2
            groups = np.clip((middle * N_GROUPS).astype(np.int64), 0, N_GROUPS - 1)
            return np.unique(groups, return_inverse=True)[1].astype(np.int64)
        top = np.argsort(-probabilities, kind="stable")[: N_GROUPS - 1]
        groups = np.full(len(probabilities), len(top))
        groups[np.sort(top)] = np.arange(len(top))
        return groups


@dataclass(frozen=True)
class PairBins:
    """Cells in which the rows of two columns are counted: pairs of groups of their bins."""

    first: int
    """Position of the first column among those that are counted."""
    second: int
    """Position of the second column."""
    shape: tuple[int, int]
    """Numbers of groups of both columns."""


def make_bins(schema: Schema, context_schema: Schema | None) -> list[ColumnBins]:
    """Bins of the columns of a table, and then of its context."""
    context = () if context_schema is None else context_schema.columns
    return [*(ColumnBins(column) for column in schema.columns), *(ColumnBins(column, True) for column in context)]


def read_values(schema: Schema, context_schema: Schema | None, rows: Rows) -> list[Values]:
    """Values of the columns of encoded rows, and then of their context."""
    values = [_read_column(schema, column, rows.x) for column in schema.columns]
    if context_schema is not None and rows.context is not None:
        context = rows.context.double().numpy()
        values += [_read_context_column(context_schema, column, context) for column in context_schema.columns]
    return values


def _read_column(schema: Schema, column: Column, x: Cells) -> Values:
    positions, cells = schema.positions(column.name), schema.cells
    if positions[-1] in cells:
        index = cells.index(positions[-1])
        low, width = (part[:, index].double().numpy() for part in (x.low, x.width))
        u = np.where(width > 0, low + width / 2, ndtr(low - width / 2))
    else:
        u = ndtr(x.exact[:, schema.exact.index(positions[-1])].double().numpy())
    states = np.zeros(len(u), np.int64)
    if column.shares:
        index = cells.index(positions[0])
        middle = (x.low[:, index] + x.width[:, index] / 2).double().numpy()
        states = np.searchsorted(np.cumsum(column.shares)[:-1], middle, side="right")
    return Values(u, states, _is_known(column, u))


def _read_context_column(schema: Schema, column: Column, context: FloatArray) -> Values:
    positions, n_levels = schema.context_positions(column.name)
    part = context[:, positions]
    states = np.zeros(len(part), np.int64)
    if column.missing:
        states = (part[:, -1] > 0.5).astype(np.int64)
    if not n_levels:
        u = ndtr(part[:, 0])
        return Values(u, states, _is_known(column, u))
    one_hot = part[:, :n_levels]
    assert isinstance(column.map, Steps)
    low, width = column.map.encode(one_hot.argmax(1))
    return Values(low + width / 2, states, one_hot.max(1) > 0.5)


def _is_known(column: Column, u: FloatArray) -> BoolArray:
    """Whether values are in the fitted range, if they are discrete."""
    if not isinstance(column.map, Steps):
        return np.ones(len(u), bool)
    return (u > column.map.cumulative[0]) & (u < column.map.cumulative[-1])


def _choose_edges(column: Column) -> FloatArray:
    """Inner edges of bins in (0, 1): of cells if there are few or no order, or of about equally frequent bins."""
    grid = np.arange(1, MAX_BINS) / MAX_BINS
    if not isinstance(column.map, Steps):
        return grid
    inner = column.map.cumulative[1:-1]
    if not column.has_order or len(inner) < MAX_BINS:
        return inner
    return np.unique(inner[np.clip(np.searchsorted(inner, grid), 0, len(inner) - 1)])
