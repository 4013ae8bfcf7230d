"""Datetimes: parsed from strings, converted to integers, and shown as a range."""

from __future__ import annotations

import numpy as np
import pandas as pd

from elflow.tabular._arrays import IntArray

__all__ = ["datetimes_to_integers", "describe_range", "find_offsets", "localize", "parse_iso_datetimes"]


def datetimes_to_integers(
    name: str, present: pd.Series, unit: str | None = None, local: bool = False, zone: str | None = None
) -> tuple[IntArray, str]:
    """Convert datetimes to counts since 1970, and return the unit of these.

    Arguments:
        name: Name of the column, for errors.
        present: Datetimes or strings in ISO format, none of them missing; those with a time zone are converted to UTC.
        unit: Unit to convert to, such as `"ns"`; None keeps that of the column.
        local: Whether datetimes with a time zone are in local time instead.
        zone: Time zone of the column: datetimes without a time zone are in it. None for a column without one.
    """
    if pd.api.types.is_string_dtype(present.dtype) and len(present):
        present = parse_iso_datetimes(name, present, zone)
    if not pd.api.types.is_datetime64_any_dtype(present.dtype):
        raise ValueError(f"column {name!r} must hold datetimes, got {present.dtype}")
    try:
        present = present.astype(present.dtype.numpy_dtype) if hasattr(present.dtype, "pyarrow_dtype") else present
        if zone is not None:
            present = localize(present, zone) if present.dt.tz is None else present.dt.tz_convert(zone)
        if present.dt.tz is None:
            naive = present
        else:
            naive = (present if local else present.dt.tz_convert("UTC")).dt.tz_localize(None)
        naive = naive if unit is None else naive.dt.as_unit(unit)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"column {name!r} must hold datetimes that fit into 64 bits, got {error}") from None
    array = naive.to_numpy()
    return array.astype(np.int64), str(np.datetime_data(array.dtype)[0])


def parse_iso_datetimes(name: str, present: pd.Series, zone: str | None) -> pd.Series:
    """Datetimes from strings in ISO format; strings without a time zone are in that of the column, if it has one.

    Arguments:
        name: Name of the column, for errors.
        present: The strings, none of them missing.
        zone: Time zone of the column.

    Example:
        >>> parse_iso_datetimes("day", pd.Series(["2024-03-01", "2024-03-01 06:30"]), None).dt.hour.tolist()
        [0, 6]
    """
    has_offset = find_offsets(present)
    parsed = pd.to_datetime(present, format="ISO8601", errors="coerce", utc=bool(has_offset.any()))
    if (is_wrong := parsed.isna()).any():
        raise ValueError(
            f"column {name!r} must hold datetimes, or strings in ISO format like 2024-05-31 or 2024-05-31 14:30, got "
            f"{present[is_wrong].iloc[0]!r} in row {present.index[is_wrong][0]}"
        )
    if has_offset.any() and not has_offset.all():
        raise ValueError(
            f"column {name!r} must hold datetimes that all have an offset from UTC or all have none, got "
            f"{present[has_offset].iloc[0]!r} and {present[~has_offset].iloc[0]!r}"
        )
    if zone is not None and parsed.dt.tz is None:
        parsed = localize(parsed, zone)
    return parsed


def find_offsets(present: pd.Series) -> pd.Series:
    """Whether each string in ISO format has an offset from UTC, `(N,)`.

    Example:
        >>> find_offsets(pd.Series(["2024-03-01", "2024-03-01 06:30Z", "2024-03-01T06:30+01:00"])).tolist()
        [False, True, True]
    """
    # An offset follows the date, whose own hyphens do not count.
    return present.str.strip().str.slice(10).str.contains("[-+Zz]").astype(bool)


def localize(naive: pd.Series, zone: object) -> pd.Series:
    """Local times of a zone; an hour that the clock skips becomes the next one, and one that it repeats the first.

    Example:
        >>> localize(pd.Series(pd.to_datetime(["2024-03-31 02:30"])), "Europe/Berlin").dt.hour.tolist()
        [3]
    """
    return naive.dt.tz_localize(zone, ambiguous=np.ones(len(naive), bool), nonexistent="shift_forward")


def describe_range(first: int, last: int, unit: str, zone: str | None = None, local: bool = False) -> str:
    """Describe a range of datetimes, in local time if there is a time zone.

    Arguments:
        first: The first datetime, as a count since 1970.
        last: The last datetime.
        unit: Unit of the counts.
        zone: Time zone.
        local: Whether the counts are in local time already; otherwise they are in UTC.

    Example:
        >>> describe_range(1704063600, 1719784800, "s", "Europe/Berlin")
        '2024-01-01 to 2024-07-01 Europe/Berlin'
    """
    ends = [pd.Timestamp(end, unit=unit) for end in (first, last)]
    if zone is not None and not local:
        ends = [end.tz_localize("UTC").tz_convert(zone).tz_localize(None) for end in ends]
    return " to ".join(str(end).removesuffix(" 00:00:00") for end in ends) + (f" {zone}" if zone else "")
