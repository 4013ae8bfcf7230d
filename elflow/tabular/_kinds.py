"""What the values of a column are: found out, or asked for and checked."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from elflow._checks import check_choice
from elflow.tabular._maps import Floats, Ints

KINDS = ["continuous", "integer", "boolean", "category", "datetime"]

LEVELS = 20
"""Up to how many distinct numbers a float column is a set of levels, if each occurs this often on average."""
TIES = 5
"""From how many rows for each distinct number on decimals are taken for rounded."""
WIDEST = 2**53
"""How far apart integers may lie."""
ATOM, ATOM_ROWS = 0.05, 100
"""Which share of the rows is too much for one value of a continuous column, and of how many rows at least."""
MOST_TEXT = 50_000_000
"""How many characters a column's categories may have: a file's header has to hold them."""


def asked(name: str, how: Any, found: str) -> tuple[str, tuple[float, float] | None]:
    """The kind and the bounds that a user wants, or else the kind that was found."""
    if how is None:
        return found, None
    if isinstance(how, str):
        check_choice(f"columns[{name!r}]", how, KINDS)
        allowed = {"continuous": ["continuous", "integer"], "integer": ["continuous", "integer", "boolean"]}
        if found not in allowed.get(how, [how, "boolean", "integer"] if how == "boolean" else KINDS):
            raise ValueError(f"column {name!r} must hold numbers to be {how}, got a column that is {found}")
        if how == "datetime" and found != "datetime":
            raise ValueError(f"column {name!r} must hold datetimes to be datetime, got a column that is {found}")
        return how, None
    try:
        low, high = (default if b is None else float(b) for b, default in zip(how, (-np.inf, np.inf), strict=True))
    except (TypeError, ValueError):
        raise ValueError(f"columns[{name!r}] must be one of {KINDS} or bounds (low, high), got {how!r}") from None
    if not low < high:
        raise ValueError(f"columns[{name!r}] must have a low bound below the high one, got {how!r}")
    if found not in ("continuous", "integer"):
        raise ValueError(f"column {name!r} must hold numbers to be bounded, got a column that is {found}")
    return found, (low, high)


def plain(name: str, present: pd.Series) -> pd.Series:
    """Without what pandas puts around numbers; numbers that came as objects become numbers."""
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


def kind_of(name: str, present: pd.Series) -> str:
    types = pd.api.types
    if types.is_bool_dtype(present.dtype):
        return "boolean"
    if types.is_datetime64_any_dtype(present.dtype):
        return "datetime"
    if types.is_integer_dtype(present.dtype):
        return "integer"
    if types.is_complex_dtype(present.dtype):
        raise ValueError(f"column {name!r} must hold real numbers: Complex data not supported")
    if types.is_float_dtype(present.dtype):
        x = present.to_numpy(np.float64)
        if np.isinf(x).any():
            raise ValueError(f"column {name!r} must be finite, got {int(np.isinf(x).sum())} infinite values (inf)")
        whole = len(x) > 0 and (x == np.floor(x)).all() and np.abs(x).max() < 2**40
        return "integer" if whole and len(x) >= 2 * len(np.unique(x)) else "continuous"
    if types.is_string_dtype(present.dtype) or present.dtype == object:
        return "category"
    raise ValueError(
        f"column {name!r} must be of floats, integers, booleans, categories, strings or datetimes, got {present.dtype}"
    )


def tied(x: Floats, distinct: Floats) -> bool:
    return len(x) >= TIES * len(distinct)


def grid(x: Floats, distinct: Floats) -> float | None:
    """The power of ten on whose multiples all numbers lie, if there are many ties."""
    if not tied(x, distinct) or len(distinct) < 2:
        return None
    for digits in range(1, 7):
        scaled = distinct * 10.0**digits
        if (
            np.abs(scaled).max() < 2**40
            and (np.abs(scaled - np.round(scaled)) < 1e-6 * np.maximum(1, np.abs(scaled))).all()
        ):
            return float(10.0**-digits)
    return None


def on_grid(numbers: Ints, step: float) -> Floats:
    """Multiples of a power of ten as their decimals read, without 0.30000000000000004."""
    return np.asarray(numbers / round(1 / step) if step < 1 else numbers * step, np.float64)


def bounds_of(name: str, x: Floats, asked: tuple[float, float] | None, detect: bool) -> list[tuple[float, float]]:
    """Those that were declared, or those that there could be."""
    if asked is not None:
        check_inside(name, x, asked)
        return [asked]
    found = [(-np.inf, np.inf)]
    if detect and x.min() >= 0:
        found.append((0.0, np.inf))
        if x.max() <= 1:
            found.append((0.0, 1.0))
    return found


def check_inside(name: str, x: Floats, bounds: tuple[float, float]) -> None:
    """That declared bounds hold."""
    if x.min() < bounds[0] or x.max() > bounds[1]:
        raise ValueError(
            f"column {name!r} must hold all values between its bounds {bounds}, got {x.min():g} to {x.max():g}"
        )


def levels_of(values: pd.Series, present: pd.Series) -> tuple[Any, ...]:
    """Categories: in their own order where they have one, or else the most frequent first."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return checked(str(values.name), values.cat.categories.tolist())
    if pd.api.types.is_bool_dtype(present.dtype):
        return (False, True)
    counts = present.value_counts()
    ordered = sorted(counts.index.tolist(), key=lambda level: (-int(counts[level]), str(level)))
    return checked(str(values.name), ordered)


