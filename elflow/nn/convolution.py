"""Hypernetwork of image flows: masked convolutions that compute a network for each channel of each pixel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu

from elflow.nn.attention import CausalAttention
from elflow.nn.initialization import draw_initial_phi
from elflow.transforms import network_size

__all__ = ["MAX_INPUT", "ImageHypernetwork", "MaskedConvolution"]

MAX_INPUT = 10.0
"""Maximum size of the inputs of a hypernetwork, in standard deviations after an ActNorm.

Hypernetworks extrapolate linearly. Without a limit, one unusual pixel makes the next transformation's output more
unusual, and so on: single test images then have log-densities of -1e10."""


class MaskedConvolution(nn.Module):
    """Masked convolution that stores only its unmasked weights.

    Pixels are ordered row by row from left to right. The channels of a pixel form groups, which are ordered as well. An
    output sees all preceding pixels and, within the same pixel, the preceding groups; unless `strict`, it also sees its
    own group.

    Because masked weights are not stored, no optimizer step and no file can make them nonzero. The kernel has no row
    below the current one, so nothing is computed for it.

    Arguments:
        inputs: The number of input channels.
        outputs: The number of output channels.
        groups: The number of groups, among which both input and output channels are divided.
        size: The width of the kernel, 3 or 1. A kernel of width 3 has two rows.
        strict: Whether an output's own group is masked.

    Example:
        >>> conv = MaskedConvolution(1, 8, groups=1, size=3, strict=True)
        >>> conv(torch.randn(5, 1, 28, 28)).shape
        torch.Size([5, 8, 28, 28])
        >>> conv.weight.shape  # three pixels of the row above, and the one to the left
        torch.Size([32])
    """

    weight_index: Tensor
    """Position of each weight in the flattened kernel `(outputs, rows, columns, inputs)`."""

    def __init__(self, inputs: int, outputs: int, groups: int, size: int = 3, strict: bool = False) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.rows, self.columns = (1, 1) if size == 1 else (2, size)
        output_group, input_group = _assign_groups(outputs, groups)[:, None], _assign_groups(inputs, groups)
        visible = torch.ones(outputs, self.rows, self.columns, inputs, dtype=torch.bool)
        visible[:, -1, self.columns // 2] = input_group < output_group if strict else input_group <= output_group
        visible[:, -1, self.columns // 2 + 1 :] = False
        fan_in = visible.flatten(1).sum(-1)
        limit = fan_in.clamp(min=1).rsqrt().repeat_interleave(fan_in)  # the weights of an output are consecutive
        self.weight = nn.Parameter(torch.empty_like(limit).uniform_(-1, 1) * limit)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.is_dense = bool(visible.all())
        self.register_buffer("weight_index", visible.flatten().nonzero().squeeze(-1), persistent=False)

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, kernel={self.rows}x{self.columns}, weights={self.weight.numel()}"

    def forward(self, x: Tensor) -> Tensor:
        """Convolve `(N, inputs, height, width)` to `(N, outputs, height, width)`."""
        if self.rows > 1:
            x = pad(x, (self.columns // 2, self.columns // 2, self.rows - 1, 0))
        return conv2d(x, self.make_kernel(), self.bias)

    def make_kernel(self) -> Tensor:
        """The dense kernel, with zeros for masked weights, `(outputs, inputs, rows, columns)`."""
        weight: Tensor = self.weight
        if not self.is_dense:
            zeros = weight.new_zeros(self.outputs * self.rows * self.columns * self.inputs)
            weight = zeros.index_copy(0, self.weight_index, weight)
        return weight.view(self.outputs, self.rows, self.columns, self.inputs).permute(0, 3, 1, 2)


class ResidualBlock(nn.Module):
    """Residual block of masked convolutions: wide to narrow, narrow to narrow, narrow to wide.

    Every output sees the whole context of its pixel, if there is one; with `concatenate`, that of the 3x3 pixels
    around it.
    """

    def __init__(self, channels: int, groups: int, context: int, concatenate: bool = False) -> None:
        super().__init__()
        self.narrow = MaskedConvolution(2 * channels, channels, groups)
        size = 3 if concatenate else 1
        self.context = nn.Conv2d(context, channels, size, padding=size // 2, bias=False) if context else None
        self.concatenate = concatenate
        self.mix = MaskedConvolution(channels, channels, groups, size=1)
        self.widen = MaskedConvolution(channels, 2 * channels, groups)

    def forward(self, x: Tensor, c: Tensor | None) -> Tensor:
        """The hidden layer after the block, from that before it and the context, `(N, channels, height, width)`."""
        y = self.narrow(relu(x))
        if c is not None:
            y = y + self.transform_context(c)
        return x + self.widen(relu(self.mix(relu(y))))

    def transform_context(self, c: Tensor) -> Tensor:
        """The contribution of the context to the output of the first convolution."""
        assert self.context is not None
        # The convolution of concatenated inputs is the sum of two; that of the context needs no mask.
        return self.context(relu(c) if self.concatenate else c)


class ImageHypernetwork(nn.Module):
    """Masked convolutional network that computes a one-dimensional network for each channel of each pixel.

    The network of a coordinate depends on the coordinates before it and on the context. Images are vectors here,
    ordered by row, column and channel, which is also the order of the dependence. Coordinates beyond `MAX_INPUT` count
    as `MAX_INPUT` here.

    Arguments:
        shape: Channels, height and width.
        context: The number of context features that all pixels share, or of channels of a context image.
        units: The number of units of each one-dimensional network, H.
        channels: The width of the narrow convolutions, at least the number of channels of the image. The other
            convolutions are twice as wide.
        blocks: The number of residual blocks. An output sees `2 * blocks + 1` rows above it.
        parametrization: One of `elflow.transforms.PARAMETRIZATIONS`.
        concatenate: Whether blocks have the channels of a context image as further inputs of their first convolution,
            as in the paper. Otherwise each pixel adds a linear map of its context to the output of that convolution.
        attention: The number of heads of a `CausalAttention` after the middle residual block, with which an output sees
            all pixels before it; 0 for no attention. It is a divisor of `channels`.

    Example:
        >>> hyper = ImageHypernetwork((3, 8, 8), context=0, units=8, channels=12, blocks=2)
        >>> hyper(torch.randn(5, 192), None).shape
        torch.Size([5, 192, 21])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        context: int,
        units: int,
        channels: int,
        blocks: int,
        parametrization: str = "bumps",
        concatenate: bool = False,
        attention: int = 0,
    ) -> None:
        super().__init__()
        self.shape = groups, height, width = shape
        self.context = context
        self.units = units
        self.parametrization = parametrization
        self.size = network_size(units, parametrization)
        self.concatenate = concatenate
        self.channels = channels
        self.first = MaskedConvolution(groups, 2 * channels, groups, strict=True)
        self.row = nn.Parameter(torch.zeros(2 * channels, height, 1))
        self.column = nn.Parameter(torch.zeros(2 * channels, 1, width))
        self.blocks: Any = nn.ModuleList(  # mypy takes the items of a ModuleList for plain modules
            [ResidualBlock(channels, groups, context, concatenate) for _ in range(blocks)]
        )
        first = int((_assign_groups(2 * channels, groups) == 0).sum())
        self.attention = CausalAttention(2 * channels, groups, first, channels, attention) if attention else None
        self.head = MaskedConvolution(2 * channels, groups * self.size, groups, size=1)
        with torch.no_grad():
            self.head.weight.mul_(0.1)
            self.head.bias.copy_(draw_initial_phi(groups, units, parametrization).flatten())

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The networks of all coordinates.

        Arguments:
            x: Images, `(..., channels * height * width)`.
            context: Vectors, `(..., context)`, images, `(..., height * width * context)`, or None.

        Returns:
            `(..., channels * height * width, network_size(units, parametrization))`.
        """
        batch, c = x.shape[:-1], None
        if context is not None:
            batch = torch.broadcast_shapes(batch, context.shape[:-1])
            x = x.expand(*batch, -1)
            c = self.context_to_images(context.expand(*batch, -1))
        image = self._to_images(x.clamp(-MAX_INPUT, MAX_INPUT), self.shape[0])
        h = self.first(image) + (self.row + self.column)
        h = h.contiguous(memory_format=torch.channels_last)  # twice as fast on CPUs, and phi need not be copied
        for number, block in enumerate(self.blocks):
            h = block(h, c)
            if self.attention is not None and number == self.attention_block:
                h, _ = self.attention(h, image)
        phi = self.head(relu(h)).permute(0, 2, 3, 1)
        return phi.reshape(*batch, x.shape[-1], self.size)

    @property
    def attention_block(self) -> int:
        """The index of the residual block before the attention."""
        return (len(self.blocks) - 1) // 2

    def context_to_images(self, context: Tensor) -> Tensor:
        """The context `(N, C)` as images `(N, context, height, width)`, or of one pixel for vectors."""
        return self._to_images(context, self.context)

    def _to_images(self, x: Tensor, channels: int) -> Tensor:
        """Vectors as images `(N, channels, height, width)`; vectors of one pixel as images of one pixel."""
        height, width = (1, 1) if x.shape[-1] == channels else self.shape[1:]
        return x.reshape(-1, height, width, channels).permute(0, 3, 1, 2)


def _assign_groups(channels: int, groups: int) -> Tensor:
    """The group of each channel."""
    return torch.arange(channels) * groups // channels
