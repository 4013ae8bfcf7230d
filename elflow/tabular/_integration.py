"""Cumulative distributions of one feature from a joint density that is known up to a factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import log_softmax, logsumexp, ndtr, ndtri
from torch import Tensor, nn

from elflow.flows.mixture import FlowMixture
from elflow.flows.whitening import Gaussian
from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular._quick_integration import LEVELS, MAX_ERROR, MAX_ROUNDS, N_PIECES, QuickIntegrator

__all__ = ["REFINED_QUANTILES", "Evaluate", "integrate_density", "interpolate", "list_members"]

N_COARSE_POINTS = 65
"""Number of points of the first grid."""
REFINED_QUANTILES = ndtr(np.linspace(-5, 5, 61))
"""Quantiles at which a refinement adds points, including far tails."""
TEMPERATURES = (10.0, 1.0)
"""Temperatures of the first refinements: the first flattens the log-density, so that no narrow peak is lost."""
MAX_REFINEMENTS = 6
"""Maximum number of further refinements."""
MAX_CDF_CHANGE = 1e-3
"""Maximum change of a cumulative distribution by a refinement at which there are no further ones."""
MAX_EVALUATIONS = 2**15
"""Maximum number of densities that are evaluated at a time."""
MIN_SHARE = 1e-4
"""Share of the mass of a row below which the distribution of a flow is not refined further."""
MIXED_QUANTILES = np.union1d(REFINED_QUANTILES, np.linspace(0.0025, 0.9975, 200))
"""Quantiles of mixtures of Gaussians that are knots: so close to each other that a gap between two peaks is found."""

Evaluate = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Log-density under a flow up to a constant, `(draws, N, K)`, of the rows at N indices, `(N,)`, at K points each,
`(N, K)`. The density is the sum over draws, for instance over points of the cells of other features."""


class Distributions(NamedTuple):
    """Cumulative distributions of N rows: increasing points and the cumulative distribution at them, `(N, K)` each."""

    knots: FloatArray
    cumulative: FloatArray
    log_mass: FloatArray
    """Logarithm of the integral of each row, `(N,)`."""


@torch.no_grad()
def integrate_density(
    evaluate: Evaluate,
    flow: nn.Module,
    count: int,
    z_range: tuple[float, float],
    quantiles: FloatArray = REFINED_QUANTILES,
    n_draws: int = 1,
    max_refinements: int = MAX_REFINEMENTS,
    quick_flow: nn.Module | None = None,
) -> Distributions:
    """Cumulative distributions of densities that are known up to a factor.

    A mixture is integrated member by member, and its distribution is the mixture of theirs by mass: a member with a
    broad density cannot hide the peak of a narrow one. Along one feature a Gaussian is normal.

    Arguments:
        evaluate: Log-densities of rows.
        flow: The flow whose density is integrated.
        count: Number of rows N.
        z_range: Range of the points.
        quantiles: Quantiles at which each refinement adds points.
        n_draws: Number of densities that `evaluate` returns for each point.
        max_refinements: Maximum number of refinements after the first ones, until the distributions have converged.
        quick_flow: The flow in the precision in which it is evaluated first: see `choose_precision`.
    """
    quick_flow = quick_flow or flow
    size = max(1, MAX_EVALUATIONS // (len(quantiles) * n_draws))
    blocks = []
    for start in range(0, count, size):
        index = torch.arange(start, min(start + size, count))
        blocks.append(_integrate_block(evaluate, flow, quick_flow, index, z_range, quantiles, max_refinements))
    if not blocks:
        return Distributions(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0))
    n_knots = max(block.knots.shape[1] for block in blocks)
    knots, cumulative = (
        np.concatenate([_pad(getattr(block, name), n_knots) for block in blocks]) for name in ("knots", "cumulative")
    )
    return Distributions(knots, cumulative, np.concatenate([block.log_mass for block in blocks]))


