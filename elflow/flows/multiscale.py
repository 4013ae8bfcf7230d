"""ELF over images as vectors: masked convolutions, on several scales."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Transform
from zuko.lazy import LazyTransform
from zuko.transforms import PermutationTransform

from elflow.activations import FELU, PiecewiseQuadratic
from elflow.flows._image_input import check_shape
from elflow.flows.elf import ROW_NUMBERS
from elflow.flows.layered import LayeredFlow
from elflow.functional import bump_size
from elflow.nn import ActNorm, ImageHypernetwork
from elflow.transforms import BumpTransform, HeadTransform, RasterTransform

__all__ = ["ConvolutionalELFTransform", "MultiscaleELF"]

Shape = tuple[int, int, int]


class MultiscaleELF(LayeredFlow):
    """An exact-Lipschitz flow over images of real numbers, given as vectors.

    A vector holds channel after channel of one pixel after the other, row by row. On each scale there are some
    transformations, in raster order and reversed by turns, with an `ActNorm` before each and after the last. Between
    two scales, 2x2 pixels become one with four times the channels, and half of the channels are done: they go to
    latent space as they are.

    Arguments:
        shape: Channels, height and width.
        context: The number of context features.
        scales: The number of scales; height and width must be divisible by 2 to the power of `scales - 1`.
        transforms: The number of transformations on each scale.
        units: The units of each one-dimensional network.
        channels: The width of the hypernetworks.
        blocks: The residual blocks of each hypernetwork.
        bound: The greatest Lipschitz constant of the networks, in (0, 1).
        activation: What the units compute.
        image: Whether a context is an image, with `context` channels, which all transformations see as it is. There can
            be one scale only.

    Example:
        >>> flow = MultiscaleELF((1, 8, 8), scales=2, transforms=1, units=8, channels=8, blocks=1)
        >>> x = flow().sample((5,))
        >>> x.shape, flow().log_prob(x).shape
        (torch.Size([5, 64]), torch.Size([5]))
    """

    def __init__(
        self,
        shape: Sequence[int],
        context: int = 0,
        scales: int = 3,
        transforms: int = 4,
        units: int = 32,
        channels: int = 32,
        blocks: int = 3,
        bound: float = 0.99,
        activation: PiecewiseQuadratic = FELU,
        image: bool = False,
    ) -> None:
        whole = shape = check_shape(shape, scales, channels)
        if image and scales > 1:
            raise ValueError(f"scales must be 1 where the context is an image, got {scales}")
        size = features = shape[0] * shape[1] * shape[2]
        layers: list[LazyTransform] = []
        for scale in range(scales):
            if scale:
                layers.append(Head(Reordered(_squeezed(shape)), size))
                shape, size = (2 * shape[0], shape[1] // 2, shape[2] // 2), size // 2
            for turn in range(transforms):
                if turn:
                    layers.append(Head(Reordered(torch.arange(size).flip(0)), size))
                elf = ConvolutionalELFTransform(shape, context, units, channels, blocks, bound, activation)
                layers += [Head(ActNorm(shape[0], shape[1] * shape[2]), size), Head(elf, size)]
            layers.append(Head(ActNorm(shape[0], shape[1] * shape[2]), size))
        super().__init__(layers, features, context * shape[1] * shape[2] if image else context)
        self.shape = whole


class ConvolutionalELFTransform(LazyTransform):
    """One autoregressive transformation of images as vectors, in raster order.

    Arguments are those of `MultiscaleELF`.

    Example:
        >>> t = ConvolutionalELFTransform((1, 4, 4), context=0, units=8, channels=8, blocks=1)
        >>> y, ladj = t().call_and_ladj(torch.randn(10, 16))
        >>> y.shape, ladj.shape
        (torch.Size([10, 16]), torch.Size([10]))
    """

    def __init__(
        self,
        shape: Shape,
        context: int = 0,
        units: int = 32,
        channels: int = 32,
        blocks: int = 3,
        bound: float = 0.99,
        activation: PiecewiseQuadratic = FELU,
    ) -> None:
        super().__init__()
        self.bound = bound
        self.activation = activation
        self.hyper = ImageHypernetwork(shape, context, units, channels, blocks)

    def extra_repr(self) -> str:
        return f"units={self.hyper.units}, bound={self.bound}, activation={self.activation.name}"

    def forward(self, c: Tensor | None = None) -> RasterTransform:
        channels, height, width = self.hyper.shape
        size = channels * height * width
        return RasterTransform(
            self._maps,
            c,
            height,
            width * channels,
            self._row_maps,
            sum(self.hyper.memories) * width,
            self.hyper.fixed,
            rows=max(4, ROW_NUMBERS // (bump_size(self.hyper.units) * size)),
        )

    def _maps(self, x: Tensor, c: Tensor | None) -> BumpTransform:
        return self._bumps(self.hyper(x, c).to(x.dtype))  # autocast computes the hypernetwork in less

    def _row_maps(self, x: Tensor, above: Tensor, c: Tensor | None, i: int) -> tuple[BumpTransform, Tensor]:
        phi, left = self.hyper.of_row(x, above, c, i)
        return self._bumps(phi.to(x.dtype)), left.to(x.dtype)

    def _bumps(self, phi: Tensor) -> BumpTransform:
        return BumpTransform(phi, self.hyper.units, self.bound, self.activation)


class Head(LazyTransform):
    """A layer that only the first coordinates go through."""

    def __init__(self, layer: LazyTransform, size: int) -> None:
        super().__init__()
        self.layer = layer
        self.size = size

    def forward(self, c: Tensor | None = None) -> Transform:
        return HeadTransform(self.layer(c), self.size)

    def initialize(self, x: Tensor) -> None:
        """Shows the layer its part of the first data."""
        if hasattr(self.layer, "initialize"):
            self.layer.initialize(x[..., : self.size])


class Reordered(LazyTransform):
    """Coordinates in another order."""

    order: Tensor

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        self.register_buffer("order", order, persistent=False)

    def extra_repr(self) -> str:
        return f"features={len(self.order)}"

    def forward(self, c: Tensor | None = None) -> PermutationTransform:
        return PermutationTransform(self.order)


def _squeezed(shape: Shape) -> Tensor:
    """The order in which 2x2 pixels are one: first the image of the channels that go on, then that of the others."""
    channels, height, width = shape
    place = torch.arange(channels * height * width).view(height // 2, 2, width // 2, 2, channels)
    corners = [place[:, row, :, column] for row, column in ((0, 0), (1, 1), (0, 1), (1, 0))]
    return torch.cat([torch.cat(half, dim=-1).flatten() for half in (corners[:2], corners[2:])])
