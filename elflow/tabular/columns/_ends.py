"""Hard ends of a range: values on a grid beyond which there are none, although they are frequent up to it."""

from __future__ import annotations

import numpy as np

from elflow.tabular._arrays import IntArray

__all__ = ["find_hard_ends"]

MIN_WINDOW_ROWS, MAX_WINDOW_ROWS = 40, 200
"""Bounds on the number of rows next to an end from which the frequencies beyond it are extrapolated: a quarter of all
rows, if that is between them."""
N_ERRORS = 2.0
"""Number of standard errors that frequencies are allowed for. Without an allowance, one in fifty ends of a normal
distribution was taken for a hard one, and rows beyond it lost hundreds of nats."""
MIN_EXPECTED_ROWS = 8.0
"""Expected number of rows beyond an end from which none is evidence of a hard end: its probability is exp(-8)."""


def find_hard_ends(multiples: IntArray) -> tuple[float, float]:
    """Ends of the range of integers, `(N,)`, each of which is infinite unless it is a hard end.

    Percentages end at 100, and years at the present one, without becoming rare before. The rows of two windows of equal
    width next to the end are counted. If frequencies went on as they change from one window to the other, a third
    window beyond the end would have rows as well. If these are too many to be absent by chance, even if the frequencies
    fall faster by two standard errors of the counts, the end is hard. It is beyond the last integer by the mean
    distance of the rows next to it, as far as the last of n rows is from the end of a uniform distribution on average;
    nonnegative integers do not end below 0.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> find_hard_ends(rng.integers(0, 101, size=1000))
        (0.0, 100.0)
        >>> find_hard_ends(rng.poisson(100, size=1000))
        (-inf, inf)
        >>> find_hard_ends(rng.geometric(0.05, size=1000))
        (1.0, inf)
        >>> find_hard_ends(np.arange(0, 10_001, 10))
        (0.0, 10009.0)
    """
    first, last = float(multiples.min()), float(multiples.max())
    low, high = first - _measure_end(multiples - multiples.min()), last + _measure_end(multiples.max() - multiples)
    return (max(low, 0.0) if first >= 0 and np.isfinite(low) else low), high


def _measure_end(distances: IntArray) -> float:
    """Distance of a hard end from the last integer, for the distances of all, `(N,)`; infinite if rows become rare."""
    ordered = np.sort(distances)
    n_rows = int(np.clip(len(ordered) // 4, MIN_WINDOW_ROWS, MAX_WINDOW_ROWS))
    if len(ordered) < n_rows:
        return np.inf
    width = int(ordered[n_rows - 1]) // 2 + 1
    near, far = np.searchsorted(ordered, [width, 2 * width])
    far = far - near
    fewest, most = near - N_ERRORS * near**0.5, far + N_ERRORS * far**0.5
    # As densities that fall to zero at their end. The difference of two equal frequencies is rarely so large.
    becomes_rare = far - near > 1.5 * N_ERRORS * (near + far) ** 0.5
    # Windows that reach beyond the middle of the range do not show what happens at its end.
    has_rows = far > 0 and fewest > 0 and fewest**2 / most >= MIN_EXPECTED_ROWS
    is_hard = 4 * width <= ordered[-1] + 1 and has_rows and not becomes_rare
    return float(width // near) if is_hard else np.inf
