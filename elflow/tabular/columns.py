"""One column of a table: its kind, and the maps from its values to numbers and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from elflow.tabular import _kinds
from elflow.tabular._arrays import BoolArray, FloatArray, IntArray
from elflow.tabular._kinds import COLUMN_KINDS, Declaration, Level
from elflow.tabular._maps import Steps, Warp

__all__ = ["COLUMN_KINDS", "Column"]

MAX_LEVELS_SHOWN = 4
"""Maximum number of categories in the description of a column."""
MAX_TEXT_SHOWN = 60
"""Maximum number of characters of a column's name, and of its values, in the text of a column."""


@dataclass(frozen=True, repr=False)
class Column:
    """One column of a table, and the map between its values and the numbers that a flow models.

    A continuous value becomes a number z. Any other value becomes a cell: an interval of (0, 1) whose width is the
    frequency of the value. A point u of the cell represents the value, and z is the normal quantile of u. Every column
    is then about standard normal, and the flow mostly learns how the columns depend on each other.

    Numbers on a decimal grid with many ties (heights in centimetres, prices) also become cells: `step` is the spacing
    of the grid, and the density of a value is its probability divided by the spacing.

    Example:
        >>> column = Column.fit(pd.Series([3, 4, 3, 3], name="count"))
        >>> column
        Column('count', integer, int64, 3 to 4)
        >>> low, width, offset = column.encode(pd.Series([4, 3]))
        >>> width.round(2)
        array([0.23, 0.59])
        >>> column.decode(np.array([-0.5, 1.0])).tolist()
        [3, 4]
    """

    name: str
    kind: str
    """One of `COLUMN_KINDS`."""
    dtype: str
    map: Warp | Steps
    """Map of a continuous column to z, or of integers that represent the values to cells."""
    step: float | None = None
    """Spacing of the grid on which numbers or datetimes lie, if they become cells."""
    levels: tuple[Level, ...] | None = None
    """Categories, if the column has any."""
    missing: float = 0.0
    """Share of missing values; 0 if missing values are not modelled."""
    bounds: tuple[float, float] | None = None
    """Declared bounds of numbers; the density outside is zero. Inferred bounds are those of `map`, and are soft."""
    ordered: bool = False
    """Whether the categories have an order."""
    unit: str = "ns"
    """Unit of `step` for datetimes."""

    @classmethod
    def fit(
        cls,
        values: pd.Series,
        declared: Declaration | None = None,
        model_missing: bool = False,
        infer_bounds: bool = True,
    ) -> Column:
        """Infer the kind of a column, and fit the map from its values to numbers.

        Arguments:
            values: The column, `(N,)`, with at least one value that is not missing.
            declared: Kind of the column, or bounds `(low, high)` of numbers, each of which may be None. The kind is
                inferred if left out.
            model_missing: Whether missing values are modelled.
            infer_bounds: Whether bounds of continuous columns are inferred where none are declared.
        """
        name = str(values.name)
        present = values[values.notna()]
        n_missing = len(values) - len(present)
        share = (n_missing + 0.5) / (len(values) + 1) if model_missing and n_missing else 0.0
        present = _kinds.convert_objects(name, present)
        kind, bounds = _kinds.resolve_kind(name, declared, _kinds.infer_kind(name, present))
        facts: dict[str, Any] = {"name": name, "kind": kind, "dtype": str(values.dtype), "missing": share}
        if kind in ("category", "boolean"):
            facts["levels"] = _kinds.list_levels(values, present)
            facts["ordered"] = bool(getattr(values.dtype, "ordered", False))
        elif kind == "continuous":
            x = present.to_numpy(np.float64)
            distinct = np.unique(x)
            max_levels = min(_kinds.MAX_NUMERIC_LEVELS, max(1, len(x) // _kinds.MAX_NUMERIC_LEVELS))
            if declared is None and len(distinct) <= max_levels:
                facts |= {"kind": "category", "levels": tuple(distinct.tolist())}
            elif declared is not None or (step := _kinds.find_decimal_step(x, distinct)) is None:
                _kinds.warn_about_atoms(name, x)
                facts["bounds"] = bounds
                return cls(map=Warp.fit(x, _kinds.candidate_bounds(name, x, bounds, infer_bounds)), **facts)
            else:
                facts["step"] = step
        elif kind == "integer":
            if bounds is not None:
                _kinds.check_within_bounds(name, present.to_numpy(np.float64), bounds)
            facts |= {"step": 1.0, "bounds": bounds}
        else:
            counts, facts["unit"] = _kinds.datetimes_to_integers(name, present)
            facts["step"] = _kinds.find_integer_step(counts)
        # `to_integers` depends on the other fields only, so that any map will do
        integers = cls(map=Steps(np.array([0, 1]), np.array([0.0, 1.0])), **facts).to_integers(present)
        if int(integers.max()) - int(integers.min()) >= _kinds.MAX_INTEGER_SPAN:
            raise ValueError(
                f"column {name!r} must span less than 2**53, got {integers.min()} to {integers.max()}: drop it, or "
                "make it a category"
            )
        return cls(map=Steps.fit(integers), **facts)

    @property
    def is_discrete(self) -> bool:
        """Whether values become cells."""
        return isinstance(self.map, Steps)

    @property
    def z_range(self) -> tuple[float, float]:
        """Range of z that contains all but a negligible part of the column's distribution."""
        if isinstance(self.map, Steps):
            return -8.0, 8.0
        return min(-10.0, self.map.first - 2), max(10.0, self.map.last + 2)

    def encode(self, values: pd.Series) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Cells of values, `(N,)`.

        Returns:
            The lower ends of the cells, their widths, and the logarithms to add to the log-density of z, `(N,)` each.
            Where the width is 0 there is no cell, and the first number is z. A missing value has the cell (0, 1).
        """
        is_missing = values.isna().to_numpy()
        low, width, offset = np.zeros(len(values)), np.ones(len(values)), np.zeros(len(values))
        present = _kinds.convert_objects(self.name, values[~is_missing])
        if isinstance(self.map, Steps):
            integers = self.to_integers(present)
            low[~is_missing], width[~is_missing] = self.map.encode(integers)
            if self.kind == "continuous" and self.step is not None:
                offset[~is_missing] = -np.log(self.step)
            if self.bounds is not None:
                is_outside = (integers < self.bounds[0]) | (integers > self.bounds[1])
                offset[~is_missing] = np.where(is_outside, -np.inf, 0.0)
        else:
            x = self._to_floats(present)
            low[~is_missing], offset[~is_missing] = self.map(x)
            width[~is_missing] = 0.0
            if self.bounds is not None:
                is_outside = (x < self.bounds[0]) | (x > self.bounds[1])
                offset[~is_missing] = np.where(is_outside, -np.inf, offset[~is_missing])
        return low, width, offset

    def encode_midpoints(self, values: pd.Series) -> FloatArray:
        """Number z in the middle of each value's cell, `(N,)`; 0 for a missing value."""
        low, width, _ = self.encode(values)
        with np.errstate(invalid="ignore"):  # `low` is z where there is no cell: its quantile is not used
            return np.where(width == 0, low, ndtri(np.clip(low + width / 2, 1e-12, 1 - 1e-12)))

    def decode(self, z: FloatArray, is_missing: BoolArray | None = None) -> pd.Series:
        """Values that the numbers z `(N,)` represent, in the dtype of the column; missing where `is_missing`."""
        if isinstance(self.map, Warp):
            return self._restore(pd.Series(self.map.inverse(z)), is_missing)
        integers = self.map.decode(ndtr(z))
        if self.levels is not None:
            levels = pd.Series(list(self.levels), dtype=object)
            values = levels.iloc[np.clip(integers, 0, len(levels) - 1)].reset_index(drop=True)
        elif self.kind == "datetime":
            values = pd.Series((integers * int(self.step or 1)).astype(f"datetime64[{self.unit}]"))
            if isinstance(pd.api.types.pandas_dtype(self.dtype), pd.DatetimeTZDtype):
                values = values.dt.tz_localize("UTC")
        elif self.kind == "continuous":
            values = pd.Series(_kinds.multiply_step(integers, self.step or 1.0))
        else:
            values = pd.Series(integers)
        return self._restore(values, is_missing)

    def to_integers(self, present: pd.Series) -> IntArray:
        """Integers that represent the values of a discrete column, `(N,)`, none of which is missing.

        Categories become their positions in `levels`, and all unknown ones `len(levels)`; other values become
        multiples of `step`.
        """
        if self.levels is not None:
            codes = pd.Index(list(self.levels), dtype=object).get_indexer(
                pd.Index(present.astype(object), dtype=object)
            )
            return np.where(codes < 0, len(self.levels), codes).astype(np.int64)
        if self.kind == "datetime":
            return _kinds.datetimes_to_integers(self.name, present, self.unit)[0] // int(self.step or 1)
        if pd.api.types.is_integer_dtype(present.dtype) and self.step == 1.0:
            if len(present) and int(present.max()) >= 2**62:
                raise ValueError(f"column {self.name!r} must hold numbers below 2**62, got {present.max()}")
            return present.to_numpy(np.int64)
        x = self._to_floats(present) / (self.step or 1.0)
        if (np.abs(x) > 2.0**62).any():
            raise ValueError(f"column {self.name!r} must hold numbers below 2**62, got {np.abs(x).max():g}")
        if self.kind == "integer" and (x != np.floor(x)).any():
            raise ValueError(f"column {self.name!r} must hold integers, got {x[x != np.floor(x)][0]:g}")
        return np.round(x).astype(np.int64)

    def _to_floats(self, present: pd.Series) -> FloatArray:
        """Values of a numeric column, `(N,)`, none of which is missing."""
        try:
            x = present.to_numpy(np.float64)
        except (TypeError, ValueError):
            raise ValueError(_kinds.describe_non_numbers(self.name, present)) from None
        if np.isinf(x).any():
            raise ValueError(f"column {self.name!r} must be finite, got {int(np.isinf(x).sum())} infinite values")
        return x

    def _restore(self, values: pd.Series, is_missing: BoolArray | None) -> pd.Series:
        """Convert values to the dtype of the column, and remove those that are missing."""
        if self.dtype == "category":
            result = pd.Series(pd.Categorical(values, categories=list(self.levels or ()), ordered=self.ordered))
        elif isinstance(self.map, Warp):
            x = values.to_numpy(np.float64)
            if pd.api.types.is_integer_dtype(pd.api.types.pandas_dtype(self.dtype)):
                x = np.round(x)
            if self.dtype.lower() in ("float16", "float32"):  # samples in the tails must not overflow to infinity
                short = np.dtype(self.dtype.lower())
                x = np.clip(x, np.finfo(short).min, np.finfo(short).max).astype(short)
            result = pd.Series(x).clip(self.map.low, self.map.high).astype(self.dtype)
        else:
            result = values.astype(self.dtype)
        if is_missing is not None and is_missing.any():
            if result.dtype == bool:  # NumPy's booleans cannot be missing, and would become floats
                result = result.astype(object)
            result = result.mask(pd.Series(is_missing))
        result.name = self.name
        return result

    def describe(self) -> dict[str, Any]:
        """Description of the column: its name, kind, dtype, values in words, and whether values may be missing.

        Example:
            >>> column = Column.fit(pd.Series([3, 4, 4, 9], name="count"))
            >>> column.describe()
            {'name': 'count', 'kind': 'integer', 'dtype': 'int64', 'values': '3 to 9', 'missing': False}
        """
        values = self._describe_values() + (", or missing" if self.missing else "")
        return {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "values": values,
            "missing": bool(self.missing),
        }

    def _describe_values(self) -> str:
        """Range of the values, or the first categories."""
        if self.levels is not None:
            shown = [*map(str, self.levels[:MAX_LEVELS_SHOWN])]
            shown += ["..."] if len(self.levels) > MAX_LEVELS_SHOWN else []
            return f"{len(self.levels)}: {', '.join(shown)}"
        if isinstance(self.map, Warp):
            low, high = float(self.map.low), float(self.map.high)
            if np.isinf(low) and np.isinf(high):
                return "any"
            if np.isinf(low) or np.isinf(high):
                return f"at least {low:g}" if np.isinf(high) else f"at most {high:g}"
            return f"between {low:g} and {high:g}"
        first, last = int(self.map.edges[0]), int(self.map.edges[-1]) - 1
        step = self.step or 1.0
        if self.kind == "datetime":
            first_time, last_time = (pd.Timestamp(end * int(step), unit=self.unit) for end in (first, last))
            return f"{first_time} to {last_time}".replace(" 00:00:00", "")
        return f"{first * step:.15g} to {last * step:.15g}" + ("" if step == 1.0 else f" in steps of {step:g}")

    def __repr__(self) -> str:
        facts = {key: shorten(text, MAX_TEXT_SHOWN) for key, text in self.describe().items() if key != "missing"}
        return f"Column({facts['name']!r}, {facts['kind']}, {facts['dtype']}, {facts['values']})"

    def to_dict(self) -> dict[str, Any]:
        """Configuration for JSON; `from_dict` reads it."""
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
        """Build a column from the output of `to_dict`."""
        kind = Steps if "edges" in state["map"] else Warp
        levels = None if state["levels"] is None else tuple(state["levels"])
        bounds = None if state["bounds"] is None else tuple(state["bounds"])
        if levels is not None and not levels:
            raise ValueError(f"column {state['name']!r} must have levels, got none")
        return cls(**{**state, "map": kind.from_dict(state["map"]), "levels": levels, "bounds": bounds})


def shorten(text: str, width: int) -> str:
    """Put text on one line of at most `width` characters.

    Example:
        >>> shorten("one of many words", 10)
        'one of ...'
    """
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 3]}..."
