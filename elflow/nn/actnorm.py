"""ActNorm: learned affine layer that is initialised to standardise the first batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zuko.lazy import LazyTransform

from elflow.nn.initialization import DataInitialized
from elflow.transforms import ActNormTransform

__all__ = ["ActNorm"]


class ActNorm(DataInitialized, LazyTransform):
    """Learned shift and scale of each coordinate, initialised to standardise the first batch.

    Reference:
        Glow: Generative Flow with Invertible 1x1 Convolutions (Kingma and Dhariwal, 2018)

    Arguments:
        features: The number of coordinates, or of channels if there are pixels.
        pixels: The number of pixels, which share the shift and scale of their channels. There are then
            `pixels * features` coordinates, ordered by pixel, then by channel.

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
        """Set shift and scale from a batch `(..., pixels * features)` of at least two rows.

        A coordinate that is constant in the batch keeps the scale 1. With `torch.distributed` initialised, the
        statistics are those of the batches of all processes.
        """
        rows = x.detach().reshape(-1, len(self.loc)).cpu().double()  # not every device has double precision
        count = _sum_over_processes(rows.new_tensor([len(rows)]))
        if count < 2:
            return False
        mean = _sum_over_processes(rows.sum(0)) / count
        std = (_sum_over_processes((rows - mean).square().sum(0)) / count).sqrt()
        # A deviation of a few units in the last place is rounding: scaling it up to 1 would amplify noise.
        constant = std <= 8 * torch.finfo(x.dtype).eps * mean.abs().clamp(min=1e-30)
        self.loc.copy_(mean)
        self.log_scale.copy_(-torch.where(constant, 1.0, std).log())
        return True


def _sum_over_processes(sums: Tensor) -> Tensor:
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return sums
    # NCCL reduces tensors on GPUs only, also those of a flow that is initialised on the CPU.
    total = sums.cuda() if torch.distributed.get_backend() == "nccl" else sums
    torch.distributed.all_reduce(total)
    return total.to(sums.device)
