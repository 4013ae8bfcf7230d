"""Convex potential flows: gradients of convex potentials, inverted by convex optimisation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from torch.nn.functional import linear, softplus
from zuko.lazy import LazyTransform

from elflow._checks import check_count
from elflow.flows.layered import LayeredFlow
from elflow.nn import ActNorm
from experiments.systems._conjugate import conjugate_gradients, log_determinant

__all__ = ["CPFlow", "ConvexPotential", "ConvexTransform"]

EXACT = 12
"""Maximum number of features for which the whole Hessian is computed for a determinant or a solution."""
PROBE_TOL = 1e-4
"""The relative residual at which a probe's linear system is solved in training."""
NUMBERS = 2**22
"""Maximum number of values of a layer at a time if no gradients are needed."""
NEWTON_STEPS, HALVINGS = 200, 60
NEWTON_TOL = 1e-9
"""Tolerance of the inverse, relative to 1 + |y|."""


class Layer(NamedTuple):
    """A layer of an input-convex network: `z = softplus(direct x + bias + positive z_before)`."""

    direct: Tensor
    bias: Tensor
    positive: Tensor
    """Weights without negative entries. In the first layer they have no columns."""

    def before(self, x: Tensor, z: Tensor) -> Tensor:
        """The argument of softplus."""
        return linear(x, self.direct, self.bias) + linear(z, self.positive)


class Neighbourhood:
    """The potential at points `(N, d)`, with intermediate results for its gradient and Hessian products.

    With a_k the argument of softplus in layer k and J_k the Jacobian of a_k, the Hessian of the network is the sum over
    all units of `dF/dz_k softplus''(a_k) J_k J_k^T`, in which no factor is negative.
    """

    def __init__(self, layers: Sequence[Layer], last: Tensor, quadratic: Tensor, x: Tensor) -> None:
        self.layers = layers
        self.quadratic = quadratic
        self.slopes: list[Tensor] = []
        self.curvatures: list[Tensor] = []
        z = x[:, :0]
        for layer in layers:
            a = layer.before(x, z)
            z = softplus(a)
            self.slopes.append(torch.sigmoid(a))
        self.value = z @ last + quadratic * x.square().sum(-1) / 2
        self.gradient, pulled = quadratic * x, last
        for layer, slope in zip(reversed(layers), reversed(self.slopes), strict=True):
            through = pulled * slope
            self.curvatures.insert(0, through * (1 - slope))
            self.gradient = self.gradient + through @ layer.direct
            pulled = through @ layer.positive

    def tangents(self, v: Tensor) -> Iterator[Tensor]:
        """`J_k v` of each layer, `(..., N, units)`, for v `(..., N, d)`."""
        pushed = v[..., :0]
        for layer, slope in zip(self.layers, self.slopes, strict=True):
            tangent = linear(v, layer.direct) + linear(pushed, layer.positive)
            yield tangent
            pushed = slope * tangent

    def product(self, v: Tensor) -> Tensor:
        """H v, for v `(N, d)`."""
        bent = [c * t for c, t in zip(self.curvatures, self.tangents(v), strict=True)]
        result, pulled = self.quadratic * v, torch.zeros_like(bent[-1])
        for layer, slope, own in zip(reversed(self.layers), reversed(self.slopes), reversed(bent), strict=True):
            through = own + pulled * slope
            result = result + through @ layer.direct
            pulled = through @ layer.positive
        return result

    def bilinear(self, u: Tensor, v: Tensor) -> Tensor:
        """`u^T H v`, `(N,)`."""
        result = self.quadratic * (u * v).sum(-1)
        for c, t in zip(self.curvatures, self.tangents(torch.stack([u, v])), strict=True):
            result = result + (c * t[0] * t[1]).sum(-1)
        return result

    def hessian(self) -> Tensor:
        """H, `(N, d, d)`."""
        n, d = self.gradient.shape
        unit = torch.eye(d, dtype=self.gradient.dtype, device=self.gradient.device)
        result = self.quadratic * unit
        for c, t in zip(self.curvatures, self.tangents(unit[:, None].expand(d, n, d)), strict=True):
            t = t.transpose(0, 1)
            result = result + (c[:, None] * t) @ t.mT
        return result

    def multiplier(self) -> Callable[[Tensor], Tensor]:
        """A function that multiplies by H, for many vectors in turn."""
        if self.gradient.shape[-1] > EXACT:
            return self.product
        h = self.hessian()
        return lambda v: (h @ v[..., None])[..., 0]


