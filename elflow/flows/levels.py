"""The levels of pixels as cells of (0, 1), and points of the cells as real numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from elflow._checks import check_choice
from elflow.nn import DataInitialized

__all__ = ["Levels"]

WARPS = ["none", "zeros", "histogram"]
SMALLEST = 1e-30
"""How close to 0 and 1 a point may lie."""
LEAST = 0.01
"""The part of (0, 1) that all levels share alike, so that none has a cell too narrow for single precision."""


class Levels(DataInitialized):
    """Cells of (0, 1), one for each level, side by side.

    Arguments:
        levels: How many values a pixel can have.
        warp: How wide cells are: see `elflow.ImageELF`.

    Example:
        >>> cells = Levels(4, "zeros")
        >>> cells.initialize(torch.tensor([0, 0, 0, 1]))
        >>> cells.share
        tensor([0.7450, 0.0850, 0.0850, 0.0850])
        >>> y, _ = cells.place(torch.tensor([[0, 3]]), torch.full((1, 2), 0.5), torch.full((1, 2), 0.5))
        >>> cells.level(y)
        tensor([[0, 3]], dtype=torch.uint8)
    """

    share: Tensor

    def __init__(self, levels: int, warp: str) -> None:
        super().__init__()
        check_choice("warp", warp, WARPS)
        if levels > 256:
            raise ValueError(f"levels must be at most 256, which is what uint8 holds, got {levels}")
        self.levels = levels
        self.warp = warp
        self.register_buffer("share", torch.full((levels,), 1 / levels))
        self.initialized.fill_(warp == "none")

    def extra_repr(self) -> str:
        return f"levels={self.levels}, warp={self.warp}"

    def set_from(self, x: Tensor) -> bool:
        """Sets the widths of the cells from pixels of any shape."""
        share = torch.bincount(x.flatten().long(), minlength=self.levels).double()
        share /= share.sum()
        if self.warp == "zeros":
            share[1:] = (1 - share[0]) / (self.levels - 1)
        self.share.copy_((1 - LEAST) * share + LEAST / self.levels)
        return True

    def place(self, x: Tensor, u: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """Real numbers for the levels `(N, features)` of images, and their log-volumes.

        Arguments:
            x: Levels, int64.
            u: Where in its cell each lies, in (0, 1).
            rest: 1 - u, which near 1 says more than u.

        Returns:
            y, `(N, features)`, and what to add to the log-density of y for that of u, `(N,)`.
        """
        low, high = self._edges()
        below, width, above = low[x], (high - low)[x], (1 - high)[x]
        log_f, log_g = ((edge + width * part).clamp(min=SMALLEST).log() for edge, part in ((below, u), (above, rest)))
        y, log_volume = log_f - log_g, width.log() - log_f - log_g
        return y.to(u.dtype), log_volume.sum(-1).to(u.dtype)

    def level(self, y: Tensor) -> Tensor:
        """The levels in whose cells real numbers lie, uint8."""
        _, high = self._edges()
        return torch.bucketize(y.double().sigmoid(), high[:-1], right=True).to(torch.uint8)

    def _edges(self) -> tuple[Tensor, Tensor]:
        """Where each cell begins and ends, in double precision."""
        edges = self.share.double().cumsum(0)
        edges = edges / edges[-1]
        return torch.cat([edges.new_zeros(1), edges[:-1]]), edges
