"""Counts of a table in bins, which take the place of its rows when tables are compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TypedDict

import numpy as np
from scipy.special import ndtri

from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular.drift._bins import BINS_VERSION, ColumnBins, PairBins, Values, make_bins, read_values
from elflow.tabular.drift._statistics import Moments
from elflow.tabular.schema import Schema
from elflow.training import Rows

__all__ = ["CountedTable", "Counter", "StoredCounts", "choose_pairs", "choose_score_edges"]

N_SCORE_BINS = 32
"""Number of bins of log-densities."""
N_FEATURES = 16
"""Number of random features of a row, whose means are compared."""
MAX_Z = 5.0
"""Numbers are limited to this in random features."""
MAX_PAIRS = 600
"""Maximum number of pairs of columns that are counted: the ones with the strongest dependence."""
MAX_RANKED_ROWS = 4_000
"""Maximum number of training rows that determine the strength of a dependence."""


class StoredCounts(TypedDict):
    """Counts of held-out rows as JSON, in a model file."""

    version: int
    n_rows: int
    score_edges: list[float]
    scores: list[int]
    score_moments: tuple[int, float, float]
    columns: list[list[int]]
    pairs: list[tuple[int, int]]
    pair_counts: list[list[int]]
    feature_sums: list[float]
    feature_products: list[float]


class Counter:
    """Counts rows of a table in bins that follow from its columns.

    Arguments:
        schema: The columns of the table.
        context_schema: The columns of its context, or None.
        score_edges: Inner edges of the bins of log-densities, `(K,)`.
        pairs: The pairs of columns to count, by position.
    """

    def __init__(
        self,
        schema: Schema,
        context_schema: Schema | None,
        score_edges: FloatArray,
        pairs: Sequence[tuple[int, int]],
    ) -> None:
        self.schema, self.context_schema = schema, context_schema
        self.columns = make_bins(schema, context_schema)
        self.score_edges = score_edges
        self.pairs = [self._make_pair(*pair) for pair in pairs]

    def _make_pair(self, first: int, second: int) -> PairBins:
        return PairBins(first, second, (self.columns[first].n_groups, self.columns[second].n_groups))

    def count(self, rows: Rows, log_density: FloatArray) -> CountedTable:
        """Count encoded rows, whose log-densities are known, `(N,)`."""
        values = read_values(self.schema, self.context_schema, rows)
        bins = [column.find_bins(part) for column, part in zip(self.columns, values, strict=True)]
        counts = [
            np.bincount(index, minlength=column.n_bins + column.has_missing)
            for column, index in zip(self.columns, bins, strict=True)
        ]
        groups = [np.append(column.groups, -1)[index] for column, index in zip(self.columns, bins, strict=True)]
        features = make_features(values, self.columns)
        return CountedTable(
            len(log_density),
            np.bincount(np.searchsorted(self.score_edges, log_density), minlength=len(self.score_edges) + 1),
            Moments.of(log_density[np.isfinite(log_density)]),
            counts,
            [_count_pair(pair, groups) for pair in self.pairs],
            features.sum(0),
            features.T @ features,
        )

    def is_valid(self, table: CountedTable) -> bool:
        """Whether counts, which may come from a damaged file, have the right numbers of bins and rows."""
        sizes = [column.n_bins + column.has_missing for column in self.columns]
        arrays = [table.scores, *table.columns, *(part.reshape(-1) for part in table.pairs)]
        return (
            [len(part) for part in table.columns] == sizes
            and len(table.scores) == len(self.score_edges) + 1
            and bool((np.diff(self.score_edges) > 0).all() and np.isfinite(self.score_edges).all())
            and all((part >= 0).all() and part.sum() <= table.n_rows for part in arrays)
            and all(part.sum() == table.n_rows for part in [table.scores, *table.columns])
            and 0 <= table.score_moments.n_values <= table.n_rows
            and table.score_moments.squares >= 0
            and bool(np.isfinite([*table.feature_sums, *table.feature_products.ravel()]).all())
            and (not table.score_moments.n_values or bool(np.isfinite(table.score_moments).all()))
        )


class CountedTable:
    """Counts of rows in bins; those of several tables add up.

    Arguments:
        n_rows: Number of rows.
        scores: Number of rows in each bin of log-densities, `(K,)`.
        score_moments: Moments of the finite log-densities.
        columns: Number of rows in each bin of each column; missing values are in the last one.
        pairs: Number of rows in each pair of groups, of each pair of columns.
        feature_sums: Sum of the random features, `(R,)`.
        feature_products: Sum of the products of random features, `(R, R)`.
    """

    def __init__(
        self,
        n_rows: int,
        scores: IntArray,
        score_moments: Moments,
        columns: list[IntArray],
        pairs: list[IntArray],
        feature_sums: FloatArray,
        feature_products: FloatArray,
    ) -> None:
        self.n_rows = n_rows
        self.scores = scores
        self.score_moments = score_moments
        self.columns = columns
        self.pairs = pairs
        self.feature_sums = feature_sums
        self.feature_products = feature_products

    def __add__(self, other: CountedTable) -> CountedTable:
        return CountedTable(
            self.n_rows + other.n_rows,
            self.scores + other.scores,
            self.score_moments.merge(other.score_moments),
            [a + b for a, b in zip(self.columns, other.columns, strict=True)],
            [a + b for a, b in zip(self.pairs, other.pairs, strict=True)],
            self.feature_sums + other.feature_sums,
            self.feature_products + other.feature_products,
        )

    def make_empty(self) -> CountedTable:
        """Counts of no rows in the same bins."""
        return CountedTable(
            0,
            np.zeros_like(self.scores),
            Moments.of(np.zeros(0)),
            [np.zeros_like(part) for part in self.columns],
            [np.zeros_like(part) for part in self.pairs],
            np.zeros_like(self.feature_sums),
            np.zeros_like(self.feature_products),
        )

    def to_dict(self, counter: Counter) -> StoredCounts:
        """The counts as JSON, with what identifies their bins."""
        upper = np.triu_indices(len(self.feature_sums))
        n_values, mean, squares = self.score_moments
        return {
            "version": BINS_VERSION,
            "n_rows": self.n_rows,
            "score_edges": counter.score_edges.tolist(),
            "scores": self.scores.tolist(),
            "score_moments": (n_values, mean if n_values else 0.0, squares),  # JSON has no NaN
            "columns": [part.tolist() for part in self.columns],
            "pairs": [(pair.first, pair.second) for pair in counter.pairs],
            "pair_counts": [part.reshape(-1).tolist() for part in self.pairs],
            "feature_sums": self.feature_sums.tolist(),
            "feature_products": self.feature_products[upper].tolist(),
        }

    @classmethod
    def from_dict(
        cls, state: StoredCounts, schema: Schema, context_schema: Schema | None
    ) -> tuple[Counter, CountedTable]:
        """Counts from the result of `to_dict`, and a counter of the same bins."""
        n_columns = len(schema.columns) + (0 if context_schema is None else len(context_schema.columns))
        pairs = [(int(first), int(second)) for first, second in state["pairs"]]
        if not all(0 <= first < second < n_columns for first, second in pairs):
            raise ValueError("held_out.pairs must have positions of columns")
        counter = Counter(schema, context_schema, np.array(state["score_edges"], np.float64), pairs)
        upper = np.triu_indices(N_FEATURES)
        sums, products = np.array(state["feature_sums"], np.float64), np.zeros((N_FEATURES, N_FEATURES))
        if len(sums) != N_FEATURES or len(state["feature_products"]) != len(upper[0]):
            raise ValueError(f"held_out must have {N_FEATURES} features, got {len(sums)}")
        products[upper] = state["feature_products"]
        cells = [np.array(part, np.int64) for part in state["pair_counts"]]
        if [len(part) for part in cells] != [pair.shape[0] * pair.shape[1] for pair in counter.pairs]:
            raise ValueError("held_out.pair_counts must have a count for each pair of groups")
        table = cls(
            state["n_rows"],
            np.array(state["scores"], np.int64),
            Moments(*state["score_moments"]) if state["score_moments"][0] else Moments.of(np.zeros(0)),
            [np.array(part, np.int64) for part in state["columns"]],
            [part.reshape(pair.shape) for part, pair in zip(cells, counter.pairs, strict=True)],
            sums,
            products + np.triu(products, 1).T,
        )
        if not counter.is_valid(table):
            raise ValueError("held_out must have counts of the same rows in the bins of all columns")
        return counter, table


def _count_pair(pair: PairBins, groups: Sequence[IntArray]) -> IntArray:
    """Number of rows in each pair of groups, without rows in which a value is missing."""
    a, b = groups[pair.first], groups[pair.second]
    is_known = (a >= 0) & (b >= 0)
    cells = np.bincount(a[is_known] * pair.shape[1] + b[is_known], minlength=pair.shape[0] * pair.shape[1])
    return cells.reshape(pair.shape)


def make_features(values: Sequence[Values], columns: Sequence[ColumnBins]) -> FloatArray:
    """Random features of rows, `(N, R)`: cosines of random projections, whose means tell distributions apart.

    Reference:
        Fast Two-Sample Testing with Analytic Representations of Probability Measures (Chwialkowski et al., 2015)
    """
    parts = []
    for part, column in zip(values, columns, strict=True):
        z = np.clip(ndtri(np.clip(part.u, 1e-12, 1 - 1e-12)), -MAX_Z, MAX_Z)
        parts.append(np.where(part.states == column.column.position, z, 0.0))
        if column.column.shares:  # a number for the state, too
            share = np.array(column.column.shares)
            parts.append(ndtri(np.cumsum(share) - share / 2)[part.states])
    x = np.stack(parts, 1)
    # Only this generator of NumPy has numbers that never change between versions.
    rng = np.random.RandomState(0)
    # The kernel of these features is as wide as the typical distance of two rows.
    frequencies = rng.normal(size=(x.shape[1], N_FEATURES)) / np.sqrt(2 * x.shape[1])
    cosines: FloatArray = np.cos(x @ frequencies + rng.uniform(0, 2 * np.pi, N_FEATURES))
    return cosines


def choose_score_edges(log_density: FloatArray) -> FloatArray:
    """Inner edges of bins of log-densities, `(K,)`: between values, with about as many reference rows in each."""
    ordered = np.sort(log_density)
    places = np.unique(np.round(np.arange(1, N_SCORE_BINS) * len(ordered) / N_SCORE_BINS).astype(int))
    places = places[(places > 0) & (places < len(ordered))]
    below, above = ordered[places - 1], ordered[places]
    # Equal rows must be in one bin, also if their scores are rounded differently.
    is_gap = np.isfinite(below) & (above - below > 1e-7 * (1 + np.abs(above)))
    return np.unique((below[is_gap] + above[is_gap]) / 2)


def choose_pairs(schema: Schema, context_schema: Schema | None, training: Rows | None = None) -> list[tuple[int, int]]:
    """The pairs of columns to count: all, or those with the strongest dependence in some training rows.

    Held-out rows must not decide: the dependence of a pair that they select would be exaggerated in them. Without
    training rows, the first pairs are counted.
    """
    n_columns = len(schema.columns) + (0 if context_schema is None else len(context_schema.columns))
    pairs = list(combinations(range(n_columns), 2))
    if len(pairs) <= MAX_PAIRS or training is None:
        return pairs[:MAX_PAIRS]
    counter = Counter(schema, context_schema, np.zeros(0), pairs)
    some = training.take(slice(0, MAX_RANKED_ROWS))
    counted = counter.count(some, np.zeros(len(some)))
    strengths = np.array([_find_information(cells) for cells in counted.pairs])
    chosen = np.sort(np.argsort(-strengths, kind="stable")[:MAX_PAIRS])
    return [pairs[k] for k in chosen]


def _find_information(cells: IntArray) -> float:
    """Mutual information of two columns, from counts of pairs of groups, with the Miller-Madow correction."""
    total = max(int(cells.sum()), 1)
    joint = cells / total
    product = np.outer(joint.sum(1), joint.sum(0))
    seen = joint > 0
    bias = (max((joint.sum(1) > 0).sum(), 1) - 1) * (max((joint.sum(0) > 0).sum(), 1) - 1) / (2 * total)
    return float((joint[seen] * np.log(joint[seen] / product[seen])).sum() - bias)
