"""Columns of numbers within each category: whether sampled values are distributed like real ones there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from elflow.report._tables import Column

__all__ = ["Group", "compare_groups", "iter_groups", "select_groupings", "select_numbers"]

Floats = NDArray[np.float64]

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
    """Compare all columns of numbers within each category of the other columns.

    A category of few rows can have quite another distribution while columns and rank correlations agree. Frequent
    values, such as zeros, are left out.

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
    return tuple(found)


def _compare(real: Floats, sampled: Floats) -> tuple[float, float]:
    """Largest difference of the shares of real and of sampled values up to a threshold, and its p-value.

    Thresholds are deciles of all values. Given the number of values up to one, that of real ones has a hypergeometric
    distribution if samples are distributed like real rows. Unlike a Kolmogorov-Smirnov test, this detects values where
    real ones hardly are: none of 25 instead of a third.
    """
    thresholds = np.unique(np.quantile(np.append(real, sampled), np.linspace(0.1, 0.9, 9)))
    n_real, n_sampled = ((values[:, None] <= thresholds).sum(0) for values in (real, sampled))
    case = len(real) + len(sampled), n_real + n_sampled, len(real)
    tails = stats.hypergeom.cdf(n_real, *case), stats.hypergeom.sf(n_real - 1, *case)
    p_value = min(1.0, 2 * len(thresholds) * float(np.minimum(*tails).min()))
    return float(np.abs(n_real / len(real) - n_sampled / len(sampled)).max()), p_value


def _drop_atoms(column: Column) -> Column:
    """The column with frequent values as missing ones: many zeros would hide a difference of the other values."""
    values, counts = np.unique(column.real[~np.isnan(column.real)], return_counts=True)
    atoms = values[counts > MAX_ATOM_SHARE * max(1, counts.sum())]
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
