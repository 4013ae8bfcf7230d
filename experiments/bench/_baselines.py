"""Baselines for tables: Gaussian mixtures and kernel density estimates, each chosen by validation rows."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from elflow.report.baselines import kernel_density

__all__ = ["Baseline", "choose_kernel", "choose_mixture"]

COMPONENTS = (1, 2, 4, 8, 16, 32, 64)
BANDWIDTHS = tuple(np.geomspace(0.03, 1.5, 14))
MAX_KERNELS = 50_000
"""Maximum number of rows with a kernel: a density needs the distances to all of them."""

Rows = NDArray[np.float64]
"""Rows of numbers, `(N, features)`."""


@dataclass
class Baseline:
    """A density of rows."""

    log_density: Callable[[Rows], Rows]
    validation: float
    """Mean log-density of the validation rows."""
    chosen: str
    """The chosen settings."""
    parameters: int
    rows: int
    """Number of rows that it was fitted to."""


def choose_mixture(training: Rows, validation: Rows, seconds: float, seed: int) -> Baseline:
    """The best mixture of 1 to 64 Gaussians with full covariances, each fitted within a time limit.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(500, 2))
        >>> choose_mixture(x[:400], x[400:], seconds=0.1, seed=0).rows
        400
    """
    fits = [_fit_mixture(training, count, seconds, seed) for count in COMPONENTS if count < len(training)]
    scores = [model.score(validation) for model, _ in fits]
    best = int(np.argmax(scores))
    model, rows = fits[best]
    count, features = model.means_.shape
    parameters = count * (1 + features + features * (features + 1) // 2) - 1
    return Baseline(model.score_samples, scores[best], f"{count} components", parameters, rows)


def _fit_mixture(training: Rows, count: int, seconds: float, seed: int) -> tuple[GaussianMixture, int]:
    """Expectation-maximisation until convergence or the time limit. Returns the number of rows, too."""
    model = GaussianMixture(count, init_params="k-means++", tol=1e-4, max_iter=5, warm_start=True, random_state=seed)
    training = np.random.default_rng(seed).permutation(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.perf_counter()
        rows = min(len(training), max(5_000, 10 * count))
        model.fit(training[:rows])
        begin = time.perf_counter()
        model.fit(training[:rows])
        # As many rows as leave time for six calls of five steps each.
        rows = int(np.clip(rows * (start + seconds - begin) / (6 * (time.perf_counter() - begin)), rows, len(training)))
        model.converged_ = False
        while not model.converged_ and time.perf_counter() - start < seconds:
            model.fit(training[:rows])
    return model, rows


def choose_kernel(training: Rows, validation: Rows, seed: int) -> Baseline:
    """The best Gaussian kernels, round or with the shape of the covariance, over a grid of bandwidths.

    Example:
        >>> x = np.random.default_rng(0).normal(size=(500, 2))
        >>> choose_kernel(x[:400], x[400:], seed=0).rows
        400
    """
    rows = np.random.default_rng(seed).permutation(training)[:MAX_KERNELS]
    covariance = np.cov(training.T).reshape(training.shape[1], -1)
    shapes = {
        "round": np.diag(1 / np.sqrt(np.diag(covariance))),
        "covariance": np.linalg.inv(np.linalg.cholesky(covariance + 1e-9 * np.diag(np.diag(covariance)))).T,
    }

    def score(points: Rows, shape: Rows, bandwidths: tuple[float, ...]) -> Rows:
        return kernel_density(rows @ shape, points @ shape, bandwidths) + np.linalg.slogdet(shape)[1]

    scores = {
        (name, bandwidth): float(value)
        for name, shape in shapes.items()
        for bandwidth, value in zip(BANDWIDTHS, score(validation, shape, BANDWIDTHS).mean(1), strict=True)
    }
    name, bandwidth = max(scores, key=lambda key: scores[key])
    return Baseline(
        lambda points: score(points, shapes[name], (bandwidth,))[0],
        scores[name, bandwidth],
        f"{name} kernel, bandwidth {bandwidth:.3f}",
        rows.size,
        len(rows),
    )
