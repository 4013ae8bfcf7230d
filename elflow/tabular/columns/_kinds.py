"""Kinds of columns: inferred from values, or declared and checked."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

from elflow._checks import check_choice, warn_user
from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular.columns import _times
from elflow.tabular.columns._heaps import Heaps
from elflow.tabular.columns._scales import robust_scale
from elflow.tabular.columns._values import Values

__all__ = ["COLUMN_KINDS", "Declaration", "Level"]

COLUMN_KINDS = ["continuous", "integer", "boolean", "category", "datetime"]
DECLARABLE_KINDS = {
    "continuous": (["continuous", "integer"], "be numeric"),
    "integer": (["continuous", "integer", "boolean"], "be numeric"),
    "boolean": (["boolean", "integer"], "hold booleans or integers"),
    "category": (COLUMN_KINDS, "hold any values"),
    "datetime": (["datetime"], "hold datetimes"),
}
"""By declared kind: the inferred kinds that may be declared so, and these in words."""

Declaration = str | Sequence[float | None]
"""Declared kind of a column, or its bounds `(low, high)`, each of which may be None."""
Level = str | int | float | bool
"""One category."""
OBJECT_TYPES = (
    *(str, bool, np.bool_, int, np.integer, float, np.floating, Decimal),
    *(datetime.date, np.datetime64, type(None), type(pd.NA), type(pd.NaT)),
)
"""Types of Python objects that a column may hold."""

MAX_NUMERIC_LEVELS = 20
"""Maximum number of distinct values of a float column that is treated as a category; each must occur this often on
average."""
MAX_INTEGER_SPAN = 2**53
"""Maximum distance between integers of a column: floats represent them exactly up to here."""
MIN_FILL_RATIO = 1e6
"""Distance of a value from the median, relative to that of 99% of the values, from which a warning is issued."""
MAX_BOUND_DISTANCE = 50.0
"""Maximum distance of the smallest value from an inferred bound, in standard deviations."""
MIN_NINES_RATIO = 3.0
"""Distance of a number of nines, such as -999, from the central 99 % of the values, in units of their range, from which
it is taken for a fill value."""
ISO_DATE = r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}.*)?"
LOCAL_DATE = r"\d{1,2}[./-]\d{1,2}[./-]\d{4}( \d{1,2}:\d{2}.*)?"
"""Texts of dates: 2024-12-31, and 31/12/2024 or 12/31/2024."""
MIN_DATES, MAX_TESTED_DATES = 10, 1_000
"""Minimum number of different dates in a column of strings for a warning, and maximum number of strings tested."""
MAX_FILL_SHOWN = 3
"""Maximum number of values in that warning."""
MAX_LEVEL_CHARACTERS = 50_000_000
"""Maximum number of characters in all categories of a column: the header of a model file holds them."""


def resolve_kind(name: str, declared: Declaration | None, inferred: str) -> tuple[str, tuple[float, float] | None]:
    """Kind and declared bounds of a column, after checking that the declaration suits the inferred kind."""
    if declared is None:
        return inferred, None
    if isinstance(declared, str):
        check_choice(f"columns[{name!r}]", declared, COLUMN_KINDS)
        allowed, needed = DECLARABLE_KINDS[declared]
        if inferred not in allowed:
            raise ValueError(f"column {name!r} must {needed} to be declared {declared}, got kind {inferred}")
        return declared, None
    try:
        low, high = (
            unbounded if bound is None else float(bound)
            for bound, unbounded in zip(declared, (-np.inf, np.inf), strict=True)
        )
    except (TypeError, ValueError):
        raise ValueError(
            f"columns[{name!r}] must be one of {COLUMN_KINDS} or bounds (low, high), got {declared!r}"
        ) from None
    if not low < high:
        raise ValueError(f"columns[{name!r}] must have a low bound below the high bound, got {declared!r}")
    if inferred not in ("continuous", "integer"):
        raise ValueError(f"column {name!r} must be numeric to have bounds, got kind {inferred}")
    return inferred, (low, high)


def check_objects(name: str, values: Values) -> None:
    """Raise an error if a column holds Python objects that are no values, which pandas may not even compare.

    Example:
        >>> check_objects("a", pd.Series([[1], [2]]))
        Traceback (most recent call last):
        ...
        ValueError: column 'a' must hold numbers, text, booleans or times, got list: drop it, or convert it
    """
    if values.dtype != object:
        return
    types = set(map(type, values))
    if invalid := sorted(kind.__name__ for kind in types if not issubclass(kind, OBJECT_TYPES)):
        raise ValueError(
            f"column {name!r} must hold numbers, text, booleans or times, got {invalid[0]}: drop it, or convert it"
        )
    if Decimal in types and any(isinstance(value, Decimal) and value.is_snan() for value in values):
        raise ValueError(f"column {name!r} must hold numbers, got a signalling NaN")
    if str in types:
        for value in values:
            if isinstance(value, str) and not _is_encodable(value):
                raise ValueError(f"column {name!r} must hold text that UTF-8 can encode, got {value[:30]!r}")


def _is_encodable(text: str) -> bool:
    """Whether UTF-8 can encode a text: surrogates cannot be written to any file."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def convert_objects(name: str, present: Values) -> Values:
    """Convert Python objects to a NumPy dtype (numbers, booleans, datetimes), and categoricals to objects."""
    if not isinstance(present, pd.Series):
        return present
    if isinstance(present.dtype, pd.CategoricalDtype):
        return present.astype(object)
    if present.dtype == np.longdouble and np.longdouble != np.float64:
        with np.errstate(over="ignore"):
            converted = present.astype(np.float64)
        if np.isinf(converted).any() and not np.isinf(present).any():
            raise ValueError(f"column {name!r} must hold numbers that fit into 64 bits, got {present.dtype}")
        return converted
    if present.dtype == object:
        inferred = pd.api.types.infer_dtype(present, skipna=False)
        if inferred in ("integer", "floating", "mixed-integer-float", "decimal"):
            try:
                return present.astype("int64" if inferred == "integer" else "float64")
            except OverflowError:
                largest = max(present, key=abs)
                raise ValueError(
                    f"column {name!r} must hold integers that fit into 64 bits, got {shorten_number(largest)}: convert "
                    "it with .astype(float), or with .astype(str) to a category"
                ) from None
        if inferred in ("date", "datetime", "datetime64"):
            try:
                return pd.to_datetime(present)
            except ValueError:
                raise ValueError(
                    f"column {name!r} must hold times of one time zone, or all without one: convert it with "
                    "pandas.to_datetime(..., utc=True)"
                ) from None
        if inferred == "boolean":
            return present.astype(bool)
        if inferred not in ("string", "empty"):
            types = ", ".join(sorted({type(value).__name__ for value in present}))
            raise ValueError(
                f"column {name!r} must hold values of one type, got {types}: convert it, with .astype(str)"
            )
    return present


