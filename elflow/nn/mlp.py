"""Hypernetwork of tabular flows: a masked MLP that computes a one-dimensional network for each feature."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from zuko.nn import MaskedLinear, MaskedMLP

from elflow.nn.initialization import draw_initial_phi

__all__ = ["Hypernetwork"]

MIN_BLOCKED_WEIGHTS = 2**16
"""Minimum number of weights of a last layer that is split into blocks."""
N_BLOCKS = 4
"""Number of blocks of such a layer."""


class Hypernetwork(nn.Module):
    """Masked MLP that computes a one-dimensional network for each coordinate.

    The network of a coordinate depends on the coordinates before it and on the context. The outputs
    describe networks by their bumps, which `elflow.functional.bumps` converts to weights, or by their weights.

    Arguments:
        features: The number of coordinates.
        context: The number of context features.
        units: The number of units of each one-dimensional network, H.
        hidden_features: The widths of the hidden layers.
        order: The coordinates in the order in which they are modelled: `order[0]` depends on the context only.
        rank: The size of an embedding of each coordinate, from which its network is computed; None computes it from the
            last hidden layer. With h hidden features the embedding takes `features * rank * (h + 5/2 H)` weights
            instead of `features * h * 5/2 H`.
        extra_outputs: The number of additional outputs for each coordinate, which are near zero initially.
        parametrization: One of `elflow.transforms.PARAMETRIZATIONS`.

    Example:
        >>> hyper = Hypernetwork(features=3, context=0, units=8, hidden_features=(32, 32), order=(0, 1, 2))
        >>> hyper.dependent, hyper(torch.randn(5, 3), None).shape
        ((1, 2), torch.Size([5, 2, 21]))
        >>> hyper.free, hyper.first.shape
        ((0,), torch.Size([1, 21]))
    """

    free: tuple[int, ...]
    """The coordinate that depends on nothing, if any: `order[0]` without a context. Its network is `first`."""
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
        extra_outputs: int = 0,
        parametrization: str = "bumps",
    ) -> None:
        super().__init__()
        self.units = units
        self.context = context
        self.parametrization = parametrization
        self.free = () if context else (order[0],)
        self.dependent = tuple(feature for feature in range(features) if feature not in self.free)
        if self.free:
            self.first = nn.Parameter(pad(draw_initial_phi(1, units, parametrization), (0, extra_outputs)))
        if self.dependent:
            adjacency = _make_adjacency(order, self.dependent, context)
            initial = pad(draw_initial_phi(len(adjacency), units, parametrization), (0, extra_outputs))
            count, outputs = initial.shape
            net = MaskedMLP(adjacency.repeat_interleave(rank or outputs, dim=0), hidden_features)
            head = FactoredHead(count, rank, outputs) if rank else nn.Unflatten(-1, (count, outputs))
            weight, bias = (head if rank else net[-1]).parameters()
            with torch.no_grad():
                # Small weights and this bias make the networks start near their random initial parameters.
                weight.mul_(0.1)
                bias.mul_(0.1).add_(initial.reshape(bias.shape))
                for layer in list(net)[:-1]:
                    _rescale_to_fan_in(layer)
                layers = [_drop_full_mask(layer) for layer in _split_last_layer(list(net), count)]
            _exclude_masks_from_state(layers)
            self.net = nn.Sequential(*layers, head)

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The networks of the dependent coordinates.

        Arguments:
            x: Coordinates, `(..., features)`.
            context: The context, `(..., context)`, or None.

        Returns:
            `(..., len(dependent), network_size(units, parametrization) + extra_outputs)`.
        """
        if context is not None:
            batch = torch.broadcast_shapes(x.shape[:-1], context.shape[:-1])
            x = torch.cat([x.expand(*batch, -1), context.expand(*batch, -1)], dim=-1)
        return self.net(x)

    @torch.no_grad()
    def undo_fan_in_scaling(self) -> None:
        """Scale the initial weights of masked hidden layers as if each unit saw all inputs, as torch draws them.

        The networks then start with a weaker dependence on the first coordinates than on the context. With small
        constant learning rates this overfits less: see `elflow.integrations.sbi`.

        Example:
            >>> hyper = Hypernetwork(features=3, context=0, units=8, hidden_features=(32, 32), order=(0, 1, 2))
            >>> hyper.undo_fan_in_scaling()
            >>> bool(hyper.net[0].weight.abs().max() <= 3**-0.5)  # of three inputs; some units see only one
            True
        """
        if self.dependent:
            for layer in list(self.net)[:-2]:  # the last linear layer and the head have their own initial values
                _rescale_to_fan_in(layer, undo=True)


