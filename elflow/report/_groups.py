"""Columns within each category: whether sampled values are distributed like real ones there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from elflow.report._tables import Column

__all__ = ["AND", "Group", "compare_groups", "iter_groups", "select_groupings", "select_numbers"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

AND = " and "
"""Between the names, and the categories, of two columns."""

MIN_REAL_ROWS, MIN_SAMPLED_ROWS = 20, 50
"""Minimum number of real and of sampled rows of a category."""
MAX_NUMBERS, MAX_GROUPINGS, MAX_LABELS = 16, 8, 30
"""Maximum number of columns of numbers, of columns of categories, and of categories of a column."""
MAX_ATOM_SHARE = 0.05
"""Share of the real rows above which a value is left out of the comparison of groups."""


@dataclass(frozen=True)
class Group:
    """Real and sampled values of one column in the rows of one category."""

    name: str
    """The column, or one of its values whose shares are compared."""
    given: str
    """Column of the category."""
    label: str
    """The category."""
    n_real: int
    """Number of real values, without frequent ones."""
    distance: float
    """Largest difference of the shares of real and of sampled values up to a threshold, from 0 to 1."""
    p_value: float
    """Probability of a difference as significant by chance, at any of the thresholds."""


def compare_groups(columns: Sequence[Column]) -> tuple[Group, ...]:
    """Compare all columns within each category of the other columns.

    A category of few rows can have quite another distribution while columns and rank correlations agree. For numbers,
    the shares up to several thresholds are compared, without frequent values such as zeros. For categories, frequent
    values and missing values, the share of each is compared, also within combinations of two other categories.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> kind = np.repeat([0.0, 1.0], [950, 50])
        >>> kinds = Column("kind", "category", kind, kind, ("a", "b"))
        >>> x = Column("x", "continuous", rng.normal(size=1000) + 9 * kind, rng.normal(size=1000) + 4 * kind)
        >>> worst = max(compare_groups([kinds, x]), key=lambda group: group.distance)
        >>> worst.label, worst.distance > 0.9, worst.p_value < 1e-6
        ('b', True, True)
    """
    found = []
    for column in select_numbers(columns):
        smooth = _drop_atoms(column)
        for given in select_groupings(columns):
            for label, real, sampled in iter_groups(smooth, given):
                found.append(Group(column.name, given.name, label, len(real), *_compare(real, sampled)))
    return (*found, *_compare_shares(columns))


def _compare_shares(columns: Sequence[Column]) -> Iterator[Group]:
    """Compare the shares of categories, and of frequent and missing values, within categories and pairs of these."""
    values = [coded for column in columns if (coded := _code_values(column)) is not None]
    groupings = select_groupings(columns)
    pairs = [_combine(*pair) for pair in combinations([g for g in groupings if len(g.labels) > 1], 2)]
    for given in [*groupings, *[pair for pair in pairs if len(pair.labels) <= MAX_LABELS]]:
        for column in values:
            if column.name not in given.name.split(AND):
                yield from _compare_categories(column, given)


def _compare_categories(column: Column, given: Column) -> Iterator[Group]:
    """Compare the share of each category of a column within each category of another one."""
    shape = len(given.labels), len(column.labels)
    real, sampled = (
        np.bincount((g[is_known] * shape[1] + v[is_known]).astype(np.int64), minlength=math.prod(shape)).reshape(shape)
        for g, v in ((given.real, column.real), (given.sampled, column.sampled))
        for is_known in [~np.isnan(g) & ~np.isnan(v)]
    )
    n_real, n_sampled = real.sum(1, keepdims=True), sampled.sum(1, keepdims=True)
    p_values = _find_p_values(real, sampled, n_real, n_sampled)
    distances = np.abs(real / n_real.clip(min=1) - sampled / n_sampled.clip(min=1))
    is_large = ((n_real >= MIN_REAL_ROWS) & (n_sampled >= MIN_SAMPLED_ROWS))[:, 0]
    # Shares of two categories add up to one: the second would repeat the first.
    n_values = 1 if shape[1] == 2 else shape[1]
    for k in np.flatnonzero(is_large):
        for v in range(n_values):
            name, n = f"{column.name} = {column.labels[v]}", int(n_real[k, 0])
            yield Group(name, given.name, given.labels[k], n, float(distances[k, v]), float(p_values[k, v]))


def _code_values(column: Column) -> Column | None:
    """Categories, or frequent and missing values of a column of numbers, as codes; None if there are none."""
    if column.has_labels:
        return column if 1 < len(column.labels) <= MAX_LABELS else None
    atoms = _find_atoms(column)
    labels = [*(f"{value:g}" for value in atoms), "missing", "other"]
    real, sampled = (
        np.where(np.isnan(part), len(atoms), _find_index(part, atoms, len(atoms) + 1)).astype(np.float64)
        for part in (column.real, column.sampled)
    )
    codes = np.unique(np.append(real, sampled))
    return replace(column, real=real, sampled=sampled, labels=tuple(labels)) if len(codes) > 1 else None


def _find_index(values: Floats, atoms: Floats, other: int) -> NDArray[np.int64]:
    """Position of each value among sorted atoms; `other` for all others."""
    index = np.searchsorted(atoms, values).clip(max=max(0, len(atoms) - 1))
    return np.where(np.isin(values, atoms), index, other)


def _combine(first: Column, second: Column) -> Column:
    """Pairs of the categories of two columns, as one column."""
    real, sampled = (
        a * len(second.labels) + b for a, b in ((first.real, second.real), (first.sampled, second.sampled))
    )
    labels = tuple(f"{a}{AND}{b}" for a, b in product(first.labels, second.labels))
    return Column(f"{first.name}{AND}{second.name}", "category", real, sampled, labels)


def _compare(real: Floats, sampled: Floats) -> tuple[float, float]:
    """Largest difference of the shares of real and of sampled values up to a threshold, and its p-value.

    Thresholds are deciles of all values. Given the number of values up to one, that of real ones has a hypergeometric
    distribution if samples are distributed like real rows. Unlike a Kolmogorov-Smirnov test, this detects values where
    real ones hardly are: none of 25 instead of a third.
    """
    thresholds = np.unique(np.quantile(np.append(real, sampled), np.linspace(0.1, 0.9, 9)))
    n_real, n_sampled = ((values[:, None] <= thresholds).sum(0) for values in (real, sampled))
    p_values = _find_p_values(n_real, n_sampled, len(real), len(sampled))
    p_value = min(1.0, len(thresholds) * float(p_values.min()))
    return float(np.abs(n_real / len(real) - n_sampled / len(sampled)).max()), p_value


def _find_p_values(n_real: Counts, n_sampled: Counts, real: Counts | int, sampled: Counts | int) -> Floats:
    """Two-sided p-values of counts among all real and all sampled rows, if both have the same distribution."""
    case = real + sampled, n_real + n_sampled, real
    tails = stats.hypergeom.cdf(n_real, *case), stats.hypergeom.sf(n_real - 1, *case)
    return np.minimum(1.0, 2 * np.minimum(*tails))


def _find_atoms(column: Column) -> Floats:
    """Frequent values of a column of numbers, in increasing order."""
    values, counts = np.unique(column.real[~np.isnan(column.real)], return_counts=True)
    return values[counts > MAX_ATOM_SHARE * max(1, counts.sum())]


def _drop_atoms(column: Column) -> Column:
    """The column with frequent values as missing ones: many zeros would hide a difference of the other values."""
    atoms = _find_atoms(column)
    real, sampled = (np.where(np.isin(part, atoms), np.nan, part) for part in (column.real, column.sampled))
    return replace(column, real=real, sampled=sampled)


def select_numbers(columns: Sequence[Column]) -> list[Column]:
    """Columns of numbers that are compared."""
    return [column for column in columns if column.kind in ("continuous", "integer")][:MAX_NUMBERS]


def select_groupings(columns: Sequence[Column]) -> list[Column]:
    """Columns whose categories are groups of rows."""
    return [column for column in columns if column.has_labels and len(column.labels) <= MAX_LABELS][:MAX_GROUPINGS]


def iter_groups(column: Column, given: Column | None) -> Iterator[tuple[str, Floats, Floats]]:
    """Each category that has enough rows, with its real and its sampled values, none of them missing.

    Without a column of categories, all rows are one group, whose name is empty.
    """
    if given is None:
        parts = [("", column.real, column.sampled)]
    else:
        parts = [
            (label, column.real[given.real == code], column.sampled[given.sampled == code])
            for code, label in enumerate(given.labels)
        ]
    for label, real, sampled in parts:
        real, sampled = real[~np.isnan(real)], sampled[~np.isnan(sampled)]
        if len(real) >= MIN_REAL_ROWS and len(sampled) >= MIN_SAMPLED_ROWS:
            yield label, real, sampled
