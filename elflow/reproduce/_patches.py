"""ELF over image patches as BSDS300 has them: the last pixel is missing, because it follows from the others."""

from __future__ import annotations

import math

from torch import Tensor
from torch.distributions import Transform
from torch.nn.functional import pad
from zuko.lazy import LazyTransform

from elflow.flows.layered import LayeredFlow
from elflow.nn import ActNorm, ImageHypernetwork
from elflow.transforms import AutoregressiveTransform, BumpTransform

__all__ = ["PatchELF"]


class PatchELF(LayeredFlow):
    """An ELF whose hypernetworks are masked convolutions: it knows which features are neighbours.

    Arguments:
        features: The pixels of a square patch, but the last.
        context: There is none: 0.
        transforms: The number of transformations, in raster order and reversed by turns.
        units: The units of each one-dimensional network.
        channels: The width of the hypernetworks.
        blocks: The residual blocks of each hypernetwork.
        bound: The greatest Lipschitz constant of the networks, in (0, 1).

    Example:
        >>> import torch
        >>> flow = PatchELF(features=15, transforms=2, units=4, channels=4, blocks=1)
        >>> flow().log_prob(torch.randn(5, 15)).shape
        torch.Size([5])
    """

    def __init__(
        self,
        features: int,
        context: int = 0,
        transforms: int = 2,
        units: int = 16,
        channels: int = 16,
        blocks: int = 2,
        bound: float = 0.99,
    ) -> None:
        side = math.isqrt(features + 1)
        if side**2 != features + 1:
            raise ValueError(f"features must be those of a square patch but one, such as 63, got {features}")
        if context:
            raise ValueError(f"context must be 0, got {context}")
        layers: list[LazyTransform] = []
        for turn in range(transforms):
            layers += [ActNorm(1, features), _PatchTransform(side, units, channels, blocks, bound, turn % 2 == 1)]
        super().__init__([*layers, ActNorm(1, features)], features, context)


class _PatchTransform(LazyTransform):
    """One autoregressive transformation of a patch."""

    def __init__(self, side: int, units: int, channels: int, blocks: int, bound: float, backwards: bool) -> None:
        super().__init__()
        self.hyper = ImageHypernetwork((1, side, side), 0, units, channels, blocks)
        self.bound = bound
        self.backwards = backwards

    def forward(self, c: Tensor | None = None) -> Transform:
        features = self.hyper.shape[1] ** 2 - 1
        order = tuple(range(features))
        return AutoregressiveTransform(self._maps, c, sweeps=features, order=order[::-1] if self.backwards else order)

    def _maps(self, x: Tensor, c: Tensor | None) -> BumpTransform:
        whole = pad(x, (0, 1))  # forwards nothing sees the last pixel, backwards all see a zero there
        phi = self.hyper(whole.flip(-1), None).flip(-2) if self.backwards else self.hyper(whole, None)
        return BumpTransform(phi[..., :-1, :].to(x.dtype), self.hyper.units, self.bound)
