"""ActNorm: what standardises the first batch, and is learnt from there on."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zuko.lazy import LazyTransform

from elflow.transforms import ActNormTransform

__all__ = ["ActNorm"]


class ActNorm(LazyTransform):
    """Shifts and scales each coordinate by learnt amounts, which begin as what standardises the first batch.

    Arguments:
        features: The number of coordinates, or of channels.
        pixels: How many pixels share the amounts of their channels: coordinates are then `pixels * features`, channel
            after channel of one pixel after the other.

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

    initialized: Tensor

    def __init__(self, features: int, pixels: int = 1) -> None:
        super().__init__()
        self.pixels = pixels
        self.loc = nn.Parameter(torch.zeros(features))
        self.log_scale = nn.Parameter(torch.zeros(features))
        self.register_buffer("initialized", torch.tensor(False))

    def extra_repr(self) -> str:
        return f"features={len(self.loc)}" + (f", pixels={self.pixels}" if self.pixels > 1 else "")

    def forward(self, c: Tensor | None = None) -> ActNormTransform:
        if self.pixels == 1:
            return ActNormTransform(self.loc, self.log_scale)
        return ActNormTransform(self.loc.repeat(self.pixels), self.log_scale.repeat(self.pixels))

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Takes the mean and the deviation of a batch `(..., pixels * features)`, once: does nothing ever after.

        It waits for a batch of at least two rows. A column that is constant there keeps its scale. With
        `torch.distributed` at work, the batch is that of all processes.
        """
        if self.initialized:
            return
        rows = x.detach().reshape(-1, len(self.loc)).double()
        count = _over_processes(rows.new_tensor([len(rows)]))
        if count < 2:
            return
        mean = _over_processes(rows.sum(0)) / count
        std = (_over_processes((rows - mean).square().sum(0)) / count).sqrt()
        constant = std <= 8 * torch.finfo(x.dtype).eps * mean.abs().clamp(min=1e-30)
        self.loc.copy_(mean)
        self.log_scale.copy_(-torch.where(constant, 1.0, std).log())
        self.initialized.fill_(True)


def _over_processes(sums: Tensor) -> Tensor:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    return sums
