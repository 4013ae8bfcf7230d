"""Transformation autoregressive networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from zuko.flows import Flow
from zuko.lazy import LazyDistribution, LazyTransform, UnconditionalTransform
from zuko.transforms import AdditiveTransform, AutoregressiveTransform, DependentTransform, LULinearTransform

from elflow.transforms import Elementwise
from experiments.systems.mixtures import AutoregressiveMixture, refuse_context, spread_means

__all__ = ["TAN"]


class Recurrent(nn.Module):
    """Recurrent network: an output for each feature from the features before it.

    Arguments:
        width: The size of its state, which has a learned initial value, and of a hidden layer behind it.
        outputs: The number of outputs for each feature.

    Example:
        >>> Recurrent(width=8, outputs=5)(torch.randn(4, 3)).shape
        torch.Size([4, 3, 5])
    """

    def __init__(self, width: int, outputs: int) -> None:
        super().__init__()
        self.reader = nn.GRU(1, width, batch_first=True)
        self.hidden = nn.Linear(width, width)
        self.last = nn.Linear(width, outputs)
        self.start = nn.Parameter(0.1 * torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        """`(..., features)` to `(..., features, outputs)`."""
        before = x[..., :-1].reshape(-1, x.shape[-1] - 1, 1)
        start = self.start.expand(len(before), 1, -1)
        states, _ = self.reader(before, start.transpose(0, 1).contiguous())
        return self.last(self.hidden(torch.cat([start, states], dim=1)).relu()).view(*x.shape, -1)


class LeakyReLUTransform(Elementwise):
    """x where it is positive and exp(a) x where it is negative.

    Arguments:
        a: The logarithm of the slope of negative numbers.

    Example:
        >>> LeakyReLUTransform(torch.tensor(2.0).log())(torch.tensor([-1.0, 1.0]))
        tensor([-2.,  1.])
    """

    def __init__(self, a: Tensor) -> None:
        super().__init__()
        self.a = a

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ladj = torch.where(x < 0, self.a, 0)
        return x * ladj.exp(), ladj

    def _inverse(self, y: Tensor) -> Tensor:
        return y * torch.where(y < 0, -self.a, 0).exp()


class RecurrentShift(LazyTransform):
    """Shift of each feature by a recurrent network of the features before it."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.features = features
        self.net = Recurrent(width, outputs=1)

    def forward(self, c: None = None) -> AutoregressiveTransform:
        return AutoregressiveTransform(
            lambda x: DependentTransform(AdditiveTransform(self.net(x).squeeze(-1)), 1), passes=self.features
        )


class RecurrentMixture(LazyDistribution):
    """A mixture of Gaussians for each feature, from a recurrent network of the features before it."""

    def __init__(self, features: int, width: int, components: int) -> None:
        super().__init__()
        net = Recurrent(width, 3 * components)
        spread_means(net.last.bias, features=1)
        self.net = nn.Sequential(net, nn.Unflatten(-1, (3, components)))
        self.register_buffer("start", torch.zeros(features))

    def forward(self, c: None = None) -> AutoregressiveMixture:
        refuse_context(c)
        return AutoregressiveMixture(self.net, self.start)


class TAN(Flow):
    """Transformation autoregressive network (TAN).

    Of the paper's parts it has the linear transformation (by the factors L and U of its matrix), the recurrent shift
    and the elementwise leaky ReLU (with a learned slope for each feature), in this order in each of the
    `transforms`, and behind them the recurrent autoregressive model (RAM) with mixtures of Gaussians. It does not
    have the linear autoregressive model (LAM), nor the transformation that is itself a recurrent unit.

    References:
        | Transformation Autoregressive Networks (Oliva et al., 2018)
        | https://arxiv.org/abs/1801.09819

    Arguments:
        features: The number of features, at least two.
        transforms: The number of transformations.
        width: The size of the recurrent states.
        components: The number of Gaussians of each conditional.

    Example:
        >>> flow = TAN(features=3, transforms=2, width=16)
        >>> x = flow().sample((4,))
        >>> flow().log_prob(x).shape
        torch.Size([4])
    """

    def __init__(self, features: int, transforms: int = 3, width: int = 64, components: int = 10) -> None:
        layers: list[LazyTransform] = []
        for _ in range(transforms):
            layers += [
                UnconditionalTransform(LULinearTransform, torch.eye(features)),
                RecurrentShift(features, width),
                UnconditionalTransform(LeakyReLUTransform, torch.zeros(features)),
            ]
        super().__init__(layers, RecurrentMixture(features, width, components))
