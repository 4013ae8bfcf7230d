"""The reference backend: the network in plain torch, which defines the results of all other backends.

It runs on any device, for any float dtype and any activation, and is differentiated by autograd. It computes in float64
if the device has it. Searches are exhaustive, O(H^2) per network, and run on a slice of the networks at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from elflow._checks import are_finite_checks_deferred, has_values
from elflow.activations import PiecewiseQuadratic
from elflow.kernels.contract import MAX_LOG, Backend, require_finite, widen

__all__ = ["BACKEND"]

MAX_TEMPORARY = 2**22
"""Maximum number of elements of a temporary tensor in the exhaustive searches."""

MAX_BREAKPOINT = 1e150
"""Breakpoints beyond this are ignored by the inverse: evaluating the network there could overflow."""


def lipschitz(w1: Tensor, b1: Tensor, w2: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    check_parameters(w1=w1, b1=b1, w2=w2)
    dtype = w1.dtype
    return wide_lipschitz(widen(w1), widen(b1), widen(w2), activation).to(dtype)


def elf(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> tuple[Tensor, Tensor]:
    check_parameters(w1=w1, b1=b1, w2=w2, b2=b2)
    y, log_slope = wide_elf(widen(x), widen(w1), widen(b1), widen(w2), widen(b2), bound, activation)
    return y.to(x.dtype), log_slope.to(x.dtype)


def elf_inverse(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> Tensor:
    check_parameters(w1=w1, b1=b1, w2=w2, b2=b2)
    x = wide_elf_inverse(widen(y), widen(w1), widen(b1), widen(w2), widen(b2), bound, activation)
    return x.to(y.dtype)


def elf_bumps(
    x: Tensor, phi: Tensor, units: int, bound: float, activation: PiecewiseQuadratic
) -> tuple[Tensor, Tensor]:
    w1, b1, w2, b2 = bumps(widen(phi), units)
    check_parameters(w1=w1, b1=b1, w2=w2, b2=b2, phi=phi)
    y, log_slope = wide_elf(widen(x), w1, b1, w2, b2, bound, activation)
    return y.to(x.dtype), log_slope.to(x.dtype)


def elf_bumps_inverse(y: Tensor, phi: Tensor, units: int, bound: float, activation: PiecewiseQuadratic) -> Tensor:
    w1, b1, w2, b2 = bumps(widen(phi), units)
    check_parameters(w1=w1, b1=b1, w2=w2, b2=b2, phi=phi)
    return wide_elf_inverse(widen(y), w1, b1, w2, b2, bound, activation).to(y.dtype)


def bumps(phi: Tensor, units: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """w1, b1, w2, `(..., units)` each, and b2, `(...)`, of networks `(..., P)`."""
    pairs = (units + 1) // 2
    log_k, t, log_w, a, b2 = phi.split([units, pairs, pairs, pairs, 1], dim=-1)
    k, w = (log.clamp(-MAX_LOG, MAX_LOG).exp() for log in (log_k, log_w))
    falling = slice(units // 2)  # the last of an odd number of units rises and never falls
    edges = torch.cat([t - w / 2, (t + w / 2)[..., falling]], dim=-1)
    heights = torch.cat([a, -a[..., falling]], dim=-1)
    return k, -0.5 - k * edges, heights / k, b2.squeeze(-1)


def wide_elf(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> tuple[Tensor, Tensor]:
    """`elf` of tensors in the dtype of the arithmetic."""
    s = normaliser(w1, b1, w2, bound, activation)
    y, slope = transform(x, s, w1, b1, w2, b2, activation)
    return y, torch.log1p(slope)


def wide_elf_inverse(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> Tensor:
    """`elf_inverse` of tensors in the dtype of the arithmetic."""
    s = normaliser(w1, b1, w2, bound, activation)
    with torch.no_grad():
        work = len(activation.breakpoints) * w1.shape[1] * max(w1.shape[1], y.shape[1])
        x = run_in_slices(solve, work, y, s, w1, b1, w2, b2, activation=activation)
    # Newton steps remove the rounding error. Differentiating one gives the implicit derivative,
    # dx = (dy - df) / f'(x); differentiating two also gives the second derivative.
    for _ in range(2):
        there, slope = transform(x, s, w1, b1, w2, b2, activation)
        x = x - (there - y) / (1 + slope)
    return torch.where(y.isfinite(), x, y)


def transform(
    x: Tensor, s: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation: PiecewiseQuadratic
) -> tuple[Tensor, Tensor]:
    """y = x + s g(x) + b2, and s g'(x)."""
    u = w1[:, None] * x[..., None] + b1[:, None]
    w2 = s[:, None] * w2  # before anything else, so that steep networks do not overflow
    g = (w2[:, None] * activation(u)).sum(-1)
    slope = ((w1 * w2)[:, None] * activation.slope(u)).sum(-1)
    return x + g + b2[:, None], slope


