"""Detector for PyOD: anomalies of a table by a `FlowDensity`, robust to anomalies in the fitted table."""

from __future__ import annotations

import os
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from elflow._checks import check_count
from elflow.integrations._number_mixture import NumberMixture, measure_surprise
from elflow.serialization import load, read_notes
from elflow.tabular import FlowDensity, Table, as_frame, clone_density

try:
    from pyod.models.base import BaseDetector
except ImportError as error:
    raise ImportError(f"elflow.integrations.pyod needs PyOD (pip install 'elflow[pyod]'): {error}") from error

__all__ = ["FlowDetector"]

FloatArray = NDArray[np.float64]
NOTES = "detector"
"""Name of the detector's state among the notes of a model file."""
MAX_SCORE = 1e100
"""Score of a row with density zero: finite, since the scales of PyOD need finite scores."""
N_FOLDS = 2
"""Number of parts of the table; the density of a part scores the rows of the others."""


class FlowDetector(BaseDetector):
    """Anomalies by the joint density of the columns, and by a Gaussian mixture of the numbers.

    A row is surprising if few ordinary rows are as unlikely: its surprise under a density is minus the logarithm of
    their share, in nats, extrapolated beyond these rows. The score of a row is the sum of two of them (Fisher's method
    to combine tests). One is that of a `FlowDensity`, which knows columns of any kind and relations of any shape. The
    other is that of a Gaussian mixture of the standardised numbers, which knows distances and clusters. With many
    columns and few rows a flow learns relations of columns, but hardly which clusters exist: a digit that was never
    seen has ordinary pixels next to each other.

    If the fitted table contains anomalies, a density learns them, too. The likelihood is therefore trimmed: before
    the final fit, each half of the rows is scored by a density of the other half, `n_rounds` times, and the rows
    that are among the least likely ones each time get no weight.
    References:
        Robust fitting of mixtures using the trimmed likelihood estimator (Neykov et al., 2007)
        Why normalizing flows fail to detect out-of-distribution data (Kirichenko et al., 2020)

    Arguments:
        contamination: Share of anomalies in the fitted table, in (0, 0.5]: it determines the threshold and the share
            of rows that may lose their weight. Or a thresholding object of PyOD, which determines the threshold only.
        density: The density to fit, a `FlowDensity`; None for the default one.
        n_rounds: Number of rounds in which rows lose weight; 0 for a table without anomalies, which takes less time.
        random_state: Seed or generator of the fits.
        mixture: Whether the Gaussian mixture contributes, if all columns are numbers, at least two of them vary, and at
            least 100 rows have a weight. Without it (`mixture_` is None), scores are minus log-densities in nats.

    Attributes:
        decision_scores_: Scores of the fitted rows, `(N,)`: the higher, the more anomalous.
        threshold_: Score above which a row is an anomaly.
        labels_: 1 for anomalies among the fitted rows, and 0 for others, `(N,)`.
        weights_: Weights of the fitted rows in the final fit, `(N,)`.
        density_: The fitted density.
        mixture_: The fitted Gaussian mixture, or None.

    Example:
        >>> from elflow import FlowDensity
        >>> table = np.random.default_rng(0).normal(size=(200, 2))
        >>> table[:5] = [[8, -8], [9, -8], [8, -9], [7, -8], [8, -7]]
        >>> detector = FlowDetector(contamination=0.05, density=FlowDensity(max_steps=30), random_state=0).fit(table)
        >>> detector.labels_[:5].tolist(), detector.weights_[:5].tolist()
        ([1, 1, 1, 1, 1], [0.0, 0.0, 0.0, 0.0, 0.0])
        >>> detector.predict(np.array([[0.0, 0.0], [8.0, -8.0]])).tolist()
        [0, 1]
    """

    def __init__(
        self,
        contamination: Any = 0.1,
        density: FlowDensity | None = None,
        n_rounds: int = 2,
        random_state: int | np.random.RandomState | None = None,
        mixture: bool = True,
    ) -> None:
        super().__init__(contamination=contamination)
        self.density = density
        self.n_rounds = n_rounds
        self.random_state = random_state
        self.mixture = mixture

    def fit(self, X: Table, y: object = None) -> FlowDetector:
        """Fit the density of the rows of X, and the threshold.

        Arguments:
            X: The table, `(N, columns)`.
            y: Ignored, as in all detectors of PyOD.

        Returns:
            The detector.
        """
        check_count("n_rounds", self.n_rounds, least=0)
        self._set_n_classes(y)
        seed = self.random_state if self.random_state is not None else getattr(self.density, "random_state", None)
        rng = check_random_state(seed)
        self.weights_ = self._weigh_rows(X, rng)
        weight = self.weights_ if (self.weights_ < 1).any() else None
        self.density_ = clone_density(self.density, rng).fit(X, sample_weight=weight)
        self.mixture_: NumberMixture | None = None
        if self.mixture:
            used = as_frame(X, self.density_.schema_.names)[self.weights_ > 0]
            self.mixture_ = NumberMixture.fit(used, self.density_.schema_, rng)
        self.decision_scores_ = self.decision_function(X)
        self._process_decision_scores()
        return self

    def decision_function(self, X: Table) -> FloatArray:
        """Anomaly score of each row in nats, `(N,)`: its surprise in both views, or minus its log-density.

        Arguments:
            X: The table, `(N, columns)`.
        """
        check_is_fitted(self, "density_")
        return _score(self.density_, self.mixture_, X)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted detector to one safetensors file, atomically; `FlowDetector.load` reads it.

        `elflow.load` and the command line read it as the density. Python's pickle works, too, but runs code when it
        reads.

        Arguments:
            path: The file; an existing one is replaced.

        Example:
            >>> import tempfile
            >>> from elflow import FlowDensity
            >>> table = np.random.default_rng(0).normal(size=(200, 2))
            >>> detector = FlowDetector(density=FlowDensity(max_steps=10), n_rounds=0, random_state=0).fit(table)
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     detector.save(f"{folder}/detector.elf")
            ...     same = FlowDetector.load(f"{folder}/detector.elf")
            >>> bool((same.predict(table) == detector.predict(table)).all())
            True
        """
        check_is_fitted(self, "density_")
        if not isinstance(self.contamination, Real):
            raise TypeError(f"contamination must be a number to be saved, got {type(self.contamination).__name__}")
        state = {
            "contamination": float(self.contamination),
            "random_state": int(self.random_state) if isinstance(self.random_state, Integral) else None,
            "n_rounds": self.n_rounds,
            "has_mixture": self.mixture,
            "decision_scores": self.decision_scores_.tolist(),
            "weights": self.weights_.tolist(),
            "mixture": None if self.mixture_ is None else self.mixture_.to_dict(),
        }
        self.density_.save(path, notes={NOTES: state})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FlowDetector:
        """Read a detector from the file that `save` has written."""
        state = read_notes(path).get(NOTES)
        if state is None:
            raise ValueError(f"{os.fspath(path)} must be a file of FlowDetector.save, got another model file")
        density = load(path)
        mixture = state.get("mixture")  # absent in earlier files
        parameters = (state["contamination"], clone_density(density), state["n_rounds"], state["random_state"])
        detector = cls(*parameters, mixture=state.get("has_mixture", False))
        detector.density_ = density
        detector.mixture_ = None if mixture is None else NumberMixture.from_dict(mixture)
        detector.decision_scores_ = np.array(state["decision_scores"], np.float64)
        detector.weights_ = np.array(state["weights"], np.float64)
        detector._set_n_classes(None)
        detector._process_decision_scores()
        return detector

    def _weigh_rows(self, X: Table, rng: np.random.RandomState) -> FloatArray:
        """Weights of the rows, `(N,)`: one minus the share of the rounds in which a row was among the least likely."""
        frame = as_frame(X)
        weights = np.ones(len(frame))
        share = float(self.contamination) if isinstance(self.contamination, Real) else 0.1
        n_odd = round(share * len(frame))
        if n_odd == 0:
            return weights
        for _ in range(self.n_rounds):
            folds = rng.permutation(len(frame)) % N_FOLDS
            scores = np.zeros(len(frame))
            for fold in range(N_FOLDS):
                # Rows are scored by a density that has not seen them, which cannot have memorised them.
                others = folds != fold
                # Only the flow scores them: a few anomalies that are alike would get a Gaussian of their own.
                density = clone_density(self.density, rng).fit(frame[others], sample_weight=weights[others])
                scores[~others] = _score(density, None, frame[~others])
            weights[np.argsort(scores, kind="stable")[-n_odd:]] -= 1 / self.n_rounds
        return np.where(weights < 1e-9, 0.0, weights)


def _score(density: FlowDensity, mixture: NumberMixture | None, X: Table) -> FloatArray:
    """Anomaly score of each row in nats, `(N,)`: see `FlowDetector`."""
    log_density = density.score_samples(X)
    if mixture is None:
        return np.nan_to_num(-log_density, nan=np.nan, posinf=MAX_SCORE)
    surprise = measure_surprise(log_density, density.reference_scores_)
    return np.minimum(surprise + mixture.measure_surprise(as_frame(X, density.schema_.names)), MAX_SCORE)
