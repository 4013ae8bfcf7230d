"""Fields of a column: what they mean, how they are stored, and whether they agree with each other."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from elflow._checks import check_choice
from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular.columns._heaps import MAX_PERIOD, Heaps
from elflow.tabular.columns._kinds import COLUMN_KINDS, Level
from elflow.tabular.columns._steps import Steps
from elflow.tabular.columns._warps import Warp

__all__ = ["ColumnFields"]


@dataclass(frozen=True, repr=False)
class ColumnFields:
    """Fitted fields of one column of a table; `elflow.tabular.columns._column.Column` maps values with them."""

    name: str
    kind: str
    """One of `COLUMN_KINDS`."""
    dtype: str
    map: Warp | Steps
    """Map of a continuous column to z, or of integers that represent the values to cells."""
    step: float | None = None
    """Spacing of the grid on which numbers or datetimes lie, if there is one."""
    single_digits: int | None = None
    """Significant digits of doubles that are numbers of single precision, such as 15 for 0.300000011920929."""
    levels: tuple[Level, ...] | None = None
    """Categories, if the column has any."""
    missing: float = 0.0
    """Fraction of missing values; 0 if missing values are not modelled."""
    bounds: tuple[float, float] | None = None
    """Declared bounds of numbers; the density outside is zero. Inferred bounds are those of `map`, and are soft."""
    ordered: bool = False
    """Whether the categories have an order."""
    categories: tuple[Level, ...] | None = None
    """Categories in the order of the dtype, if `levels` are arranged by another column: see `arrange_categories`."""
    unit: str = "ns"
    """Unit of `step` for datetimes."""
    local: bool = False
    """Whether datetimes with a time zone are on a grid in local time."""
    dithered: bool = False
    """Whether values on the grid become intervals of z as wide as the grid."""
    atoms: tuple[float, ...] = ()
    """Exact values with a probability, in increasing order."""
    shares: tuple[float, ...] = ()
    """Fractions of the states, if there are several: atoms below the median of the other values, these other values,
    atoms above, missing values."""
    period: int = 1
    """Number of steps after which heaps repeat, if values are more frequent at some points of the grid: see `Heaps`."""
    residues: tuple[int, ...] = ()
    """Remainders of heaps when multiples of the step are divided by the period."""
    residue_shares: tuple[float, ...] = ()
    """Fractions of the values at these heaps, among those that are not atoms."""
    position: int = 0
    """Position of the state of all values that are neither atoms nor missing."""

    @property
    def has_frequencies(self) -> bool:
        """Whether the frequencies of values matter to the column."""
        return self.is_discrete or bool(self.shares)

    @property
    def is_discrete(self) -> bool:
        """Whether values become cells of (0, 1)."""
        return isinstance(self.map, Steps)

    @property
    def is_exact(self) -> bool:
        """Whether each value is one exact number z."""
        return not (self.is_discrete or self.dithered or self.shares)

    @property
    def has_order(self) -> bool:
        """Whether the order of the values has a meaning: not that of strings, nor of numbers that do not increase."""
        if self.kind != "category" or self.ordered or self.levels is None:
            return True
        return all(isinstance(level, int | float) for level in self.levels) and list(self.levels) == sorted(self.levels)

    @property
    def dtype_levels(self) -> tuple[Level, ...]:
        """Categories in the order of the dtype."""
        return self.categories or self.levels or ()

    @property
    def is_arranged(self) -> bool:
        """Whether categories without an order of their own follow a column of numbers."""
        return self.categories is not None

    @property
    def z_range(self) -> tuple[float, float]:
        """Range of z that contains all but a negligible part of the column's distribution."""
        if isinstance(self.map, Steps):
            return -8.0, 8.0
        return min(-10.0, self.map.first - 2), max(10.0, self.map.last + 2)

    @property
    def fitted_range(self) -> tuple[float, float]:
        """Numbers z of the smallest and of the largest fitted value, apart from atoms; those at the ends of cells."""
        if isinstance(self.map, Steps):
            ends = ndtri(self.map.cumulative[[0, -1]])
            return float(ends[0]), float(ends[1])
        return self.map.first, self.map.last

    @property
    def sampled_bounds(self) -> tuple[float, float]:
        """Smallest and largest argument of the map of numbers that is sampled."""
        assert isinstance(self.map, Warp)
        low, step = self.map.low, self.step or 1.0
        if self.kind == "integer" and self.map.inverse(np.array([self.map.first]))[0] / step >= self._zero:
            low = max(low, self._zero * step)  # counts are never negative
        return low, self.map.high

    @property
    def _zero(self) -> float:
        """Lower end of 0 on the axis of the map, in steps: atoms below are left out if values are intervals."""
        return float(self.heaps.find_lower(np.zeros(1, np.int64))[0]) if self.dithered else -0.5

    @property
    def sampled_range(self) -> tuple[float, float]:
        """Smallest and largest number z that `decode` does not clip."""
        if isinstance(self.map, Steps):
            return self.fitted_range
        ends = [self.map(np.array([end]))[0][0] if np.isfinite(end) else end for end in self.sampled_bounds]
        return float(ends[0]), float(ends[1])

    @property
    def zone(self) -> str | None:
        """Time zone of a column of datetimes, if it has one."""
        dtype = pd.api.types.pandas_dtype(self.dtype) if self.kind == "datetime" else None
        return str(dtype.tz) if isinstance(dtype, pd.DatetimeTZDtype) else None

    def decode_states(self, z: FloatArray) -> IntArray:
        """States whose cells contain the normal quantiles z, `(N,)`."""
        return np.searchsorted(np.cumsum(self.shares)[:-1], ndtr(z), side="right")

    def state_value(self, state: int) -> float | None:
        """Atom of a state; None for the state of all other values."""
        return None if state == self.position else self.atoms[state - (state > self.position)]

    @property
    def _atom_integers(self) -> IntArray:
        """Atoms as multiples of the step."""
        return np.round(np.array(self.atoms) / (self.step or 1.0)).astype(np.int64)

    @cached_property
    def heaps(self) -> Heaps:
        """Intervals of values on the grid, in steps, before the map."""
        return Heaps(self.period, self.residues, self.residue_shares, tuple(self._atom_integers.tolist()))

    def to_dict(self) -> dict[str, Any]:
        """Configuration for JSON; `from_dict` reads it."""
        state = {field.name: getattr(self, field.name) for field in fields(self)} | {"map": self.map.to_dict()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in state.items()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Build a column from the output of `to_dict`."""
        map_class = Steps if "edges" in state["map"] else Warp
        # JSON has lists only.
        tuples = {
            field.name: tuple(state[field.name])
            for field in fields(cls)
            if str(field.type).startswith("tuple") and state.get(field.name) is not None
        }
        column = cls(**{**state, **tuples, "map": map_class.from_dict(state["map"])})
        column._check()
        return column

    def _check(self) -> None:
        """Raise an error if the fields, which may come from a damaged file, contradict each other."""
        check_choice(f"kind of column {self.name!r}", self.kind, COLUMN_KINDS)
        if (self.levels is not None) != (self.kind in ("category", "boolean")):
            raise ValueError(f"column {self.name!r} of kind {self.kind} must have levels only if it has categories")
        if self.levels is not None and not 0 < len(set(map(_identify, self.levels))) == len(self.levels):
            raise ValueError(f"column {self.name!r} must have different levels, got {self.levels[:5]}")
        if self.categories is not None and sorted(map(_identify, self.categories), key=str) != sorted(
            map(_identify, self.levels or ()), key=str
        ):
            raise ValueError(f"column {self.name!r} must have the same categories in both orders")
        if self.kind == "category" and self.levels is not None and isinstance(self.map, Steps):
            first, last = int(self.map.edges[0]), int(self.map.edges[-1])
            if first < 0 or last > len(self.levels):
                raise ValueError(f"column {self.name!r} must have cells of its {len(self.levels)} levels, got {last}")
        numbers = [*self.atoms, *self.shares, self.missing, self.step or 1.0]
        if not np.isfinite(numbers).all() or (self.step is not None and self.step <= 0):
            raise ValueError(f"column {self.name!r} must have finite atoms and shares and a positive step")
        if self.atoms != tuple(sorted(self.atoms)) or not 0 <= self.missing < 1:
            raise ValueError(f"column {self.name!r} must have increasing atoms, and a fraction of missing values")
        if self.bounds is not None and not self.bounds[0] < self.bounds[1]:
            raise ValueError(f"column {self.name!r} must have increasing bounds, got {self.bounds}")
        pd.api.types.pandas_dtype(self.dtype)
        n_states = len(self.atoms) + 1 + bool(self.missing)
        is_valid = len(self.shares) == (n_states if n_states > 1 else 0) and 0 <= self.position <= len(self.atoms)
        if self.shares and (min(self.shares) <= 0 or abs(sum(self.shares) - 1) > 1e-6):
            is_valid = False
        if not is_valid:
            raise ValueError(
                f"column {self.name!r} must have a fraction for each of {n_states} states, got {self.shares}"
            )
        self._check_heaps()
        if (self.atoms or self.dithered) and self.is_discrete:
            raise ValueError(f"column {self.name!r} must not have atoms, since its values have cells")

    def _check_heaps(self) -> None:
        """Raise an error if the fields of heaps contradict each other."""
        if not all(type(number) is int for number in (self.period, *self.residues)):
            raise ValueError(f"column {self.name!r} must have whole numbers as period and residues of heaps")
        if self.dithered and len(set(self._atom_integers.tolist())) < len(self.atoms):
            raise ValueError(f"column {self.name!r} must have different atoms on its grid, got {self.atoms[:5]}")
        is_sorted = list(self.residues) == sorted(set(self.residues)) and len(self.residues) < self.period
        is_inside = 1 <= self.period <= MAX_PERIOD and all(0 <= residue < self.period for residue in self.residues)
        has_shares = len(self.residue_shares) == len(self.residues) and all(0 < s < 1 for s in self.residue_shares)
        if not (is_sorted and is_inside and has_shares and sum(self.residue_shares) < 1):
            raise ValueError(f"column {self.name!r} must have a share for each of its heaps within the period")
        if self.period > 1 and not self.dithered:
            raise ValueError(f"column {self.name!r} must not have heaps, since its values are not intervals")


def _identify(level: Level) -> tuple[str, Level]:
    """A level with its type: True and 1 are different levels."""
    return type(level).__name__, level
