"""The hypernetwork of images: masked convolutions that give each channel of each pixel a network of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, pad, relu

from elflow.functional import bump_size
from elflow.nn.start import initial_phi

__all__ = ["ImageHypernetwork", "MaskedConvolution"]


class MaskedConvolution(nn.Module):
    """A convolution that only sees what comes before.

    Pixels come row after row from left to right, and the channels of a pixel in groups, one after the other. An output
    sees the pixels before its own, and of its own pixel the groups before its own group, or up to it.

    What would be masked is not there: `weight` holds the other weights only. So no step of an optimizer and no file can
    let the future in, and nothing is computed for the row below.

    Arguments:
        inputs: The number of input channels.
        outputs: The number of output channels.
        groups: In how many groups the channels of a pixel come. Inputs and outputs are divided among them.
        size: The width of the kernel, 3 or 1; a kernel 3 wide has two rows.
        strict: Whether an output's own group is hidden from it.

    Example:
        >>> conv = MaskedConvolution(1, 8, groups=1, size=3, strict=True)
        >>> conv(torch.randn(5, 1, 28, 28)).shape
        torch.Size([5, 8, 28, 28])
        >>> conv.weight.shape  # three pixels of the row above, and the one to the left
        torch.Size([32])
    """

    position: Tensor
    fixed: Tensor | None = None
    """The kernel, as long as it is known not to change."""

    def __init__(self, inputs: int, outputs: int, groups: int, size: int = 3, strict: bool = False) -> None:
        super().__init__()
        self.inputs, self.outputs = inputs, outputs
        self.rows, self.columns = (1, 1) if size == 1 else (2, size)
        of_output, of_input = _groups(outputs, groups)[:, None], _groups(inputs, groups)
        seen = torch.ones(outputs, self.rows, self.columns, inputs, dtype=torch.bool)
        seen[:, -1, self.columns // 2] = of_input < of_output if strict else of_input <= of_output
        seen[:, -1, self.columns // 2 + 1 :] = False
        fan_in = seen.flatten(1).sum(-1)
        reach = fan_in.clamp(min=1).rsqrt()[:, None, None, None].expand_as(seen)[seen]
        self.weight = nn.Parameter(torch.empty_like(reach).uniform_(-1, 1) * reach)
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.dense = bool(seen.all())
        self.register_buffer("position", seen.flatten().nonzero().squeeze(-1), persistent=False)

    def extra_repr(self) -> str:
        return f"{self.inputs}, {self.outputs}, kernel={self.rows}x{self.columns}, weights={self.weight.numel()}"

    def forward(self, x: Tensor, above: Tensor | None = None) -> Tensor:
        """From `(N, inputs, height, width)` to `(N, outputs, height, width)`, where there may be a row above."""
        kernel = self.kernel() if self.fixed is None else self.fixed
        if self.rows > 1:
            x = x if above is None else torch.cat([above, x], dim=2)
            x = pad(x, (self.columns // 2, self.columns // 2, self.rows - 1 if above is None else 0, 0))
        return conv2d(x, kernel, self.bias)

    def kernel(self) -> Tensor:
        """All weights, with zeros where there are none, `(outputs, inputs, rows, columns)`."""
        weight: Tensor = self.weight
        if not self.dense:
            everywhere = weight.new_zeros(self.outputs * self.rows * self.columns * self.inputs)
            weight = everywhere.index_copy(0, self.position, weight)
        return weight.view(self.outputs, self.rows, self.columns, self.inputs).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A residual block of masked convolutions: wide to narrow, narrow to narrow, narrow to wide.

    A context is concatenated to its input, all of it seen by every output.
    """

    def __init__(self, channels: int, groups: int, context: int) -> None:
        super().__init__()
        self.narrow = MaskedConvolution(2 * channels, channels, groups)
        self.context = nn.Conv2d(context, channels, 1, bias=False) if context else None
        self.mix = MaskedConvolution(channels, channels, groups, size=1)
        self.widen = MaskedConvolution(channels, 2 * channels, groups)

    def forward(
        self, x: Tensor, c: Tensor | None, above: Sequence[Tensor | None] = (None, None)
    ) -> tuple[Tensor, list[Tensor]]:
        """The output, and what the convolutions that look at the row above have seen."""
        wide = relu(x)
        y = self.narrow(wide, above[0])
        if self.context is not None:
            y = y + self.context(c)
        slim = relu(self.mix(relu(y)))
        return x + self.widen(slim, above[1]), [wide, slim]


