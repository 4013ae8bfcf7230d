"""Split of the rows of a table into training and validation rows, for any part of the table."""

from __future__ import annotations

import numpy as np

from elflow.tabular._arrays import BoolArray, IntArray
from elflow.training import MAX_STORED, scramble

__all__ = ["MAX_VALIDATION_ROWS", "Split"]

MAX_VALIDATION_ROWS = 2**16
"""Maximum number of validation rows that are scored after each round. More rows would only take more time."""
MIN_REFERENCE_ROWS = 100
"""Number of validation rows below which anomalies are compared with training rows, too."""
MAX_REFERENCE_ROWS = 5_000
"""Maximum number of rows that anomalies are compared with."""


class Split:
    """Random split of the rows of a table into training and validation rows.

    The rows are ranked at random, and those with the lowest ranks are the validation rows. The ranks of more than
    `MAX_STORED` rows are computed where they are needed, in memory that does not depend on the number of rows.

    Arguments:
        count: Number of rows.
        fraction: Fraction of validation rows: at least one row, and at most all but two.
        seed: Seed of the ranks.

    Example:
        >>> split = Split(1000, 0.1, seed=0)
        >>> split.n_validation, int(split.is_validation(0, 1000).sum())
        (100, 100)
    """

    def __init__(self, count: int, fraction: float, seed: int) -> None:
        self.count, self.seed = count, seed
        self.n_validation = min(max(1, round(fraction * count)), count - 2)
        self.n_training = count - self.n_validation
        self._ranks: IntArray | None = None
        if count <= MAX_STORED:
            self._ranks = np.empty(count, np.int64)
            self._ranks[np.random.RandomState(seed).permutation(count)] = np.arange(count)

    def _rank(self, start: int, stop: int) -> IntArray:
        if self._ranks is not None:
            return self._ranks[start:stop]
        return scramble(np.arange(start, min(stop, self.count)), self.count, self.seed)

    def is_validation(self, start: int, stop: int) -> BoolArray:
        """Mask of the validation rows among the rows from `start` to `stop` - 1."""
        return self._rank(start, stop) < self.n_validation

    def is_scored(self, start: int, stop: int) -> BoolArray:
        """Mask of the validation rows that are scored: at most `MAX_VALIDATION_ROWS` of all rows."""
        return self._rank(start, stop) < min(self.n_validation, MAX_VALIDATION_ROWS)

    def is_reference(self, start: int, stop: int) -> BoolArray:
        """Mask of the rows that anomalies are compared with: some validation rows, or any rows if these are few."""
        ranks = self._rank(start, stop)
        if self.n_validation < MIN_REFERENCE_ROWS:
            return ranks < MAX_REFERENCE_ROWS
        return ranks < min(self.n_validation, MAX_REFERENCE_ROWS)
