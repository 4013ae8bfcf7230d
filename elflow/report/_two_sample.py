"""Two-sample test: whether a classifier can distinguish real from sampled rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GroupKFold

from elflow.report._tables import Column

__all__ = ["TwoSample", "compute_auc", "run_two_sample_test"]

Floats = NDArray[np.float64]

N_FOLDS = 5
MIN_CLASSIFIER_ROWS = 10
"""Real rows, and sampled rows, below which no classifier is trained."""
MAX_CLASSIFIER_LABELS = 200
"""Number of labels that the classifier distinguishes; rarer ones share a code."""
MIN_IMPORTANCE = 0.01
"""Loss of AUC from which a column counts as informative."""


@dataclass(frozen=True)
class TwoSample:
    """Result of the two-sample test: how well a classifier distinguishes real from sampled rows."""

    auc: float
    """Area under the ROC curve, cross-validated: 0.5 for indistinguishable rows, 1 for perfect separation."""
    error: float
    """Standard error of `auc` if both distributions are the same, an upper bound."""
    n_rows: int
    """Number of real rows."""
    n_sampled: int
    """Number of sampled rows."""
    top_columns: tuple[tuple[str, float], ...]
    """The most informative columns, each with the loss of AUC when it is shuffled; empty for an AUC close to 0.5."""

    @property
    def p_value(self) -> float:
        """Probability of an AUC as large, or larger, if real and sampled rows have the same distribution, at most."""
        return float(stats.norm.sf((self.auc - 0.5) / max(self.error, 1e-300)))


def run_two_sample_test(columns: Sequence[Column], random_state: int) -> TwoSample | None:
    """Cross-validate a gradient-boosting classifier of real and sampled rows; None if there are too few rows.

    There may be several sampled rows for each real row. A real row and those that share its context are in the same
    fold: they are consecutive, in the order of the real rows.
    """
    n_rows, n_sampled = len(columns[0].real), len(columns[0].sampled)
    if min(n_rows, n_sampled) < MIN_CLASSIFIER_ROWS:
        return None
    x = np.column_stack([np.append(_merge_labels(c, c.real), _merge_labels(c, c.sampled)) for c in columns])
    y = np.repeat([0, 1], [n_rows, n_sampled])
    group = np.append(np.arange(n_rows), np.arange(n_sampled) * n_rows // n_sampled)
    aucs, variances, losses = [], [], np.zeros(len(columns))
    # With several samples for each real row, a leaf is to have as many real rows as with one.
    leaf = min(20, max(2, n_rows // 10)) * max(1.0, (1 + n_sampled / n_rows) / 2)
    classifier = HistGradientBoostingClassifier(
        max_leaf_nodes=15,
        min_samples_leaf=round(leaf),
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
    # Rows of two folds train the classifiers of each other, which correlates the AUCs of folds. If two rows have the
    # same effect on each other, as with a symmetric kernel, the variance of the sum is twice that of independent AUCs.
    auc, error = float(np.mean(aucs)), float(np.sqrt(2 * np.sum(variances)) / N_FOLDS)
    order = [int(k) for k in np.argsort(-losses, kind="stable")[:3] if losses[k] > MIN_IMPORTANCE]
    top_columns = tuple((columns[k].name, float(losses[k])) for k in order) if auc > 0.5 + 2 * error else ()
    return TwoSample(auc, error, n_rows, n_sampled, top_columns)


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
