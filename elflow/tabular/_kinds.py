"""Kinds of columns: inferred from values, or declared and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from elflow._checks import check_choice, warn_user
from elflow.tabular._arrays import FloatArray, IntArray

__all__ = ["COLUMN_KINDS", "Declaration", "Level"]

COLUMN_KINDS = ["continuous", "integer", "boolean", "category", "datetime"]

Declaration = str | Sequence[float | None]
"""Declared kind of a column, or its bounds `(low, high)`, each of which may be None."""
Level = str | int | float | bool
"""One category."""

MAX_NUMERIC_LEVELS = 20
"""Maximum number of distinct values of a float column that is treated as a category; each must occur this often on
average."""
MIN_TIES = 5
"""Number of rows per distinct value from which decimals are treated as rounded."""
MAX_INTEGER_SPAN = 2**53
"""Maximum distance between integers of a column: floats represent them exactly up to here."""
MAX_ATOM_SHARE, MIN_ATOM_ROWS = 0.05, 100
"""Share of one value in a continuous column above which a warning is issued, and the number of rows it takes."""
MAX_LEVEL_CHARACTERS = 50_000_000
"""Maximum number of characters in all categories of a column: the header of a model file holds them."""


def resolve_kind(name: str, declared: Declaration | None, inferred: str) -> tuple[str, tuple[float, float] | None]:
    """Kind and declared bounds of a column, after checking that the declaration suits the inferred kind."""
    if declared is None:
        return inferred, None
    if isinstance(declared, str):
        check_choice(f"columns[{name!r}]", declared, COLUMN_KINDS)
        allowed = {
            "continuous": ["continuous", "integer"],
            "integer": ["continuous", "integer", "boolean"],
            "boolean": ["boolean", "integer"],
        }
        if inferred not in allowed.get(declared, COLUMN_KINDS):
            raise ValueError(f"column {name!r} must hold numbers to be {declared}, got a column of kind {inferred}")
        if declared == "datetime" and inferred != "datetime":
            raise ValueError(f"column {name!r} must hold datetimes to be datetime, got a column of kind {inferred}")
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
        raise ValueError(f"column {name!r} must hold numbers to be bounded, got a column of kind {inferred}")
    return inferred, (low, high)


def convert_objects(name: str, present: pd.Series) -> pd.Series:
    """Convert Python objects to a NumPy dtype (numbers, booleans, datetimes), and categoricals to objects."""
    if isinstance(present.dtype, pd.CategoricalDtype):
        return present.astype(object)
    if present.dtype == object:
        inferred = pd.api.types.infer_dtype(present, skipna=False)
        if inferred in ("integer", "floating", "mixed-integer-float", "decimal"):
            return present.astype("int64" if inferred == "integer" else "float64")
        if inferred in ("date", "datetime", "datetime64"):
            return pd.to_datetime(present)
        if inferred == "boolean":
            return present.astype(bool)
        if inferred not in ("string", "empty"):
            raise ValueError(f"column {name!r} must hold values of one type, got {inferred} objects")
    return present


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
    raise ValueError(
        f"column {name!r} must hold floats, integers, booleans, categories, strings or datetimes, got {present.dtype}"
    )


def find_decimal_step(x: FloatArray, distinct: FloatArray) -> float | None:
    """Largest power of ten below 1 of which all numbers are multiples; None if there are few ties or no such power."""
    if len(x) < MIN_TIES * len(distinct) or len(distinct) < 2:
        return None
    for digits in range(1, 7):
        scaled = distinct * 10.0**digits
        if (
            np.abs(scaled).max() < 2**40
            and (np.abs(scaled - np.round(scaled)) < 1e-6 * np.maximum(1, np.abs(scaled))).all()
        ):
            return float(10.0**-digits)
    return None


def multiply_step(multiples: IntArray, step: float) -> FloatArray:
    """Multiples of a power of ten as decimals read them: 0.3 for 3 and 0.1, not 0.30000000000000004."""
    return np.asarray(multiples / round(1 / step) if step < 1 else multiples * step, np.float64)


def candidate_bounds(
    name: str, x: FloatArray, declared: tuple[float, float] | None, infer: bool
) -> list[tuple[float, float]]:
    """Declared bounds, or all bounds that a continuous column may have: none, 0 below, and 0 and 1."""
    if declared is not None:
        check_within_bounds(name, x, declared)
        return [declared]
    candidates = [(-np.inf, np.inf)]
    if infer and x.min() >= 0:
        candidates.append((0.0, np.inf))
        if x.max() <= 1:
            candidates.append((0.0, 1.0))
    return candidates


def check_within_bounds(name: str, x: FloatArray, bounds: tuple[float, float]) -> None:
    """Check that all values lie within declared bounds."""
    if x.min() < bounds[0] or x.max() > bounds[1]:
        raise ValueError(
            f"column {name!r} must hold all values between its bounds {bounds}, got {x.min():g} to {x.max():g}"
        )


def list_levels(values: pd.Series, present: pd.Series) -> tuple[Level, ...]:
    """Categories of a column: in the order of its dtype if that has one, most frequent first otherwise."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return check_levels(str(values.name), values.cat.categories.tolist())
    if pd.api.types.is_bool_dtype(present.dtype):
        return (False, True)
    counts = present.value_counts()
    ordered = sorted(counts.index.tolist(), key=lambda level: (-int(counts[level]), str(level)))
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


def warn_about_atoms(name: str, x: FloatArray) -> None:
    """Warn if one value of a continuous column is frequent: the density there has no finite value."""
    values, counts = np.unique(x, return_counts=True)
    most = int(counts.argmax())
    if len(x) >= MIN_ATOM_ROWS and counts[most] > MAX_ATOM_SHARE * len(x):
        warn_user(
            f"column {name!r} is continuous, but {counts[most] / len(x):.0%} of its values are {values[most]:g}: "
            "densities of rows with this value are unreliable"
        )


def datetimes_to_integers(name: str, present: pd.Series, unit: str | None = None) -> tuple[IntArray, str]:
    """Convert datetimes to counts since 1970, and return the unit of these.

    Arguments:
        name: Name of the column, for errors.
        present: Datetimes without missing values; those with a time zone are converted to UTC.
        unit: Unit to convert to, such as `"ns"`; None keeps that of the column.
    """
    if not pd.api.types.is_datetime64_any_dtype(present.dtype):
        raise ValueError(f"column {name!r} must hold datetimes, got {present.dtype}")
    try:
        present = present.astype(present.dtype.numpy_dtype) if hasattr(present.dtype, "pyarrow_dtype") else present
        naive = present.dt.tz_convert("UTC").dt.tz_localize(None) if present.dt.tz is not None else present
        naive = naive if unit is None else naive.dt.as_unit(unit)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"column {name!r} must hold datetimes that fit into 64 bits, got {error}") from None
    array = naive.to_numpy()
    return array.astype(np.int64), str(np.datetime_data(array.dtype)[0])


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
