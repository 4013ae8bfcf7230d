"""`FlowRegressor`: the conditional distribution of a number given a table, as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import _check_sample_weight, _check_y, check_is_fitted, validate_data

from elflow._checks import check_count
from elflow.tabular._arrays import FloatArray
from elflow.tabular._clones import check_weights, clone_density
from elflow.tabular._random import RandomState
from elflow.tabular._saved import SavedEstimator
from elflow.tabular.estimator import FlowDensity
from elflow.tabular.frames import Table, as_frame, as_plain_array, table_kind
from elflow.tabular.schema import Schema

__all__ = ["FlowRegressor"]

TARGET = "y"
"""Name of the column that is modelled."""
N_QUANTILES = 200
"""Number of equally likely values from which a mean is computed."""


class FlowRegressor(RegressorMixin, SavedEstimator):
    """Distributional regression: the density p(y | row) of a number y given the columns of a table.

    It has all that the distribution has: means, quantiles, intervals, samples and log-densities, with any shape and a
    spread that depends on the row.

    Arguments:
        density: The density to fit, a `FlowDensity`; None for the default one. Its column is named `"y"`: positive
            numbers are declared by `FlowDensity(columns={"y": (0, None)})`.
        random_state: Seed or generator of the fit.

    Attributes:
        density_: The fitted density of y, with the columns of the table as context.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if the table has names.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(300, 1))
        >>> y = X[:, 0] + 0.1 * rng.normal(size=300)
        >>> regressor = FlowRegressor(FlowDensity(max_steps=30), random_state=0).fit(X, y)
        >>> regressor.predict(X).shape, regressor.sample(X[:5], n=10, random_state=0).shape
        ((300,), (5, 10))
        >>> low, high = regressor.predict_interval(X, coverage=0.9).T
        >>> bool(0.8 < ((low <= y) & (y <= high)).mean() < 1)
        True
        >>> import elflow, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     regressor.save(f"{folder}/regressor.elf")
        ...     same = elflow.load(f"{folder}/regressor.elf")
        >>> bool((same.predict(X[:5]) == regressor.predict(X[:5])).all())
        True
    """

    def __init__(
        self, density: FlowDensity | None = None, *, random_state: int | np.random.RandomState | None = None
    ) -> None:
        self.density = density
        self.random_state = random_state

    def fit(self, X: Table, y: ArrayLike, sample_weight: ArrayLike | None = None) -> FlowRegressor:
        """Fit the density of y given the rows of X.

        Arguments:
            X: The table, `(N, columns)`.
            y: Numbers, `(N,)`.
            sample_weight: Weight of each row in the likelihood, `(N,)`. A row of weight zero has no effect.

        Returns:
            The regressor.
        """
        if y is None:  # scikit-learn's contract asks for the first words
            raise ValueError("requires y to be passed, but the target y is None")
        density = clone_density(self.density, self.random_state)
        rows = self._as_rows(X, density.missing, fitting=True)
        weight = check_weights(sample_weight, len(rows))
        self.density_ = density.fit(self._as_target(y, len(rows)), context=rows, sample_weight=weight)
        return self

    def predict(self, X: Table) -> FloatArray:
        """Mean of y in each row, `(N,)`: that of equally likely quantiles."""
        levels = (np.arange(N_QUANTILES) + 0.5) / N_QUANTILES
        return self.predict_quantiles(X, levels).mean(1)

    def predict_quantiles(self, X: Table, q: ArrayLike = (0.05, 0.5, 0.95)) -> FloatArray:
        """Quantiles of y in each row.

        Arguments:
            X: The table, `(N, columns)`.
            q: A probability in (0, 1), or K of them for all rows, `(K,)`, or for each row, `(N, K)`.

        Returns:
            Quantiles, `(N,)` for one probability and `(N, K)` for several.
        """
        check_is_fitted(self, "density_")
        rows = self._as_rows(X, self.density_.missing)
        return np.asarray(self.density_.conditional_quantile(None, TARGET, q, context=rows), np.float64)

    def predict_interval(self, X: Table, coverage: float = 0.9) -> FloatArray:
        """Central interval of y in each row, `(N, 2)`, which contains y with the probability `coverage`."""
        if not 0 < coverage < 1:
            raise ValueError(f"coverage must be in (0, 1), got {coverage!r}")
        return self.predict_quantiles(X, [(1 - coverage) / 2, (1 + coverage) / 2])

    def sample(self, X: Table, n: int = 1, random_state: RandomState = None) -> FloatArray:
        """Samples of y in each row, `(N, n)`."""
        check_is_fitted(self, "density_")
        check_count("n", n)
        rows = self._as_rows(X, self.density_.missing)
        drawn: pd.DataFrame = self.density_.sample(n, context=rows, random_state=random_state)
        return drawn[TARGET].to_numpy(np.float64).reshape(len(rows), n)

    def log_density(self, X: Table, y: ArrayLike) -> FloatArray:
        """Log-density of y in each row, log p(y | row), in nats, `(N,)`."""
        check_is_fitted(self, "density_")
        rows = self._as_rows(X, self.density_.missing)
        return self.density_.score_samples(self._as_target(y, len(rows)), context=rows)

    def score(self, X: Table, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Mean log-density of y given the rows, in nats: not the coefficient of determination."""
        log_density = self.log_density(X, y)
        weight = _check_sample_weight(sample_weight, log_density[:, None])
        return float(np.average(log_density, weights=weight))

    def _as_target(self, y: ArrayLike, count: int) -> pd.DataFrame:
        """A table of one column with numbers, one for each of `count` rows."""
        values: NDArray[Any] = _check_y(y, y_numeric=True, estimator=self)
        if len(values) != count:
            raise ValueError(f"y must have one number for each of the {count} rows of X, got {len(values)}")
        return pd.DataFrame({TARGET: values.astype(np.float64)})

    def _as_rows(self, X: Table, missing: str, fitting: bool = False) -> pd.DataFrame:
        """Convert X to a frame; scikit-learn checks matrices, and the number and the names of columns."""
        X = as_plain_array(X)
        if table_kind(X) == "numpy":
            finite = {"error": True, "model": "allow-nan"}[missing]
            matrix = validate_data(self, X, reset=fitting, dtype="numeric", ensure_all_finite=finite)
            return as_frame(matrix, getattr(self, "feature_names_in_", None))
        frame = as_frame(X)
        if fitting:
            self.feature_names_in_ = np.array(frame.columns, dtype=object)
            self.n_features_in_ = frame.shape[1]
        return frame

    @classmethod
    def _find_input_schema(cls, density: FlowDensity) -> Schema:
        schema, rows = density.schema_, density.context_schema_
        if schema.names != [TARGET] or schema.table != "pandas":
            raise ValueError(f"config.schema must be that of the numbers y, got one of {schema.table}: {schema.names}")
        if rows is None:
            raise ValueError(f"config.context_schema must have the columns of the table for a {cls.__name__}, got null")
        return rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # the score is no coefficient of determination
        tags.input_tags.allow_nan = self.density is not None and self.density.missing == "model"
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        return tags
