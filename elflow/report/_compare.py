"""Real rows against sampled rows: column by column, pair by pair, and by a classifier that tries to tell them apart."""

from __future__ import annotations

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

__all__ = ["Correlations", "Marginal", "TwoSample", "correlations", "dependent", "marginal", "two_sample"]

Floats = NDArray[np.float64]

MOST_LABELS = 15
MOST_BINS = 30
MIDDLE = (0.005, 0.995)
"""The share of a column that is drawn: beyond it a few outliers would press everything else into one bin."""
FOLDS = 5
FEWEST = 10
"""Rows of either kind, below which a classifier has nothing to learn from."""
MOST_CODES = 200
"""Categories that the classifier sees as such; the rarest beyond count as one."""


@dataclass(frozen=True)
class Marginal:
    """One column: the shares of real and of sampled rows in bins between `edges`, or with each of the `labels`."""

    name: str
    kind: str
    labels: tuple[str, ...]
    others: int
    """How many labels there are besides."""
    edges: Floats
    real: Floats
    sampled: Floats
    missing: tuple[float, float]
    """The shares of missing values, real and sampled."""
    distance: float
    """From 0 to 1: Kolmogorov and Smirnov's for numbers and times, the total variation for labels."""


@dataclass(frozen=True)
class Correlations:
    """Spearman's rank correlations of the columns, 0 where a column is constant."""

    names: tuple[str, ...]
    real: Floats
    sampled: Floats

    def largest_differences(self, count: int) -> list[tuple[str, str, float, float]]:
        """The pairs of columns whose correlation the samples miss most, with the real and the sampled one."""
        i, j = np.tril_indices(len(self.names), -1)
        order = np.argsort(-np.abs(self.sampled - self.real)[i, j], kind="stable")[:count]
        pairs = zip(i[order], j[order], strict=True)
        return [(self.names[b], self.names[a], float(self.real[a, b]), float(self.sampled[a, b])) for a, b in pairs]


@dataclass(frozen=True)
class TwoSample:
    """How well a classifier tells real rows from sampled ones."""

    auc: float
    error: float
    rows: int
    """Of either kind."""
    telling: tuple[tuple[str, float], ...]
    """The columns that it tells them by, with how much of the AUC goes when they are shuffled; none where
    it hardly tells them apart."""


def marginal(column: Column) -> Marginal:
    """What there is to draw about one column."""
    real, sampled = column.real[~np.isnan(column.real)], column.sampled[~np.isnan(column.sampled)]
    missing = (1 - len(real) / len(column.real), 1 - len(sampled) / len(column.sampled))
    if column.labelled:
        bins = np.arange(max(len(column.labels), 1) + 1, dtype=np.float64) - 0.5
        a, b = _shares(real, bins), _shares(sampled, bins)
        distance, labels = float(np.abs(a - b).sum() / 2), column.labels
        if len(labels) > MOST_LABELS:
            most = np.sort(np.argsort(-a, kind="stable")[:MOST_LABELS])
            labels, a, b = tuple(labels[k] for k in most), a[most], b[most]
        others = len(column.labels) - len(labels)
        return Marginal(column.name, column.kind, labels, others, bins, a, b, missing, distance)
    edges = _edges(column.kind, real if len(real) else sampled)
    distance = float(stats.ks_2samp(real, sampled, method="asymp").statistic) if len(real) and len(sampled) else 1.0
    if not len(real) and not len(sampled):
        distance = 0.0
    return Marginal(
        column.name, column.kind, (), 0, edges, _shares(real, edges), _shares(sampled, edges), missing, distance
    )


def _edges(kind: str, values: Floats) -> Floats:
    """Of bins over the middle of the values; a bin of its own for each of a few integers."""
    if not len(values):
        return np.array([0.0, 1.0])
    low, high = (float(bound) for bound in np.quantile(values, MIDDLE))
    if kind == "integer":
        step = max(1, int(np.ceil((high - low + 1) / MOST_BINS)))
        return np.arange(np.floor(low), np.ceil(high) + step + 0.5, step) - 0.5
    if not high > low:
        spread = max(abs(low), 1.0) / 2
        return np.linspace(low - spread, low + spread, 12)
    count = int(np.clip(np.sqrt(len(values)), 8, MOST_BINS))
    margin = (high - low) / count / 2
    return np.linspace(low - margin, high + margin, count + 2)


def _shares(values: Floats, edges: Floats) -> Floats:
    return np.histogram(values, edges)[0] / max(len(values), 1)


