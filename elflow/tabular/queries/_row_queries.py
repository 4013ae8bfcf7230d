"""Questions about the rows of a table: their log-densities, anomaly scores, origins and encodings."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from elflow._checks import check_count
from elflow.flows.dequantization import Dequantized
from elflow.kernels import NonFiniteError
from elflow.tabular._arrays import BoolArray, FloatArray
from elflow.tabular._flow import N_DRAWS, measure_inverse_residual, score_rows
from elflow.tabular._inputs import TableEstimator
from elflow.tabular._random import RandomState
from elflow.tabular.fitting._row_hashes import NEW, UNKNOWN, VALIDATION, RowHashes, hash_rows
from elflow.tabular.frames import ContextTable, Table
from elflow.tabular.queries._anomaly import rank_log_density

__all__ = ["RowQueries"]


class RowQueries(DensityMixin, TableEstimator):
    """Methods of a fitted density about each row of a table."""

    reference_scores_: FloatArray
    row_hashes_: RowHashes | None

    def score_samples(self, X: Table, context: ContextTable | None = None, n_draws: int = N_DRAWS) -> FloatArray:
        """Log-density of each row, in nats; continuous columns contribute a density per unit.

        A discrete column contributes a probability, which is estimated from points of each value's cell. All rows
        share these points. The estimate is a lower bound in expectation, which more points tighten. A row with a value
        outside the bounds of a column has the density 0, and the log-density minus infinity.

        Arguments:
            X: The table, `(N, columns)`.
            context: Context of the rows, a table of N rows, if the density was fitted with one.
            n_draws: Number of points of each cell.

        Returns:
            Log-densities, `(N,)`.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.score_samples(table[:5]).shape
            (5,)
        """
        check_is_fitted(self, "model_")
        check_count("n_draws", n_draws)
        scores = np.concatenate(
            [score_rows(self.model_, self._encode(*block), n_draws) for block in self._iter_blocks(X, context)]
        )
        if np.isnan(scores).any():
            row = int(np.isnan(scores).argmax())
            raise NonFiniteError(f"scores must be numbers, got NaN for row {row}: the weights of the model overflow")
        return scores

    def score(self, X: Table, y: object = None, context: ContextTable | None = None) -> float:
        """Mean log-density of the rows, in nats. `y` is ignored."""
        return float(self.score_samples(X, context).mean())

    def anomaly_score(self, X: Table, context: ContextTable | None = None) -> FloatArray:
        """Anomaly score of each row, `(N,)`: a strictly decreasing function of its log-density.

        Up to 100, the score is the percentage of reference rows that are more likely. These are the validation rows of
        training, or all fitted rows if there are fewer than 100 of those. Rows less likely than all of them score above
        100: each further point means that rows as unlikely are ten times as rare, extrapolated with an exponential
        tail. A row with density zero scores 1e300. ROC curves are those of `-score_samples`.

        Arguments:
            X: The table, `(N, columns)`.
            context: Context of the rows, a table of N rows, if the density was fitted with one.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> usual, odd, odder = density.anomaly_score(np.array([[0.0, 0.0], [5.0, -5.0], [20.0, -20.0]]))
            >>> bool(usual < 100 < odd < odder)
            True
        """
        return self.percentiles(self.score_samples(X, context))

    def percentiles(self, log_density: ArrayLike) -> FloatArray:
        """Anomaly scores of rows whose log-densities `(N,)` are known, `(N,)`: see `anomaly_score`."""
        check_is_fitted(self, "model_")
        return rank_log_density(log_density, self.reference_scores_)

    def row_origin(self, X: Table) -> NDArray[np.str_]:
        """Origin of each row: `"training"` or `"validation"` if the density was fitted to it, otherwise `"new"`.

        Rows are recognised by hashes of the values of the fitted columns. Other columns, the order of columns and rows,
        dtypes, the library of the table and the context do not matter. If more than two million rows were fitted, some
        rows may be `"unknown"`.

        Arguments:
            X: The table, `(N, columns)`.

        Returns:
            Origins, `(N,)`.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table[:100])
            >>> origins, counts = np.unique(density.row_origin(table), return_counts=True)
            >>> origins.tolist(), counts.tolist()
            (['new', 'training', 'validation'], [100, 90, 10])
        """
        check_is_fitted(self, "model_")
        frame = self._as_frame(X)
        if self.row_hashes_ is None:
            return np.full(len(frame), UNKNOWN, dtype="<U10")
        return self.row_hashes_.find_origins(hash_rows(self.schema_, frame))

    def validation_mask(self, X: Table) -> BoolArray | None:
        """Mask of the rows of X that were validation rows of training, `(N,)`; None if the density saw no row of X.

        Rows are recognised in any order: see `row_origin`, which also tells training rows from new rows.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> int(density.validation_mask(table[::-1]).sum())
            20
            >>> density.validation_mask(table + 1) is None
            True
        """
        origins = self.row_origin(X)
        return None if np.isin(origins, (NEW, UNKNOWN)).all() else origins == VALIDATION

    def encode(self, X: Table, random_state: RandomState = 0) -> tuple[FloatArray, FloatArray]:
        """Encode rows as the numbers z that the flow models, with a random point of each cell.

        A density q of z gives a density of the rows, in the units of the data: log q(z) + log_volume.

        Arguments:
            X: The table, `(N, columns)`.
            random_state: Seed or generator of the random points.

        Returns:
            z, `(N, features)`, and log_volume, `(N,)`.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> z, log_volume = density.encode(table)
            >>> z.shape, log_volume.shape
            ((200, 2), (200,))
        """
        check_is_fitted(self, "model_")
        rows = self._encode(self._as_frame(X))
        noise = check_random_state(random_state).uniform(size=(len(rows), len(self.schema_.cells)))
        uniform = Dequantized(self.model_.flow, self.schema_.exact, self.schema_.cells)
        z, log_volume = uniform.dequantize(rows.x, noise=torch.from_numpy(noise))
        return z.double().numpy(), log_volume.double().numpy()

    def inverse_residual(self, X: Table, context: ContextTable | None = None) -> float:
        """Maximum of |f(f^-1(z)) - z| / (1 + |z|) over the latent points z of the rows.

        Arguments:
            X: The table, `(N, columns)`.
            context: Context of the rows, a table of N rows, if the density was fitted with one.

        Example:
            >>> import elflow
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
            >>> density.inverse_residual(table) < 1e-3
            True
        """
        check_is_fitted(self, "model_")
        blocks = self._iter_blocks(X, context)
        return max(measure_inverse_residual(self.model_, self._encode(*block)) for block in blocks)
