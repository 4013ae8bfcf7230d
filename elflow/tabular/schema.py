"""Tables as people have them, and the numbers that a flow sees of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr

from elflow.flows.dequantization import Cells
from elflow.tabular._maps import Floats
from elflow.tabular.columns import Column

__all__ = ["Schema", "as_frame", "digest", "fingerprint", "from_frame", "kind_of_table"]

ONE_HOT = 32
"""Up to how many categories of a context column have a number each."""


@dataclass(frozen=True)
class Schema:
    """The columns of a table, and what kind of table it is.

    Example:
        >>> frame = pd.DataFrame({"size": [1.5, 2.25, 0.75, 3.125], "name": ["a", "b", "a", "a"]})
        >>> schema = Schema.fit(frame)
        >>> [column.kind for column in schema.columns]
        ['continuous', 'category']
        >>> schema.encode(frame).exact.shape
        (4, 1)
    """

    columns: tuple[Column, ...]
    table: str
    """What `kind_of_table` says."""
    labels: tuple[Any, ...] | None = None
    """What the table calls its columns, where these are not all strings."""

    @classmethod
    def fit(
        cls, table: Any, how: Mapping[str, Any] | None = None, missing: str = "error", detect: bool = True
    ) -> Schema:
        """What the columns of a table are.

        Arguments:
            table: Any table that `as_frame` takes.
            how: For columns by name, what they are: see `Column.fit`.
            missing: `"error"` refuses missing values, `"model"` makes them values of their own.
            detect: Whether to look for bounds that were not declared.
        """
        frame = as_frame(table)
        how = {str(name): what for name, what in (how or {}).items()}
        if unknown := [name for name in how if name not in frame.columns]:
            raise ValueError(f"columns must name columns of the table, {list(frame.columns)}, got {unknown}")
        if missing == "error":
            _refuse_missing(frame)
        if empty := [name for name in frame.columns if frame[name].isna().all()]:
            raise ValueError(f"each column must hold some value, got only missing ones in {empty}: drop these columns")
        columns = tuple(Column.fit(frame[name], how.get(name), missing == "model", detect) for name in frame.columns)
        return cls(columns, "pandas").like(table)

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def exact(self) -> list[int]:
        """Which of the numbers that a flow sees are always known."""
        return [i for i, known in enumerate(self._known()) if known]

    @property
    def cells(self) -> list[int]:
        """Which of them lie in cells, for some rows at least."""
        return [i for i, known in enumerate(self._known()) if not known]

    @property
    def features(self) -> int:
        """How many numbers a flow sees of a row: one for each column, two where values may be missing."""
        return len(self._known())

    def _known(self) -> list[bool]:
        known = []
        for column in self.columns:
            known += [False, False] if column.missing else [not column.discrete]
        return known

    def like(self, table: Any) -> Schema:
        """The same schema for another kind of table, with its names of columns."""
        given = table.columns.tolist() if kind_of_table(table) == "pandas" else []
        labels = None if all(isinstance(label, str) for label in given) else tuple(given)
        return replace(self, table=kind_of_table(table), labels=labels)

    def column(self, name: str) -> Column:
        """The column of that name."""
        found = [column for column in self.columns if column.name == name]
        if not found:
            raise ValueError(f"column must be one of {self.names}, got {name!r}")
        return found[0]

    def positions(self, name: str) -> list[int]:
        """Which of the numbers that a flow sees are a column's: its indicator first if it has one, then its value."""
        start = 0
        for column in self.columns:
            size = 1 + bool(column.missing)
            if column.name == name:
                break
            start += size
        return list(range(start, start + size))

    def encode(self, table: Any) -> Cells:
        """Rows as numbers; columns are found by name where the table has names."""
        frame = self.align(as_frame(table, self.names))
        lows, widths, offset = [], [], np.zeros(len(frame))
        for column in self.columns:
            low, width, extra = column.cells(frame[column.name])
            if column.missing:  # the indicator's cells: present, then missing
                absent = frame[column.name].isna().to_numpy()
                lows.append(np.where(absent, 1 - column.missing, 0.0))
                widths.append(np.where(absent, column.missing, 1 - column.missing))
            lows.append(low)
            widths.append(width)
            offset += extra
        low, width = (np.stack(a, axis=1) if a else np.zeros((len(frame), 0)) for a in (lows, widths))
        return Cells(low[:, self.exact], low[:, self.cells], width[:, self.cells], offset)

    def decode(self, z: Floats) -> Any:
        """The table that numbers `(N, features)` stand for."""
        series, at = [], 0
        for column in self.columns:
            absent = None
            if column.missing:
                absent = ndtr(z[:, at]) >= 1 - column.missing
                at += 1
            series.append(column.values(z[:, at], absent))
            at += 1
        frame = pd.concat(series, axis=1)
        if self.labels is not None:
            frame.columns = pd.Index(list(self.labels))
        return from_frame(frame, self.table)

    def context(self, table: Any) -> Floats:
        """Rows as numbers to condition on: no noise, and one number for each category of a few."""
        frame = self.align(as_frame(table, self.names))
        numbers: list[Floats] = []
        for column in self.columns:
            values = frame[column.name]
            absent = values.isna().to_numpy()
            if column.kind == "category" and column.levels is not None and len(column.levels) <= ONE_HOT:
                codes = column.integers(values[~absent])
                one_hot = np.zeros((len(values), len(column.levels)))
                rows = np.flatnonzero(~absent)
                seen = codes < len(column.levels)
                one_hot[rows[seen], codes[seen]] = 1.0
                numbers.append(one_hot)
            else:
                numbers.append(np.where(absent, 0.0, column.centre(values))[:, None])
            if column.missing:
                numbers.append(absent.astype(np.float64)[:, None])
        return np.concatenate(numbers, axis=1)

    @property
    def context_features(self) -> int:
        """How many numbers `context` makes of a row."""
        one_hot = [len(c.levels or ()) if c.kind == "category" else 0 for c in self.columns]
        sizes = [n if 0 < n <= ONE_HOT else 1 for n in one_hot]
        return sum(sizes) + sum(bool(column.missing) for column in self.columns)

    def align(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The columns of the schema in its order. Missing values are an error where they are not modelled."""
        if absent := [name for name in self.names if name not in frame.columns]:
            raise ValueError(f"the table must have the columns {self.names}, but {absent} are missing")
        frame = frame[self.names]
        _refuse_missing(frame[[column.name for column in self.columns if not column.missing]], fitted=True)
        return frame

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` makes the schema of again, as JSON has it."""
        columns = [column.to_dict() for column in self.columns]
        return {"table": self.table, "columns": columns, "labels": self.labels}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Schema:
        """The schema whose `to_dict` this is."""
        labels = state["labels"]
        if labels is not None:
            labels = tuple(tuple(label) if isinstance(label, list) else label for label in labels)
        return cls(tuple(Column.from_dict(column) for column in state["columns"]), state["table"], labels)


def as_frame(table: Any, names: list[str] | None = None) -> pd.DataFrame:
    """A pandas DataFrame of any table: pandas, polars, pyarrow, or numpy, whose columns are then x0, x1, ...

    Arguments:
        table: The table.
        names: The names of columns that have none.
    """
    kind = kind_of_table(table)
    if kind == "pandas":
        frame = table
    elif kind in ("polars", "pyarrow"):
        frame = _from_arrow(table if kind == "pyarrow" else table.to_arrow())
    else:
        array = np.asarray(table)
        if array.ndim == 1:
            raise ValueError(
                "the table must have two dimensions, got one. Reshape your data with reshape(-1, 1) for one column or "
                "reshape(1, -1) for one row"
            )
        if array.ndim != 2:
            raise ValueError(f"the table must have two dimensions, got {array.ndim}")
        names = [f"x{i}" for i in range(array.shape[1])] if names is None else names
        if array.shape[1] != len(names):
            raise ValueError(f"the table must have {len(names)} columns, got {array.shape[1]}")
        frame = pd.DataFrame(array, columns=names)
    if not all(isinstance(name, str) for name in frame.columns):
        frame = frame.set_axis([str(name) for name in frame.columns], axis=1)
    if repeated := sorted(set(frame.columns[frame.columns.duplicated()])):
        raise ValueError(f"columns must have names of their own, got several of {repeated}")
    if frame.shape[1] == 0:
        raise ValueError(f"the table must have at least one column, got 0 feature(s) (shape={frame.shape})")
    return frame.reset_index(drop=True)


def _from_arrow(table: Any) -> pd.DataFrame:
    """pandas' frame, in which integers and booleans with missing values do not become floats and objects."""
    import pyarrow as pa

    def nullable(column: Any) -> Any:
        is_number = pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)
        if not (column.null_count and is_number):
            return column.to_pandas()
        name = "boolean" if pa.types.is_boolean(column.type) else str(column.type).capitalize().replace("int", "Int")
        return column.to_pandas(types_mapper={column.type: pd.api.types.pandas_dtype(name)}.get)

    series = {str(i): nullable(column) for i, column in enumerate(table.columns)}
    return pd.DataFrame(series).set_axis([str(name) for name in table.column_names], axis=1)


