"""From text and Arrow's types to the dtypes of pandas: found out, or those that a model knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""What stands for a missing value in text, as in pandas."""
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
Values: TypeAlias = pa.ChunkedArray


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def trimmed(values: Values, missing: Sequence[str]) -> Values:
    """Text without blanks around it, and null where it stands for a missing value."""
    values = pc.utf8_trim_whitespace(values)
    if not missing:
        return values
    absent = pc.is_in(values, pa.array(missing, values.type))
    return pc.if_else(absent, pa.scalar(None, values.type), values)


def inferred(text: Values, decimal: str = ".") -> Values:
    """Text as integers, other numbers, booleans or times, whichever fits first; as it is if none does."""
    present = text.drop_null()
    if not len(present):
        return pa.chunked_array([pa.nulls(len(text), pa.float64())])
    for read in (_integers, lambda t: _floats(t, decimal), _booleans, times):
        try:
            read(present.slice(0, 100))  # a cast that fails takes long
            result = read(text)
        except pa.ArrowInvalid:
            continue
        codes = pa.types.is_integer(result.type) and pc.any(pc.match_substring_regex(present, "^0[0-9]+$")).as_py()
        return text if codes else result  # 007 is a code
    return text


def times(text: Values) -> Values:
    """ISO dates and times, in microseconds if that is enough."""
    first = text.drop_null().slice(0, 100)
    for kind in (pa.timestamp("us"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")):
        try:
            pc.cast(first, kind)
            return pc.cast(text, kind)
        except pa.ArrowInvalid:
            continue
    raise pa.ArrowInvalid("neither dates nor times")


def simplified(name: str, values: Values) -> Values:
    """Arrow's many types as those that a table of ours may have."""
    kind = values.type
    types = pa.types
    if types.is_dictionary(kind):
        return values if is_text(kind.value_type) else _decoded(values)
    if types.is_decimal(kind) or types.is_null(kind):
        return pc.cast(values, pa.float64())
    if types.is_float16(kind):
        return pc.cast(values, pa.float32())
    if types.is_date(kind):
        return pc.cast(pc.cast(values, pa.timestamp("ms")), pa.timestamp("us"))
    if types.is_time(kind):
        return pc.cast(values, pa.string())
    if types.is_string_view(kind):
        return pc.cast(values, pa.large_string())
    plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_timestamp)
    if not any(is_kind(kind) for is_kind in (*plain, types.is_string, types.is_large_string)):
        raise ValueError(f"column {name!r} must hold numbers, text, booleans or times, got {kind}")
    return values


def converted(values: Values, column: Any, row: int, missing: Sequence[str], decimal: str = ".") -> pd.Series:
    """The values with the dtype of a model's column.

    Arguments:
        values: Text, or what a Parquet file had.
        column: Has a `name`, a `dtype` and a `kind`.
        row: How many rows came before, for the error.
        missing: What stands for a missing value in text.
        decimal: What comes before the decimals of a number in text.
    """
    name, dtype = str(column.name), _dtype(column)
    values = simplified(name, values)
    if pa.types.is_dictionary(values.type):
        values = _decoded(values)
    if is_text(values.type):
        values = trimmed(values, missing)
    types = pd.api.types
    if types.is_bool_dtype(dtype):
        result = _read(name, values, row, "true or false", _booleans)
    elif types.is_integer_dtype(dtype):
        result = _read(name, values, row, "whole numbers", lambda v: _whole(v, decimal))
    elif types.is_float_dtype(dtype):
        result = _read(name, values, row, "numbers", lambda v: _floats(v, decimal))
    elif types.is_datetime64_any_dtype(dtype):
        result = _read(name, values, row, "dates or times, as 2024-05-31 or 2024-05-31 14:30", _times_of(dtype))
    else:
        return pd.Series(pc.cast(values, pa.large_string()).to_pandas(), name=name)
    series = in_pandas(result)
    if not result.null_count or not (types.is_bool_dtype(dtype) or types.is_integer_dtype(dtype)):
        series = _narrowed(name, series, dtype)
    return series.rename(name)


def in_pandas(values: Values) -> pd.Series:
    """As a series. Integers and booleans stay what they are when some are missing."""
    nullable = NULLABLE if values.null_count else {}
    return values.to_pandas(types_mapper=nullable.get)


def _dtype(column: Any) -> Any:
    """The dtype to read a column in: that of the categories where there are any."""
    levels = getattr(column, "levels", None)
    if column.dtype in ("category", "object") and levels is not None and len(levels):
        kind = pd.api.types.infer_dtype(list(levels))
        return pd.api.types.pandas_dtype(
            {"integer": "int64", "floating": "float64", "boolean": "bool"}.get(kind, "str")
        )
    if column.dtype == "object":
        known = {"continuous": "float64", "integer": "int64", "boolean": "bool", "datetime": "datetime64[us]"}
        return pd.api.types.pandas_dtype(known.get(column.kind, "str"))
    return pd.api.types.pandas_dtype(column.dtype)


def _read(name: str, values: Values, row: int, what: str, read: Callable[[Values], Values]) -> Values:
    """What `read` makes of the values, or an error that shows the first that it cannot read."""
    try:
        return read(values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        pass
    low, high = 0, len(values)  # the first `low` can be read, the first `high` cannot
    while high - low > 1:
        middle = (low + high) // 2
        try:
            read(values.slice(0, middle))
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
    got = values[low].as_py()
    raise ValueError(f"column {name!r} must hold {what}, as in the model, got {got!r} in row {row + low + 1}")


def _integers(text: Values) -> Values:
    return pc.cast(text, pa.int64())


def _booleans(values: Values) -> Values:
    return pc.cast(values, pa.bool_())


def _floats(values: Values, decimal: str) -> Values:
    if decimal == "," and is_text(values.type):
        values = pc.replace_substring(values, ",", ".")
    return pc.cast(values, pa.float64())


def _whole(values: Values, decimal: str) -> Values:
    if pa.types.is_integer(values.type):
        return values
    try:
        if not pa.types.is_floating(values.type):
            return _integers(values)
    except pa.ArrowInvalid:
        pass
    return _integers(_floats(values, decimal))  # 3.0 is whole, 3.5 is not: an error


def _times_of(dtype: Any) -> Callable[[Values], Values]:
    zoned = isinstance(dtype, pd.DatetimeTZDtype)
    kind = pa.timestamp(dtype.unit, str(dtype.tz)) if zoned else pa.timestamp(np.datetime_data(dtype)[0])

    def read(values: Values) -> Values:
        found = values if pa.types.is_timestamp(values.type) else times(values)
        if found.null_count < len(found) and (found.type.tz is None) != (kind.tz is None):
            raise pa.ArrowInvalid("with a zone, or without one, unlike the model's")
        return pc.cast(found, kind, safe=False)

    return read


def _narrowed(name: str, series: pd.Series, dtype: Any) -> pd.Series:
    result = series.astype(dtype)
    if pd.api.types.is_integer_dtype(dtype) and len(result) and not (result == series).all():
        raise ValueError(f"column {name!r} must hold {dtype}, as in the model, got {series.min()} to {series.max()}")
    return result


def _decoded(values: Values) -> Values:
    return pc.cast(values, values.type.value_type)
