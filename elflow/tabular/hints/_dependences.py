"""Columns of numbers that are linear functions, or products of powers, of other columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from elflow.tabular._arrays import FloatArray
from elflow.tabular.columns import Column
from elflow.tabular.columns._scales import robust_scale

__all__ = ["Dependence", "choose_tested_rows", "find_linear_dependences", "find_products"]

MIN_ROWS = 50
"""Number of rows from which linear functions are found."""
MAX_TESTED_ROWS, MAX_TESTED_COLUMNS = 5_000, 500
"""Maximum number of rows, and of numeric columns, among which linear functions are searched."""
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
MAX_PRODUCT_COLUMNS, MAX_PRODUCT_SHARE = 50, 1e-2
"""Maximum number of columns among which products are searched, and share of the variance of the logarithm up to which
the residual of a product may be due to rounding."""
MIN_POSITIVE_SHARE, MIN_FACTORS = 0.9, 3
"""Share of positive values from which a column may be part of a product, and minimum number of its distinct values."""
MAX_POWER_ERROR = 0.05
"""Maximum difference between an estimated power and a multiple of 1/2."""


@dataclass(frozen=True)
class Dependence:
    """A column that is a function of others."""

    name: str
    others: tuple[str, ...]


def choose_tested_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows at equal distances: no random choice, and no preference for the beginning of a sorted table."""
    return frame.iloc[np.unique(np.linspace(0, len(frame) - 1, MAX_TESTED_ROWS).astype(int))]


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
        >>> from elflow.tabular import Schema
        >>> net, tax = np.random.default_rng(0).normal(size=(2, 100))
        >>> frame = pd.DataFrame({"net": net, "tax": tax, "gross": net + tax})
        >>> find_linear_dependences(frame, Schema.fit(frame).columns)
        [Dependence(name='gross', others=('net', 'tax'))]
    """
    columns = columns[:MAX_TESTED_COLUMNS]
    if len(columns) < 2:
        return []
    some = choose_tested_rows(frame)
    x = np.stack([_to_numbers(some[column.name], column) for column in columns], 1)
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


def _to_numbers(values: pd.Series, column: Column) -> FloatArray:
    """Values of a column of numbers or datetimes, `(N,)`, NaN where they are missing."""
    if column.kind != "datetime":
        return pd.to_numeric(values, errors="coerce").astype("Float64").to_numpy(np.float64, na_value=np.nan)
    numbers = np.full(len(values), np.nan)
    is_present = values.notna().to_numpy()
    if is_present.any():
        integers = column.to_integers(column.parse_times(values)[is_present])
        # Counts of nanoseconds since 1970 have more digits than floats: those since the first value have fewer.
        numbers[is_present] = (integers - integers[0]) * (column.step or 1.0)
    return numbers


def find_products(frame: pd.DataFrame, columns: Sequence[Column]) -> list[Dependence]:
    """Find positive columns that are products of powers of columns before them, up to rounding.

    Powers are multiples of 1/2, and there may be a constant factor: totals are prices times quantities, the body-mass
    index is weight over height squared. Columns that are proportional to one other column are linear functions of it,
    and not reported here.

    Arguments:
        frame: The table.
        columns: The numeric columns to search.

    Example:
        >>> from elflow.tabular import Schema
        >>> rng = np.random.default_rng(0)
        >>> frame = pd.DataFrame({"price": rng.lognormal(2, 1, 200).round(2), "items": rng.integers(1, 9, 200)})
        >>> frame["total"] = frame["price"] * frame["items"]
        >>> find_products(frame, Schema.fit(frame).columns)
        [Dependence(name='total', others=('price', 'items'))]
    """
    some = choose_tested_rows(frame)
    numbers = {column.name: _to_numbers(some[column.name], column) for column in columns[:MAX_TESTED_COLUMNS]}
    positive = [column for column in columns if column.name in numbers and _is_positive(numbers[column.name])]
    positive = positive[: min(MAX_PRODUCT_COLUMNS, (len(some) - MIN_ROWS) // MIN_ROWS_PER_PART)]
    if len(positive) < 2:
        return []
    x = np.stack([numbers[column.name] for column in positive], 1)
    with np.errstate(invalid="ignore"):
        x = x[(x > 0).all(1)]
    if len(x) < MIN_ROWS + MIN_ROWS_PER_PART * len(positive):
        return []
    found: list[Dependence] = []
    basis: list[int] = []
    for j, column in enumerate(positive):
        powers = _fit_powers(x, j, basis, positive)
        parts = (
            () if powers is None else tuple(positive[k].name for k, power in zip(basis, powers, strict=True) if power)
        )
        if powers is not None and (len(parts) > 1 or (parts and np.abs(powers).max() != 1)):
            found.append(Dependence(column.name, parts))
        elif powers is None:
            basis.append(j)
    return found


def _is_positive(x: FloatArray) -> bool:
    """Whether nearly all numbers, some of which may be missing, are positive, and vary."""
    with np.errstate(invalid="ignore"):
        inside = x[x > 0]
    return len(inside) >= MIN_POSITIVE_SHARE * len(x) and len(np.unique(inside)) >= MIN_FACTORS


def _fit_powers(x: FloatArray, j: int, basis: Sequence[int], columns: Sequence[Column]) -> FloatArray | None:
    """Powers of the columns of a basis whose product is column j of x `(N, columns)`; None if there are none."""
    if not basis or len(np.unique(x[:, j])) < MIN_DISTINCT:
        return None
    logs = np.log(x)
    target, others = logs[:, j] - logs[:, j].mean(), logs[:, list(basis)] - logs[:, list(basis)].mean(0)
    raw = np.linalg.lstsq(others, target, rcond=None)[0]
    powers = np.round(2 * raw) / 2
    if np.abs(raw - powers).max() > MAX_POWER_ERROR or not powers.any():
        return None
    product = logs[:, list(basis)] @ powers
    product = np.exp(product + np.median(logs[:, j] - product))
    residual = np.abs(x[:, j] - product)
    steps = np.array([column.step or 0.0 for column in columns])
    relative = (np.abs(powers) * steps[list(basis)] / x[:, list(basis)]).sum(1)
    for factors in (np.zeros(len(x)), relative):  # counts are exact, and measurements are rounded
        rounding = MAX_ROUNDING * (steps[j] + product * factors) + 1e-9 * product
        share = float(((rounding / x[:, j]) ** 2).mean() / max(target.var(), 1e-300))
        if (residual <= rounding).all() and share <= MAX_PRODUCT_SHARE:
            return powers
    return None
