"""Conversion of text and Arrow types to pandas dtypes, inferred or as a model requires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""Texts that stand for a missing value, as in pandas."""
NULLABLE = {
    pa.bool_(): pd.BooleanDtype(),
    pa.int8(): pd.Int8Dtype(),
    pa.int16(): pd.Int16Dtype(),
    pa.int32(): pd.Int32Dtype(),
    pa.int64(): pd.Int64Dtype(),
    pa.uint8(): pd.UInt8Dtype(),
    pa.uint16(): pd.UInt16Dtype(),
    pa.uint32(): pd.UInt32Dtype(),
    pa.uint64(): pd.UInt64Dtype(),
}
DTYPES = {
    "continuous": "float64",
    "integer": "int64",
    "boolean": "bool",
    "category": "str",
    "datetime": "datetime64[us]",
}
"""By kind of a column of Python objects: the dtype to parse it with."""
N_TRIED = 100
"""Number of values that a conversion is tried on first: one that fails on a long column is slow."""
Values: TypeAlias = pa.ChunkedArray


class ColumnType(Protocol):
    """Name and type of a column, as a model requires them. A column of categories may also have `levels`."""

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def kind(self) -> str: ...


def is_text(dtype: pa.DataType) -> bool:
    return pa.types.is_string(dtype) or pa.types.is_large_string(dtype)


def trim_text(values: Values, missing: Sequence[str]) -> Values:
    """Remove white space around text, and replace the texts in `missing` by null."""
    values = pc.utf8_trim_whitespace(values)
    if not missing:
        return values
    absent = pc.is_in(values, pa.array(missing, values.type))
    return pc.if_else(absent, pa.scalar(None, values.type), values)


def infer_type(text: Values, decimal: str = ".") -> Values:
    """Convert text to integers, floats, booleans or times, whichever is the first to fit; otherwise return it."""
    present = text.drop_null()
    if not len(present):
        return pa.chunked_array([pa.nulls(len(text), pa.float64())])
    for parse in (_parse_integers, lambda t: _parse_floats(t, decimal), _parse_booleans, parse_times):
        try:
            parse(present.slice(0, N_TRIED))
            result = parse(text)
        except pa.ArrowInvalid:
            continue
        has_codes = pa.types.is_integer(result.type) and pc.any(pc.match_substring_regex(present, "^0[0-9]+$")).as_py()
        return text if has_codes else result  # 007 is a code, not a number
    return text


