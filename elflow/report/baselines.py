"""Baseline densities to compare a flow with: Gaussian, Gaussian mixture and kernel density estimate."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from elflow._checks import check_choice, check_count, check_positive

__all__ = [
    "Baseline",
    "compute_kernel_density",
    "fit_baselines",
    "fit_gaussian",
    "fit_gaussian_mixture",
    "fit_kernel_density",
]

Floats = NDArray[np.float64]

N_COMPONENTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of components that `fit_gaussian_mixture` tries."""
RIDGES = (1e-6, 1e-3, 1e-1)
"""Regularisation of covariances of standardised rows. The first is negligible; the others are for few rows."""
MIN_ROWS_PER_COLUMN = 10
"""With fewer rows the regularisation is chosen by validation, else it is the first of `RIDGES`."""
MIN_ROWS_PER_COMPONENT = 4
MAX_ITERATIONS = 60
"""Steps of expectation-maximisation, unless there is a time limit."""
SHAPES = ("round", "covariance")
BANDWIDTHS = tuple(float(h) for h in np.geomspace(0.01, 3, 24))
"""Bandwidths that `fit_kernel_density` tries, in standard deviations."""
VALIDATION_SHARE = 1 / 5
MAX_VALIDATION_ROWS = 1000
"""Limits of the training rows that are set aside if no validation rows are given."""
MAX_PAIRS = 500_000
"""Number of distances computed at a time, small enough for the cache."""


@dataclass(frozen=True)
class Baseline:
    """A fitted baseline density.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
        >>> baseline = fit_gaussian(rows)
        >>> baseline.name, baseline.n_parameters, baseline.n_rows
        ('Gaussian', 5, 1000)
        >>> baseline.log_density(np.zeros((3, 4, 2))).shape
        (3, 4)
    """

    name: str
    detail: str
    """The chosen settings, in words: `4 components`."""
    validation: float
    """Mean log-density of the validation rows, in nats, by which the settings were chosen."""
    n_parameters: int
    n_rows: int
    """Number of rows that the density was fitted to."""
    evaluate: Callable[[Floats], Floats]
    """Log-densities `(N,)` of rows `(N, features)`."""

    def log_density(self, z: ArrayLike) -> Floats:
        """Log-density of each row, in nats, `(..., features)` to `(...)`."""
        rows = np.asarray(z, np.float64)
        return self.evaluate(rows.reshape(-1, rows.shape[-1])).reshape(rows.shape[:-1])


def fit_baselines(train: ArrayLike, validation: ArrayLike | None = None, random_state: int = 0) -> tuple[Baseline, ...]:
    """Fit a Gaussian, a Gaussian mixture and a kernel density estimate, with default settings.

    Arguments:
        train: The rows to fit to, `(N, features)`.
        validation: Rows that choose the settings, `(M, features)`. By default a fifth of the training rows, at most
            1,000, are set aside for this choice; the chosen density is then fitted again to all training rows.
        random_state: Seed of the split and of initial components.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(1000, 2))
        >>> [baseline.name for baseline in fit_baselines(rows)]
        ['Gaussian', 'Gaussian mixture', 'Kernel density']
    """
    return (
        fit_gaussian(train, validation, random_state=random_state),
        fit_gaussian_mixture(train, validation, random_state=random_state),
        fit_kernel_density(train, validation, random_state=random_state),
    )


def fit_gaussian(train: ArrayLike, validation: ArrayLike | None = None, *, random_state: int = 0) -> Baseline:
    """Fit a Gaussian with full covariance.

    Arguments:
        train: As for `fit_baselines`.
        validation: As for `fit_baselines`. With few training rows it chooses the regularisation of the covariance.
        random_state: Seed of the split.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(1000, 1))
        >>> round(float(np.exp(fit_gaussian(rows).log_density([0.0]))), 1)
        0.4
    """
    mixture = _choose_mixture(_Rows(train, validation, random_state), (1,), None)
    return _to_baseline("Gaussian", "full covariance", mixture)


