"""Coordinates that depend on those before them, and how such a transformation is inverted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor
from torch.distributions import Transform, constraints

from elflow._checks import check_choice, check_positive, check_rows

__all__ = [
    "METHODS",
    "AutoregressiveTransform",
    "ConvergenceWarning",
    "InverseInfo",
    "Settled",
    "invert",
    "swept",
    "warn",
]


Settled = Callable[[int], None] | None
"""What is told how many rows have settled."""


class ConvergenceWarning(UserWarning):
    """An inverse came back with a residual that is too large."""


@dataclass(frozen=True)
class InverseInfo:
    """How an inverse went."""

    sweeps: tuple[int, ...]
    """How often each layer swept, in the order of the data's way to latent space."""
    calls: tuple[int, ...]
    """How often each layer evaluated its hypernetwork, for the row that took longest."""
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
        order: The coordinates in the order in which they become final; None for that of the columns. No map depends on
            the last.
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
        order: Sequence[int] | None = None,
        start: Callable[[Tensor], Tensor] | None = None,
        rows: int | None = None,
    ) -> None:
        super().__init__()
        self.maps = maps
        self.context = context
        self.sweeps = sweeps
        self.order = order
        self.start = start
        self.rows = self.rows_swept = rows

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.rows is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            y, ladj = self.maps(x, self.context).call_and_ladj(x)
            return y, ladj.sum(-1)
        batch, parts = self._row_parts(x, self.rows)
        done = [self.maps(part, c).call_and_ladj(part) for part, c in parts]
        y, ladj = torch.cat([y for y, _ in done]), torch.cat([ladj.sum(-1) for _, ladj in done])
        return y.reshape(*batch, x.shape[-1]), ladj.reshape(batch)

    def _row_parts(self, x: Tensor, size: int | None) -> tuple[Size, list[tuple[Tensor, Tensor | None]]]:
        """The batch shape, and some rows `(n, features)` at a time with the context `(n, C)` of each."""
        batch, context = x.shape[:-1], self.context
        if context is not None:
            batch = torch.broadcast_shapes(batch, context.shape[:-1])
            context = context.expand(*batch, -1).reshape(-1, context.shape[-1])
        flat = x.expand(*batch, -1).reshape(-1, x.shape[-1])
        size = size or max(1, len(flat))
        contexts = [None] * len(flat.split(size)) if context is None else context.split(size)
        return batch, list(zip(flat.split(size), contexts, strict=True))

    def _inverse(self, y: Tensor) -> Tensor:
        x, info = invert(self, y)
        if not info.converged:
            warn(info)
        return x

    def sweep(self, y: Tensor, tol: float, method: str, settled: Settled = None) -> tuple[Tensor, InverseInfo]:
        """The inverse with its gradients, and how it went; for the arguments see `invert`."""
        step, limit = METHODS[method]
        limit = self.sweeps if limit is None else limit
        with torch.no_grad():
            batch, parts = self._row_parts(y, self.rows_swept)
            done = [self.sweep_rows(part, c, step, limit, tol, settled) for part, c in parts]
            x = torch.cat([x for x, _ in done]).reshape(*batch, y.shape[-1])
        infos = [info for _, info in done]
        worst = largest([info.residual for info in infos])
        sweeps, calls = max([info.sweeps for info in infos]), max([info.calls for info in infos])
        converged = worst <= max(tol, torch.finfo(y.dtype).eps ** 0.5)
        return self._attached(x, y), InverseInfo(sweeps, calls, worst, converged)

    def sweep_rows(
        self, y: Tensor, context: Tensor | None, step: Step, limit: int, tol: float, settled: Settled
    ) -> tuple[Tensor, InverseInfo]:
        """Sweeps over rows `(n, features)` until all have settled, at most to the limit."""
        result, residuals = y.clone(), y.new_zeros(len(y))
        x = y if self.start is None else self.start(y)
        rows = torch.arange(len(y), device=y.device)  # those that have not settled
        order = list(range(y.shape[-1]) if self.order is None else self.order)
        inputs, turns = order[:-1], order[len(order) - self.sweeps :] or order[-1:]
        maps, calls = self.maps(x, context), 1
        for sweep in range(limit + 1):
            new, residual = (None, None) if sweep == limit else step(maps, x, y, turns[min(sweep, len(turns) - 1)])
            if residual is None:
                residual = relative(maps(x) - y, x, y)
            residual = residual.amax(-1)
            result[rows], residuals[rows] = x, residual
            active = (~(residual <= tol)).nonzero().squeeze(-1)
            if settled is not None:
                settled(len(rows) - (0 if new is None else len(active)))
            if new is None or not len(active):
                break
            if len(active) < len(rows):
                x, y, rows = new[active], y[active], rows[active]
                context = None if context is None else context[active]
            else:
                same = torch.equal(x[:, inputs], new[:, inputs])
                x = new
                if same:
                    continue
            maps, calls = self.maps(x, context), calls + 1
        worst = float(residuals.max()) if len(residuals) else 0.0
        return result, InverseInfo((sweep,), (calls,), worst, worst <= tol)

    def _attached(self, x: Tensor, y: Tensor) -> Tensor:
        """The solution `x` of `f(x) = y`, with its gradients with respect to y and to whatever the maps depend on."""
        if not torch.is_grad_enabled():
            return x
        x = x.detach().requires_grad_()
        fx, ladj = self.maps(x, self.context).call_and_ladj(x)
        return _Implicit.apply(fx - y, x.detach(), _Adjoint(x, fx, ladj.detach().exp(), self.sweeps))


