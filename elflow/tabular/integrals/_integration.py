"""Cumulative distributions of one feature from a joint density that is known up to a factor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp, ndtr, ndtri
from torch import Tensor, nn

from elflow.flows.tilted import Tilted
from elflow.flows.whitening import Gaussian, TriangularTransform
from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular.integrals._boxes import find_ends, find_steps, measure_box
from elflow.tabular.integrals._lines import Lines
from elflow.tabular.integrals._members import list_gaussians, list_members
from elflow.tabular.integrals._normal import log_interval, truncated_quantile
from elflow.tabular.integrals._precision import N_CHECKED, choose_precision
from elflow.tabular.integrals._quick_integration import MAX_ERROR, MAX_ROUNDS, N_NEW, N_PIECES, QuickIntegrator

__all__ = [
    "REFINED_QUANTILES",
    "integrate_density",
    "interpolate",
    "measure_precisions",
    "merge_distributions",
]

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
MIN_TILTED_MASS = 0.1
"""Part of the mass of a flow that remains with factors of cells below which it is integrated again with them."""
MIN_SHARE = 1e-4
"""Share of the mass of a row below which the distribution of a flow is not refined further."""
MIXED_QUANTILES = np.union1d(REFINED_QUANTILES, np.linspace(0.0025, 0.9975, 200))
"""Quantiles of mixtures of Gaussians that are knots: so close to each other that a gap between two peaks is found."""
LOG_2PI = math.log(2 * math.pi)


class Distributions(NamedTuple):
    """Cumulative distributions of N rows: increasing points and the cumulative distribution at them, `(N, K)` each."""

    knots: FloatArray
    cumulative: FloatArray
    log_mass: FloatArray
    """Logarithm of the integral of each row, `(N,)`."""


@torch.no_grad()
def integrate_density(
    lines: Lines,
    flow: nn.Module,
    z_range: tuple[float, float],
    quantiles: FloatArray = REFINED_QUANTILES,
    max_refinements: int = MAX_REFINEMENTS,
) -> Distributions:
    """Cumulative distributions of densities that are known up to a factor: sums of the densities along lines.

    A mixture is integrated member by member, and its distribution is the mixture of theirs by mass: a member with a
    broad density cannot hide the peak of a narrow one. Along one feature a Gaussian is normal.

    Arguments:
        lines: Lines of N rows.
        flow: The flow whose density is integrated.
        z_range: Range of the points.
        quantiles: Quantiles at which each refinement adds points.
        max_refinements: Maximum number of refinements after the first ones, until the distributions have converged.
    """
    if isinstance(flow, Tilted):
        return _integrate_tilted(lines, flow, z_range, quantiles, max_refinements)
    c = None if lines.context is None else lines.context[:N_CHECKED]
    quick_flow = choose_precision(flow, lines.z[0, :N_CHECKED], c)
    size = max(1, MAX_EVALUATIONS // (len(quantiles) * lines.n_draws))
    gaussians = _list_smooth_gaussians(flow, lines.position) if lines.n_rows else []
    blocks = []
    for index in torch.arange(lines.n_rows).split(size) if lines.n_rows else ():
        block = _integrate_block(lines.take(index), flow, quick_flow, gaussians, z_range, quantiles, max_refinements)
        blocks.append((index.numpy(), block))
    return merge_distributions(blocks, lines.n_rows)


def _integrate_tilted(
    lines: Lines, flow: Tilted, z_range: tuple[float, float], quantiles: FloatArray, max_refinements: int
) -> Distributions:
    """Distributions of a flow with factors, which are constant along a line, or in each cell that it crosses."""
    if lines.position not in flow.ends:
        log_volume = lines.log_volume + flow.compute_log_factor(lines.z)
        return integrate_density(lines._replace(log_volume=log_volume), flow.flow, z_range, quantiles, max_refinements)
    knots, cumulative, log_mass = integrate_density(lines, flow.flow, z_range, quantiles, max_refinements)
    ends = flow.ends[lines.position]
    union = np.sort(np.concatenate([knots, np.tile(ends, (len(knots), 1)).clip(knots[:, :1], knots[:, -1:])], 1), 1)
    # All points of a row are in the same cells of the other features: the first one has the factors of all.
    factors = flow.compute_along(lines.z[0], lines.position).exp().numpy()
    cells = np.searchsorted(ends, (union[:, 1:] + union[:, :-1]) / 2, side="right")
    pieces = np.diff(interpolate(union, knots, cumulative), axis=1) * np.take_along_axis(factors, cells, 1)
    total = np.concatenate([np.zeros((len(union), 1)), np.cumsum(pieces, 1)], 1)
    mass = np.maximum(total[:, -1], 1e-300)
    whole = Distributions(union, total / mass[:, None], log_mass + np.log(mass))
    # Where little of the flow's mass remains, its distribution is too coarse there: the product itself is integrated.
    thin = np.flatnonzero(mass < MIN_TILTED_MASS)
    if not len(thin):
        return whole
    known = np.full(len(thin), -np.inf)
    exact = _integrate_flow(lines.take(torch.from_numpy(thin)), flow, z_range, quantiles, max_refinements, known)
    return merge_distributions([(np.arange(lines.n_rows), whole), (thin, exact)], lines.n_rows)


def merge_distributions(parts: Sequence[tuple[IntArray, Distributions]], count: int) -> Distributions:
    """Distributions of N rows from those of some rows, whose indices come with them; the last of a row counts."""
    n_knots = max((part.knots.shape[1] for _, part in parts), default=2)
    merged = Distributions(np.zeros((count, n_knots)), np.zeros((count, n_knots)), np.zeros(count))
    for index, part in parts:
        merged.knots[index] = _pad(part.knots, n_knots)
        merged.cumulative[index] = _pad(part.cumulative, n_knots)
        merged.log_mass[index] = part.log_mass
    return merged


def measure_precisions(flow: nn.Module) -> Tensor | None:
    """Largest inverse variance of each feature given all others under a Gaussian of a mixture, `(features,)`.

    None if there are no Gaussians.
    """
    whitenings = [member.whitening for _, member in list_gaussians(flow)]
    if not whitenings:
        return None
    unit = torch.eye(whitenings[0].features, dtype=torch.double)
    precisions = []
    for whitening in whitenings:
        _, lower, log_scale, _ = whitening.compute_parts()
        # Column k of the linear map is the image of the unit vector k; the covariance is that of its inverse.
        linear = TriangularTransform(torch.zeros(1), lower, log_scale, whitening.order)
        precisions.append(linear(unit).square().sum(1))
    return torch.stack(precisions).amax(0)


def _list_smooth_gaussians(flow: nn.Module, position: int) -> list[tuple[float, Gaussian]]:
    """Gaussians that place the points of a density that is smooth along a feature; none for any other density.

    The density has steps at the ends between groups, between which interpolation would not converge.
    """
    members = [member for _, member in list_members(flow)]
    has_steps = any(len(find_steps(member, position)) for member in members)
    return [] if has_steps or all(isinstance(member, Gaussian) for member in members) else list_gaussians(flow)


def _integrate_block(
    lines: Lines,
    flow: nn.Module,
    quick_flow: nn.Module,
    gaussians: Sequence[tuple[float, Gaussian]],
    z_range: tuple[float, float],
    quantiles: FloatArray,
    max_refinements: int,
) -> Distributions:
    """Distributions of a block of rows, with few evaluations for those in which the density is smooth."""
    if not gaussians:
        return _integrate_rows(lines, flow, z_range, quantiles, max_refinements)
    quick, rest = _integrate_smooth(lines, quick_flow, z_range, gaussians)
    if not len(rest):
        return quick
    slow = _integrate_rows(lines.take(torch.from_numpy(rest)), flow, z_range, quantiles, max_refinements)
    return merge_distributions([(np.arange(lines.n_rows), quick), (rest, slow)], lines.n_rows)


def _integrate_smooth(
    lines: Lines,
    flow: nn.Module,
    z_range: tuple[float, float],
    gaussians: Sequence[tuple[float, Gaussian]],
) -> tuple[Distributions, IntArray]:
    """Distributions by interpolation, and the positions of the rows in which it has not converged."""
    normals = _Normals.locate(lines, gaussians)
    share = np.exp(log_softmax(normals.log_mass, 1))
    whole = QuickIntegrator(normals.mean, normals.scale, share, z_range)
    whole.set_values(_sum_draws(lines.evaluate(flow, torch.from_numpy(whole.nodes))))
    n_knots = N_PIECES * (whole.nodes.shape[1] - 1 + MAX_ROUNDS * N_NEW) + 1
    knots, cumulative = np.zeros((lines.n_rows, n_knots)), np.zeros((lines.n_rows, n_knots))
    log_mass = np.zeros(lines.n_rows)
    active, part = np.flatnonzero(whole.is_smooth), whole.take(np.flatnonzero(whole.is_smooth))
    for _ in range(MAX_ROUNDS):
        if not len(active):
            break
        points, log_density = part.refine()
        new = part.choose_nodes(points, _accumulate(points, log_density)[0])
        values = _sum_draws(lines.take(torch.from_numpy(active)).evaluate(flow, torch.from_numpy(new.points)))
        error = part.add(new, values)
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
    lines: Lines,
    flow: nn.Module,
    z_range: tuple[float, float],
    quantiles: FloatArray,
    max_refinements: int,
) -> Distributions:
    """Distributions of a block of rows."""
    members = list(list_members(flow))
    gaussians = [(weight, member) for weight, member in members if isinstance(member, Gaussian)]
    normals = _Normals.locate(lines, gaussians) if gaussians else None
    # Mass of the row so far, with which that of the next member is compared.
    log_known_mass = np.full(lines.n_rows, -np.inf) if normals is None else logsumexp(normals.log_mass, 1)
    parts = []
    for weight, member in members:
        if not isinstance(member, Gaussian):
            part = _integrate_flow(lines, member, z_range, quantiles, max_refinements, log_known_mass - weight)
            parts.append(part._replace(log_mass=part.log_mass + weight))
            log_known_mass = np.logaddexp(log_known_mass, parts[-1].log_mass)
    if normals is None and len(parts) == 1:
        return parts[0]
    return _mix(parts, normals)


class _Normals(NamedTuple):
    """Gaussians along one feature in each row, `(N, K)` each: normal distributions with a mass.

    Unlike the distributions of flows they are not confined to a range of points.
    """

    mean: FloatArray
    scale: FloatArray
    log_mass: FloatArray
    lower: FloatArray
    """Lower ends of the intervals to which they are truncated, `(K,)`."""
    upper: FloatArray

    @classmethod
    def locate(cls, lines: Lines, members: Sequence[tuple[float, Gaussian]]) -> _Normals:
        """Find the normals of Gaussians, with the logarithms of their weights."""
        start, along = lines.z.clone(), torch.zeros_like(lines.z[0, :1])
        start[..., lines.position] = 0.0
        along[:, lines.position] = 1.0
        means, scales, log_masses = [], [], []
        for log_weight, member in members:
            to_latent = member.whitening(lines.context)
            at_start = to_latent(start)
            # The latent points are on a line, too. The point closest to the origin is the mean.
            direction = TriangularTransform(torch.zeros(1), to_latent.lower, to_latent.log_scale, to_latent.order)(
                along
            )
            scale = direction.square().sum().rsqrt()
            mean = -(at_start @ direction[0]) * scale**2
            closest = at_start + mean[..., None] * direction
            log_peak = to_latent.log_scale.sum() - closest.shape[-1] * LOG_2PI / 2 - closest.square().sum(-1) / 2
            means.append(mean)
            scales.append(scale.expand_as(mean))
            log_mass = log_weight + log_peak + lines.log_volume + scale.log() + LOG_2PI / 2
            log_masses.append(log_mass + measure_box(member, lines, mean, scale))
        ends = [find_ends(member, lines.position) for _, member in members for _ in range(lines.n_draws)]
        parts = [torch.cat(parts).T.numpy() for parts in (means, scales, log_masses)]
        return cls(*parts, *np.array(ends).T)

    @property
    def is_bounded(self) -> NDArray[np.bool_]:
        """Whether each normal is truncated, `(K,)`."""
        is_bounded: NDArray[np.bool_] = (self.lower > -math.inf) | (self.upper < math.inf)
        return is_bounded

    def place_knots(self, shares: FloatArray) -> FloatArray:
        """Points `(N, knots)` close to the quantiles of mixtures of the normals, with shares `(N, K)`."""
        points = self.mean[..., None] + self.scale[..., None] * ndtri(REFINED_QUANTILES)
        for k in np.flatnonzero(self.is_bounded):
            ends = ((end - self.mean[:, [k]]) / self.scale[:, [k]] for end in (self.lower[k], self.upper[k]))
            u, *ends = torch.broadcast_tensors(torch.from_numpy(REFINED_QUANTILES), *map(torch.from_numpy, ends))
            points[:, k] = self.mean[:, [k]] + self.scale[:, [k]] * truncated_quantile(u, *ends).numpy()
        points = points.clip(self.lower[:, None], self.upper[:, None]).reshape(len(shares), -1)
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
            value, low, high = (
                (z - self.mean[:, [k]]) / self.scale[:, [k]] for z in (points, self.lower[k], self.upper[k])
            )
            if not self.is_bounded[k]:
                total += shares[:, [k]] * ndtr(value)
                continue
            low, value, high = map(torch.from_numpy, (low, value.clip(low, high), high))
            total += shares[:, [k]] * (log_interval(low, value) - log_interval(low, high)).exp().numpy()
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
    lines: Lines,
    flow: nn.Module,
    z_range: tuple[float, float],
    quantiles: FloatArray,
    max_refinements: int,
    log_known_mass: FloatArray,
) -> Distributions:
    """Distributions of a block of rows under a flow that is no mixture.

    The density is evaluated on a coarse grid, then at quantiles of the estimate until the distribution has converged.
    Each row is refined by itself, so that its result does not depend on the other rows. A row that has little mass
    beside the mass that is known already is not refined further.
    """
    grid = np.linspace(*z_range, N_COARSE_POINTS)
    # Both sides of a step are knots, so that no piece between two knots extends over it.
    steps = find_steps(flow, lines.position)
    steps = steps[(steps > grid[0]) & (steps < grid[-1])]
    grid = np.unique(np.concatenate([grid, steps, np.nextafter(steps, -math.inf)]))
    knots = np.tile(grid, (lines.n_rows, 1))
    log_density = _sum_draws(lines.evaluate(flow, torch.from_numpy(knots)))
    active = np.arange(lines.n_rows)
    results: list[tuple[FloatArray, FloatArray, float]] = [(knots[0], knots[0], 0.0)] * lines.n_rows
    for number, temperature in enumerate([*TEMPERATURES, *[1.0] * max_refinements]):
        estimates = zip(_accumulate(knots, log_density / temperature)[0], knots, strict=True)
        refined = np.stack([np.interp(quantiles, total, points) for total, points in estimates])
        added = _sum_draws(lines.take(torch.from_numpy(active)).evaluate(flow, torch.from_numpy(refined)))
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