class ImageHypernetwork(nn.Module):
    """The one-dimensional network of each channel of each pixel, from those before it and the context.

    Images are vectors here: channel after channel of one pixel after the other, row by row, which is also the order in
    which they depend on each other.

    Arguments:
        shape: Channels, height and width.
        context: The number of context features, which all pixels share, or of channels of a context image.
        units: The units of each one-dimensional network, H.
        channels: The width of the narrow convolutions, at least as many as the image has; others are twice as wide.
        blocks: The number of residual blocks. An output sees `2 * blocks + 1` rows above it.

    Example:
        >>> hyper = ImageHypernetwork((3, 8, 8), context=0, units=8, channels=12, blocks=2)
        >>> hyper(torch.randn(5, 192), None).shape
        torch.Size([5, 192, 21])
    """

    def __init__(self, shape: tuple[int, int, int], context: int, units: int, channels: int, blocks: int) -> None:
        super().__init__()
        self.shape = groups, height, width = shape
        self.context = context
        self.units = units
        self.channels = channels
        self.first = MaskedConvolution(groups, 2 * channels, groups, strict=True)
        self.row = nn.Parameter(torch.zeros(2 * channels, height, 1))
        self.column = nn.Parameter(torch.zeros(2 * channels, 1, width))
        self.blocks = nn.ModuleList([Block(channels, groups, context) for _ in range(blocks)])
        self.head = MaskedConvolution(2 * channels, groups * bump_size(units), groups, size=1)
        with torch.no_grad():
            self.head.weight.mul_(0.1)
            self.head.bias.copy_(initial_phi(groups, units).flatten())

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The networks, `(..., coordinates, bump_size(units))`, for x `(..., coordinates)`.

        The context is `(..., context)`, or an image `(..., height * width * context)`.
        """
        batch, c = x.shape[:-1], None
        if context is not None:
            batch = torch.broadcast_shapes(batch, context.shape[:-1])
            x = x.expand(*batch, -1)
            c = self._image(context.expand(*batch, -1), self.context)
        phi, _ = self._through(self._image(x, self.shape[0]), c, slice(None), [None] * len(self.memories))
        return phi.reshape(*batch, x.shape[-1], bump_size(self.units))

    def of_row(self, x: Tensor, above: Tensor, context: Tensor | None, i: int) -> tuple[Tensor, Tensor]:
        """The networks of row i of the pixels alone, from what the row above leaves, and what it leaves itself.

        Arguments:
            x: The row, `(N, width * channels)`.
            above: What the row above leaves, `(N, memory)`: zeros for the first row.
            context: As of the whole image.
            i: Which row it is.

        Returns:
            The networks, `(N, width * channels, bump_size(units))`, and what the row leaves, `(N, memory)`.
        """
        depth, _, width = self.shape
        rows = slice(i, i + 1)
        c = None if context is None else self._image(context, self.context)
        c = c if c is None or c.shape[2] == 1 else c[:, :, rows]
        parts = above.split([channels * width for channels in self.memories], dim=-1)
        seen: list[Tensor | None] = [
            part.reshape(len(x), 1, width, channels).permute(0, 3, 1, 2)
            for part, channels in zip(parts, self.memories, strict=True)
        ]
        phi, seen_here = self._through(x.reshape(-1, 1, width, depth).permute(0, 3, 1, 2), c, rows, seen)
        left = [part.permute(0, 2, 3, 1).flatten(1) for part in seen_here]
        return phi.reshape(len(x), width * depth, bump_size(self.units)), torch.cat(left, dim=-1)

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Inside the block the weights do not change, so that many small evaluations need not look at them again."""
        convolutions = [module for module in self.modules() if isinstance(module, MaskedConvolution)]
        try:
            for module in convolutions:
                module.fixed = module.kernel().detach()
            yield
        finally:
            for module in convolutions:
                module.fixed = None

    @property
    def memories(self) -> list[int]:
        """The channels of all that looks at the row above."""
        return [self.shape[0], *[2 * self.channels, self.channels] * len(self.blocks)]

    def _through(
        self, image: Tensor, c: Tensor | None, rows: slice, above: Sequence[Tensor | None]
    ) -> tuple[Tensor, list[Tensor]]:
        """phi `(N, height, width, channels * size)`, and what looks at the row above has seen, of some rows."""
        h, seen = self.first(image, above[0]) + (self.row[:, rows] + self.column), [image]
        h = h.contiguous(memory_format=torch.channels_last)  # twice as fast on CPUs, and phi need not be copied
        for number, block in enumerate(self.blocks):
            h, inside = block(h, c, above[1 + 2 * number : 3 + 2 * number])
            seen += inside
        return self.head(relu(h)).permute(0, 2, 3, 1), seen

    def _image(self, x: Tensor, channels: int) -> Tensor:
        """Vectors as images `(N, channels, height, width)`, or of one pixel if that is all they hold."""
        height, width = (1, 1) if x.shape[-1] == channels else self.shape[1:]
        return x.reshape(-1, height, width, channels).permute(0, 3, 1, 2)


def _groups(channels: int, groups: int) -> Tensor:
    """The group of each channel."""
    return torch.arange(channels) * groups // channels
