"""Density estimator for sbi: an ELF for the posterior or the likelihood of a simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, IndependentTransform, Transform
from zuko.lazy import LazyTransform

from elflow._checks import check_choice, check_count
from elflow.flows.elf import ELF
from elflow.flows.layered import LayeredFlow
from elflow.flows.whitening import Whitening
from elflow.nn import Hypernetwork

try:
    from sbi.neural_nets.estimators import ZukoFlow
    from sbi.utils.sbiutils import (
        biject_transform_zuko,
        mcmc_transform,
        standardizing_net,
        standardizing_transform_zuko,
    )
except ImportError as error:
    raise ImportError(f"elflow.integrations.sbi needs sbi (pip install 'elflow[sbi]'): {error}") from error

__all__ = ["ELFBuilder", "SimulatorELF", "build_elf"]

TARGETS = ["posterior", "likelihood"]
Z_SCORES = ["independent", "structured", "none", None]
UNCONSTRAINED = "transform_to_unconstrained"
MAX_INITIAL_ROWS = 10_000
"""Maximum number of simulations, drawn at random, that set standardisations and initialise the layers."""


def build_elf(
    target: str = "posterior",
    *,
    z_score_theta: str | None = "independent",
    z_score_x: str | None = "independent",
    hidden_features: int | Sequence[int] = 50,
    num_transforms: int = 5,
    units: int = 8,
    whiten: bool = True,
    embedding_net: nn.Module | None = None,
    x_dist: Distribution | None = None,
    **options: Any,
) -> ELFBuilder:
    """Density estimator of sbi, for `NPE(prior, density_estimator=...)` and `NLE(prior, density_estimator=...)`.

    The arguments have the names that they have in `sbi.neural_nets.posterior_nn` and `likelihood_nn`.

    Arguments:
        target: `"posterior"` for p(theta | x), as of NPE, or `"likelihood"` for p(x | theta), as of NLE.
        z_score_theta: Standardisation of the parameters: `"independent"` for each dimension, `"structured"` for all
            dimensions together, `"none"`, or, if they are the target, `"transform_to_unconstrained"`, which maps the
            support of `x_dist` to real numbers.
        z_score_x: Standardisation of the observations, likewise.
        hidden_features: Width of the hidden layers of each hypernetwork, of which there are `num_transforms`, as in
            sbi's own flows of zuko; or the widths of its layers.
        num_transforms: Number of autoregressive transformations.
        units: Number of units of each one-dimensional network.
        whiten: Whether a learnable linear layer precedes the flow. It starts from the linear regression of the target
            on the embedded condition, so that training starts near the best linear-Gaussian model.
        embedding_net: Network that embeds the condition: observations for the posterior, parameters for the likelihood.
        x_dist: Distribution with the support of the target, for `"transform_to_unconstrained"`: the prior for NPE.
        options: Further arguments of `elflow.ELF`, such as `bound`.

    Returns:
        A function of simulations `(theta, x)` that returns a `ConditionalDensityEstimator`.

    Example:
        >>> theta = torch.randn(200, 2)
        >>> estimator = build_elf(num_transforms=2)(theta, theta + 0.1 * torch.randn(200, 2))  # as NPE calls it
        >>> estimator.sample((5,), condition=torch.zeros(3, 2)).shape
        torch.Size([5, 3, 2])
    """
    check_choice("target", target, TARGETS)
    is_posterior = target == "posterior"
    for name, value in (("z_score_theta", z_score_theta), ("z_score_x", z_score_x)):
        is_target = (name == "z_score_theta") == is_posterior
        if value not in Z_SCORES + [UNCONSTRAINED] * is_target:
            choices = [*Z_SCORES, UNCONSTRAINED] if is_target else Z_SCORES
            raise ValueError(f"{name} must be one of {choices} for the {target}, got {value!r}")
    z_scores = (z_score_theta, z_score_x) if is_posterior else (z_score_x, z_score_theta)
    if z_scores[0] == UNCONSTRAINED and not hasattr(x_dist, "support"):
        raise ValueError(f"x_dist must be a distribution with a support for {UNCONSTRAINED!r}, got {x_dist!r}")
    if isinstance(hidden_features, int):
        # As in sbi's `build_zuko_flow`: two layers are too few for observations that determine scales (SLCP).
        n_layers = check_count("num_transforms", num_transforms)
        hidden_features = [check_count("hidden_features", hidden_features)] * n_layers
    if taken := [name for name in ("transforms", "features", "context") if name in options]:
        raise ValueError(f"options must not have {taken[0]!r}: num_transforms and the simulations determine it")
    options |= {"transforms": num_transforms, "units": units, "hidden_features": list(hidden_features)}
    embedding_net = nn.Identity() if embedding_net is None else embedding_net
    return ELFBuilder(is_posterior, *z_scores, whiten, embedding_net, x_dist, options)


@dataclass(frozen=True)
class ELFBuilder:
    """Function that builds the estimator of `build_elf` from simulations; it can be pickled with the inference."""

    is_posterior: bool
    z_score_target: str | None
    z_score_condition: str | None
    whiten: bool
    embedding_net: nn.Module
    x_dist: Distribution | None
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, theta: Tensor, x: Tensor) -> Any:
        """The estimator, initialised from simulations: parameters `(N, ...)` and observations `(N, ...)`."""
        target, condition = (theta, x) if self.is_posterior else (x, theta)
        if target.dim() != 2:
            name = "theta" if self.is_posterior else "x"
            raise ValueError(f"{name} must be a matrix of vectors to model, got the shape {tuple(target.shape)}")
        # The first ones may all be of the first of several rounds.
        chosen = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))[:MAX_INITIAL_ROWS]
        target, condition = target[chosen], condition[chosen]
        embedding = self._make_embedding(condition)
        embedded = _embed(embedding, condition)
        features, context = target.shape[1], embedded.shape[1]
        layers = [*self._make_fixed_layers(target)]
        if self.whiten:
            layers.append(Whitening(features, context))
        elf = ELF(features, context, **self.options)
        # sbi trains without weight decay and averages: larger weights of units that see few inputs overfit (SLCP).
        for layer in elf.modules():
            if isinstance(layer, Hypernetwork):
                layer.undo_fan_in_scaling()
        flow = SimulatorELF(layers, elf)
        flow.initialize(target, embedded)
        return ZukoFlow(flow, embedding, input_shape=target[0].shape, condition_shape=condition[0].shape)

    def _make_fixed_layers(self, target: Tensor) -> list[LazyTransform]:
        """Standardisation of the target, or the map of its support to real numbers."""
        if self.z_score_target == UNCONSTRAINED:
            return [_SummedTransform(biject_transform_zuko(mcmc_transform(self.x_dist, device=target.device)))]
        if self.z_score_target in ("independent", "structured"):
            return [_SummedTransform(standardizing_transform_zuko(target, self.z_score_target == "structured"))]
        return []

    def _make_embedding(self, condition: Tensor) -> nn.Module:
        """Standardisation of the condition, its embedding, and one vector for each row."""
        parts: list[nn.Module] = [self.embedding_net]
        if self.z_score_condition in ("independent", "structured"):
            parts.insert(0, standardizing_net(condition, self.z_score_condition == "structured"))
        if condition.dim() > 2:
            parts.append(nn.Flatten())
        return nn.Sequential(*parts)


class SimulatorELF(LayeredFlow):
    """ELF after fixed layers and a linear layer, as one stack of layers from the target to noise.

    Arguments:
        first: The layers before the flow.
        elf: The flow.

    Example:
        >>> flow = SimulatorELF([Whitening(features=2, context=1)], ELF(features=2, context=1)).eval()
        >>> flow(torch.zeros(5, 1)).sample((3,)).shape
        torch.Size([3, 5, 2])
    """

    def __init__(self, first: Sequence[LazyTransform], elf: ELF) -> None:
        super().__init__([*first, *elf.transform.transforms], elf.features, elf.context)

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Initialise each layer from a batch `(N, features)`, the linear layer also from its context."""
        for layer in self.transform.transforms:
            if isinstance(layer, Whitening):
                layer.initialize(x, c)
            elif hasattr(layer, "initialize"):
                layer.initialize(x)
            x = layer(c)(x)


class _SummedTransform(LazyTransform):
    """Lazy transform of sbi, with log-determinants that are summed over the features."""

    def __init__(self, lazy: LazyTransform) -> None:
        super().__init__()
        self.lazy = lazy

    def forward(self, c: Tensor | None = None) -> Transform:
        transform = self.lazy(c)
        return IndependentTransform(transform, 1) if transform.domain.event_dim == 0 else transform


@torch.no_grad()
def _embed(embedding: nn.Module, condition: Tensor) -> Tensor:
    """Embedded conditions, `(N, context)`, without an effect on the state of the embedding."""
    was_training = embedding.training
    embedded: Tensor = embedding.eval()(condition)
    embedding.train(was_training)
    if embedded.dim() != 2:
        raise ValueError(f"embedding_net must return one vector for each row, got the shape {tuple(embedded.shape)}")
    return embedded
