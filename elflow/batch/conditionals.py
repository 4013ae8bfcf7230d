"""Distributions of a column in each row of a table, as tables: quantiles, distribution functions, probabilities."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from elflow.tabular import FlowDensity

__all__ = ["condition_on", "condition_rows"]

N_POINTS = 256
"""Default number of points over which columns are integrated out, as in `FlowDensity`."""


def condition_rows(
    density: FlowDensity,
    rows: pd.DataFrame,
    column: str,
    levels: Sequence[float] = (),
    cdf: bool = False,
    proba: bool = False,
    given: Sequence[str] | None = None,
    n_points: int = N_POINTS,
) -> pd.DataFrame:
    """Distribution of a column in each row: columns `q0.05`, ..., `cdf` and `p_a`, ..., in this order.

    Missing cells of other columns are integrated out, unless the density models missing values.

    Arguments:
        density: A fitted density.
        rows: The rows, with the columns of its context if it has one. Columns that are absent are missing.
        column: Name of the column.
        levels: Probabilities of quantiles, all of them different.
        cdf: Whether to compute P(column <= its value).
        proba: Whether to compute the probabilities of categories.
        given: Names of the columns to condition on; all others are integrated out. By default all other columns.
        n_points: Number of points of each row over which columns are integrated out.

    Example:
        >>> table = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "b"])
        >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
        >>> condition_rows(density, table.head(2), "b", [0.05, 0.95], cdf=True).columns.tolist()
        ['q0.05', 'q0.95', 'cdf']
    """
    others = [name for name in density.schema_.names if name != column]
    context = None if density.context_schema_ is None else rows[density.context_schema_.names].reset_index(drop=True)
    rows = rows.reindex(columns=[*others, column]).reset_index(drop=True)
    plain = [name for name in others if not density.schema_.column(name).missing]
    has_holes = rows[plain].isna().any(axis=1).to_numpy() if given is None else np.zeros(len(rows), bool)
    parts = []
    for is_part, conditions in ((~has_holes, given), (has_holes, others)):
        if not is_part.any() and len(rows):
            continue
        part, c = rows[is_part], None if context is None else context[is_part]
        table = condition_on(density, part, column, levels, cdf, proba, conditions, c, n_points)
        parts.append(table.set_index(np.flatnonzero(is_part)))
        if not len(rows):
            break
    return pd.concat(parts).sort_index()


def condition_on(
    density: FlowDensity,
    rows: pd.DataFrame | None,
    column: str,
    levels: Sequence[float],
    cdf: bool,
    proba: bool,
    given: Sequence[str] | Mapping[Hashable, Any] | None,
    context: pd.DataFrame | None,
    n_points: int = N_POINTS,
) -> pd.DataFrame:
    """Distribution of a column given the same columns in all rows, or given conditions if `rows` is None."""
    columns: dict[str, np.ndarray] = {}
    options: dict[str, Any] = {"context": context, "given": given, "n_points": n_points}
    if levels:
        names = [f"q{float(level)!r}" for level in levels]  # all digits: different levels have different names
        if len(set(names)) < len(names):
            raise ValueError(f"quantiles must be different, got {_find_double(levels)!r} twice")
        values = density.conditional_quantile(rows, column, list(levels), **options)
        columns |= {name: values[:, k] for k, name in enumerate(names)}
    if cdf:
        if rows is None:
            raise ValueError("cdf must be False without rows, which have the values of the column")
        columns["cdf"] = density.conditional_cdf(rows, column, **options)
    if proba:
        table = density.conditional_proba(rows, column, **options)
        columns |= {f"p_{level}": table[level].to_numpy() for level in table}
    return pd.DataFrame(columns)


def _find_double(levels: Sequence[float]) -> float:
    return next(level for number, level in enumerate(levels) if level in levels[:number])