def normaliser(w1: Tensor, b1: Tensor, w2: Tensor, bound: float, activation: PiecewiseQuadratic) -> Tensor:
    """s = c / max(c, Lip(g)), `(N,)`."""
    return bound / wide_lipschitz(w1, b1, w2, activation).clamp(min=bound)


def wide_lipschitz(w1: Tensor, b1: Tensor, w2: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    """max |g'|, `(N,)`: found without gradients, then evaluated with gradients at its place."""
    with torch.no_grad():
        work = 2 * len(activation.breakpoints) * w1.shape[1] ** 2
        place = run_in_slices(find_steepest, work, w1, b1, w2, activation=activation)
    return slope_at(place[:, None], w1, b1, w2, activation).squeeze(1).abs()


# The places where |g'| can have its maximum are numbered: unit + H * (breakpoint + K * side) for the breakpoints, where
# side 0 is the limit from the left and side 1, at jumps only, that from the right. The two ends of the line follow.


def find_steepest(w1: Tensor, b1: Tensor, w2: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    """The number of the place with the maximum |g'|, `(N,)`."""
    sides = 1 if activation.smooth else 2
    count = w1.shape[-1] * len(activation.breakpoints) * sides + 2
    places = torch.arange(count, device=w1.device).expand(len(w1), count)
    return slope_at(places, w1, b1, w2, activation).abs().argmax(-1)


def slope_at(places: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    """g' at numbered places `(N, P)`; zero at the places of units with w1 = 0, which have no breakpoints."""
    points = torch.tensor(activation.breakpoints, dtype=w1.dtype, device=w1.device)
    units, kinks = w1.shape[-1], len(points)
    sides = 1 if activation.smooth else 2
    end = places - units * kinks * sides
    unit, kink = places % units, places // units % kinks
    from_right = (places // (units * kinks) > 0) & (end < 0)

    owner_w1, owner_b1 = w1.gather(-1, unit), b1.gather(-1, unit)
    has_place = (owner_w1 != 0) & (end < 0)
    point = points[kink]
    representable = ((point - owner_b1) / torch.where(has_place, owner_w1, 1)).isfinite()
    safe_w1 = torch.where(has_place & representable, owner_w1, 1)
    x = (point - owner_b1) / safe_w1
    # A breakpoint that overflows is as good as the end of the line on its side.
    x = torch.where(representable, torch.where(has_place, x, 0), torch.finfo(x.dtype).max * owner_w1.sign())

    # The argument of unit i at the breakpoint x = (p - b_j) / w_j of unit j, as ((b_i w_j - w_i b_j) + p w_i) / w_j:
    # this is exactly p for units that share the breakpoint, while w_i x + b_i is off by w_i times the rounding of x.
    cross = b1[:, None] * safe_w1[..., None] - w1[:, None] * owner_b1[..., None]
    exact = (cross + point[..., None] * w1[:, None]) / safe_w1[..., None]
    plain = w1[:, None] * x[..., None] + b1[:, None]
    u = torch.where(representable[..., None] & exact.isfinite(), exact, plain)
    owner = (unit[..., None] == torch.arange(units, device=w1.device)) & representable[..., None]
    u = torch.where(owner, point[..., None], u)
    if not activation.smooth:
        # Units that share the breakpoint must jump together with its owner, not a rounding error before or after it.
        reach = (w1[:, None] * x[..., None]).abs() + b1[:, None].abs() + points.abs().max()
        for p in activation.breakpoints:
            u = torch.where((u - p).abs() <= 4 * torch.finfo(u.dtype).eps * reach, p, u)
    slope = activation.slope(u, from_right[..., None] == (w1[:, None] > 0))
    at_end = torch.where((end[..., None] == 1) == (w1[:, None] > 0), activation.right_slope, activation.left_slope)
    at_end = torch.where(w1[:, None] == 0, 0, at_end)
    slope = torch.where(end[..., None] < 0, slope, at_end)
    total = ((w1 * w2)[:, None] * slope).sum(-1)
    return torch.where(has_place | (end >= 0), total, 0)


def solve(
    y: Tensor, s: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, activation: PiecewiseQuadratic
) -> Tensor:
    """The x `(N, M)` with f(x) = y, as the root of the quadratic on the piece that contains it."""
    points = torch.tensor(activation.breakpoints, dtype=w1.dtype, device=w1.device)
    corners = ((points[:, None] - b1[:, None]) / w1[:, None]).flatten(1)
    real = corners.abs() < MAX_BREAKPOINT
    heights = transform(torch.where(real, corners, 0), s, w1, b1, w2, b2, activation)[0]
    below = real[:, None] & (heights[:, None] <= y[..., None])
    above = real[:, None] & (heights[:, None] > y[..., None])
    left = torch.where(below, corners[:, None], -torch.inf).amax(-1)
    right = torch.where(above, corners[:, None], torch.inf).amin(-1)

    # The quadratic is expanded at a point of the piece near the solution: expanding at an end would lose all digits if
    # the end is distant. The pieces of the units are read off in the middle, where rounding cannot select a neighbour.
    anchor = y.clamp(left, right)
    height = transform(anchor, s, w1, b1, w2, b2, activation)[0]
    inside = torch.where(
        left.isfinite(), left + left.abs() + 1, torch.where(right.isfinite(), right - right.abs() - 1, 0)
    )
    inside = torch.where(right - left < torch.inf, left / 2 + right / 2, inside)
    _, c1, c2 = activation.piece(w1[:, None] * inside[..., None] + b1[:, None])
    u = w1[:, None] * anchor[..., None] + b1[:, None]
    slope = 1 + s[:, None] * ((w1 * w2)[:, None] * (c1 + 2 * c2 * u)).sum(-1)
    bend = s[:, None] * ((w1 * w1 * w2)[:, None] * 2 * c2).sum(-1)
    rise = y - height
    root = (slope.square() + 2 * bend * rise).clamp(min=0).sqrt()
    return (anchor + 2 * rise / (slope + root)).clamp(left, right)


def run_in_slices(search: Callable[..., Tensor], work: int, *tensors: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    """Run a search that needs `work` numbers per network on slices of networks that fit into `MAX_TEMPORARY`."""
    slices = zip(*(torch.split(t, max(1, MAX_TEMPORARY // work)) for t in tensors), strict=True)
    return torch.cat([search(*each, activation) for each in slices])


def check_parameters(**parameters: Tensor) -> None:
    """`require_finite`, if the tensors have values."""
    if has_values(parameters["w1"]) and not are_finite_checks_deferred():
        require_finite(**parameters)


def unsupported_reason(dtype: torch.dtype, device: torch.device, activation: PiecewiseQuadratic) -> str | None:
    return None


BACKEND = Backend("reference", unsupported_reason, lipschitz, elf, elf_inverse, elf_bumps, elf_bumps_inverse)
