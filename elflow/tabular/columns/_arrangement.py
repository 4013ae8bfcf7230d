"""Order of categories that have none of their own, by the column of numbers that depends most on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri
from scipy.stats import f as f_distribution
from scipy.stats import rankdata

from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular.columns._column import Column

__all__ = ["arrange_categories"]

SIGNIFICANCE = 0.01
"""Probability that categories without an influence on any column are arranged by chance."""
MAX_LEVELS = 512
"""Maximum number of categories that are arranged."""
MAX_ROWS = 20_000
"""Maximum number of rows from which the influence of categories is estimated."""


def arrange_categories(
    columns: Sequence[Column], frame: pd.DataFrame, counts: Mapping[str, Mapping[Any, int]]
) -> tuple[Column, ...]:
    """Columns whose categories follow the mean of the column of numbers that depends most on them.

    The cells of categories lie next to each other on one axis. If neighbours have similar amounts, the relation of the
    amounts to this axis is monotonic, and a flow, or a Gaussian, represents it with far less effort.

    Arguments:
        columns: The columns.
        frame: Rows of the table.
        counts: Number of rows of each category in the whole table, by column, if the frame has only some of its rows.
    """
    unordered = [column for column in columns if not column.has_order and 2 < len(column.levels or ()) <= MAX_LEVELS]
    numeric = [column for column in columns if column.kind in ("continuous", "integer")]
    if not unordered or not numeric:
        return tuple(columns)
    sample = frame if len(frame) <= MAX_ROWS else frame.sample(MAX_ROWS, random_state=0)
    scores = [_score_normally(column, sample[column.name]) for column in numeric]
    arranged = {}
    for column in unordered:
        codes = np.full(len(sample), -1)
        is_present = sample[column.name].notna().to_numpy()
        codes[is_present] = column.to_integers(sample[column.name][is_present])
        if (order := _find_order(codes, len(column.levels or ()), scores)) is not None:
            arranged[column.name] = column.arrange(order, frame[column.name], counts.get(column.name))
    return tuple(arranged.get(column.name, column) for column in columns)


def _score_normally(column: Column, values: pd.Series) -> FloatArray:
    """Normal scores of numbers, `(N,)`: normal quantiles of their ranks; NaN for missing values and atoms."""
    scores = np.full(len(values), np.nan)
    has_value = column.encode_states(values) == column.position
    x = values[has_value].to_numpy(np.float64)
    scores[has_value] = ndtri(rankdata(x) / (len(x) + 1))
    return scores


def _find_order(codes: IntArray, n_levels: int, scores: Sequence[FloatArray]) -> IntArray | None:
    """Order of categories by means of the scores on which they have most influence; None without any influence.

    Influence is what the categories explain of the log-likelihood of normal scores. Means of rare categories are shrunk
    towards the mean of all, by the ratio of the variances within and between categories (empirical Bayes).

    Arguments:
        codes: Category of each row, `(N,)`, -1 for a missing one.
        n_levels: Number of categories.
        scores: Normal scores of several columns, `(N,)` each.
    """
    best, best_gain = None, 0.0
    for score in scores:
        is_used = (codes >= 0) & (codes < n_levels) & ~np.isnan(score)
        code, y = codes[is_used], score[is_used] - score[is_used].mean() if is_used.any() else score[:0]
        sizes = np.bincount(code, minlength=n_levels)
        n, n_used = len(y), int((sizes > 0).sum())
        total = float((y**2).sum())
        if n_used < 2 or n <= n_used + 1 or total == 0:
            continue
        sums = np.bincount(code, y, n_levels)
        between = float((sums**2 / np.maximum(sizes, 1)).sum())
        within = max(total - between, 1e-9 * total) / (n - n_used)
        p_value = f_distribution.sf(between / (n_used - 1) / within, n_used - 1, n - n_used)
        gain = -0.5 * n * np.log(within * (n - 1) / total)
        if p_value < SIGNIFICANCE / len(scores) and gain > best_gain:
            spread = max((between - (n_used - 1) * within) / (n - (sizes**2).sum() / n), 1e-9)
            means = sums / (sizes + within / spread)
            # Categories without rows stay at the end.
            best, best_gain = np.lexsort((means, sizes == 0)), float(gain)
    return best
