"""Hints about columns that a density should not have: functions of others, constant, or numbers of rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from elflow._checks import join_names, warn_user
from elflow.tabular._arrays import FloatArray
from elflow.tabular._warps import robust_scale
from elflow.tabular.columns import Column
from elflow.tabular.schema import Schema

__all__ = ["Dependence", "find_functions", "find_linear_dependences", "is_row_number", "warn_about_columns"]

MIN_ROWS = 50
"""Number of rows from which integers in equal steps number the rows, and from which linear functions are found."""
MIN_CONSTANT_ROWS = 10
"""Number of rows from which a column with one value is constant."""
MAX_TESTED_ROWS, MAX_TESTED_COLUMNS = 5_000, 500
"""Maximum number of rows, and of numeric columns, among which linear functions are searched."""
MAX_FUNCTION_COLUMNS, MAX_FUNCTION_LEVELS = 50, 100
"""Maximum number of discrete columns, and of their values, among which functions are searched."""
MAX_CHANCE = -20.0
"""Log-probability up to which independent columns do not look like functions of each other by chance."""
MAX_EXACT_SHARES = {"float32": 1e-11, "float64": 1e-16}
"""Share of the variance up to which a residual is a rounding error of floats of a dtype."""
MAX_ROUNDED_SHARE = 1e-4
"""Share of the variance up to which a residual may be due to rounding: coarser values are not nearly continuous."""
MAX_ROUNDING = 0.6
"""Maximum residual due to rounding, in steps: half a step, and a margin for the errors of coefficients."""
MAX_ROUNDING_DEVIATION = 0.33
"""Maximum standard deviation of such residuals, in steps: that of uniform rounding errors is 0.29."""
MAX_DISTANCE = 1e3
"""Maximum distance of a tested value from the median, in standard deviations by the quartiles."""
MIN_PART = 1e-6
"""Fraction of the standard deviation from which a column is a part of a linear function."""
N_ERRORS = 10
"""Number of standard errors of its coefficient, beyond that fraction, from which it is a part."""
MIN_DISTINCT = 20
"""Minimum number of distinct values of a column that is reported as a linear function."""
MIN_ROWS_PER_PART = 10
"""Number of rows, other than those with the most frequent value, that each part of a linear function needs: few rows
lie on a plane by chance."""


@dataclass(frozen=True)
class Dependence:
    """A column that is a linear function of others."""

    name: str
    others: tuple[str, ...]


def warn_about_columns(
    schema: Schema, frame: pd.DataFrame, declared: Collection[str] = (), row_numbers: Collection[str] | None = None
) -> None:
    """Warn about columns that number the rows, are constant, or are functions of others.

    Arguments:
        schema: The columns.
        frame: The table.
        declared: Names of columns whose meaning is known: they do not number the rows.
        row_numbers: Names of columns that number the rows, if the table has only some rows of a larger one.
    """
    numbers = [column for column in schema.columns if column.kind in ("continuous", "integer")]
    for name in (column.name for column in numbers if column.name not in declared):
        if is_row_number(frame[name]) if row_numbers is None else name in row_numbers:
            warn_user(f"column {name!r} numbers the rows: drop it unless it has another meaning")
    constant = [column.name for column in schema.columns if _is_constant(frame[column.name])]
    if len(constant) == 1:
        warn_user(f"column {constant[0]!r} is constant and adds nothing to the density: drop it")
    elif constant:
        warn_user(f"columns {join_names(constant)} are constant and add nothing to the density: drop them")
    for dependence in find_linear_dependences(frame, numbers):
        warn_user(
            f"column {dependence.name!r} is a linear function of {join_names(dependence.others)}, up to rounding: it "
            "adds nothing to the density but the rounding, which may dominate the scores. Drop one of these columns"
        )
    for dependence in find_functions(frame, [column for column in schema.columns if column.is_discrete]):
        warn_user(
            f"column {dependence.name!r} is determined by {join_names(dependence.others)}, which samples do not always "
            f"keep: drop {dependence.name!r}, and add it to samples from {join_names(dependence.others)}"
        )


def is_row_number(values: pd.Series) -> bool:
    """Whether integers number the rows of a table: they rise or fall in equal steps.

    Example:
        >>> is_row_number(pd.Series(range(1, 100))), is_row_number(pd.Series([1, 3, 2] * 33))
        (True, False)
    """
    if not pd.api.types.is_integer_dtype(values.dtype) or len(values) < MIN_ROWS or values.isna().any():
        return False
    steps = np.diff(values.to_numpy(np.int64))  # a difference that overflows is not constant
    return bool(steps[0] != 0 and (steps == steps[0]).all())


def _is_constant(values: pd.Series) -> bool:
    """Whether all rows have the same value, which is not missing."""
    return len(values) >= MIN_CONSTANT_ROWS and not values.isna().any() and bool((values == values.iloc[0]).all())


def find_functions(frame: pd.DataFrame, columns: Sequence[Column]) -> list[Dependence]:
    """Find discrete columns that are functions of one other discrete column.

    Arguments:
        frame: The table.
        columns: The discrete columns to search.

    Example:
        >>> plan = np.random.default_rng(0).choice(["free", "pro"], 100)
        >>> frame = pd.DataFrame({"plan": plan, "price": np.where(plan == "pro", 9, 0)})
        >>> find_functions(frame, Schema.fit(frame).columns)
        [Dependence(name='price', others=('plan',))]
    """
    some = frame.iloc[np.unique(np.linspace(0, len(frame) - 1, MAX_TESTED_ROWS).astype(int))]
    codes = {
        column.name: pd.factorize(some[column.name])[0].astype(np.int64)  # -1 for missing values is a value as well
        for column in columns[:MAX_FUNCTION_COLUMNS]
    }
    counts = {name: np.unique(code, return_counts=True)[1] for name, code in codes.items()}
    names = [name for name in codes if 2 <= len(counts[name]) <= MAX_FUNCTION_LEVELS]
    found: list[Dependence] = []
    reported: set[str] = set()
    for name in reversed(names):  # of two columns that determine each other, the later one is left out
        # Rows with the same value of the other column all have the most frequent value here with this probability.
        log_share = np.log(counts[name].max() / len(some))
        for other in names:
            is_new = other != name and other not in reported
            if is_new and (len(some) - len(counts[other])) * log_share < MAX_CHANCE:
                pairs = np.unique(codes[other] * (MAX_FUNCTION_LEVELS + 1) + codes[name])
                if len(pairs) == len(counts[other]):
                    found.append(Dependence(name, (other,)))
                    reported.add(name)
                    break
    return found


def find_linear_dependences(frame: pd.DataFrame, columns: Sequence[Column]) -> list[Dependence]:
    """Find numeric columns that are linear functions of columns before them, up to rounding.

    The residual is a rounding error of floats, or the column is rounded and the residual is at most half a step of the
    column, plus half a step of each of the others times its coefficient.
    Columns of few distinct values, such as indicators of categories, have probabilities rather than densities: they are
    not reported, but may be parts of such functions.

    Arguments:
        frame: The table.
        columns: The numeric columns to search.

    Example:
        >>> net, tax = np.random.default_rng(0).normal(size=(2, 100))
        >>> frame = pd.DataFrame({"net": net, "tax": tax, "gross": net + tax})
        >>> find_linear_dependences(frame, Schema.fit(frame).columns)
        [Dependence(name='gross', others=('net', 'tax'))]
    """
    columns = columns[:MAX_TESTED_COLUMNS]
    if len(columns) < 2:
        return []
    # Rows at equal distances: no random choice, and no preference for the beginning of a sorted table.
    some = frame.iloc[np.unique(np.linspace(0, len(frame) - 1, MAX_TESTED_ROWS).astype(int))]
    numbers = [pd.to_numeric(some[column.name], errors="coerce").astype("Float64") for column in columns]
    x = np.stack([values.to_numpy(np.float64, na_value=np.nan) for values in numbers], 1)
    x = x[np.isfinite(x).all(1)]
    if len(x) < MIN_ROWS:
        return []
    robust = np.apply_along_axis(robust_scale, 0, x)
    with np.errstate(over="ignore"):
        x = (x - np.median(x, 0)) / robust
    # Two columns with outliers in the same rows, such as -1e9 for missing values, would look proportional.
    x = x[(np.abs(x) <= MAX_DISTANCE).all(1)]
    if len(x) < MIN_ROWS:
        return []
    x = x - x.mean(0)
    scale = x.std(0)
    varies = [k for k in range(len(columns)) if scale[k] > 0]
    return _eliminate(x[:, varies] / scale[varies], (scale * robust)[varies], [columns[k] for k in varies])


def _eliminate(x: FloatArray, scale: FloatArray, columns: Sequence[Column]) -> list[Dependence]:
    """Regress each standardised column of x `(N, columns)` on those before it that are not linear functions.

    Arguments:
        x: The standardised columns.
        scale: The standard deviation of each.
        columns: Their names and steps.
    """
    gram = x.T @ x / len(x)
    steps = np.array([column.step or 0.0 for column in columns]) / scale
    basis: list[int] = []
    found: list[Dependence] = []
    # Row k makes column k of the basis orthonormal to those before it: Gram-Schmidt on the covariance matrix.
    orthogonal = np.zeros((len(columns), len(columns)))
    for j, column in enumerate(columns):
        n = len(basis)
        rows = orthogonal[:n, :n]
        projections = rows @ gram[basis, j]
        weights, share = projections @ rows, float(1 - projections @ projections)
        if share < MAX_ROUNDED_SHARE:
            # The covariance has lost the digits of a small residual: it is computed from the rows, with a correction.
            weights = weights + rows @ (x[:, basis].T @ (x[:, j] - x[:, basis] @ weights) / len(x)) @ rows
            residual = x[:, j] - x[:, basis] @ weights
            share = float((residual**2).mean())
            is_exact = share < MAX_EXACT_SHARES.get(column.dtype.lower(), MAX_EXACT_SHARES["float64"])
            rounding = np.append(np.abs(weights) * steps[basis], steps[j])  # that of all columns
            is_rounded = (
                column.step is not None
                and np.abs(residual).max() <= MAX_ROUNDING * rounding.sum()
                and share <= (MAX_ROUNDING_DEVIATION * np.linalg.norm(rounding)) ** 2
            )
            min_part = MIN_PART + N_ERRORS * np.sqrt(share / len(x))
            others = tuple(columns[k].name for k, w in zip(basis, weights, strict=True) if abs(w) > min_part)
            counts = np.unique(x[:, j], return_counts=True)[1]
            has_rows = len(x) - counts.max() >= MIN_ROWS_PER_PART * (1 + len(others))
            if (is_exact or is_rounded) and has_rows and len(counts) >= MIN_DISTINCT:
                found.append(Dependence(column.name, others))
            if is_exact:
                continue
        orthogonal[n, :n], orthogonal[n, n] = -weights / np.sqrt(share), 1 / np.sqrt(share)
        basis.append(j)
    return found
