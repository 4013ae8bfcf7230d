"""The least likely rows of a table, and the reasons why they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elflow.report._tables import Column, take_rows
from elflow.tabular import ContextTable, FlowDensity

__all__ = ["Anomaly", "Reason", "find_anomalies"]

N_ANOMALIES = 10
MAX_EXPLAINED_COLUMNS = 20
"""Maximum number of columns that are explained, those with the most extreme values: each takes some time."""
EXTREME_SHARE = 0.005
"""A value is extreme if at most this share of its column is as far out on the same side, or has the same label."""
ODD_PROBABILITY = 0.02
"""A value is odd if values as extreme have at most this probability, given all other values of the row."""


@dataclass(frozen=True)
class Reason:
    """Why a value of a row is odd, given all other values of the row."""

    column: int
    """Position of the column."""
    tail_probability: float
    """Probability of values at least as extreme."""
    low: Any
    """Lower end of the interval of ordinary values, or the most likely one if the values have no order."""
    high: Any
    """Upper end of the interval."""
    is_outside: bool = False
    """Whether the value is outside the bounds of its column, which are then the interval."""

    @property
    def is_odd(self) -> bool:
        """Whether the value is odd; of a row without odd values, the most surprising value is a reason, too."""
        return self.is_outside or self.tail_probability <= ODD_PROBABILITY


@dataclass(frozen=True)
class Anomaly:
    """One of the least likely rows."""

    row: int
    """Index of the row in the table, from 0."""
    log_density: float
    anomaly_score: float
    """See `FlowDensity.anomaly_score`."""
    values: tuple[Any, ...]
    reasons: tuple[Reason, ...]
    """The most surprising value, and the other odd ones in this order."""


def find_anomalies(
    est: FlowDensity,
    log_density: NDArray[np.float64],
    rows: NDArray[np.int64],
    real: pd.DataFrame,
    columns: Sequence[Column],
    context: ContextTable | None = None,
) -> tuple[Anomaly, ...]:
    """Find the least likely rows of a table, and their odd values.

    Arguments:
        est: The density.
        log_density: Log-densities of the rows, `(N,)`.
        rows: Indices of the rows in the table, `(N,)`.
        real: The rows, with the columns of the schema.
        columns: The same as numbers.
        context: Context of the rows.
    """
    lowest = np.argsort(log_density, kind="stable")[:N_ANOMALIES]
    chosen = _choose_columns(columns, lowest)
    # Rows with values outside the bounds of a column have no conditional densities of other columns.
    explained = lowest[np.isfinite(log_density[lowest])]
    reasons = _explain(est, real.iloc[explained], chosen, take_rows(context, explained))
    by_row = dict(zip(explained.tolist(), reasons, strict=True))
    return tuple(
        Anomaly(
            int(rows[i]),
            float(log_density[i]),
            float(percentile),
            tuple(real[name].iloc[i] for name in real.columns),
            by_row[i] if i in by_row else _find_outside(est, real.iloc[i]),
        )
        for i, percentile in zip(lowest.tolist(), est.percentiles(log_density[lowest]), strict=True)
    )


def _choose_columns(columns: Sequence[Column], rows: NDArray[np.int64]) -> list[int]:
    """Positions of the columns to explain: all of them, or those that have extreme values in most of the rows."""
    if len(columns) <= MAX_EXPLAINED_COLUMNS:
        return list(range(len(columns)))
    n_extremes = np.array([_mark_extremes(column)[rows].sum() for column in columns])
    return sorted(np.argsort(-n_extremes, kind="stable")[:MAX_EXPLAINED_COLUMNS].tolist())


def _explain(
    est: FlowDensity, rows: pd.DataFrame, chosen: Sequence[int], context: ContextTable | None
) -> list[tuple[Reason, ...]]:
    """The most surprising value of each row, and the other odd ones."""
    if not len(rows):
        return []
    names = [est.schema_.names[k] for k in chosen]
    reasons = est.explain(rows, columns=names, context=context)
    found: list[list[Reason]] = [[] for _ in range(len(rows))]
    for one in reasons.itertuples(index=False):
        reason = Reason(est.schema_.names.index(one.column), float(one.tail_probability), one.low, one.high)
        if reason.is_odd or not found[one.row]:
            found[one.row].append(reason)
    return [tuple(part) for part in found]


def _find_outside(est: FlowDensity, row: pd.Series) -> tuple[Reason, ...]:
    """Values of a row of density zero that lie outside the bounds of their columns."""
    return tuple(
        Reason(k, 0.0, *column.bounds, is_outside=True)
        for k, column in enumerate(est.schema_.columns)
        if column.bounds is not None
        and not pd.isna(row[column.name])
        and not column.bounds[0] <= row[column.name] <= column.bounds[1]
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
