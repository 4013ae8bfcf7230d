"""Regions of rows for questions about any columns given any others, and their probabilities."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from elflow._checks import check_count
from elflow.flows.mixture import GaussianMixture
from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular._inputs import TableEstimator
from elflow.tabular._random import use_generator
from elflow.tabular.frames import ContextTable, Table, as_frame, from_frame
from elflow.tabular.integrals._particles import MAX_GROWTH, Scorer, weigh_points, weigh_until_precise
from elflow.tabular.integrals._proposals import Gaussians
from elflow.tabular.queries._given import Missing, build_regions, unknown_level_error
from elflow.tabular.queries._given_checks import check_conditions
from elflow.tabular.queries._info import Info, describe_info, make_info, warn_if_poor

__all__ = ["N_POINTS", "Given", "RegionQueries"]

Given: TypeAlias = "Mapping[Hashable, Any] | Table"
"""Conditions: one for each of some columns, or a table of values in which NaN stands for no condition."""
N_POINTS = 256
"""Default number of points of each row over which columns are integrated out."""
N_PROPOSAL_SAMPLES = 4096
"""Number of samples of a density without Gaussians to which the Gaussians of the proposal are fitted."""


class RegionQueries(TableEstimator):
    """Conversion of questions to regions of features, and integrals over them."""

    def _as_holed_frame(self, X: Table) -> pd.DataFrame:
        """Convert a table with missing cells or absent columns to a frame with all columns of the schema."""
        if self.schema_.table == "numpy" and isinstance(X, pd.DataFrame):
            X = X.to_numpy()  # the columns have no names
        frame = as_frame(X, self.schema_.names)
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
        if given is None or _is_names(given):
            raise ValueError("X must be a table with the values of the columns given, got None")
        count = 1 if isinstance(given, Mapping) else len(self._as_conditions(given))
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
            conditions = {self._given_name(key): value for key, value in given.items()}
            result = {}
            for key, value in conditions.items():
                is_set = isinstance(value, tuple | list | set | frozenset | Missing)
                if not is_set and (np.ndim(value) or isinstance(value, Mapping)):
                    raise TypeError(
                        f"given must have a value, a range (low, high), a list of values or elflow.MISSING for "
                        f"{key!r}, got {type(value).__name__}"
                    )
                if not is_set and pd.isna(value):
                    raise ValueError(
                        f"given must not hold {value!r} for {key!r}: leave the column out, or use elflow.MISSING for "
                        "missing values"
                    )
                self._check_level(key, value)
                result[key] = pd.Series([value] * len(frame), dtype=object)
        elif _is_names(given):
            names = [self._given_name(key) for key in cast(Sequence[Hashable], given)]
            result = {key: frame[key] for key in names}
        else:
            conditions_frame = self._as_conditions(cast(Table, given))
            if len(conditions_frame) != len(frame):
                raise ValueError(
                    f"given must have one row for each of the {len(frame)} rows of X, got {len(conditions_frame)}"
                )
            result = {key: conditions_frame[key] for key in conditions_frame.columns}
        if name in result:
            raise ValueError(f"given must not have a condition on the column {name!r} itself")
        check_conditions(self.schema_, result)
        return result

    def _given_name(self, key: Hashable) -> str:
        """Name of a column of `given`."""
        try:
            return self._column_name(key)
        except (TypeError, ValueError):
            raise ValueError(f"given must have only columns of {self.schema_.names}, got {key!r}") from None

    def _as_conditions(self, given: Table) -> pd.DataFrame:
        """A table of conditions as a frame with some of the columns of the schema."""
        try:
            frame = as_frame(given, self.schema_.names)
        except (TypeError, ValueError) as error:
            raise type(error)(f"given must be conditions by column or a table of them: {error}") from None
        if unknown := [key for key in frame.columns if key not in self.schema_.names]:
            raise ValueError(f"given must have only columns of {self.schema_.names}, got {unknown}")
        return frame

    def _check_level(self, name: str, value: Any) -> None:
        """Raise an error if the value of a condition is an unknown category."""
        column = self.schema_.column(name)
        is_set = isinstance(value, tuple | list | set | frozenset | Missing)
        if column.levels is not None and not is_set and value not in column.levels:
            raise unknown_level_error(column, value)

    @property
    def _has_uniform_cells(self) -> bool:
        """Whether points are uniform in their cells: with `dequantization="uniform"`."""
        return self.model_.noise is None and self.model_.cell_noise is None

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
        fixed: Mapping[str, pd.Series] | None = None,
        refine: bool = True,
    ) -> _Mass:
        """Log-density of conditions, with all other columns integrated out.

        Arguments:
            conditions: Conditions by column, `(N,)` each.
            count: Number of rows N.
            context: Encoded context of the rows, `(N, context)`.
            n_points: Number of points of each row.
            present: Names of columns that must not be missing.
            fixed: Conditions on further columns that are the same in all rows, `(1,)` each.
            refine: Whether rows have more points if their effective sample size is small.
        """
        check_count("n_points", n_points)
        gaussians, scorer = self._find_gaussians(context), Scorer(self.model_.flow)
        log_density, sizes = np.zeros(count), np.zeros(count)
        is_present = {name: np.ones(count, bool) for name in present}
        regions = build_regions(self.schema_, conditions, count, is_present, self._has_uniform_cells)
        if fixed:
            positions = [position for name in fixed for position in self.schema_.positions(name)]
            regions = regions.replace_features(build_regions(self.schema_, fixed, 1), positions)
        is_point = regions.is_fixed.all(1)
        points, others = is_point.nonzero()[:, 0], (~is_point).nonzero()[:, 0]
        if len(points):
            c = None if context is None else context[points]
            particles = weigh_points(scorer, gaussians, regions.take(points), c, 1)
            log_density[points.numpy()] = (particles.log_mass + regions.offset[points]).numpy()
            sizes[points.numpy()] = np.inf
        c = None if context is None else context[others]
        max_growth = MAX_GROWTH if refine else 1
        for index, particles in weigh_until_precise(scorer, gaussians, regions.take(others), c, n_points, max_growth):
            rows = others[index]
            log_density[rows.numpy()] = (particles.log_mass + regions.offset[rows]).numpy()
            sizes[rows.numpy()] = particles.effective_sample_size.numpy()
        return _Mass(log_density, sizes)

    def _weigh_column(
        self, name: str, conditions: Mapping[str, pd.Series], count: int, context: Tensor | None, n_points: int
    ) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
        """Weighted points of one column given conditions: z, states and weights `(N, K)`, and sample sizes `(N,)`."""
        check_count("n_points", n_points)
        column = self.schema_.column(name)
        *indicator, position = self.schema_.positions(name)
        is_present = {name: np.ones(count, bool)}
        regions = build_regions(self.schema_, conditions, count, is_present, self._has_uniform_cells)
        gaussians, scorer = self._find_gaussians(context), Scorer(self.model_.flow)
        groups = list(weigh_until_precise(scorer, gaussians, regions, context, n_points, main=position))
        size = max((particles.z.shape[1] for _, particles in groups), default=1)
        z, weights, sizes = np.zeros((count, size)), np.zeros((count, size)), np.zeros(count)
        states = np.full((count, size), column.position)
        for index, particles in groups:
            rows, used = index.numpy(), particles.z.shape[1]
            # Points of weight 0 fill the rows that have fewer points.
            z[rows] = particles.z[:, :1, position].numpy()
            z[rows, :used] = particles.z[..., position].numpy()
            weights[rows, :used] = particles.weights.numpy()
            sizes[rows] = particles.effective_sample_size.numpy()
            if indicator:
                flat = particles.z[..., indicator[0]].numpy().reshape(-1)
                states[rows, :used] = column.decode_states(flat).reshape(len(rows), used)
        warn_if_poor(make_info(sizes))
        return z, states, weights, sizes


def _is_names(given: object) -> bool:
    """Whether conditions are a sequence of names or numbers of columns."""
    if not isinstance(given, Sequence) or isinstance(given, str):
        return False
    return all(isinstance(key, str | int) for key in given)


class _Mass(NamedTuple):
    """Log-densities of rows with columns integrated out, and effective sample sizes, `(N,)` each."""

    log_density: FloatArray
    sizes: FloatArray
