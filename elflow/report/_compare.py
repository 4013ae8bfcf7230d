"""Comparison of real and sampled rows: marginal distributions, correlations, and a classifier two-sample test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GroupKFold

from elflow.report._tables import Column

__all__ = [
    "Correlations",
    "Marginal",
    "TwoSample",
    "compare_correlations",
    "compare_marginal",
    "compute_auc",
    "run_two_sample_test",
    "select_dependent",
]

Floats = NDArray[np.float64]

MAX_LABELS = 15
"""Number of labels in the plot of a column; rarer ones are only counted."""
MAX_BINS = 30
PLOTTED_QUANTILES = (0.005, 0.995)
"""Range of a plot: without a limit, a few outliers would squeeze all other values into one bin."""
SIGNIFICANCE = 0.01
"""Default significance of a difference between marginal distributions."""
N_FOLDS = 5
MIN_CLASSIFIER_ROWS = 10
"""Real rows, and sampled rows, below which no classifier is trained."""
MAX_CLASSIFIER_LABELS = 200
"""Number of labels that the classifier distinguishes; rarer ones share a code."""
N_INFORMATION_BINS = 8
MIN_IMPORTANCE = 0.01
"""Loss of AUC from which a column counts as informative."""


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


@dataclass(frozen=True)
class Correlations:
    """Spearman rank correlations between columns, 0 for a constant column."""

    names: tuple[str, ...]
    real: Floats
    """Correlations of the real rows, `(columns, columns)`."""
    sampled: Floats
    """Correlations of the sampled rows, `(columns, columns)`."""

    def largest_differences(self, count: int) -> list[tuple[str, str, float, float]]:
        """The pairs of columns with the largest difference, each with its real and its sampled correlation."""
        i, j = np.tril_indices(len(self.names), -1)
        order = np.argsort(-np.abs(self.sampled - self.real)[i, j], kind="stable")[:count]
        pairs = zip(i[order], j[order], strict=True)
        return [(self.names[b], self.names[a], float(self.real[a, b]), float(self.sampled[a, b])) for a, b in pairs]


@dataclass(frozen=True)
class TwoSample:
    """Result of the two-sample test: how well a classifier distinguishes real from sampled rows."""

    auc: float
    """Area under the ROC curve, cross-validated: 0.5 for indistinguishable rows, 1 for perfect separation."""
    error: float
    """Standard error of `auc`."""
    n_rows: int
    """Number of real rows, and of sampled rows."""
    top_columns: tuple[tuple[str, float], ...]
    """The most informative columns, each with the loss of AUC when it is shuffled; empty for an AUC close to 0.5."""


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


def compare_correlations(columns: Sequence[Column]) -> Correlations:
    """Compute rank correlations of real and of sampled rows, over the rows in which both columns have a value."""
    real, sampled = (
        pd.DataFrame(dict(enumerate(values))).corr(method="spearman", min_periods=3).fillna(0).to_numpy()
        for values in ([c.real for c in columns], [c.sampled for c in columns])
    )
    return Correlations(tuple(c.name for c in columns), real, sampled)


def run_two_sample_test(columns: Sequence[Column], random_state: int) -> TwoSample | None:
    """Cross-validate a gradient-boosting classifier of real and sampled rows; None if there are too few rows.

    The real and the sampled row with the same index are in the same fold, because they share their context.
    """
    count = min(len(columns[0].real), len(columns[0].sampled))
    if count < MIN_CLASSIFIER_ROWS:
        return None
    x = np.column_stack(
        [np.append(_merge_labels(c, c.real[:count]), _merge_labels(c, c.sampled[:count])) for c in columns]
    )
    y, group = np.repeat([0, 1], count), np.tile(np.arange(count), 2)
    aucs, variances, losses = [], [], np.zeros(len(columns))
    classifier = HistGradientBoostingClassifier(
        max_leaf_nodes=15,
        min_samples_leaf=min(20, max(2, count // 10)),
        categorical_features=[c.has_labels for c in columns],
        early_stopping=False,
        random_state=random_state,
    )
    for train, test in GroupKFold(N_FOLDS, shuffle=True, random_state=random_state).split(x, y, group):
        classifier.fit(x[train], y[train])
        score = classifier.decision_function(x[test])
        auc, variance = compute_auc(score[y[test] == 0], score[y[test] == 1])
        aucs.append(auc)
        variances.append(variance)
        if len(aucs) == N_FOLDS:  # one fold is enough to rank the columns
            importance: Any = permutation_importance(
                classifier, x[test], y[test], scoring="roc_auc", n_repeats=3, random_state=random_state
            )
            losses = importance.importances_mean
    auc, error = float(np.mean(aucs)), float(np.sqrt(np.sum(variances)) / N_FOLDS)
    order = [int(k) for k in np.argsort(-losses, kind="stable")[:3] if losses[k] > MIN_IMPORTANCE]
    top_columns = tuple((columns[k].name, float(losses[k])) for k in order) if auc > 0.5 + 2 * error else ()
    return TwoSample(auc, error, count, top_columns)


def _merge_labels(column: Column, values: Floats) -> Floats:
    return np.minimum(values, MAX_CLASSIFIER_LABELS) if column.has_labels else values


def compute_auc(low: Floats, high: Floats) -> tuple[float, float]:
    """Area under the ROC curve for scores that should be low and scores that should be high, and its variance.

    The variance is that of DeLong et al. (1988).
    """
    ranks = stats.rankdata(np.append(low, high))
    of_low = (ranks[: len(low)] - stats.rankdata(low)) / len(high)  # share of high scores below each low score
    of_high = (ranks[len(low) :] - stats.rankdata(high)) / len(low)
    variance = sum(np.var(part, ddof=1) / len(part) for part in (of_low, of_high) if len(part) > 1)
    return float(of_high.mean()), float(variance)
