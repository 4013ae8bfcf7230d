"""`FlowDensity`: a density of a table, as a scikit-learn estimator."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from elflow._checks import check_count
from elflow._model_file import write_model
from elflow.flows.dequantization import Dequantized
from elflow.tabular._conditional import Conditional
from elflow.tabular._config import get_config, min_config_numbers, set_config
from elflow.tabular._defaults import check_parameters, default_options, default_recipe, default_whiten
from elflow.tabular._flow import (
    build,
    conditional,
    context_numbers,
    held_out_rows,
    inverse_residual,
    numbers,
    samples,
    scores,
)
from elflow.tabular.schema import Schema, as_frame, digest, fingerprint, kind_of_table
from elflow.training import Rows, fit

__all__ = ["FlowDensity"]

LEAST_ROWS = 5
DRAWS = 16
"""From how many points of each cell its probability is estimated."""
BLOCK = 2**16
"""How many rows become numbers at a time."""
CONDITIONAL_BLOCK = 2**12
"""How many rows are conditioned on at a time."""
RANKED = 5_000
"""How many training rows are scored in the end, at most, to rank others among."""
PERCENTILES = 1_000
"""How many quantiles of their scores are kept."""


class FlowDensity(DensityMixin, BaseEstimator):
    """The density of a table, by a flow.

    Tables may be of pandas, polars, pyarrow or numpy; columns of floats, integers, booleans, categories, strings or
    datetimes. Log-densities are in the units of the data: a continuous column contributes a density per unit, any other
    column a probability, of which the estimate is a lower bound in expectation (dequantisation).

    Arguments:
        flow: `"elf"`, or any flow of zuko by its name in small letters: `"nsf"`, `"maf"`, `"naf"`, ...
        flow_options: Arguments of the flow. What is left out follows from the size of the table.
        columns: For columns by name, what they are: one of `"continuous"`, `"integer"`, `"boolean"`, `"category"` and
            `"datetime"`, or bounds `(low, high)` of a continuous column, either of which may be None. Of the others it
            is found out.
        missing: `"error"` refuses missing values; `"model"` makes them values of their own, which are sampled as well.
        dequantization: How points of discrete values' cells are drawn in training: `"uniform"` or `"variational"`.
        whiten: Whether linear correlations of continuous columns are taken out before the flow; None for where rows are
            few.
        schedule: What becomes of the learning rate: see `elflow.training.Recipe`.
        learning_rate: The learning rate at the beginning; None, as below, for what fits the table.
        weight_decay: How much the weights are held back: more of it makes densities smoother and calmer.
        batch_size: Rows in a batch.
        max_steps: The greatest number of steps.
        patience: How many rounds without a better held-out likelihood end the training.
        validation: The share of rows that is held out to decide when to stop.
        time_limit: How many seconds training may take; None for no limit.
        log_dir: Folder for logs as CSV and for TensorBoard.
        random_state: Where random numbers come from.
        verbose: Whether to show a progress bar.

    Attributes:
        schema_: What the columns are.
        context_schema_: The same of the context, or None.
        model_: The fitted flow, over the numbers that stand for a row.
        training_: The record of the training, an `elflow.training.Training`: history, seconds, reason for stopping.
        n_features_in_: The number of columns.
        feature_names_in_: Their names, if the table has names.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> table = pd.DataFrame({"size": rng.lognormal(size=500), "kind": rng.choice(["a", "b"], size=500)})
        >>> density = FlowDensity(max_steps=100, random_state=0).fit(table)
        >>> density.score_samples(table).shape
        (500,)
        >>> density.sample(3, random_state=1).dtypes.to_dict() == table.dtypes.to_dict()
        True
    """

    def __init__(
        self,
        flow: str = "elf",
        *,
        flow_options: dict[str, Any] | None = None,
        columns: dict[str, Any] | None = None,
        missing: str = "error",
        dequantization: str = "uniform",
        whiten: bool | None = None,
        schedule: str = "plateau",
        learning_rate: float | None = None,
        weight_decay: float | None = None,
        batch_size: int | None = None,
        max_steps: int | None = None,
        patience: int | None = None,
        validation: float = 0.1,
        time_limit: float | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.flow = flow
        self.flow_options = flow_options
        self.columns = columns
        self.missing = missing
        self.dequantization = dequantization
        self.whiten = whiten
        self.schedule = schedule
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_steps = max_steps
        self.patience = patience
        self.validation = validation
        self.time_limit = time_limit
        self.log_dir = log_dir
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        context: Any = None,
        sample_weight: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> FlowDensity:
        """Fits the density of the rows of X.

        Arguments:
            X: The table, `(N, columns)`.
            y: Not used; it is here because scikit-learn passes it.
            context: What to condition on, a table of N rows: the density is then p(row | context).
            sample_weight: How much each row counts, `(N,)`.
            checkpoint: A file that keeps the state of training after every round. If it is there, training goes on from
                it, to the very weights that it would have come to. It is left there: delete it once the model is saved.

        Returns:
            The estimator.
        """
        check_parameters(**self.get_params())
        if getattr(y, "ndim", 1) == 2:
            raise ValueError("y must not be a table, as it is not used: a context is passed as context=")
        frame = self._frame(X, fitting=True)
        conditions = self._as_context(context, len(frame), fitting=True)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, frame, ensure_non_negative=True)
        if weight is not None:
            counts, weight = weight > 0, weight[weight > 0]
            frame = frame[counts].reset_index(drop=True)
            conditions = None if conditions is None else conditions[counts].reset_index(drop=True)
        if len(frame) < LEAST_ROWS:
            raise ValueError(
                f"X must have at least {LEAST_ROWS} rows that count, got {len(frame)} (n_samples={len(frame)})"
            )
        self.schema_ = Schema.fit(frame, self.columns, self.missing).like(X)
        self.context_schema_ = None if conditions is None else Schema.fit(conditions, None, self.missing, detect=False)
        self.n_rows_ = len(frame)
        self.seed_ = seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.fingerprint_ = fingerprint(frame)
        rows = self._rows(frame, conditions, weight)
        held_out = torch.from_numpy(held_out_rows(len(frame), self.validation, seed))
        training = ~held_out
        count = int(training.sum())
        features = self.schema_.features
        whiten = default_whiten(count, features) if self.whiten is None else bool(self.whiten)
        options = default_options(self.flow, count, features) | (self.flow_options or {}) | {"whiten": whiten}
        recipe = default_recipe(
            count,
            features,
            learning_rate=self.learning_rate,
            schedule=self.schedule,
            weight_decay=self.weight_decay,
            batch_size=self.batch_size,
            max_steps=self.max_steps,
            patience=self.patience,
            time_limit=self.time_limit,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build(self.flow, self.schema_, self.context_schema_, options, self.dequantization)
        settings = {
            "flow": [self.flow, options, self.dequantization],
            "recipe": recipe.to_dict() | {"time_limit": None},  # more time may be given for the rest of the way
            "split": [seed, self.validation],
            "schema": self.schema_.to_dict(),
        }
        self.model_, self.training_ = fit(
            model,
            rows.take(training),
            rows.take(held_out),
            recipe,
            seed=seed,
            checkpoint=checkpoint,
            fingerprint=digest(self.fingerprint_, conditions, weight, json.dumps(settings, default=str)),
            log_dir=self.log_dir,
            verbose=self.verbose,
        )
        self.options_ = options
        self.n_parameters_ = sum(p.numel() for p in self.model_.parameters() if p.requires_grad)
        some = np.random.RandomState(seed).permutation(np.flatnonzero(training.numpy()))[:RANKED]
        ranked = scores(self.model_, rows.take(torch.from_numpy(some)), DRAWS)
        self.training_scores_ = np.quantile(ranked, np.linspace(0, 1, min(PERCENTILES, len(ranked))))
        return self

    def score_samples(self, X: Any, context: Any = None, draws: int = DRAWS) -> NDArray[np.float64]:
        """The log-density of each row, in nats and in the units of the data.

        Discrete columns contribute a probability. It is estimated from points of each value's cell, the same for all
        rows, and in expectation too small; the more points, the closer. A value outside of a column's bounds has
        density zero, and its row minus infinity.

        Arguments:
            X: The table, `(N, columns)`.
            context: What to condition on, a table of N rows, if the density was fitted with one.
            draws: How many points of each cell are taken.

        Returns:
            Log-densities, `(N,)`.
        """
        check_is_fitted(self, "model_")
        check_count("draws", draws)
        return np.concatenate([scores(self.model_, self._rows(*block), draws) for block in self._blocks(X, context)])

    def score(self, X: Any, y: Any = None, context: Any = None) -> float:
        """The mean log-density of the rows, in nats. `y` is not used."""
        return float(self.score_samples(X, context).mean())

    def anomaly_score(self, X: Any, context: Any = None) -> NDArray[np.float64]:
        """How unlikely each row is: the percentage of training rows that are more likely, `(N,)`."""
        return self.percentiles(self.score_samples(X, context))

    def percentiles(self, log_density: Any) -> NDArray[np.float64]:
        """What `anomaly_score` says of rows whose log-densities are known, `(N,)`."""
        check_is_fitted(self, "model_")
        shares = np.linspace(0, 100, len(self.training_scores_))
        return 100 - np.interp(np.asarray(log_density), self.training_scores_, shares, left=0, right=100)

    def sample(self, n: int = 1, context: Any = None, random_state: Any = None) -> Any:
        """New rows, in a table of the kind that was fitted, with its columns and dtypes.

        Arguments:
            n: How many; with a context, how many for each of its rows, which stay together.
            context: What to condition on, if the density was fitted with one.
            random_state: Where random numbers come from.
        """
        check_is_fitted(self, "model_")
        check_count("n", n)
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        c = context_numbers(self.context_schema_, self._as_context(context))
        c = None if c is None else c.repeat_interleave(n, 0)
        return self.schema_.decode(samples(self.model_, n if c is None else len(c), c, seed))

    def conditional_cdf(self, X: Any, column: str, context: Any = None) -> NDArray[np.float64]:
        """P(column <= its value | all other columns, context) of each row, `(N,)`.

        The density along the column is integrated numerically, which any flow and any column allow.

        Arguments:
            X: The table, `(N, columns)`.
            column: Which column; its number for a table without names.
            context: What to condition on, a table of N rows, if the density was fitted with one.
        """
        return np.concatenate([found.cdf(frame) for found, frame in self._conditional(X, column, context)])

    def conditional_quantile(self, X: Any, q: Any, column: str, context: Any = None) -> Any:
        """Quantiles of a column given all other columns and the context of each row.

        Arguments:
            X: The table, `(N, columns)`. Its values of the column itself do not matter, and may be missing.
            q: A probability in (0, 1), or K of them.
            column: Which column; its number for a table without names.
            context: What to condition on, a table of N rows, if the density was fitted with one.

        Returns:
            Values of the column, `(N,)` for one probability and `(N, K)` for several.
        """
        probabilities = np.asarray(q, np.float64)
        if probabilities.ndim > 1 or not ((probabilities > 0) & (probabilities < 1)).all():
            raise ValueError(f"q must be one or several probabilities in (0, 1), got {q!r}")
        found = self._conditional(X, column, context)
        values = np.concatenate([each.quantiles(np.atleast_1d(probabilities)) for each, _ in found])
        return values[:, 0] if probabilities.ndim == 0 else values

    def held_out(self, X: Any) -> NDArray[np.bool_] | None:
        """Which rows were held out from training, if X is the very table that was fitted; None otherwise."""
        check_is_fitted(self, "model_")
        frame = as_frame(X)
        known = len(frame) == self.n_rows_ and fingerprint(frame) == self.fingerprint_
        return held_out_rows(len(frame), self.validation, self.seed_) if known else None

    def encode(self, X: Any, random_state: Any = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The numbers that the flow sees of each row, with a random point of each cell.

        A density q of these numbers is one of rows: log q(z) + log_volume, in the units of the data.

        Returns:
            z, `(N, features)`, and log_volume, `(N,)`.
        """
        check_is_fitted(self, "schema_")
        rows = self._rows(self._frame(X))
        noise = check_random_state(random_state).uniform(size=(len(rows), len(self.schema_.cells)))
        uniform = Dequantized(self.model_.flow, self.schema_.exact, self.schema_.cells)
        z, log_volume = uniform.dequantize(rows.x, noise=torch.from_numpy(noise))
        return z.double().numpy(), log_volume.double().numpy()

    def inverse_residual(self, X: Any, context: Any = None) -> float:
        """How far the rows' latent points z are from f(f^-1(z)) at most, relative to 1 + |z|."""
        check_is_fitted(self, "model_")
        return max(inverse_residual(self.model_, self._rows(*block)) for block in self._blocks(X, context))

    def save(self, path: str | os.PathLike[str], notes: dict[str, Any] | None = None) -> None:
        """Writes the fitted density to one safetensors file, whole or not at all; `elflow.load` reads it.

        Arguments:
            path: The file; an existing one is replaced.
            notes: Anything else to store, as JSON: see `elflow.serialization.read_notes`.
        """
        check_is_fitted(self, "model_")
        write_model(Path(path), "FlowDensity", self.config, self.model_, self.training_.to_dict(), notes)

    @property
    def config(self) -> dict[str, Any]:
        """All of a fitted density but its weights and its training record, as JSON."""
        return get_config(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], training: dict[str, Any] | None) -> FlowDensity:
        """A density with the configuration and training record of another one, and initial weights."""
        return set_config(cls(**config["parameters"]), config, training)

    @staticmethod
    def min_numbers(config: dict[str, Any]) -> int:
        """How many numbers a density of this configuration stores at least, without building it."""
        return min_config_numbers(config)

    def _frame(self, X: Any, fitting: bool = False) -> pd.DataFrame:
        """X as a frame. scikit-learn checks arrays, counts columns and keeps their names."""
        if kind_of_table(X) == "numpy":
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

    def _as_context(self, context: Any, count: int | None = None, fitting: bool = False) -> pd.DataFrame | None:
        """The context as a frame."""
        expected = None if fitting else self.context_schema_
        if not fitting and (context is None) != (expected is None):
            wanted = "None, as there was none in fitting" if expected is None else f"a table of {expected.names}"
            raise ValueError(f"context must be {wanted}, got {'None' if context is None else type(context).__name__}")
        if context is None:
            return None
        if isinstance(context, pd.Series):
            context = context.to_frame()
        elif kind_of_table(context) == "numpy" and np.ndim(context) == 1:
            context = np.asarray(context)[:, None]
        frame = as_frame(context, None if expected is None else expected.names)
        if count is not None and len(frame) != count:
            raise ValueError(f"context must have a row for each of {count} rows of X, got {len(frame)}")
        return frame

    def _rows(self, frame: pd.DataFrame, conditions: pd.DataFrame | None = None, weight: Any = None) -> Rows:
        """What the flow is given of a frame."""
        return numbers(self.schema_, frame, context_numbers(self.context_schema_, conditions), weight)

    def _blocks(self, X: Any, context: Any, size: int = BLOCK) -> Iterator[tuple[pd.DataFrame, pd.DataFrame | None]]:
        """Rows and their context, so many at a time, and once at least."""
        frame = self._frame(X)
        conditions = self._as_context(context, len(frame))
        for at in range(0, max(1, len(frame)), size):
            part = slice(at, at + size)
            yield frame.iloc[part], None if conditions is None else conditions.iloc[part]

    def _conditional(self, X: Any, column: Any, context: Any) -> Iterator[tuple[Conditional, pd.DataFrame]]:
        """The distribution of a column for some rows at a time, and these rows."""
        check_is_fitted(self, "model_")
        numbered = self.schema_.table == "numpy" and not isinstance(column, str)
        name = self.schema_.names[check_count("column", column, least=0)] if numbered else str(column)
        for frame, conditions in self._blocks(X, context, CONDITIONAL_BLOCK):
            c = context_numbers(self.context_schema_, conditions)
            yield conditional(self.model_, self.schema_, name, frame, c), frame
