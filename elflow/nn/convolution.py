"""Hypernetwork of image flows: masked convolutions that compute a network for each channel of each pixel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu

from elflow.nn.attention import CausalAttention
from elflow.nn.initialization import draw_initial_phi
from elflow.transforms import network_size

__all__ = ["ImageHypernetwork", "MaskedConvolution"]


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
    frozen_kernel: Tensor | None = None
    """The kernel, inside `ImageHypernetwork.freeze`."""

    def __init__(self, inputs: int, outputs: int, groups: int, size: int = 3, strict: bool = False) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.rows, self.columns = (1, 1) if size == 1 else (2, size)
        output_group, input_group = _assign_groups(outputs, groups)[:, None], _assign_groups(inputs, groups)
        visible = torch.ones(outputs, self.rows, self.columns, inputs, dtype=torch.bool)
        visible[:, -1, self.columns // 2] = input_group < output_group if strict else input_group <= output_group
        visible[:, -1, self.columns // 2 + 1 :] = False
        fan_in = visible.flatten(1).sum(-1)
        limit = fan_in.clamp(min=1).rsqrt()[:, None, None, None].expand_as(visible)[visible]
        self.weight = nn.Parameter(torch.empty_like(limit).uniform_(-1, 1) * limit)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.is_dense = bool(visible.all())
        self.register_buffer("weight_index", visible.flatten().nonzero().squeeze(-1), persistent=False)

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, kernel={self.rows}x{self.columns}, weights={self.weight.numel()}"

    def forward(self, x: Tensor, above: Tensor | None = None, left: Tensor | None = None) -> Tensor:
        """Convolve `(N, inputs, height, width)` to `(N, outputs, height, width)`.

        Arguments:
            x: Some rows of images, or the right part of one row.
            above: The row of pixels above them, `(N, inputs, 1, width)`; None for zeros.
            left: The pixel to the left of a part of a row, `(N, inputs, 1, 1)`; None for zeros. `above` then has one
                more pixel than x.
        """
        kernel = self.make_kernel() if self.frozen_kernel is None else self.frozen_kernel
        if self.rows > 1:
            x = x if left is None else torch.cat([left, x], dim=3)
            x = x if above is None else torch.cat([above, x], dim=2)
            margin = self.columns // 2
            x = pad(x, (margin if left is None else 0, margin, self.rows - 1 if above is None else 0, 0))
        return conv2d(x, kernel, self.bias)

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

    def forward(
        self,
        x: Tensor,
        c: Tensor | None,
        above: Sequence[Tensor | None] = (None, None),
        left: Sequence[Tensor | None] = (None, None),
        part: tuple[slice, slice] = (slice(None), slice(None)),
    ) -> tuple[Tensor, list[Tensor]]:
        """The output, and the inputs of the two convolutions that see the row above.

        Arguments:
            x: Some rows of the hidden layer, or a part of one row.
            c: The context of these rows, and of further ones around them, or None.
            above: The inputs of the two convolutions in the row above; None for zeros.
            left: Their inputs to the left of a part of a row; None for zeros.
            part: The rows and columns of the context that x has.
        """
        wide = relu(x)
        y = self.narrow(wide, above[0], left[0])
        if self.context is not None and c is not None:
            # The convolution of concatenated inputs is the sum of two; that of the context needs no mask.
            y = y + self.context(relu(c) if self.concatenate else c)[:, :, part[0], part[1]]
        slim = relu(self.mix(relu(y)))
        return x + self.widen(slim, above[1], left[1]), [wide, slim]


class ImageHypernetwork(nn.Module):
    """Masked convolutional network that computes a one-dimensional network for each channel of each pixel.

    The network of a coordinate depends on the coordinates before it and on the context. Images are vectors here,
    ordered by row, column and channel, which is also the order of the dependence.

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
        self.blocks = nn.ModuleList([ResidualBlock(channels, groups, context, concatenate) for _ in range(blocks)])
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
            c = self._to_images(context.expand(*batch, -1), self.context)
        no_pixels = [None] * len(self.memory_channels)
        phi, _, _ = self._apply_layers(self._to_images(x, self.shape[0]), c, no_pixels, no_pixels)
        return phi.reshape(*batch, x.shape[-1], self.size)

    def compute_row(
        self, x: Tensor, above: Tensor, context: Tensor | None, i: int, below: Tensor, start: int
    ) -> tuple[Tensor, Tensor]:
        """The networks of one row of pixels, or of its right part, computed from it and a memory of the pixels before.

        Arguments:
            x: The row from pixel `start` on, `(N, (width - start) * channels)`.
            above: The memory of the rows above, `(N, memory_size)`; zeros for the first row.
            context: The context of the whole image, as in `forward`.
            i: The index of the row.
            below: The memory that this row has left with the same pixels before `start`. Others are not used.
            start: The index of the first pixel.

        Returns:
            The networks, `(N, (width - start) * channels, network_size(units, parametrization))`, and the memory for
            the next row, `(N, memory_size)`: inputs of convolutions in this row, then keys and values of all pixels.
        """
        depth, _, width = self.shape
        rows, columns = slice(i, i + 1), slice(start, None)
        c = None if context is None else self._to_images(context, self.context)
        part = slice(None), slice(None)
        if c is not None and c.shape[2] > 1:  # with the rows around this one if the blocks see them
            margin = 1 if self.concatenate else 0
            first = max(0, i - margin)
            c, part = c[:, :, first : i + margin + 1], (slice(i - first, i - first + 1), columns)
        *inputs_above, cache_above = self._split_memory(above)
        *inputs_left, cache = self._split_memory(below)
        row = x.reshape(-1, 1, width - start, depth).permute(0, 3, 1, 2)
        top: list[Tensor | None] = [memory[..., max(0, start - 1) :] for memory in inputs_above]
        left: list[Tensor | None] = [memory[..., start - 1 : start] if start else None for memory in inputs_left]
        before = torch.cat([cache_above[:, : i * width], cache[:, i * width : i * width + start]], dim=1)
        place = rows, columns
        phi, inputs, own = self._apply_layers(
            row, c, top, left, place, part, None if self.attention is None else before
        )
        parts = [torch.cat([a[..., :start], b], dim=-1) for a, b in zip(inputs_left, inputs, strict=True)]
        memory = [part.permute(0, 2, 3, 1).flatten(1) for part in parts]
        if own is not None:
            memory.append(torch.cat([before, own, cache_above[:, (i + 1) * width :]], dim=1).flatten(1))
        return phi.reshape(len(x), x.shape[-1], self.size), torch.cat(memory, dim=-1)

    def _split_memory(self, memory: Tensor) -> list[Tensor]:
        """The inputs of convolutions in a row, `(N, channels, 1, width)`, and keys and values, `(N, pixels, features)`."""
        width = self.shape[2]
        sizes = [channels * width for channels in self.memory_channels]
        *parts, cache = memory.split([*sizes, self.memory_size - sum(sizes)], dim=-1)
        images = [part.reshape(len(memory), 1, width, -1).permute(0, 3, 1, 2) for part in parts]
        return [*images, cache.unflatten(-1, (-1, 2 * self.channels))]

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Context manager for a block in which the weights do not change: the dense kernels are built only once.

        Kernels have no gradients inside the block.
        """
        convolutions = [module for module in self.modules() if isinstance(module, MaskedConvolution)]
        try:
            for module in convolutions:
                module.frozen_kernel = module.make_kernel().detach()
            yield
        finally:
            for module in convolutions:
                module.frozen_kernel = None

    @property
    def memory_channels(self) -> list[int]:
        """The number of input channels of each convolution that sees the row above."""
        return [self.shape[0], *[2 * self.channels, self.channels] * len(self.blocks)]

    @property
    def memory_size(self) -> int:
        """The size of the memory of `compute_row`."""
        _, height, width = self.shape
        return width * (sum(self.memory_channels) + (0 if self.attention is None else 2 * self.channels * height))

    def _apply_layers(
        self,
        image: Tensor,
        c: Tensor | None,
        above: Sequence[Tensor | None],
        left: Sequence[Tensor | None],
        place: tuple[slice, slice] = (slice(None), slice(None)),
        context_part: tuple[slice, slice] = (slice(None), slice(None)),
        before: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """phi of some rows, or of a part of a row, `(N, height, width, channels * size)`, and what later pixels need:
        the inputs of convolutions, and the keys and values of attention."""
        position = self.row[:, place[0]] + self.column[:, :, place[1]]
        h, inputs = self.first(image, above[0], left[0]) + position, [image]
        h = h.contiguous(memory_format=torch.channels_last)  # twice as fast on CPUs, and phi need not be copied
        own = None
        for number, block in enumerate(self.blocks):
            of_block = slice(1 + 2 * number, 3 + 2 * number)
            h, block_inputs = block(h, c, above[of_block], left[of_block], context_part)
            inputs += block_inputs
            if self.attention is not None and number == (len(self.blocks) - 1) // 2:
                h, own = self.attention(h, image, before)
        return self.head(relu(h)).permute(0, 2, 3, 1), inputs, own

    def _to_images(self, x: Tensor, channels: int) -> Tensor:
        """Vectors as images `(N, channels, height, width)`; vectors of one pixel as images of one pixel."""
        height, width = (1, 1) if x.shape[-1] == channels else self.shape[1:]
        return x.reshape(-1, height, width, channels).permute(0, 3, 1, 2)


def _assign_groups(channels: int, groups: int) -> Tensor:
    """The group of each channel."""
    return torch.arange(channels) * groups // channels
