"""Small tables of many kinds, generated or of scikit-learn, with the true log-density where it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.stats import beta, lognorm, multivariate_normal, norm
from sklearn import datasets

from elflow._checks import check_choice
from experiments.data.tables import split_rows

__all__ = ["SMALL_TABLES", "SmallTable", "make_table"]

N_TEST_ROWS = 2_000
Rng = np.random.Generator
LogDensity = Callable[[pd.DataFrame], np.ndarray]


@dataclass(frozen=True)
class SmallTable:
    """A table with training rows, test rows, and the true log-densities of the test rows if they are known."""

    training: pd.DataFrame
    test: pd.DataFrame
    truth: np.ndarray | None = None


def make_table(name: str, seed: int, effort: float = 1.0) -> SmallTable:
    """A table by its name, with about `effort` times its rows.

    Example:
        >>> table = make_table("ring", seed=0, effort=0.01)
        >>> table.training.shape, table.truth is None
        ((60, 2), True)
    """
    check_choice("name", name, SMALL_TABLES)
    rows, generate = SMALL_TABLES[name]
    if rows == 0:
        frame = generate(0, np.random.default_rng(seed))[0]
        training, test = split_rows(frame.iloc[: max(60, round(effort * len(frame)))], seed)
        return SmallTable(training, test)
    n_training, n_test = (max(60, round(min(1.0, effort) * n)) for n in (rows, N_TEST_ROWS))
    frame, log_density = generate(n_training + n_test, np.random.default_rng([seed, *name.encode()]))
    training, test = frame.iloc[:n_training], frame.iloc[n_training:].reset_index(drop=True)
    return SmallTable(training, test, None if log_density is None else log_density(test))


Generate = Callable[[int, Rng], tuple[pd.DataFrame, LogDensity | None]]


def _name_columns(x: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(x, columns=[f"x{i}" for i in range(x.shape[1])])


def _make_factor(noise: float, decimals: int | None = None) -> Generate:
    """Twenty columns of five factors and noise, rounded or not."""

    def generate(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
        loadings = np.random.default_rng(1).normal(size=(5, 20))
        x = rng.normal(size=(n, 5)) @ loadings + noise * rng.normal(size=(n, 20))
        covariance = loadings.T @ loadings + noise**2 * np.eye(20)
        if decimals is not None:
            return _name_columns(np.round(x, decimals)), None
        return _name_columns(x), multivariate_normal(np.zeros(20), covariance).logpdf

    return generate


def _make_nearly_gaussian(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """Two overlapping Gaussians in twenty columns."""
    fixed = np.random.default_rng(1)
    matrix, mean = 0.3 * fixed.normal(size=(20, 20)) + np.eye(20), 0.8 * fixed.normal(size=20)
    is_second = rng.random(n) < 0.5
    x = rng.normal(size=(n, 20)) @ matrix
    x[is_second] = 0.8 * x[is_second] + mean
    first = multivariate_normal(np.zeros(20), matrix.T @ matrix)
    second = multivariate_normal(mean, 0.64 * matrix.T @ matrix)
    return _name_columns(x), lambda test: np.logaddexp(first.logpdf(test), second.logpdf(test)) - np.log(2)


def _make_heavy_tails(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """Five columns that share a random scale: Student's t with three degrees of freedom."""
    scale = np.sqrt(3 / rng.chisquare(3, size=(n, 1)))
    return _name_columns(scale * rng.normal(size=(n, 5))), None


