"""Modules with parameters: the hypernetwork, which gives each coordinate a network of its own, and ActNorm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from zuko.lazy import LazyTransform
from zuko.nn import MaskedMLP

from elflow.transforms import ActNormTransform

__all__ = ["ActNorm", "Hypernetwork"]

REACH = 3.0
"""Units begin at most so far from zero, which is where ActNorm puts the data."""
WIDTH = 0.3, 3.0
"""Between which the width of a bump begins."""
SHARPNESS = 1.0, 4.0
"""Between which the sharpness of an edge begins."""
LARGEST_LOG = 12.0
"""Keeps exponentials finite, far beyond what data ask for: an edge 6e-6 wide."""


class Hypernetwork(nn.Module):
    """The parameters of each coordinate's one-dimensional network, from the coordinates before it and the context.

    Units come in pairs, whose slope together is a bump: it rises around `t - w/2` by the height `a`, and falls around
    `t + w/2`, over edges that are 1/k wide. The hypernetwork gives t, log w and a for each pair and log k for each
    unit, from which `w1 = k`, `b1 = -k (t -+ w/2) - 1/2`, `w2 = +-a/k`. So position, height, width and sharpness can
    each change alone, and a change stays where it is; a unit given by its weights would change the slope all the way to
    infinity and, to be sharper, would also have to move and grow. The last of an odd number of units never falls.

    Arguments:
        features: The number of coordinates.
        context: The number of context features.
        units: The units of each one-dimensional network, H.
        hidden_features: The widths of the hidden layers.
        order: The coordinates in the order in which they are modelled: `order[0]` depends on the context only.
        rank: The size of an embedding of each coordinate, from which its parameters are computed; None computes them
            from the last hidden layer. With h hidden features the embedding takes `features * rank * (h + 5/2 H)`
            weights instead of `features * h * 5/2 H`.

    Example:
        >>> hyper = Hypernetwork(features=3, context=2, units=8, hidden_features=(32, 32), order=(0, 1, 2))
        >>> w1, b1, w2, b2 = hyper(torch.randn(5, 3), torch.randn(5, 2))
        >>> w1.shape, b2.shape
        (torch.Size([5, 3, 8]), torch.Size([5, 3]))
    """

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
        self.order = tuple(order)
        position = torch.empty(features, dtype=torch.long)
        position[list(order)] = torch.arange(features)
        inputs = torch.cat([position[:, None] > position, torch.ones(features, context, dtype=torch.bool)], dim=-1)

        start = initial_units(features, units)
        outputs = start.shape[-1]
        # Without a context, the first coordinate depends on nothing: its parameters are learnt directly.
        self.free = None if context else order[0]
        if self.free is not None:
            self.first = nn.Parameter(start[self.free].clone())
            others = [feature for feature in range(features) if feature != self.free]
            inputs, start = inputs[others], start[others]
        if len(inputs):
            net = MaskedMLP(inputs.repeat_interleave(rank or outputs, dim=0), hidden_features)
            head = FactoredHead(len(inputs), rank, outputs) if rank else nn.Unflatten(-1, (len(inputs), outputs))
            weight, bias = (head if rank else net[-1]).parameters()
            with torch.no_grad():
                weight.mul_(0.1)
                bias.mul_(0.1).add_(start.reshape(bias.shape))
            self.net = nn.Sequential(net, head)

    def forward(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        pairs = (self.units + 1) // 2
        log_k, t, log_w, a, b2 = self._phi(x, context).split([self.units, pairs, pairs, pairs, 1], dim=-1)
        k, half = bounded_exp(log_k), bounded_exp(log_w) / 2
        falling = slice(self.units // 2)
        edges = torch.cat([t - half, (t + half)[..., falling]], dim=-1)
        heights = torch.cat([a, -a[..., falling]], dim=-1)
        return k, -0.5 - k * edges, heights / k, b2.squeeze(-1)

    def _phi(self, x: Tensor, context: Tensor | None) -> Tensor:
        """What `forward` unpacks, `(..., features, 5 H / 2 + 1)`."""
        if self.free is None:
            return self.net(_concatenated(x, context))
        first = self.first.expand(*x.shape[:-1], 1, -1)
        if x.shape[-1] == 1:
            return first
        others = self.net(_concatenated(x, context))
        return torch.cat([others[..., : self.free, :], first, others[..., self.free :, :]], dim=-2)


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


def initial_units(features: int, units: int) -> Tensor:
    """Where a hypernetwork begins: log k, t, log w, a and b2 of each coordinate, `(features, ...)`."""
    pairs = (units + 1) // 2
    log_k = torch.empty(features, units).uniform_(*map(math.log, SHARPNESS))
    t = torch.empty(features, pairs).uniform_(-REACH, REACH)
    log_w = torch.empty(features, pairs).uniform_(*map(math.log, WIDTH))
    a = 0.5 * pairs**-0.5 * torch.randn(features, pairs)
    return torch.cat([log_k, t, log_w, a, torch.zeros(features, 1)], dim=-1)


def bounded_exp(x: Tensor) -> Tensor:
    return x.clamp(-LARGEST_LOG, LARGEST_LOG).exp()


def _concatenated(x: Tensor, context: Tensor | None) -> Tensor:
    if context is None:
        return x
    batch = torch.broadcast_shapes(x.shape[:-1], context.shape[:-1])
    return torch.cat([x.expand(*batch, -1), context.expand(*batch, -1)], dim=-1)


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
        constant = std <= 1e-6 * mean.abs().clamp(min=1e-30)
        self.loc.copy_(mean)
        self.log_scale.copy_(-torch.where(constant, 1.0, std).log())
        self.initialized.fill_(True)


def _over_processes(sums: Tensor) -> Tensor:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(sums)
    return sums
