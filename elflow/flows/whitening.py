"""A flow over whitened features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from zuko.distributions import NormalizingFlow

__all__ = ["Whitened"]


class Whitened(nn.Module):
    """A flow that sees features without their linear correlations.

    It begins where a Gaussian with a full covariance ends, which on few rows is a good place. On many rows a flow finds
    correlations by itself, and features as they come are easier to learn from.

    Arguments:
        flow: Any flow.
        columns: Which features are whitened, among each other; the others are left alone.

    Example:
        >>> import elflow
        >>> x = torch.randn(500, 2) @ torch.tensor([[1.0, 0.9], [0.0, 0.1]])
        >>> flow = Whitened(elflow.ELF(features=2), columns=[0, 1])
        >>> flow.initialize(x)
        >>> torch.allclose(flow.linear(x).T.cov(), torch.eye(2), atol=0.01)
        True
    """

    def __init__(self, flow: nn.Module, columns: Sequence[int]) -> None:
        super().__init__()
        self.flow = flow
        self.columns = list(columns)
        self.register_buffer("loc", torch.zeros(len(columns)))
        self.register_buffer("scale", torch.eye(len(columns)))

    @property
    def linear(self) -> Triangular:
        """What is done before the flow."""
        return Triangular(self.loc, self.scale, self.columns)

    def forward(self, c: Tensor | None = None) -> NormalizingFlow:
        return NormalizingFlow(self.linear, self.flow(c))

    @torch.no_grad()
    def initialize(self, x: Tensor, c: Tensor | None = None) -> None:
        """Sets mean and covariance from data, `(N, features)`, then what the flow takes from its first data."""
        some = x[:, self.columns].double()
        centred = some - some.mean(0)
        covariance = centred.T @ centred / max(1, len(some) - 1)
        ridge = 1e-5 * covariance.diagonal().mean().clamp(min=1e-12) * torch.eye(len(self.columns)).to(covariance)
        self.loc = some.mean(0).to(x.dtype)
        self.scale = torch.linalg.cholesky(covariance + ridge).to(x.dtype)
        if initialize := getattr(self.flow, "initialize", None):
            initialize(self.linear(x), c)


class Triangular(Transform):
    """Some features minus their mean, times the inverse of a lower triangular matrix."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, loc: Any, scale: Any, columns: list[int]) -> None:
        super().__init__()
        self.loc, self.scale, self.columns = loc, scale, columns

    def _call(self, x: Tensor) -> Tensor:
        y = x.clone()
        centred = (x[..., self.columns] - self.loc).unsqueeze(-1)
        y[..., self.columns] = torch.linalg.solve_triangular(self.scale, centred, upper=False).squeeze(-1)
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        x = y.clone()
        x[..., self.columns] = y[..., self.columns] @ self.scale.T + self.loc
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.scale.diagonal().log().sum().expand(x.shape[:-1])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and the logarithm of the determinant, as zuko asks for them."""
        y = self(x)
        return y, self.log_abs_det_jacobian(x, y)
