"""Discrete columns that are functions of one other column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from elflow.tabular._arrays import IntArray
from elflow.tabular.columns import Column
from elflow.tabular.hints._dependences import Dependence, choose_tested_rows

__all__ = ["find_functions"]

MAX_FUNCTION_COLUMNS, MAX_FUNCTION_LEVELS = 50, 100
"""Maximum number of columns, and of values of a discrete column, among which functions are searched."""
MAX_CHANCE = -20.0
"""Log-probability up to which independent columns do not look like functions of each other by chance."""
DATE_PARTS = ("year", "quarter", "month", "day", "day_of_week", "hour")
"""Parts of datetimes of which other columns may be functions."""


def find_functions(frame: pd.DataFrame, columns: Sequence[Column]) -> list[Dependence]:
    """Find discrete columns that are functions of one other column.

    The other column is discrete, such as the city that determines the state; or of numbers or datetimes, each value of
    the function then belongs to one range of it, such as groups of ages; or datetimes whose year, month, day, weekday
    or hour determines the function.

    Arguments:
        frame: The table.
        columns: The columns to search.

    Example:
        >>> from elflow.tabular import Schema
        >>> rng = np.random.default_rng(0)
        >>> plan, age = rng.choice(["free", "pro"], 200), rng.uniform(18, 80, 200)
        >>> frame = pd.DataFrame({"plan": plan, "price": np.where(plan == "pro", 9, 0), "age": age, "older": age > 40})
        >>> find_functions(frame, Schema.fit(frame).columns)
        [Dependence(name='older', others=('age',)), Dependence(name='price', others=('plan',))]
    """
    some = choose_tested_rows(frame)
    columns = columns[:MAX_FUNCTION_COLUMNS]
    codes = {column.name: _encode_ranks(some[column.name], column) for column in columns}
    counts = {name: np.unique(code, return_counts=True)[1] for name, code in codes.items()}
    discrete = [
        column.name for column in columns if column.is_discrete and 2 <= len(counts[column.name]) <= MAX_FUNCTION_LEVELS
    ]
    found: list[Dependence] = []
    reported: set[str] = set()
    parts = {c.name: _list_date_parts(c.parse_times(some[c.name])) for c in columns if c.kind == "datetime"}
    for name in reversed(discrete):  # of two columns that determine each other, the later one is left out
        # Rows with the same value of the other column all have the most frequent value here with this probability.
        log_share = np.log(counts[name].max() / len(some))
        for other in columns:
            if other.name == name or other.name in reported:
                continue
            candidates = [codes[other.name]] if other.name in discrete else []
            candidates += parts.get(other.name, [])
            is_function = any(
                (len(some) - len(np.unique(values))) * log_share < MAX_CHANCE and _determines(values, codes[name])
                for values in candidates
            )
            # A discrete column without an order has no ranges.
            if other.has_order and (len(some) - len(counts[name])) * log_share < MAX_CHANCE:
                is_function = is_function or _determines_by_range(codes[other.name], codes[name])
            if is_function:
                found.append(Dependence(name, (other.name,)))
                reported.add(name)
                break
    return found


def _encode_ranks(values: pd.Series, column: Column) -> IntArray:
    """Codes of values, `(N,)`, in increasing order where values have one; missing values have the code -1."""
    if column.levels is not None:
        codes = np.full(len(values), -1, np.int64)
        is_present = values.notna().to_numpy()
        codes[is_present] = column.to_integers(values[is_present])
        return codes
    return pd.factorize(column.parse_times(values), sort=True)[0].astype(np.int64)


def _list_date_parts(times: pd.Series) -> list[IntArray]:
    """Codes of the parts of datetimes, `(N,)` each; -1 for missing values."""
    return [getattr(times.dt, part).fillna(-1).to_numpy(np.int64) for part in DATE_PARTS]


def _determines(values: IntArray, function: IntArray) -> bool:
    """Whether rows with the same value all have the same value of a function."""
    # Of rows in the order of the values, those with the same value follow each other.
    order = np.argsort(values, kind="stable")
    is_same = values[order][1:] == values[order][:-1]
    return not bool((is_same & (function[order][1:] != function[order][:-1])).any())


def _determines_by_range(values: IntArray, function: IntArray) -> bool:
    """Whether the values that each value of a function has are a range, which no other range overlaps."""
    if not _determines(values, function):
        return False
    ordered = function[np.argsort(values, kind="stable")]
    n_ranges = 1 + int((np.diff(ordered) != 0).sum())
    return n_ranges == len(np.unique(function))
