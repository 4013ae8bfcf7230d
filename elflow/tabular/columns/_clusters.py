"""Clusters of numbers that are very far apart, and the piecewise linear map that brings them closer together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from elflow.tabular._arrays import FloatArray
from elflow.tabular.columns._scales import NORMAL_IQR, robust_scale

__all__ = ["find_cluster_knots", "interpolate_linearly"]

CLUSTER_RATIO = 100.0
"""Ratio of a gap to the wider of the clusters on its two sides from which the gap is shortened."""
MIN_CLUSTER_ROWS = 10
"""Minimum number of rows in a cluster; each also has at least 1% of the rows."""
CLUSTER_GAP = 3.0
"""Length of a shortened gap, in interquartile ranges of clusters."""


def interpolate_linearly(x: FloatArray, knots: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Piecewise linear function through knots `(K, 2)`, with the outer slopes beyond, and its log-slope."""
    slopes = np.diff(knots[:, 1]) / np.diff(knots[:, 0])
    piece = np.clip(np.searchsorted(knots[:, 0], x, side="right") - 1, 0, len(slopes) - 1)
    with np.errstate(over="ignore"):
        y = knots[piece, 1] + (x - knots[piece, 0]) * slopes[piece]
    return y, np.log(slopes[piece])


def find_cluster_knots(x: FloatArray) -> tuple[tuple[float, float], ...]:
    """Knots of a map that brings clusters close together which are very far apart; none if there are no such clusters.

    Each cluster is measured in units of its interquartile range. The gaps between them become `CLUSTER_GAP` long.
    Outliers, up to half a percent on either side, belong to the outer clusters.

    Example:
        >>> x = np.random.default_rng(0).normal(size=1000)
        >>> find_cluster_knots(x)
        ()
        >>> len(find_cluster_knots(np.append(x, x + 1e9)))
        4
    """
    ordered = np.sort(x)
    n_outliers = int(0.005 * len(x))
    ordered = ordered[n_outliers : len(ordered) - n_outliers]
    min_rows = max(MIN_CLUSTER_ROWS, int(0.01 * len(x)))
    with np.errstate(over="ignore"):
        ends = _split_at_gaps(ordered, min_rows)
    if len(ends) < 2:
        return ()
    knots: list[tuple[float, float]] = []
    y = 0.0
    for start, stop in ends:
        cluster = ordered[start:stop]
        width = float(cluster[-1] - cluster[0])
        left, right = float(cluster[0]) - width, float(cluster[-1]) + width
        knots.append((left, y))
        y += (right - left) / (robust_scale(cluster) * NORMAL_IQR)
        knots.append((right, y))
        y += CLUSTER_GAP
    is_rising = (np.diff(np.array(knots), axis=0) > 0).all()
    return tuple(knots) if is_rising else ()


def _split_at_gaps(ordered: FloatArray, min_rows: int) -> list[tuple[int, int]]:
    """Ranges of indices of clusters among increasing values, split at gaps that dwarf the values next to them."""
    if len(ordered) < 2 * min_rows:
        return [(0, len(ordered))]
    n_gaps = len(ordered) - 2 * min_rows + 1
    spans = ordered[min_rows - 1 :] - ordered[: len(ordered) - min_rows + 1]
    gaps = np.diff(ordered[min_rows - 1 : len(ordered) - min_rows + 1])
    neighbours = np.maximum(spans[:n_gaps], spans[min_rows:])
    cuts = np.flatnonzero((neighbours > 0) & (gaps > CLUSTER_RATIO * neighbours)) + min_rows
    ends = [0, *cuts.tolist(), len(ordered)]
    return list(pairwise(ends))
