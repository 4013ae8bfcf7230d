"""Whitening: linear decorrelation of features before a flow."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from zuko.distributions import NormalizingFlow
from zuko.lazy import LazyTransform

from elflow.nn import DataInitialized, InitializesParts

__all__ = ["Whitened", "Whitening"]


class Whitened(InitializesParts):
    """Flow over whitened features.

    Training starts from a Gaussian with full covariance, which helps with few rows. With many rows a flow learns the
    correlations itself, and does so more easily from unchanged features.

    Arguments:
        flow: Any flow.
        columns: The features to whiten jointly; the others are unchanged.

    Example:
        >>> import elflow
        >>> x = torch.randn(500, 2) @ torch.tensor([[1.0, 0.9], [0.0, 0.1]])
        >>> flow = Whitened(elflow.ELF(features=2), columns=[0, 1])
        >>> flow.initialize(x)
        >>> torch.allclose(flow.whitening()(x).T.cov(), torch.eye(2), atol=0.01)
        True
    """

    def __init__(self, flow: nn.Module, columns: Sequence[int]) -> None:
        super().__init__()
        self.whitening = Whitening(columns)
        self.flow = flow

    def forward(self, c: Tensor | None = None) -> NormalizingFlow:
        """The distribution p(x | c), given the context `(..., context)`, or None for a flow without context."""
        distribution = _WhitenedDistribution(self.whitening(), self.flow(c))
        if self.training and not self.initialized:
            distribution.owner = self, c
        return distribution

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Initialise the whitening from data `(N, features)`, then the flow from the whitened data."""
        self.whitening.initialize(x)
        if initialize := getattr(self.flow, "initialize", None):
            initialize(self.whitening()(x), c)


class _WhitenedDistribution(NormalizingFlow):
    """Distribution of a whitened flow, which initialises the whitening and the flow from the first batch."""

    owner: tuple[Whitened, Tensor | None] | None = None
    """The flow to initialise, and its context."""

    def log_prob(self, x: Tensor) -> Tensor:
        if self.owner is None:
            return super().log_prob(x)
        flow, c = self.owner
        flow.initialize(x, c)
        return NormalizingFlow(flow.whitening(), flow.flow(c)).log_prob(x)


class Whitening(DataInitialized, LazyTransform):
    """Whitening of some features: subtracts their mean and applies the inverse Cholesky factor of their covariance.

    Mean and factor are set from the first batch, and are not trained.

    Arguments:
        columns: The features to whiten.

    Example:
        >>> whitening = Whitening([0, 1])
        >>> x = torch.randn(500, 3) @ torch.randn(3, 3)
        >>> whitening.initialize(x)
        >>> y = whitening()(x)
        >>> torch.allclose(y[:, :2].T.cov(), torch.eye(2), atol=0.01), torch.equal(y[:, 2], x[:, 2])
        (True, True)
    """

    loc: Tensor
    cholesky: Tensor

    def __init__(self, columns: Sequence[int]) -> None:
        super().__init__()
        self.columns = list(columns)
        self.register_buffer("loc", torch.zeros(len(columns)))
        self.register_buffer("cholesky", torch.eye(len(columns)))

    def extra_repr(self) -> str:
        return f"columns={self.columns}"

    def forward(self, c: Tensor | None = None) -> TriangularTransform:
        return TriangularTransform(self.loc, self.cholesky, self.columns)

    def set_from(self, x: Tensor) -> bool:
        """Set mean and Cholesky factor from data `(N, features)`."""
        chosen = x[:, self.columns].double()
        centred = chosen - chosen.mean(0)
        covariance = centred.T @ centred / max(1, len(chosen) - 1)
        # The ridge keeps the factor defined if features are constant or linearly dependent.
        ridge = 1e-5 * covariance.diagonal().mean().clamp(min=1e-12) * torch.eye(len(self.columns)).to(covariance)
        self.loc.copy_(chosen.mean(0))
        self.cholesky.copy_(torch.linalg.cholesky(covariance + ridge))
        return True


class TriangularTransform(Transform):
    """Affine transform of some features by a lower triangular matrix; the others are unchanged.

    Arguments:
        loc: The mean, `(K,)`, which is subtracted.
        cholesky: A lower triangular matrix, `(K, K)`, whose inverse is applied.
        columns: The K features to transform.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, loc: Tensor, cholesky: Tensor, columns: list[int]) -> None:
        super().__init__()
        self.loc, self.cholesky, self.columns = loc, cholesky, columns

    def _call(self, x: Tensor) -> Tensor:
        y = x.clone()
        centred = (x[..., self.columns] - self.loc).unsqueeze(-1).double()
        # In double precision: single would round differently for batches of different sizes.
        whitened = torch.linalg.solve_triangular(self.cholesky.double(), centred, upper=False)
        y[..., self.columns] = whitened.squeeze(-1).to(y.dtype)
        return y

    def _inverse(self, y: Tensor) -> Tensor:
        x = y.clone()
        x[..., self.columns] = y[..., self.columns] @ self.cholesky.T + self.loc
        return x

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.cholesky.diagonal().log().sum().expand(x.shape[:-1])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, `(..., features)`, and the log-determinant of the Jacobian, `(...)`."""
        y = self(x)
        return y, self.log_abs_det_jacobian(x, y)
