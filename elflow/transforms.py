"""Transformations without parameters of their own: torch `Transform`s that compose with those of zuko.

`transform(x)` takes data to latent space and `transform.inv(y)` takes it back; `call_and_ladj` also gives the
log-determinant.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor
from torch.autograd.function import once_differentiable
from torch.distributions import Transform, constraints

from elflow._checks import check_choice, check_positive, check_rows
from elflow.activations import FELU, PiecewiseQuadratic
from elflow.functional import elf, elf_bumps, elf_bumps_inverse, elf_inverse

__all__ = [
    "METHODS",
    "ActNormTransform",
    "AutoregressiveTransform",
    "BumpTransform",
    "ColumnsTransform",
    "ConvergenceWarning",
    "ELFTransform",
    "InverseInfo",
    "invert",
]


class ELFTransform(Transform):
    """The increasing map of an exact-Lipschitz network, element by element.

    Arguments:
        w1: Weights into the units, `(..., H)`.
        b1: Biases of the units, `(..., H)`.
        w2: Weights out of the units, `(..., H)`.
        b2: Shifts, `(...)`.
        bound: The greatest Lipschitz constant that the network keeps, in (0, 1).
        activation: What the units compute.

    Example:
        >>> t = ELFTransform(torch.randn(3, 16), torch.randn(3, 16), torch.randn(3, 16), torch.zeros(3))
        >>> x = torch.randn(5, 3)
        >>> y, ladj = t.call_and_ladj(x)
        >>> ladj.shape
        torch.Size([5, 3])
        >>> torch.allclose(t.inv(y), x, atol=1e-4)
        True
    """

    domain = constraints.real
    codomain = constraints.real
    bijective = True
    sign = +1

    def __init__(
        self,
        w1: Tensor,
        b1: Tensor,
        w2: Tensor,
        b2: Tensor,
        bound: float = 0.99,
        activation: PiecewiseQuadratic = FELU,
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.parameters = w1, b1, w2, b2
        self.bound = bound
        self.activation = activation

    def __repr__(self) -> str:
        return f"{type(self).__name__}(units={self.parameters[0].shape[-1]}, bound={self.bound})"

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return elf_inverse(y, *self.parameters, bound=self.bound, activation=self.activation)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return elf(x, *self.parameters, bound=self.bound, activation=self.activation)


class BumpTransform(Transform):
    """As `ELFTransform`, of networks whose units are bumps.

    Arguments:
        phi: Networks, `(..., bump_size(units))`: see `elflow.functional.bumps`.
        units: The number of units of each network.
        bound: The greatest Lipschitz constant that the network keeps, in (0, 1).
        activation: What the units compute.

    Example:
        >>> t = BumpTransform(torch.randn(3, 41), units=16)
        >>> t(torch.zeros(5, 3)).shape
        torch.Size([5, 3])
    """

    domain = constraints.real
    codomain = constraints.real
    bijective = True
    sign = +1

    def __init__(
        self,
        phi: Tensor,
        units: int,
        bound: float = 0.99,
        activation: PiecewiseQuadratic = FELU,
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.phi = phi
        self.options = units, bound, activation

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return elf_bumps_inverse(y, self.phi, *self.options)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return elf_bumps(x, self.phi, *self.options)


class ActNormTransform(Transform):
    """Shifts and scales each coordinate: `y = (x - loc) exp(log_scale)`.

    Arguments:
        loc: What is taken away, `(features,)`.
        log_scale: The logarithms of the scales, `(features,)`.

    Example:
        >>> t = ActNormTransform(torch.tensor([1.0, 2.0]), torch.zeros(2))
        >>> t.call_and_ladj(torch.tensor([[1.0, 4.0]]))
        (tensor([[0., 2.]]), tensor([0.]))
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, loc: Tensor, log_scale: Tensor, cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.loc = loc
        self.log_scale = log_scale

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return y * (-self.log_scale).exp() + self.loc

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.log_scale.sum().expand(x.shape[:-1])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x - self.loc) * self.log_scale.exp()
        return y, self.log_abs_det_jacobian(x, y)