def checked(name: str, levels: list[Any]) -> tuple[Any, ...]:
    """The categories, if a file can hold them."""
    if wrong := [level for level in levels if not isinstance(level, str | int | float | bool)]:
        kind = type(wrong[0]).__name__
        raise ValueError(f"column {name!r} must have categories of text or numbers, got {kind}: take .astype(str)")
    if sum(len(level) for level in levels if isinstance(level, str)) > MOST_TEXT:
        raise ValueError(f"column {name!r} must have less than {MOST_TEXT:,} characters in its categories: drop it")
    return tuple(levels)


def warn_of_atoms(name: str, x: Floats) -> None:
    """A density has no value at a number that a share of all rows has."""
    values, counts = np.unique(x, return_counts=True)
    most = int(counts.argmax())
    if len(x) >= ATOM_ROWS and counts[most] > ATOM * len(x):
        warnings.warn(
            f"column {name!r} is continuous, but {counts[most] / len(x):.0%} of its values are {values[most]:g}: "
            "densities of rows with that value mean little",
            stacklevel=2,
        )


def stamps(name: str, present: pd.Series, unit: str | None = None) -> tuple[Ints, str]:
    """Datetimes as integers, and what these count: the unit that is asked for, or else the column's own."""
    if not pd.api.types.is_datetime64_any_dtype(present.dtype):
        raise ValueError(f"column {name!r} must hold datetimes, got {present.dtype}")
    try:
        present = present.astype(present.dtype.numpy_dtype) if hasattr(present.dtype, "pyarrow_dtype") else present
        plain_time = present.dt.tz_convert("UTC").dt.tz_localize(None) if present.dt.tz is not None else present
        plain_time = plain_time if unit is None else plain_time.dt.as_unit(unit)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"column {name!r} must hold datetimes that fit into 64 bits, got {error}") from None
    array = plain_time.to_numpy()
    return array.astype(np.int64), str(np.datetime_data(array.dtype)[0])


def tick(numbers: Ints) -> int:
    """Of what all integers are multiples; more where they span too much for that."""
    step = max(1, int(np.gcd.reduce(numbers)))
    span = int(numbers.max()) - int(numbers.min())
    while span // step >= WIDEST:
        step *= 1_000
    return step


def not_numbers(name: str, present: pd.Series) -> str:
    wrong = present[pd.to_numeric(present, errors="coerce").isna()]
    first = f", first {wrong.iloc[0]!r} in row {wrong.index[0]}" if len(wrong) else ""
    return f"column {name!r} must hold numbers, got {present.dtype}{first}"