def kind_of_table(table: Any) -> str:
    """`"pandas"`, `"polars"`, `"pyarrow"` or `"numpy"`, without importing what is not in use."""
    if isinstance(table, pd.DataFrame):
        return "pandas"
    module = type(table).__module__.split(".")[0]
    if type(table) in (str, bytes, dict):
        raise TypeError(
            f"the table must be of pandas, polars, pyarrow or numpy, got {type(table).__name__}: a file is read with "
            "elflow.io.read_table"
        )
    if module == "polars" and hasattr(table, "to_pandas") and hasattr(table, "columns"):
        return "polars"
    if module == "pyarrow" and hasattr(table, "to_pandas") and hasattr(table, "schema"):
        return "pyarrow"
    if module in ("numpy", "builtins", "torch", "scipy") or hasattr(table, "__array__"):
        return "numpy"
    raise TypeError(f"the table must be of pandas, polars, pyarrow or numpy, got {type(table).__name__}")


def from_frame(frame: pd.DataFrame, kind: str) -> Any:
    """A frame as another kind of table."""
    if kind == "polars":
        import polars as pl

        return pl.from_pandas(frame)
    if kind == "pyarrow":
        import pyarrow as pa

        return pa.Table.from_pandas(frame, preserve_index=False)
    return frame.to_numpy() if kind == "numpy" else frame


def fingerprint(frame: pd.DataFrame) -> str:
    """A digest of all values, their order and the columns' names."""
    digest = hashlib.sha256(repr([(str(n), str(t)) for n, t in frame.dtypes.items()]).encode())
    digest.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
    return digest.hexdigest()


def digest(*parts: Any) -> str:
    """One digest of tables, arrays and whatever has a text."""
    found = hashlib.sha256()
    for part in parts:
        part = fingerprint(part) if isinstance(part, pd.DataFrame) else part
        found.update(part.tobytes() if isinstance(part, np.ndarray) else str(part).encode())
    return found.hexdigest()


def _refuse_missing(frame: pd.DataFrame, fitted: bool = False) -> None:
    counts = frame.isna().sum()
    counts = counts[counts > 0]
    if len(counts):
        listed = ", ".join(f"{name!r} ({count})" for name, count in counts.items())
        remedy = "fill them in or drop them" + (
            "" if fitted else ", or model them with missing='model' (--missing model)"
        )
        raise ValueError(f"the table must not have missing values (NaN), got some in {listed}: {remedy}")
