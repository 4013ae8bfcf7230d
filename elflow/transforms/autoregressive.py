"""Autoregressive transforms, in which a coordinate depends on those before it, and their inverse."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Size, Tensor
from torch.distributions import Transform, constraints

from elflow._checks import check_choice, check_positive, check_rows, defer_finite_checks, is_asynchronous

__all__ = [
    "METHODS",
    "AutoregressiveTransform",
    "ConvergenceWarning",
    "InverseInfo",
    "Maps",
    "OnSettled",
    "invert",
    "invert_part",
    "warn_not_converged",
]

OnSettled = Callable[[int], None] | None
"""A callback that receives the number of rows that have settled, after each sweep of each layer."""


class Maps(Protocol):
    """Increasing maps of each element, such as an `Elementwise` transform.

    Two attributes are optional: `max_slope`, an upper bound on all slopes, saves an evaluation per sweep, and
    `select(columns)`, the maps of a slice of the coordinates, makes the method `"sequential"` faster.
    """

    def __call__(self, x: Tensor) -> Tensor: ...

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]: ...

    @property
    def inv(self) -> Any: ...


class ConvergenceWarning(UserWarning):
    """The residual of an inverse is too large."""


@dataclass(frozen=True)
class InverseInfo:
    """Diagnostics of an inverse.

    Example:
        >>> import elflow
        >>> _, info = elflow.ELF(features=3, transforms=2).inverse(torch.randn(100, 3), return_info=True)
        >>> len(info.sweeps), info.residual < 1e-5, info.converged
        (2, True, True)
    """

    sweeps: tuple[int, ...]
    """The number of sweeps of each layer, in the order from data to latent space."""
    calls: tuple[int, ...]
    """The number of evaluations of each layer's hypernetwork, for the row that took longest."""
    residual: float
    """The maximum of `|f(x) - y| / (1 + max(|x|, |y|))` over all coordinates and layers."""
    converged: bool
    """Whether the residual is below the tolerance, or as small as the dtype allows."""