def dependent(columns: tuple[Column, ...], count: int) -> tuple[int, ...]:
    """The places of the columns that depend on each other most, by their mutual information; at most `count`."""
    if len(columns) <= count:
        return tuple(range(len(columns)))
    cells = [_cells(column.real) for column in columns]
    information = np.zeros((len(columns), len(columns)))
    for i in range(len(columns)):
        for j in range(i):
            information[i, j] = information[j, i] = _information(cells[i], cells[j])
    chosen = [int(k) for k in np.unravel_index(int(information.argmax()), information.shape)]
    while len(chosen) < count:
        rest = [k for k in range(len(columns)) if k not in chosen]
        chosen.append(max(rest, key=lambda k: information[k, chosen].max()))
    return tuple(sorted(chosen))


def _cells(values: Floats, count: int = 8) -> NDArray[np.int64]:
    """In which of `count` bins, with about as many values in each, a value lies; missing ones in a bin of their own."""
    known = values[~np.isnan(values)]
    edges = np.unique(np.quantile(known, np.linspace(0, 1, count + 1)[1:-1])) if len(known) else np.zeros(0)
    return np.where(np.isnan(values), count, np.searchsorted(edges, values, side="right"))


def _information(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """The mutual information of two columns of bins, less what chance alone would give (Miller's correction)."""
    table = np.zeros((9, 9))
    np.add.at(table, (a, b), 1 / len(a))
    expected = np.outer(table.sum(1), table.sum(0))
    seen = table > 0
    chance = ((table.sum(1) > 0).sum() - 1) * ((table.sum(0) > 0).sum() - 1) / (2 * len(a))
    return float((table[seen] * np.log(table[seen] / expected[seen])).sum() - chance)


def correlations(columns: tuple[Column, ...]) -> Correlations:
    """Rank correlations of real and of sampled rows, over the rows where both columns have a value."""
    real, sampled = (
        pd.DataFrame(dict(enumerate(values))).corr(method="spearman", min_periods=3).fillna(0).to_numpy()
        for values in ([c.real for c in columns], [c.sampled for c in columns])
    )
    return Correlations(tuple(c.name for c in columns), real, sampled)


def two_sample(columns: tuple[Column, ...], random_state: int) -> TwoSample | None:
    """Cross-validates a gradient-boosting classifier on as many real as sampled rows; None where these are too few.

    The real and the sampled row with the same number share a fold: under a context they have it in common.
    """
    count = min(len(columns[0].real), len(columns[0].sampled))
    if count < FEWEST:
        return None
    x = np.column_stack([np.append(_seen(c, c.real[:count]), _seen(c, c.sampled[:count])) for c in columns])
    y, group = np.repeat([0, 1], count), np.tile(np.arange(count), 2)
    aucs, variances, drops = [], [], np.zeros(len(columns))
    classifier = HistGradientBoostingClassifier(
        max_leaf_nodes=15,
        min_samples_leaf=min(20, max(2, count // 10)),
        categorical_features=[c.labelled for c in columns],
        early_stopping=False,
        random_state=random_state,
    )
    for train, test in GroupKFold(FOLDS, shuffle=True, random_state=random_state).split(x, y, group):
        classifier.fit(x[train], y[train])
        score = classifier.decision_function(x[test])
        auc, variance = area(score[y[test] == 0], score[y[test] == 1])
        aucs.append(auc)
        variances.append(variance)
        if len(aucs) == FOLDS:
            importance: Any = permutation_importance(
                classifier, x[test], y[test], scoring="roc_auc", n_repeats=3, random_state=random_state
            )
            drops = importance.importances_mean
    auc, error = float(np.mean(aucs)), float(np.sqrt(np.sum(variances)) / FOLDS)
    order = [int(k) for k in np.argsort(-drops, kind="stable")[:3] if drops[k] > 0.01]
    telling = tuple((columns[k].name, float(drops[k])) for k in order) if auc > 0.5 + 2 * error else ()
    return TwoSample(auc, error, count, telling)


def _seen(column: Column, values: Floats) -> Floats:
    return np.minimum(values, MOST_CODES) if column.labelled else values


def area(low: Floats, high: Floats) -> tuple[float, float]:
    """The area under the curve of scores that should be low and high, and its variance (DeLong's)."""
    below = stats.rankdata(np.append(low, high))
    of_low = (below[: len(low)] - stats.rankdata(low)) / len(high)  # the share of high scores below each low one
    of_high = (below[len(low) :] - stats.rankdata(high)) / len(low)
    variance = sum(np.var(part, ddof=1) / len(part) for part in (of_low, of_high) if len(part) > 1)
    return float(of_high.mean()), float(variance)