def _integrate_block(
    evaluate: Evaluate,
    flow: nn.Module,
    quick_flow: nn.Module,
    index: Tensor,
    z_range: tuple[float, float],
    quantiles: FloatArray,
    max_refinements: int,
) -> Distributions:
    """Distributions of the rows at some indices, with few evaluations for those in which the density is smooth."""
    gaussians = [(weight, member) for weight, member in list_members(flow) if isinstance(member, Gaussian)]
    if not gaussians or all(isinstance(member, Gaussian) for _, member in list_members(flow)):
        return _integrate_rows(evaluate, flow, index, z_range, quantiles, max_refinements)
    quick, rest = _integrate_smooth(evaluate, quick_flow, index, z_range, gaussians)
    if not len(rest):
        return quick
    slow = _integrate_rows(evaluate, flow, index[rest], z_range, quantiles, max_refinements)
    n_knots = max(quick.knots.shape[1], slow.knots.shape[1])
    parts = [_pad(getattr(quick, name), n_knots) for name in ("knots", "cumulative")]
    for part, name in zip(parts, ("knots", "cumulative"), strict=True):
        part[rest] = _pad(getattr(slow, name), n_knots)
    quick.log_mass[rest] = slow.log_mass
    return Distributions(parts[0], parts[1], quick.log_mass)


def _integrate_smooth(
    evaluate: Evaluate,
    flow: nn.Module,
    index: Tensor,
    z_range: tuple[float, float],
    gaussians: Sequence[tuple[float, nn.Module]],
) -> tuple[Distributions, IntArray]:
    """Distributions by interpolation, and the positions of the rows in which it has not converged."""
    normals = _Normals.locate(evaluate, gaussians, index)
    share = np.exp(log_softmax(normals.log_mass, 1))
    whole = QuickIntegrator(normals.mean, normals.scale, share, z_range)
    whole.set_values(_sum_draws(evaluate(flow, index, torch.from_numpy(whole.nodes))))
    n_knots = N_PIECES * (whole.nodes.shape[1] - 1 + sum(len(LEVELS[k % 2]) for k in range(MAX_ROUNDS))) + 1
    knots, cumulative = np.zeros((len(index), n_knots)), np.zeros((len(index), n_knots))
    log_mass = np.zeros(len(index))
    active, part = np.flatnonzero(whole.is_smooth), whole.take(np.flatnonzero(whole.is_smooth))
    for number in range(MAX_ROUNDS):
        if not len(active):
            break
        points, log_density = part.refine()
        estimates = zip(_accumulate(points, log_density)[0], points, strict=True)
        nodes = np.stack([np.interp(LEVELS[number % 2], *row) for row in estimates])
        values = _sum_draws(evaluate(flow, index[active], torch.from_numpy(nodes)))
        error, part = part.add(np.arange(len(active)), nodes, values)
        is_done = error < MAX_ERROR
        if is_done.any():
            points, log_density = part.take(np.flatnonzero(is_done)).refine()
            total, log_mass[active[is_done]] = _accumulate(points, log_density)
            knots[active[is_done]] = _pad(points, n_knots)
            cumulative[active[is_done]] = _pad(total, n_knots)
        active, part = active[~is_done], part.take(np.flatnonzero(~is_done))
    rest = np.union1d(active, np.flatnonzero(~whole.is_smooth))
    return Distributions(knots, cumulative, log_mass), rest


def _integrate_rows(
    evaluate: Evaluate,
    flow: nn.Module,
    index: Tensor,
    z_range: tuple[float, float],
    quantiles: FloatArray,
    max_refinements: int,
) -> Distributions:
    """Distributions of the rows at some indices."""
    members = list(list_members(flow))
    gaussians = [(weight, member) for weight, member in members if isinstance(member, Gaussian)]
    normals = _Normals.locate(evaluate, gaussians, index) if gaussians else None
    # Mass of the row so far, with which that of the next member is compared.
    log_known_mass = np.full(len(index), -np.inf) if normals is None else logsumexp(normals.log_mass, 1)
    parts = []
    for weight, member in members:
        if not isinstance(member, Gaussian):
            part = _integrate_flow(
                evaluate, member, index, z_range, quantiles, max_refinements, log_known_mass - weight
            )
            parts.append(part._replace(log_mass=part.log_mass + weight))
            log_known_mass = np.logaddexp(log_known_mass, parts[-1].log_mass)
    if normals is None and len(parts) == 1:
        return parts[0]
    return _mix(parts, normals)


