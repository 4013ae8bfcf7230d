"""Conditional distributions of the columns of a fitted density."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from elflow._checks import warn_user
from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import encode_context
from elflow.tabular._random import RandomState, as_generator, use_generator
from elflow.tabular.frames import ContextTable, Table
from elflow.tabular.queries._conditional import Conditional, condition, condition_by_points, pit_values
from elflow.tabular.queries._region_queries import N_POINTS, Given, RegionQueries

__all__ = ["MAX_CONDITIONAL_ROWS", "ConditionalQueries"]

MAX_CONDITIONAL_ROWS = 2**12
"""Maximum number of rows whose conditional distributions are computed at a time."""


class ConditionalQueries(RegionQueries):
    """Methods of a fitted density about the distribution of one column, given all others or some of them."""

    def conditional(
        self,
        X: Table | None,
        column: Hashable,
        context: ContextTable | None = None,
        given: Given | Sequence[Hashable] | None = None,
        n_points: int = N_POINTS,
    ) -> Conditional:
        """Conditional distribution of a column in each row, given all other columns or some of them, and the context.

        `conditional_cdf` and `conditional_quantile` use it a few thousand rows at a time. Here all rows are in memory
        at once, about 4 KB each.

        Arguments:
            X: The table, `(N, columns)`. Values of the column itself are ignored, and may be missing or left out. None
                if there are no other columns.
            column: Name of the column; its number if the table has no names.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            given: Names of the columns to condition on, whose values X has, or conditions: see `sample`. Columns that
                are not given are integrated out, as are NaN. All other columns if left out.
            n_points: Number of points of each row over which columns are integrated out.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.conditional(table[:3], column=1).quantile([0.5]).shape
            (3, 1)
        """
        check_is_fitted(self, "model_")
        if given is not None:
            frame = self._make_given_frame(X, given, context)
            return self._condition_on_some(frame, self._column_name(column), given, context, n_points)
        frame = self._as_frame(self._make_rows(self._column_name(column), context) if X is None else X)
        c = encode_context(self.context_schema_, self._as_context(context, len(frame)))
        return condition(self.model_, self.schema_, self._column_name(column), frame, c)

    def conditional_cdf(
        self,
        X: Table,
        column: Hashable,
        context: ContextTable | None = None,
        given: Given | Sequence[Hashable] | None = None,
        n_points: int = N_POINTS,
    ) -> FloatArray:
        """P(column <= its value | all other columns or some of them, context) in each row, `(N,)`.

        The density along the column is integrated numerically, for any flow and any kind of column. Columns that are
        not given are integrated out by importance sampling.

        Arguments:
            X: The table, `(N, columns)`.
            column: Name of the column; its number if the table has no names.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            given: Columns to condition on: see `conditional`. All other columns if left out.
            n_points: Number of points of each row over which columns are integrated out.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.conditional_cdf(table[:5], column=1).shape
            (5,)
        """
        check_is_fitted(self, "model_")
        name = self._column_name(column)
        if given is not None:
            frame = self._as_holed_frame(X)
            values = self._take_values(frame, name)
            return self._condition_on_some(frame, name, given, context, n_points).cdf(values)
        parts = []
        for frame, conditional in self._iter_conditionals(X, name, context):
            values = frame[name] if name in frame else pd.Series(np.nan, frame.index)
            if n_missing := int(values.isna().sum()):
                raise ValueError(f"X must have values of {name!r}, got {n_missing} missing values")
            parts.append(conditional.cdf(values))
        return np.concatenate(parts)

    def conditional_quantile(
        self,
        X: Table | None,
        column: Hashable,
        q: ArrayLike,
        context: ContextTable | None = None,
        given: Given | Sequence[Hashable] | None = None,
        n_points: int = N_POINTS,
    ) -> NDArray[Any]:
        """Quantiles of a column in each row, given all other columns or some of them, and the context.

        Quantiles of categories without an order depend on the order in which the schema has them, and give a
        warning. The probabilities of categories are differences of `conditional_cdf` at consecutive
        categories.

        Arguments:
            X: The table, `(N, columns)`. Values of the column itself are ignored, and may be missing or left out. None
                if there are no other columns: quantiles are then given the context only.
            column: Name of the column; its number if the table has no names.
            q: A probability in (0, 1), or K of them for all rows, `(K,)`, or for each row, `(N, K)`.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            given: Columns to condition on: see `conditional`. All other columns if left out.
            n_points: Number of points of each row over which columns are integrated out.

        Returns:
            Values of the column, `(N,)` for one probability and `(N, K)` for several.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> low, high = density.conditional_quantile(table[:5], 1, [0.05, 0.95]).T
            >>> bool((low < high).all())
            True
            >>> density.conditional_quantile(table[:2], 1, [[0.1], [0.9]]).shape  # one probability for each row
            (2, 1)
        """
        check_is_fitted(self, "model_")
        name, probabilities = self._check_quantile_arguments(column, q)
        if not self.schema_.column(name).has_order:
            warn_user(
                f"column {name!r} has categories without an order: its quantiles depend on the arbitrary order of the "
                "categories in the schema; conditional_proba has their probabilities"
            )
        if X is None and given is None:
            X = self._make_rows(name, context)
        frame = self._as_frame(X) if X is not None and given is None else self._make_given_frame(X, given, context)
        if probabilities.ndim == 2 and len(probabilities) != len(frame):
            raise ValueError(f"q must have one row for each of the {len(frame)} rows of X, got {len(probabilities)}")
        of_rows = np.broadcast_to(probabilities, (len(frame), probabilities.shape[-1] if probabilities.ndim else 1))
        if given is not None:
            values = self._condition_on_some(frame, name, given, context, n_points).quantile(of_rows)
            return values[:, 0] if probabilities.ndim == 0 else values
        starts = range(0, max(1, len(frame)), MAX_CONDITIONAL_ROWS)
        assert X is not None
        blocks = zip(starts, self._iter_conditionals(X, name, context), strict=True)
        values = np.concatenate(
            [conditional.quantile(of_rows[start : start + len(rows)]) for start, (rows, conditional) in blocks]
        )
        return values[:, 0] if probabilities.ndim == 0 else values

    def _condition_on_some(
        self,
        frame: pd.DataFrame,
        name: str,
        given: Given | Sequence[Hashable],
        context: ContextTable | None,
        n_points: int,
    ) -> Conditional:
        """Conditional distribution of a column given some others, with the rest integrated out."""
        conditions = self._resolve_given(frame, name, given)
        c = encode_context(self.context_schema_, self._as_context(context, len(frame)))
        points = self._weigh_column(name, conditions, len(frame), c, n_points)
        return condition_by_points(self.schema_.column(name), *points)

    def _make_rows(self, name: str, context: ContextTable | None) -> Table:
        """Rows of a density of one column, with any value: one row, or one for each row of the context."""
        if others := [other for other in self.schema_.names if other != name]:
            raise ValueError(f"X must be a table of the columns conditioned on, {others}, got None")
        context_frame = self._as_context(context)
        count = 1 if context_frame is None else len(context_frame)
        values = self.schema_.column(name).decode(np.zeros(count)).to_frame(name)
        return values.to_numpy() if self.schema_.table == "numpy" else values

    def pit_values(
        self,
        X: Table,
        columns: Sequence[Hashable] | None = None,
        context: ContextTable | None = None,
        random_state: RandomState = None,
    ) -> pd.DataFrame:
        """Probability integral transform of columns, each given all others: uniform if the density is right.

        Discrete values of all columns are represented by random points of their cells. The transform of a discrete
        column is then uniform as well, unlike `conditional_cdf`.

        Arguments:
            X: The table, `(N, columns)`.
            columns: Names of the columns; their numbers if the table has no names. All columns if left out.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            random_state: Seed or generator of the random points.

        Returns:
            Values in (0, 1), one row for each row of X and one column for each name; NaN where a value is missing.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.pit_values(table[:5], columns=[1], random_state=0).shape
            (5, 1)
        """
        check_is_fitted(self, "model_")
        names = self.schema_.names if columns is None else [self._column_name(column) for column in columns]
        generator = as_generator(random_state)
        blocks = []
        for frame, context_frame in self._iter_blocks(X, context, MAX_CONDITIONAL_ROWS):
            rows = self._encode(frame, context_frame)
            with use_generator(generator), torch.no_grad():
                z = self.model_.dequantize(rows.x, rows.context)[0]
            block = pd.DataFrame(np.nan, frame.index, names)
            for name in names:
                is_present = frame[name].notna().to_numpy()
                index = torch.from_numpy(np.flatnonzero(is_present))
                c = None if rows.context is None else rows.context[index]
                block.loc[is_present, name] = pit_values(self.model_, self.schema_, name, z[index], c)
            blocks.append(block)
        return pd.concat(blocks, ignore_index=True)

    def _check_quantile_arguments(self, column: Hashable, q: ArrayLike) -> tuple[str, FloatArray]:
        """Name of the column, and the probabilities as an array; swapped arguments have an error that says so."""
        order = "the order of arguments is conditional_quantile(X, column, q)"
        try:
            probabilities = np.asarray(q, np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"q must be one or several probabilities in (0, 1), got {q!r}: {order}") from None
        is_number = isinstance(column, float) and str(column) not in self.schema_.names
        if is_number or not isinstance(column, Hashable):
            raise TypeError(f"column must be the name or the number of a column, got {column!r}: {order}")
        name = self._column_name(column)
        if probabilities.ndim > 2 or not ((probabilities > 0) & (probabilities < 1)).all():
            raise ValueError(f"q must be one or several probabilities in (0, 1), got {q!r}")
        return name, probabilities

    def _iter_conditionals(
        self, X: Table, name: str, context: ContextTable | None
    ) -> Iterator[tuple[pd.DataFrame, Conditional]]:
        """Blocks of rows, and the conditional distribution of a column in these rows."""
        for frame, context_frame in self._iter_blocks(X, context, MAX_CONDITIONAL_ROWS):
            c = encode_context(self.context_schema_, context_frame)
            yield frame, condition(self.model_, self.schema_, name, frame, c)
