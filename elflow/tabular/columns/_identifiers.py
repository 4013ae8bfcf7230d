"""Columns that identify rows: texts and integers most of which are unique, and numbers of rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from elflow.tabular._arrays import IntArray

__all__ = ["is_identifier", "is_integer_identifier", "is_row_number"]

MIN_ROWS = 50
"""Number of rows from which integers in equal steps number the rows, and from which integers identify them."""
MIN_IDENTIFIER_ROWS, MIN_IDENTIFIER_SHARE = 50, 0.5
"""Number of rows, and fraction of distinct strings among them, from which a column identifies rows."""
MIN_UNIQUE_ROWS = 20
"""Number of rows from which strings identify rows if all of them are different."""
MIN_TEXT_CHARACTERS, MIN_TEXT_SHARE = 40, 0.2
"""Mean number of characters of free text, and fraction of distinct texts from which it is treated in the same way."""
MIN_EXPECTED_TIES = 20.0
"""Expected number of pairs of equal integers from which integers without any identify rows: by chance, at most one
column in 100 million has none."""
NAMES = {"id", "ids", "uid", "uuid", "guid", "key", "identifier"}
"""Words in names of columns that identify something."""


def is_identifier(values: pd.Series, counts: Mapping[Any, int] | None = None) -> bool:
    """Whether a column of strings identifies rows, or is free text: most values occur once.

    Arguments:
        values: The column.
        counts: Number of rows of each string in the whole table, if the values are only some of its rows.

    Example:
        >>> is_identifier(pd.Series([f"customer {i}" for i in range(60)]))
        True
        >>> is_identifier(pd.Series(["north", "south"] * 30))
        False
    """
    present = values.dropna()
    if len(present) < MIN_UNIQUE_ROWS or isinstance(values.dtype, pd.CategoricalDtype):
        return False
    is_text = pd.api.types.is_string_dtype(present.dtype) or present.dtype == object
    if not is_text or pd.api.types.infer_dtype(present, skipna=False) != "string":
        return False
    n_distinct, n_rows = (present.nunique(), len(present)) if counts is None else (len(counts), sum(counts.values()))
    if n_rows < MIN_IDENTIFIER_ROWS:
        return n_distinct == n_rows
    is_long = float(present.str.len().mean()) > MIN_TEXT_CHARACTERS
    return n_distinct > (MIN_TEXT_SHARE if is_long else MIN_IDENTIFIER_SHARE) * n_rows


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


def is_integer_identifier(values: pd.Series) -> bool:
    """Whether integers identify rows: all are different, although measurements would coincide, or the name says so.

    Measurements that come as close to each other as these integers would have at least `MIN_EXPECTED_TIES` pairs of
    equal ones. Large random numbers are not close enough: they are identifiers if all are different, and the name of
    the column has a word such as "id".

    Example:
        >>> rng = np.random.default_rng(0)
        >>> is_integer_identifier(pd.Series(rng.permutation(1000), name="customer"))
        True
        >>> large = rng.integers(10**9, 10**10, 1000)
        >>> [is_integer_identifier(pd.Series(large, name=name)) for name in ("income", "userId")]
        [False, True]
    """
    present = values.dropna()
    if not pd.api.types.is_integer_dtype(present.dtype) or len(present) < MIN_ROWS or not present.is_unique:
        return False
    words = re.findall(r"[a-z]+|[A-Z]+(?![a-z])|[A-Z][a-z]*", str(values.name))
    return bool(NAMES & {word.lower() for word in words}) or _expect_ties(present.to_numpy()) >= MIN_EXPECTED_TIES


def _expect_ties(x: IntArray) -> float:
    """Expected number of pairs of equal values among integers of a smooth density, from the pairs that are close."""
    ordered = np.sort(x).astype(np.float64)  # differences of small integer types overflow
    reach = max(1.0, (ordered[-1] - ordered[0]) // 50)
    n_close = (np.searchsorted(ordered, ordered + reach, side="right") - np.arange(len(ordered)) - 1.0).sum()
    return float(n_close / (2 * reach))  # pairs at a distance d > 0 have two orders, ties one
