"""Values of a column as NumPy arrays where they are numbers: pandas takes far longer for a few rows."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elflow.tabular._arrays import BoolArray

__all__ = ["Values", "as_values", "find_missing", "to_array"]

Values: TypeAlias = "pd.Series | NDArray[Any]"
"""Values of a column, `(N,)`: an array if they are numbers or booleans of NumPy."""
NUMBERS = frozenset(map(np.dtype, ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")))
"""Dtypes whose arrays need no pandas: numbers of at most 64 bits and booleans."""


def as_values(values: Values) -> Values:
    """The array of a column of numbers or booleans; a column of any other dtype, or an array, as it is.

    Example:
        >>> as_values(pd.Series([1.5, 2.5]))
        array([1.5, 2.5])
        >>> as_values(pd.Series(["a"])).tolist()
        ['a']
    """
    return values.to_numpy() if isinstance(values, pd.Series) and values.dtype in NUMBERS else values


def find_missing(values: Values) -> BoolArray:
    """Whether each value is missing, `(N,)`.

    Example:
        >>> find_missing(pd.Series(["a", None])), find_missing(np.array([np.nan, 1.0]))
        (array([False,  True]), array([ True, False]))
    """
    values = as_values(values)
    if isinstance(values, pd.Series):
        return values.isna().to_numpy()
    return np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)


def to_array(values: Values, dtype: type[np.generic]) -> NDArray[Any]:
    """Values that are not missing in another dtype.

    Example:
        >>> to_array(pd.Series([1, 2], dtype="Int64"), np.float64)
        array([1., 2.])
    """
    return values.to_numpy(dtype) if isinstance(values, pd.Series) else values.astype(dtype, copy=False)
