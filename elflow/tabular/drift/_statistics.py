"""Two-sample tests on counts in bins: of one column, of pairs of columns, and of means.

All of them compare two samples of the same bins, and need no rows. Without drift, rows may be exchanged between the two
samples at random: small p-values of counts are those of simulated exchanges, which hold their level whatever the
distribution and the numbers of rows are. With N exchanges, they are at least 1 / (1 + N). Larger ones, which decide
nothing, are those of many rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import stats

from elflow.tabular._arrays import FloatArray, IntArray

__all__ = [
    "MIN_PAIRED",
    "Association",
    "Moments",
    "adjust_p_values",
    "compare_association",
    "compare_frequencies",
    "compare_means",
    "compare_order",
    "compare_vectors",
    "find_distance",
]

N_COMPONENTS = 4
"""Number of polynomials of ranks whose means are compared: location, scale, skewness and tails."""
MIN_EXPECTED = 5.0
"""Expected number of rows, in the smaller sample, below which categories are merged."""
MIN_PAIRED = 20
"""Number of rows of each sample, with values of both columns, below which a pair is not tested."""
MAX_SIMULATED = 0.1
"""p-value of many rows from which on exchanges of rows are not simulated."""
N_EXCHANGES = (2_000, 20_000)
"""Numbers of simulated exchanges at first, and at least if these have few that are as extreme."""
MAX_EXCHANGES = 400_000
"""Maximum number of simulated exchanges."""
RESOLUTION = 1e-4
"""Level at which p-values are to decide, if not told otherwise."""
MIN_EXTREME = 20
"""Number of extreme exchanges that are enough for a p-value."""
MIN_EIGENVALUE = 1e-9
"""Eigenvalues of covariances below this part of the largest one are rounding errors."""


class Moments(NamedTuple):
    """Number of values, their mean, which is NaN without values, and the sum of squared differences from it."""

    n_values: int
    mean: float
    squares: float

    @classmethod
    def of(cls, values: FloatArray) -> Moments:
        """Moments of finite values, `(N,)`."""
        if not len(values):
            return cls(0, float("nan"), 0.0)
        mean = float(values.mean())
        return cls(len(values), mean, float(((values - mean) ** 2).sum()))

    def merge(self, other: Moments) -> Moments:
        """Moments of the values of both."""
        if not self.n_values or not other.n_values:
            return self if self.n_values else other
        total = self.n_values + other.n_values
        difference = other.mean - self.mean
        squares = self.squares + other.squares + difference**2 * self.n_values * other.n_values / total
        return Moments(total, self.mean + difference * other.n_values / total, squares)

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return float(np.sqrt(self.squares / max(self.n_values - 1, 1) / max(self.n_values, 1)))


class Association(NamedTuple):
    """Result of a test of whether two columns depend on each other in the same way in two samples."""

    p_value: float
    reference: float
    """Correlation in the first sample: of ranks, or of the categories whose correlation changes most."""
    new: float
    """The same in the second sample."""


def compare_order(reference: IntArray, new: IntArray, resolution: float = RESOLUTION) -> float:
    """p-value of a test that values in ordered bins have the same distribution in two samples.

    Neyman's smooth test: the means of orthogonal polynomials of the ranks in both samples together are compared. The
    first one, which is Wilcoxon's test of the location, the second, a test of the scale, and all four together are
    tested, and the smallest p-value counts. This has more power than the Kolmogorov-Smirnov test.

    Arguments:
        reference: Number of rows of the first sample in each bin, `(K,)`.
        new: The same of the second sample.
        resolution: Level at which the p-value is to decide.

    Example:
        >>> compare_order(np.array([30, 40, 30]), np.array([31, 38, 31])) > 0.5
        True
        >>> compare_order(np.array([30, 40, 30]), np.array([10, 30, 60])) < 0.001
        True
    """
    pooled = (reference + new).astype(np.float64)
    reference, new, pooled = reference[pooled > 0], new[pooled > 0], pooled[pooled > 0]
    n, m, total = float(reference.sum()), float(new.sum()), float(pooled.sum())
    degree = min(N_COMPONENTS, len(pooled) - 1)
    if not n or not m or degree < 1:
        return 1.0
    middle = 2 * (np.cumsum(pooled) - pooled / 2) / total - 1
    weights = np.sqrt(pooled / total)
    basis = np.linalg.qr(weights[:, None] * np.polynomial.legendre.legvander(middle, degree))[0] / weights[:, None]

    def compute_statistic(counts: IntArray) -> FloatArray:
        difference = (counts / m - (pooled - counts) / n) @ basis[:, 1:]
        components = difference**2 / ((1 / n + 1 / m) * total / (total - 1))
        p_values = [stats.chi2.sf(components[..., k], 1) for k in range(min(2, degree))]
        p_values.append(stats.chi2.sf(components.sum(-1), degree))
        statistic: FloatArray = -2 * np.log(np.maximum(np.min(p_values, 0), 1e-300))
        return statistic

    def find_p_value(statistic: float) -> float:  # at most the sum of those of the three parts
        return min(1.0, 3 * float(np.exp(-statistic / 2)))

    return _simulate_p_value(compute_statistic, find_p_value, pooled.astype(np.int64), new, resolution)


def compare_frequencies(reference: IntArray, new: IntArray, resolution: float = RESOLUTION) -> float:
    """p-value of a test that categories have the same frequencies in two samples.

    Pearson's test, with rare categories merged, or Fisher's exact test of two categories.

    Arguments:
        reference: Number of rows of the first sample in each category, `(K,)`.
        new: The same of the second sample.
        resolution: Level at which the p-value is to decide.

    Example:
        >>> compare_frequencies(np.array([30, 40, 1]), np.array([31, 38, 0])) > 0.5
        True
    """
    n, m = int(reference.sum()), int(new.sum())
    if not n or not m:
        return 1.0
    table = _merge_rare(np.stack([reference, new]), min(n, m) / (n + m))
    if table.shape[1] == 1:
        return 1.0
    if table.shape[1] == 2:
        return float(stats.fisher_exact(table).pvalue)
    pooled = table.sum(0)
    expected = pooled * (m / (n + m))

    def compute_statistic(counts: IntArray) -> FloatArray:  # Pearson's
        statistic: FloatArray = ((counts - expected) ** 2 / expected).sum(-1) * (n + m) / n
        return statistic

    def find_p_value(statistic: float) -> float:
        return float(stats.chi2.sf(statistic, table.shape[1] - 1))

    return _simulate_p_value(compute_statistic, find_p_value, pooled, table[1], resolution)


def _simulate_p_value(
    compute_statistic: Callable[[IntArray], FloatArray],
    find_p_value: Callable[[float], float],
    pooled: IntArray,
    new: IntArray,
    resolution: float,
) -> float:
    """p-value of a statistic that is large if two samples differ.

    Arguments:
        compute_statistic: Function of the numbers of rows of the second sample in each bin, `(..., K)`.
        find_p_value: p-value of a statistic of many rows.
        pooled: Number of rows of both samples in each bin, `(K,)`.
        new: Number of rows of the second sample, `(K,)`.
        resolution: Level at which the p-value is to decide: there are exchanges enough for a p-value of half of it.
    """
    observed = float(compute_statistic(new))
    p_value = find_p_value(observed)
    if p_value > MAX_SIMULATED:
        return p_value
    rng = np.random.default_rng(0)

    def count_extreme(n_exchanges: int) -> int:
        values = compute_statistic(rng.multivariate_hypergeometric(pooled, int(new.sum()), n_exchanges))
        return int((values >= observed * (1 - 1e-9)).sum())

    n_exchanges = N_EXCHANGES[0]
    n_extreme = count_extreme(n_exchanges)
    if n_extreme < MIN_EXTREME:  # others instead of these, whose number must not depend on the result
        total = int(min(max(N_EXCHANGES[1], np.ceil(2 / resolution)), MAX_EXCHANGES))
        n_extreme = n_exchanges = 0
        while n_exchanges < total and n_extreme < MIN_EXTREME:
            size = min(N_EXCHANGES[1], total - n_exchanges)
            n_extreme += count_extreme(size)
            n_exchanges += size
    return (1 + n_extreme) / (1 + n_exchanges)


def _merge_rare(table: IntArray, share: float) -> IntArray:
    """The counts of two samples, `(2, K)`, with rare categories merged; `share` is that of the smaller sample."""
    table = table[:, table.sum(0) > 0]
    table = table[:, np.argsort(table.sum(0), kind="stable")]
    expected = table.sum(0) * share
    n_merged = int((expected < MIN_EXPECTED).sum())
    if 0 < n_merged < len(expected) and expected[:n_merged].sum() < MIN_EXPECTED and len(expected) > 2:
        n_merged += 1
    if n_merged < 2 or len(expected) <= 2:
        return table
    return np.concatenate([table[:, :n_merged].sum(1, keepdims=True), table[:, n_merged:]], 1)


def find_distance(reference: IntArray, new: IntArray, is_ordered: bool) -> float:
    """Distance of two distributions over bins, from 0 to 1: Kolmogorov-Smirnov, or total variation without an order."""
    if not reference.sum() or not new.sum():
        return 0.0
    difference = new / new.sum() - reference / reference.sum()
    return float(np.abs(np.cumsum(difference)).max() if is_ordered else np.abs(difference).sum() / 2)


def compare_means(reference: Moments, new: Moments) -> float:
    """p-value of Welch's test of two means."""
    if min(reference.n_values, new.n_values) < 2:
        return 1.0
    error = float(np.hypot(reference.error, new.error))
    if error == 0:
        return 1.0 if reference.mean == new.mean else 0.0
    parts = [(sample.error**2, sample.n_values - 1) for sample in (reference, new)]
    freedom = error**4 / sum(variance**2 / count for variance, count in parts)
    return float(2 * stats.t.sf(abs(new.mean - reference.mean) / error, freedom))