def list_members(flow: nn.Module, log_weight: float = 0.0) -> Iterator[tuple[float, nn.Module]]:
    """Flows that are no mixtures, with the logarithms of their weights."""
    if not isinstance(flow, FlowMixture):
        yield log_weight, flow
        return
    for weight, member in zip(flow.log_weights.tolist(), flow.flows, strict=True):
        if weight > -math.inf:
            yield from list_members(member, log_weight + weight)


class _Normals(NamedTuple):
    """Gaussians along one feature in each row, `(N, K)` each: normal distributions with a mass.

    Unlike the distributions of flows they are not confined to a range of points.
    """

    mean: FloatArray
    scale: FloatArray
    log_mass: FloatArray

    @classmethod
    def locate(cls, evaluate: Evaluate, members: Sequence[tuple[float, nn.Module]], index: Tensor) -> _Normals:
        """Find the normals of Gaussians: the log-density along a feature is a parabola of three points."""
        points = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.double).expand(len(index), -1)
        log_density = np.concatenate(
            [evaluate(member, index, points).numpy() + weight for weight, member in members]
        )  # (members * draws, N, 3)
        left, middle, right = log_density.transpose(2, 1, 0)
        curvature, slope = np.maximum(2 * middle - left - right, 1e-12), (right - left) / 2
        mean, scale = slope / curvature, curvature**-0.5
        log_mass = middle + slope * mean / 2 + np.log(scale * math.sqrt(2 * math.pi))
        return cls(mean, scale, log_mass)

    def place_knots(self, shares: FloatArray) -> FloatArray:
        """Points `(N, knots)` close to the quantiles of mixtures of the normals, with shares `(N, K)`."""
        points = (self.mean[..., None] + self.scale[..., None] * ndtri(REFINED_QUANTILES)).reshape(len(shares), -1)
        weights = (shares[..., None] * np.gradient(REFINED_QUANTILES)).reshape(points.shape)
        order = np.argsort(points, 1, kind="stable")
        points, weights = (np.take_along_axis(array, order, 1) for array in (points, weights))
        total = np.cumsum(weights, 1)
        total /= np.maximum(total[:, -1:], 1e-300)
        inner = np.stack([np.interp(MIXED_QUANTILES, *row) for row in zip(total, points, strict=True)])
        return np.concatenate([points[:, :1], inner, points[:, -1:]], 1)

    def cdf(self, points: FloatArray, shares: FloatArray) -> FloatArray:
        """Sum of the cumulative distributions at points of each row, `(N, M)`, times their shares, `(N, K)`."""
        total = np.zeros_like(points)
        for k in range(shares.shape[1]):
            total += shares[:, [k]] * ndtr((points - self.mean[:, [k]]) / self.scale[:, [k]])
        return total


def _mix(parts: list[Distributions], normals: _Normals | None) -> Distributions:
    """Mixture of the distributions of flows and of normals by their masses."""
    log_masses = [part.log_mass[:, None] for part in parts] + ([] if normals is None else [normals.log_mass])
    log_mass = np.concatenate(log_masses, 1)
    shares = np.exp(log_softmax(log_mass, 1))
    knots = [part.knots for part in parts]
    if normals is not None:
        of_normals = shares[:, len(parts) :]
        knots.append(normals.place_knots(of_normals))
    union = np.sort(np.concatenate(knots, 1), 1)
    cumulative = np.zeros_like(union)
    for k, part in enumerate(parts):
        cumulative += shares[:, [k]] * interpolate(union, part.knots, part.cumulative)
    if normals is not None:
        cumulative += normals.cdf(union, of_normals)
    return Distributions(union, cumulative, logsumexp(log_mass, 1))


