"""Checks of the argument `given`: whether conditions fit the columns, and are near the fitted values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from elflow._checks import warn_user
from elflow.tabular._arrays import BoolArray, FloatArray
from elflow.tabular.columns import Column
from elflow.tabular.columns._steps import Steps
from elflow.tabular.queries._given import ColumnSet, Missing, list_sets
from elflow.tabular.schema import Schema

__all__ = ["ExtrapolationWarning", "check_conditions", "check_samples"]

MAX_DISTANCE = 1.0
"""Distance from the fitted values, in standard deviations of the bulk, from which a number is far outside."""
MAX_SHARE = 0.1
"""Distance from the fitted values, as a fraction of their range, from which a value of a discrete column is."""


class ExtrapolationWarning(UserWarning):
    """A condition is far outside of the fitted values, where the density is not supported by data."""


def check_conditions(schema: Schema, conditions: Mapping[str, pd.Series]) -> None:
    """Raise an error about conditions that do not fit their column, and warn about those far outside of its values.

    Arguments:
        schema: The columns of the table.
        conditions: Conditions by name of the column, `(N,)` each: see `build_regions`.

    Example:
        >>> schema = Schema.fit(pd.DataFrame({"size": np.random.default_rng(0).normal(size=100)}))
        >>> check_conditions(schema, {"size": pd.Series(["large"])})
        Traceback (most recent call last):
        ...
        ValueError: given must fit the columns: column 'size' must hold numbers, got str, first 'large' in row 0
    """
    for name, series in conditions.items():
        column = schema.column(name)
        try:
            sets = list_sets(column, series)
        except (TypeError, ValueError, OverflowError) as error:
            if str(error).startswith("given "):
                raise
            raise ValueError(f"given must fit the columns: {error}") from None
        first, last = _find_reach(column)
        far = [row for index, members in sets for row, m in zip(index, members, strict=True) if _is_far(m, first, last)]
        if far:
            row = int(min(far))
            where = "" if len(series) == 1 else f" in {len(far):,} of {len(series):,} rows, first row {row}"
            warn_user(
                f"given has a condition on {name!r} far outside of the fitted values ({_describe_fitted(column)})"
                f"{where}, got {series.iloc[row]}: the answer is an extrapolation",
                ExtrapolationWarning,
            )


def _find_reach(column: Column) -> tuple[float, float]:
    """Numbers z beyond which values are far outside of the fitted ones; infinite if the values have no distances."""
    if column.levels is not None:
        return -np.inf, np.inf
    first, last = column.fitted_range
    if not isinstance(column.map, Steps):
        return first - MAX_DISTANCE, last + MAX_DISTANCE
    # Outside of the cells, the tail probability falls with the distance as 1 / (1 + distance / range): see `Steps`.
    return float(ndtri(ndtr(first) / (1 + MAX_SHARE))), float(-ndtri(ndtr(-last) / (1 + MAX_SHARE)))


def _is_far(member: ColumnSet, first: float, last: float) -> bool:
    """Whether all that a condition allows is outside of a range of z."""
    if member.states is not None and member.state is None and member.values == [(-np.inf, np.inf)]:
        return False  # atoms and missing values
    return all(low > last or high < first for low, high in member.values)


def _describe_fitted(column: Column) -> str:
    """Range of the fitted values."""
    if isinstance(column.map, Steps) or column.step is not None:
        return column.describe()["values"]
    first, last = column.map.inverse(np.array(column.fitted_range))
    return f"{first:.4g} to {last:.4g}"


def check_samples(schema: Schema, frame: pd.DataFrame, conditions: Mapping[str, pd.Series], n: int) -> None:
    """Raise an error if no sample of a row meets a range or a set of numbers, which the column then cannot have.

    Arguments:
        schema: The columns of the table.
        frame: Samples, n for each row of conditions.
        conditions: Conditions by name of the column, `(N,)` each.
        n: Number of samples of each row.
    """
    for name, series in conditions.items():
        if schema.column(name).kind not in ("continuous", "integer") or series.dtype != object:
            continue
        values = frame[name].to_numpy(np.float64, na_value=np.nan).reshape(len(series), n)
        for row, condition in enumerate(series):
            if isinstance(condition, tuple) and not _meets_range(values[row], condition).any():
                wrong = "a range"
            elif isinstance(condition, list | set | frozenset) and not _meets_set(values[row], condition).any():
                wrong = "values"
            else:
                continue
            raise ValueError(
                f"given must allow values that a column can have, got {wrong} {condition} of {name!r} in row {row}, "
                f"outside of which all samples are: it has {_describe_fitted(schema.column(name))}"
            )


def _meets_range(values: FloatArray, condition: tuple[Any, ...]) -> BoolArray:
    low, high = (
        fill if end is None or pd.isna(end) else float(end)
        for end, fill in zip(condition, (-np.inf, np.inf), strict=True)
    )
    slack = 1e-6 * np.maximum(1e-300, np.abs(values))
    return np.asarray((values >= low - slack) & (values <= high + slack))


def _meets_set(values: FloatArray, condition: Collection[object]) -> BoolArray:
    if any(isinstance(value, Missing) or pd.isna(value) for value in condition):
        return np.ones(len(values), np.bool_)
    return np.asarray(np.isclose(values[:, None], [float(str(value)) for value in condition])).any(1).astype(bool)
