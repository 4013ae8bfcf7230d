"""Distribution of a flow: zuko's `NormalizingFlow` with argument checks and a convergence warning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Size, Tensor
from zuko.distributions import NormalizingFlow

from elflow._checks import check_rows
from elflow.transforms import invert, warn_not_converged

__all__ = ["FlowDistribution", "InitializingDistribution"]


class InitializingDistribution(NormalizingFlow):
    """Distribution of a flow after a transform, which initialises both from the first batch."""

    owner: tuple[Any, Tensor | None] | None = None
    """The module to initialise, and its context."""

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of points `(..., features)` in nats, `(...)`."""
        if self.owner is None:
            return super().log_prob(x)
        module, c = self.owner
        module.initialize(x, c)
        return NormalizingFlow.log_prob(module(c), x)


class FlowDistribution(NormalizingFlow):
    """Distribution of a flow, which checks its arguments and warns if an inverse does not converge.

    Example:
        >>> import elflow
        >>> dist = elflow.ELF(features=3).eval()()
        >>> x, log_prob = dist.rsample_and_log_prob((5,))
        >>> x.shape, torch.allclose(dist.log_prob(x), log_prob, atol=1e-3)
        (torch.Size([5, 3]), True)
    """

    initialize: Callable[[Tensor], None] | None = None
    """Data-dependent initialisation: `log_prob` calls it with the data before it uses them."""

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of points `(..., features)` in nats, `(...)`."""
        normal = self.base.base_dist
        check_rows("x", x, self.event_shape[0], "feature", normal.loc.dtype)
        if self.initialize is not None:
            self.initialize(x)
        z, ladj = self.transform.call_and_ladj(x)
        return normal.log_prob(z).sum(-1) + ladj  # zuko uses torch's Independent, which refuses empty batches

    def expand(self, batch_shape: Size, new: Any = None) -> FlowDistribution:
        """Expand the distribution to a larger batch shape."""
        expanded = super().expand(batch_shape, new)
        expanded.initialize = self.initialize
        return expanded

    def sample(self, sample_shape: Size | Sequence[int] = (), method: str = "exact") -> Tensor:
        """Draw samples without gradients, `(*sample_shape, *batch, features)`: see `rsample`."""
        with torch.no_grad():
            return self.rsample(sample_shape, method)

    def rsample(self, sample_shape: Size | Sequence[int] = (), method: str = "exact") -> Tensor:
        """Draw samples `(*sample_shape, *batch, features)`, with gradients by implicit differentiation.

        Arguments:
            sample_shape: The shape of the samples for each context.
            method: `"exact"` inverts each coordinate in closed form; `"fixed-point"` is the paper's iteration.
        """
        if isinstance(sample_shape, int):
            raise TypeError(f"sample_shape must be a tuple, got {sample_shape}: write ({sample_shape},)")
        x, info = invert(self.transform, self.base.rsample(Size(sample_shape)), method=method)
        if not info.converged:
            warn_not_converged(info)
        return x

    def rsample_and_log_prob(self, sample_shape: Size | Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Samples of `rsample`, `(*sample_shape, *batch, features)`, and their log-densities."""
        x = self.rsample(sample_shape)
        z, ladj = self.transform.call_and_ladj(x)
        return x, self.base.base_dist.log_prob(z).sum(-1) + ladj