def parse_times(text: Values) -> Values:
    """Parse ISO dates and times, in microseconds if that is exact, else in nanoseconds."""
    first = text.drop_null().slice(0, N_TRIED)
    for dtype in (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")):
        try:
            pc.cast(first, dtype)
            return pc.cast(text, dtype)
        except pa.ArrowInvalid:
            continue
    raise pa.ArrowInvalid("neither dates nor times")


def simplify_type(name: str, values: Values) -> Values:
    """Reduce Arrow's types to numbers, text, dictionaries of text, booleans and timestamps."""
    dtype = values.type
    types = pa.types
    if types.is_dictionary(dtype):
        return values if is_text(dtype.value_type) else _decode_dictionary(values)
    if types.is_decimal(dtype) or types.is_null(dtype):
        return pc.cast(values, pa.float64())
    if types.is_float16(dtype):
        return pc.cast(values, pa.float32())
    if types.is_date(dtype):
        return pc.cast(pc.cast(values, pa.timestamp("ms")), pa.timestamp("us"))
    if types.is_time(dtype):
        return pc.cast(values, pa.string())
    if types.is_string_view(dtype):
        return pc.cast(values, pa.large_string())
    supported = (types.is_integer, types.is_floating, types.is_boolean, types.is_timestamp, is_text)
    if not any(is_type(dtype) for is_type in supported):
        raise ValueError(f"column {name!r} must hold numbers, text, booleans or times, got {dtype}")
    return values


def convert_column(
    values: Values, column: ColumnType, row: int, missing: Sequence[str], decimal: str = "."
) -> pd.Series:
    """Convert values to the dtype of a model's column.

    Arguments:
        values: Text, or values of a Parquet file.
        column: Name and type of the column.
        row: Number of rows before these, for the error message.
        missing: Texts that stand for a missing value.
        decimal: The decimal sign of numbers in text.
    """
    name, dtype = str(column.name), _choose_dtype(column)
    values = simplify_type(name, values)
    if pa.types.is_dictionary(values.type):
        values = _decode_dictionary(values)
    if is_text(values.type):
        values = _trim_unless_level(values, column, missing)
    types = pd.api.types
    if types.is_bool_dtype(dtype):
        result = _parse(name, values, row, "true or false", _parse_booleans)
    elif types.is_integer_dtype(dtype):
        result = _parse(name, values, row, "whole numbers", lambda v: _parse_whole_numbers(v, decimal))
    elif types.is_float_dtype(dtype):
        result = _parse(name, values, row, "numbers", lambda v: _parse_floats(v, decimal))
    elif types.is_datetime64_any_dtype(dtype):
        if isinstance(dtype, pd.DatetimeTZDtype):
            expected = "times with an offset from UTC, like 2024-05-31 14:30+02:00"
        else:
            expected = "dates or times without an offset from UTC, like 2024-05-31 or 2024-05-31 14:30"
        result = _parse(name, values, row, expected, lambda v: _parse_times_as(v, dtype))
    else:
        return pd.Series(pc.cast(values, pa.large_string()).to_pandas(), name=name)
    series = to_pandas(result)
    if not result.null_count or not (types.is_bool_dtype(dtype) or types.is_integer_dtype(dtype)):
        series = _narrow(name, series, dtype)
    return series.rename(name)


def _trim_unless_level(values: Values, column: ColumnType, missing: Sequence[str]) -> Values:
    """Trim text, except categories with white space around them: models of tables in memory may have such ones."""
    levels = getattr(column, "levels", None) or ()
    spaced = [level for level in levels if isinstance(level, str) and level != level.strip()]
    trimmed = trim_text(values, missing)
    return pc.if_else(pc.is_in(values, pa.array(spaced, values.type)), values, trimmed) if spaced else trimmed


def to_pandas(values: Values) -> pd.Series:
    """Convert to a series. Integers and booleans keep their type when some are missing."""
    nullable = NULLABLE if values.null_count else {}
    return values.to_pandas(types_mapper=nullable.get)


def holds_text(column: ColumnType) -> bool:
    """Whether a model's column is parsed as text."""
    dtype, types = _choose_dtype(column), pd.api.types
    parsed = (types.is_bool_dtype, types.is_numeric_dtype, types.is_datetime64_any_dtype)
    return not any(is_type(dtype) for is_type in parsed)


def _choose_dtype(column: ColumnType) -> Any:
    """The dtype to parse a column with: that of its categories, if it has any."""
    levels = getattr(column, "levels", None)
    if column.dtype in ("category", "object") and levels is not None and len(levels):
        inferred = pd.api.types.infer_dtype(list(levels))
        return pd.api.types.pandas_dtype(
            {"integer": "int64", "floating": "float64", "boolean": "bool"}.get(inferred, "str")
        )
    if column.dtype == "object":
        if column.kind not in DTYPES:
            raise ValueError(f"column {column.name!r} must be of a kind in {list(DTYPES)}, got {column.kind!r}")
        return pd.api.types.pandas_dtype(DTYPES[column.kind])
    return pd.api.types.pandas_dtype(column.dtype)


def _parse(name: str, values: Values, row: int, expected: str, parse: Callable[[Values], Values]) -> Values:
    """Apply `parse`; if that fails, raise an error with the first value that it rejects."""
    try:
        return parse(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    low, high = 0, len(values)  # bisection: the first `low` values can be parsed, the first `high` cannot
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(values.slice(0, middle))
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
    got = values[low].as_py()
    raise ValueError(f"column {name!r} must hold {expected}, as in the model, got {got!r} in row {row + low + 1}")


def _parse_integers(text: Values) -> Values:
    return pc.cast(text, pa.int64())


def _parse_booleans(values: Values) -> Values:
    return pc.cast(values, pa.bool_())


def _parse_floats(values: Values, decimal: str) -> Values:
    if decimal == "," and is_text(values.type):
        if pc.any(pc.match_substring(values, ".")).as_py():  # 1.234 might be 1234
            raise pa.ArrowInvalid("decimal point")
        values = pc.replace_substring(values, ",", ".")
    return pc.cast(values, pa.float64())


def holds_decimal_commas(text: Values) -> bool:
    """Whether all values of a column of text are numbers, some of them with a decimal comma."""
    try:
        _parse_floats(text.drop_null().slice(0, N_TRIED), ",")
        _parse_floats(text, ",")
    except pa.ArrowInvalid:
        return False
    return bool(pc.any(pc.match_substring(text, ",")).as_py())


def _parse_whole_numbers(values: Values, decimal: str) -> Values:
    if pa.types.is_integer(values.type):
        return values
    try:
        if not pa.types.is_floating(values.type):
            return _parse_integers(values)
    except pa.ArrowInvalid:
        pass
    return _parse_integers(_parse_floats(values, decimal))  # accepts 3.0; raises an error for 3.5


def _parse_times_as(values: Values, dtype: Any) -> Values:
    is_zoned = isinstance(dtype, pd.DatetimeTZDtype)
    target = pa.timestamp(dtype.unit, str(dtype.tz)) if is_zoned else pa.timestamp(np.datetime_data(dtype)[0])
    parsed = values if pa.types.is_timestamp(values.type) else parse_times(values)
    if parsed.null_count < len(parsed) and (parsed.type.tz is None) != (target.tz is None):
        raise pa.ArrowInvalid("either the values or the model's column has a time zone, and the other has none")
    return pc.cast(parsed, target, safe=False)


def _narrow(name: str, series: pd.Series, dtype: Any) -> pd.Series:
    try:
        result = series.astype(dtype)
    except TypeError:  # nullable integers do not wrap around
        is_same = False
    else:
        is_same = not pd.api.types.is_integer_dtype(dtype) or not len(result) or bool((result == series).all())
    if not is_same:
        raise ValueError(f"column {name!r} must hold {dtype}, as in the model, got {series.min()} to {series.max()}")
    return result


def _decode_dictionary(values: Values) -> Values:
    return pc.cast(values, values.type.value_type)