class AutoregressiveTransform(Transform):
    """Transform each coordinate by an increasing map that depends on the coordinates before it.

    The inverse sweeps: it computes all maps from the current guess, then inverts every coordinate. Each sweep makes at
    least one more coordinate final, so that the number of features is a bound on the number of sweeps. Usually far
    fewer suffice: a row whose residual is small enough has settled and leaves the batch. The gradient of the inverse is
    implicit: it solves one triangular system, however many sweeps there were.

    Arguments:
        maps: Function that computes the increasing maps from x `(N, features)` and the context `(N, C)`.
        context: The context `(..., C)`, or None. Its leading dimensions broadcast with those of x.
        sweeps: The number of sweeps after which every coordinate is final.
        order: The coordinates in the order in which they become final; None for that of the columns. No map depends on
            the last.
        start: Function that computes the first guess from y `(N, features)`; by default the guess is y.
        rows: Maximum number of rows to compute at once if no gradients are needed, to save memory and to stay in the
            cache; None for no limit.

    Example:
        >>> from torch.distributions import AffineTransform
        >>> before = torch.tensor([[0.0, 0.0], [0.35, 0.0]])  # the second coordinate depends on the first
        >>> t = AutoregressiveTransform(lambda x, _: AffineTransform(x @ before.T, (x @ before.T).exp()), None, 2)
        >>> y, ladj = t.call_and_ladj(torch.tensor([2.0, 3.0]))
        >>> y, ladj
        (tensor([2.0000, 6.7413]), tensor(0.7000))
        >>> x, info = invert(t, y)
        >>> x.detach(), info.sweeps, info.converged
        (tensor([2., 3.]), (1,), True)
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(
        self,
        maps: Callable[[Tensor, Tensor | None], Maps],
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
        self.rows = self.rows_per_sweep = rows

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y `(..., features)` and the log-determinant `(...)`."""
        if self.rows is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            y, ladj = self.maps(x, self.context).call_and_ladj(x)
            return y, ladj.sum(-1)
        batch, blocks = self._split_rows(x, self.rows)
        results = [self.maps(block, c).call_and_ladj(block) for block, c in blocks]
        y, ladj = torch.cat([y for y, _ in results]), torch.cat([ladj.sum(-1) for _, ladj in results])
        return y.reshape(*batch, x.shape[-1]), ladj.reshape(batch)

    def _split_rows(self, x: Tensor, size: int | None) -> tuple[Size, list[tuple[Tensor, Tensor | None]]]:
        """The batch shape, and blocks of at most `size` rows `(n, features)` with their context `(n, C)`."""
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
            warn_not_converged(info)
        return x

    def sweep(self, y: Tensor, tol: float, method: str, on_settled: OnSettled = None) -> tuple[Tensor, InverseInfo]:
        """The inverse with its gradients, and its diagnostics; for the arguments see `invert`."""
        step, limit = METHODS[method]
        limit = self.sweeps if limit is None else limit
        with torch.no_grad():
            batch, blocks = self._split_rows(y, self.rows_per_sweep)
            results = [self.sweep_rows(block, c, step, limit, tol, on_settled) for block, c in blocks]
            x = torch.cat([x for x, _ in results]).reshape(*batch, y.shape[-1])
        infos = [info for _, info in results]
        worst = max_or_nan([info.residual for info in infos])
        sweeps, calls = max([info.sweeps for info in infos]), max([info.calls for info in infos])
        converged = worst <= max(tol, torch.finfo(y.dtype).eps ** 0.5)
        return self._attach_gradients(x, y), InverseInfo(sweeps, calls, worst, converged)

    def sweep_rows(
        self, y: Tensor, context: Tensor | None, step: Step, limit: int, tol: float, on_settled: OnSettled
    ) -> tuple[Tensor, InverseInfo]:
        """Sweep over rows `(n, features)` until all have settled, at most `limit` times.

        On asynchronous devices, Python waits once in each sweep, for the rows that have settled.
        """
        if not is_asynchronous(y.device):
            return self._sweep_rows(y, context, step, limit, tol, on_settled)
        with defer_finite_checks():
            result, info = self._sweep_rows(y, context, step, limit, tol, on_settled)
        if not math.isfinite(info.residual):
            self.maps(result, context).inv(y)  # raises the error of networks that are not finite
        return result, info

    def _sweep_rows(
        self, y: Tensor, context: Tensor | None, step: Step, limit: int, tol: float, on_settled: OnSettled
    ) -> tuple[Tensor, InverseInfo]:
        result, residuals = y.clone(), y.new_zeros(len(y))
        x = y if self.start is None else self.start(y)
        rows = torch.arange(len(y), device=y.device)  # the rows that have not settled
        order = list(range(y.shape[-1]) if self.order is None else self.order)
        inputs, turns = order[:-1], order[len(order) - self.sweeps :] or order[-1:]
        maps, calls = self.maps(x, context), 1
        for sweep in range(limit + 1):  # the last round only computes the residual
            new, residual = (None, None) if sweep == limit else step(maps, x, y, turns[min(sweep, len(turns) - 1)])
            if residual is None:
                residual = relative_size(maps(x) - y, x, y)
            residual = residual.amax(-1)
            result[rows], residuals[rows] = x, residual
            active = (~(residual <= tol)).nonzero().squeeze(-1)  # not `residual > tol`, which is False for NaN
            if on_settled is not None:
                on_settled(len(rows) - (0 if new is None else len(active)))
            if new is None or not len(active):
                break
            if len(active) < len(rows):
                x, y, rows = new[active], y[active], rows[active]
                context = None if context is None else context[active]
            else:
                # The maps depend on `inputs` only: if these have not changed, neither have the maps.
                is_unchanged = not is_asynchronous(x.device) and torch.equal(x[:, inputs], new[:, inputs])
                x = new
                if is_unchanged:
                    continue
            maps, calls = self.maps(x, context), calls + 1
        worst = float(residuals.max()) if len(residuals) else 0.0
        return result, InverseInfo((sweep,), (calls,), worst, worst <= tol)

    def _attach_gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """The solution x of `f(x) = y`, with gradients with respect to y and to everything that the maps depend on."""
        if not torch.is_grad_enabled():
            return x
        x = x.detach().requires_grad_()
        fx, ladj = self.maps(x, self.context).call_and_ladj(x)
        return _Implicit.apply(fx - y, x.detach(), _Adjoint(x, fx, ladj.detach().exp(), self.sweeps))


def invert(
    transform: Transform, y: Tensor, tol: float | None = None, method: str = "exact", on_settled: OnSettled = None
) -> tuple[Tensor, InverseInfo]:
    """Invert a transform, or a composition of transforms, and return diagnostics.

    Arguments:
        transform: Any transform of `(..., features)`.
        y: Points, `(..., features)`.
        tol: The residual at which a row has settled; by default 64 times the machine epsilon of the dtype. An inverse
            counts as converged up to the square root of the machine epsilon, to allow for rounding.
        method: One of `METHODS`, for the transforms that sweep.
        on_settled: Callback that receives the number of rows that have settled, after each sweep of each layer.

    Returns:
        The x `(..., features)` that the transform maps to y, with gradients by implicit differentiation, and an
        `InverseInfo`.

    Example:
        >>> import elflow
        >>> flow = elflow.ELF(features=3, transforms=2)
        >>> x, info = invert(flow.transform(), torch.randn(100, 3))
        >>> x.shape, len(info.sweeps), info.converged
        (torch.Size([100, 3]), 2, True)
    """
    check_choice("method", method, METHODS)
    check_rows("y", y, y.shape[-1] if y.ndim else 1, "feature")
    tol = 64 * torch.finfo(y.dtype).eps if tol is None else check_positive("tol", tol)
    x = y
    infos: list[InverseInfo] = []
    for part in reversed(getattr(transform, "transforms", [transform])):
        x, info = invert_part(part, x, tol, method, on_settled)
        if info is not None:
            infos.insert(0, info)
    return x, InverseInfo(
        sweeps=tuple([sweeps for info in infos for sweeps in info.sweeps]),
        calls=tuple([calls for info in infos for calls in info.calls]),
        residual=max_or_nan([0.0, *[info.residual for info in infos]]),
        converged=all(info.converged for info in infos),
    )


