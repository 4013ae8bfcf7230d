"""Hypernetworks of images, computed row by row for sampling."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, relu

from elflow.nn.convolution import MAX_INPUT, ImageHypernetwork

__all__ = ["RowNetwork"]


class RowNetwork:
    """The present weights of an `ImageHypernetwork`, arranged to compute one row of pixels, or its right part.

    Sampling computes each row several times, with the same rows above it. `prepare` computes what depends on the rows
    above, the position and the context; `evaluate` adds what depends on the row itself. Convolutions are products of
    matrices and pixels `(N, width, channels)`, which are several times as fast as convolutions of a single row.

    The *state* of pixels, `(N, width, size)`, is what later pixels need: the inputs of convolutions, then the keys and
    values of attention. There are no gradients.

    Arguments:
        hyper: The hypernetwork.

    Example:
        >>> hyper = ImageHypernetwork((1, 4, 4), context=0, units=8, channels=8, blocks=1)
        >>> rows, x = RowNetwork(hyper), torch.randn(5, 16)
        >>> above = rows.make_empty(5)
        >>> phi, state = rows.evaluate(x[:, :4], rows.prepare(0, above, None), state=None, start=0)
        >>> above = rows.append(above, state)
        >>> phi, state = rows.evaluate(x[:, 4:8], rows.prepare(1, above, None), state=None, start=0)
        >>> torch.allclose(phi, hyper(x, None)[:, 4:8], atol=1e-5)
        True
    """

    @torch.no_grad()
    def __init__(self, hyper: ImageHypernetwork) -> None:
        self.hyper = hyper
        blocks = hyper.blocks
        convolutions = [hyper.first, *[conv for block in blocks for conv in (block.narrow, block.widen)]]
        kernels = [conv.make_kernel() for conv in convolutions]  # (outputs, inputs, 2 rows, 3 columns)
        self.biases = [conv.bias.detach() for conv in convolutions]
        self.kernels_above = [kernel[:, :, 0].permute(0, 2, 1).flatten(1) for kernel in kernels]
        # The left pixel and the pixel itself; the right one is masked.
        self.kernels = [kernel[:, :, 1, :2].permute(0, 2, 1).flatten(1) for kernel in kernels]
        self.inputs, self.outputs = [k.shape[1] for k in kernels], [k.shape[0] for k in kernels]
        self.mixes = [(block.mix.make_kernel()[:, :, 0, 0], block.mix.bias.detach()) for block in blocks]
        self.head = hyper.head.make_kernel()[:, :, 0, 0], hyper.head.bias.detach()
        self.cached = 0 if hyper.attention is None else 2 * hyper.channels

    def make_empty(self, n: int) -> tuple[Tensor, ...]:
        """State of the rows above the first row of n images: zeros, and no keys and values."""
        weight = self.head[0]
        return weight.new_zeros(n, self.hyper.shape[2], sum(self.inputs)), weight.new_zeros(n, 0, self.cached)

    def append(self, above: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, ...]:
        """State of the rows above the next row, from that above this row and the state of this row."""
        inputs, own = state.split([sum(self.inputs), self.cached], dim=-1)
        return inputs, torch.cat([above[1], own], dim=1)

    @torch.no_grad()
    def prepare(self, i: int, above: tuple[Tensor, ...], context: Tensor | None) -> tuple[Tensor, ...]:
        """Results that do not depend on row i itself: contributions to all convolutions, and keys and values above."""
        results = []
        for number, x in enumerate(above[0].split(self.inputs, dim=-1)):
            padded = pad(x, (0, 0, 1, 1))
            around = torch.cat([padded[:, :-2], x, padded[:, 2:]], dim=-1)
            results.append(linear(around, self.kernels_above[number], self.biases[number]))
        results[0] += (self.hyper.row[:, i] + self.hyper.column[:, 0]).T
        if context is not None:
            c, row = self.hyper.context_to_images(context), 0
            if c.shape[2] > 1:  # with the rows around this one, if blocks see them
                first = max(0, i - 1)
                c, row = c[:, :, first : i + 2], i - first
            for number, block in enumerate(self.hyper.blocks):
                results[1 + 2 * number] += block.transform_context(c)[:, :, row].transpose(1, 2)
        return torch.cat(results, dim=-1), above[1]

    @torch.no_grad()
    def evaluate(self, x: Tensor, ready: tuple[Tensor, ...], state: Tensor | None, start: int) -> tuple[Tensor, Tensor]:
        """The networks of a row of pixels, or of its right part, and the state of these pixels.

        Arguments:
            x: The row from pixel `start` on, `(N, (width - start) * channels)`.
            ready: The result of `prepare`.
            state: The state of the row, `(N, width, size)`, of which pixels from `start` on are not used; None if
                `start` is 0.
            start: The index of the first pixel.

        Returns:
            Networks `(N, (width - start) * channels, network_size(units, parametrization))`, and `(N, width - start,
            size)`.
        """
        pixels = x.clamp(-MAX_INPUT, MAX_INPUT).unflatten(-1, (-1, self.hyper.shape[0]))
        inputs: list[Tensor] = []
        lefts: list[Tensor | None] = [None] * len(self.inputs)
        if start:
            assert state is not None
            lefts = list(state[:, start - 1 : start, : sum(self.inputs)].split(self.inputs, dim=-1))
        contributions = ready[0][:, start:].split(self.outputs, dim=-1)

        def convolve(h: Tensor) -> Tensor:
            number = len(inputs)
            inputs.append(h)
            left = lefts[number]
            shifted = pad(h[:, :-1], (0, 0, 1, 0)) if left is None else torch.cat([left, h[:, :-1]], dim=1)
            return contributions[number] + linear(torch.cat([shifted, h], dim=-1), self.kernels[number])

        h = convolve(pixels)
        for number, mix in enumerate(self.mixes):
            y = convolve(relu(h))
            h = h + convolve(relu(linear(relu(y), *mix)))
            if self.hyper.attention is not None and number == self.hyper.attention_block:
                before = ready[1] if state is None else torch.cat([ready[1], state[:, :start, -self.cached :]], dim=1)
                h, own = self.hyper.attention.attend(h, pixels, before)
        if self.cached:
            inputs.append(own)
        phi = linear(relu(h), *self.head)
        return phi.reshape(len(x), x.shape[-1], self.hyper.size), torch.cat(inputs, dim=-1)
