"""Modules with parameters: the hypernetwork, which gives each coordinate a network of its own, and ActNorm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from zuko.lazy import LazyTransform
from zuko.nn import MaskedLinear, MaskedMLP

from elflow.transforms import ActNormTransform

__all__ = ["ActNorm", "Hypernetwork"]

REACH = 3.0
"""Bumps begin at most so far from zero, which is where ActNorm puts the data."""
WIDTH = 0.3, 3.0
"""Between which the width of a bump begins."""
SHARPNESS = 1.0, 4.0
"""Between which the sharpness of an edge begins."""


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
    ) -> None:
        super().__init__()
        self.units = units
        self.free = () if context else (order[0],)
        self.dependent = tuple(feature for feature in range(features) if feature not in self.free)
        if self.free:
            self.first = nn.Parameter(initial_phi(1, units))
        if self.dependent:
            position = torch.empty(features, dtype=torch.long)
            position[list(order)] = torch.arange(features)
            before = position[list(self.dependent), None] > position
            inputs = torch.cat([before, torch.ones(len(before), context, dtype=torch.bool)], dim=-1)
            start = initial_phi(len(before), units)
            count, outputs = start.shape
            net = MaskedMLP(inputs.repeat_interleave(rank or outputs, dim=0), hidden_features)
            head = FactoredHead(count, rank, outputs) if rank else nn.Unflatten(-1, (count, outputs))
            weight, bias = (head if rank else net[-1]).parameters()
            with torch.no_grad():
                weight.mul_(0.1)
                bias.mul_(0.1).add_(start.reshape(bias.shape))
                for layer in list(net)[:-1]:
                    _spread(layer)
            self.net = nn.Sequential(*[_unmasked(layer) for layer in net], head)

    def forward(self, x: Tensor, context: Tensor | None) -> Tensor:
        """The networks of the dependent coordinates, `(..., dependent, bump_size(units))`, for x `(..., features)`."""
        if context is not None:
            batch = torch.broadcast_shapes(x.shape[:-1], context.shape[:-1])
            x = torch.cat([x.expand(*batch, -1), context.expand(*batch, -1)], dim=-1)
        return self.net(x)


def initial_phi(networks: int, units: int) -> Tensor:
    """Where networks begin, `(networks, bump_size(units))`."""
    pairs = (units + 1) // 2
    log_k = torch.empty(networks, units).uniform_(*map(math.log, SHARPNESS))
    t = torch.empty(networks, pairs).uniform_(-REACH, REACH)
    log_w = torch.empty(networks, pairs).uniform_(*map(math.log, WIDTH))
    a = 0.5 * pairs**-0.5 * torch.randn(networks, pairs)
    return torch.cat([log_k, t, log_w, a, torch.zeros(networks, 1)], dim=-1)


def _spread(layer: nn.Module) -> None:
    """Scales the weights of each masked unit to how many inputs it sees: they were drawn as if it saw all."""
    if isinstance(layer, MaskedLinear):
        layer.weight.mul_((layer.in_features / layer.mask.sum(-1, keepdim=True).clamp(min=1)).sqrt())


def _unmasked(layer: nn.Module) -> nn.Module:
    """The same layer without its mask where that hides nothing, as between hidden layers for two features."""
    if not isinstance(layer, MaskedLinear) or not layer.mask.all():
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


class ActNorm(LazyTransform):
    """Shifts and scales each coordinate by learnt amounts, which begin as what standardises the first batch.

    Arguments:
        features: The number of coordinates.

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

    initialized: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(features))
        self.log_scale = nn.Parameter(torch.zeros(features))
        self.register_buffer("initialized", torch.tensor(False))

    def extra_repr(self) -> str:
        return f"features={len(self.loc)}"

    def forward(self, c: Tensor | None = None) -> ActNormTransform:
        return ActNormTransform(self.loc, self.log_scale)

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Takes the mean and the deviation of a batch `(..., features)`, once: does nothing ever after.

        It waits for a batch of at least two rows. A column that is constant there keeps its scale. With
        `torch.distributed` at work, the batch is that of all processes.
        """
        if self.initialized:
            return
        rows = x.detach().reshape(-1, x.shape[-1]).double()
        count = _over_processes(rows.new_tensor([len(rows)]))
        if count < 2:
            return
        mean = _over_processes(rows.sum(0)) / count
        std = (_over_processes((rows - mean).square().sum(0)) / count).sqrt()
        constant = std <= 8 * torch.finfo(x.dtype).eps * mean.abs().clamp(min=1e-30)
        self.loc.copy_(mean)
        self.log_scale.copy_(-torch.where(constant, 1.0, std).log())
        self.initialized.fill_(True)


def _over_processes(sums: Tensor) -> Tensor:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    return sums