def invert_part(
    part: Transform, y: Tensor, tol: float, method: str, on_settled: OnSettled
) -> tuple[Tensor, InverseInfo | None]:
    """Invert one transform of a composition; the diagnostics are None for a transform that does not sweep."""
    return part.sweep(y, tol, method, on_settled) if hasattr(part, "sweep") else (part.inv(y), None)


def max_or_nan(values: list[float]) -> float:
    """The maximum, or NaN if any value is NaN: Python's `max` depends on the order then."""
    return float(torch.tensor(values, dtype=torch.float64).max())


def relative_size(difference: Tensor, *values: Tensor) -> Tensor:
    """The absolute difference divided by 1 + the largest absolute value, element by element."""
    return difference.abs() / (1 + torch.stack([value.abs() for value in values]).amax(0))


def warn_not_converged(info: InverseInfo) -> None:
    """Warn that an inverse did not converge, at the line that called the caller."""
    warnings.warn(
        f"the inverse did not converge: its residual is {info.residual:.2g} after {info.sweeps} sweeps: "
        "try float64 (flow.double()), or method='exact' if you used another method",
        ConvergenceWarning,
        stacklevel=3,
    )


# --- methods ----------------------------------------------------------------------------------------------------------

Step = Callable[[Maps, Tensor, Tensor, int], tuple[Tensor, Tensor | None]]
"""(maps computed from x, x, y, the coordinate whose turn it is) -> the next x, and the residual of the present x or an
upper bound on it, if the step knows one."""


def _step_exact(maps: Maps, x: Tensor, y: Tensor, turn: int) -> tuple[Tensor, Tensor | None]:
    new = maps.inv(y)
    # |f(x) - y| = |f(x) - f(new)| <= max_slope |x - new|, which saves an evaluation of f.
    max_slope = getattr(maps, "max_slope", None)
    return new, None if max_slope is None else max_slope * relative_size(new - x, x, y)


def _step_fixed_point(maps: Maps, x: Tensor, y: Tensor, turn: int) -> tuple[Tensor, Tensor | None]:
    residual = y - maps(x)
    return x + residual, relative_size(residual, x, y)


def _step_sequential(maps: Maps, x: Tensor, y: Tensor, turn: int) -> tuple[Tensor, Tensor | None]:
    one = slice(turn, turn + 1)
    new = x.clone()
    new[..., one] = maps.select(one).inv(y[..., one]) if hasattr(maps, "select") else maps.inv(y)[..., one]
    return new, torch.full_like(x, torch.inf)  # no row settles before the last coordinate had its turn


METHODS: dict[str, tuple[Step, int | None]] = {
    "exact": (_step_exact, None),
    "fixed-point": (_step_fixed_point, 1000),
    "sequential": (_step_sequential, None),
}
"""Methods of inversion: the step of each, and its maximum number of sweeps, or None for that of the transform.

`"exact"` inverts each coordinate in closed form. The other two are for comparison: `"fixed-point"` is the paper's
iteration `x <- y - g(x)`, in which a coordinate only begins to settle once those before it have, and `"sequential"`
inverts one coordinate after the other, with one evaluation of the hypernetwork for each.
"""


# --- gradients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Adjoint:
    """Solver of `J^T v = g`, where J is the triangular Jacobian of fx with respect to x and `slope` its diagonal."""

    x: Tensor
    fx: Tensor
    slope: Tensor
    limit: int

    def solve(self, g: Tensor) -> Tensor:
        # Jacobi iteration: J is triangular, so that it is exact after as many steps as there are sweeps.
        v = g / self.slope
        for _ in range(self.limit):
            (product,) = torch.autograd.grad(self.fx, self.x, v, retain_graph=True)
            change = (g - product) / self.slope
            v = v + change
            if (change.abs().amax(-1) <= 4 * torch.finfo(v.dtype).eps * v.abs().amax(-1)).all():
                break
        return v


class _Implicit(torch.autograd.Function):
    """x as a function of the residual `r = f(x) - y`, which has the derivative `dx/dr = -J^-1` at the solution."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, x: Tensor, adjoint: _Adjoint) -> Tensor:
        ctx.adjoint = adjoint
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("the inverse of a flow has no second derivatives: leave out create_graph=True")
        return -ctx.adjoint.solve(grad), None, None
