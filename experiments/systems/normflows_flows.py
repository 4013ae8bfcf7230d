"""Residual, planar and radial flows of normflows, as flows that elflow trains.

normflows is optional: pip install 'elflow[experiments]' in a checkout.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from zuko.lazy import LazyTransform

from elflow._checks import check_count
from elflow.flows.layered import LayeredFlow
from elflow.nn import ActNorm

__all__ = ["normflows", "planar_flow", "radial_flow", "residual_flow"]

HIDDEN_LAYERS = 2
LIPSCHITZ = 0.97
"""Maximum spectral norm of a layer of a residual network."""
TRAINING_ITERATIONS, FINAL_ITERATIONS = 5, 200
"""Iterations of the power method for spectral norms: before each training step, and before evaluation."""
INVERSE_STEPS, INVERSE_TOL = 2_000, 1e-10
ROWS = 16_384
"""Number of rows whose Jacobians are computed at a time if no gradients are needed."""


def normflows() -> Any:
    """Import normflows, or raise an error that says how to install it.

    Example:
        >>> normflows().__name__
        'normflows'
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return import_module("normflows")
    except ModuleNotFoundError as error:
        if error.name != "normflows":
            raise
        raise ModuleNotFoundError(
            "this flow needs normflows: pip install 'elflow[experiments]' in a checkout", name="normflows"
        ) from None


def residual_flow(features: int, transforms: int, width: int, hidden_layers: int = HIDDEN_LAYERS) -> LayeredFlow:
    """A residual flow: blocks `x + g(x)` with Lipschitz networks g, and ActNorms between them.

    In training mode log-determinants are normflows' unbiased estimates, a power series of random length with a random
    probe; in evaluation mode they are exact, by whole Jacobians. The spectral norms of the layers are updated
    before each log-density in training mode, and before evaluation mode. Sampling iterates in double precision and
    raises an error if it does not converge.

    Reference:
        Residual Flows for Invertible Generative Modeling (Chen et al., 2019)

    Arguments:
        features: The number of features.
        transforms: The number of blocks.
        width: The number of units of each hidden layer.
        hidden_layers: The number of hidden layers.

    Example:
        >>> flow = residual_flow(features=2, transforms=2, width=8).eval()
        >>> flow().log_prob(flow().sample((10,))).shape
        torch.Size([10])
    """
    features, width = check_count("features", features), check_count("width", width)
    layers: list[LazyTransform] = []
    for _ in range(check_count("transforms", transforms)):
        layers += [ActNorm(features), ResidualBlock(features, width, check_count("hidden_layers", hidden_layers))]
    return LayeredFlow([*layers, ActNorm(features)], features, context=0)


def planar_flow(features: int, transforms: int) -> LayeredFlow:
    """Planar maps `x + u tanh(w x + b)` from data to latent space, between two ActNorms.

    Only this direction is in closed form: densities are exact, and sampling raises TypeError.

    Reference:
        Variational Inference with Normalizing Flows (Rezende and Mohamed, 2015)

    Arguments:
        features: The number of features.
        transforms: The number of maps, with `2 features + 1` parameters each.

    Example:
        >>> flow = planar_flow(features=2, transforms=4)
        >>> flow().log_prob(torch.randn(10, 2)).shape
        torch.Size([10])
    """
    return _one_way("Planar", features, transforms)


def radial_flow(features: int, transforms: int) -> LayeredFlow:
    """Radial maps `x + beta (x - x0) / (alpha + |x - x0|)` from data to latent space, between two ActNorms.

    Only this direction is computed: densities are exact, and sampling raises TypeError.

    Reference:
        Variational Inference with Normalizing Flows (Rezende and Mohamed, 2015)

    Arguments:
        features: The number of features.
        transforms: The number of maps, with `features + 2` parameters each.

    Example:
        >>> flow = radial_flow(features=2, transforms=4)
        >>> flow().log_prob(torch.randn(10, 2)).shape
        torch.Size([10])
    """
    return _one_way("Radial", features, transforms)


def _one_way(name: str, features: int, transforms: int) -> LayeredFlow:
    kind, features = getattr(normflows().flows, name), check_count("features", features)
    layers = [OneWay(kind((features,))) for _ in range(check_count("transforms", transforms))]
    return LayeredFlow([ActNorm(features), *layers, ActNorm(features)], features, context=0)


class RowsTransform(Transform):
    """A transform of vectors that is defined on rows `(N, features)` by `rows_and_ladj`."""

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.block = block

    def rows_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y `(N, features)` and the log-determinants `(N,)`."""
        raise TypeError(f"{type(self).__name__} must define rows_and_ladj")

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, ladj = self.rows_and_ladj(x.reshape(-1, x.shape[-1]))
        return y.reshape(x.shape), ladj.reshape(x.shape[:-1])


class OneWay(LazyTransform):
    """A planar or radial map, without an inverse."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, c: Tensor | None = None) -> OneWayTransform:
        return OneWayTransform(self.block)


