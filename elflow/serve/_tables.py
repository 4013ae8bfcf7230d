"""Rows of requests as pandas tables, and tables as answers: JSON, in which null is missing, and Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic_core

from elflow.io.casting import cast_column, cast_table
from elflow.io.tables import ColumnType
from elflow.serve.limits import Limits, Refusal

__all__ = ["dump_json", "frame_from_arrow", "frame_from_json", "parse_json", "to_arrow", "to_rows"]

SCALARS = (str, bool, int, float, type(None))
JsonRows = list[dict[str, Any]]


def parse_json(body: bytes) -> Any:
    """Parse JSON; NaN and infinity are no JSON."""
    try:
        return pydantic_core.from_json(body, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise Refusal(400, f"the body must be JSON, got: {str(error)[:200]}") from None


def dump_json(value: object) -> bytes:
    """JSON of an answer. Numbers are exact, and infinities are text: "-Infinity"."""
    return pydantic_core.to_json(value, inf_nan_mode="strings")


def frame_from_json(
    rows: object, columns: Sequence[ColumnType], limits: Limits, argument: str = "rows"
) -> pd.DataFrame:
    """Table of rows in JSON, each an object of values by column; a value that is absent or null is missing.

    Arguments:
        rows: The rows.
        columns: The columns of the model. Those that no row has are left out.
        limits: Limits of the service.
        argument: Name of the argument, for errors.
    """
    checked = check_rows(rows, limits, argument)
    known = {str(column.name) for column in columns}
    present: set[str] = set()
    for number, row in enumerate(checked):
        if not row.keys() <= known:
            unknown = next(name for name in row if name not in known)
            raise Refusal(422, f"{argument}[{number}] must have columns of {_list(known)}, got {unknown!r:.200}")
        present.update(row)
    arrays = {
        str(column.name): _to_array([row.get(column.name) for row in checked], column, argument)
        for column in columns
        if column.name in present
    }
    return pd.DataFrame(arrays, index=pd.RangeIndex(len(checked)))


def check_rows(rows: object, limits: Limits, argument: str) -> JsonRows:
    """Refuse what is not a list of objects."""
    if not isinstance(rows, list):
        raise Refusal(422, f"{argument} must be a list of objects, got {_describe(rows)}")
    limits.check_rows(argument, len(rows))
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise Refusal(422, f"{argument}[{number}] must be an object of values by column, got {_describe(row)}")
    return rows


def _to_array(values: list[Any], column: ColumnType, argument: str) -> Any:
    """Values of one column, in the dtype of the model's column: an array of NumPy or of pandas."""
    # Shortcuts for most tables.
    if column.dtype == "float64" and all(type(value) is float or _is_short(value) for value in values):
        return np.array(values, np.float64)
    if column.dtype == "int64" and all(map(_is_short, values)):
        return np.array(values, np.int64)
    if column.dtype == "bool" and all(type(value) is bool for value in values):
        return np.array(values, bool)
    is_number = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
    for number, value in enumerate(values):
        if not isinstance(value, SCALARS):
            raise Refusal(
                422,
                f"{argument}[{number}][{column.name!r:.200}] must be a number, text, true, false or null, "
                f"got {_describe(value)}",
            )
        if isinstance(value, bool) and is_number:  # Arrow takes it for 0 or 1
            raise Refusal(422, f"{argument}[{number}][{column.name!r:.200}] must be a number, got {_describe(value)}")
    try:
        return cast_column(pa.array(values), column).array
    except (pa.ArrowException, OverflowError):
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise Refusal(
            422, f"column {column.name!r:.200} must hold values of one type, as in the model, got {', '.join(kinds)}"
        ) from None


def _is_short(value: object) -> bool:
    """Whether a value is an integer that is a float as well."""
    return type(value) is int and -(2**53) <= value <= 2**53


def frame_from_arrow(table: pa.Table, columns: Sequence[ColumnType]) -> pd.DataFrame:
    """Table of an Arrow table, in the dtypes of the model's columns; columns that it lacks are left out."""
    known = {str(column.name) for column in columns}
    names = table.column_names
    if unknown := [name for name in names if name not in known]:
        raise Refusal(422, f"the table must have columns of {_list(known)}, got {unknown[0]!r:.200}")
    if len(set(names)) < len(names):
        raise Refusal(422, "the table must have unique column names, got duplicates")
    try:
        frame = cast_table(table, [column for column in columns if column.name in names])
    except (pa.ArrowException, OverflowError) as error:
        raise Refusal(422, f"the table must have values as in the model, got: {str(error)[:200]}") from None
    return frame if len(frame.columns) else pd.DataFrame(index=range(table.num_rows))


def to_rows(frame: pd.DataFrame) -> JsonRows:
    """Rows for JSON: missing values are None, and times are text in ISO format."""
    columns = {str(name): _to_list(frame.iloc[:, i]) for i, name in enumerate(frame.columns)}
    names = list(columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _to_list(values: pd.Series) -> list[Any]:
    if pd.api.types.is_datetime64_any_dtype(values.dtype):
        return [None if pd.isna(value) else _format_time(value) for value in values]
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biu":
        return values.to_numpy().tolist()
    found = values.astype(object).where(values.notna(), None).tolist()
    return [_to_scalar(value) for value in found]


def _to_scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return _format_time(value) if isinstance(value, pd.Timestamp) else value


def _format_time(value: pd.Timestamp) -> str:
    """ISO format; in UTC beyond the years that Python's time zones have."""
    try:
        return value.isoformat()
    except (ValueError, OverflowError, NotImplementedError):
        return f"{value.to_numpy()}+00:00"


def to_arrow(frame: pd.DataFrame) -> pa.Table:
    """Arrow table of an answer."""
    return pa.Table.from_pandas(frame, preserve_index=False)


def _describe(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _list(names: set[str]) -> str:
    shown = sorted(names)[:20]
    return f"{shown}" if len(names) <= 20 else f"{shown} and {len(names) - 20} more"
