"""The least likely rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elflow.report._tables import Column
from elflow.tabular import FlowDensity

__all__ = ["Anomaly", "find_anomalies"]

N_ANOMALIES = 10
EXTREME_SHARE = 0.005
"""A value is extreme if at most this share of its column is as far out on the same side, or has the same label."""


@dataclass(frozen=True)
class Anomaly:
    """One of the least likely rows."""

    row: int
    """Index of the row in the table, from 0."""
    log_density: float
    anomaly_score: float
    """See `FlowDensity.anomaly_score`."""
    values: tuple[Any, ...]
    is_extreme: tuple[bool, ...]
    """For each value, whether it is extreme within its column."""


def find_anomalies(
    est: FlowDensity,
    log_density: NDArray[np.float64],
    rows: NDArray[np.int64],
    real: pd.DataFrame,
    columns: Sequence[Column],
) -> tuple[Anomaly, ...]:
    lowest = np.argsort(log_density, kind="stable")[:N_ANOMALIES]
    is_extreme = np.column_stack([_mark_extremes(column)[lowest] for column in columns])
    return tuple(
        Anomaly(
            int(rows[i]),
            float(log_density[i]),
            float(percentile),
            tuple(real[name].iloc[i] for name in real.columns),
            tuple(bool(mark) for mark in marks),
        )
        for i, percentile, marks in zip(lowest, est.percentiles(log_density[lowest]), is_extreme, strict=True)
    )


def _mark_extremes(column: Column) -> NDArray[np.bool_]:
    """Whether each real value is extreme in its column, or has a rare label."""
    values = column.real
    if column.has_labels:
        shares = np.bincount(values[~np.isnan(values)].astype(int), minlength=1) / len(values)
        return np.array([not np.isnan(v) and shares[int(v)] <= EXTREME_SHARE for v in values])
    order = np.sort(values[~np.isnan(values)])
    limit = max(EXTREME_SHARE * len(order), 1)
    below, above = np.searchsorted(order, values, "right"), len(order) - np.searchsorted(order, values, "left")
    return ~np.isnan(values) & (np.minimum(below, above) <= limit)
