"""Conversion of Arrow tables to the columns and dtypes of a model."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import pyarrow as pa

from elflow.io import _cast
from elflow.io._cast import ColumnType

__all__ = ["cast_column", "cast_table"]


def cast_table(table: pa.Table, like: Sequence[ColumnType]) -> pd.DataFrame:
    """Convert the columns of an Arrow table to the dtypes of a model's columns: see `cast_column`.

    Arguments:
        table: The table, which has all columns of `like`.
        like: The columns of the model. Each has a `name`, a `dtype` and a `kind`.

    Example:
        >>> from types import SimpleNamespace
        >>> like = [SimpleNamespace(name="b", dtype="float64", kind="continuous")]
        >>> cast_table(pa.table({"a": [1, 2], "b": [3, 4]}), like)["b"].to_list()
        [3.0, 4.0]
    """
    return pd.DataFrame({column.name: cast_column(table.column(column.name), column) for column in like})


def cast_column(values: pa.Array | pa.ChunkedArray, column: ColumnType) -> pd.Series:
    """Convert values to the dtype of a model's column; only null is missing, and text is not trimmed.

    Arguments:
        values: The values. Text is parsed if the column has numbers, booleans or times.
        column: Name, dtype and kind of the column.

    Example:
        >>> from types import SimpleNamespace
        >>> column = SimpleNamespace(name="n", dtype="int64", kind="integer")
        >>> cast_column(pa.array(["3", "4"]), column).to_list()
        [3, 4]
        >>> cast_column(pa.array([3.5]), column)
        Traceback (most recent call last):
        ...
        ValueError: column 'n' must hold whole numbers, as in the model, got 3.5 in row 1
    """
    chunks = values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
    if pa.types.is_null(chunks.type):
        chunks = chunks.cast(pa.string())
    if _cast.is_text(chunks.type) and _cast.holds_text(column):
        return pd.Series(chunks.cast(pa.large_string()).to_pandas(), name=str(column.name))
    return _cast.convert_column(chunks, column, 0, ())
