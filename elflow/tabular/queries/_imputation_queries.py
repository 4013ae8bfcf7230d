"""Imputation of missing cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted

from elflow._checks import check_choice, check_count
from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import encode_context
from elflow.tabular._random import RandomState, as_generator
from elflow.tabular.frames import ContextTable, Table
from elflow.tabular.integrals._particles import Scorer, draw_points, weigh_until_precise
from elflow.tabular.queries import _summaries
from elflow.tabular.queries._given import build_regions, is_unknown
from elflow.tabular.queries._info import make_info, warn_if_poor
from elflow.tabular.queries._region_queries import RegionQueries

__all__ = ["IMPUTATION_METHODS", "ImputationQueries"]

N_SUMMARY_POINTS = 128
"""Number of points of each row from which medians, means and modes are computed."""
BLOCK_ROWS = 2**12
"""Number of rows whose conditions are encoded at a time."""
IMPUTATION_METHODS = ["sample", "median", "mean", "mode"]
"""Methods of imputation."""


class ImputationQueries(RegionQueries):
    """Methods of a fitted density that fill missing cells."""

    def impute(
        self,
        X: Table,
        n_draws: int = 1,
        method: str = "sample",
        context: ContextTable | None = None,
        random_state: RandomState = None,
        return_info: bool = False,
    ) -> Any:
        """Fill missing cells from p(missing cells | observed cells of the row).

        A missing cell is NaN, None or NaT, or belongs to a column that X lacks. All missing cells of a row are drawn
        together. The filled value of a column with modelled missing values (`missing="model"`) is never missing.

        Arguments:
            X: The table, `(N, columns)`.
            n_draws: Number of tables to draw (multiple imputation).
            method: `"sample"` draws values; the others fill each cell by a summary of its own distribution: `"median"`,
                `"mean"` (for small squared errors; values beyond the 1% and 99% quantiles count as these) or `"mode"`.
                Categories without an order have the mode.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            random_state: Seed or generator.
            return_info: Whether to return an `Info` as well.

        Returns:
            A table with the columns and dtypes of the fitted table, or a list of them if `n_draws` is above 1. A table
            of pandas has the index of X.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> holes = table[:3].copy()
            >>> holes[0, 1] = np.nan
            >>> filled = density.impute(holes, random_state=0)
            >>> bool((filled[1:] == table[1:3]).all()), bool(np.isfinite(filled).all())
            (True, True)
        """
        check_is_fitted(self, "model_")
        check_count("n_draws", n_draws)
        check_choice("method", method, IMPUTATION_METHODS)
        if method != "sample" and n_draws > 1:
            raise ValueError(
                f"n_draws must be 1 with method={method!r}, which is the same for all draws, got {n_draws}"
            )
        frame = self._as_holed_frame(X)
        context_frame = self._as_context(context, len(frame))
        generator = as_generator(random_state)
        tables: list[list[pd.DataFrame]] = [[] for _ in range(n_draws)]
        sizes = []
        for start in range(0, max(1, len(frame)), BLOCK_ROWS):
            block = frame.iloc[start : start + BLOCK_ROWS].reset_index(drop=True)
            c = None if context_frame is None else context_frame.iloc[start : start + BLOCK_ROWS]
            filled, size = self._impute_block(block, c, n_draws, method, generator)
            for parts, part in zip(tables, filled, strict=True):
                parts.append(part)
            sizes.append(size)
        info = make_info(np.concatenate(sizes))
        warn_if_poor(info)
        results = [self._finish(pd.concat(parts, ignore_index=True), info) for parts in tables]
        if isinstance(X, pd.DataFrame):  # so that filled columns can be assigned to the given table
            results = [table.set_axis(X.index) if isinstance(table, pd.DataFrame) else table for table in results]
        answer = results[0] if n_draws == 1 else results
        return (answer, info) if return_info else answer

    def _impute_block(
        self, frame: pd.DataFrame, context: pd.DataFrame | None, n_draws: int, method: str, generator: torch.Generator
    ) -> tuple[list[pd.DataFrame], FloatArray]:
        """Imputed frames of a block of rows, and effective sample sizes."""
        unknown = {name: is_unknown(frame[name]) for name in self.schema_.names}
        rows = np.flatnonzero(np.logical_or.reduce(list(unknown.values()))) if unknown else np.zeros(0, int)
        sizes = np.full(len(frame), np.inf)
        if not len(rows):
            return [self._cast(frame)] * n_draws, sizes
        part = frame.iloc[rows].reset_index(drop=True)
        is_hole = {name: mask[rows] for name, mask in unknown.items()}
        c = encode_context(self.context_schema_, None if context is None else context.iloc[rows])
        conditions = {name: part[name] for name in part}
        regions = build_regions(self.schema_, conditions, len(part), is_hole, self._has_uniform_cells)
        scorer, gaussians = Scorer(self.model_.flow), self._find_gaussians(c)
        if method == "sample":
            draws = draw_points(scorer, gaussians, regions, c, n_draws, generator)
            sizes[rows] = draws.effective_sample_size.numpy()
            values = [_summaries.decode_frame(self.schema_, draws.z[:, k].numpy()) for k in range(n_draws)]
        else:
            parts, order = [], []
            for index, particles in weigh_until_precise(scorer, gaussians, regions, c, N_SUMMARY_POINTS):
                sizes[rows[index.numpy()]] = particles.effective_sample_size.numpy()
                parts.append(_summaries.summarize(self.schema_, particles, method))
                order.append(index.numpy())
            inverse = np.argsort(np.concatenate(order))
            values = [pd.concat(parts, ignore_index=True).iloc[inverse].reset_index(drop=True)]
        return [self._fill(frame, rows, is_hole, part) for part in values], sizes

    def _fill(
        self, frame: pd.DataFrame, rows: np.ndarray, is_hole: Mapping[str, np.ndarray], values: pd.DataFrame
    ) -> pd.DataFrame:
        """The frame with values in its holes, in the dtypes of the fitted table."""
        filled = {}
        for name in self.schema_.names:
            series = frame[name].astype(object)
            holes = rows[is_hole[name]]
            series.iloc[holes] = values[name].astype(object).to_numpy()[is_hole[name]]
            filled[name] = series
        return self._cast(pd.DataFrame(filled))

    def _cast(self, frame: pd.DataFrame) -> pd.DataFrame:
        """The frame in the dtypes of the fitted table."""
        return _summaries.cast_frame(self.schema_, frame)