def invert(
    transform: Transform, y: Tensor, tol: float | None = None, method: str = "exact", settled: Settled = None
) -> tuple[Tensor, InverseInfo]:
    """The inverse of a transform, or of a composition of several, and how it went.

    Arguments:
        transform: The transform, of the kinds in this module or of any other.
        y: Points, `(..., features)`.
        tol: The residual at which a row has settled; by default 64 times the resolution of the dtype. What
            rounding leaves above it counts as converged up to the square root of the resolution.
        method: One of `METHODS`, for those transforms that sweep.
        settled: What is told how many rows have settled, after each sweep of each layer.

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
    tol = 64 * resolution if tol is None else check_positive("tol", tol)
    x = y
    infos: list[InverseInfo] = []
    for part in reversed(getattr(transform, "transforms", [transform])):
        x, info = swept(part, x, tol, method, settled)
        if info is not None:
            infos.insert(0, info)
    return x, InverseInfo(
        sweeps=tuple([sweeps for info in infos for sweeps in info.sweeps]),
        calls=tuple([calls for info in infos for calls in info.calls]),
        residual=largest([0.0, *[info.residual for info in infos]]),
        converged=all(info.converged for info in infos),
    )


def swept(part: Any, y: Tensor, tol: float, method: str, settled: Settled) -> tuple[Tensor, InverseInfo | None]:
    """The inverse of one transform, and how it went if that is one that sweeps."""
    return part.sweep(y, tol, method, settled) if hasattr(part, "sweep") else (part.inv(y), None)


def largest(values: list[float]) -> float:
    """The largest, or NaN if there is one, which Python's `max` may lose."""
    return float(torch.tensor(values, dtype=torch.float64).max())


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

Step = Callable[[Any, Tensor, Tensor, int], tuple[Tensor, Tensor | None]]
"""(maps computed from x, x, y, whose turn it is) -> the next x, and what the step tells of the residual of x, if
anything."""


def _exact(maps: Any, x: Tensor, y: Tensor, turn: int) -> tuple[Tensor, Tensor | None]:
    new = maps.inv(y)
    # The maps take x as far from y as x is from the new one, times their slope at most.
    steepest = getattr(maps, "steepest", None)
    return new, None if steepest is None else steepest * relative(new - x, x, y)


def _fixed_point(maps: Any, x: Tensor, y: Tensor, turn: int) -> tuple[Tensor, Tensor | None]:
    residual = y - maps(x)
    return x + residual, relative(residual, x, y)


def _sequential(maps: Any, x: Tensor, y: Tensor, turn: int) -> tuple[Tensor, Tensor | None]:
    one = slice(turn, turn + 1)
    new = x.clone()
    new[..., one] = maps.part(one).inv(y[..., one]) if hasattr(maps, "part") else maps.inv(y)[..., one]
    return new, torch.full_like(x, torch.inf)  # nothing is known before the last


METHODS: dict[str, tuple[Step, int | None]] = {
    "exact": (_exact, None),
    "fixed-point": (_fixed_point, 1000),
    "sequential": (_sequential, None),
}
"""Ways to invert, each with the greatest number of sweeps, where it is not that of the transform.

`"exact"` inverts each coordinate in closed form. Two are there for comparison: `"fixed-point"` is the paper's iteration
`x <- y - g(x)`, in which a coordinate only begins to settle once those before it have, and `"sequential"` inverts one
coordinate after the other, each with an evaluation of the hypernetwork.
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
            if (change.abs().amax(-1) <= 4 * torch.finfo(v.dtype).eps * v.abs().amax(-1)).all():
                break
        return v


class _Implicit(torch.autograd.Function):
    """x as a function of the residual `f(x) - y`: where that grows, x must give way."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, adjoint: _Adjoint) -> Tensor:
        ctx.adjoint = adjoint
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the inverse of a flow has no second derivatives: leave out create_graph=True")
        return -ctx.adjoint.solve(grad), None, None
