"""Base class of elflow's flows: a stack of layers from data to a standard normal distribution."""

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
    """A stack of layers from data to a standard normal distribution.

    Arguments:
        layers: Lazy transforms of `(..., features)`. Those with a method `initialize(x)` are set from the first batch.
        features: Number of features.
        context: Number of context features.
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
            c: The context, `(..., context)`, or None for a flow without one.
        """
        if self.training and not self.initialized and not torch.compiler.is_exporting():
            return self.distribution(c, initialize=True)
        return self.distribution(c)

    def distribution(self, c: Tensor | None = None, initialize: bool = False) -> FlowDistribution:
        """The distribution p(x | c), whose `log_prob` initialises the layers only if told so."""
        self.check_context(c)
        base = self.base() if c is None else self.base().expand(c.shape[:-1])
        distribution = FlowDistribution(self.transform(c), base)
        if initialize:
            distribution.initialize = partial(self.initialize, c=c)
        return distribution

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Sets each layer from what the layers before it make of a batch `(..., features)`."""
        check_rows("x", x, self.features, "feature")
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
        """From latent space to data.

        Arguments:
            z: Latent points, `(..., features)`.
            c: The context, `(..., context)`, or None for a flow without one.
            tol: When a row has settled, and how large the residual may be: see `elflow.transforms.invert`.
            method: `"exact"` inverts each coordinate in closed form; `"fixed-point"` and `"sequential"` are there
                for comparison: see `elflow.transforms.METHODS`.
            return_info: Whether to return how it went as well.

        Returns:
            x, `(..., features)`; with `return_info` also an `InverseInfo` of sweeps, residual and convergence.
            Without it, an inverse that has not converged warns.

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
        """What the flow computes in."""
        return next(self.transform.parameters()).dtype

    def check_context(self, c: Tensor | None) -> None:
        """That a context is there if and only if there must be one, and that it has the right shape."""
        if self.context and c is None:
            raise ValueError(f"c must be a context of {self.context} features, got None")
        if c is not None:
            if not self.context:
                raise ValueError("c must be None: this flow was built without a context (context=0)")
            check_rows("c", c, self.context, "context feature", self.dtype)


class LazyStack(LazyComposedTransform):
    """zuko's composition of lazy transforms, which makes a `StackTransform`."""

    def forward(self, c: Tensor | None = None) -> StackTransform:
        return StackTransform([t(c) for t in self.transforms])
