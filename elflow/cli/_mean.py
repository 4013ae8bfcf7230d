"""Means of scores, with their standard errors."""

from __future__ import annotations

import math
from typing import Any


class Mean:
    """A mean and its standard error, of blocks.

    Example:
        >>> import numpy as np
        >>> mean = Mean()
        >>> for block in ([-1.0, -2.0], [-3.0, -4.0]):
        ...     mean.add(np.array(block))
        >>> str(mean)
        '-2.5000 +- 0.6455 nats'
    """

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0

    def add(self, values: Any) -> None:
        count, mean = len(values), float(values.mean())
        if not (math.isfinite(mean) and math.isfinite(self.mean)):  # one row that is impossible makes the mean so
            self.count, self.mean, self.squares = self.count + count, -math.inf, math.nan
            return
        squares = float(((values - mean) ** 2).sum())
        both = self.count + count
        away = mean - self.mean
        self.squares += squares + (away * away * self.count * count / both if self.count else 0.0)
        self.mean = mean if not self.count else self.mean + away * count / both
        self.count = both

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return f"{self.mean} nats: some rows lie outside of what the model thinks possible"
        if self.count < 2:
            return f"{self.mean:.4f} nats"
        return f"{self.mean:.4f} +- {math.sqrt(self.squares / (self.count - 1) / self.count):.4f} nats"
