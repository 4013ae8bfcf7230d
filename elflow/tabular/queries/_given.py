"""Conditions on columns: values, ranges, sets of values and missing values, as regions of features."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping
from datetime import date
from enum import Enum
from itertools import pairwise
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.special import ndtri

from elflow.tabular._arrays import BoolArray, FloatArray
from elflow.tabular.columns import Column
from elflow.tabular.columns._kinds import convert_objects
from elflow.tabular.columns._warnings import OutsideBoundsWarning
from elflow.tabular.integrals._regions import Regions
from elflow.tabular.schema import Schema

__all__ = ["MISSING", "ColumnSet", "Missing", "build_regions", "is_unknown", "list_sets", "unknown_level_error"]

GRID_TOLERANCE = 1e-6
"""Fraction of the spacing of a grid by which the ends of a range may be off a point of the grid."""
MAX_SHOWN_LEVELS = 8
"""Number of known categories that an error about an unknown one lists."""


class Missing(Enum):
    """Type of `MISSING`."""

    MISSING = "MISSING"

    def __repr__(self) -> str:
        return "elflow.MISSING"


MISSING = Missing.MISSING
"""Condition that a value is missing, for densities that model missing values."""

Intervals = list[tuple[float, float]]


class ColumnSet(NamedTuple):
    """Set of the features of one column that a condition allows."""

    states: Intervals | None
    """Intervals of the indicator of states; None if there is no indicator, or no condition on it."""
    values: Intervals
    """Intervals of z."""
    state: tuple[float, float] | None = None
    """Interval of the indicator in which the intervals of z apply; None if they always do."""
    offset: float = 0.0
    """Term to add to the log-density of z."""


WHOLE: Intervals = [(-np.inf, np.inf)]


def build_regions(
    schema: Schema,
    conditions: Mapping[str, pd.Series],
    count: int,
    is_present: Mapping[str, BoolArray] | None = None,
    trim: bool = False,
) -> Regions:
    """Regions of features that conditions on columns allow.

    Arguments:
        schema: The columns of the table.
        conditions: Conditions by name of the column, `(N,)` each. A condition is a value, a range `(low, high)` whose
            ends may be None, a list or set of values, or `MISSING`. NaN and None are no condition.
        count: Number of rows N.
        is_present: Rows in which a column without condition must not be missing, by name, `(N,)` each.
        trim: Whether points of these states are uniform in their cells: then half of each cell is enough, away from the
            cell of missing values.
    """
    blocks: list[tuple[int, FloatArray, FloatArray]] = []  # position, lower and upper ends (N, J)
    gates = np.full((2, count, schema.features), np.inf)
    gates[0] *= -1
    offset = np.zeros(count)
    for column in schema.columns:
        *indicator, position = schema.positions(column.name)
        sets = list_sets(column, conditions.get(column.name))
        if is_present is not None and column.missing and column.name in is_present:
            present = _encode_presence(column, trim)
            is_open = np.ones(count, bool)
            for index, _ in sets:
                is_open[index] = False
            if len(index := np.flatnonzero(is_open & is_present[column.name])):
                sets.append((index, [present] * len(index)))
        if indicator:
            blocks.append((indicator[0], *_stack(sets, count, "states")))
            for index, members in sets:
                for row, member in zip(index, members, strict=True):
                    if member.state is not None:
                        gates[:, row, position] = member.state
        blocks.append((position, *_stack(sets, count, "values")))
        for index, members in sets:
            offset[index] += [member.offset for member in members]
    n_intervals = max(lower.shape[1] for _, lower, _ in blocks)
    regions = Regions.free(count, schema.features, n_intervals)
    for position, lower, upper in blocks:
        regions.lower[:, position] = torch.inf
        regions.lower[:, position, : lower.shape[1]] = torch.from_numpy(lower)
        regions.upper[:, position, : upper.shape[1]] = torch.from_numpy(upper)
    return regions._replace(
        gate_lower=torch.from_numpy(gates[0]), gate_upper=torch.from_numpy(gates[1]), offset=torch.from_numpy(offset)
    )


Sets = list[tuple[np.ndarray, list[ColumnSet]]]
"""Indices of rows, and the set of each of these rows."""


def _stack(sets: Sets, count: int, name: str) -> tuple[FloatArray, FloatArray]:
    """Lower and upper ends of the intervals of the states or values of N rows, `(N, J)` each; the others are free."""
    parts = [(index, [getattr(member, name) or WHOLE for member in members]) for index, members in sets]
    n_intervals = max((len(intervals) for _, rows in parts for intervals in rows), default=1)
    ends = np.full((2, count, n_intervals), np.inf)
    ends[0, :, 0] = -np.inf
    for index, rows in parts:
        for row, intervals in zip(index, rows, strict=True):
            ends[0, row] = np.inf
            for k, interval in enumerate(intervals):
                ends[:, row, k] = interval
    return ends[0], ends[1]


def list_sets(column: Column, conditions: pd.Series | None) -> Sets:
    """Sets of a column in the rows with a condition."""
    if conditions is None:
        return []
    values = conditions.to_numpy()
    is_open = is_unknown(conditions)
    if conditions.dtype != object:
        index = np.flatnonzero(~is_open)
        return [(index, _encode_values(column, conditions.iloc[index]))] if len(index) else []
    is_other = np.array([isinstance(value, tuple | list | set | frozenset | Missing) for value in values], dtype=bool)
    sets: Sets = []
    if len(index := np.flatnonzero(~is_open & ~is_other)):
        sets.append((index, _encode_values(column, conditions.iloc[index])))
    known: dict[Hashable, ColumnSet] = {}
    for row in np.flatnonzero(is_other):
        key = repr(values[row])
        if key not in known:
            known[key] = encode_condition(column, values[row])
        sets.append((np.array([row]), [known[key]]))
    return sets


def is_unknown(conditions: pd.Series) -> BoolArray:
    """Rows without a condition: NaN or None, `(N,)`."""
    if conditions.dtype != object:
        return conditions.isna().to_numpy(bool)
    return np.array([np.ndim(value) == 0 and bool(pd.isna(value)) for value in conditions], dtype=bool)


def encode_condition(column: Column, condition: Any) -> ColumnSet:
    """Set of one condition other than a value."""
    if isinstance(condition, Missing):
        if not column.missing:
            raise ValueError(
                f"given must not ask for missing values of {column.name!r}: none were fitted. Fit rows with missing "
                "values in it, with missing='model'"
            )
        return ColumnSet([_state_interval(column, len(column.shares) - 1)], WHOLE)
    if isinstance(condition, tuple):
        return _encode_range(column, condition)
    return _encode_choices(column, list(condition))


def _encode_presence(column: Column, trim: bool) -> ColumnSet:
    """Set of all states but that of missing values."""
    if not trim:
        return ColumnSet([(-np.inf, float(ndtri(1 - column.shares[-1])))], WHOLE)
    # A flow is smooth across the end of a cell: some of the noise that stands for missing values leaks into the other
    # states, and where most values are missing, there is more of it than of values. Points of a state are uniform in
    # its cell, so that a part of the cell far from the end has the same distribution of everything else.
    ends = np.concatenate([[0.0], np.cumsum(column.shares)[:-1]])
    kept = []
    for state, (low, high) in enumerate(pairwise(ends)):
        start = low if state == 0 else low + (high - low) / 4
        kept.append((float(ndtri(start)), float(ndtri(start + (high - low) / 2))))
    return ColumnSet(kept, WHOLE, offset=float(np.log(2)))


def _state_interval(column: Column, state: int) -> tuple[float, float]:
    """Interval of the indicator of a state."""
    ends = np.concatenate([[0.0], np.cumsum(column.shares)[:-1], [1.0]])
    return float(ndtri(ends[state])), float(ndtri(ends[state + 1]))


def _encode_values(column: Column, values: pd.Series) -> list[ColumnSet]:
    """Sets of values, none of which is missing, `(N,)`."""
    values = column.parse_times(convert_objects(column.name, values.reset_index(drop=True)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OutsideBoundsWarning)
        low, width, offset = column.encode(values)
    if np.isneginf(offset).any():
        outside = values[np.isneginf(offset)].iloc[0]
        raise ValueError(f"values of {column.name!r} must be within its bounds {column.bounds}, got {float(outside):g}")
    # Cells are intervals of probabilities, and have a positive width; other values are points or intervals of z.
    is_cell = width > 0
    lower = np.where(is_cell, ndtri(np.clip(low, 0, 1)), low)
    upper = np.where(is_cell, ndtri(np.clip(low + width, 0, 1)), low - width)
    states = column.encode_states(values) if column.shares else np.zeros(len(values), int)
    intervals = [_state_interval(column, state) for state in range(len(column.shares))]
    return [
        ColumnSet([intervals[state]] if intervals else None, [(float(a), float(b))], offset=float(term))
        for a, b, state, term in zip(lower, upper, states, offset, strict=True)
    ]


def _encode_choices(column: Column, choices: list[Any]) -> ColumnSet:
    """Set of one of several values."""
    if not choices:
        raise ValueError(f"given must have at least one value in the set of {column.name!r}, got none")
    has_missing = any(isinstance(choice, Missing) for choice in choices)
    rest = [choice for choice in choices if not isinstance(choice, Missing)]
    if column.levels is not None and (unknown := [choice for choice in rest if choice not in column.levels]):
        raise unknown_level_error(column, unknown[0])
    sets = _encode_values(column, pd.Series(rest)) if rest else []
    if has_missing:
        sets.append(encode_condition(column, MISSING))
    if any(low == high for member in sets for low, high in member.values):
        raise ValueError(
            f"given must have a value or a range of {column.name!r}, since its values have a density, got a set of "
            f"{len(choices)} values"
        )
    if not column.shares:
        return ColumnSet(None, _merge([interval for member in sets for interval in member.values]))
    state = _state_interval(column, column.position)
    values = [interval for member in sets if member.states == [state] for interval in member.values]
    states = _merge([interval for member in sets for interval in member.states or []])
    return ColumnSet(states, _merge(values) or WHOLE, state if values else None)


def _encode_range(column: Column, condition: tuple[Any, ...]) -> ColumnSet:
    """Set of the values from low to high, both included."""
    if len(condition) != 2:
        raise ValueError(f"given must have a pair (low, high) as range of {column.name!r}, got {condition!r}")
    if not column.has_order:
        raise ValueError(
            f"given must have a value or a set of values of {column.name!r}, whose categories have no order, got the "
            f"range {condition!r}: write a list for a set"
        )
    low, high = (None if end is None or pd.isna(end) else _parse_end(column, end) for end in condition)
    if column.levels is not None:
        inside = _levels_between(column, low, high)
        if not inside:
            raise _empty_range_error(column, condition)
        return _encode_choices(column, inside)
    if low is not None and high is not None and low > high:
        raise ValueError(f"given must have a range of {column.name!r} with low <= high, got {condition!r}")
    lower = -np.inf if low is None else _encode_lower(column, low)
    upper = np.inf if high is None else _encode_upper(column, high)
    first, last = column.sampled_range
    rounding = 1e-9 if column.is_discrete else 0.0  # a cell that ends where the fitted ones begin is beyond them
    is_beyond = lower > last - rounding or upper < first + rounding
    if not column.shares:
        if is_beyond or not lower <= upper or (lower == upper and low != high):
            raise _empty_range_error(column, condition)
        return ColumnSet(None, [(lower, upper)])
    atoms = [
        state
        for state in range(len(column.atoms) + 1)
        if (atom := column.state_value(state)) is not None
        and (low is None or atom >= low - GRID_TOLERANCE * (column.step or 0.0))
        and (high is None or atom <= high + GRID_TOLERANCE * (column.step or 0.0))
    ]
    states = [_state_interval(column, state) for state in atoms]
    if is_beyond or not upper > lower:
        if not states:
            raise _empty_range_error(column, condition)
        return ColumnSet(_merge(states), WHOLE)
    state = _state_interval(column, column.position)
    return ColumnSet(_merge([*states, state]), [(lower, upper)], state)


def unknown_level_error(column: Column, value: Any) -> ValueError:
    """Error about a condition with a category that was not fitted."""
    levels = [repr(level) for level in column.levels or ()]
    some = ", ".join(levels[:MAX_SHOWN_LEVELS]) + (", ..." if len(levels) > MAX_SHOWN_LEVELS else "")
    return ValueError(f"given must have known values of {column.name!r} ({some}), got {value!r}")


def _empty_range_error(column: Column, condition: tuple[Any, ...]) -> ValueError:
    """Error about a range in which the column has no values."""
    values = column.describe()["values"]
    return ValueError(f"given must have a range of {column.name!r} with values in it ({values}), got {condition!r}")


def _levels_between(column: Column, low: Any, high: Any) -> list[Any]:
    """Categories from low to high."""
    levels = list(column.levels or ())
    if all(isinstance(level, int | float) for level in levels):
        return [level for level in levels if (low is None or level >= low) and (high is None or level <= high)]
    for end in (low, high):
        if end is not None and end not in levels:
            raise unknown_level_error(column, end)
    first = 0 if low is None else levels.index(low)
    last = len(levels) - 1 if high is None else levels.index(high)
    return levels[first : last + 1]


def _encode_lower(column: Column, low: Any) -> float:
    """Number z above which values are at least `low`."""
    if column.kind == "datetime":
        return float(column.encode_upper(pd.Series([low]) - _time_step(column))[0])
    if column.step is not None and (column.is_discrete or column.dithered):
        multiple = np.ceil(float(low) / column.step - GRID_TOLERANCE) - 1
        return float(column.encode_upper(pd.Series([multiple * column.step]))[0])
    return float(column.encode_upper(pd.Series([float(low)]))[0])


def _encode_upper(column: Column, high: Any) -> float:
    """Number z up to which values are at most `high`."""
    if column.kind == "datetime":
        return float(column.encode_upper(pd.Series([high]))[0])
    if column.step is not None and (column.is_discrete or column.dithered):
        multiple = np.floor(float(high) / column.step + GRID_TOLERANCE)
        return float(column.encode_upper(pd.Series([multiple * column.step]))[0])
    return float(column.encode_upper(pd.Series([float(high)]))[0])


def _parse_end(column: Column, end: Any) -> Any:
    """End of a range: a number, a datetime in the time zone of the column, or a category."""
    if column.levels is not None:
        return end
    if column.kind != "datetime":
        if not isinstance(end, Number):
            raise ValueError(f"given must have numbers as range of {column.name!r}, got {end!r}")
        return end
    if not isinstance(end, str | date | np.datetime64):  # a Timestamp is a date, too
        raise ValueError(f"given must have datetimes as range of {column.name!r}, got {end!r}")
    return column.parse_times(pd.Series([end if isinstance(end, str) else pd.Timestamp(end)])).iloc[0]


def _time_step(column: Column) -> pd.Timedelta:
    """Smallest unit of time of a column."""
    return pd.Timedelta(1, unit=column.unit if column.unit in ("s", "ms", "us", "ns") else "ns")


def _merge(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """Disjoint intervals in order, with those that touch each other joined."""
    merged: Intervals = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1e-12:
            merged[-1] = merged[-1][0], max(merged[-1][1], high)
        else:
            merged.append((low, high))
    return merged
