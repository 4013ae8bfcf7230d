"""Pixel levels as cells of (0, 1): conversion between levels and real numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from elflow._checks import check_choice
from elflow.kernels import widen
from elflow.nn import DataInitialized

__all__ = ["Levels"]

WARPS = ["none", "zeros", "histogram"]
MIN_PROBABILITY = 1e-30
"""Minimum of p and of 1 - p in the logit of p."""
UNIFORM_SHARE = 0.01
"""Fraction of (0, 1) that all levels divide equally, so that no cell is too narrow for single precision."""


class Levels(DataInitialized):
    """Cells of (0, 1), one for each level of a pixel, in ascending order.

    Arguments:
        levels: The number of values that a pixel can have.
        warp: The widths of the cells: see `elflow.ImageELF`.

    Example:
        >>> cells = Levels(4, "zeros")
        >>> cells.initialize(torch.tensor([0, 0, 0, 1]))
        >>> cells.widths
        tensor([0.7450, 0.0850, 0.0850, 0.0850])
        >>> middle = torch.full((1, 2), 0.5)
        >>> y, log_volume = cells.dequantize(torch.tensor([[0, 3]]), middle, middle)
        >>> y.shape, log_volume.shape
        (torch.Size([1, 2]), torch.Size([1]))
        >>> cells.quantize(y)
        tensor([[0, 3]], dtype=torch.uint8)
    """

    widths: Tensor

    def __init__(self, levels: int, warp: str) -> None:
        super().__init__()
        check_choice("warp", warp, WARPS)
        if levels > 256:
            raise ValueError(f"levels must be at most 256, the number of values of uint8, got {levels}")
        self.levels = levels
        self.warp = warp
        self.register_buffer("widths", torch.full((levels,), 1 / levels))
        self.initialized.fill_(warp == "none")

    def extra_repr(self) -> str:
        return f"levels={self.levels}, warp={self.warp}"

    def set_from(self, x: Tensor) -> bool:
        """Set the widths of the cells from pixels of any shape."""
        counts = torch.bincount(x.flatten().long(), minlength=self.levels)
        share = widen(counts) / counts.sum()
        if self.warp == "zeros":
            share[1:] = (1 - share[0]) / (self.levels - 1)
        self.widths.copy_((1 - UNIFORM_SHARE) * share + UNIFORM_SHARE / self.levels)
        return True

    def dequantize(self, levels: Tensor, u: Tensor, complement: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of points in the cells of levels, and the log-volume of each image.

        Arguments:
            levels: Levels of images, int64 `(N, features)`.
            u: Position of each point in its cell, in (0, 1), `(N, features)`.
            complement: 1 - u, which has a higher resolution than u if u is near 1.

        Returns:
            Logits y, `(N, features)`, and the log-volume, `(N,)`: added to the log-density of y it gives that of u.
        """
        low, high = self._compute_edges()
        below, width, above = low[levels], (high - low)[levels], (1 - high)[levels]
        log_p, log_q = (
            (edge + width * part).clamp(min=MIN_PROBABILITY).log() for edge, part in ((below, u), (above, complement))
        )
        y, log_volume = log_p - log_q, width.log() - log_p - log_q
        return y.to(u.dtype), log_volume.sum(-1).to(u.dtype)

    def quantize(self, y: Tensor) -> Tensor:
        """The levels whose cells contain points with the given logits, uint8 of the same shape."""
        _, high = self._compute_edges()
        return torch.bucketize(widen(y).sigmoid(), high[:-1], right=True).to(torch.uint8)

    def _compute_edges(self) -> tuple[Tensor, Tensor]:
        """Lower and upper edges of the cells, `(levels,)` each, in double precision if the device has it."""
        edges = widen(self.widths).cumsum(0)
        edges = edges / edges[-1]
        return torch.cat([edges.new_zeros(1), edges[:-1]]), edges
