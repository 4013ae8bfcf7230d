"""Densities that everybody knows, to hold a flow against: a Gaussian, a mixture of them, kernels."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

__all__ = ["Baseline", "baselines", "kernel_density"]

COMPONENTS = (1, 2, 4, 8, 16, 32, 64)
RIDGES = (1e-6, 1e-3, 1e-1)
"""What is added to variances of 1. The first is nothing to speak of; the others are for few rows and many columns."""
BANDWIDTHS = tuple(np.geomspace(0.01, 3, 24))
"""In standard deviations of a column."""
INNER = 0.2
"""The share of the training rows that chooses components and bandwidths."""
MOST_INNER = 1000
ITERATIONS = 60

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """The log-densities of some rows under one of them, `(...)`."""

    name: str
    detail: str
    log_density: NDArray[np.float64]


def baselines(train: Rows, test: Rows, random_state: int) -> tuple[Baseline, ...]:
    """Fits each on `(N, D)` rows, with its settings chosen on a part of them, and scores `(..., D)` others."""
    middle, scale = train.mean(0), train.std(0)
    scale = np.where(scale > 0, scale, 1.0)  # a constant column stays as it is
    train, test = (train - middle) / scale, (test - middle) / scale
    shape, test = test.shape[:-1], test.reshape(-1, test.shape[-1])
    order = np.random.default_rng(random_state).permutation(len(train))
    inner = min(max(1, round(INNER * len(train))), MOST_INNER)
    chosen_by, fitted_to = train[order[:inner]], train[order[inner:]]
    found = (
        *_gaussians(train, test, fitted_to, chosen_by, random_state),
        _kernels(train, test, fitted_to, chosen_by),
    )
    volume = np.log(scale).sum()
    return tuple(Baseline(one.name, one.detail, one.log_density.reshape(shape) - volume) for one in found)


def _gaussians(train: Rows, test: Rows, fitted_to: Rows, chosen_by: Rows, random_state: int) -> list[Baseline]:
    def validated(components: int, ridge: float) -> float:
        mixture = _mixture(fitted_to, components, ridge, random_state)
        return -np.inf if mixture is None else float(mixture.score_samples(chosen_by).mean())

    few = len(fitted_to) < 10 * train.shape[1]
    ridge = max(RIDGES, key=lambda ridge: validated(1, ridge)) if few else RIDGES[0]
    values: dict[int, float] = {}
    for components in COMPONENTS:
        if components > max(1, len(fitted_to) // 4):
            break
        values[components] = validated(components, ridge)
        if components > 2 and values[components] < max(values.values()):
            break  # more of them will not help
    best = max(values, key=lambda components: values[components])
    gaussian = _mixture(train, 1, ridge, random_state)
    mixture = _mixture(train, best, ridge, random_state) or gaussian
    if gaussian is None or mixture is None:
        raise ValueError("X must have finite numbers in every column, got a table whose covariance cannot be computed")
    plural = "" if mixture.n_components == 1 else "s"
    return [
        Baseline("Gaussian", "full covariance", gaussian.score_samples(test)),
        Baseline("Gaussian mixture", f"{mixture.n_components} component{plural}", mixture.score_samples(test)),
    ]


def _mixture(rows: Rows, components: int, ridge: float, random_state: int) -> GaussianMixture | None:
    """None where the rows do not allow for that many components."""
    mixture = GaussianMixture(components, reg_covar=ridge, max_iter=ITERATIONS, random_state=random_state)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return mixture.fit(rows)
    except ValueError:
        return None


def _kernels(train: Rows, test: Rows, fitted_to: Rows, chosen_by: Rows) -> Baseline:
    values = kernel_density(fitted_to, chosen_by, BANDWIDTHS).mean(1)
    bandwidth = BANDWIDTHS[int(values.argmax())]
    log_density = kernel_density(train, test, (bandwidth,))[0]
    return Baseline("Kernel density", f"bandwidth {bandwidth:.2g} standard deviations", log_density)


def kernel_density(train: Rows, test: Rows, bandwidths: tuple[float, ...]) -> Rows:
    """Log-densities of the test rows under Gaussian kernels, `(bandwidths, M)`.

    scikit-learn's would compute all the distances anew for every bandwidth.
    """
    points, features = torch.from_numpy(train), train.shape[1]
    squares = points.square().sum(1)
    parts = []
    for some in torch.from_numpy(test).split(256):
        distances = (some.square().sum(1, keepdim=True) + squares - 2 * some @ points.T).clamp(min=0)  # squared
        sums = [torch.logsumexp(distances / (-2 * h * h), 1) - features * np.log(h) for h in bandwidths]
        parts.append(torch.stack(sums))
    return torch.cat(parts, 1).numpy() - np.log(len(train)) - features / 2 * np.log(2 * np.pi)
