"""One column of a table: what kind it is, the numbers that stand for its values, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from elflow._checks import check_choice
from elflow.data._maps import Floats, Ints, Steps, Warp

__all__ = ["KINDS", "Column"]

KINDS = ["continuous", "integer", "boolean", "category", "datetime"]

LEVELS = 20
"""Up to how many distinct numbers a float column is a set of levels, if each occurs this often on average."""
TIES = 5
"""From how many rows for each distinct number on decimals are taken for rounded."""
WIDEST = 2**53
"""How far apart integers may lie."""


@dataclass(frozen=True)
class Column:
    """How the values of a column become numbers and come back.

    A continuous value becomes a number z. Any other value becomes a cell of (0, 1), as wide as the value is frequent,
    whose points u stand for it: z is then the normal quantile of u. So every column looks about standard normal, and
    what is left to a flow is mostly how the columns depend on each other.

    Numbers on a decimal grid with many ties (heights in centimetres, prices) have cells as well: `step` is the grid's,
    and the density is that of a value spread over its cell.
    """

    name: str
    kind: str
    dtype: str
    map: Warp | Steps
    step: float | None = None
    levels: tuple[Any, ...] | None = None
    missing: float = 0.0
    """The share of missing values; 0 where none may be missing."""

    @property
    def discrete(self) -> bool:
        """Whether values become cells."""
        return isinstance(self.map, Steps)

    @classmethod
    def fit(cls, values: pd.Series, how: Any = None, missing: bool = False) -> Column:
        """What a column is.

        Arguments:
            values: The column. Some value is not missing.
            how: A kind, or bounds `(low, high)` of a continuous column, each of which may be None; None to find out.
            missing: Whether missing values are to be modelled.
        """
        name, dtype = str(values.name), str(values.dtype)
        kind, bounds = _asked(name, how)
        present = values[values.notna()]
        absent = len(values) - len(present)
        share = (absent + 0.5) / (len(values) + 1) if missing and absent else 0.0
        present = _plain(name, present)
        found = _kind(name, present)
        if kind is None:
            kind = found
        elif bounds is not None or kind in ("continuous", "integer", "datetime"):
            numeric = ["continuous", "integer", "boolean"] if kind != "datetime" else ["datetime"]
            if found not in numeric:
                raise ValueError(f"column {name!r} must hold numbers to be {kind or 'bounded'}, got {dtype}")
            kind = kind or "continuous"
        step, levels = None, None
        if kind == "category" or kind == "boolean":
            levels = _levels(values, present)
        elif kind == "continuous":
            x = present.to_numpy(np.float64)
            distinct = np.unique(x)
            if how is None and len(distinct) <= min(LEVELS, max(1, len(x) // LEVELS)):
                kind, levels = "category", tuple(distinct.tolist())
            elif how is not None or (step := _grid(x, distinct)) is None:
                return cls(name, kind, dtype, Warp.fit(x, _bounds(name, x, bounds)), missing=share)
        elif kind == "integer":
            step = 1.0
        elif kind == "datetime":
            step = _tick(present)
        column = cls(name, kind, dtype, Steps(np.array([0, 1]), np.array([0.0, 1.0])), step, levels, share)
        numbers = column._integers(present)
        if float(numbers.max()) - float(numbers.min()) >= WIDEST:
            raise ValueError(
                f"column {name!r} must span less than 2**53, got {numbers.min()} to {numbers.max()}: drop it, or "
                "make it a category"
            )
        return cls(name, kind, dtype, Steps.fit(numbers), step, levels, share)

    def cells(self, values: pd.Series) -> tuple[Floats, Floats, Floats]:
        """For each value the lower end of its cell, its width, and what is to be added to the log-density of u or z.

        Where the width is zero, there is no cell, and the first number is z. Missing values have the whole of (0, 1).
        """
        absent = values.isna().to_numpy()
        low, width, offset = np.zeros(len(values)), np.ones(len(values)), np.zeros(len(values))
        present = _plain(self.name, values[~absent])
        if isinstance(self.map, Steps):
            low[~absent], width[~absent] = self.map.cells(self._integers(present))
            if self.kind == "continuous" and self.step is not None:
                offset[~absent] = -np.log(self.step)
        else:
            x = self._floats(present)
            inside = (x >= self.map.low) & (x <= self.map.high)
            low[~absent], log_slope = self.map(np.clip(x, self.map.low, self.map.high))
            width[~absent] = 0.0
            offset[~absent] = np.where(inside, log_slope, -np.inf)
        return low, width, offset

    def values(self, z: Floats, absent: NDArray[np.bool_] | None = None) -> pd.Series:
        """The values that numbers z stand for, with the column's own dtype."""
        if isinstance(self.map, Warp):
            return self._restore(pd.Series(self.map.inverse(z)), absent)
        numbers = self.map.values(ndtr(z))
        if self.levels is not None:
            levels = pd.Series(list(self.levels), dtype=object)
            return self._restore(levels.iloc[np.clip(numbers, 0, len(levels) - 1)].reset_index(drop=True), absent)
        if self.kind == "datetime":
            stamps = pd.Series((numbers * int(self.step or 1)).astype("datetime64[ns]"))
            zoned = isinstance(pd.api.types.pandas_dtype(self.dtype), pd.DatetimeTZDtype)
            return self._restore(stamps.dt.tz_localize("UTC") if zoned else stamps, absent)
        if self.kind == "continuous":
            return self._restore(pd.Series(_on_grid(numbers, self.step or 1.0)), absent)
        return self._restore(pd.Series(numbers), absent)

    def centre(self, values: pd.Series) -> Floats:
        """The z in the middle of each value's cell, 0 where it is missing."""
        low, width, _ = self.cells(values)
        with np.errstate(invalid="ignore"):
            return np.where(width == 0, low, ndtri(np.clip(low + width / 2, 1e-12, 1 - 1e-12)))

    def _floats(self, present: pd.Series) -> Floats:
        try:
            x = present.to_numpy(np.float64)
        except (TypeError, ValueError):
            raise ValueError(_not_numbers(self.name, present)) from None
        if np.isinf(x).any():
            raise ValueError(f"column {self.name!r} must be finite, got {int(np.isinf(x).sum())} infinite values")
        return x

    def _integers(self, present: pd.Series) -> Ints:
        """The integers that values of a column with cells are."""
        if self.levels is not None:
            codes = pd.Index(list(self.levels), dtype=object).get_indexer(
                pd.Index(present.astype(object), dtype=object)
            )
            return np.where(codes < 0, len(self.levels), codes).astype(np.int64)  # all that were never seen are one
        if self.kind == "datetime":
            return _nanoseconds(self.name, present) // int(self.step or 1)
        if pd.api.types.is_integer_dtype(present.dtype) and self.step == 1.0:
            return present.to_numpy(np.int64)
        x = self._floats(present) / (self.step or 1.0)
        if (np.abs(x) > 2.0**62).any():
            raise ValueError(f"column {self.name!r} must hold numbers below 2**62, got {np.abs(x).max():g}")
        if self.kind == "integer" and (x != np.floor(x)).any():
            raise ValueError(f"column {self.name!r} must hold integers, got {x[x != np.floor(x)][0]:g}")
        return np.round(x).astype(np.int64)

    def _restore(self, values: pd.Series, absent: NDArray[np.bool_] | None) -> pd.Series:
        if self.dtype == "category":
            result = pd.Series(pd.Categorical(values, categories=list(self.levels or ())))
        elif isinstance(self.map, Warp):
            exact = np.dtype(self.dtype.lower()) if self.dtype.lower() in ("float16", "float32") else None
            x = values.to_numpy(np.float64)
            if exact is not None:
                x = np.clip(x, np.finfo(exact).min, np.finfo(exact).max).astype(exact)
            result = pd.Series(x).clip(self.map.low, self.map.high).astype(self.dtype)
        else:
            result = values.astype(self.dtype)
        if absent is not None and absent.any():
            if result.dtype == bool:
                result = result.astype(object)
            result = result.mask(pd.Series(absent))
        result.name = self.name
        return result

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` makes the column of again, as JSON has it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "map": self.map.to_dict(),
            "step": self.step,
            "levels": None if self.levels is None else list(self.levels),
            "missing": self.missing,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Column:
        """The column whose `to_dict` this is."""
        kind = Steps if "edges" in state["map"] else Warp
        levels = None if state["levels"] is None else tuple(state["levels"])
        return cls(**{**state, "map": kind.from_dict(state["map"]), "levels": levels})


def _asked(name: str, how: Any) -> tuple[str | None, tuple[float, float] | None]:
    """The kind or the bounds that a user wants."""
    if how is None:
        return None, None
    if isinstance(how, str):
        check_choice(f"columns[{name!r}]", how, KINDS)
        return how, None
    try:
        low, high = (default if b is None else float(b) for b, default in zip(how, (-np.inf, np.inf), strict=True))
    except (TypeError, ValueError):
        raise ValueError(f"columns[{name!r}] must be one of {KINDS} or bounds (low, high), got {how!r}") from None
    if not low < high:
        raise ValueError(f"columns[{name!r}] must have a low bound below the high one, got {how!r}")
    return "continuous", (low, high)


def _plain(name: str, present: pd.Series) -> pd.Series:
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


def _kind(name: str, present: pd.Series) -> str:
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
        return "integer" if whole and _tied(x, np.unique(x)) else "continuous"
    if types.is_string_dtype(present.dtype) or present.dtype == object:
        return "category"
    raise ValueError(
        f"column {name!r} must be of floats, integers, booleans, categories, strings or datetimes, got {present.dtype}"
    )


def _tied(x: Floats, distinct: Floats) -> bool:
    return len(x) >= TIES * len(distinct)


def _grid(x: Floats, distinct: Floats) -> float | None:
    """The power of ten on whose multiples all numbers lie, if there are many ties."""
    if not _tied(x, distinct) or len(distinct) < 2:
        return None
    for digits in range(1, 7):
        scaled = distinct * 10.0**digits
        if (
            np.abs(scaled).max() < 2**40
            and (np.abs(scaled - np.round(scaled)) < 1e-6 * np.maximum(1, np.abs(scaled))).all()
        ):
            return float(10.0**-digits)
    return None


def _on_grid(numbers: Ints, step: float) -> Floats:
    """Multiples of a power of ten as their decimals read, without 0.30000000000000004."""
    return np.asarray(numbers / round(1 / step) if step < 1 else numbers * step, np.float64)


def _bounds(name: str, x: Floats, asked: tuple[float, float] | None) -> list[tuple[float, float]]:
    """Those that were declared, or those that there could be."""
    if asked is not None:
        if x.min() < asked[0] or x.max() > asked[1]:
            raise ValueError(
                f"columns[{name!r}] must hold all values between its bounds {asked}, got {x.min():g} to {x.max():g}"
            )
        return [asked]
    found = [(-np.inf, np.inf)]
    if x.min() >= 0:
        found.append((0.0, np.inf))
        if x.max() <= 1:
            found.append((0.0, 1.0))
    return found


def _levels(values: pd.Series, present: pd.Series) -> tuple[Any, ...]:
    """Categories: in their own order where they have one, or else the most frequent first."""
    if isinstance(values.dtype, pd.CategoricalDtype):
        return tuple(values.cat.categories.tolist())
    if pd.api.types.is_bool_dtype(present.dtype):
        return (False, True)
    counts = present.value_counts()
    ordered = sorted(counts.index.tolist(), key=lambda level: (-int(counts[level]), str(level)))
    return tuple(ordered)


def _nanoseconds(name: str, present: pd.Series) -> Ints:
    if not pd.api.types.is_datetime64_any_dtype(present.dtype):
        raise ValueError(f"column {name!r} must hold datetimes, got {present.dtype}")
    stamps = present.dt.tz_convert("UTC").dt.tz_localize(None) if present.dt.tz is not None else present
    return stamps.to_numpy("datetime64[ns]").astype(np.int64)


def _tick(present: pd.Series) -> float:
    """The nanoseconds of which all datetimes are multiples."""
    return float(max(1, int(np.gcd.reduce(_nanoseconds("", present)))))


def _not_numbers(name: str, present: pd.Series) -> str:
    wrong = present[pd.to_numeric(present, errors="coerce").isna()]
    first = f", first {wrong.iloc[0]!r} in row {wrong.index[0]}" if len(wrong) else ""
    return f"column {name!r} must hold numbers, got {present.dtype}{first}"