def compare_vectors(reference: tuple[int, FloatArray, FloatArray], new: tuple[int, FloatArray, FloatArray]) -> float:
    """p-value of Hotelling's test of two means of vectors.

    Arguments:
        reference: Number of vectors of the first sample, their sum, `(R,)`, and that of their products, `(R, R)`.
        new: The same of the second sample.
    """
    (n, sums, products), (m, new_sums, new_products) = reference, new
    total = n + m
    if min(n, m) < 2:
        return 1.0
    within = products - np.outer(sums, sums) / n + new_products - np.outer(new_sums, new_sums) / m
    values, vectors = np.linalg.eigh(within / (total - 2))
    is_used = values > MIN_EIGENVALUE * max(float(values.max()), 1e-300)
    rank = int(is_used.sum())
    if not rank or total - rank - 1 < 1:
        return 1.0
    difference = (new_sums / m - sums / n) @ vectors[:, is_used]
    statistic = float((difference**2 / values[is_used]).sum() * n * m / total)
    return float(stats.f.sf(statistic * (total - rank - 1) / (rank * (total - 2)), rank, total - rank - 1))


def compare_association(
    reference: IntArray,
    new: IntArray,
    is_ordered: tuple[bool, bool],
    min_rows: int = MIN_PAIRED,
    resolution: float = RESOLUTION,
) -> Association | None:
    """Test whether two columns depend on each other in the same way in two samples; None if there are too few rows.

    The correlations of ranks, or of indicators of categories, are compared. Each sample has its own means and
    variances. Nevertheless a change of one column alone changes the correlations of its groups a little.

    Arguments:
        reference: Number of rows of the first sample in each pair of groups, `(K, L)`.
        new: The same of the second sample.
        is_ordered: Whether the groups of each column have an order.
        min_rows: Number of rows of each sample below which nothing is tested.
        resolution: Level at which the p-value is to decide.

    Example:
        >>> strong, weak = np.array([[40, 10], [10, 40]]), np.array([[30, 20], [20, 30]])
        >>> compare_association(strong, strong, (True, True)).p_value
        1.0
        >>> compare_association(10 * strong, 10 * weak, (True, True)).p_value < 1e-4
        True
    """
    n, m = int(reference.sum()), int(new.sum())
    if min(n, m) < min_rows:
        return None
    pooled = (reference + new) / (n + m)
    first = _score_groups(pooled.sum(1), is_ordered[0], min(n, m))
    second = _score_groups(pooled.sum(0), is_ordered[1], min(n, m))
    if not first.shape[1] or not second.shape[1]:
        return None
    correlations, x, y = _correlate(pooled, first, second)
    # Influence of a row in each pair of groups on each correlation, and from it their covariance.
    squares = (x**2)[:, None, :, None] + (y**2)[None, :, None, :]
    influence = x[:, None, :, None] * y[None, :, None, :] - correlations * squares / 2
    influence = influence.reshape(*pooled.shape, -1)
    covariance = np.tensordot(influence * pooled[..., None], influence, ((0, 1), (0, 1))) * (1 / n + 1 / m)
    values, vectors = np.linalg.eigh(covariance)
    is_used = values > 1e-6 * max(float(values.max()), 1e-300)
    if not is_used.any() or float(values.max()) < MIN_EIGENVALUE / min(n, m):
        return None
    roots = vectors[:, is_used] / np.sqrt(values[is_used])
    both, shape = (reference + new).reshape(-1), reference.shape

    def find_difference(counts: IntArray) -> FloatArray:
        joint = counts.reshape(*counts.shape[:-1], *shape)
        old, now = (
            _correlate(part / size, first, second)[0] for part, size in ((reference + new - joint, n), (joint, m))
        )
        return (now - old).reshape(*counts.shape[:-1], -1)

    def compute_statistic(counts: IntArray) -> FloatArray:
        statistic: FloatArray = ((find_difference(counts) @ roots) ** 2).sum(-1)
        return statistic

    most = int(np.argmax(np.abs(find_difference(new.reshape(-1)))))

    def find_p_value(statistic: float) -> float:
        return float(stats.chi2.sf(statistic, int(is_used.sum())))

    p_value = _simulate_p_value(compute_statistic, find_p_value, both, new.reshape(-1), resolution)
    old, now = (float(_correlate(part / part.sum(), first, second)[0].reshape(-1)[most]) for part in (reference, new))
    return Association(p_value, old, now)


