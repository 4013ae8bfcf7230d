"""`FlowDensity`: a density of a table, as a scikit-learn estimator."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from elflow._checks import check_count
from elflow._model_file import write_model
from elflow.flows.dequantization import Dequantized
from elflow.tabular._arrays import BoolArray, FloatArray
from elflow.tabular._config import get_config, min_config_numbers, set_config
from elflow.tabular._defaults import check_parameters, default_options, default_recipe, default_whiten
from elflow.tabular._flow import (
    build,
    encode_context,
    encode_rows,
    measure_inverse_residual,
    sample_rows,
    score_rows,
    split_mask,
)
from elflow.tabular._kinds import Declaration
from elflow.tabular.conditional import Conditional, condition, pit_values
from elflow.tabular.frames import ContextTable, Table, as_frame, digest, fingerprint, table_kind
from elflow.tabular.schema import Schema
from elflow.training import Rows, fit

__all__ = ["FlowDensity"]

MIN_ROWS = 5
"""Minimum number of rows in fit."""
N_DRAWS = 16
"""Default number of points of each cell from which its probability is estimated."""
MAX_ENCODED_ROWS = 2**16
"""Maximum number of rows that are encoded at a time."""
MAX_CONDITIONAL_ROWS = 2**12
"""Maximum number of rows whose conditional distributions are computed at a time."""
MAX_RANKED_ROWS = 5_000
"""Maximum number of training rows that anomaly scores rank rows among."""
N_PERCENTILES = 1_000
"""Number of quantiles that are stored of these rows' log-densities."""

RandomState = int | np.random.RandomState | None
"""Seed or generator; None for other random numbers in each call."""


