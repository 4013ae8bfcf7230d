"""Survey of a table that is larger than memory: what its columns are inferred from, in one pass over its rows.

Columns are inferred from a random sample of the rows and from *witnesses*: rows without which the sample would give a
wrong picture, such as the extremes of a column, its first missing value, or the first value with more decimals than all
before. Categories are counted in all rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from elflow.io import TableStream
from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular.columns import _grids, _times
from elflow.tabular.columns._kinds import MAX_NUMERIC_LEVELS
from elflow.training import Permutation

__all__ = ["Survey", "survey_stream"]

MAX_SAMPLED_ROWS, MIN_SAMPLED_ROWS = 2**18, 20_000
"""Maximum number of rows of the sample, and its minimum in tables with very many columns."""
MAX_SAMPLED_VALUES = 2**24
"""Number of values of the sample from which it has fewer rows."""
MAX_COUNTED = 500_000
"""Maximum number of categories of a column."""
SAMPLE_SEED = 0
"""Seed of the sample: the columns of a table do not depend on the seed of a fit."""


@dataclass
class Survey:
    """What is known about a table before its columns are inferred.

    Example:
        >>> Survey.of_frame(pd.DataFrame({"a": [1, 2]})).n_rows
        2
    """

    frame: pd.DataFrame
    """All rows, or a sample and witnesses."""
    n_rows: int
    """Number of rows of the table."""
    counts: dict[str, dict[Any, int]] = field(default_factory=dict)
    """Number of rows of each category, by column, if the frame is a sample."""
    n_missing: dict[str, int] | None = None
    """Number of missing values by column, if the frame is a sample."""
    row_numbers: list[str] | None = None
    """Columns of integers in equal steps, if the frame is a sample."""
    too_many: list[str] = field(default_factory=list)
    """Columns with more categories than can be counted."""

    def count_missing(self, names: Sequence[str]) -> pd.Series:
        """Number of missing values of these columns."""
        if self.n_missing is None:
            return self.frame[list(names)].isna().sum()
        return pd.Series({name: self.n_missing[name] for name in names}, dtype=np.int64)

    def select(self, names: Sequence[str]) -> Survey:
        """Survey of some of the columns."""
        return replace(
            self,
            frame=self.frame[list(names)],
            counts={name: counts for name, counts in self.counts.items() if name in names},
            too_many=[name for name in self.too_many if name in names],
        )

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> Survey:
        """Survey of a table in memory: all that is known is in its rows."""
        return cls(frame, len(frame))


def survey_stream(
    stream: TableStream, declared: Mapping[Any, Any] | None, on_progress: Callable[[float], object]
) -> Survey:
    """Survey a table in one pass over its rows, two for text files.

    If the table has no more rows than the sample, the sample is the table.

    Arguments:
        stream: The table.
        declared: Kinds or bounds of some columns: the values of all that are declared categories are counted.
        on_progress: Called with the finished fraction.
    """
    is_text = not stream.is_prepared
    stream.prepare(lambda share: on_progress(share / 2))
    categories = [str(name) for name, kind in (declared or {}).items() if isinstance(kind, str) and kind == "category"]
    n_sampled = int(np.clip(MAX_SAMPLED_VALUES // len(stream.names), MIN_SAMPLED_ROWS, MAX_SAMPLED_ROWS))
    sampled = np.sort(Permutation(stream.n_rows, SAMPLE_SEED).take(0, n_sampled).numpy())
    columns = {name: _ColumnSurvey(name, name in categories) for name in stream.names}
    kept, row = [], 0
    for table in stream.iter_tables(lambda share: on_progress((1 + share) / 2 if is_text else share)):
        first, last = np.searchsorted(sampled, [row, row + len(table)])
        witnesses = [position for name, column in columns.items() for position in column.add(table.column(name))]
        kept.append(table.take(pa.array(np.union1d(sampled[first:last] - row, witnesses).astype(np.int64))))
        row += len(table)
    return Survey(
        stream.to_frame(pa.concat_tables(kept)),
        stream.n_rows,
        {name: dict(column.counts) for name, column in columns.items() if column.counts is not None},
        {name: column.n_missing for name, column in columns.items()},
        [name for name, column in columns.items() if column.steps.is_row_number(stream.n_rows)],
        [name for name, column in columns.items() if column.has_too_many],
    )


class _ColumnSurvey:
    """One column: its missing values, its categories, and its witnesses."""

    def __init__(self, name: str, is_category: bool) -> None:
        self.name, self.is_category = name, is_category
        self.counts: Counter[Any] | None = None
        self.n_missing = 0
        self.has_too_many = False
        self.steps = _Steps()
        self._distinct: set[Any] = set()
        self._dictionary: pa.Array | None = None
        self._numbers = _Numbers()
        self._divisors = {"utc": _Divisor(), "local": _Divisor()}

    def add(self, column: pa.ChunkedArray) -> list[int]:
        """Add a block of values, and return the positions of its witnesses."""
        values = TableStream.to_frame(pa.table({self.name: column}))[self.name]
        is_missing = values.isna().to_numpy()
        places = np.flatnonzero(~is_missing)
        present = values.iloc[places] if is_missing.any() else values
        found = [int(is_missing.argmax())] if is_missing.any() and not self.n_missing else []
        self.n_missing += len(values) - len(present)
        if not len(present):
            return found
        types = pd.api.types
        dtype = present.dtype
        is_number = types.is_numeric_dtype(dtype) and not types.is_bool_dtype(dtype)
        inside: list[int] = []
        if is_number:
            inside += self._numbers.add(present.to_numpy(dtype=getattr(dtype, "numpy_dtype", dtype)), str(dtype))
        elif types.is_datetime64_any_dtype(dtype):
            inside += self._add_times(present)
        if types.is_integer_dtype(dtype):
            self.steps.add(present.to_numpy(np.int64, na_value=0), self.n_missing)
        if isinstance(dtype, pd.CategoricalDtype):
            found += self._add_dictionary(column)
        is_text = isinstance(dtype, pd.CategoricalDtype) or types.is_string_dtype(dtype) or types.is_object_dtype(dtype)
        if is_text or self.is_category:
            self._count(present)
        inside += self._add_distinct(present)
        return [*found, *(int(places[i]) for i in inside)]

    def _add_distinct(self, present: pd.Series) -> list[int]:
        """Positions of the first occurrences of values, as long as these are few enough to be levels of a category."""
        if len(self._distinct) > MAX_NUMERIC_LEVELS:
            return []
        positions = np.flatnonzero(~present.duplicated().to_numpy())[: 2 * MAX_NUMERIC_LEVELS]
        new = [int(i) for i in positions if present.iloc[i] not in self._distinct]
        self._distinct |= {present.iloc[i] for i in new}
        return new

    def _add_dictionary(self, column: pa.ChunkedArray) -> list[int]:
        """The first row of a block with other categories than the one before: rows carry these with them."""
        dictionary = column.chunk(0).dictionary
        if self._dictionary is not None and dictionary.equals(self._dictionary):
            return []
        self._dictionary = dictionary
        return [0]

    def _add_times(self, present: pd.Series) -> list[int]:
        counts = _times.datetimes_to_integers(self.name, present)[0]
        found = [*self._numbers.find_extremes(counts), *self._divisors["utc"].add(counts)]
        if present.dt.tz is not None:
            found += self._divisors["local"].add(_times.datetimes_to_integers(self.name, present, local=True)[0])
        return found

    def _count(self, present: pd.Series) -> None:
        if self.has_too_many:
            return
        self.counts = Counter() if self.counts is None else self.counts
        found = present.astype(object).value_counts() if present.dtype == "category" else present.value_counts()
        for level, count in zip(found.index.tolist(), found.tolist(), strict=True):
            self.counts[level] += count
        if len(self.counts) > MAX_COUNTED:
            self.counts, self.has_too_many = None, True


class _Numbers:
    """Witnesses of a column of numbers: extremes, and values off the grid of all values before."""

    def __init__(self) -> None:
        self._low, self._high = np.inf, -np.inf
        self._divisor = _Divisor()
        self._is_whole = True
        self._grid, self._single_grid = _Grid(), _Grid()

    def add(self, x: FloatArray | IntArray, dtype: str) -> list[int]:
        """Add values, none of them missing, and return the positions of the witnesses."""
        found = self.find_extremes(x)
        if x.dtype.kind == "f":
            x = x.astype(np.float64)
            if not np.isfinite(x).all():
                return [*found, int(np.argmin(np.isfinite(x)))]  # an error when columns are inferred
            found += self._add_fractions(x, dtype)
        if self._is_whole:
            found += self._divisor.add(x)
        return found

    def find_extremes(self, x: FloatArray | IntArray) -> list[int]:
        """Positions of values below or above all before."""
        low, high = int(x.argmin()), int(x.argmax())
        found = ([low] if x[low] < self._low else []) + ([high] if x[high] > self._high else [])
        self._low, self._high = min(self._low, x[low]), max(self._high, x[high])
        return found

    def _add_fractions(self, x: FloatArray, dtype: str) -> list[int]:
        found = []
        if self._is_whole and (is_broken := x != np.floor(x)).any():
            found.append(int(is_broken.argmax()))
            self._is_whole = False
        found += self._grid.add(x, dtype)
        if self._single_grid.digits is not None:  # doubles may be decimals of single precision
            is_single = _grids.are_single(x)
            if is_single.all():
                return [*found, *self._single_grid.add(x, "float32")]
            found.append(int(np.argmin(is_single)))
            self._single_grid.digits = None
        return found


class _Grid:
    """Witnesses of the number of decimals: values off the grid of all values before."""

    def __init__(self) -> None:
        self.digits: int | None = 0

    def add(self, x: FloatArray, dtype: str) -> list[int]:
        """Positions of values with more decimals than all before."""
        found = []
        while self.digits is not None and not (is_on := _grids.is_on_grid(x, self.digits, dtype)).all():
            position = int(np.argmin(is_on))
            found.append(position)
            finer = range(self.digits + 1, _grids.MAX_DIGITS + 1)
            value = x[position : position + 1]
            self.digits = next((digits for digits in finer if _grids.is_on_grid(value, digits, dtype).all()), None)
        return found


class _Divisor:
    """Witnesses of the greatest common divisor of integers."""

    def __init__(self) -> None:
        self._divisor = 0

    def add(self, x: FloatArray | IntArray) -> list[int]:
        """Positions of values that lower the divisor of all values before."""
        found: list[int] = []
        while self._divisor != 1:
            is_off = x != 0 if self._divisor == 0 else x % self._divisor != 0
            if not is_off.any():
                break
            position = int(is_off.argmax())
            found.append(position)
            self._divisor = math.gcd(self._divisor, int(x[position]))
        return found


class _Steps:
    """Whether integers number the rows: they rise or fall in equal steps, without missing values."""

    def __init__(self) -> None:
        self._last: int | None = None
        self._step: int | None = None
        self._is_equal = True
        self._n_rows = 0

    def add(self, x: IntArray, n_missing: int) -> None:
        """Add integers, after which so many values of the column are missing."""
        self._n_rows += len(x)
        if not self._is_equal or n_missing:
            self._is_equal = False
            return
        steps = np.diff(x if self._last is None else np.append(self._last, x))
        self._last = int(x[-1])
        if len(steps):
            self._step = int(steps[0]) if self._step is None else self._step
            self._is_equal = self._step != 0 and bool((steps == self._step).all())

    def is_row_number(self, n_rows: int) -> bool:
        """Whether the integers number all rows of a table with so many rows."""
        return self._is_equal and self._step is not None and self._n_rows == n_rows