class OneWayTransform(RowsTransform):
    """A map of normflows in its forward direction."""

    def rows_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.block(x)

    def _inverse(self, y: Tensor) -> Tensor:
        raise TypeError(
            f"samples need the inverse of normflows' {type(self.block).__name__}, which has none: "
            "this flow has log-densities only"
        )


class ScaledNetwork(nn.Module):
    """`g(s x) / s` with the Lipschitz constant of g, for `s = sqrt(width)`, without g's activation of its input.

    Layers have spectral norms below one, so each of many units receives nearly nothing of x, and g is nearly linear.
    The ActNorms around the block can learn the scale, but take thousands of steps. normflows begins with an activation,
    which would leave little of negative coordinates.
    """

    def __init__(self, network: Any, width: int) -> None:
        super().__init__()
        self.layers = network.net[1:]
        self.scale = math.sqrt(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.scale * x) / self.scale


class ResidualBlock(LazyTransform):
    """A block of a residual flow, which updates the Lipschitz constants of its layers."""

    def __init__(self, features: int, width: int, hidden_layers: int) -> None:
        super().__init__()
        nf = normflows()
        channels = [features, *[width] * hidden_layers, features]
        net = ScaledNetwork(nf.nets.LipschitzMLP(channels, lipschitz_const=LIPSCHITZ, init_zeros=False), width)
        # The other estimator, which saves memory, has another value, and gradients for means over the batch only.
        self.block = nf.flows.Residual(net, reduce_memory=False).iresblock
        for name in ("geom_p", "lamb"):  # constants, which are never trained
            constant = getattr(self.block, name).detach().float()
            delattr(self.block, name)
            self.block.register_buffer(name, constant)

    def train(self, mode: bool = True) -> ResidualBlock:
        if self.training and not mode:
            self.update(FINAL_ITERATIONS)
        super().train(mode)
        return self

    @torch.no_grad()
    def update(self, iterations: int) -> None:
        """Update the spectral norms of the layers."""
        normflows().utils.update_lipschitz(self.block, iterations)

    def forward(self, c: Tensor | None = None) -> ResidualTransform:
        if self.training and torch.is_grad_enabled():
            self.update(TRAINING_ITERATIONS)
        return ResidualTransform(self.block, estimate=self.training)


class ResidualTransform(RowsTransform):
    """`x + g(x)`, with an estimated log-determinant or the exact one."""

    def __init__(self, block: Any, estimate: bool) -> None:
        super().__init__(block)
        self.estimate = estimate

    def rows_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.estimate:
            with _seeded_numpy():
                g, ladj = self.block._logdetgrad(x + 0)  # a copy: it would require gradients of x itself
            y, ladj = x + g, ladj.reshape(-1)
        else:
            done = [self._jacobian(rows) for rows in x.split(max(1, len(x)) if torch.is_grad_enabled() else ROWS)]
            y = torch.cat([y for y, _ in done])
            ladj = torch.cat([torch.linalg.slogdet(jacobian).logabsdet for _, jacobian in done])
        return (y, ladj) if torch.is_grad_enabled() else (y.detach(), ladj.detach())

    def _jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, `(N, d)`, and its Jacobian, `(N, d, d)`."""
        keep = torch.is_grad_enabled()
        with torch.enable_grad():
            at = x if x.requires_grad else x.detach().requires_grad_()
            y = at + self.block.nnet(at)
            lines = [
                torch.autograd.grad(y[:, i].sum(), at, create_graph=keep, retain_graph=True)[0]
                for i in range(x.shape[-1])
            ]
        return y, torch.stack(lines, -2)

    def _inverse(self, y: Tensor) -> Tensor:
        """By the iteration `x <- y - g(x)`, in double precision, with gradients by implicit differentiation."""
        flat = y.reshape(-1, y.shape[-1])
        with torch.no_grad():
            net = copy.deepcopy(self.block.nnet).double()
            x = torch.cat([_iterate(net, rows) for rows in flat.double().split(ROWS)]).to(y.dtype)
        if torch.is_grad_enabled():
            back, jacobian = self._jacobian(x)
            x = x - torch.linalg.solve(jacobian.detach(), back - flat)  # a Newton step with a constant matrix
        return x.reshape(y.shape)


def _iterate(net: nn.Module, y: Tensor) -> Tensor:
    x, tol = y, INVERSE_TOL * (1 + y.abs())
    for _ in range(INVERSE_STEPS):
        x, before = y - net(x), x
        wrong = ~((x - before).abs() <= tol).all(-1)
        if not wrong.any():
            return x
    raise RuntimeError(
        f"the inverse of a residual block has not converged for {int(wrong.sum())} of {len(y)} points after "
        f"{INVERSE_STEPS} steps: they still move by up to {float((x - before).abs().max()):.2g}, so its network "
        "does not contract: call eval() again after changing its weights"
    )


@contextmanager
def _seeded_numpy() -> Iterator[None]:
    """Seed numpy's global generator, from which normflows draws lengths of series, by torch's generator."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(int(torch.randint(2**31, ())))  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002