def shorten_number(number: int) -> str:
    """Digits of an integer, or its first and last ones if there are many."""
    digits = str(number)
    return digits if len(digits) <= 30 else f"{digits[:12]}...{digits[-6:]} ({len(digits)} digits)"


def infer_kind(name: str, present: pd.Series) -> str:
    """Kind of a column, from its dtype and, for floats, from its values."""
    types = pd.api.types
    if types.is_bool_dtype(present.dtype):
        return "boolean"
    if types.is_datetime64_any_dtype(present.dtype):
        return "datetime"
    if types.is_integer_dtype(present.dtype):
        return "integer"
    if types.is_complex_dtype(present.dtype):
        # scikit-learn's contract asks for these words
        raise ValueError(f"column {name!r} must hold real numbers: Complex data not supported")
    if types.is_float_dtype(present.dtype):
        x = present.to_numpy(np.float64)
        if np.isinf(x).any():
            raise ValueError(f"column {name!r} must be finite, got {int(np.isinf(x).sum())} infinite values (inf)")
        is_whole = len(x) > 0 and (x == np.floor(x)).all() and np.abs(x).max() < 2**40
        return "integer" if is_whole and len(x) >= 2 * len(np.unique(x)) else "continuous"
    if types.is_string_dtype(present.dtype) or present.dtype == object:
        return "category"
    remedy = ": convert it with .dt.total_seconds()" if types.is_timedelta64_dtype(present.dtype) else ""
    raise ValueError(
        f"column {name!r} must hold floats, integers, booleans, categories, strings or datetimes, got "
        f"{present.dtype}{remedy}"
    )


