"""Tables of pandas, polars, pyarrow and NumPy as pandas frames, and digests of their content."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

__all__ = [
    "ContextTable",
    "Table",
    "as_frame",
    "as_plain_array",
    "digest",
    "fingerprint",
    "first_row",
    "from_frame",
    "number_rows_from",
    "table_kind",
]

TABLE_KINDS = ["pandas", "polars", "pyarrow", "numpy"]
"""Libraries of tables: see `table_kind`."""

Table: TypeAlias = "pd.DataFrame | pl.DataFrame | pa.Table | NDArray[Any] | Sequence[Sequence[float]]"
"""Any table: of pandas, polars or pyarrow, or anything that NumPy converts to a matrix."""
ContextTable: TypeAlias = "Table | pd.Series | Sequence[float]"
"""Context of rows: any table, or a single column."""


_first_row: ContextVar[int] = ContextVar("first_row", default=0)


@contextmanager
def number_rows_from(first: int) -> Iterator[None]:
    """Let warnings inside the block count the rows of a table from `first`, if it is a part of a larger one.

    Example:
        >>> with number_rows_from(100):
        ...     first_row()
        100
    """
    token = _first_row.set(first)
    try:
        yield
    finally:
        _first_row.reset(token)


def first_row() -> int:
    """Number of the first row in warnings: see `number_rows_from`."""
    return _first_row.get()


def as_frame(table: Table, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Convert any table to a pandas frame with strings as column names and rows numbered from 0.

    Arguments:
        table: A table of pandas, polars or pyarrow, or a matrix, `(N, columns)`.
        names: Column names of a matrix; x0, x1, ... if left out.

    Example:
        >>> as_frame(np.eye(2)).columns.tolist()
        ['x0', 'x1']
    """
    table = as_plain_array(table)
    kind = table_kind(table)
    if kind == "pandas":
        frame: pd.DataFrame = table
    elif kind == "numpy":
        frame = _from_matrix(np.asarray(table), names)
    else:
        arrow: Any = table
        frame = _from_arrow(arrow.to_arrow() if kind == "polars" else arrow)
    if not all(isinstance(name, str) for name in frame.columns):
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    if not frame.columns.is_unique:
        repeated = sorted(set(frame.columns[frame.columns.duplicated()]))
        raise ValueError(f"column names must be unique, got duplicates of {repeated}")
    if frame.shape[1] == 0:
        # scikit-learn's contract asks for the words in brackets
        raise ValueError(f"the table must have at least one column, got 0 feature(s) (shape={frame.shape})")
    index = frame.index
    if type(index) is pd.RangeIndex and index.name is None and (index.start, index.step) == (0, 1):
        return frame.copy(deep=False)  # in a fraction of the time that pandas takes to number rows again
    return frame.reset_index(drop=True)


def as_plain_array(table: Any) -> Any:
    """Masked arrays with NaN where they are masked, and tensors without gradients; other tables are unchanged.

    Example:
        >>> as_plain_array(np.ma.array([[1.0, 2.0]], mask=[[False, True]]))
        array([[ 1., nan]])
    """
    if isinstance(table, np.ma.MaskedArray):
        if not np.ma.is_masked(table):
            return table.data
        dtype = np.dtype(np.float64 if table.dtype.kind in "biuf" else object)
        return np.where(np.ma.getmaskarray(table), np.nan, table.data.astype(dtype))
    if type(table).__module__.split(".")[0] == "torch" and hasattr(table, "detach"):
        return table.detach().cpu().numpy()
    return table


def _from_matrix(array: NDArray[Any], names: Sequence[str] | None) -> pd.DataFrame:
    """Frame of a matrix, with the given column names or x0, x1, ..."""
    if array.ndim == 1:
        raise ValueError(
            "the table must have two dimensions, got one. Reshape your data with reshape(-1, 1) for one column or "
            "reshape(1, -1) for one row"
        )
    if array.ndim != 2:
        raise ValueError(f"the table must have two dimensions, got {array.ndim}")
    names = [f"x{i}" for i in range(array.shape[1])] if names is None else names
    if array.shape[1] != len(names):
        raise ValueError(f"the table must have {len(names)} columns, got {array.shape[1]}")
    return pd.DataFrame(array, columns=list(names))


def _from_arrow(table: pa.Table) -> pd.DataFrame:
    """Frame of an Arrow table; integers and booleans with missing values become pandas' nullable dtypes."""
    import pyarrow as pa

    def to_series(column: Any) -> pd.Series:
        is_number = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
        if not (column.null_count and is_number):
            return column.to_pandas()
        name = "boolean" if pa.types.is_boolean(column.type) else str(column.type).capitalize().replace("int", "Int")
        return column.to_pandas(types_mapper={column.type: pd.api.types.pandas_dtype(name)}.get)

    # Keyed by position at first, since names may be repeated.
    series = {str(i): to_series(column) for i, column in enumerate(table.columns)}
    return pd.DataFrame(series).set_axis([str(name) for name in table.column_names], axis=1)


def table_kind(table: Table) -> str:
    """Name of the library of a table: `"pandas"`, `"polars"`, `"pyarrow"` or `"numpy"`. Imports none of them.

    Example:
        >>> table_kind([[1.0, 2.0], [3.0, 4.0]])
        'numpy'
    """
    if isinstance(table, pd.DataFrame):
        return "pandas"
    module = type(table).__module__.split(".")[0]
    expected = f"the table must be a pandas, polars or pyarrow table or a NumPy array, got {type(table).__name__}"
    if type(table) in (str, bytes, dict):
        raise TypeError(f"{expected}: read files with elflow.io.read_table")
    if module == "polars" and hasattr(table, "to_pandas") and hasattr(table, "columns"):
        return "polars"
    if module == "pyarrow" and hasattr(table, "to_pandas") and hasattr(table, "schema"):
        return "pyarrow"
    if module in ("numpy", "builtins", "torch", "scipy") or hasattr(table, "__array__"):
        return "numpy"
    raise TypeError(expected)


def from_frame(frame: pd.DataFrame, kind: str) -> Any:
    """Convert a frame to a table of another library: `kind` is a result of `table_kind`.

    Example:
        >>> from_frame(pd.DataFrame({"a": [1, 2]}), "numpy").tolist()
        [[1], [2]]
    """
    if kind == "polars":
        import polars as pl

        return pl.from_pandas(frame)
    if kind == "pyarrow":
        import pyarrow as pa

        return pa.Table.from_pandas(frame, preserve_index=False)
    return frame.to_numpy() if kind == "numpy" else frame


def fingerprint(frame: pd.DataFrame) -> str:
    """SHA-256 digest of the values of a frame, of their order, and of the names and dtypes of the columns.

    Example:
        >>> fingerprint(pd.DataFrame({"a": [1, 2]})) == fingerprint(pd.DataFrame({"a": [2, 1]}))
        False
    """
    sha = hashlib.sha256(repr([(str(name), str(dtype)) for name, dtype in frame.dtypes.items()]).encode())
    sha.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
    return sha.hexdigest()


def digest(*parts: object) -> str:
    """SHA-256 digest of frames, arrays, and the text of all other arguments.

    Example:
        >>> digest("a", np.zeros(2)) == digest("a", np.ones(2))
        False
    """
    sha = hashlib.sha256()
    for part in parts:
        part = fingerprint(part) if isinstance(part, pd.DataFrame) else part
        sha.update(part.tobytes() if isinstance(part, np.ndarray) else str(part).encode())
    return sha.hexdigest()
