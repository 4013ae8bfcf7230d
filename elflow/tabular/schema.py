"""All columns of a table, and the map between its rows and the numbers that a flow models."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from elflow._checks import check_choice, warn_user
from elflow.flows.dequantization import Cells
from elflow.flows.groups import FAR
from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular._text import shorten
from elflow.tabular.columns import Column
from elflow.tabular.columns._arrangement import arrange_categories
from elflow.tabular.columns._identifiers import is_identifier
from elflow.tabular.columns._kinds import Declaration, check_objects, describe_dates_as_text, holds_dates_as_text
from elflow.tabular.columns._steps import Steps
from elflow.tabular.columns._survey import Survey
from elflow.tabular.columns._values import Values, as_values, find_missing
from elflow.tabular.columns._warnings import check_no_missing, warn_about_bounds, warn_about_identifiers
from elflow.tabular.columns._warps import Warp
from elflow.tabular.frames import TABLE_KINDS, Table, as_frame, first_row, from_frame, table_kind

__all__ = ["Schema"]

MAX_ONE_HOT = 32
"""Maximum number of categories of a context column that is one-hot encoded."""
MAX_COLUMNS_SHOWN = 16
"""Maximum number of columns in the text of a schema."""
MAX_LEVELS = 32
"""Maximum number of cells of a column of numbers whose frequencies are compared with those of samples after a fit."""
REACH, MIN_REACH = 2.0, 5.0
"""Distance of samples from the fitted numbers z, and smallest reach to both sides, in standard deviations."""
MAX_NAME_SHOWN, MAX_VALUES_SHOWN = 30, 50
"""Maximum number of characters of a column's name, and of its values, in the text of a schema."""