class ColumnsTransform(Transform):
    """Groups of coordinates, each by an elementwise transform of its own.

    Arguments:
        columns: The coordinates of each group; every coordinate is in one.
        transforms: What each group goes through.

    Example:
        >>> from torch.distributions import AffineTransform
        >>> t = ColumnsTransform([(1,), (0, 2)], [AffineTransform(0.0, 10.0), AffineTransform(1.0, 1.0)])
        >>> t(torch.tensor([1.0, 2.0, 3.0]))
        tensor([ 2., 20.,  4.])
    """

    domain = constraints.real
    codomain = constraints.real
    bijective = True

    def __init__(self, columns: Sequence[Sequence[int]], transforms: Sequence[Transform], cache_size: int = 0) -> None:
        super().__init__(cache_size=cache_size)
        self.columns = columns
        self.transforms = transforms
        order = [column for group in columns for column in group]
        self._back = None if order == sorted(order) else [order.index(column) for column in range(len(order))]

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return self._joined([t.inv(part) for t, part in zip(self.transforms, self._parts(y), strict=True)])

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ys, ladjs = [], []
        for t, part in zip(self.transforms, self._parts(x), strict=True):
            y, ladj = t.call_and_ladj(part)  # type: ignore[attr-defined]
            ys.append(y)
            ladjs.append(ladj)
        return self._joined(ys), self._joined(ladjs)

    def _parts(self, x: Tensor) -> list[Tensor]:
        return [_selected(x, columns) for columns in self.columns]

    def _joined(self, parts: list[Tensor]) -> Tensor:
        joined = torch.cat(parts, dim=-1)
        return joined if self._back is None else joined[..., self._back]


def _selected(x: Tensor, columns: Sequence[int]) -> Tensor:
    """Columns of x `(..., features)`, as a view where they stand next to each other."""
    first, count = columns[0], len(columns)
    if tuple(columns) == tuple(range(first, first + count)):
        return x.narrow(-1, first, count)
    return x[..., list(columns)]


class ConvergenceWarning(UserWarning):
    """An inverse came back with a residual that is too large."""


@dataclass(frozen=True)
class InverseInfo:
    """How an inverse went."""

    sweeps: tuple[int, ...]
    """How often each layer swept, in the order of the data's way to latent space. A layer evaluates its hypernetwork
    once more than it sweeps, to see the residual."""
    residual: float
    """The greatest `|f(x) - y| / (1 + max(|x|, |y|))` of any coordinate in any layer."""
    converged: bool
    """Whether the residual is as small as was asked for, or as its dtype allows."""


