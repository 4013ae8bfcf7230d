"""One column of a table: what kind it is, the numbers that stand for its values, and the way back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from elflow.tabular import _kinds
from elflow.tabular._kinds import KINDS
from elflow.tabular._maps import Floats, Ints, Steps, Warp

__all__ = ["KINDS", "Column"]


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
    bounds: tuple[float, float] | None = None
    """Declared bounds of integers: outside, the probability is zero."""
    ordered: bool = False
    """Whether categories have an order."""
    unit: str = "ns"
    """What datetimes are counted in: the `step` is so many of them."""

    @property
    def reach(self) -> tuple[float, float]:
        """Between which numbers z it is worth looking for the column."""
        if isinstance(self.map, Steps):
            return -8.0, 8.0
        return min(-10.0, self.map.first - 2), max(10.0, self.map.last + 2)

    @property
    def discrete(self) -> bool:
        """Whether values become cells."""
        return isinstance(self.map, Steps)

    @classmethod
    def fit(cls, values: pd.Series, how: Any = None, missing: bool = False, detect: bool = True) -> Column:
        """What a column is.

        Arguments:
            values: The column. Some value is not missing.
            how: A kind, or bounds `(low, high)` of numbers, each of which may be None; None to find out.
            missing: Whether missing values are to be modelled.
            detect: Whether to look for bounds that were not declared.
        """
        name = str(values.name)
        present = values[values.notna()]
        absent = len(values) - len(present)
        share = (absent + 0.5) / (len(values) + 1) if missing and absent else 0.0
        present = _kinds.plain(name, present)
        kind, bounds = _kinds.asked(name, how, _kinds.kind_of(name, present))
        facts: dict[str, Any] = {"name": name, "kind": kind, "dtype": str(values.dtype), "missing": share}
        if kind in ("category", "boolean"):
            facts["levels"] = _kinds.levels_of(values, present)
            facts["ordered"] = bool(getattr(values.dtype, "ordered", False))
        elif kind == "continuous":
            x = present.to_numpy(np.float64)
            distinct = np.unique(x)
            if how is None and len(distinct) <= min(_kinds.LEVELS, max(1, len(x) // _kinds.LEVELS)):
                facts |= {"kind": "category", "levels": tuple(distinct.tolist())}
            elif how is not None or (step := _kinds.grid(x, distinct)) is None:
                _kinds.warn_of_atoms(name, x)
                return cls(map=Warp.fit(x, _kinds.bounds_of(name, x, bounds, detect)), **facts)
            else:
                facts["step"] = step
        elif kind == "integer":
            if bounds is not None:
                _kinds.check_inside(name, present.to_numpy(np.float64), bounds)
            facts |= {"step": 1.0, "bounds": bounds}
        else:
            numbers, facts["unit"] = _kinds.stamps(name, present)
            facts["step"] = _kinds.tick(numbers)
        numbers = cls(map=Steps(np.array([0, 1]), np.array([0.0, 1.0])), **facts).integers(present)
        if int(numbers.max()) - int(numbers.min()) >= _kinds.WIDEST:
            raise ValueError(
                f"column {name!r} must span less than 2**53, got {numbers.min()} to {numbers.max()}: drop it, or "
                "make it a category"
            )
        return cls(map=Steps.fit(numbers), **facts)

    def cells(self, values: pd.Series) -> tuple[Floats, Floats, Floats]:
        """For each value the lower end of its cell, its width, and what is to be added to the log-density of u or z.

        Where the width is zero, there is no cell, and the first number is z. Missing values have the whole of (0, 1).
        """
        absent = values.isna().to_numpy()
        low, width, offset = np.zeros(len(values)), np.ones(len(values)), np.zeros(len(values))
        present = _kinds.plain(self.name, values[~absent])
        if isinstance(self.map, Steps):
            numbers = self.integers(present)
            low[~absent], width[~absent] = self.map.cells(numbers)
            if self.kind == "continuous" and self.step is not None:
                offset[~absent] = -np.log(self.step)
            if self.bounds is not None:
                offset[~absent] = np.where((numbers < self.bounds[0]) | (numbers > self.bounds[1]), -np.inf, 0.0)
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
            stamps = pd.Series((numbers * int(self.step or 1)).astype(f"datetime64[{self.unit}]"))
            zoned = isinstance(pd.api.types.pandas_dtype(self.dtype), pd.DatetimeTZDtype)
            return self._restore(stamps.dt.tz_localize("UTC") if zoned else stamps, absent)
        if self.kind == "continuous":
            return self._restore(pd.Series(_kinds.on_grid(numbers, self.step or 1.0)), absent)
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
            raise ValueError(_kinds.not_numbers(self.name, present)) from None
        if np.isinf(x).any():
            raise ValueError(f"column {self.name!r} must be finite, got {int(np.isinf(x).sum())} infinite values")
        return x

    def integers(self, present: pd.Series) -> Ints:
        """The integers that values of a column with cells are."""
        if self.levels is not None:
            codes = pd.Index(list(self.levels), dtype=object).get_indexer(
                pd.Index(present.astype(object), dtype=object)
            )
            return np.where(codes < 0, len(self.levels), codes).astype(np.int64)  # all that were never seen are one
        if self.kind == "datetime":
            return _kinds.stamps(self.name, present, self.unit)[0] // int(self.step or 1)
        if pd.api.types.is_integer_dtype(present.dtype) and self.step == 1.0:
            if len(present) and int(present.max()) >= 2**62:
                raise ValueError(f"column {self.name!r} must hold numbers below 2**62, got {present.max()}")
            return present.to_numpy(np.int64)
        x = self._floats(present) / (self.step or 1.0)
        if (np.abs(x) > 2.0**62).any():
            raise ValueError(f"column {self.name!r} must hold numbers below 2**62, got {np.abs(x).max():g}")
        if self.kind == "integer" and (x != np.floor(x)).any():
            raise ValueError(f"column {self.name!r} must hold integers, got {x[x != np.floor(x)][0]:g}")
        return np.round(x).astype(np.int64)

    def _restore(self, values: pd.Series, absent: NDArray[np.bool_] | None) -> pd.Series:
        if self.dtype == "category":
            result = pd.Series(pd.Categorical(values, categories=list(self.levels or ()), ordered=self.ordered))
        elif isinstance(self.map, Warp):
            exact = np.dtype(self.dtype.lower()) if self.dtype.lower() in ("float16", "float32") else None
            x = values.to_numpy(np.float64)
            if pd.api.types.is_integer_dtype(pd.api.types.pandas_dtype(self.dtype)):
                x = np.round(x)
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
            "bounds": self.bounds,
            "ordered": self.ordered,
            "unit": self.unit,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Column:
        """The column whose `to_dict` this is."""
        kind = Steps if "edges" in state["map"] else Warp
        levels = None if state["levels"] is None else tuple(state["levels"])
        bounds = None if state["bounds"] is None else tuple(state["bounds"])
        if levels is not None and not levels:
            raise ValueError(f"column {state['name']!r} must have levels")
        return cls(**{**state, "map": kind.from_dict(state["map"]), "levels": levels, "bounds": bounds})
