"""Whitening: a learnable linear layer before a flow, and the Gaussian that it makes of a standard normal base."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from zuko.distributions import DiagNormal, NormalizingFlow
from zuko.lazy import LazyTransform

from elflow._checks import check_choice, check_count, check_order
from elflow.flows.distribution import FlowDistribution, InitializingDistribution
from elflow.nn import DataInitialized, InitializesParts

__all__ = ["Gaussian", "TriangularTransform", "Whitened", "Whitening", "shrink_correlation"]

STARTS = ["cholesky", "identity"]
MIN_SHRINKAGE = 1e-6
"""Minimum shrinkage, which keeps the factor of a covariance defined if features are constant or collinear."""
MAX_LOG_CHANGE = 7.0
"""Upper bound of the absolute change of a log-scale in training, which it never reaches."""
N_FOLDS = 5
"""Number of folds of the cross-validation that selects the shrinkage."""


class Whitened(InitializesParts):
    """Flow with a learnable linear layer before it: see `Whitening`.

    Arguments:
        flow: Any flow.
        features: The number of features.
        context: The number of context features.
        start: Initial linear layer. `"cholesky"` removes linear correlations, so that training starts near a Gaussian
            with full covariance. `"identity"` only standardises, which suits structure along the axes.
        order: The order of the features, by default that of the columns.
        learnable: Whether the linear layer is trained.

    Example:
        >>> import elflow
        >>> x = torch.randn(500, 2) @ torch.tensor([[1.0, 0.9], [0.0, 0.1]])
        >>> flow = Whitened(elflow.ELF(features=2), features=2)
        >>> flow.initialize(x)
        >>> torch.allclose(flow.whitening()(x).T.cov(), torch.eye(2), atol=0.05)
        True
    """

    def __init__(
        self,
        flow: nn.Module,
        features: int,
        context: int = 0,
        start: str = "cholesky",
        order: Sequence[int] | None = None,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        self.whitening = Whitening(features, context, start, order, learnable)
        self.flow = flow

    def forward(self, c: Tensor | None = None) -> NormalizingFlow:
        """The distribution p(x | c), given the context `(..., context)`, or None for a flow without context."""
        distribution = InitializingDistribution(self.whitening(c), self.flow(c))
        if self.training and not self.initialized:
            distribution.owner = self, c
        return distribution

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Initialise the linear layer from data `(N, features)`, then the flow from the transformed data."""
        self.whitening.initialize(x, c)
        if initialize := getattr(self.flow, "initialize", None):
            initialize(self.whitening(c)(x), c)