def fit_gaussian_mixture(
    train: ArrayLike,
    validation: ArrayLike | None = None,
    *,
    n_components: Sequence[int] = N_COMPONENTS,
    time_limit: float | None = None,
    random_state: int = 0,
) -> Baseline:
    """Fit Gaussian mixtures with full covariances, and choose the number of components.

    Arguments:
        train: As for `fit_baselines`.
        validation: As for `fit_baselines`.
        n_components: Numbers of components to try, in increasing order. Without a time limit the search stops at the
            first number that scores lower than a previous one.
        time_limit: Time limit for each number of components, in seconds. Large tables are subsampled to meet it. By
            default a fit takes at most 60 iterations, whatever their time.
        random_state: Seed of the split and of the initial components.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> rows = np.append(rng.normal(size=(500, 1)), rng.normal(8, 1, size=(500, 1)), axis=0)
        >>> fit_gaussian_mixture(rows, n_components=(1, 2)).detail
        '2 components'
    """
    if time_limit is not None:
        time_limit = check_positive("time_limit", time_limit)
    counts = [check_count("n_components", count) for count in n_components]
    mixture = _choose_mixture(_Rows(train, validation, random_state), counts, time_limit)
    plural = "" if mixture.model.n_components == 1 else "s"
    return _to_baseline("Gaussian mixture", f"{mixture.model.n_components} component{plural}", mixture)


def fit_kernel_density(
    train: ArrayLike,
    validation: ArrayLike | None = None,
    *,
    shapes: Sequence[str] = ("round",),
    bandwidths: Sequence[float] = BANDWIDTHS,
    max_kernels: int | None = None,
    random_state: int = 0,
) -> Baseline:
    """Fit a kernel density estimate with Gaussian kernels, and choose the bandwidth.

    Arguments:
        train: As for `fit_baselines`.
        validation: As for `fit_baselines`.
        shapes: Shapes of the kernels to try: `"round"`, after standardising each column, or `"covariance"`, after
            whitening.
        bandwidths: Bandwidths to try, in standard deviations.
        max_kernels: Maximum number of rows with a kernel, chosen at random; None for all training rows.
        random_state: Seed of the split and of this choice.

    Example:
        >>> rows = np.random.default_rng(0).normal(size=(500, 1))
        >>> fit_kernel_density(rows, bandwidths=[0.01, 0.3, 3.0]).detail
        'bandwidth 0.3 standard deviations'
    """
    for shape in shapes:
        check_choice("shapes", shape, SHAPES)
    bandwidths = [check_positive("bandwidths", bandwidth) for bandwidth in bandwidths]
    rows = _Rows(train, validation, random_state)

    def draw_kernels(candidates: Floats) -> Floats:
        if max_kernels is None or len(candidates) <= max_kernels:
            return candidates
        return np.random.default_rng(random_state).permutation(candidates)[: check_count("max_kernels", max_kernels)]

    kernels = draw_kernels(rows.fitted)
    matrices = {shape: _make_kernel_matrix(shape, rows.fitted) for shape in shapes}
    scores = {
        (shape, bandwidth): float(values.mean())
        for shape, matrix in matrices.items()
        for bandwidth, values in zip(
            bandwidths,
            compute_kernel_density(kernels @ matrix, rows.validation @ matrix, bandwidths) + _log_volume(matrix),
            strict=True,
        )
    }
    shape, bandwidth = max(scores, key=lambda key: scores[key])
    kernels, matrix = draw_kernels(rows.refitted), _make_kernel_matrix(shape, rows.refitted)
    log_volume = rows.log_volume + _log_volume(matrix)

    def evaluate(z: Floats) -> Floats:
        return compute_kernel_density(kernels @ matrix, rows.standardize(z) @ matrix, [bandwidth])[0] + log_volume

    prefix = "covariance kernel, " if shape == "covariance" else ""
    return Baseline(
        "Kernel density",
        f"{prefix}bandwidth {bandwidth:.2g} standard deviations",
        scores[shape, bandwidth] + rows.log_volume,
        kernels.size,
        len(kernels),
        evaluate,
    )