def candidate_bounds(
    x: FloatArray,
    declared: tuple[float, float] | None,
    infer: bool,
    step: float = 0.0,
    heaps: Heaps | None = None,
) -> list[tuple[float, float]]:
    """Declared bounds, or all bounds that a continuous column may have: none, 0 below, and 0 and 1.

    Arguments:
        x: The values, `(N,)`.
        declared: Declared bounds.
        infer: Whether bounds are inferred if none are declared.
        step: Spacing of the grid of values that become intervals. Bounds are then the ends of the last intervals.
        heaps: Intervals of the multiples of the step, in which `x` is.
    """
    if declared is not None:
        if heaps is None:
            return [declared]
        ends = np.ceil(declared[0] / step - 1e-6), np.floor(declared[1] / step + 1e-6) + 1
        low, high = (heaps.find_end(float(end)) * step for end in ends)
        return [(low, high)]
    candidates = [(-np.inf, np.inf)]
    zero, one = 0.0, 1.0
    if heaps is not None:
        zero, one = (heaps.find_end(float(end)) * step for end in (0, np.floor(1 / step + 1e-6) + 1))
    # A bound that is far away does not matter, and the logarithm would lose digits.
    if infer and 0 <= x.min() - zero <= MAX_BOUND_DISTANCE * robust_scale(x):
        candidates.append((zero, np.inf))
        if x.max() <= one:
            candidates.append((zero, one))
    return candidates


def bounds_at_atoms(distinct: FloatArray, rest: FloatArray, atoms: FloatArray) -> tuple[float, float] | None:
    """Bounds at which values are clipped: atoms that are the smallest or the largest of all values; None without any.

    Arguments:
        distinct: All distinct values, in increasing order.
        rest: The values that are not atoms.
        atoms: Frequent values.

    Example:
        >>> bounds_at_atoms(np.array([0.0, 3.0, 8.0]), np.array([3.0, 8.0]), np.array([0.0]))
        (0.0, inf)
        >>> bounds_at_atoms(np.array([3.0, 8.0, 999.0]), np.array([3.0, 8.0]), np.array([999.0]))
    """
    # Values that are clipped come close to the bound: an atom far away from all others stands for something else.
    reach = min(MAX_BOUND_DISTANCE * robust_scale(rest), float(rest.max() - rest.min()))
    is_low = len(atoms) > 0 and atoms[0] == distinct[0] and rest.min() - atoms[0] <= reach
    is_high = len(atoms) > 0 and atoms[-1] == distinct[-1] and atoms[-1] - rest.max() <= reach
    if not is_low and not is_high:
        return None
    return float(atoms[0]) if is_low else -np.inf, float(atoms[-1]) if is_high else np.inf


def check_within_bounds(name: str, x: FloatArray, bounds: tuple[float, float]) -> None:
    """Check that all values lie within declared bounds."""
    if x.min() < bounds[0] or x.max() > bounds[1]:
        raise ValueError(
            f"column {name!r} must lie within its bounds ({bounds[0]:g}, {bounds[1]:g}), got {x.min():g} to {x.max():g}"
        )


def holds_dates_as_text(values: pd.Series) -> bool:
    """Whether a column of strings holds many dates, in ISO format or as 31/12/2024, which should be datetimes.

    Example:
        >>> holds_dates_as_text(pd.Series([f"2024-03-{day:02}" for day in range(1, 31)]))
        True
        >>> holds_dates_as_text(pd.Series([f"{day}.3.2024" for day in range(1, 31)]))
        True
    """
    if isinstance(values.dtype, pd.CategoricalDtype) or not (
        pd.api.types.is_string_dtype(values.dtype) or values.dtype == object
    ):
        return False
    distinct = pd.Series(values.dropna().unique()[:MAX_TESTED_DATES])
    if len(distinct) < MIN_DATES or pd.api.types.infer_dtype(distinct, skipna=False) != "string":
        return False
    return bool(distinct.str.fullmatch(ISO_DATE).all() or distinct.str.fullmatch(LOCAL_DATE).all())