class Gaussian(InitializesParts):
    """Gaussian with full covariance and a mean that is linear in the context; `initialize` sets both from data.

    It has no trainable parameters. The covariance is shrunk towards its diagonal: see `shrink_correlation`.

    Arguments:
        features: The number of features.
        context: The number of context features.

    Example:
        >>> x = torch.randn(2000, 2) @ torch.tensor([[1.0, 0.9], [0.0, 0.1]])
        >>> flow = Gaussian(features=2)
        >>> flow.initialize(x)
        >>> truth = torch.distributions.MultivariateNormal(x.mean(0), x.T.cov())
        >>> torch.allclose(flow().log_prob(x[:5]), truth.log_prob(x[:5]), atol=0.02)
        True
    """

    zeros: Tensor

    def __init__(self, features: int, context: int = 0) -> None:
        super().__init__()
        self.whitening = Whitening(features, context, learnable=False)
        self.register_buffer("zeros", torch.zeros(features), persistent=False)

    def forward(self, c: Tensor | None = None) -> FlowDistribution:
        """The distribution p(x | c), given the context `(..., context)`, or None for a flow without context."""
        zeros = self.zeros if c is None else self.zeros.expand(*c.shape[:-1], -1)
        return FlowDistribution(self.whitening(c), DiagNormal(zeros, torch.ones_like(zeros)))

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Set mean and covariance from data `(N, features)`."""
        self.whitening.initialize(x, c)


class Whitening(DataInitialized, LazyTransform):
    """Learnable linear layer with a lower triangular matrix: y = exp(s) * (u + L u), u = x - loc - B c.

    The first batch sets the start. Parameters are the difference from it, so that weight decay pulls towards the start
    and not towards zero.

    Arguments:
        features: The number of features.
        context: The number of context features.
        start: Initial matrix: see `Whitened`. With `"cholesky"`, B is the linear regression on the context.
        order: The order of the features, by default that of the columns.
        learnable: Whether the layer is trained.

    Example:
        >>> whitening = Whitening(features=3)
        >>> x = torch.randn(500, 3) @ torch.randn(3, 3)
        >>> whitening.initialize(x)
        >>> torch.allclose(whitening()(x).T.cov(), torch.eye(3), atol=0.05)
        True
    """

    matrix: Tensor

    def __init__(
        self,
        features: int,
        context: int = 0,
        start: str = "cholesky",
        order: Sequence[int] | None = None,
        learnable: bool = True,
    ) -> None:
        super().__init__()
        check_choice("start", start, STARTS)
        self.features = check_count("features", features)
        self.start = start
        self.order = check_order(range(features) if order is None else order, features)
        # One matrix, (features, 1 + features + context): loc; s on the diagonal and L below it; B.
        shape = features, 1 + features + check_count("context", context, least=0)
        self.register_buffer("matrix", torch.zeros(shape))
        self.change = nn.Parameter(torch.zeros(shape)) if learnable else None

    def extra_repr(self) -> str:
        return f"features={self.features}, start={self.start!r}, order={list(self.order)}"

    def compute_parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """loc `(K,)`, the strictly lower triangular L `(K, K)`, s `(K,)` and B `(K, context)`."""
        matrix, log_scale = self.matrix, self.matrix[:, 1:].diagonal()
        if self.change is not None:
            change = self.change[:, 1:].diagonal()
            log_scale = log_scale + change / (1 + change.abs() / MAX_LOG_CHANGE)
            matrix = matrix + self.change
        loc, lower, coefficients = matrix.tensor_split([1, 1 + self.features], 1)
        return loc[:, 0], lower.tril(-1), log_scale, coefficients

    def forward(self, c: Tensor | None = None) -> TriangularTransform:
        loc, lower, log_scale, coefficients = self.compute_parts()
        loc = loc if c is None else loc + multiply(c, coefficients.T)
        return TriangularTransform(loc, lower, log_scale, self.order)

    @torch.no_grad()
    def initialize(self, x: Tensor, c: Tensor | None = None) -> None:
        """Set the start from data `(N, features)` with their context `(N, context)`; does nothing if it is set."""
        if not self.initialized and len(x) >= 2:
            self._set_from(x, c)
            self.initialized.fill_(True)

    def _set_from(self, x: Tensor, c: Tensor | None) -> None:
        u = x[:, list(self.order)].double()
        matrix = torch.zeros_like(self.matrix, dtype=torch.double)
        is_constant = u.std(0) <= 1e-6 * u.abs().amax(0).clamp(min=1e-30)
        if self.start == "cholesky" and c is not None:
            matrix[:, 1 + self.features :] = regress(u, c.double())
            u = u - c.double() @ matrix[:, 1 + self.features :].T
        matrix[:, 0] = u.mean(0)
        u = u - u.mean(0)
        scale = torch.where(is_constant | (u.std(0) == 0), 1.0, u.std(0))
        inverse = (1 / scale).diag()
        if self.start == "cholesky":
            correlation = shrink_correlation(u / scale)
            inverse = torch.linalg.inv(torch.linalg.cholesky(correlation)) @ inverse
        self._set_inverse(matrix, inverse)

    @torch.no_grad()
    def set_moments(self, mean: Tensor, covariance: Tensor) -> None:
        """Set the start that whitens a Gaussian of this mean `(K,)` and covariance `(K, K)`, in the layer's order."""
        matrix = torch.zeros_like(self.matrix, dtype=torch.double)
        matrix[:, 0] = mean
        self._set_inverse(matrix, torch.linalg.inv(torch.linalg.cholesky(covariance.double())))
        self.initialized.fill_(True)

    @torch.no_grad()
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean `(K,)`, its coefficients of the context `(K, context)`, and covariance `(K, K)` of a Gaussian.

        It is the Gaussian that the layer maps to a standard normal distribution, with the features in the order of the
        data, in double precision.

        Example:
            >>> whitening = Whitening(features=2, order=[1, 0])
            >>> whitening.set_moments(torch.tensor([3.0, 5.0]), torch.tensor([[4.0, 1.0], [1.0, 1.0]]))
            >>> mean, _, covariance = whitening.moments()
            >>> mean, covariance
            (tensor([5., 3.], dtype=torch.float64), tensor([[1.0000, 1.0000],
                    [1.0000, 4.0000]], dtype=torch.float64))
        """
        change = 0.0 if self.change is None else self.change.double()
        loc, _, coefficients = (self.matrix.double() + change).tensor_split([1, 1 + self.features], 1)
        transform = self()
        scale, lower = transform.log_scale.double().exp(), transform.lower.double()
        identity = torch.eye(self.features, dtype=torch.double)
        factor = torch.linalg.inv(scale.cpu()[:, None] * (identity + lower.cpu()))
        order = torch.tensor(self.order).argsort()
        covariance = (factor @ factor.T)[order][:, order]
        return loc[order, 0].cpu(), coefficients[order].cpu(), covariance

    def _set_inverse(self, matrix: Tensor, inverse: Tensor) -> None:
        """Set the start from a matrix with loc and B, and the triangular matrix to multiply by, `(K, K)`."""
        diagonal = inverse.diagonal()
        matrix[:, 1 : 1 + self.features] = (inverse / diagonal[:, None]).tril(-1) + diagonal.log().diag()
        self.matrix.copy_(matrix)


def regress(u: Tensor, c: Tensor) -> Tensor:
    """Coefficients of the linear regression of u `(N, features)` on c `(N, context)`, `(features, context)`."""
    centred = c - c.mean(0)
    gram = centred.T @ centred
    # The ridge, that of one row in a hundred thousand, decides between indicators that add up to one.
    ridge = 1e-5 * gram.diagonal().mean().clamp(min=1e-12) * torch.eye(len(gram)).to(gram)
    return torch.linalg.solve(gram + ridge, centred.T @ (u - u.mean(0))).T


def shrink_correlation(x: Tensor) -> Tensor:
    """Correlation matrix, shrunk towards the identity by the amount that cross-validation selects.

    The criterion is the held-out log-likelihood of a Gaussian (Hoffbeck and Landgrebe, 1996). Estimates for the squared
    error, such as that of Ledoit and Wolf, shrink the small eigenvalues of collinear features too much for a density.

    Arguments:
        x: Standardised data in double precision, `(N, features)`.

    Returns:
        A positive definite matrix, `(features, features)`.

    Example:
        >>> x = torch.randn(30, 40).double()
        >>> bool(torch.linalg.eigvalsh(shrink_correlation(x)).min() > 0.3)
        True
    """
    shrinkage = torch.logspace(-6, 0, 25, dtype=x.dtype).clamp(min=MIN_SHRINKAGE)
    scores = torch.zeros_like(shrinkage)
    # The order of the rows may be periodic: folds are random, but always the same.
    folds = torch.randperm(len(x), generator=torch.Generator().manual_seed(0)) % N_FOLDS
    for fold in range(min(N_FOLDS, len(x)) if len(x) >= 2 * N_FOLDS else 0):
        is_held_out = folds == fold
        training, held_out = x[~is_held_out], x[is_held_out]
        values, vectors = torch.linalg.eigh(training.T @ training / len(training))
        variances = values.clamp(min=0) * (1 - shrinkage[:, None]) + shrinkage[:, None]
        scores -= variances.log().sum(1) + ((held_out @ vectors).square().mean(0) / variances).sum(1)
    best = shrinkage[scores.argmax()] if len(x) >= 2 * N_FOLDS else shrinkage[-1]
    return (1 - best) * (x.T @ x / len(x)) + best * torch.eye(x.shape[1]).to(x)


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """Matrix product in the precision of its factors: data have more digits than autocast keeps."""
    if a.is_meta or not torch.is_autocast_enabled(a.device.type):
        return a @ b
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


class TriangularTransform(Transform):
    """Affine transform y = exp(s) * (u + L u) with u = x - loc, of features in a given order.

    Arguments:
        loc: The shift, `(..., K)`.
        lower: The strictly lower triangular matrix L, `(K, K)`.
        log_scale: The logarithms s of the scales, `(K,)`.
        order: The order of the K features.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, loc: Tensor, lower: Tensor, log_scale: Tensor, order: Sequence[int]) -> None:
        super().__init__()
        self.loc, self.lower, self.log_scale, self.order = loc, lower, log_scale, list(order)

    def _call(self, x: Tensor) -> Tensor:
        u = x[..., self.order] - self.loc
        return (u + multiply(u, self.lower.T)) * self.log_scale.exp()

    def _inverse(self, y: Tensor) -> Tensor:
        scaled = (y * (-self.log_scale).exp()).reshape(-1, y.shape[-1])
        # All rows are columns of one system: a system for each row would copy the matrix as often.
        u = torch.linalg.solve_triangular(self.lower, scaled.T, upper=False, unitriangular=True).T.reshape(y.shape)
        return (u + self.loc)[..., torch.tensor(self.order).argsort()]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.log_scale.sum().expand(y.shape[:-1])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, `(..., features)`, and the log-determinant of the Jacobian, `(...)`."""
        y = self(x)
        return y, self.log_abs_det_jacobian(x, y)
