"""Base class of flows that are a stack of layers with a standard normal base."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from zuko.distributions import DiagNormal
from zuko.flows import Flow
from zuko.lazy import LazyComposedTransform, LazyTransform, UnconditionalDistribution

from elflow._checks import check_rows
from elflow.flows.distribution import FlowDistribution
from elflow.nn import InitializesParts
from elflow.transforms import StackTransform, invert, warn_not_converged

__all__ = ["LayeredFlow"]


class LayeredFlow(InitializesParts, Flow):
    """Flow as a stack of layers from data to a standard normal distribution.

    Arguments:
        layers: Lazy transforms of `(..., features)`. The first batch initialises those that are
            `DataInitialized`, or that pass it to such a layer by a method `initialize(x)`.
        features: The number of features.
        context: The number of context features.

    Example:
        >>> from elflow.nn import ActNorm
        >>> flow = LayeredFlow([ActNorm(2)], features=2, context=0)
        >>> flow.inverse(torch.ones(1, 2))
        tensor([[1., 1.]], grad_fn=<AddBackward0>)
    """

    transform: LazyStack
    base: UnconditionalDistribution

    def __init__(self, layers: Sequence[LazyTransform], features: int, context: int) -> None:
        base = UnconditionalDistribution(DiagNormal, torch.zeros(features), torch.ones(features), buffer=True)
        super().__init__(LazyStack(*layers), base)
        self.features = features
        self.context = context

    def forward(self, c: Tensor | None = None) -> FlowDistribution:
        """The distribution p(x | c).

        Arguments:
            c: The context, `(..., context)`, or None for a flow without context.
        """
        if self.training and not self.initialized and not torch.compiler.is_exporting():
            return self.make_distribution(c, initialize=True)
        return self.make_distribution(c)

    def make_distribution(self, c: Tensor | None = None, initialize: bool = False) -> FlowDistribution:
        """The distribution p(x | c); with `initialize`, its `log_prob` initialises the layers.

        Arguments:
            c: The context, `(..., context)`, or None for a flow without context.
            initialize: Whether the first batch of `log_prob` initialises the layers.
        """
        self.check_context(c)
        base = self.base() if c is None else self.base().expand(c.shape[:-1])
        distribution = FlowDistribution(self.transform(c), base)
        if initialize:
            distribution.initialize = partial(self.initialize, c=c)
        return distribution

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Initialise each layer from a batch `(..., features)`, transformed by the layers before it."""
        check_rows("x", x, self.features, "feature", self.dtype)
        self.check_context(c)
        if c is not None:
            x = x.expand(*torch.broadcast_shapes(x.shape[:-1], c.shape[:-1]), -1)
        for layer in self.transform.transforms:
            if hasattr(layer, "initialize"):
                layer.initialize(x)
            x = layer(c)(x)

    def inverse(
        self,
        z: Tensor,
        c: Tensor | None = None,
        tol: float | None = None,
        method: str = "exact",
        return_info: bool = False,
    ) -> Any:
        """Map latent points to data.

        Arguments:
            z: Latent points, `(..., features)`.
            c: The context, `(..., context)`, or None for a flow without context.
            tol: The residual at which a row has settled: see `elflow.transforms.invert`.
            method: `"exact"` inverts each coordinate in closed form; `"fixed-point"` and `"sequential"` exist for
                comparison: see `elflow.transforms.METHODS`.
            return_info: Whether to return the diagnostics of the inverse as well.

        Returns:
            x, `(..., features)`; with `return_info` also an `InverseInfo` of sweeps, residual and convergence.
            Without it, there is a `ConvergenceWarning` if the inverse has not converged.

        Example:
            >>> import elflow
            >>> flow = elflow.ELF(features=4)
            >>> x, info = flow.inverse(torch.randn(10, 4), return_info=True)
            >>> info.converged
            True
        """
        check_rows("z", z, self.features, "feature", self.dtype)
        self.check_context(c)
        x, info = invert(self.transform(c), z, tol, method)
        if return_info:
            return x, info
        if not info.converged:
            warn_not_converged(info)
        return x

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return next(self.transform.parameters()).dtype

    def check_context(self, c: Tensor | None) -> None:
        """Raise an error unless c is a context of the right shape, or None for a flow without context."""
        if self.context and c is None:
            raise ValueError(f"c must be a context of {self.context} features, got None")
        if c is not None:
            if not self.context:
                raise ValueError(f"c must be None for a flow built with context=0, got the shape {tuple(c.shape)}")
            check_rows("c", c, self.context, "context feature", self.dtype)


class LazyStack(LazyComposedTransform):
    """Composition of lazy transforms whose result is a `StackTransform`."""

    def forward(self, c: Tensor | None = None) -> StackTransform:
        return StackTransform([t(c) for t in self.transforms])