def describe_dates_as_text(values: pd.Series, is_left_out: bool) -> str:
    """Warning about a column of dates that are strings.

    Arguments:
        values: The column.
        is_left_out: Whether the column is left out, since most of its values are unique; it is a category otherwise.

    Example:
        >>> describe_dates_as_text(pd.Series(["2024-03-01", "2024-03-02"], name="day"), is_left_out=False)
        "column 'day' holds dates as text: it is a category, not a time. Convert it with pandas.to_datetime"
    """
    name = str(values.name)
    treatment = "it is left out" if is_left_out else "it is a category, not a time"
    has_offset = _times.find_offsets(values.dropna())
    remedy = "Convert it with pandas.to_datetime"
    if not re.fullmatch(ISO_DATE, str(values.dropna().iloc[0])):
        remedy += "(..., dayfirst=True) if the day is first, or write dates as 2024-12-31"
    elif has_offset.any() and not has_offset.all():
        remedy = (
            "Some have an offset from UTC and others have none, as "
            f"{values.dropna()[~has_offset].iloc[0]!r}: write all of them in the same way, or convert them with "
            "pandas.to_datetime(..., format='ISO8601', utc=True) if those without one are in UTC"
        )
    if is_left_out:
        remedy += f", or declare columns={{{name!r}: 'category'}} (--kind {name}=category)"
    return f"column {name!r} holds dates as text: {treatment}. {remedy}"


def list_levels(values: pd.Series, present: pd.Series, counts: Mapping[Any, int] | None = None) -> tuple[Level, ...]:
    """Categories of a column: in the order of its dtype if that has one, most frequent first otherwise."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return check_levels(str(values.name), values.cat.categories.tolist())
    if pd.api.types.is_bool_dtype(present.dtype):
        return (False, True)
    if counts is None:
        found = present.value_counts()
        counts = dict(zip(found.index.tolist(), found.tolist(), strict=True))
    ordered = sorted(counts, key=lambda level: (-counts[level], str(level)))
    return check_levels(str(values.name), ordered)


def check_levels(name: str, levels: list[Any]) -> tuple[Level, ...]:
    """Check that the header of a model file can hold the categories."""
    if invalid := [level for level in levels if not isinstance(level, str | int | float | bool)]:
        kind = type(invalid[0]).__name__
        raise ValueError(f"column {name!r} must have categories of text or numbers, got {kind}: use .astype(str)")
    characters = sum(len(level) for level in levels if isinstance(level, str))
    if characters > MAX_LEVEL_CHARACTERS:
        raise ValueError(
            f"column {name!r} must have at most {MAX_LEVEL_CHARACTERS:,} characters in its categories, got "
            f"{characters:,}: drop it"
        )
    return tuple(levels)


def warn_about_fill_values(name: str, x: FloatArray, atoms: FloatArray) -> None:
    """Warn about values that are so far from all others that they may stand for missing values.

    Arguments:
        name: Name of the column.
        x: The values that are not atoms, `(N,)`.
        atoms: Frequent values.
    """
    low, median, high = (float(end) for end in np.quantile(x, [0.005, 0.5, 0.995]))
    inside = x[(x >= low) & (x <= high)]
    suspects = []
    with np.errstate(over="ignore"):
        reach = float(np.abs(inside - median).max(initial=0.0))
        outside = np.unique(x[np.abs(x - median) > MIN_FILL_RATIO * reach]) if reach > 0 else x[:0]
        if len(outside) == 1:
            suspects.append(float(outside[0]))
        far = np.unique(x[np.maximum(low - x, x - high) > MIN_NINES_RATIO * (high - low)])
        suspects += [float(value) for value in far if set(f"{abs(value):.15g}") == {"9"} and value not in suspects]
        is_positive = float(x.min()) >= 0
        suspects += [
            float(atom) for atom in atoms if max(low - atom, atom - high) > high - low > 0 or (atom < 0 and is_positive)
        ]
    if suspects:
        values = ", ".join(f"{value:g}" for value in suspects[:MAX_FILL_SHOWN])
        warn_user(
            f"column {name!r} has values far from all others: {values}. If they stand for missing values, replace them "
            "by NaN and model these with missing='model' (--missing model)"
        )


def find_integer_step(numbers: IntArray) -> int:
    """Greatest common divisor of integers, or a multiple of it if the integers span too much otherwise."""
    step = max(1, int(np.gcd.reduce(numbers)))
    span = int(numbers.max()) - int(numbers.min())
    while span // step >= MAX_INTEGER_SPAN:
        step *= 1_000
    return step


def describe_non_numbers(name: str, present: pd.Series) -> str:
    """Error message for a column that should hold numbers: its dtype, and the first value that is not a number."""
    invalid = present[pd.to_numeric(present, errors="coerce").isna()]
    first = f", first {invalid.iloc[0]!r} in row {invalid.index[0]}" if len(invalid) else ""
    return f"column {name!r} must hold numbers, got {present.dtype}{first}"
