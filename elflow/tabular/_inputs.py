"""Input of a density: tables and contexts as frames, and as encoded rows, block by block."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from elflow._checks import check_count
from elflow._forks import warn_if_forked
from elflow.flows.dequantization import Dequantized
from elflow.tabular._flow import encode_context, encode_rows
from elflow.tabular.frames import ContextTable, Table, as_frame, as_plain_array, first_row, number_rows_from, table_kind
from elflow.tabular.schema import Schema
from elflow.training import Rows

__all__ = ["TableEstimator"]

MAX_ENCODED_ROWS = 2**16
"""Maximum number of rows that are encoded at a time."""


class TableEstimator(BaseEstimator):
    """Estimator of tables that are checked against a schema and encoded by it."""

    missing: str
    schema_: Schema
    context_schema_: Schema | None
    model_: Dequantized

    def _as_frame(self, X: Table, fitting: bool = False) -> pd.DataFrame:
        """Convert X to a frame; scikit-learn checks matrices, and the number and the names of columns."""
        warn_if_forked()
        X = as_plain_array(X)
        if table_kind(X) == "numpy":
            finite = {"error": True, "model": "allow-nan"}[self.missing]
            X = validate_data(self, X, reset=fitting, dtype="numeric", ensure_all_finite=finite)
            return as_frame(X, None if fitting else self.schema_.names)
        frame = as_frame(X)
        if fitting:
            self.feature_names_in_ = np.array(frame.columns, dtype=object)
            self.n_features_in_ = frame.shape[1]
        elif self.schema_.table == "numpy":
            return as_frame(frame.to_numpy(), self.schema_.names)
        return frame

    def _as_context(
        self, context: ContextTable | None, count: int | None = None, fitting: bool = False
    ) -> pd.DataFrame | None:
        """Convert the context of `count` rows to a frame."""
        schema = None if fitting else self.context_schema_
        if not fitting and (context is None) != (schema is None):
            expected = (
                "None, because the model was fitted without one" if schema is None else f"a table of {schema.names}"
            )
            got = "None" if context is None else type(context).__name__
            raise ValueError(f"context must be {expected}, got {got}")
        if context is None:
            return None
        table: Any = as_plain_array(context)
        if isinstance(context, pd.Series):
            table = context.to_frame()
        elif table_kind(table) == "numpy" and np.ndim(table) == 1:
            table = np.asarray(table)[:, None]
        frame = as_frame(table, None if schema is None else schema.names)
        if count is not None and len(frame) != count:
            raise ValueError(f"context must have one row for each of the {count} rows of X, got {len(frame)}")
        return frame

    def _column_name(self, column: Hashable) -> str:
        """Name of a column in the schema, from its label, or from its number if the table has no names."""
        if self.schema_.table == "numpy" and not isinstance(column, str):
            number = check_count("column", column, least=0)
            if number >= len(self.schema_.names):
                raise ValueError(f"column must be below the number of columns {len(self.schema_.names)}, got {number}")
            return self.schema_.names[number]
        return self.schema_.column(str(column)).name

    def _encode(self, frame: pd.DataFrame, context: pd.DataFrame | None = None) -> Rows:
        """Encode a frame and its context as tensors."""
        # A block keeps the numbers of its rows in the table, which warnings name.
        start = int(frame.index[0]) if isinstance(frame.index, pd.RangeIndex) and len(frame) else 0
        with number_rows_from(first_row() + start):
            return encode_rows(self.schema_, frame, encode_context(self.context_schema_, context))

    def _iter_blocks(
        self, X: Table, context: ContextTable | None, size: int = MAX_ENCODED_ROWS
    ) -> Iterator[tuple[pd.DataFrame, pd.DataFrame | None]]:
        """Rows and their context, `size` rows at a time; one empty block if there are no rows."""
        frame = self._as_frame(X)
        context_frame = self._as_context(context, len(frame))
        if len(frame) <= size:
            yield frame, context_frame
            return
        for start in range(0, max(1, len(frame)), size):
            block = slice(start, start + size)
            yield frame.iloc[block], None if context_frame is None else context_frame.iloc[block]
