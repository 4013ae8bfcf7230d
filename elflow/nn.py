"""Modules with parameters: the hypernetwork, which gives each coordinate a network of its own, and ActNorm."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from zuko.lazy import LazyTransform
from zuko.nn import MaskedMLP

from elflow.transforms import ActNormTransform

__all__ = ["ActNorm", "Hypernetwork"]

REACH = 3.0
"""Units begin with their ramps at most so far from zero, which is where ActNorm puts the data."""
SHARPNESS = 0.5, 2.5
"""Between which the sharpness of a unit begins."""
LARGEST_LOG_SHARPNESS = 12.0
"""Keeps the exponential finite, far beyond what data ask for: a ramp 6e-6 wide."""


class Hypernetwork(nn.Module):
    """The parameters of each coordinate's one-dimensional network, from the coordinates before it and the context.

    The slope of a unit is a ramp. It is given by its height `a`, its middle `t` and the logarithm of its sharpness `k`:
    `w1 = +-k`, `b1 = -w1 t - 1/2`, `w2 = a / w1`, where the signs are drawn once. So each can change alone, whereas a
    unit whose w1 grows to be sharper would also become steeper and move.

    Arguments:
        features: The number of coordinates.
        context: The number of context features.
        units: The units of each one-dimensional network, H.
        hidden_features: The widths of the hidden layers.
        order: The coordinates in the order in which they are modelled: `order[0]` depends on the context only.
        rank: The size of an embedding of each coordinate, from which its parameters are computed; None computes them
            from the last hidden layer. With h hidden features the embedding takes `features * rank * (h + 3 H)` weights
            instead of `features * 3 H * h`.

    Example:
        >>> hyper = Hypernetwork(features=3, context=2, units=8, hidden_features=(32, 32), order=(0, 1, 2))
        >>> w1, b1, w2, b2 = hyper(torch.randn(5, 3), torch.randn(5, 2))
        >>> w1.shape, b2.shape
        (torch.Size([5, 3, 8]), torch.Size([5, 3]))
    """

    signs: Tensor

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

        start, signs = initial_units(features, units)
        self.register_buffer("signs", signs)
        # Without a context, the first coordinate depends on nothing: its parameters are learnt directly.
        self.free = None if context else order[0]
        if self.free is not None:
            self.first = nn.Parameter(start[self.free].clone())
            others = [feature for feature in range(features) if feature != self.free]
            inputs, start = inputs[others], start[others]
        if len(inputs):
            head: nn.Module
            if rank is None:
                net = MaskedMLP(inputs.repeat_interleave(3 * units + 1, dim=0), hidden_features)
                head = nn.Unflatten(-1, (-1, 3 * units + 1))
                last = net[-1]
            else:
                net = MaskedMLP(inputs.repeat_interleave(rank, dim=0), hidden_features)
                head = FactoredHead(len(inputs), rank, 3 * units + 1)
                last = head
            with torch.no_grad():
                last.weight.mul_(0.1)
                last.bias.mul_(0.1).add_(start.reshape(last.bias.shape))
            self.net = nn.Sequential(net, head)

    def forward(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        phi = self._phi(x, context)
        log_k, t, a, b2 = phi.split([self.units, self.units, self.units, 1], dim=-1)
        w1 = self.signs * log_k.clamp(-LARGEST_LOG_SHARPNESS, LARGEST_LOG_SHARPNESS).exp()
        return w1, -0.5 - w1 * t, a / w1, b2.squeeze(-1)

    def _phi(self, x: Tensor, context: Tensor | None) -> Tensor:
        """What `forward` unpacks, `(..., features, 3 H + 1)`."""
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


def initial_units(features: int, units: int) -> tuple[Tensor, Tensor]:
    """Where a hypernetwork begins: log k, t, a and b2 as `(features, 3 H + 1)`, and the signs `(features, H)`."""
    shape = features, units
    k = torch.empty(shape).uniform_(*SHARPNESS)
    t = torch.empty(shape).uniform_(-REACH, REACH)
    a = k * torch.randn(shape) * 0.5 * units**-0.5
    signs = torch.where(torch.rand(shape) < 0.5, -1.0, 1.0)
    return torch.cat([k.log(), t, a, torch.zeros(features, 1)], dim=-1), signs


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
