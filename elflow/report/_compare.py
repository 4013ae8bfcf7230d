"""Comparison of real and sampled rows: marginal distributions, and which columns depend on each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from elflow.report._tables import Column

__all__ = ["SIGNIFICANCE", "Marginal", "compare_marginal", "select_dependent"]

Floats = NDArray[np.float64]

MAX_LABELS = 15
"""Number of labels in the plot of a column; rarer ones are only counted."""
MAX_BINS = 30
PLOTTED_QUANTILES = (0.005, 0.995)
"""Range of a plot: without a limit, a few outliers would squeeze all other values into one bin."""
SIGNIFICANCE = 0.01
"""Default significance of a difference between marginal distributions."""
N_INFORMATION_BINS = 8


@dataclass(frozen=True)
class Marginal:
    """Marginal distribution of one column, in the real and in the sampled rows."""

    name: str
    kind: str
    labels: tuple[str, ...]
    """The labels that are plotted; empty for numbers and times."""
    n_others: int
    """Number of labels that are not plotted."""
    edges: Floats
    """Edges of the histogram bins, `(bins + 1,)`."""
    real: Floats
    """Share of the real rows in each bin, or with each label."""
    sampled: Floats
    """Share of the sampled rows in each bin, or with each label."""
    missing: tuple[float, float]
    """Share of missing values among the real and the sampled rows."""
    distance: float
    """From 0 to 1: Kolmogorov-Smirnov distance for numbers and times, total variation distance for labels, or the
    difference between the shares of missing values if that is larger."""
    limit: float
    """Distance up to which chance explains it."""


def compare_marginal(column: Column, significance: float = SIGNIFICANCE) -> Marginal:
    """Compare the distributions of real and of sampled values in one column.

    Arguments:
        column: The column.
        significance: Probability with which the distance exceeds `limit` by chance, at most.
    """
    real, sampled = column.real[~np.isnan(column.real)], column.sampled[~np.isnan(column.sampled)]
    missing = (1 - len(real) / len(column.real), 1 - len(sampled) / len(column.sampled))
    chance = (1 / max(len(real), 1) + 1 / max(len(sampled), 1)) / 2
    if column.has_labels:
        edges = np.arange(max(len(column.labels), 1) + 1, dtype=np.float64) - 0.5
        real_shares, sampled_shares = _compute_shares(real, edges), _compute_shares(sampled, edges)
        distance, labels = float(np.abs(real_shares - sampled_shares).sum() / 2), column.labels
        # The expected distance of two samples of the same distribution, and McDiarmid's inequality for the rest.
        pooled = (real_shares + sampled_shares) / 2
        expected = float(np.sqrt(pooled * (1 - pooled) * chance / np.pi).sum())
        limit = expected + float(np.sqrt(-np.log(significance) * chance))
        if len(labels) > MAX_LABELS:
            top = np.sort(np.argsort(-real_shares, kind="stable")[:MAX_LABELS])
            labels = tuple(labels[k] for k in top)
            real_shares, sampled_shares = real_shares[top], sampled_shares[top]
        n_others = len(column.labels) - len(labels)
        distance = max(distance, abs(missing[0] - missing[1]))
        return Marginal(
            column.name, column.kind, labels, n_others, edges, real_shares, sampled_shares, missing, distance, limit
        )
    edges = _choose_edges(column.kind, real if len(real) else sampled)
    if len(real) and len(sampled):
        distance = float(stats.ks_2samp(real, sampled, method="asymp").statistic)
    else:
        distance = 0.0 if len(real) == len(sampled) else 1.0
    real_shares, sampled_shares = _compute_shares(real, edges), _compute_shares(sampled, edges)
    distance = max(distance, abs(missing[0] - missing[1]))
    limit = float(np.sqrt(-np.log(significance / 2) * chance))  # of the two-sample Kolmogorov-Smirnov test
    return Marginal(column.name, column.kind, (), 0, edges, real_shares, sampled_shares, missing, distance, limit)


def _choose_edges(kind: str, values: Floats) -> Floats:
    """Edges of histogram bins over most of the values; for a narrow range of integers, one bin each."""
    if not len(values):
        return np.array([0.0, 1.0])
    low, high = (float(bound) for bound in np.quantile(values, PLOTTED_QUANTILES))
    if kind == "integer":
        step = max(1, int(np.ceil((high - low + 1) / MAX_BINS)))
        return np.arange(np.floor(low), np.ceil(high) + step + 0.5, step) - 0.5
    if not high > low:
        spread = max(abs(low), 1.0) / 2
        return np.linspace(low - spread, low + spread, 12)
    count = int(np.clip(np.sqrt(len(values)), 8, MAX_BINS))
    margin = (high - low) / count / 2
    return np.linspace(low - margin, high + margin, count + 2)


def _compute_shares(values: Floats, edges: Floats) -> Floats:
    return np.histogram(values, edges)[0] / max(len(values), 1)


def select_dependent(columns: Sequence[Column], count: int) -> tuple[int, ...]:
    """Select up to `count` columns with the strongest dependence, by their mutual information."""
    if len(columns) <= count:
        return tuple(range(len(columns)))
    bins = [_bin_values(column.real) for column in columns]
    information = np.zeros((len(columns), len(columns)))
    for i in range(len(columns)):
        for j in range(i):
            information[i, j] = information[j, i] = _estimate_information(bins[i], bins[j])
    chosen = [int(k) for k in np.unravel_index(int(information.argmax()), information.shape)]
    while len(chosen) < count:
        rest = [k for k in range(len(columns)) if k not in chosen]
        chosen.append(max(rest, key=lambda k: information[k, chosen].max()))
    return tuple(sorted(chosen))


def _bin_values(values: Floats) -> NDArray[np.int64]:
    """Indices of bins with about the same number of values each; missing values have a bin of their own."""
    known = values[~np.isnan(values)]
    shares = np.linspace(0, 1, N_INFORMATION_BINS + 1)[1:-1]
    edges = np.unique(np.quantile(known, shares)) if len(known) else np.zeros(0)
    return np.where(np.isnan(values), N_INFORMATION_BINS, np.searchsorted(edges, values, side="right"))


def _estimate_information(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """Mutual information of two binned columns, with the Miller-Madow correction for its bias."""
    joint = np.zeros((N_INFORMATION_BINS + 1, N_INFORMATION_BINS + 1))
    np.add.at(joint, (a, b), 1 / len(a))
    product = np.outer(joint.sum(1), joint.sum(0))
    seen = joint > 0
    bias = ((joint.sum(1) > 0).sum() - 1) * ((joint.sum(0) > 0).sum() - 1) / (2 * len(a))
    return float((joint[seen] * np.log(joint[seen] / product[seen])).sum() - bias)
