"""Samples of rows, with or without conditions on columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from elflow._checks import check_count
from elflow._forks import warn_if_forked
from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import SAMPLE_BLOCK, encode_context, iter_samples
from elflow.tabular._random import RandomState, as_generator
from elflow.tabular.frames import ContextTable
from elflow.tabular.integrals._particles import Scorer, draw_points
from elflow.tabular.queries import _summaries
from elflow.tabular.queries._given import Missing, build_regions, is_unknown
from elflow.tabular.queries._given_checks import check_samples
from elflow.tabular.queries._info import POOR_SAMPLE_SIZE, Info, make_info, warn_if_poor
from elflow.tabular.queries._region_queries import Given, RegionQueries

__all__ = ["SampleQueries"]

MAX_DRAWS = SAMPLE_BLOCK // 8
"""Maximum number of rows that are drawn at a time."""


class SampleQueries(RegionQueries):
    """Methods of a fitted density that sample rows."""

    def sample(
        self,
        n: int = 1,
        context: ContextTable | None = None,
        random_state: RandomState = None,
        given: Given | None = None,
    ) -> Any:
        """Sample new rows, in a table of the same library, columns and dtypes as the fitted table.

        Rows with numbers very far beyond the fitted ones are drawn again: see `Schema.sample_limits`.

        Arguments:
            n: Number of rows; with a context or a table of conditions, number of consecutive rows for each of its rows.
            context: Context of the rows, if the density was fitted with one.
            random_state: Seed, NumPy `RandomState`, or `torch.Generator`, which is advanced.
            given: Conditions on columns, by name: a value, a range `(low, high)` with both ends included, either of
                which may be None, a list or a set of values, or `elflow.MISSING`. Or a table with a row of conditions
                each; columns that it lacks, and NaN, are drawn. See `iter_given_samples` for how they are drawn.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.sample(3, random_state=1).shape
            (3, 2)
            >>> rows = density.sample(3, given={0: 0.5, 1: (0, None)}, random_state=1)
            >>> bool((rows[:, 0] == 0.5).all()), bool((rows[:, 1] >= 0).all())
            (True, True)
        """
        if given is not None:
            return self._collect_given_samples(n, given, context, random_state)
        blocks = list(self._iter_encoded_samples(n, context, random_state))
        return self.schema_.decode(np.concatenate(blocks or [np.zeros((0, self.schema_.features))]))

    def iter_samples(
        self,
        n: int = 1,
        context: ContextTable | None = None,
        random_state: RandomState = None,
        block: int = SAMPLE_BLOCK,
    ) -> Iterator[Any]:
        """Sample the rows of `sample` block by block, with memory that does not depend on their number.

        The rows do not depend on the size of the blocks. A context that exceeds the memory can be passed `SAMPLE_BLOCK`
        rows at a time, with one `torch.Generator` as the `random_state` of all calls: the rows are those of one call
        with the whole context.

        Arguments:
            n: Number of rows; with a context, number of consecutive rows for each row of the context.
            context: Context of the rows, if the density was fitted with one.
            random_state: Seed, NumPy `RandomState`, or `torch.Generator`, which is advanced.
            block: Maximum number of rows in a block, which is at most `SAMPLE_BLOCK`.

        Example:
            >>> import elflow
            >>> rng = np.random.default_rng(0)
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(rng.normal(size=(200, 2)))
            >>> blocks = list(density.iter_samples(100, random_state=0, block=40))
            >>> [len(block) for block in blocks]
            [40, 40, 20]
            >>> bool((np.concatenate(blocks) == density.sample(100, random_state=0)).all())
            True
        """
        check_count("block", block)
        for z in self._iter_encoded_samples(n, context, random_state):
            for start in range(0, len(z), block):
                yield self.schema_.decode(z[start : start + block])

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
            raise ValueError(
                f"context must have one row for each of the {count} rows of given, got {len(context_frame)}"
            )
        resolved = self._resolve_given(conditions, None, given)
        if not isinstance(given, Mapping):
            for name in resolved:
                for value in (
                    resolved[name][~is_unknown(resolved[name])].drop_duplicates() if _is_plain(resolved[name]) else []
                ):
                    self._check_level(name, value)
        c = encode_context(self.context_schema_, context_frame)
        generator, gaussians, scorer = as_generator(random_state), self._find_gaussians(c), Scorer(self.model_.flow)
        per_block = max(1, MAX_DRAWS // n)
        for start in range(0, count, per_block):
            rows = slice(start, min(start + per_block, count))
            part = {name: series.iloc[rows].reset_index(drop=True) for name, series in resolved.items()}
            regions = build_regions(self.schema_, part, rows.stop - rows.start)
            done = 0
            while done < n:  # n may exceed the memory: one row of conditions at a time then
                size = min(n - done, MAX_DRAWS)
                draws = draw_points(scorer, gaussians, regions, None if c is None else c[rows], size, generator)
                done += size
                frame = self._decode_given(_replace_far(draws.z, self.schema_.sample_limits, generator), part)
                check_samples(self.schema_, frame, part, size)
                yield frame, make_info(draws.effective_sample_size.numpy())

    def _iter_encoded_samples(
        self, n: int, context: ContextTable | None, random_state: RandomState
    ) -> Iterator[FloatArray]:
        """Samples as features, `(rows, features)` in each block."""
        check_is_fitted(self, "model_")
        check_count("n", n)
        warn_if_forked()
        c = encode_context(self.context_schema_, self._as_context(context))
        return iter_samples(self.model_, n, c, as_generator(random_state), self.schema_.sample_limits)

    def _collect_given_samples(
        self, n: int, given: Given, context: ContextTable | None, random_state: RandomState
    ) -> Any:
        """All rows of `iter_given_samples`, in a table of the library of the fitted table."""
        blocks = list(self.iter_given_samples(n, given, context, random_state))
        info = make_info(np.concatenate([part.effective_sample_size for _, part in blocks] or [np.zeros(0)]))
        warn_if_poor(info, max(POOR_SAMPLE_SIZE, min(n, MAX_DRAWS) / 2))
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


def _replace_far(z: Tensor, limits: tuple[FloatArray, FloatArray], generator: torch.Generator) -> Tensor:
    """Replace draws beyond limits, `(N, n, features)`, by others of the same row, if there are any."""
    low, high = (torch.from_numpy(limit) for limit in limits)
    is_far = ((z < low) | (z > high)).any(-1)
    for row in is_far.any(1).nonzero()[:, 0]:
        near = (~is_far[row]).nonzero()[:, 0]
        if len(near):
            chosen = near[torch.randint(len(near), (int(is_far[row].sum()),), generator=generator)]
            z[row, is_far[row]] = z[row, chosen]
    return z


def _is_value(condition: object) -> bool:
    return not isinstance(condition, tuple | list | set | frozenset | Missing)


def _is_plain(series: pd.Series) -> bool:
    """Whether all conditions of a column are values."""
    return series.dtype != object or all(_is_value(value) for value in series)