@dataclass(frozen=True, repr=False)
class Schema:
    """The columns of a table, and the library of the table.

    Example:
        >>> frame = pd.DataFrame({"size": [1.5, 2.25, 0.75, 3.125], "count": [1, 2, 2, 5]})
        >>> schema = Schema.fit(frame)
        >>> schema
        Schema of 2 columns
        column  kind        dtype    values
        size    continuous  float64  at least 0
        count   integer     int64    1 to 5
        >>> schema.encode(frame).exact.shape
        (4, 1)
    """

    columns: tuple[Column, ...]
    table: str
    """Library of the table: see `elflow.tabular.table_kind`."""
    labels: tuple[Hashable, ...] | None = None
    """Column labels of a pandas table, if not all of them are strings."""
    ignored: tuple[str, ...] = ()
    """Names of the columns of the fitted table that are left out, since they identify rows."""

    @classmethod
    def fit(
        cls,
        table: Table,
        declared: Mapping[Any, Declaration] | None = None,
        missing: str = "error",
        infer_bounds: bool = True,
        survey: Survey | None = None,
    ) -> Schema:
        """Infer the columns of a table.

        Columns of strings most of which are unique (identifiers, free text) are left out, with a warning, unless they
        are declared.

        Arguments:
            table: The table, `(N, columns)`.
            declared: Kinds or bounds of some columns, by name: see `Column.fit`.
            missing: `"error"` rejects missing values, `"model"` models them.
            infer_bounds: Whether bounds of continuous columns are inferred where none are declared.
            survey: What is known about a larger table, if this one has only some of its rows.
        """
        frame = as_frame(table)
        for name in frame.columns:
            check_objects(name, frame[name])
        survey = Survey.of_frame(frame) if survey is None else survey
        declared = {str(name): declaration for name, declaration in (declared or {}).items()}
        if unknown := [name for name in declared if name not in frame.columns]:
            raise ValueError(f"columns must refer to columns of the table ({list(frame.columns)}), got {unknown}")
        free = [name for name in frame.columns if name not in declared]
        ignored = [name for name in free if is_identifier(frame[name], survey.counts.get(name))]
        dates = [name for name in free if holds_dates_as_text(frame[name])]
        for name in dates:
            warn_user(describe_dates_as_text(frame[name], is_left_out=name in ignored))
        if texts := [name for name in ignored if name not in dates]:
            warn_about_identifiers(frame[texts])
        frame = frame.drop(columns=ignored)
        if frame.shape[1] == 0:
            raise ValueError(f"the table must have a column that does not identify rows, got only {ignored}")
        if missing == "error":
            check_no_missing(survey.count_missing(list(frame.columns)))
        if empty := [name for name in frame.columns if frame[name].isna().all()]:
            raise ValueError(
                f"each column must have at least one value, got only missing values in {empty}: drop these columns"
            )
        columns = tuple(
            Column.fit(frame[name], declared.get(name), missing == "model", infer_bounds, survey.counts.get(name))
            for name in frame.columns
        )
        if infer_bounds:  # not for a context, in which categories have no cells
            columns = arrange_categories(columns, frame, survey.counts)
        return cls(columns, "pandas", ignored=tuple(ignored)).with_labels_of(table)

    def recount(self, frame: pd.DataFrame) -> Schema:
        """The same schema with the frequencies of values in some of the fitted rows."""
        return self.with_counts(self.count(frame))

    def count(self, frame: pd.DataFrame) -> list[IntArray]:
        """Numbers of values of each column: see `Column.count`. Those of several blocks of rows add up."""
        return [column.count(frame[column.name]) for column in self.columns]

    def with_counts(self, counts: Sequence[IntArray]) -> Schema:
        """The same schema with these numbers of values: see `count`."""
        pairs = zip(self.columns, counts, strict=True)
        return replace(self, columns=tuple(column.with_counts(numbers) for column, numbers in pairs))

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns."""
        return [column.name for column in self.columns]

    @property
    def features(self) -> int:
        """Number of features per row that a flow models: one per column, two if it has atoms or missing values."""
        return len(self._is_exact())

    @cached_property
    def exact(self) -> list[int]:
        """Positions of the features that are exact numbers in every row."""
        return [i for i, is_exact in enumerate(self._is_exact()) if is_exact]

    @cached_property
    def cells(self) -> list[int]:
        """Positions of the features that are cells in some rows."""
        return [i for i, is_exact in enumerate(self._is_exact()) if not is_exact]

    @property
    def numeric(self) -> list[int]:
        """Positions of the features z of columns of numbers and datetimes, whose order and distances have a meaning."""
        kinds = ("continuous", "integer", "datetime")
        return [self.positions(column.name)[-1] for column in self.columns if column.kind in kinds]

    @property
    def sample_limits(self) -> tuple[FloatArray, FloatArray]:
        """Smallest and largest z of each feature in samples, `(features,)` each.

        Numbers more than about two standard deviations beyond all fitted values have a negligible probability, of
        which the data say nothing. Where logarithms are modelled they could be as large as all other rows together.
        """
        low, high = np.full(self.features, -np.inf), np.full(self.features, np.inf)
        for column in self.columns:
            first, last = column.fitted_range
            if isinstance(column.map, Warp) and first < last:
                position = self.positions(column.name)[-1]
                low[position], high[position] = min(first - REACH, -MIN_REACH), max(last + REACH, MIN_REACH)
        return low, high

    @property
    def category_ends(self) -> dict[int, FloatArray]:
        """Ends between the cells of categories, by the position of their feature, for columns without missing values.

        Example:
            >>> Schema.fit(pd.DataFrame({"kind": ["a", "b", "a", "b"], "size": [0.1, 0.7, 0.3, 0.5]})).category_ends
            {0: array([0.])}
        """
        return {
            self.positions(column.name)[-1]: ndtri(column.map.cumulative[1:-1])
            for column in self.columns
            if isinstance(column.map, Steps) and not column.shares and len(column.levels or ()) > 1
        }

    @property
    def state_ends(self) -> dict[int, FloatArray]:
        """Ends between the cells of the states of columns with atoms or missing values, by the position of the feature.

        Example:
            >>> frame = pd.DataFrame({"size": [0.1, np.nan, 0.3, 0.5]})
            >>> list(Schema.fit(frame, missing="model").state_ends)
            [0]
        """
        states = [column for column in self.columns if column.shares]
        return {self.positions(column.name)[0]: ndtri(np.cumsum(column.shares)[:-1]) for column in states}

    @property
    def level_ends(self) -> dict[int, FloatArray]:
        """Ends between the cells of numbers with few values, by the position of the feature, without missing values.

        Example:
            >>> list(Schema.fit(pd.DataFrame({"size": [0.13, 0.7, 0.31, 0.5], "doors": [3, 5, 5, 3]})).level_ends)
            [1]
        """
        return {
            self.positions(column.name)[-1]: ndtri(column.map.cumulative[1:-1])
            for column in self.columns
            if isinstance(column.map, Steps)
            and not column.shares
            and column.levels is None
            and 3 <= len(column.map.cumulative) <= MAX_LEVELS + 1
        }

    @property
    def cell_ends(self) -> dict[int, FloatArray]:
        """Ends between the cells of categories, states, and few numbers, by the position of the feature.

        Example:
            >>> frame = pd.DataFrame({"size": [0.1, np.nan, 0.3, 0.5], "kind": ["a", "b", "a", "b"]})
            >>> list(Schema.fit(frame, missing="model").cell_ends)
            [2, 0]
        """
        return self.category_ends | self.state_ends | self.level_ends

    @property
    def value_gates(self) -> dict[int, tuple[int, float, float] | None]:
        """Gates of the features z that may be standardised: the feature of their state, and the interval of values.

        These are those of numbers and datetimes. A column without atoms and missing values has no gate.

        Example:
            >>> Schema.fit(pd.DataFrame({"size": [0.1, 0.7, 0.3, 0.5], "kind": ["a", "b", "a", "b"]})).value_gates
            {0: None}
        """
        gates: dict[int, tuple[int, float, float] | None] = {}
        categories, numeric = self.category_ends, set(self.numeric)
        for column in self.columns:
            *state, z = self.positions(column.name)
            if z in numeric and z not in categories:
                ends = ndtri(np.clip(np.cumsum([0.0, *column.shares]), 0.0, 1.0)).clip(-FAR, FAR)
                gates[z] = (state[0], *ends[column.position : column.position + 2].tolist()) if state else None
        return gates

    @property
    def context_features(self) -> int:
        """Number of features per row that `encode_context` returns."""
        return sum(self._one_hot_size(column) or 1 for column in self.columns) + sum(
            bool(column.missing) for column in self.columns
        )

    def _is_exact(self) -> list[bool]:
        """Whether each feature is an exact number in every row."""
        is_exact = []
        for column in self.columns:
            is_exact += [False, False] if column.shares else [column.is_exact]
        return is_exact

    def _one_hot_size(self, column: Column) -> int:
        """Number of categories of a context column if it is one-hot encoded, 0 otherwise."""
        levels = column.levels if column.kind == "category" and column.levels is not None else ()
        return len(levels) if len(levels) <= MAX_ONE_HOT else 0

    def with_labels_of(self, table: Table) -> Schema:
        """The same schema for tables of the same library as `table`, with its column labels."""
        labels = table.columns.tolist() if isinstance(table, pd.DataFrame) else []
        labels = [label for label in labels if str(label) not in self.ignored]
        has_strings_only = all(isinstance(label, str) for label in labels)
        return replace(self, table=table_kind(table), labels=None if has_strings_only else tuple(labels))

    def column(self, name: str) -> Column:
        """The column of that name."""
        for column in self.columns:
            if column.name == name:
                return column
        raise ValueError(f"column must be one of {self.names}, got {name!r}")

    def positions(self, name: str) -> list[int]:
        """Positions of the features of a column: first the indicator of its states if there is one, then z."""
        start = 0
        for column in self.columns:
            size = 1 + bool(column.shares)
            if column.name == name:
                return list(range(start, start + size))
            start += size
        raise ValueError(f"column must be one of {self.names}, got {name!r}")

    def encode(self, table: Table) -> Cells:
        """Encode rows as the numbers and cells that a flow models.

        Arguments:
            table: The table, `(N, columns)`; columns are matched by name if the table has names.

        Returns:
            Arrays of N rows: see `elflow.flows.dequantization.Cells`.
        """
        frame = as_frame(table, self.names)
        lows, widths, offset = [], [], np.zeros(len(frame))
        for column, values in zip(self.columns, self._select(frame), strict=True):
            states = column.encode_states(values)
            low, width, log_volume = column.encode(values, states)
            if column.shares:  # the cells of the indicator
                shares = np.array(column.shares)
                lows.append((np.cumsum(shares) - shares)[states])
                widths.append(shares[states])
            lows.append(low)
            widths.append(width)
            offset += log_volume
            if (is_outside := np.isneginf(log_volume)).any():
                warn_about_bounds(column, frame[column.name][is_outside], first_row())
        low, width = (np.stack(parts, axis=1) if parts else np.zeros((len(frame), 0)) for parts in (lows, widths))
        return Cells(low[:, self.exact], low[:, self.cells], width[:, self.cells], offset)

    def decode(self, z: FloatArray) -> Any:
        """Decode numbers `(N, features)` to a table of the library, the column labels and the dtypes of the schema."""
        series, features = [], iter(z.T)
        for column in self.columns:
            states = column.decode_states(next(features)) if column.shares else None
            series.append(column.decode(next(features), states))
        frame = pd.concat(series, axis=1)
        if self.labels is not None:
            frame.columns = pd.Index(list(self.labels))
        return from_frame(frame, self.table)

    def encode_context(self, table: Table) -> FloatArray:
        """Encode rows as context of a flow, `(N, context_features)`, without noise.

        Columns of few categories are one-hot encoded; an unknown category is all zeros.
        """
        parts: list[FloatArray] = []
        for column, values in zip(self.columns, self._select(as_frame(table, self.names)), strict=True):
            is_missing = find_missing(values)
            if n_levels := self._one_hot_size(column):
                codes = column.to_integers(values[~is_missing])
                one_hot = np.zeros((len(values), n_levels))
                is_known = codes < n_levels
                one_hot[np.flatnonzero(~is_missing)[is_known], codes[is_known]] = 1.0
                parts.append(one_hot)
            else:
                parts.append(np.where(is_missing, 0.0, column.encode_midpoints(values))[:, None])
            if column.missing:
                parts.append(is_missing.astype(np.float64)[:, None])
        return np.concatenate(parts, axis=1)

    def context_positions(self, name: str) -> tuple[list[int], int]:
        """Positions of a column in the result of `encode_context`, and how many of them, the first, are one-hot."""
        start = 0
        for column in self.columns:
            n_levels = self._one_hot_size(column)
            size = (n_levels or 1) + bool(column.missing)
            if column.name == name:
                return list(range(start, start + size)), n_levels
            start += size
        raise ValueError(f"column must be one of {self.names}, got {name!r}")

    def align(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Select the columns of the schema, in its order, and parse datetimes that are strings.

        Missing values must be absent where they are not modelled.
        """
        values = self._select(frame)
        frame = frame[self.names]
        times = [i for i, column in enumerate(self.columns) if column.kind == "datetime"]
        frame = frame.copy(deep=False) if times else frame
        for i in times:  # not by `assign`, whose own arguments may be names of columns
            frame[self.columns[i].name] = values[i]
        return frame

    def _select(self, frame: pd.DataFrame) -> list[Values]:
        """The values of each column of the schema, as `align` selects them; numbers are arrays."""
        if absent := [name for name in self.names if name not in frame.columns]:
            raise ValueError(f"the table must have the columns {self.names}, got none named {absent}")
        found = [as_values(frame[name]) for name in self.names]
        for column, values in zip(self.columns, found, strict=True):
            check_objects(column.name, values)
        pairs = zip(self.columns, found, strict=True)
        n_missing = {column.name: int(find_missing(values).sum()) for column, values in pairs if not column.missing}
        check_no_missing(n_missing, fitted=True)
        for i, column in enumerate(self.columns):
            if column.kind == "datetime":
                found[i] = column.parse_times(frame[column.name])
        return found

    def describe(self) -> list[dict[str, Any]]:
        """Description of each column: name, kind, dtype, values in words, and whether values may be missing.

        Example:
            >>> schema = Schema.fit(pd.DataFrame({"count": [3, 4, 4, 9]}))
            >>> schema.describe()
            [{'name': 'count', 'kind': 'integer', 'dtype': 'int64', 'values': '3 to 9', 'missing': False}]
        """
        return [column.describe() for column in self.columns]

    def __repr__(self) -> str:
        rows = [("column", "kind", "dtype", "values")]
        for column in self.columns[:MAX_COLUMNS_SHOWN]:
            facts = column.describe()
            name, values = shorten(facts["name"], MAX_NAME_SHOWN), shorten(facts["values"], MAX_VALUES_SHOWN)
            rows.append((name, facts["kind"], facts["dtype"], values))
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
        n_columns = f"{len(self.columns)} column" + ("" if len(self.columns) == 1 else "s")
        lines.insert(0, f"Schema of {n_columns}")
        if self.ignored:
            lines.append(shorten(f"left out: {', '.join(self.ignored)}", MAX_NAME_SHOWN + MAX_VALUES_SHOWN))
        if (n_more := len(self.columns) - MAX_COLUMNS_SHOWN) > 0:
            lines.append(f"and {n_more} more")
        return "\n".join(line.rstrip() for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """Configuration for JSON; `from_dict` reads it."""
        columns = [column.to_dict() for column in self.columns]
        return {"table": self.table, "columns": columns, "labels": self.labels, "ignored": list(self.ignored)}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Schema:
        """Build a schema from the output of `to_dict`."""
        labels = state["labels"]
        if labels is not None:  # JSON has no tuples, which are the labels of a pandas MultiIndex
            labels = tuple(tuple(label) if isinstance(label, list) else label for label in labels)
        columns = tuple(Column.from_dict(column) for column in state["columns"])
        check_choice("table", state["table"], TABLE_KINDS)
        names = [column.name for column in columns]
        if not names or len(set(names)) < len(names) or (labels is not None and len(labels) != len(names)):
            raise ValueError(f"a schema must have columns with different names, one for each label, got {names}")
        return cls(columns, state["table"], labels, tuple(state["ignored"]))
