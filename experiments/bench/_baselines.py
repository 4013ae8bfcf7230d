"""What a flow has to beat: Gaussian mixtures and kernel density estimates, each chosen by validation."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

COMPONENTS = (1, 2, 4, 8, 16, 32, 64)
BANDWIDTHS = np.geomspace(0.03, 1.5, 14)
KERNELS = 50_000
"""As many rows carry a kernel, at most: every density needs each pair of rows."""

LogDensity = Callable[[np.ndarray], np.ndarray]


@dataclass
class Baseline:
    """A density over rows, its mean over the validation rows, and how it came about."""

    log_density: LogDensity
    validation: float
    chosen: str
    parameters: int
    rows: int


def best_mixture(training: np.ndarray, held_out: np.ndarray, seconds: float, seed: int) -> Baseline:
    """The best of mixtures of 1 to 64 Gaussians with full covariances, each fitted within that time."""
    fits = [mixture(training, count, seconds, seed) for count in COMPONENTS if count < len(training)]
    scores = [model.score(held_out) for model, _ in fits]
    best = int(np.argmax(scores))
    model, rows = fits[best]
    count, features = model.means_.shape
    parameters = count * (1 + features + features * (features + 1) // 2) - 1
    return Baseline(model.score_samples, scores[best], f"{count} components", parameters, rows)


def mixture(training: np.ndarray, count: int, seconds: float, seed: int) -> tuple[GaussianMixture, int]:
    """Expectation-maximisation until it settles or time is up, and on how many rows."""
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


def best_kernel(training: np.ndarray, held_out: np.ndarray, seed: int) -> Baseline:
    """Gaussian kernels, round or of the shape of the covariance, with the best bandwidth of a grid."""
    rows = np.random.default_rng(seed).permutation(training)[:KERNELS]
    spread = np.cov(training.T).reshape(training.shape[1], -1)
    shapes = {
        "round": np.diag(1 / np.sqrt(np.diag(spread))),
        "covariance": np.linalg.inv(np.linalg.cholesky(spread + 1e-9 * np.diag(np.diag(spread)))).T,
    }
    scores = {
        (name, bandwidth): score.mean().item()
        for name, shape in shapes.items()
        for bandwidth, score in zip(BANDWIDTHS, kernel(rows, held_out, shape, BANDWIDTHS), strict=True)
    }
    name, bandwidth = max(scores, key=lambda key: scores[key])
    return Baseline(
        lambda points: kernel(rows, points, shapes[name], np.array([bandwidth]))[0].numpy(),
        scores[name, bandwidth],
        f"{name} kernel, bandwidth {bandwidth:.3f}",
        rows.size,
        len(rows),
    )


def kernel(rows: np.ndarray, points: np.ndarray, shape: np.ndarray, bandwidths: np.ndarray) -> Tensor:
    """The log-density at each point for each bandwidth, `(bandwidths, points)`."""
    x, y = torch.from_numpy(rows @ shape), torch.from_numpy(points @ shape)
    features = x.shape[1]
    constant = math.log(len(x)) + 0.5 * features * math.log(2 * math.pi) - np.linalg.slogdet(shape)[1]
    squares = x.square().sum(1)
    densities = []
    for some in y.split(max(1, 500_000 // len(x))):  # few enough for the cache
        square = torch.addmm(squares, some, x.T, alpha=-2).add_(some.square().sum(1, keepdim=True))
        nearest = square.amin(1, keepdim=True)
        square.sub_(nearest)
        densities.append(
            torch.stack(
                [
                    (square * (-0.5 / h**2)).exp_().sum(1).log_().sub_(nearest[:, 0], alpha=0.5 / h**2)
                    for h in bandwidths
                ]
            )
        )
    return torch.cat(densities, 1) - constant - features * torch.from_numpy(np.log(bandwidths))[:, None]