def compute_kernel_density(kernels: Floats, z: Floats, bandwidths: Sequence[float]) -> Floats:
    """Compute the log-density of rows under Gaussian kernels, for several bandwidths.

    scikit-learn's `KernelDensity` would compute all distances again for each bandwidth.

    Arguments:
        kernels: The centres of the kernels, `(N, features)`.
        z: The rows, `(M, features)`.
        bandwidths: The standard deviations of the kernels.

    Returns:
        Log-densities, `(bandwidths, M)`.

    Example:
        >>> compute_kernel_density(np.zeros((1, 1)), np.zeros((1, 1)), [1.0]).round(3)
        array([[-0.919]])
    """
    centres, points = (torch.from_numpy(np.ascontiguousarray(rows, np.float64)) for rows in (kernels, z))
    features = centres.shape[1]
    squares = centres.square().sum(1)
    blocks = []
    for some in points.split(max(1, MAX_PAIRS // len(centres))):
        distances = torch.addmm(squares, some, centres.T, alpha=-2).add_(some.square().sum(1, keepdim=True))
        distances.clamp_(min=0)  # squared; rounding may make them negative
        nearest = distances.amin(1, keepdim=True)
        distances.sub_(nearest)  # so that exp() does not underflow for all kernels at once
        sums = [
            (distances * (-0.5 / h**2)).exp_().sum(1).log_().sub_(nearest[:, 0], alpha=0.5 / h**2) for h in bandwidths
        ]
        blocks.append(torch.stack(sums))
    constants = np.log(len(kernels)) + features * (0.5 * np.log(2 * np.pi) + np.log(np.asarray(bandwidths)))
    return torch.cat(blocks, 1).numpy() - constants[:, None]


class _Rows:
    """Standardised rows: those that candidates are fitted to, those that choose, and those for the final fit."""

    def __init__(self, train: ArrayLike, validation: ArrayLike | None, random_state: int) -> None:
        self.random_state = check_count("random_state", random_state, 0)
        rows = _check_rows("train", train)
        self.centre, scale = rows.mean(0), rows.std(0)
        self.scale = np.where(scale > 0, scale, 1.0)  # constant columns are only centred
        self.log_volume = -float(np.log(self.scale).sum())
        """Added to a log-density of standardised rows to obtain one of rows."""
        self.refitted = self.fitted = self.standardize(rows)
        if validation is not None:
            self.validation = self.standardize(_check_rows("validation", validation, rows.shape[1]))
            return
        order = np.random.default_rng(random_state).permutation(len(rows))
        n_validation = min(max(1, round(VALIDATION_SHARE * len(rows))), MAX_VALIDATION_ROWS)
        self.validation, self.fitted = self.refitted[order[:n_validation]], self.refitted[order[n_validation:]]

    def standardize(self, rows: Floats) -> Floats:
        return (rows - self.centre) / self.scale


def _check_rows(name: str, rows: ArrayLike, features: int | None = None) -> Floats:
    x = np.asarray(rows, np.float64)
    if x.ndim != 2 or x.shape[1] != (features or x.shape[1]):
        raise ValueError(f"{name} must have the shape (N, {features or 'features'}), got {x.shape}")
    if len(x) < (2 if features is None else 1):
        raise ValueError(f"{name} must have at least {2 if features is None else 1} rows, got {len(x)}")
    if not np.isfinite(x).all():
        raise ValueError(f"{name} must be finite, got NaN or an infinity")
    return x


@dataclass(frozen=True)
class _Mixture:
    """A fitted mixture, the rows it belongs to, its mean log-density of validation rows, and its training rows."""

    model: GaussianMixture
    rows: _Rows
    validation: float
    n_rows: int


def _choose_mixture(rows: _Rows, n_components: Sequence[int], time_limit: float | None) -> _Mixture:
    def score(count: int, ridge: float) -> tuple[float, GaussianMixture | None, int]:
        model, n_rows = _fit_mixture(rows.fitted, count, ridge, time_limit, rows.random_state)
        return (-np.inf if model is None else float(model.score(rows.validation))), model, n_rows

    n_fitted, features = rows.fitted.shape
    ridge = RIDGES[0]
    if n_fitted < MIN_ROWS_PER_COLUMN * features:
        ridge = max(RIDGES, key=lambda ridge: score(1, ridge)[0])
    best: tuple[float, GaussianMixture | None, int] = (-np.inf, None, 0)
    for count in n_components:
        if count > max(1, n_fitted // MIN_ROWS_PER_COMPONENT):
            break
        candidate = score(count, ridge)
        if candidate[0] > best[0]:
            best = candidate
        elif count > 2 and time_limit is None:
            break  # more components are unlikely to help
    validation, model, n_rows = best
    if model is not None and rows.refitted is not rows.fitted:
        refitted = _fit_mixture(rows.refitted, model.n_components, ridge, time_limit, rows.random_state)
        if refitted[0] is not None:
            model, n_rows = refitted
    if model is None:
        raise ValueError("train must have a finite covariance matrix, got rows whose covariance cannot be computed")
    return _Mixture(model, rows, validation + rows.log_volume, n_rows)


def _fit_mixture(
    rows: Floats, n_components: int, ridge: float, time_limit: float | None, random_state: int
) -> tuple[GaussianMixture | None, int]:
    """Fit a mixture: it, or None if the rows do not allow for that many components, and the number of rows used."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if time_limit is not None:
                return _fit_mixture_within(rows, n_components, ridge, time_limit, random_state)
            model = GaussianMixture(n_components, reg_covar=ridge, max_iter=MAX_ITERATIONS, random_state=random_state)
            return model.fit(rows), len(rows)
    except ValueError:
        return None, 0


def _fit_mixture_within(
    rows: Floats, n_components: int, ridge: float, time_limit: float, random_state: int
) -> tuple[GaussianMixture, int]:
    """Run expectation-maximisation until it converges or the time is up, on as many rows as the time allows for."""
    model = GaussianMixture(
        n_components,
        reg_covar=ridge,
        init_params="k-means++",
        tol=1e-4,
        max_iter=5,
        warm_start=True,
        random_state=random_state,
    )
    rows = np.random.default_rng(random_state).permutation(rows)
    start = time.perf_counter()
    n_rows = min(len(rows), max(5_000, 10 * n_components))
    model.fit(rows[:n_rows])
    begin = time.perf_counter()
    model.fit(rows[:n_rows])  # the first call includes the initialisation; this one gives the time per iteration
    seconds = time.perf_counter() - begin
    # As many rows as leave time for six calls of five iterations each.
    n_rows = int(np.clip(n_rows * (start + time_limit - begin) / (6 * seconds), n_rows, len(rows)))
    model.converged_ = False
    while not model.converged_ and time.perf_counter() - start < time_limit:
        model.fit(rows[:n_rows])
    return model, n_rows


def _to_baseline(name: str, detail: str, mixture: _Mixture) -> Baseline:
    model, rows = mixture.model, mixture.rows
    count, features = model.means_.shape
    n_parameters = count * (1 + features + features * (features + 1) // 2) - 1

    def evaluate(z: Floats) -> Floats:
        return model.score_samples(rows.standardize(z)) + rows.log_volume

    return Baseline(name, detail, mixture.validation, n_parameters, mixture.n_rows, evaluate)


def _make_kernel_matrix(shape: str, rows: Floats) -> Floats:
    """The matrix by which standardised rows are multiplied so that kernels are round."""
    features = rows.shape[1]
    if shape == "round":
        return np.eye(features)
    covariance = np.cov(rows.T).reshape(features, features) + 1e-9 * np.eye(features)
    return np.linalg.inv(np.linalg.cholesky(covariance)).T


def _log_volume(matrix: Floats) -> float:
    return float(np.linalg.slogdet(matrix)[1])
