"""One column of a table: its kind, and the maps from its values to numbers and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from elflow.tabular._arrays import BoolArray, FloatArray, IntArray
from elflow.tabular._text import shorten
from elflow.tabular.columns import _grids, _kinds, _times
from elflow.tabular.columns._description import describe_values
from elflow.tabular.columns._fields import ColumnFields
from elflow.tabular.columns._heaps import clip_inside
from elflow.tabular.columns._kinds import COLUMN_KINDS, Declaration, Level
from elflow.tabular.columns._numbers import count_states, describe_states, locate_atoms, plan_numbers
from elflow.tabular.columns._steps import Steps
from elflow.tabular.columns._values import Values, as_values, find_missing, to_array
from elflow.tabular.columns._warps import Warp

__all__ = ["COLUMN_KINDS", "Column"]

MAX_TEXT_SHOWN = 60
"""Maximum number of characters of a column's name, and of its values, in the text of a column."""
MAX_LOOKED_UP = 1_000
"""Number of values up to which categories are looked up one by one: an index of pandas takes longer to build."""


class Column(ColumnFields):
    """One column of a table, and the map between its values and the numbers that a flow models.

    A continuous value becomes a number z. Any other value becomes a cell: an interval of (0, 1) whose width is the
    frequency of the value. A point u of the cell represents the value, and z is the normal quantile of u. Every column
    is then about standard normal, and the flow mostly learns how the columns depend on each other.

    Numbers on a grid (heights in centimetres, prices, counts) whose frequencies look like those of a rounded smooth
    density become intervals of z as wide as the grid (`dithered`), others on a grid become cells. `step` is the spacing
    of the grid, and the density of a value is its probability divided by the spacing.

    Exact values that are far more frequent than a smooth density allows, such as zeros of rainfall, are `atoms`. A
    column with atoms, or with missing values, is in one of several states in each row: at an atom, missing, or anywhere
    else. An indicator has a cell for each state. Where the state determines the value, z is pure noise.

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

    @classmethod
    def fit(
        cls,
        values: pd.Series,
        declared: Declaration | None = None,
        model_missing: bool = False,
        infer_bounds: bool = True,
        counts: Mapping[Any, int] | None = None,
    ) -> Column:
        """Infer the kind of a column, and fit the map from its values to numbers.

        Arguments:
            values: The column, `(N,)`, with at least one value that is not missing.
            declared: Kind of the column, or bounds `(low, high)` of numbers, each of which may be None. The kind is
                inferred if left out.
            model_missing: Whether missing values are modelled.
            infer_bounds: Whether bounds and atoms of numeric columns are inferred; a context needs neither.
            counts: Number of rows of each category in the whole table, if the values are only some of its rows.
        """
        name = str(values.name)
        present = values[values.notna()]
        n_missing = len(values) - len(present)
        present = _kinds.convert_objects(name, present)
        kind, bounds = _kinds.resolve_kind(name, declared, _kinds.infer_kind(name, present))
        facts: dict[str, Any] = {"name": name, "kind": kind, "dtype": str(values.dtype)}
        if kind in ("category", "boolean"):
            facts["levels"] = _kinds.list_levels(values, present, counts)
            facts["ordered"] = bool(getattr(values.dtype, "ordered", False))
        elif kind == "datetime":
            numbers, facts["unit"] = _times.datetimes_to_integers(name, present)
            facts["step"] = _kinds.find_integer_step(numbers)
            local = _times.datetimes_to_integers(name, present, local=True)[0]
            if (local_step := _kinds.find_integer_step(local)) > facts["step"]:
                facts |= {"step": local_step, "local": True}
        elif kind in ("continuous", "integer"):
            is_point = declared == "continuous"
            facts |= plan_numbers(facts, present, bounds, declared is None, is_point, infer_bounds)
        else:
            raise AssertionError(f"Column.fit must support every kind of column, got {kind!r}")
        atoms = facts.pop("atoms", np.zeros(0))
        if "map" not in facts:
            # `to_integers` depends on the other fields only, so that any map will do
            integers = cls(map=Steps(np.array([0, 1]), np.array([0.0, 1.0])), **facts).to_integers(present)
            if int(integers.max()) - int(integers.min()) >= _kinds.MAX_INTEGER_SPAN:
                raise ValueError(
                    f"column {name!r} must span less than 2**53, got {integers.min()} to {integers.max()}: drop it, or "
                    "make it a category"
                )
            is_ordered = facts.get("levels") is None or facts.get("ordered", False)
            of_levels = None
            if counts is not None and "levels" in facts:
                of_levels = np.array([counts.get(level, 0) for level in facts["levels"]])
            facts["map"] = Steps.fit(integers, is_ordered, of_levels, has_gaps=facts.get("levels") is None)
        states = count_states(present, atoms, n_missing)
        return cls(
            **facts, **describe_states(states, atoms, locate_atoms(present, atoms), model_missing and n_missing > 0)
        )

    def arrange(self, order: IntArray, values: pd.Series, counts: Mapping[Any, int] | None = None) -> Column:
        """The same column of categories in another order.

        Arguments:
            order: Positions of the categories, `(K,)`.
            values: The fitted values, `(N,)`.
            counts: Number of rows of each category in the whole table, if the values are only some of its rows.
        """
        assert self.levels is not None
        levels = tuple(self.levels[i] for i in order)
        column = replace(self, levels=levels, categories=self.levels)
        integers = column.to_integers(_kinds.convert_objects(self.name, values[values.notna()]))
        of_levels = None if counts is None else np.array([counts.get(level, 0) for level in levels])
        return replace(column, map=Steps.fit(integers, False, of_levels, has_gaps=False))

    def recount(self, values: pd.Series) -> Column:
        """The same column with the frequencies of some of the fitted values, `(N,)`."""
        return self.with_counts(self.count(values))

    def count(self, values: pd.Series) -> IntArray:
        """Numbers of fitted values, `(N,)`, in each state and in each cell. Those of several blocks add up."""
        present = _kinds.convert_objects(self.name, values[values.notna()])
        states = count_states(present, np.array(self.atoms), len(values) - len(present))
        cells = self.map.count(self.to_integers(present)) if isinstance(self.map, Steps) else states[:0]
        return np.concatenate([states, cells])

    def with_counts(self, counts: IntArray) -> Column:
        """The same column with these numbers of values: see `count`."""
        n_states = len(self.atoms) + 2
        states = describe_states(counts[:n_states], np.array(self.atoms), self.position, bool(self.missing))
        if not isinstance(self.map, Steps):
            return replace(self, **states)
        return replace(self, map=self.map.with_counts(counts[n_states:], self.levels is None), **states)

    def parse_times(self, values: pd.Series) -> pd.Series:
        """Datetimes from strings in ISO format or objects; those without a time zone are in that of the column, `(N,)`.

        Values of other columns are unchanged.
        """
        present = _kinds.convert_objects(self.name, values[values.notna()]) if self.kind == "datetime" else values[:0]
        if len(present) and pd.api.types.is_string_dtype(present.dtype):
            return _times.parse_iso_datetimes(self.name, present, self.zone).reindex(values.index)
        if self.zone is not None and isinstance(present.dtype, np.dtype) and present.dtype.kind == "M":
            return _times.localize(present, self.zone).reindex(values.index)
        if self.kind == "datetime" and values.dtype == object and isinstance(present, pd.Series):
            return present.reindex(values.index)
        return values

    def encode(self, values: Values, states: IntArray | None = None) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Cells of values, `(N,)`.

        Arguments:
            values: The values.
            states: Their states, if they are known: see `encode_states`.

        Returns:
            The lower ends of the cells, their widths, and the logarithms to add to the log-density of z, `(N,)` each:
            see `elflow.flows.dequantization.Cells` for widths that are zero or negative. A missing value and an atom
            have the cell (0, 1).
        """
        low, width, offset = np.zeros(len(values)), np.ones(len(values)), np.zeros(len(values))
        values = as_values(values)
        has_value = (self.encode_states(values) if states is None else states) == self.position
        present = _kinds.convert_objects(self.name, values[has_value])
        if isinstance(self.map, Steps):
            low[has_value], width[has_value] = self.map.encode(self.to_integers(present))
        elif self.dithered:
            low[has_value], width[has_value] = self._encode_dithered(self.to_integers(present))
        else:
            low[has_value], offset[has_value] = self.map(self._to_floats(present))
            width[has_value] = 0.0
            if self.kind == "integer":  # the probability of one value
                offset[has_value] += np.log(self.step or 1.0)
        if self.kind == "continuous" and self.step is not None and (self.is_discrete or self.dithered):
            offset[has_value] = -np.log(self.step)
        if self.bounds is not None:
            x = self._to_floats(present)
            offset[has_value] = np.where((x < self.bounds[0]) | (x > self.bounds[1]), -np.inf, offset[has_value])
        return low, width, offset

    def _encode_dithered(self, integers: IntArray) -> tuple[FloatArray, FloatArray]:
        """Intervals of z of grid points: lower ends, and widths with a negative sign."""
        assert isinstance(self.map, Warp)
        step = self.step or 1.0
        first, size = self.heaps.find_lower(integers), self.heaps.find_widths(integers)
        points = np.concatenate([first, first + size, first + size / 2]) * step
        (low, high, _), (_, _, log_slope) = (part.reshape(3, -1) for part in self.map(points))
        # Far from the origin, the difference is mostly rounding; the slope is not.
        by_slope = size * step * np.exp(np.minimum(log_slope, 600.0))
        width = np.where(high - low > 1e-6 * np.abs(low), high - low, by_slope)
        return low, -np.maximum(width, 1e-300)

    def encode_states(self, values: Values) -> IntArray:
        """State of each value, `(N,)`: its position in `shares`; 0 for all values if there is only one state."""
        values = as_values(values)
        states = np.full(len(values), self.position)
        is_missing = find_missing(values)
        states[is_missing] = len(self.shares) - 1 if self.missing else -1
        if self.atoms:
            present = _kinds.convert_objects(self.name, values[~is_missing])
            x, atoms = self._to_floats(present), np.array(self.atoms)
            if self.step is not None:
                x, atoms = np.round(x / self.step), self._atom_integers.astype(np.float64)
            elif self.dtype.lower() in ("float16", "float32"):
                with np.errstate(over="ignore"):
                    x, atoms = x.astype(self.dtype.lower()), atoms.astype(self.dtype.lower())
            index = np.clip(np.searchsorted(atoms, x), 0, len(atoms) - 1)
            state = np.where(index < self.position, index, index + 1)
            states[~is_missing] = np.where(atoms[index] == x, state, self.position)
        return states

    def encode_upper(self, values: Values) -> FloatArray:
        """Number z at the upper end of each value's cell, `(N,)`, none of which is missing; atoms have no cell.

        A column's value is at most this one if and only if it is an atom up to it, or its z is at most this number.
        """
        values = as_values(values)
        if isinstance(self.map, Warp) and not self.dithered:
            x = self._to_floats(_kinds.convert_objects(self.name, values))
            return self.map(x)[0]
        if self.dithered:
            integers = self.to_integers(_kinds.convert_objects(self.name, values))
            # An atom has no interval of its own: the one before it is the last up to it.
            is_atom = np.isin(integers, self._atom_integers)
            low, width = self._encode_dithered(integers)
            return np.where(is_atom, low, low - width)
        low, width, _ = self.encode(values)
        return np.asarray(ndtri(np.clip(low + width, 0, 1)))

    def encode_midpoints(self, values: Values) -> FloatArray:
        """Number z in the middle of each value's cell, `(N,)`; 0 for a missing value and for an atom."""
        low, width, _ = self.encode(values)
        with np.errstate(invalid="ignore"):  # `low` is z unless there is a cell of (0, 1): its quantile is not used
            return np.where(width <= 0, low - width / 2, ndtri(np.clip(low + width / 2, 1e-12, 1 - 1e-12)))

    def decode(self, z: FloatArray, states: IntArray | None = None) -> pd.Series:
        """Values that the numbers z `(N,)` represent, in the dtype of the column.

        Arguments:
            z: The numbers.
            states: State of each value, `(N,)`; None if all are neither atoms nor missing.
        """
        if isinstance(self.map, Warp):
            values = pd.Series(self.decode_numbers(z))
        else:
            values = self._decode_integers(self.map.decode(ndtr(z)))
        is_missing = None
        if states is not None:
            for state in range(len(self.shares) - bool(self.missing)):
                if (atom := self.state_value(state)) is not None:
                    values = values.mask(pd.Series(states == state), atom)
            is_missing = states == len(self.shares) - 1 if self.missing else None
        return self._restore(values, is_missing)

    def decode_numbers(self, z: FloatArray) -> FloatArray:
        """Numbers within the bounds, and on the grid if there is one."""
        assert isinstance(self.map, Warp)
        x = np.clip(self.map.inverse(z), *self.sampled_bounds)
        if self.step is None or np.abs(x).max(initial=0) >= 2.0**52 * self.step:
            return x
        if not self.dithered:
            return _grids.multiply_step(np.round(x / self.step).astype(np.int64), self.step)
        inside = clip_inside(x / self.step, np.array(self.sampled_bounds) / self.step)
        return _grids.multiply_step(self.heaps.find_integers(inside), self.step)

    def _decode_integers(self, integers: IntArray) -> pd.Series:
        """Values that integers represent: see `to_integers`."""
        if self.levels is not None:
            levels = pd.Series(list(self.levels), dtype=object)
            return levels.iloc[np.clip(integers, 0, len(levels) - 1)].reset_index(drop=True)
        if self.kind == "datetime":
            values = pd.Series((integers * int(self.step or 1)).astype(f"datetime64[{self.unit}]"))
            dtype = pd.api.types.pandas_dtype(self.dtype)
            if not isinstance(dtype, pd.DatetimeTZDtype):
                return values
            return _times.localize(values, dtype.tz) if self.local else values.dt.tz_localize("UTC")
        if self.kind == "continuous":
            return pd.Series(_grids.multiply_step(integers, self.step or 1.0))
        return pd.Series(integers * int(self.step or 1))

    def to_integers(self, present: Values) -> IntArray:
        """Integers that represent the values of a discrete column, `(N,)`, none of which is missing.

        Categories become their positions in `levels`, and all unknown ones `len(levels)`; other values become
        multiples of `step`.
        """
        if self.levels is not None:
            codes = self._find_levels(present, self.levels)
            unknown = present[codes == len(self.levels)] if self.kind == "boolean" else ()
            # Text such as "True" would be an unknown category, with a low density and without a word.
            if wrong := [value for value in unknown if value not in (True, False)]:
                raise ValueError(f"column {self.name!r} must hold booleans, got {wrong[0]!r}")
            return codes
        if self.kind == "datetime":
            present = present if isinstance(present, pd.Series) else pd.Series(present)
            counts, _ = _times.datetimes_to_integers(self.name, present, self.unit, self.local, self.zone)
            return counts // int(self.step or 1)
        if pd.api.types.is_integer_dtype(present.dtype) and self.step == 1.0:
            if len(present) and int(present.max()) >= 2**62:
                raise ValueError(f"column {self.name!r} must hold numbers below 2**62, got {present.max()}")
            return to_array(present, np.int64)
        whole = self._to_floats(present)
        x = whole / (self.step or 1.0)
        if (np.abs(x) > 2.0**62).any():
            raise ValueError(f"column {self.name!r} must hold numbers below 2**62, got {np.abs(x).max():g}")
        if self.kind == "integer" and (whole != np.floor(whole)).any():
            raise ValueError(f"column {self.name!r} must hold integers, got {whole[whole != np.floor(whole)][0]:g}")
        return np.round(x).astype(np.int64)

    def _find_levels(self, present: Values, levels: tuple[Level, ...]) -> IntArray:
        """Positions of categories in `levels`; `len(levels)` for unknown ones."""
        if len(present) <= MAX_LOOKED_UP and len(self._positions) == len(levels):
            positions = self._positions
            return np.array([positions.get(value, len(levels)) for value in present.tolist()], np.int64)
        codes = self._level_index.get_indexer(pd.Index(present.astype(object), dtype=object))
        return np.where(codes < 0, len(levels), codes).astype(np.int64)

    @cached_property
    def _positions(self) -> dict[Level, int]:
        """Position of each category in `levels`; fewer if some are equal, such as 1 and True."""
        return {level: i for i, level in enumerate(self.levels or ())}

    @cached_property
    def _level_index(self) -> pd.Index:
        """The categories as an index of pandas, which keeps its table of hashes."""
        return pd.Index(list(self.levels or ()), dtype=object)

    def _to_floats(self, present: Values) -> FloatArray:
        """Values of a numeric column, `(N,)`, none of which is missing."""
        try:
            if present.dtype.kind in "mM":  # NumPy would count their nanoseconds
                raise TypeError
            x = to_array(present, np.float64)
        except (TypeError, ValueError):
            raise ValueError(_kinds.describe_non_numbers(self.name, pd.Series(present))) from None
        if np.isinf(x).any():
            raise ValueError(f"column {self.name!r} must be finite, got {int(np.isinf(x).sum())} infinite values")
        return x

    def _restore(self, values: pd.Series, is_missing: BoolArray | None) -> pd.Series:
        """Convert values to the dtype of the column, and remove those that are missing."""
        if self.dtype == "category":
            result = pd.Series(pd.Categorical(values, categories=list(self.dtype_levels), ordered=self.ordered))
        elif self.single_digits is not None:
            result = pd.Series(_grids.round_to_single(values.to_numpy(np.float64), self.single_digits))
            result = result.astype(self.dtype)
        elif isinstance(self.map, Warp):
            x = values.to_numpy(np.float64)
            if pd.api.types.is_integer_dtype(pd.api.types.pandas_dtype(self.dtype)):
                # Samples in the tails stay within the dtype; the largest float below 2**63 is 1024 less.
                ends = np.iinfo(self.dtype.lower())
                x = np.clip(np.round(x), float(ends.min), np.nextafter(float(ends.max) + 1, 0))
            if self.dtype.lower() in ("float16", "float32"):  # samples in the tails must not overflow to infinity
                short = np.dtype(self.dtype.lower())
                x = np.clip(x, np.finfo(short).min, np.finfo(short).max).astype(short)
            result = pd.Series(x).astype(self.dtype)
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
        values = describe_values(self) + (", or missing" if self.missing else "")
        return {
            "name": self.name,
            "kind": self.kind,
            "dtype": self.dtype,
            "values": values,
            "missing": bool(self.missing),
        }

    def __repr__(self) -> str:
        facts = {key: shorten(text, MAX_TEXT_SHOWN) for key, text in self.describe().items() if key != "missing"}
        return f"Column({facts['name']!r}, {facts['kind']}, {facts['dtype']}, {facts['values']})"
