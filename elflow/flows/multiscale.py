"""Multiscale ELF over images of real numbers, with masked convolutions as hypernetworks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.distributions import Transform
from zuko.lazy import LazyTransform
from zuko.transforms import PermutationTransform

from elflow._checks import check_choice, check_count
from elflow.activations import FELU, PiecewiseQuadratic
from elflow.flows._image_input import check_shape
from elflow.flows.elf import MAX_OUTPUTS_AT_ONCE
from elflow.flows.layered import LayeredFlow
from elflow.nn import ActNorm, ImageHypernetwork, RowNetwork
from elflow.transforms import (
    PARAMETRIZATIONS,
    Elementwise,
    HeadTransform,
    RasterTransform,
    make_network_transform,
)

__all__ = ["ConvolutionalELFTransform", "MultiscaleELF"]

MAX_ATTENTION_PIXELS = 16 * 16
"""Maximum number of pixels of a scale with attention, whose cost grows with the square of that number."""

Shape = tuple[int, int, int]


class MultiscaleELF(LayeredFlow):
    """Exact-Lipschitz flow over images of real numbers, given as vectors.

    A vector is ordered by row, column and channel. Each scale has several transformations, alternately in raster order
    and in reversed order, with an `ActNorm` before each and after the last; with `parametrization="weights"` only after
    each. Between two scales, each block of 2x2
    pixels becomes one pixel with four times the channels. Half of these channels are factored out: they are part of
    the latent vector, and the next scales do not transform them.

    Arguments:
        shape: Channels, height and width.
        context: The number of context features.
        scales: The number of scales; height and width must be divisible by 2 to the power of `scales - 1`.
        transforms: The number of transformations on each scale.
        units: The number of units of each one-dimensional network.
        channels: The width of the hypernetworks.
        blocks: The number of residual blocks of each hypernetwork.
        bound: The maximum Lipschitz constant of the networks, in (0, 1).
        activation: The activation function of the units.
        image: Whether the context is an image with `context` channels and the height and width of x. This requires
            `scales=1`.
        parametrization: The outputs of the hypernetworks, as for `ELF`. With `"weights"`, a context image is
            concatenated to the input of every residual block, as in the paper.
        attention: The number of heads of self-attention in each hypernetwork, a divisor of `channels`, on the scales
            with at most `MAX_ATTENTION_PIXELS` pixels; 0 for none.

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
        parametrization: str = "bumps",
        attention: int = 0,
    ) -> None:
        full_shape = shape = check_shape(shape, scales, channels)
        if image and scales > 1:
            raise ValueError(f"scales must be 1 if the context is an image, got {scales}")
        check_choice("parametrization", parametrization, PARAMETRIZATIONS)
        blocks = check_count("blocks", blocks)
        attention = check_count("attention", attention, least=0)
        has_bumps = parametrization == "bumps"
        if attention and channels % attention:
            raise ValueError(f"attention must be 0 or a divisor of channels, {channels}, got {attention}")
        pixels = shape[1] * shape[2] // 4 ** (scales - 1)
        if attention and pixels > MAX_ATTENTION_PIXELS:
            raise ValueError(
                f"attention must be 0 unless a scale has at most {MAX_ATTENTION_PIXELS} pixels, got {attention} for "
                f"{pixels} pixels on the last of {scales}"
            )
        hyper_options = parametrization, image and not has_bumps
        size = features = shape[0] * shape[1] * shape[2]
        layers: list[LazyTransform] = []
        for scale in range(scales):
            if scale:
                layers.append(LazyHeadTransform(LazyPermutation(_make_squeeze_order(shape)), size))
                shape, size = (2 * shape[0], shape[1] // 2, shape[2] // 2), size // 2
            for number in range(transforms):
                if number:
                    layers.append(LazyHeadTransform(LazyPermutation(torch.arange(size).flip(0)), size))
                sizes = units, channels, blocks, bound, activation
                heads = attention if shape[1] * shape[2] <= MAX_ATTENTION_PIXELS else 0
                elf = ConvolutionalELFTransform(shape, context, *sizes, *hyper_options, heads)
                parts = [ActNorm(shape[0], shape[1] * shape[2]), elf] if has_bumps else [elf]
                if not has_bumps or number == transforms - 1:
                    parts.append(ActNorm(shape[0], shape[1] * shape[2]))
                layers += [LazyHeadTransform(part, size) for part in parts]
        super().__init__(layers, features, context * shape[1] * shape[2] if image else context)
        self.shape = full_shape


class ConvolutionalELFTransform(LazyTransform):
    """Autoregressive transformation of images, given as vectors, in raster order.

    For the arguments see `MultiscaleELF`, and `elflow.nn.ImageHypernetwork` for `concatenate` and `attention`.

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
        parametrization: str = "bumps",
        concatenate: bool = False,
        attention: int = 0,
    ) -> None:
        super().__init__()
        self.bound = bound
        self.activation = activation
        options = parametrization, concatenate, attention
        self.hyper = ImageHypernetwork(shape, context, units, channels, blocks, *options)

    def extra_repr(self) -> str:
        return f"units={self.hyper.units}, bound={self.bound}, activation={self.activation.name}"

    def forward(self, c: Tensor | None = None) -> RasterTransform:
        channels, height, width = self.hyper.shape
        size = channels * height * width
        return RasterTransform(
            self._compute_maps,
            c,
            height,
            width * channels,
            channels,
            partial(_NetworkRows, self),
            rows=max(4, MAX_OUTPUTS_AT_ONCE // (self.hyper.size * size)),
        )

    def _compute_maps(self, x: Tensor, c: Tensor | None) -> Elementwise:
        return self.make_networks(self.hyper(x, c).to(x.dtype))  # autocast may return a lower precision

    def make_networks(self, phi: Tensor) -> Elementwise:
        """The maps with these parameters, `(..., network_size(units, parametrization))`."""
        return make_network_transform(phi, self.hyper.units, self.bound, self.activation, self.hyper.parametrization)


class _NetworkRows(RowNetwork):
    """The one-dimensional networks of an autoregressive transformation, row by row."""

    def __init__(self, elf: ConvolutionalELFTransform) -> None:
        super().__init__(elf.hyper)
        self.make_networks = elf.make_networks

    def compute(
        self, x: Tensor, ready: tuple[Tensor, ...], state: Tensor | None, start: int
    ) -> tuple[Elementwise, Tensor]:
        """The maps of a row from pixel `start` on, and the state of these pixels."""
        phi, state = self.evaluate(x, ready, state, start)
        return self.make_networks(phi.to(x.dtype)), state.to(x.dtype)  # autocast may return a lower precision


class LazyHeadTransform(LazyTransform):
    """Layer that transforms only the first coordinates.

    Arguments:
        layer: A lazy transform of `(..., size)`.
        size: The number of coordinates that it transforms.
    """

    def __init__(self, layer: LazyTransform, size: int) -> None:
        super().__init__()
        self.layer = layer
        self.size = size

    def extra_repr(self) -> str:
        return f"size={self.size}"

    def forward(self, c: Tensor | None = None) -> Transform:
        return HeadTransform(self.layer(c), self.size)

    def initialize(self, x: Tensor) -> None:
        """Initialise the layer from its coordinates of a batch `(..., features)`."""
        if hasattr(self.layer, "initialize"):
            self.layer.initialize(x[..., : self.size])


class LazyPermutation(LazyTransform):
    """Permutation of the coordinates.

    Arguments:
        order: The coordinates in their new order, `(features,)`.
    """

    order: Tensor

    def __init__(self, order: Tensor) -> None:
        super().__init__()
        # Not in the state dict: the order follows from the shape, and a file could only hold a wrong one.
        self.register_buffer("order", order, persistent=False)

    def extra_repr(self) -> str:
        return f"features={len(self.order)}"

    def forward(self, c: Tensor | None = None) -> PermutationTransform:
        return PermutationTransform(self.order)


def _make_squeeze_order(shape: Shape) -> Tensor:
    """Order of the coordinates that merges 2x2 pixels: first the channels of the next scale, then the others.

    The next scale gets the first diagonal of each block of 2x2 pixels.
    """
    channels, height, width = shape
    index = torch.arange(channels * height * width).view(height // 2, 2, width // 2, 2, channels)
    corners = [index[:, row, :, column] for row, column in ((0, 0), (1, 1), (0, 1), (1, 0))]
    return torch.cat([torch.cat(half, dim=-1).flatten() for half in (corners[:2], corners[2:])])