def _integrate_flow(
    evaluate: Evaluate,
    flow: nn.Module,
    index: Tensor,
    z_range: tuple[float, float],
    quantiles: FloatArray,
    max_refinements: int,
    log_known_mass: FloatArray,
) -> Distributions:
    """Distributions of the rows at some indices under a flow that is no mixture.

    The density is evaluated on a coarse grid, then at quantiles of the estimate until the distribution has converged.
    Each row is refined by itself, so that its result does not depend on the other rows. A row that has little mass
    beside the mass that is known already is not refined further.
    """
    knots = np.tile(np.linspace(*z_range, N_COARSE_POINTS), (len(index), 1))
    log_density = _sum_draws(evaluate(flow, index, torch.from_numpy(knots)))
    active = np.arange(len(index))
    results: list[tuple[FloatArray, FloatArray, float]] = [(knots[0], knots[0], 0.0)] * len(index)
    for number, temperature in enumerate([*TEMPERATURES, *[1.0] * max_refinements]):
        estimates = zip(_accumulate(knots, log_density / temperature)[0], knots, strict=True)
        refined = np.stack([np.interp(quantiles, total, points) for total, points in estimates])
        added = _sum_draws(evaluate(flow, index[active], torch.from_numpy(refined)))
        knots, log_density = np.concatenate([knots, refined], 1), np.concatenate([log_density, added], 1)
        order = np.argsort(knots, 1, kind="stable")
        knots, log_density = (np.take_along_axis(array, order, 1) for array in (knots, log_density))
        cumulative, log_mass = _accumulate(knots, log_density)
        if number < len(TEMPERATURES) - 1:
            continue
        change = np.abs(interpolate(refined, knots, cumulative) - quantiles).max(1)
        is_small = log_mass - log_known_mass[active] < math.log(MIN_SHARE)
        is_done = is_small | (change < MAX_CDF_CHANGE) | (number + 1 == len(TEMPERATURES) + max_refinements)
        for row in np.flatnonzero(is_done):
            results[active[row]] = knots[row], cumulative[row], float(log_mass[row])
        active, knots, log_density = active[~is_done], knots[~is_done], log_density[~is_done]
        if len(active) == 0:
            break
    # Rows may have different numbers of knots: the last one is repeated.
    n_knots = max(len(row) for row, _, _ in results)
    all_knots, all_cumulative, log_masses = zip(*results, strict=True)
    return Distributions(
        np.stack([_pad(row, n_knots) for row in all_knots]),
        np.stack([_pad(row, n_knots) for row in all_cumulative]),
        np.array(log_masses),
    )


def _sum_draws(log_density: Tensor) -> FloatArray:
    """Log-density summed over draws, `(N, K)`."""
    total: FloatArray = torch.logsumexp(log_density, 0).numpy()
    return total


def _pad(array: FloatArray, size: int) -> FloatArray:
    """Repeat the last element of the last axis up to a size."""
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, size - array.shape[-1])], mode="edge")


def _accumulate(knots: FloatArray, log_density: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cumulative distribution at the knots of each row, for a log-density that is linear between them; its log-mass."""
    rise = np.abs(np.diff(log_density, axis=1))
    highest = log_density.max(1, keepdims=True, initial=-np.inf)
    higher = np.maximum(log_density[:, 1:], log_density[:, :-1]) - highest
    # Mean of exp over a piece, relative to its higher end; its expansion near 0 avoids 0/0.
    mean = np.where(rise > 1e-6, -np.expm1(-rise) / np.maximum(rise, 1e-6), 1 - rise / 2)
    pieces = np.exp(higher) * mean * np.diff(knots, axis=1)
    total = np.concatenate([np.zeros((len(knots), 1)), np.cumsum(pieces, 1)], 1)
    return total / total[:, -1:], np.log(total[:, -1]) + highest[:, 0]


def interpolate(z: FloatArray, knots: FloatArray, cumulative: FloatArray) -> FloatArray:
    """Cumulative distribution of each row at K points z, `(N, K)`."""
    rows = [np.interp(*row) for row in zip(z, knots, cumulative, strict=True)]
    return np.stack(rows) if rows else np.zeros_like(z)
