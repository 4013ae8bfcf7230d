"""Densities of some columns, given others or not, with the rest integrated out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import encode_context
from elflow.tabular.frames import ContextTable, Table, as_frame
from elflow.tabular.queries._info import make_info, warn_if_poor
from elflow.tabular.queries._region_queries import N_POINTS, Given, RegionQueries

__all__ = ["Marginal", "SubsetQueries"]


class SubsetQueries(RegionQueries):
    """Methods of a fitted density about any columns given any others."""

    def marginal(self, columns: Sequence[Hashable], given: Mapping[Hashable, Any] | None = None) -> Marginal:
        """Density of some of the columns, given conditions on others or not, with the rest integrated out.

        Its samples are those columns of `sample`.

        Arguments:
            columns: Names of the columns; their numbers if the table has no names.
            given: Conditions on other columns, the same for all rows: see `sample`. The density is then given these
                conditions, and given that none of the columns is missing. An empty dictionary has the latter only.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 3))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.marginal([0, 2]).score_samples(table[:5, [0, 2]]).shape
            (5,)
            >>> density.marginal([0, 2], given={1: (0, None)}).score_samples(table[:5, [0, 2]]).shape
            (5,)
        """
        check_is_fitted(self, "model_")
        if isinstance(columns, str | bytes) or not isinstance(columns, Sequence) or not columns:
            raise TypeError(f"columns must be a list of names or numbers of columns, got {columns!r}")
        names = [self._column_name(column) for column in columns]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"columns must be unique, got {repeated[0]!r} more than once")
        if given is None:
            return Marginal(self, names)
        if not isinstance(given, Mapping):
            raise TypeError(f"given must be a dictionary of conditions by column, got {type(given).__name__}")
        if both := [name for name in map(self._given_name, given) if name in names]:
            raise ValueError(f"given must not have a condition on {both[0]!r}, one of the columns")
        return Marginal(self, names, given)

    def conditional_density(
        self,
        X: Table,
        column: Hashable,
        context: ContextTable | None = None,
        given: Given | Sequence[Hashable] | None = None,
        n_points: int = N_POINTS,
        return_info: bool = False,
    ) -> Any:
        """Density of a column at its value in each row, given all other columns or some of them, `(N,)`.

        The density is per unit for a continuous column, and a probability for any other column. It is the ratio of two
        densities, in each of which the columns that are not given are integrated out.

        Arguments:
            X: The table with the values of the column, and of the columns given.
            column: Name of the column; its number if the table has no names.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            given: Names of the columns to condition on, whose values X has, or conditions: see `sample`. All other
                columns if left out. Other columns are integrated out.
            n_points: Number of points of each row over which columns are integrated out.
            return_info: Whether to return an `Info` as well.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 3))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.conditional_density(table[:5], column=1, given=[0]).shape  # column 2 is integrated out
            (5,)
        """
        check_is_fitted(self, "model_")
        name = self._column_name(column)
        frame = self._as_holed_frame(X)
        values = self._take_values(frame, name)
        conditions = self._resolve_given(frame, name, given)
        c = encode_context(self.context_schema_, self._as_context(context, len(frame)))
        below = self._weigh(conditions, len(frame), c, n_points, present=[name])
        above = self._weigh({**conditions, name: values}, len(frame), c, n_points)
        log_density = above.log_density - below.log_density
        info = make_info(np.minimum(above.sizes, below.sizes))
        warn_if_poor(info)
        return (np.exp(log_density), info) if return_info else np.exp(log_density)

    def conditional_proba(
        self,
        X: Table | None,
        column: Hashable,
        context: ContextTable | None = None,
        given: Given | Sequence[Hashable] | None = None,
        n_points: int = N_POINTS,
        return_info: bool = False,
    ) -> Any:
        """Probabilities of the values of a column of categories or booleans, given all other columns or some of them.

        Arguments:
            X: The table with the values of the columns given; those of the column itself are ignored. None if `given`
                has conditions.
            column: Name of the column; its number if the table has no names.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            given: Names of the columns to condition on, whose values X has, or conditions: see `sample`. All other
                columns if left out. Other columns are integrated out.
            n_points: Number of points of each row.
            return_info: Whether to return an `Info` as well.

        Returns:
            A pandas table with one column for each category, `(N, categories)`; each row sums to 1.

        Example:
            >>> import elflow
            >>> rng = np.random.default_rng(0)
            >>> table = pd.DataFrame({"size": rng.normal(size=300), "kind": rng.choice(["a", "b"], size=300)})
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> sorted(density.conditional_proba(table.head(2), "kind").columns)
            ['a', 'b']
        """
        check_is_fitted(self, "model_")
        name = self._column_name(column)
        levels = self.schema_.column(name).levels
        if levels is None:
            raise ValueError(f"column must have categories, got {name!r}: use conditional_cdf or conditional_density")
        frame = self._make_given_frame(X, given, context)
        conditions = self._resolve_given(frame, name, given)
        c = encode_context(self.context_schema_, self._as_context(context, len(frame)))
        # One integral for each category: rare categories are as precise as frequent ones.
        parts = [
            self._weigh({**conditions, name: pd.Series([level] * len(frame), dtype=object)}, len(frame), c, n_points)
            for level in levels
        ]
        log_density = np.stack([part.log_density for part in parts], 1)
        log_density = np.nan_to_num(log_density, nan=-np.inf, posinf=-np.inf)
        probabilities = np.exp(log_density - logsumexp(log_density, 1, keepdims=True))
        best = log_density.argmax(1)
        info = make_info(np.stack([part.sizes for part in parts], 1)[np.arange(len(frame)), best])
        warn_if_poor(info)
        table = pd.DataFrame(probabilities, columns=pd.Index(list(levels)))
        return (table, info) if return_info else table


class Marginal:
    """Density of some of the columns of a fitted density: see `FlowDensity.marginal`.

    Arguments:
        density: The fitted density.
        columns: Names of the columns.
        given: Conditions on other columns; None for none.
    """

    def __init__(self, density: RegionQueries, columns: list[str], given: Mapping[Hashable, Any] | None = None) -> None:
        self.density = density
        self.columns = columns
        self.given = given

    def __repr__(self) -> str:
        return f"Marginal({self.columns})" if self.given is None else f"Marginal({self.columns}, given={self.given})"

    def score_samples(
        self,
        X: Table,
        context: ContextTable | None = None,
        n_points: int = N_POINTS,
        return_info: bool = False,
        refine: bool = True,
    ) -> Any:
        """Log-density of the columns in each row, in nats, `(N,)`.

        Arguments:
            X: A table with the columns, `(N, columns)`; a matrix has these columns in their order.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            n_points: Number of points over which the other columns are integrated.
            return_info: Whether to return an `Info` as well.
            refine: Whether rows whose points have a small effective sample size are integrated again over more points,
                and warned about. Otherwise the time is bounded.
        """
        frame = as_frame(X, self.columns)
        if absent := [name for name in self.columns if name not in frame.columns]:
            raise ValueError(f"X must have the columns {self.columns}, got none named {absent}")
        conditions = {name: self.density._take_values(frame, name) for name in self.columns}
        c = encode_context(self.density.context_schema_, self.density._as_context(context, len(frame)))
        if self.given is None:
            mass = self.density._weigh(conditions, len(frame), c, n_points, refine=refine)
            log_density, sizes = mass.log_density, mass.sizes
        else:
            log_density, sizes = self._score_given(conditions, len(frame), c, n_points, refine)
        info = make_info(sizes)
        if refine:
            warn_if_poor(info)
        return (log_density, info) if return_info else log_density

    def _score_given(
        self, conditions: dict[str, pd.Series], count: int, context: Tensor | None, n_points: int, refine: bool
    ) -> tuple[FloatArray, FloatArray]:
        """Log-densities given the conditions, and effective sample sizes, `(N,)` each."""
        assert self.given is not None
        fixed = self.density._resolve_given(pd.DataFrame(index=range(1)), None, self.given)
        above = self.density._weigh(conditions, count, context, n_points, fixed=fixed, refine=refine)
        # The conditions are the same in all rows: only the context may differ.
        n_below = 1 if context is None else count
        fixed = {name: values.iloc[np.zeros(n_below, int)].reset_index(drop=True) for name, values in fixed.items()}
        below = self.density._weigh(fixed, n_below, context, max(n_points, N_POINTS), present=self.columns)
        return above.log_density - below.log_density, np.minimum(above.sizes, below.sizes)

    def score(self, X: Table, context: ContextTable | None = None) -> float:
        """Mean log-density of the columns, in nats."""
        return float(self.score_samples(X, context).mean())
