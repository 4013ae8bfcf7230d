"""Memorization of training rows by a fitted density: `FlowDensity.memorization`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from elflow._checks import check_count
from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import N_DRAWS, encode_context, iter_samples, score_rows
from elflow.tabular._inputs import TableEstimator
from elflow.tabular._random import RandomState, as_generator
from elflow.tabular.frames import ContextTable, Table
from elflow.tabular.memorization._memorization import Memorization, find_memorization

__all__ = ["MemorizationQueries"]

MIN_ROWS = 20
"""Minimum number of training rows, of held-out rows, and of samples."""
MAX_SAMPLES = 2_000
"""Default number of samples, unless there are many rows to compare them with."""
MIN_SAMPLES = 200
MAX_WORK = 4e9
"""Number of samples times rows times columns above which the default number of samples is smaller: some seconds."""
MAX_SCORED = 5_000
"""Maximum number of training rows, and of held-out rows, whose log-densities are compared."""


class MemorizationQueries(TableEstimator):
    """Methods of a fitted density that find out whether it memorizes training rows."""

    def memorization(
        self,
        X_train: Table,
        X_holdout: Table,
        samples: Table | None = None,
        n_samples: int | None = None,
        context_train: ContextTable | None = None,
        context_holdout: ContextTable | None = None,
        random_state: RandomState = 0,
    ) -> Memorization:
        """Test whether samples are closer to the training rows than to other rows of the same distribution.

        Arguments:
            X_train: Rows that the density was trained on, `(N, columns)`.
            X_holdout: Rows that it was not trained on, such as the validation rows: see `row_origin`.
            samples: Samples to judge, of this density or of any other source; drawn from the density if left out.
            n_samples: Number of samples to draw: up to 2,000 by default.
            context_train: Context of the training rows, if the density was fitted with one.
            context_holdout: Context of the held-out rows.
            random_state: Seed or generator of the samples.

        Returns:
            The result: an estimate of the share of memorized samples with its standard error, distances to the closest
            training row, the share of samples that are identical to one, and the gap between the log-densities of
            training rows and of held-out rows.

        Example:
            >>> from elflow import FlowDensity
            >>> rng = np.random.default_rng(0)
            >>> table, others = rng.normal(size=(500, 2)), rng.normal(size=(500, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.memorization(table, others).verdict
            'none'
            >>> density.memorization(table, others, samples=table + 0.001 * rng.normal(size=(500, 2))).verdict
            'strong'
        """
        check_is_fitted(self, "model_")
        frames = [self._as_frame(table) for table in (X_train, X_holdout)]
        given = [(context_train, frames[0]), (context_holdout, frames[1])]
        contexts = [self._as_context(context, len(frame)) for context, frame in given]
        for name, frame in zip(("X_train", "X_holdout"), frames, strict=True):
            if len(frame) < MIN_ROWS:
                raise ValueError(f"{name} must have at least {MIN_ROWS} rows, got {len(frame)}")
        if samples is not None:
            drawn = self._as_frame(samples)
            if len(drawn) < MIN_ROWS:
                raise ValueError(f"samples must have at least {MIN_ROWS} rows, got {len(drawn)}")
        else:
            if n_samples is None:
                work = sum(map(len, frames)) * self.schema_.features
                n_samples = int(np.clip(MAX_WORK / work, MIN_SAMPLES, MAX_SAMPLES))
            drawn = self._draw_samples(check_count("n_samples", n_samples, MIN_ROWS), contexts, random_state)
        scores = [self._score_some(frame, context) for frame, context in zip(frames, contexts, strict=True)]
        return find_memorization(self.schema_, drawn, frames[0], frames[1], (scores[0], scores[1]))

    def _draw_samples(self, n: int, contexts: list[pd.DataFrame | None], random_state: RandomState) -> pd.DataFrame:
        """Samples as a frame; with a context, for random rows of all that are compared."""
        c, generator = None, as_generator(random_state)
        if contexts[0] is not None:
            # Contexts of both kinds of rows, in proportion: those of training rows only would favour training rows.
            both = pd.concat([context for context in contexts if context is not None], ignore_index=True)
            chosen = np.random.default_rng(generator.initial_seed()).integers(len(both), size=n)
            c = encode_context(self.context_schema_, both.iloc[chosen].reset_index(drop=True))
        z = np.concatenate(
            list(iter_samples(self.model_, n if c is None else 1, c, generator, self.schema_.sample_limits))
        )
        frame: pd.DataFrame = replace(self.schema_, table="pandas", labels=None).decode(z)
        return frame

    def _score_some(self, frame: pd.DataFrame, context: pd.DataFrame | None) -> FloatArray:
        """Log-densities of some rows, chosen at random."""
        some = np.sort(np.random.default_rng(0).permutation(len(frame))[:MAX_SCORED])
        part = None if context is None else context.iloc[some]
        return score_rows(self.model_, self._encode(frame.iloc[some], part), N_DRAWS)
