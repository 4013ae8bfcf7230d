"""Questions about any columns given any others: imputation, conditional samples and densities of subsets of columns."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from elflow._checks import check_choice, check_count, warn_user
from elflow.flows.mixture import GaussianMixture
from elflow.tabular import _summaries
from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import SAMPLE_BLOCK, encode_context
from elflow.tabular._given import Missing, build_regions, is_unknown
from elflow.tabular._inputs import TableEstimator
from elflow.tabular._particles import Scorer, draw_points, weigh_points
from elflow.tabular._proposals import Gaussians
from elflow.tabular._random import RandomState, as_generator, use_generator
from elflow.tabular._regions import Regions
from elflow.tabular.frames import ContextTable, Table, as_frame, from_frame

__all__ = ["N_POINTS", "Given", "Info", "Marginal", "PoorSampleWarning", "SubsetQueries"]

Given: TypeAlias = "Mapping[Hashable, Any] | Table"
"""Conditions: one for each of some columns, or a table of values in which NaN stands for no condition."""

N_POINTS = 256
"""Default number of points of each row over which columns are integrated out."""
POOR_SAMPLE_SIZE = 5.0
"""Effective sample size below which an answer has a warning."""
N_PROPOSAL_SAMPLES = 4096
"""Number of samples of a density without Gaussians to which the Gaussians of the proposal are fitted."""
BLOCK_ROWS = 2**12
"""Number of rows whose conditions are encoded at a time."""
METHODS = ["sample", "median", "mean", "mode"]
"""Methods of imputation."""


class PoorSampleWarning(UserWarning):
    """An answer by importance sampling has a small effective sample size."""


class Info(NamedTuple):
    """How an answer was computed, and how precise it is."""

    method: str
    """`"exact"` if nothing had to be integrated by sampling, or `"importance sampling"`."""
    effective_sample_size: FloatArray
    """Number of independent points that would be as precise, for each row, `(N,)`; infinite where it is exact."""


class SubsetQueries(TableEstimator):
    """Methods of a fitted density about any columns given any others."""

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
                `"mean"` (which minimises squared errors) or `"mode"`. Categories without an order have the mode.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            random_state: Seed or generator.
            return_info: Whether to return an `Info` as well.

        Returns:
            A table with the columns and dtypes of the fitted table, or a list of them if `n_draws` is above 1.

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
        check_choice("method", method, METHODS)
        if method != "sample" and n_draws > 1:
            raise ValueError(f"n_draws must be 1 with method={method!r}, which is the same for all draws, got {n_draws}")
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
        info = _make_info(np.concatenate(sizes))
        _warn_if_poor(info)
        results = [self._finish(pd.concat(parts, ignore_index=True), info) for parts in tables]
        answer = results[0] if n_draws == 1 else results
        return (answer, info) if return_info else answer

    def marginal(self, columns: Sequence[Hashable]) -> Marginal:
        """Density of some of the columns, with all others integrated out.

        Arguments:
            columns: Names of the columns; their numbers if the table has no names.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 3))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.marginal([0, 2]).score_samples(table[:5, [0, 2]]).shape
            (5,)
        """
        check_is_fitted(self, "model_")
        if isinstance(columns, str | bytes) or not isinstance(columns, Sequence) or not columns:
            raise TypeError(f"columns must be a list of names or numbers of columns, got {columns!r}")
        names = [self._column_name(column) for column in columns]
        if repeated := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"columns must be unique, got {repeated[0]!r} more than once")
        return Marginal(self, names)

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
        info = _make_info(np.minimum(above.sizes, below.sizes))
        _warn_if_poor(info)
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
        info = _make_info(np.stack([part.sizes for part in parts], 1)[np.arange(len(frame)), best])
        _warn_if_poor(info)
        table = pd.DataFrame(probabilities, columns=pd.Index(list(levels)))
        return (table, info) if return_info else table

    # Internal steps

    def _as_holed_frame(self, X: Table) -> pd.DataFrame:
        """Convert a table with missing cells or absent columns to a frame with all columns of the schema."""
        frame = as_frame(X, self.schema_.names if self.schema_.table == "numpy" else None)
        known = [name for name in self.schema_.names if name in frame.columns]
        if not known:
            raise ValueError(f"X must have at least one of the columns {self.schema_.names}, got {list(frame.columns)}")
        frame = frame[known]
        for name in self.schema_.names:
            if name not in frame.columns:
                frame = pd.concat([frame, pd.Series(np.nan, frame.index, name=name)], axis=1)
        return frame[self.schema_.names]

    def _take_values(self, frame: pd.DataFrame, name: str) -> pd.Series:
        """Values of a column, none of which may be missing."""
        if n_missing := int(frame[name].isna().sum()):
            raise ValueError(f"X must have values of {name!r}, got {n_missing} missing values")
        return frame[name]

    def _make_given_frame(
        self, X: Table | None, given: Given | Sequence[Hashable] | None, context: ContextTable | None
    ) -> pd.DataFrame:
        """Rows of X, or rows without values if there is no X: as many as there are conditions."""
        if X is not None:
            return self._as_holed_frame(X)
        if given is None or (isinstance(given, list) and not isinstance(given[0], Sequence | np.ndarray)):
            raise ValueError("X must be a table with the values of the columns given, got None")
        count = 1 if isinstance(given, Mapping) else len(as_frame(given, self.schema_.names))
        context_frame = self._as_context(context)
        count = count if context_frame is None else len(context_frame)
        return pd.DataFrame(np.nan, range(count), self.schema_.names)

    def _resolve_given(
        self, frame: pd.DataFrame, name: str | None, given: Given | Sequence[Hashable] | None
    ) -> dict[str, pd.Series]:
        """Conditions by column, `(N,)` each: see `build_regions`.

        Arguments:
            frame: The rows X.
            name: Name of the column in question, on which there is no condition.
            given: Names of columns, whose values are in the frame, or conditions; None for all columns.
        """
        if given is None:
            return {other: frame[other] for other in self.schema_.names if other != name}
        if isinstance(given, Mapping):
            conditions = {self._column_name(key): value for key, value in given.items()}
            result = {}
            for key, value in conditions.items():
                if not isinstance(value, tuple | list | set | frozenset | Missing) and pd.isna(value):
                    raise ValueError(
                        f"given must not hold {value!r} for {key!r}: leave the column out, or use elflow.MISSING for "
                        "missing values"
                    )
                self._check_level(key, value)
                series = pd.Series([value] * len(frame), dtype=object)
                result[key] = series
        elif isinstance(given, Sequence) and not isinstance(given, str) and all(np.ndim(key) == 0 for key in given):
            names = [self._column_name(key) for key in given]
            result = {key: frame[key] for key in names}
        else:
            conditions_frame = self._as_conditions(given)
            if len(conditions_frame) != len(frame):
                raise ValueError(
                    f"given must have one row for each of the {len(frame)} rows of X, got {len(conditions_frame)}"
                )
            result = {key: conditions_frame[key] for key in conditions_frame.columns}
        if name in result:
            raise ValueError(f"given must not have a condition on the column {name!r} itself")
        return result

    def _as_conditions(self, given: Table) -> pd.DataFrame:
        """A table of conditions as a frame with some of the columns of the schema."""
        frame = as_frame(given, self.schema_.names)
        if unknown := [key for key in frame.columns if key not in self.schema_.names]:
            raise ValueError(f"given must have only columns of {self.schema_.names}, got {unknown}")
        return frame

    def _check_level(self, name: str, value: Any) -> None:
        """Raise an error if the value of a condition is an unknown category."""
        levels = self.schema_.column(name).levels
        if levels is None or isinstance(value, tuple | list | set | frozenset | Missing) or value in levels:
            return
        raise ValueError(f"given must have one of the {len(levels)} known values of {name!r}, got {value!r}")

    def _find_gaussians(self, context: Tensor | None) -> Gaussians:
        """Gaussians of the density, or Gaussians that are fitted to its samples."""
        gaussians = Gaussians.from_flow(self.model_.flow)
        if gaussians is not None:
            return gaussians
        cached: tuple[Any, Gaussians] | None = self.__dict__.get("_proposal_cache")
        if cached is not None and cached[0] is self.model_:
            return cached[1]
        c = None
        if context is not None:
            c = context[torch.linspace(0, len(context) - 1, N_PROPOSAL_SAMPLES).long()]
        with torch.no_grad(), use_generator(torch.Generator().manual_seed(0)):
            z = self.model_(c).sample((N_PROPOSAL_SAMPLES,) if c is None else ())
        mixture = GaussianMixture(self.schema_.features, 0 if c is None else c.shape[1]).double()
        mixture.initialize(z, c)
        found = Gaussians.from_flow(mixture)
        assert found is not None
        if c is None:  # contexts differ between calls
            self._proposal_cache = self.model_, found
        return found

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
        regions = build_regions(self.schema_, {name: part[name] for name in part}, len(part), is_hole)
        scorer, gaussians = Scorer(self.model_.flow), self._find_gaussians(c)
        if method == "sample":
            draws = draw_points(scorer, gaussians, regions, c, n_draws, generator)
            sizes[rows] = draws.effective_sample_size.numpy()
            values = [_summaries.decode_frame(self.schema_, draws.z[:, k].numpy()) for k in range(n_draws)]
        else:
            particles = weigh_points(scorer, gaussians, regions, c, N_POINTS // 2)
            sizes[rows] = particles.effective_sample_size.numpy()
            values = [_summaries.summarize(self.schema_, particles, method)]
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

    def _finish(self, frame: pd.DataFrame, info: Info) -> Any:
        """A frame as a table of the library of the fitted table; pandas tables carry diagnostics in `attrs`."""
        if self.schema_.labels is not None:
            frame.columns = pd.Index(list(self.schema_.labels))
        table = from_frame(frame, self.schema_.table)
        if isinstance(table, pd.DataFrame):
            table.attrs["elflow"] = describe_info(info)
        return table

    def _weigh(
        self,
        conditions: Mapping[str, pd.Series],
        count: int,
        context: Tensor | None,
        n_points: int,
        present: Sequence[str] = (),
    ) -> _Mass:
        """Log-density of conditions, with all other columns integrated out."""
        check_count("n_points", n_points)
        gaussians, scorer = self._find_gaussians(context), Scorer(self.model_.flow)
        log_density, sizes = np.zeros(count), np.zeros(count)
        is_present = {name: np.ones(count, bool) for name in present}
        regions = build_regions(self.schema_, conditions, count, is_present)
        is_point = regions.is_fixed.all(1)
        for index in (is_point.nonzero()[:, 0], (~is_point).nonzero()[:, 0]):
            if not len(index):
                continue
            exact = bool(is_point[index[0]])
            c = None if context is None else context[index]
            particles = weigh_points(scorer, gaussians, regions.take(index), c, 1 if exact else n_points)
            log_density[index] = (particles.log_mass + regions.offset[index]).numpy()
            sizes[index] = np.inf if exact else particles.effective_sample_size.numpy()
        return _Mass(log_density, sizes)

    def iter_given_samples(
        self,
        n: int,
        given: Given,
        context: ContextTable | None = None,
        random_state: RandomState = None,
    ) -> Iterator[tuple[pd.DataFrame, Info]]:
        """Sample the rows of `sample` given conditions block by block, as pandas tables, each with an `Info`.

        Points are drawn from the Gaussians of the density, conditioned on the columns that are known, weighted by the
        density, and selected by weight: sampling importance resampling, repeated for rows whose effective sample size
        is small. Nothing is rejected, so that the time is bounded for unlikely conditions, too.

        Arguments:
            n: Number of rows for each row of conditions, and of the context.
            given: The conditions: see `sample`.
            context: Context of the rows, a table with one row for each row of conditions.
            random_state: Seed, NumPy `RandomState`, or `torch.Generator`, which is advanced.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> ((rows, info),) = density.iter_given_samples(50, {0: 1.0}, random_state=0)
            >>> rows.shape, bool(info.effective_sample_size[0] > 50)
            ((50, 2), True)
        """
        check_is_fitted(self, "model_")
        check_count("n", n)
        context_frame = self._as_context(context)
        if isinstance(given, Mapping):
            conditions = pd.DataFrame(np.nan, range(1 if context_frame is None else len(context_frame)), ["_"])
        else:
            conditions = self._as_conditions(given)
        count = len(conditions)
        if context_frame is not None and len(context_frame) != count:
            raise ValueError(f"context must have one row for each of the {count} rows of given, got {len(context_frame)}")
        resolved = self._resolve_given(conditions, None, given)
        if not isinstance(given, Mapping):
            for name in resolved:
                for value in resolved[name][~is_unknown(resolved[name])].drop_duplicates() if _is_plain(resolved[name]) else []:
                    self._check_level(name, value)
        c = encode_context(self.context_schema_, context_frame)
        generator, gaussians, scorer = as_generator(random_state), self._find_gaussians(c), Scorer(self.model_.flow)
        per_block = max(1, SAMPLE_BLOCK // 8 // n)
        for start in range(0, count, per_block):
            rows = slice(start, min(start + per_block, count))
            part = {name: series.iloc[rows].reset_index(drop=True) for name, series in resolved.items()}
            regions = build_regions(self.schema_, part, rows.stop - rows.start)
            done = 0
            while done < n:  # n may exceed the memory: one row of conditions at a time then
                size = min(n - done, SAMPLE_BLOCK // 8)
                draws = draw_points(scorer, gaussians, regions, None if c is None else c[rows], size, generator)
                done += size
                yield self._decode_given(draws.z, part), _make_info(draws.effective_sample_size.numpy())

    def _collect_given_samples(
        self, n: int, given: Given, context: ContextTable | None, random_state: RandomState
    ) -> Any:
        """All rows of `iter_given_samples`, in a table of the library of the fitted table."""
        blocks = list(self.iter_given_samples(n, given, context, random_state))
        info = _make_info(np.concatenate([part.effective_sample_size for _, part in blocks] or [np.zeros(0)]))
        _warn_if_poor(info, max(POOR_SAMPLE_SIZE, min(n, SAMPLE_BLOCK // 8) / 2))
        empty = _summaries.decode_frame(self.schema_, np.zeros((0, self.schema_.features)))
        return self._finish(pd.concat([frame for frame, _ in blocks] or [empty], ignore_index=True), info)

    def _decode_given(self, z: Tensor, conditions: Mapping[str, pd.Series]) -> pd.DataFrame:
        """Rows of draws `(N, n, features)`, with the values that are conditions, not rounded by the encoding."""
        frame = _summaries.decode_frame(self.schema_, z.reshape(-1, z.shape[-1]).numpy())
        index = np.arange(len(z)).repeat(z.shape[1])
        for name, series in conditions.items():
            is_value = ~is_unknown(series) & np.array([_is_value(value) for value in series], dtype=bool)
            if is_value.any():
                mask = is_value[index]
                column = frame[name].astype(object)
                column[mask] = series.astype(object).to_numpy()[index][mask]
                frame[name] = column
        return _summaries.cast_frame(self.schema_, frame)


class _Mass(NamedTuple):
    """Log-densities of rows with columns integrated out, and effective sample sizes, `(N,)` each."""

    log_density: FloatArray
    sizes: FloatArray


class Marginal:
    """Density of some of the columns of a fitted density: see `FlowDensity.marginal`.

    Arguments:
        density: The fitted density.
        columns: Names of the columns.
    """

    def __init__(self, density: SubsetQueries, columns: list[str]) -> None:
        self.density = density
        self.columns = columns

    def __repr__(self) -> str:
        return f"Marginal({self.columns})"

    def score_samples(
        self,
        X: Table,
        context: ContextTable | None = None,
        n_points: int = N_POINTS,
        return_info: bool = False,
    ) -> Any:
        """Log-density of the columns in each row, in nats, `(N,)`.

        Arguments:
            X: A table with the columns, `(N, columns)`; a matrix has these columns in their order.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            n_points: Number of points over which the other columns are integrated.
            return_info: Whether to return an `Info` as well.
        """
        frame = as_frame(X, self.columns)
        if absent := [name for name in self.columns if name not in frame.columns]:
            raise ValueError(f"X must have the columns {self.columns}, got none named {absent}")
        conditions = {name: self.density._take_values(frame, name) for name in self.columns}
        c = encode_context(self.density.context_schema_, self.density._as_context(context, len(frame)))
        mass = self.density._weigh(conditions, len(frame), c, n_points)
        info = _make_info(mass.sizes)
        _warn_if_poor(info)
        return (mass.log_density, info) if return_info else mass.log_density

    def score(self, X: Table, context: ContextTable | None = None) -> float:
        """Mean log-density of the columns, in nats."""
        return float(self.score_samples(X, context).mean())


def _is_value(condition: object) -> bool:
    return not isinstance(condition, tuple | list | set | frozenset | Missing)


def _is_plain(series: pd.Series) -> bool:
    """Whether all conditions of a column are values."""
    return series.dtype != object or all(_is_value(value) for value in series)


def _make_info(sizes: FloatArray) -> Info:
    return Info("exact" if np.isinf(sizes).all() else "importance sampling", sizes)


def describe_info(info: Info) -> dict[str, Any]:
    """Diagnostics as plain values: the method, and the smallest and the median effective sample size."""
    if info.method == "exact" or not len(info.effective_sample_size):
        return {"method": info.method}
    sizes = info.effective_sample_size
    return {
        "method": info.method,
        "min_effective_sample_size": round(float(sizes.min()), 1),
        "median_effective_sample_size": round(float(np.median(sizes)), 1),
    }


def _warn_if_poor(info: Info, least: float = POOR_SAMPLE_SIZE) -> None:
    """Warn about rows whose effective sample size is small."""
    is_poor = info.effective_sample_size < least
    if n_poor := int(is_poor.sum()):
        first = int(np.flatnonzero(is_poor)[0])
        warn_user(
            f"{n_poor:,} of {len(is_poor):,} rows have an effective sample size below {least:g}, first row {first} with "
            f"{info.effective_sample_size[first]:.1f}: their conditions are very unlikely under the density, and the "
            "answers for them are imprecise",
            PoorSampleWarning,
        )