def _score_groups(shares: FloatArray, is_ordered: bool, n_rows: int) -> FloatArray:
    """Scores of the groups of a column, `(K, scores)`: ranks, or indicators of the frequent categories."""
    if is_ordered:
        scores = (np.cumsum(shares) - shares / 2)[:, None]
    else:
        # A pair of categories with the smallest shares is to have about five rows.
        scores = np.eye(len(shares))[:, shares >= np.sqrt(MIN_EXPECTED / n_rows)]
    variances = shares @ scores**2 - (shares @ scores) ** 2
    return scores[:, variances > 1e-12]


def _correlate(joint: FloatArray, first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Correlations of scores, `(..., p, q)`, and standardised scores, for joint shares of groups `(..., K, L)`.

    The correlation of scores that are constant is zero.
    """
    x, y = _standardize(first, joint.sum(-1)), _standardize(second, joint.sum(-2))
    return np.swapaxes(x, -1, -2) @ joint @ y, x, y


def _standardize(scores: FloatArray, shares: FloatArray) -> FloatArray:
    """Scores with mean 0 and variance 1, `(..., K, p)`, for shares of groups `(..., K)`."""
    centred = scores - (shares @ scores)[..., None, :]
    variances = (shares[..., None] * centred**2).sum(-2, keepdims=True)
    return np.where(variances > 1e-12, centred / np.sqrt(np.maximum(variances, 1e-12)), 0.0)


def adjust_p_values(p_values: FloatArray, weights: FloatArray) -> FloatArray:
    """p-values adjusted for the number of tests, by Holm's method with weights.

    The probability that the smallest one is below a level, if all hypotheses are true, is at most this level, whatever
    the dependence of the tests.

    Arguments:
        p_values: p-values, `(T,)`.
        weights: Shares of the level that the tests have at first, `(T,)`, with a sum of 1.

    Example:
        >>> adjust_p_values(np.array([0.01, 0.2, 0.03]), np.full(3, 1 / 3)).round(3)
        array([0.03, 0.2 , 0.06])
    """
    order = np.argsort(p_values / weights, kind="stable")
    remaining = np.cumsum(weights[order][::-1])[::-1]
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(p_values[order] / weights[order] * remaining), 1.0)
    return adjusted