def _make_skewed(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """Products of lognormal columns."""
    a, b = rng.lognormal(0, 1, n), rng.gamma(2, 1, n)
    return pd.DataFrame({"a": a, "b": b, "product": a * b * rng.lognormal(0, 0.2, n)}), None


def _make_zero_inflated(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    rate = rng.normal(size=n)
    amount = np.where(rng.random(n) < 1 / (1 + np.exp(rate)), 0.0, rng.lognormal(rate, 0.5))
    return pd.DataFrame({"rate": rate, "amount": amount, "other": rate + rng.normal(size=n)}), None


def _make_clusters(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """Six narrow clusters far apart in four columns."""
    centres = 20 * np.random.default_rng(2).normal(size=(6, 4))
    x = centres[rng.integers(6, size=n)] + 0.5 * rng.normal(size=(n, 4))

    def log_density(test: pd.DataFrame) -> np.ndarray:
        parts = [norm.logpdf(test.to_numpy(), centre, 0.5).sum(1) for centre in centres]
        return np.asarray(np.logaddexp.reduce(parts) - np.log(6))

    return _name_columns(x), log_density


def _make_ring(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    angle, radius = rng.uniform(0, 2 * np.pi, n), 1 + 0.05 * rng.normal(size=n)
    return _name_columns(np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)), None


def _make_lattice(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """Points near a lattice of 25 nodes, and their sum."""
    x = rng.integers(-2, 3, size=(n, 2)) + 0.08 * rng.normal(size=(n, 2))
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "sum": x.sum(1) + 0.3 * rng.normal(size=n)}), None


def _make_bounded(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """Shares that add up to less than one."""
    shares = rng.dirichlet([0.7, 1.5, 3.0, 2.0], n)
    return _name_columns(shares[:, :3]), None


def _make_counts(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    rate = rng.gamma(2, 2, n)
    return pd.DataFrame({"a": rng.poisson(rate), "b": rng.poisson(3 * rate), "c": rng.binomial(10, 0.3, n)}), None


def _make_categories(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """A category that decides about everything else."""
    k = rng.integers(4, size=n)
    x = np.array([-6.0, -2.0, 2.0, 6.0])[k] + np.array([0.1, 1.0, 0.3, 2.0])[k] * rng.normal(size=n)
    flag = np.array([True, False, True, False])[k] ^ (rng.random(n) < 0.05)
    return pd.DataFrame({"kind": np.array(list("abcd"))[k], "x": x, "flag": flag}), None


def _make_payments(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """Amounts in four currencies, a fifth of them zero; those of a rare currency are 100 times as large."""
    names, shares = ["USD", "EUR", "GBP", "JPY"], [0.5, 0.3, 0.146, 0.054]
    scales, no_amount = [40.0, 35.0, 30.0, 4_000.0], 0.2
    k = rng.choice(4, n, p=shares)
    amount = np.where(rng.random(n) < no_amount, 0.0, rng.lognormal(np.log(scales)[k], 0.6))
    frame = pd.DataFrame({"currency": np.array(names)[k], "amount": amount, "score": rng.beta(2, 5, n)})

    def log_density(test: pd.DataFrame) -> np.ndarray:
        code = np.searchsorted(sorted(names), test.currency)
        k = np.argsort(names)[code]
        positive = np.log1p(-no_amount) + lognorm(0.6, scale=np.array(scales)[k]).logpdf(test.amount)
        of_amount = np.where(test.amount == 0, np.log(no_amount), positive)
        return np.asarray(np.log(shares)[k] + of_amount + beta(2, 5).logpdf(test.score))

    return frame, log_density


def _make_wide(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """Forty columns of an autoregressive process."""
    x = rng.normal(size=(n, 40))
    for j in range(1, 40):
        x[:, j] = 0.8 * x[:, j - 1] + 0.6 * x[:, j]
    covariance = 0.8 ** np.abs(np.subtract.outer(np.arange(40), np.arange(40)))
    return _name_columns(x), multivariate_normal(np.zeros(40), covariance).logpdf


def _make_time_series(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """Lags of a random walk with changing volatility: columns that are nearly collinear."""
    volatility = np.exp(0.5 * rng.normal(size=(n, 1)))
    steps = 0.02 * volatility * rng.normal(size=(n, 8))
    return _name_columns(5 + rng.normal(size=(n, 1)) + steps.cumsum(1)), None


def _make_nonlinear(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
    """A chain of nonlinear regressions with noise that depends on the column before."""
    columns = [rng.normal(size=n)]
    for _ in range(4):
        before = columns[-1]
        columns.append(np.sin(2 * before) + 0.3 * (0.2 + np.abs(before)) * rng.normal(size=n))
    return _name_columns(np.stack(columns, 1)), None


def _make_of_sklearn(load: Callable[..., object]) -> Generate:
    def generate(n: int, rng: Rng) -> tuple[pd.DataFrame, LogDensity | None]:
        frame: pd.DataFrame = load(as_frame=True).data  # type: ignore[attr-defined]
        return frame, None

    return generate


SMALL_TABLES: dict[str, tuple[int, Generate]] = {
    "factor-0.3": (5_000, _make_factor(0.3)),
    "factor-0.1": (5_000, _make_factor(0.1)),
    "factor-0.03": (5_000, _make_factor(0.03)),
    "factor-0.1-integers": (5_000, _make_factor(0.1, 0)),
    "factor-0.1-1-decimal": (5_000, _make_factor(0.1, 1)),
    "factor-0.1-2-decimals": (5_000, _make_factor(0.1, 2)),
    "factor-0.1-3-decimals": (5_000, _make_factor(0.1, 3)),
    "nearly-gaussian-500": (500, _make_nearly_gaussian),
    "nearly-gaussian-2000": (2_000, _make_nearly_gaussian),
    "nearly-gaussian-6000": (6_000, _make_nearly_gaussian),
    "heavy-tails": (3_000, _make_heavy_tails),
    "skewed": (3_000, _make_skewed),
    "zero-inflated": (3_000, _make_zero_inflated),
    "clusters": (3_000, _make_clusters),
    "ring": (3_000, _make_ring),
    "lattice": (3_000, _make_lattice),
    "bounded": (3_000, _make_bounded),
    "counts": (3_000, _make_counts),
    "categories": (3_000, _make_categories),
    "payments": (900, _make_payments),
    "wide": (1_000, _make_wide),
    "time-series": (3_000, _make_time_series),
    "nonlinear": (3_000, _make_nonlinear),
    "iris": (0, _make_of_sklearn(datasets.load_iris)),
    "cultivars": (0, _make_of_sklearn(datasets.load_wine)),
    "breast-cancer": (0, _make_of_sklearn(datasets.load_breast_cancer)),
    "diabetes": (0, _make_of_sklearn(datasets.load_diabetes)),
}
"""Number of training rows and generator of each table; 0 rows for a table of scikit-learn, of which all are used."""
