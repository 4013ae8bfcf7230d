"""Autoregressive models whose conditionals are mixtures of Gaussians, alone and as the base of a MAF."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Size, Tensor, nn
from torch.distributions import Distribution, Normal
from zuko.distributions import Mixture
from zuko.flows import MAF, Flow
from zuko.lazy import LazyDistribution
from zuko.nn import MaskedMLP

__all__ = ["AutoregressiveMixture", "MADEMoG", "MAFMoG", "refuse_context", "spread_means"]

MAX_LOG_WIDTH = 7.0
"""Maximum absolute logarithm of a width: widths lie between 1e-3 and 1e3, as the slopes of zuko's flows."""


def refuse_context(c: Tensor | None) -> None:
    """Refuse a context: these densities have none."""
    if c is not None:
        raise TypeError(f"c must be None, because this flow has no context, got {type(c).__name__}")


@torch.no_grad()
def spread_means(bias: Tensor, features: int) -> None:
    """Spread the means of Gaussians by the bias of their layer: initially all are close to zero."""
    means = bias.view(features, 3, -1)[:, 1]
    means += torch.linspace(-2, 2, means.shape[-1], dtype=bias.dtype, device=bias.device)


class AutoregressiveMixture(Distribution):
    """A density p(x_1) p(x_2 | x_1) ... whose factors are mixtures of Gaussians.

    Arguments:
        net: Takes x `(..., features)` to `(..., features, 3, K)`: for each feature, from those before it, the
            log-weights, the means and the log-widths of K Gaussians.
        start: Zeros, `(features,)`, of the dtype and device that samples are to have.

    Example:
        >>> mixture = AutoregressiveMixture(lambda x: x.new_zeros(*x.shape, 3, 2), start=torch.zeros(2))
        >>> mixture.log_prob(torch.zeros(3, 2))
        tensor([-1.8379, -1.8379, -1.8379])
        >>> mixture.sample((4,)).shape
        torch.Size([4, 2])
    """

    def __init__(self, net: Callable[[Tensor], Tensor], start: Tensor) -> None:
        super().__init__(event_shape=start.shape, validate_args=False)
        self.net = net
        self.start = start

    def conditionals(self, x: Tensor) -> Mixture:
        """The density of each feature given those before it in x."""
        logits, means, widths = self.net(x).unbind(-2)
        return Mixture(Normal(means, torch.exp(widths / (1 + abs(widths) / MAX_LOG_WIDTH))), logits)

    def log_prob(self, x: Tensor) -> Tensor:
        """The log-density of each row of `(..., features)`, in nats."""
        return self.conditionals(x).log_prob(x).sum(-1)

    @torch.no_grad()
    def sample(self, sample_shape: Size | Sequence[int] = ()) -> Tensor:
        """Exact samples, one feature after the other, without gradients: each feature draws a component."""
        x = self.start.repeat(*sample_shape, 1) if sample_shape else self.start.clone()
        for feature in range(len(self.start)):
            x[..., feature] = self.conditionals(x).sample()[..., feature]
        return x


class MADEMoG(LazyDistribution):
    """Masked autoencoder with mixtures of Gaussians (MADE MoG).

    References:
        | Masked Autoregressive Flow for Density Estimation (Papamakarios et al., 2017)
        | https://arxiv.org/abs/1705.07057

    Arguments:
        features: The number of features, at least two.
        components: The number of Gaussians of each conditional.
        hidden_features: The widths of the hidden layers.

    Example:
        >>> flow = MADEMoG(features=3, components=5)
        >>> x = flow().sample((4,))
        >>> flow().log_prob(x).shape
        torch.Size([4])
    """

    def __init__(self, features: int, components: int = 10, hidden_features: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        before = torch.ones(features, features, dtype=torch.bool).tril(-1)
        net = MaskedMLP(before.repeat_interleave(3 * components, dim=0), hidden_features)
        spread_means(net[-1].bias, features)
        self.net = nn.Sequential(*net, nn.Unflatten(-1, (features, 3, components)))
        self.register_buffer("start", torch.zeros(features))

    def forward(self, c: None = None) -> AutoregressiveMixture:
        refuse_context(c)
        return AutoregressiveMixture(self.net, self.start)


class MAFMoG(Flow):
    """Masked autoregressive flow whose base density is a MADE MoG (MAF MoG).

    References:
        | Masked Autoregressive Flow for Density Estimation (Papamakarios et al., 2017)
        | https://arxiv.org/abs/1705.07057

    Arguments:
        features: The number of features, at least two.
        transforms: The number of autoregressive transformations, in alternating order.
        components: The number of Gaussians of each conditional of the base.
        hidden_features: The widths of the hidden layers, in the transformations and in the base.

    Example:
        >>> flow = MAFMoG(features=3, transforms=2)
        >>> x = flow().sample((4,))
        >>> flow().log_prob(x).shape
        torch.Size([4])
    """

    def __init__(
        self, features: int, transforms: int = 3, components: int = 10, hidden_features: Sequence[int] = (64, 64)
    ) -> None:
        maf = MAF(features, transforms=transforms, hidden_features=hidden_features)
        super().__init__(maf.transform, MADEMoG(features, components, hidden_features))
