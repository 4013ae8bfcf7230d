"""Calibration: probability integral transforms of columns given all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from elflow.tabular import ContextTable, FlowDensity, Table

__all__ = ["Pit", "pits"]


@dataclass(frozen=True)
class Pit:
    """Probability integral transform of one column: uniform on (0, 1) if the conditional distributions are right."""

    name: str
    values: NDArray[np.float64]
    """One value for each row in which the column is not missing, `(N,)`."""
    distance: float
    """Kolmogorov-Smirnov distance from the uniform distribution, from 0 to 1."""
    p_value: float
    """p-value of the Kolmogorov-Smirnov test of uniformity."""


def pits(
    est: FlowDensity, X: Table, context: ContextTable | None, names: Sequence[str], random_state: int
) -> tuple[Pit, ...]:
    """Compute the probability integral transforms of columns, each given all others.

    Columns without values are left out.
    """
    transformed = est.pit_values(X, names, context, random_state)
    columns = [(name, transformed[name].dropna().to_numpy()) for name in names]
    return tuple(_test_uniformity(name, values) for name, values in columns if len(values))


def _test_uniformity(name: str, values: NDArray[np.float64]) -> Pit:
    test = stats.kstest(values, "uniform")
    return Pit(name, values, float(test.statistic), float(test.pvalue))