class ConvexTransform(Transform):
    """The gradient of a strongly convex potential `F(x) = quadratic |x|^2 / 2 + last . network(x)`.

    With `estimate` a log-determinant has the gradient of the paper's estimate, `(H^-1 v)^T dH v` of one vector v of
    random signs. Its value is the log-determinant itself up to 12 features, beyond an unbiased estimate that comes with
    the solution of `H u = v`, up to its tolerance. Without `estimate` both are exact.

    Arguments:
        layers: The hidden layers of the network.
        last: The weights of its last layer, `(units,)`, none of them negative.
        quadratic: The weight of the quadratic term, a positive scalar.
        estimate: Whether log-determinants have estimated gradients.

    Example:
        >>> t = ConvexPotential(features=2, width=8)()
        >>> y, ladj = t.call_and_ladj(torch.randn(5, 2))
        >>> y.shape, ladj.shape
        (torch.Size([5, 2]), torch.Size([5]))
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, layers: Sequence[Layer], last: Tensor, quadratic: Tensor, estimate: bool = False) -> None:
        super().__init__()
        self.layers = layers
        self.last = last
        self.quadratic = quadratic
        self.estimate = estimate

    def at(self, x: Tensor) -> Neighbourhood:
        """The potential at points `(N, d)`."""
        return Neighbourhood(self.layers, self.last, self.quadratic, x)

    def _call(self, x: Tensor) -> Tensor:
        return torch.cat([self.at(rows).gradient for rows in self._parts(x)]).reshape(x.shape)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ys, ladjs = [], []
        for rows in self._parts(x):
            point = self.at(rows)
            ys.append(point.gradient)
            ladjs.append(_estimated(point) if self.estimate else torch.linalg.slogdet(point.hessian()).logabsdet)
        return torch.cat(ys).reshape(x.shape), torch.cat(ladjs).reshape(x.shape[:-1])

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        """Blocks of rows `(n, features)` that fit into memory."""
        flat = x.reshape(-1, x.shape[-1])
        size = len(flat) if torch.is_grad_enabled() else NUMBERS // (len(self.last) * x.shape[-1])
        return flat.split(max(1, size))

    def _inverse(self, y: Tensor) -> Tensor:
        """The minimiser x of `F(x) - x . y`, in double precision, with gradients by implicit differentiation."""
        flat = y.reshape(-1, y.shape[-1])
        with torch.no_grad():
            double = [Layer(*[w.double() for w in layer]) for layer in self.layers]
            transform = ConvexTransform(double, self.last.double(), self.quadratic.double())
            x = torch.cat([transform._newton(rows) for rows in transform._parts(flat.double())]).to(y.dtype)
        if torch.is_grad_enabled():
            point = self.at(x)  # one more step of Newton's, whose matrix may count as constant
            x = x - torch.linalg.solve(point.hessian().detach(), point.gradient - flat)
        return x.reshape(y.shape)

    def _newton(self, y: Tensor) -> Tensor:
        """Solve `gradient(x) = y` for rows in double precision by Newton's method.

        A step is halved until it reduces the residual by a quarter of the reduction for a linear gradient.
        """
        result, start = y.clone(), 1 + y.abs().amax(-1)
        rows, x, point = torch.arange(len(y), device=y.device), y, self.at(y)  # those that have not settled
        for _ in range(NEWTON_STEPS):
            residual = point.gradient - y[rows]
            result[rows] = x
            active = ~(residual.abs().amax(-1) <= NEWTON_TOL * start[rows])
            if not active.any():
                return result
            if not active.all():
                rows, x, residual = rows[active], x[active], residual[active]
                point = self.at(x)
            step = conjugate_gradients(point.multiplier(), -residual, NEWTON_TOL, 4 * y.shape[-1]).x
            size, norm = torch.ones_like(x[:, :1]), residual.norm(dim=-1, keepdim=True)
            for _ in range(HALVINGS):
                point = self.at(x + size * step)
                worse = ~((point.gradient - y[rows]).norm(dim=-1, keepdim=True) <= (1 - size / 4) * norm)
                if not worse.any():
                    break
                size = torch.where(worse, size / 2, size)
            x = x + size * step
        raise RuntimeError(
            f"the inverse has not converged for {len(rows)} of {len(y)} points after {NEWTON_STEPS} steps of Newton's: "
            f"|f(x) - y| is up to {float(residual.abs().max()):.2g}, look for weights or points that are very large"
        )


def _estimated(point: Neighbourhood) -> Tensor:
    """The log-determinant of the Hessian, with the gradient of an estimate."""
    d = point.gradient.shape[-1]
    with torch.no_grad():
        v = torch.randint_like(point.gradient, 2) * 2 - 1
        if d > EXACT:
            solution = conjugate_gradients(point.product, v, PROBE_TOL, 2 * d)
            value = log_determinant(solution, v)
        else:
            h = point.hessian()
            solution = conjugate_gradients(lambda p: (h @ p[..., None])[..., 0], v, PROBE_TOL, 2 * d)
            value = torch.linalg.slogdet(h).logabsdet
    if not torch.is_grad_enabled():
        return value
    surrogate = point.bilinear(solution.x, v)
    return value + surrogate - surrogate.detach()


class ConvexPotential(LazyTransform):
    """The gradient of an input-convex network plus a quadratic term, with learned weights for both.

    There is an ActNorm before each activation, set by the first batch: without them 240 steps on eight Gaussians gained
    next to nothing, with them 0.8 nats.

    Arguments:
        features: The number of features.
        width: The number of units of each hidden layer.
        layers: The number of hidden layers.

    Example:
        >>> potential = ConvexPotential(features=2, width=8)
        >>> x = torch.randn(100, 2)
        >>> torch.linalg.eigvalsh(potential().at(x).hessian()).min() > 0
        tensor(True)
    """

    def __init__(self, features: int, width: int = 64, layers: int = 3) -> None:
        super().__init__()
        start = features**-0.5  # ActNorm takes care of scales
        self.direct = nn.ParameterList(start * torch.randn(width, features) for _ in range(layers))
        self.positive = nn.ParameterList(torch.randn(width, width) for _ in range(layers - 1))
        self.norms = nn.ModuleList(ActNorm(width) for _ in range(layers))
        self.last = nn.Parameter(torch.randn(width))
        self.weights = nn.Parameter(torch.full((2,), math.log(math.e - 1)))  # of the network and of the quadratic term

    def forward(self, c: Tensor | None = None) -> ConvexTransform:
        network, quadratic = softplus(self.weights)
        layers = [self._layer(k) for k in range(len(self.direct))]
        return ConvexTransform(layers, network * _mean(self.last), quadratic, estimate=self.training)

    def _layer(self, k: int) -> Layer:
        norm = cast(ActNorm, self.norms[k])
        scale = norm.log_scale.exp()
        positive = _mean(self.positive[k - 1]) if k else self.last[:, None][:, :0]
        return Layer(self.direct[k] * scale[:, None], -norm.loc * scale, positive * scale[:, None])

    @torch.no_grad()
    def initialize(self, x: Tensor) -> None:
        """Initialise the ActNorms, so that each standardises its input for this batch `(..., features)`."""
        z = x[..., :0]
        for k, norm in enumerate(self.norms):
            cast(ActNorm, norm).initialize(self._layer(k).before(x, z))
            z = softplus(self._layer(k).before(x, z))


class CPFlow(LayeredFlow):
    """A convex potential flow: gradients of strongly convex potentials from data to a standard normal distribution.

    There is an ActNorm before each of them and after the last, set by the first batch in training mode. In training
    mode the gradients of log-densities are the paper's estimates: see `ConvexTransform`. Samples come from Newton's
    method, which raises an error if it does not converge.

    Reference:
        Convex Potential Flows: Universal Probability Distributions with Optimal Transport and Convex Optimization
        (Huang et al., 2021)

    Arguments:
        features: The number of features.
        transforms: The number of potentials.
        width: The number of units of each hidden layer.
        layers: The number of hidden layers of each potential.

    Example:
        >>> flow = CPFlow(features=3, transforms=2, width=16).eval()
        >>> x = flow().sample((10,))
        >>> flow().log_prob(x).shape
        torch.Size([10])
    """

    def __init__(self, features: int, transforms: int = 1, width: int = 64, layers: int = 3) -> None:
        features, width = check_count("features", features), check_count("width", width)
        layers = check_count("layers", layers)
        steps: list[LazyTransform] = []
        for _ in range(check_count("transforms", transforms)):
            steps += [ActNorm(features), ConvexPotential(features, width, layers)]
        super().__init__([*steps, ActNorm(features)], features, context=0)


def _mean(weight: Tensor) -> Tensor:
    """Positive weights of the magnitude of those of a mean."""
    return softplus(weight) / weight.shape[-1]
