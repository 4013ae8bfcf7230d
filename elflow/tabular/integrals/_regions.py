"""Regions of features: the set of points z that the conditions on a row allow."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

__all__ = ["Regions"]

MIN_WIDTH = 1e-9
"""Width of an interval, relative to the size of its ends, up to which it is treated as a point."""


class Regions(NamedTuple):
    """Set of points of each of N rows: for each feature a union of J intervals, in double precision.

    Example:
        >>> regions = Regions.free(rows=2, features=3)
        >>> regions.lower[0, 1] = regions.upper[0, 1] = 0.5  # the second feature of the first row is known
        >>> regions.is_fixed.tolist()
        [[False, True, False], [False, False, False]]
    """

    lower: Tensor
    """Lower ends of the intervals, `(N, features, J)`; an empty interval has a lower end of infinity."""
    upper: Tensor
    """Upper ends of the intervals, `(N, features, J)`; equal to the lower ends for a point."""
    gate_lower: Tensor
    """See `gate_upper`."""
    gate_upper: Tensor
    """The set of a feature applies if the feature before it is between the ends of its gate, `(N, features)` each;
    otherwise the feature is free. A range of a column with atoms applies to z in one state of the column only."""
    offset: Tensor
    """Term that turns the logarithm of the density of z, integrated over the region, into that of the row, `(N,)`."""

    @classmethod
    def free(cls, rows: int, features: int, intervals: int = 1) -> Regions:
        """Regions without conditions."""
        infinite = torch.full((rows, features, intervals), torch.inf, dtype=torch.double)
        lower = infinite.clone()
        lower[..., 0] = -torch.inf
        gate = infinite[..., 0].clone()
        return cls(lower, infinite, -gate, gate, torch.zeros(rows, dtype=torch.double))

    def take(self, index: Tensor | slice) -> Regions:
        """Regions of some rows."""
        return Regions(*(part[index] for part in self))

    def replace_features(self, other: Regions, positions: list[int]) -> Regions:
        """Regions with some features, and the offset in addition, of another one that has a single row.

        Example:
            >>> known = Regions.free(rows=1, features=3)
            >>> known.lower[0, 2] = known.upper[0, 2] = 0.5
            >>> Regions.free(rows=2, features=3).replace_features(known, [2]).is_fixed.tolist()
            [[False, False, True], [False, False, True]]
        """
        n_intervals = max(self.lower.shape[-1], other.lower.shape[-1])
        parts = []
        for mine, its in zip(self[:2], other[:2], strict=True):
            # An empty interval has infinite ends.
            mine, its = (nn.functional.pad(x, (0, n_intervals - x.shape[-1]), value=torch.inf) for x in (mine, its))
            parts.append(mine.index_copy(1, torch.tensor(positions), its[:, positions].expand(len(mine), -1, -1)))
        for mine, its in zip(self[2:4], other[2:4], strict=True):
            parts.append(mine.index_copy(1, torch.tensor(positions), its[:, positions].expand(len(mine), -1)))
        lower, upper, gate_lower, gate_upper = parts
        return Regions(lower, upper, gate_lower, gate_upper, self.offset + other.offset)

    @property
    def width(self) -> Tensor:
        """Sum of the widths of the intervals, `(N, features)`."""
        return torch.where(self.lower < torch.inf, self.upper - self.lower, 0.0).sum(-1)

    @property
    def is_fixed(self) -> Tensor:
        """Whether a feature is a point in all states of its column, `(N, features)`."""
        size = 1 + self.lower[..., 0].nan_to_num(neginf=0.0, posinf=0.0).abs()
        is_single = (self.lower < torch.inf).sum(-1) == 1
        return is_single & (self.width <= MIN_WIDTH * size) & ~self.is_gated

    @property
    def is_gated(self) -> Tensor:
        """Whether the set of a feature depends on the feature before it, `(N, features)`."""
        return self.gate_lower.isfinite() | self.gate_upper.isfinite()

    @property
    def is_free(self) -> Tensor:
        """Whether there is no condition on a feature, `(N, features)`."""
        return ((self.lower == -torch.inf) & (self.upper == torch.inf)).any(-1)

    @property
    def log_volume(self) -> Tensor:
        """Logarithm of the width of features that are treated as points although they are intervals, `(N,)`."""
        width = torch.where(self.is_fixed & (self.width > 0), self.width, 1.0)
        return width.log().sum(-1)

    def contains(self, z: Tensor) -> Tensor:
        """Whether each point `(N, K, features)` is in its region, `(N, K)`."""
        before = z.roll(1, -1)
        is_open = (before >= self.gate_lower[:, None]) & (before <= self.gate_upper[:, None])
        is_inside = (z[..., None] >= self.lower[:, None]) & (z[..., None] <= self.upper[:, None])
        return (is_inside.any(-1) | ~is_open).all(-1)
