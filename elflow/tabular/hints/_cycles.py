"""Cycles in datetimes: times of the day and days of the week that are more frequent than others."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from scipy import stats

from elflow.tabular._arrays import IntArray

__all__ = ["find_cycles"]

MIN_ROWS = 50
"""Number of rows from which cycles are sought."""
MIN_PERIODS = 4
"""Number of days, or of weeks, from which frequencies within them are a cycle."""
MIN_DISTANCE = 0.1
"""Share of the rows that have to move to make a cycle disappear, from which it matters."""
SIGNIFICANCE = 1e-6
"""Probability of a cycle by chance."""


def find_cycles(times: pd.Series, step: pd.Timedelta) -> list[str]:
    """Names of the cycles in datetimes: `"hour of the day"`, `"day of the week"`.

    Arguments:
        times: The datetimes, `(N,)`.
        step: Spacing of the grid on which they lie, which samples keep.

    Example:
        >>> days = pd.Series(pd.bdate_range("2024-01-01", periods=200))  # Monday to Friday
        >>> find_cycles(days, pd.Timedelta(days=1))
        ['day of the week']
        >>> find_cycles(days + pd.to_timedelta(np.arange(200) % 8 + 9, unit="h"), pd.Timedelta(hours=1))
        ['hour of the day', 'day of the week']
        >>> find_cycles(days + pd.to_timedelta(np.arange(200) % 480 + 540, unit="min"), pd.Timedelta(minutes=1))
        ['hour of the day', 'day of the week']
    """
    present = times.dropna()
    if len(present) < MIN_ROWS:
        return []
    n_days = (present.max() - present.min()) / pd.Timedelta(days=1)
    hours, days = present.dt.hour.to_numpy(np.int64), present.dt.day_of_week.to_numpy(np.int64)
    found = []
    hours_of_step = round(step.total_seconds() / 3600)
    hours_per_step = math.gcd(hours_of_step, 24) if hours_of_step else 1  # 24 for dates, which have no times
    n_times = 24 // hours_per_step
    if n_times > 1 and n_days >= MIN_PERIODS and _varies(np.bincount(hours // hours_per_step, minlength=n_times)):
        found.append("hour of the day")
    if n_days >= 7 * MIN_PERIODS and _varies(np.bincount(days, minlength=7)):
        found.append("day of the week")
    return found


def _varies(counts: IntArray) -> bool:
    """Whether frequencies differ by more than chance, and noticeably."""
    shares = counts / counts.sum()
    distance = float(np.abs(shares - 1 / len(counts)).sum() / 2)
    return distance >= MIN_DISTANCE and bool(stats.chisquare(counts).pvalue < SIGNIFICANCE)
