"""ActNorm: a learned affine layer, initialised to standardise the first batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zuko.lazy import LazyTransform

from elflow.nn.initialization import DataInitialized
from elflow.transforms import ActNormTransform

__all__ = ["ActNorm"]


class ActNorm(DataInitialized, LazyTransform):
    """A learned shift and scale of each coordinate, initialised to standardise the first batch (Glow, 2018).

    Arguments:
        features: Number of coordinates, or of channels.
        pixels: Number of pixels that share the shift and scale of their channels. Coordinates are then
            `pixels * features`, all channels of one pixel after the other.

    Example:
        >>> norm = ActNorm(2)
        >>> x = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
        >>> norm.initialize(x)
        >>> norm()(x)
        tensor([[-1.,  0.],
                [ 1.,  0.]], grad_fn=<MulBackward0>)
        >>> norm.initialized
        tensor(True)
    """

    def __init__(self, features: int, pixels: int = 1) -> None:
        super().__init__()
        self.pixels = pixels
        self.loc = nn.Parameter(torch.zeros(features))
        self.log_scale = nn.Parameter(torch.zeros(features))

    def extra_repr(self) -> str:
        return f"features={len(self.loc)}" + (f", pixels={self.pixels}" if self.pixels > 1 else "")

    def forward(self, c: Tensor | None = None) -> ActNormTransform:
        if self.pixels == 1:
            return ActNormTransform(self.loc, self.log_scale)
        return ActNormTransform(self.loc.repeat(self.pixels), self.log_scale.repeat(self.pixels))

    def set_from(self, x: Tensor) -> bool:
        """Sets shift and scale from a batch `(..., pixels * features)` of at least two rows.

        A column that is constant in the batch keeps its scale. With `torch.distributed` initialised, the batch is that
        of all processes.
        """
        rows = x.detach().reshape(-1, len(self.loc)).double()
        count = _sum_over_processes(rows.new_tensor([len(rows)]))
        if count < 2:
            return False
        mean = _sum_over_processes(rows.sum(0)) / count
        std = (_sum_over_processes((rows - mean).square().sum(0)) / count).sqrt()
        constant = std <= 8 * torch.finfo(x.dtype).eps * mean.abs().clamp(min=1e-30)
        self.loc.copy_(mean)
        self.log_scale.copy_(-torch.where(constant, 1.0, std).log())
        return True


def _sum_over_processes(sums: Tensor) -> Tensor:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    return sums