def _make_adjacency(order: Sequence[int], dependent: Sequence[int], context: int) -> Tensor:
    """Which inputs each dependent coordinate sees, bool `(len(dependent), features + context)`."""
    position = torch.empty(len(order), dtype=torch.long)
    position[list(order)] = torch.arange(len(order))
    before = position[list(dependent), None] > position
    return torch.cat([before, torch.ones(len(before), context, dtype=torch.bool)], dim=-1)


def _rescale_to_fan_in(layer: nn.Module, undo: bool = False) -> None:
    """Scale the weights of each masked unit to the number of inputs it sees: torch drew them as if it saw all."""
    if isinstance(layer, MaskedLinear):
        factor = (layer.in_features / layer.mask.sum(-1, keepdim=True).clamp(min=1)).sqrt()
        layer.weight.mul_(1 / factor if undo else factor)


def _split_last_layer(layers: list[nn.Module], count: int) -> list[nn.Module]:
    """Replace a last layer that is large enough by a `BlockMaskedLinear`, which computes the same."""
    if len(layers) == 1 or count < N_BLOCKS:
        return layers
    before, last = layers[-3], layers[-1]
    assert isinstance(before, MaskedLinear)
    assert isinstance(last, MaskedLinear)
    if last.weight.numel() < MIN_BLOCKED_WEIGHTS:
        return layers
    # Hidden units that many coordinates see come first, so that each coordinate sees a prefix of the hidden units.
    order = last.mask.sum(0).argsort(descending=True, stable=True)
    before.weight.copy_(before.weight[order])
    before.bias.copy_(before.bias[order])
    before.mask.copy_(before.mask[order])
    last.weight.copy_(last.weight[:, order])
    last.mask.copy_(last.mask[:, order])
    return [*layers[:-1], BlockMaskedLinear(last, count)]


class BlockMaskedLinear(nn.Module):
    """Masked linear layer in blocks of rows, which leave out the columns masked for all of their rows.

    With the mask of an autoregressive network this halves the work.

    Arguments:
        layer: A masked layer, each of whose rows sees a prefix of the columns.
        count: The number of coordinates, whose rows follow each other.
    """

    def __init__(self, layer: MaskedLinear, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList()
        visible = layer.mask.sum(-1)
        rows_each = len(visible) // count
        # Neighbouring coordinates see about the same columns. In a shuffled order they do not, and nothing is saved.
        for coordinates in torch.arange(count).tensor_split(N_BLOCKS):
            rows = slice(int(coordinates[0]) * rows_each, (int(coordinates[-1]) + 1) * rows_each)
            columns = max(1, int(visible[rows].max()))
            block = MaskedLinear(layer.mask[rows, :columns])
            block.weight.copy_(layer.weight[rows, :columns])
            block.bias.copy_(layer.bias[rows])
            self.blocks.append(block)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([block(x[..., : block.in_features]) for block in self.blocks], dim=-1)


def _drop_full_mask(layer: nn.Module) -> nn.Module:
    """Replace a masked layer whose mask hides nothing by a plain one, as between hidden layers for two features."""
    if not isinstance(layer, MaskedLinear) or not layer.mask.all():
        return layer
    plain = nn.Linear(layer.in_features, layer.out_features)
    plain.weight, plain.bias = layer.weight, layer.bias
    return plain


def _exclude_masks_from_state(layers: Sequence[nn.Module]) -> None:
    """Exclude masks from the state dict. They follow from the sizes: a file could only hold wrong ones."""
    for layer in layers:
        for part in layer.modules():
            if isinstance(part, MaskedLinear):
                part.register_buffer("mask", part.mask, persistent=False)


class FactoredHead(nn.Module):
    """Each coordinate's parameters from its own embedding: `(..., features * rank)` to `(..., features, outputs)`."""

    def __init__(self, features: int, rank: int, outputs: int) -> None:
        super().__init__()
        self.rank = rank
        limit = rank**-0.5
        self.weight = nn.Parameter(torch.empty(features, rank, outputs).uniform_(-limit, limit))
        self.bias = nn.Parameter(torch.zeros(features, outputs))

    def forward(self, embedding: Tensor) -> Tensor:
        embedding = embedding.unflatten(-1, (-1, self.rank))
        return torch.einsum("...dr,drn->...dn", embedding, self.weight) + self.bias