class FlowDensity(DensityMixin, BaseEstimator):
    """Joint density of the columns of a table, as a scikit-learn estimator.

    Tables are of pandas, polars, pyarrow or NumPy, with columns of floats, integers, booleans, categories, strings or
    datetimes. Log-densities are in the units of the data: a continuous column contributes a density per unit, any other
    column a probability, whose estimate is a lower bound in expectation (dequantisation).

    Arguments:
        flow: Name of the flow: `"elf"`, or a flow of zuko in lower case such as `"nsf"`, `"maf"` or `"naf"`.
        flow_options: Arguments of the flow. All others depend on the size of the table.
        columns: Kinds of columns by name: `"continuous"`, `"integer"`, `"boolean"`, `"category"` or `"datetime"`, or
            bounds `(low, high)` of a numeric column, either of which may be None. Inferred for all other columns.
        missing: `"error"` rejects missing values; `"model"` models them, and samples contain them.
        dequantization: Distribution of the points of discrete values' cells in training: `"uniform"`, or
            `"variational"` for a learned one.
        whiten: Whether linear correlations of continuous columns are removed before the flow; None does so for tables
            with few rows.
        schedule: Learning-rate schedule: see `elflow.training.Recipe`.
        learning_rate: Initial learning rate. Here and in the next four, None selects a value by the size of the table.
        weight_decay: Weight decay; more of it reduces overfitting.
        batch_size: Number of rows in a batch.
        max_steps: Maximum number of training steps.
        patience: Number of rounds without a better held-out log-likelihood after which training stops.
        validation: Share of the rows that are held out for early stopping.
        time_limit: Maximum training time in seconds; None for no limit.
        log_dir: Folder for logs as CSV and for TensorBoard.
        random_state: Seed or generator.
        verbose: Whether to show progress.

    Attributes:
        schema_: The columns, a `Schema`.
        context_schema_: The columns of the context, or None.
        model_: The fitted flow over encoded rows.
        training_: The record of the training, an `elflow.training.Training`: history, seconds, reason for stopping.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if the table has names.

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
        columns: dict[Any, Declaration] | None = None,
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
        random_state: RandomState = None,
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
        check_parameters(self.get_params())
        if getattr(y, "ndim", 1) == 2:
            raise ValueError("y must not be a table, as it is not used: a context is passed as context=")
        frame = self._as_frame(X, fitting=True)
        conditions = self._as_context(context, len(frame), fitting=True)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, frame, ensure_non_negative=True)
        if weight is not None:
            counts, weight = weight > 0, weight[weight > 0]
            frame = frame[counts].reset_index(drop=True)
            conditions = None if conditions is None else conditions[counts].reset_index(drop=True)
        if len(frame) < MIN_ROWS:
            raise ValueError(
                f"X must have at least {MIN_ROWS} rows that count, got {len(frame)} (n_samples={len(frame)})"
            )
        self.schema_ = Schema.fit(frame, self.columns, self.missing).with_labels_of(X)
        self.context_schema_ = (
            None if conditions is None else Schema.fit(conditions, None, self.missing, infer_bounds=False)
        )
        self.n_rows_ = len(frame)
        self.seed_ = seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.fingerprint_ = fingerprint(frame)
        rows = self._encode(frame, conditions, weight)
        held_out = torch.from_numpy(split_mask(len(frame), self.validation, seed))
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
        some = np.random.RandomState(seed).permutation(np.flatnonzero(training.numpy()))[:MAX_RANKED_ROWS]
        ranked = score_rows(self.model_, rows.take(torch.from_numpy(some)), N_DRAWS)
        self.training_scores_ = np.quantile(ranked, np.linspace(0, 1, min(N_PERCENTILES, len(ranked))))
        return self

    def score_samples(self, X: Table, context: ContextTable | None = None, n_draws: int = N_DRAWS) -> FloatArray:
        """Log-density of each row, in nats and in the units of the data.

        A discrete column contributes a probability, which is estimated from points of each value's cell. All rows
        share these points. The estimate is a lower bound in expectation, which more points tighten. A row with a value
        outside the bounds of a column has the density 0, and the log-density minus infinity.

        Arguments:
            X: The table, `(N, columns)`.
            context: ContextTable | None of the rows, a table of N rows, if the density was fitted with one.
            n_draws: Number of points of each cell.

        Returns:
            Log-densities, `(N,)`.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.score_samples(table[:5]).shape
            (5,)
        """
        check_is_fitted(self, "model_")
        check_count("n_draws", n_draws)
        return np.concatenate(
            [score_rows(self.model_, self._encode(*block), n_draws) for block in self._iter_blocks(X, context)]
        )

    def score(self, X: Table, y: object = None, context: ContextTable | None = None) -> float:
        """Mean log-density of the rows, in nats. `y` is ignored."""
        return float(self.score_samples(X, context).mean())

    def anomaly_score(self, X: Table, context: ContextTable | None = None) -> FloatArray:
        """Percentage of training rows with a higher density than each row, `(N,)`: 100 for the least likely rows.

        Arguments:
            X: The table, `(N, columns)`.
            context: ContextTable | None of the rows, a table of N rows, if the density was fitted with one.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.anomaly_score(np.array([[20.0, -20.0]]))
            array([100.])
        """
        return self.percentiles(self.score_samples(X, context))

    def percentiles(self, log_density: ArrayLike) -> FloatArray:
        """Anomaly scores of rows whose log-densities `(N,)` are known, `(N,)`: see `anomaly_score`."""
        check_is_fitted(self, "model_")
        shares = np.linspace(0, 100, len(self.training_scores_))
        return 100 - np.interp(np.asarray(log_density), self.training_scores_, shares, left=0, right=100)

    def sample(self, n: int = 1, context: ContextTable | None = None, random_state: RandomState = None) -> Any:
        """Sample new rows, in a table of the same library, columns and dtypes as the fitted table.

        Arguments:
            n: Number of rows; with a context, number of consecutive rows for each row of the context.
            context: ContextTable | None of the rows, if the density was fitted with one.
            random_state: Seed or generator.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.sample(3, random_state=1).shape
            (3, 2)
        """
        check_is_fitted(self, "model_")
        check_count("n", n)
        seed = _draw_seed(random_state)
        c = encode_context(self.context_schema_, self._as_context(context))
        c = None if c is None else c.repeat_interleave(n, 0)
        return self.schema_.decode(sample_rows(self.model_, n if c is None else len(c), c, seed))

    def conditional(self, X: Table, column: Hashable, context: ContextTable | None = None) -> Conditional:
        """Conditional distribution of a column in each row, given all other columns and the context.

        `conditional_cdf` and `conditional_quantile` use it a few thousand rows at a time; here all rows are in memory
        at once, about 4 KB each.

        Arguments:
            X: The table, `(N, columns)`. Values of the column itself are ignored, and may be missing or left out.
            column: Name of the column; its number if the table has no names.
            context: ContextTable | None of the rows, a table of N rows, if the density was fitted with one.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.conditional(table[:3], column=1).quantile([0.5]).shape
            (3, 1)
        """
        check_is_fitted(self, "model_")
        frame = self._as_frame(X)
        c = encode_context(self.context_schema_, self._as_context(context, len(frame)))
        return condition(self.model_, self.schema_, self._column_name(column), frame, c)

    def conditional_cdf(self, X: Table, column: Hashable, context: ContextTable | None = None) -> FloatArray:
        """P(column <= its value | all other columns, context) in each row, `(N,)`.

        The density along the column is integrated numerically, for any flow and any kind of column.

        Arguments:
            X: The table, `(N, columns)`.
            column: Name of the column; its number if the table has no names.
            context: ContextTable | None of the rows, a table of N rows, if the density was fitted with one.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.conditional_cdf(table[:5], column=1).shape
            (5,)
        """
        check_is_fitted(self, "model_")
        name = self._column_name(column)
        parts = []
        for frame, conditional in self._iter_conditionals(X, name, context):
            values = frame[name] if name in frame else pd.Series(np.nan, frame.index)
            if n_missing := int(values.isna().sum()):
                raise ValueError(f"X must have values of {name!r}, got {n_missing} missing values")
            parts.append(conditional.cdf(values))
        return np.concatenate(parts)

    def conditional_quantile(
        self, X: Table, column: Hashable, q: ArrayLike, context: ContextTable | None = None
    ) -> NDArray[Any]:
        """Quantiles of a column in each row, given all other columns and the context.

        Arguments:
            X: The table, `(N, columns)`. Values of the column itself are ignored, and may be missing or left out.
            column: Name of the column; its number if the table has no names.
            q: A probability in (0, 1), or K of them, `(K,)`.
            context: ContextTable | None of the rows, a table of N rows, if the density was fitted with one.

        Returns:
            Values of the column, `(N,)` for one probability and `(N, K)` for several.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> low, high = density.conditional_quantile(table[:5], 1, [0.05, 0.95]).T
            >>> bool((low < high).all())
            True
        """
        check_is_fitted(self, "model_")
        order = "the order of arguments is conditional_quantile(X, column, q)"
        try:
            probabilities = np.asarray(q, np.float64)
        except (TypeError, ValueError):
            raise TypeError(f"q must be one or several probabilities in (0, 1), got {q!r}: {order}") from None
        if not isinstance(column, Hashable) or (isinstance(column, float) and str(column) not in self.schema_.names):
            raise TypeError(f"column must be the name or the number of a column, got {column!r}: {order}")
        name = self._column_name(column)
        if probabilities.ndim > 1 or not ((probabilities > 0) & (probabilities < 1)).all():
            raise ValueError(f"q must be one or several probabilities in (0, 1), got {q!r}")
        blocks = self._iter_conditionals(X, name, context)
        values = np.concatenate([conditional.quantile(np.atleast_1d(probabilities)) for _, conditional in blocks])
        return values[:, 0] if probabilities.ndim == 0 else values

    def pit_values(
        self,
        X: Table,
        columns: Sequence[Hashable] | None = None,
        context: ContextTable | None = None,
        random_state: RandomState = None,
    ) -> pd.DataFrame:
        """Probability integral transform of columns, each given all other columns: uniform if the density is right.

        Discrete values are represented by random points of their cells, in all columns. Values of a discrete column
        are then uniform as well, which those of `conditional_cdf` are not.

        Arguments:
            X: The table, `(N, columns)`.
            columns: Names of the columns; their numbers if the table has no names. All columns if left out.
            context: ContextTable | None of the rows, a table of N rows, if the density was fitted with one.
            random_state: Seed or generator of the random points.

        Returns:
            Values in (0, 1), one row for each of X and one column for each name; NaN where a value is missing.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.pit_values(table[:5], columns=[1], random_state=0).shape
            (5, 1)
        """
        check_is_fitted(self, "model_")
        names = self.schema_.names if columns is None else [self._column_name(column) for column in columns]
        seed = _draw_seed(random_state)
        blocks = []
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            for frame, context_frame in self._iter_blocks(X, context, MAX_CONDITIONAL_ROWS):
                rows = self._encode(frame, context_frame)
                z = self.model_.place(rows.x, rows.context)[0]
                block = pd.DataFrame(np.nan, frame.index, names)
                for name in names:
                    is_present = frame[name].notna().to_numpy()
                    index = torch.from_numpy(np.flatnonzero(is_present))
                    c = None if rows.context is None else rows.context[index]
                    block.loc[is_present, name] = pit_values(self.model_, self.schema_, name, z[index], c)
                blocks.append(block)
        return pd.concat(blocks, ignore_index=True)

    def validation_mask(self, X: Table) -> BoolArray | None:
        """Mask of the validation rows of training, `(N,)`, if X is the fitted table; None for any other table.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> int(density.validation_mask(table).sum())
            20
            >>> density.validation_mask(table + 1) is None
            True
        """
        check_is_fitted(self, "model_")
        frame = as_frame(X)
        is_fitted_table = len(frame) == self.n_rows_ and fingerprint(frame) == self.fingerprint_
        return split_mask(len(frame), self.validation, self.seed_) if is_fitted_table else None

    def encode(self, X: Table, random_state: RandomState = 0) -> tuple[FloatArray, FloatArray]:
        """Encode rows as the numbers z that the flow models, with a random point of each cell.

        A density q of z gives a density of the rows, in the units of the data: log q(z) + log_volume.

        Arguments:
            X: The table, `(N, columns)`.
            random_state: Seed or generator of the random points.

        Returns:
            z, `(N, features)`, and log_volume, `(N,)`.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> z, log_volume = density.encode(table)
            >>> z.shape, log_volume.shape
            ((200, 2), (200,))
        """
        check_is_fitted(self, "schema_")
        rows = self._encode(self._as_frame(X))
        noise = check_random_state(random_state).uniform(size=(len(rows), len(self.schema_.cells)))
        uniform = Dequantized(self.model_.flow, self.schema_.exact, self.schema_.cells)
        z, log_volume = uniform.place(rows.x, noise=torch.from_numpy(noise))
        return z.double().numpy(), log_volume.double().numpy()

    def inverse_residual(self, X: Table, context: ContextTable | None = None) -> float:
        """Maximum of |f(f^-1(z)) - z| / (1 + |z|) over the latent points z of the rows.

        Arguments:
            X: The table, `(N, columns)`.
            context: ContextTable | None of the rows, a table of N rows, if the density was fitted with one.

        Example:
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.inverse_residual(table) < 1e-3
            True
        """
        check_is_fitted(self, "model_")
        blocks = self._iter_blocks(X, context)
        return max(measure_inverse_residual(self.model_, self._encode(*block)) for block in blocks)

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

    def _as_frame(self, X: Table, fitting: bool = False) -> pd.DataFrame:
        """Convert X to a frame; scikit-learn checks matrices, and the number and the names of columns."""
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
            expected = "None, since there was none in fit" if schema is None else f"a table of {schema.names}"
            raise ValueError(f"context must be {expected}, got {'None' if context is None else type(context).__name__}")
        if context is None:
            return None
        table: Any = context
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

    def _encode(
        self, frame: pd.DataFrame, context: pd.DataFrame | None = None, weight: FloatArray | None = None
    ) -> Rows:
        """Encode a frame, its context and its weights as tensors."""
        return encode_rows(self.schema_, frame, encode_context(self.context_schema_, context), weight)

    def _iter_blocks(
        self, X: Table, context: ContextTable | None, size: int = MAX_ENCODED_ROWS
    ) -> Iterator[tuple[pd.DataFrame, pd.DataFrame | None]]:
        """Rows and their context, `size` rows at a time; one empty block if there are no rows."""
        frame = self._as_frame(X)
        context_frame = self._as_context(context, len(frame))
        for start in range(0, max(1, len(frame)), size):
            block = slice(start, start + size)
            yield frame.iloc[block], None if context_frame is None else context_frame.iloc[block]

    def _iter_conditionals(
        self, X: Table, name: str, context: ContextTable | None
    ) -> Iterator[tuple[pd.DataFrame, Conditional]]:
        """Blocks of rows, and the conditional distribution of a column in these rows."""
        for frame, context_frame in self._iter_blocks(X, context, MAX_CONDITIONAL_ROWS):
            c = encode_context(self.context_schema_, context_frame)
            yield frame, condition(self.model_, self.schema_, name, frame, c)


def _draw_seed(random_state: RandomState) -> int:
    """Seed of torch from a seed or a generator of NumPy."""
    return int(check_random_state(random_state).randint(2**31 - 1))
