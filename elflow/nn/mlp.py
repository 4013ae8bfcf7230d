"""The hypernetwork of tables: a masked network that gives each coordinate a network of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from zuko.nn import MaskedLinear, MaskedMLP

from elflow.nn.start import initial_phi

__all__ = ["Hypernetwork"]

LARGE, STEPS = 2**16, 4
"""From how many weights on a last layer is computed in steps, and in how many."""


class Hypernetwork(nn.Module):
    """The one-dimensional network of each coordinate, from the coordinates before it and the context.

    It describes a network by its bumps: what it returns, `elflow.functional.bumps` makes weights of.

    Arguments:
        features: The number of coordinates.
        context: The number of context features.
        units: The units of each one-dimensional network, H.
        hidden_features: The widths of the hidden layers.
        order: The coordinates in the order in which they are modelled: `order[0]` depends on the context only.
        rank: The size of an embedding of each coordinate, from which its network is computed; None computes it from the
            last hidden layer. With h hidden features the embedding takes `features * rank * (h + 5/2 H)` weights
            instead of `features * h * 5/2 H`.
        more: How many numbers to return for each coordinate besides; they begin near zero.

    Example:
        >>> hyper = Hypernetwork(features=3, context=0, units=8, hidden_features=(32, 32), order=(0, 1, 2))
        >>> hyper.dependent, hyper(torch.randn(5, 3), None).shape
        ((1, 2), torch.Size([5, 2, 21]))
        >>> hyper.free, hyper.first.shape
        ((0,), torch.Size([1, 21]))
    """

    free: tuple[int, ...]
    """The coordinate that depends on nothing, if there is one: `order[0]` without a context. Its network is `first`."""
    dependent: tuple[int, ...]
    """The coordinates that depend on others, or on the context."""

    def __init__(
        self,
        features: int,
        context: int,
        units: int,
        hidden_features: Sequence[int],
        order: Sequence[int],
        rank: int | None = None,
        more: int = 0,
    ) -> None:
        super().__init__()
        self.units = units
        self.free = () if context else (order[0],)
        self.dependent = tuple(feature for feature in range(features) if feature not in self.free)
        if self.free:
            self.first = nn.Parameter(pad(initial_phi(1, units), (0, more)))
        if self.dependent:
            position = torch.empty(features, dtype=torch.long)
            position[list(order)] = torch.arange(features)
            before = position[list(self.dependent), None] > position
            inputs = torch.cat([before, torch.ones(len(before), context, dtype=torch.bool)], dim=-1)
            start = pad(initial_phi(len(before), units), (0, more))
            count, outputs = start.shape
            net = MaskedMLP(inputs.repeat_interleave(rank or outputs, dim=0), hidden_features)
            head = FactoredHead(count, rank, outputs) if rank else nn.Unflatten(-1, (count, outputs))
            weight, bias = (head if rank else net[-1]).parameters()
            with torch.no_grad():
                weight.mul_(0.1)
                bias.mul_(0.1).add_(start.reshape(bias.shape))
                for layer in list(net)[:-1]:
                    _spread(layer)
                layers = _without_hidden(list(net), count)
            self.net = nn.Sequential(*[_unmasked(layer) for layer in layers], head)

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The networks of the dependent coordinates, `(..., dependent, numbers of each)`, for x `(..., features)`."""
        if context is not None:
            batch = torch.broadcast_shapes(x.shape[:-1], context.shape[:-1])
            x = torch.cat([x.expand(*batch, -1), context.expand(*batch, -1)], dim=-1)
        return self.net(x)


def _spread(layer: nn.Module) -> None:
    """Scales the weights of each masked unit to how many inputs it sees: they were drawn as if it saw all."""
    if isinstance(layer, MaskedLinear):
        layer.weight.mul_((layer.in_features / layer.mask.sum(-1, keepdim=True).clamp(min=1)).sqrt())


def _without_hidden(layers: list[nn.Module], count: int) -> list[nn.Module]:
    """The same layers with a `Staircase` at the end, where that is large enough to gain from it."""
    if len(layers) == 1 or count < STEPS:
        return layers
    before, last = layers[-3], layers[-1]
    assert isinstance(before, MaskedLinear)
    assert isinstance(last, MaskedLinear)
    if last.weight.numel() < LARGE:
        return layers
    # Units that many coordinates see come first, so that what each coordinate sees is the first so many of them.
    order = last.mask.sum(0).argsort(descending=True, stable=True)
    before.weight.copy_(before.weight[order])
    before.bias.copy_(before.bias[order])
    before.mask.copy_(before.mask[order])
    last.weight.copy_(last.weight[:, order])
    last.mask.copy_(last.mask[:, order])
    return [*layers[:-1], Staircase(last, count)]


class Staircase(nn.Module):
    """A masked layer in a few steps, each of which only has the columns that its rows see: half of the work.

    Arguments:
        layer: A masked layer whose rows each see the first so many columns.
        count: The coordinates that the rows belong to, one after the other.
    """

    def __init__(self, layer: MaskedLinear, count: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList()
        seen = layer.mask.sum(-1)
        rows = len(seen) // count
        # Coordinates next to each other see about the same, unless the order is shuffled: then nothing is gained.
        for coordinates in torch.arange(count).tensor_split(STEPS):
            part = slice(int(coordinates[0]) * rows, (int(coordinates[-1]) + 1) * rows)
            columns = max(1, int(seen[part].max()))
            step = MaskedLinear(layer.mask[part, :columns])
            step.weight.copy_(layer.weight[part, :columns])
            step.bias.copy_(layer.bias[part])
            self.steps.append(step)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([step(x[..., : step.in_features]) for step in self.steps], dim=-1)


def _unmasked(layer: nn.Module) -> nn.Module:
    """The same layer without its mask where that hides nothing, as between hidden layers for two features."""
    if not isinstance(layer, MaskedLinear) or not layer.mask.all():
        for part in layer.modules():
            if isinstance(part, MaskedLinear):
                # Masks follow from the sizes. They are not stored: a file could only hold wrong ones.
                part.register_buffer("mask", part.mask, persistent=False)
        return layer
    plain = nn.Linear(layer.in_features, layer.out_features)
    plain.weight, plain.bias = layer.weight, layer.bias
    return plain


class FactoredHead(nn.Module):
    """Each coordinate's parameters from its own embedding: `(..., features * rank)` to `(..., features, outputs)`."""

    def __init__(self, features: int, rank: int, outputs: int) -> None:
        super().__init__()
        self.rank = rank
        reach = rank**-0.5
        self.weight = nn.Parameter(torch.empty(features, rank, outputs).uniform_(-reach, reach))
        self.bias = nn.Parameter(torch.zeros(features, outputs))

    def forward(self, embedding: Tensor) -> Tensor:
        embedding = embedding.unflatten(-1, (-1, self.rank))
        return torch.einsum("...dr,drn->...dn", embedding, self.weight) + self.bias