class AutoregressiveTransform(Transform):
    """Each coordinate by an increasing map of its own, which depends on the coordinates before it.

    The inverse sweeps: it computes all maps from the current guess, then inverts every coordinate. Each sweep makes at
    least one more coordinate final, so that there are at most as many as features. Mostly there are far fewer: a row
    whose residual is small enough is done and leaves the batch. The gradient of the inverse is implicit: it solves one
    triangular system, however many sweeps there were.

    Arguments:
        maps: The increasing maps, as an elementwise `Transform`, of x `(N, features)` and the context `(N, C)`.
        context: The context `(..., C)`, or None. Its leading dimensions broadcast with those of x.
        sweeps: After how many sweeps every coordinate is final.
        inputs: The coordinates that the maps depend on; None for all.
        start: The first guess from y `(N, features)`, where there is a better one than y itself.
        rows: How many rows to take at a time where no gradients are needed, so that what the maps hold stays in the
            cache and in memory; None for all.

    Example:
        >>> from torch.distributions import AffineTransform
        >>> before = torch.tensor([[0.0, 0.0], [0.5, 0.0]])  # the second coordinate depends on the first
        >>> t = AutoregressiveTransform(lambda x, _: AffineTransform(x @ before.T, (x @ before.T).exp()), None, 2)
        >>> y, ladj = t.call_and_ladj(torch.tensor([2.0, 3.0]))
        >>> y, ladj
        (tensor([2.0000, 9.1548]), tensor(1.))
        >>> x, info = invert(t, y)
        >>> x.detach(), info.sweeps, info.converged
        (tensor([2., 3.]), (1,), True)
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(
        self,
        maps: Callable[[Tensor, Tensor | None], Any],
        context: Tensor | None,
        sweeps: int,
        inputs: Sequence[int] | None = None,
        start: Callable[[Tensor], Tensor] | None = None,
        rows: int | None = None,
        cache_size: int = 0,
    ) -> None:
        super().__init__(cache_size=cache_size)
        self.maps = maps
        self.context = context
        self.sweeps = sweeps
        self.inputs = inputs
        self.start = start
        self.rows = rows

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.rows is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            y, ladj = self.maps(x, self.context).call_and_ladj(x)
            return y, ladj.sum(-1)
        batch, parts = self._row_parts(x)
        done = [self.maps(part, c).call_and_ladj(part) for part, c in parts]
        y, ladj = torch.cat([y for y, _ in done]), torch.cat([ladj.sum(-1) for _, ladj in done])
        return y.reshape(*batch, -1), ladj.reshape(batch)

    def _row_parts(self, x: Tensor) -> tuple[Size, list[tuple[Tensor, Tensor | None]]]:
        """The batch shape, and some rows `(n, features)` at a time with the context `(n, C)` of each."""
        batch, context = x.shape[:-1], self.context
        if context is not None:
            batch = torch.broadcast_shapes(batch, context.shape[:-1])
            context = context.expand(*batch, -1).reshape(-1, context.shape[-1])
        flat = x.expand(*batch, -1).reshape(-1, x.shape[-1])
        size = self.rows or max(1, len(flat))
        contexts = [None] * len(flat.split(size)) if context is None else context.split(size)
        return batch, list(zip(flat.split(size), contexts, strict=True))

    def _inverse(self, y: Tensor) -> Tensor:
        x, info = invert(self, y)
        if not info.converged:
            warn(info)
        return x

    def sweep(self, y: Tensor, tol: float, method: str) -> tuple[Tensor, InverseInfo]:
        """The inverse with its gradients, and how it went; for the arguments see `invert`."""
        step, limit = METHODS[method]
        limit = self.sweeps if limit is None else limit
        with torch.no_grad():
            batch, parts = self._row_parts(y)
            done = [self._sweep_rows(part, c, step, limit, tol) for part, c in parts]
            x = torch.cat([x for x, _, _ in done]).reshape(*batch, -1)
        worst = max([residual for _, _, residual in done])
        info = InverseInfo(
            (max([sweeps for _, sweeps, _ in done]),), worst, worst <= max(tol, torch.finfo(y.dtype).eps ** 0.5)
        )
        return self._attached(x, y), info

    def _sweep_rows(
        self, y: Tensor, context: Tensor | None, step: Step, limit: int, tol: float
    ) -> tuple[Tensor, int, float]:
        """Sweeps over rows `(n, features)` until all have settled or there were enough: x, sweeps, greatest residual."""
        result, residuals = y.clone(), y.new_zeros(len(y))
        x = y if self.start is None else self.start(y)
        rows = torch.arange(len(y), device=y.device)  # those that have not settled
        inputs = list(range(y.shape[-1]) if self.inputs is None else self.inputs)
        maps = self.maps(x, context)
        for sweep in range(limit + 1):
            if sweep or not limit:  # the first guess is none that could have settled
                residual = relative(maps(x) - y, x, y).amax(-1)
                result[rows], residuals[rows] = x, residual
                active = (~(residual <= tol)).nonzero().squeeze(-1)
                if not len(active) or sweep == limit:
                    break
                if len(active) < len(rows):
                    x, y, rows = x[active], y[active], rows[active]
                    context = None if context is None else context[active]
                    maps = self.maps(x, context)
            before, x = x, step(maps, x, y)
            if not torch.equal(before[:, inputs], x[:, inputs]):  # otherwise the maps are still those of x
                maps = self.maps(x, context)
        return result, sweep, float(residuals.max()) if len(residuals) else 0.0

    def _attached(self, x: Tensor, y: Tensor) -> Tensor:
        """The solution `x` of `f(x) = y`, with its gradients with respect to y and to whatever the maps depend on."""
        if not torch.is_grad_enabled():
            return x
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            fx, ladj = self.maps(x, self.context).call_and_ladj(x)
            return _Implicit.apply(fx - y, x.detach(), _Adjoint(x, fx, ladj.detach().exp(), self.sweeps))


def invert(
    transform: Transform, y: Tensor, tol: float | None = None, method: str = "exact"
) -> tuple[Tensor, InverseInfo]:
    """The inverse of a transform, or of a composition of several, and how it went.

    Arguments:
        transform: The transform, of the kinds in this module or of any other.
        y: Points, `(..., features)`.
        tol: The residual at which a row has settled; by default sixteen times the resolution of the dtype. What
            rounding leaves above it counts as converged up to the square root of the resolution.
        method: One of `METHODS`, for those transforms that sweep.

    Returns:
        The x that the transform takes to y, with gradients by implicit differentiation, and an `InverseInfo`.

    Example:
        >>> import elflow
        >>> flow = elflow.ELF(features=3, transforms=2)
        >>> x, info = invert(flow.transform(), torch.randn(100, 3))
        >>> x.shape, len(info.sweeps), info.converged
        (torch.Size([100, 3]), 2, True)
    """
    check_choice("method", method, METHODS)
    check_rows("y", y, y.shape[-1] if y.ndim else 1, "feature")
    resolution = torch.finfo(y.dtype).eps
    tol = 16 * resolution if tol is None else check_positive("tol", tol)
    x = y
    infos: list[InverseInfo] = []
    for part in reversed(getattr(transform, "transforms", [transform])):
        if isinstance(part, AutoregressiveTransform):
            x, info = part.sweep(x, tol, method)
            infos.insert(0, info)
        else:
            x = part.inv(x)
    return x, InverseInfo(
        sweeps=tuple([sweeps for info in infos for sweeps in info.sweeps]),
        residual=max([0.0, *[info.residual for info in infos]]),
        converged=all(info.converged for info in infos),
    )


def relative(difference: Tensor, *values: Tensor) -> Tensor:
    """How large a difference is beside the values, or beside one if they are small."""
    return difference.abs() / (1 + torch.stack([value.abs() for value in values]).amax(0))


def warn(info: InverseInfo) -> None:
    warnings.warn(
        f"the inverse did not converge: its residual is {info.residual:.2g} after {info.sweeps} sweeps. "
        "Compute in float64 (flow.double()), or use method='exact' if it was another",
        ConvergenceWarning,
        stacklevel=3,
    )


# --- methods ----------------------------------------------------------------------------------------------------------

Step = Callable[[Transform, Tensor, Tensor], Tensor]
"""(maps computed from x, x, y) -> the next x."""


def _exact(maps: Transform, x: Tensor, y: Tensor) -> Tensor:
    return maps.inv(y)


def _fixed_point(maps: Transform, x: Tensor, y: Tensor) -> Tensor:
    return x + (y - maps(x))


METHODS: dict[str, tuple[Step, int | None]] = {"exact": (_exact, None), "fixed-point": (_fixed_point, 2000)}
"""Ways to invert, each with the greatest number of sweeps, where it is not that of the transform.

`"exact"` inverts each coordinate in closed form. `"fixed-point"` is the paper's iteration `x <- y - g(x)`, for
comparison: a coordinate only begins to settle once those before it have.
"""


# --- gradients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Adjoint:
    """Solves `J^T v = g`, where J is the triangular Jacobian of fx with respect to x and `slope` its diagonal."""

    x: Tensor
    fx: Tensor
    slope: Tensor
    limit: int

    def solve(self, g: Tensor) -> Tensor:
        v = g / self.slope
        for _ in range(self.limit):
            (pulled,) = torch.autograd.grad(self.fx, self.x, v, retain_graph=True)
            change = (g - pulled) / self.slope
            v = v + change
            if change.abs().max() <= 4 * torch.finfo(v.dtype).eps * v.abs().max():
                break
        return v


class _Implicit(torch.autograd.Function):
    """x as a function of the residual `f(x) - y`: where that grows, x must give way."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, adjoint: _Adjoint) -> Tensor:
        ctx.adjoint = adjoint
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return -ctx.adjoint.solve(grad), None, None
