"""Importance sampling in regions of features: draws, effective sample sizes and probabilities of regions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elflow.kernels import NonFiniteError
from elflow.tabular._flow import draw_quasi_random
from elflow.tabular.integrals._precision import choose_precision, evaluate_points
from elflow.tabular.integrals._proposals import Gaussians, Proposal
from elflow.tabular.integrals._regions import Regions

__all__ = [
    "MAX_GROWTH",
    "Draws",
    "Particles",
    "Scorer",
    "draw_points",
    "spread_points",
    "weigh_points",
    "weigh_until_precise",
]

MAX_POINTS = 2**15
"""Maximum number of points that are evaluated at a time."""
ROUND_POINTS = 32
"""Number of points of a row in each round."""
POINTS_PER_DRAW = 8
"""Number of points per draw, if there are many draws of a row."""
MIN_ROUNDS, MAX_ROUNDS = 2, 12
"""Minimum and maximum number of rounds."""
MAX_GROWTH = 16
"""Maximum factor by which the number of quasi-random points of a row is increased."""
N_CANDIDATES = 4
"""Number of points of the proposal among which each quasi-random point is chosen."""
MIN_SAMPLE_SIZE = 12.0
"""Effective sample size from which a row needs no further rounds."""


class Scorer:
    """Log-density of a flow, in single precision if that is accurate enough: rounding is smaller than sampling error.

    Arguments:
        flow: The flow, in double precision.
    """

    def __init__(self, flow: nn.Module) -> None:
        self._double = flow
        self._chosen: nn.Module | None = None

    def __call__(self, z: Tensor, context: Tensor | None = None) -> Tensor:
        """Log-densities of points `(N, K, features)` with contexts `(N, context)`, `(N, K)`; -inf for NaN."""
        c = None if context is None else context[:, None].expand(-1, z.shape[1], -1)
        if self._chosen is None:
            self._chosen = choose_precision(self._double, z, c)
        n_rows = max(1, MAX_POINTS // max(1, z.shape[1]))
        blocks = [z.new_zeros(0, z.shape[1])]
        for start in range(0, len(z), n_rows):
            block = slice(start, start + n_rows)
            blocks.append(self._evaluate(z[block], None if c is None else c[block]))
        return torch.cat(blocks)

    def _evaluate(self, z: Tensor, c: Tensor | None) -> Tensor:
        assert self._chosen is not None
        try:
            log_density = evaluate_points(self._chosen, z, c)
        except NonFiniteError:  # networks may overflow in single precision only
            log_density = evaluate_points(self._double, z, c)
        return log_density.nan_to_num(nan=-torch.inf)


class Particles(NamedTuple):
    """Weighted points of N rows in their regions."""

    z: Tensor
    """The points, `(N, K, features)`."""
    log_weight: Tensor
    """Logarithms of the weights, not normalised, `(N, K)`."""

    @property
    def weights(self) -> Tensor:
        """Normalised weights, `(N, K)`; equal ones if all are zero."""
        weights = torch.softmax(self.log_weight, 1)
        return torch.where(weights.isnan(), 1 / weights.shape[1], weights)

    @property
    def effective_sample_size(self) -> Tensor:
        """Effective sample size of each row, `(N,)`; 0 if all weights are zero."""
        size = 1 / self.weights.square().sum(1)
        return torch.where(self.log_weight.amax(1) > -torch.inf, size, 0.0)

    @property
    def log_mass(self) -> Tensor:
        """Logarithm of the integral of the density over each region, `(N,)`."""
        return self.log_weight.logsumexp(1) - math.log(self.log_weight.shape[1])


class Draws(NamedTuple):
    """Draws from the density restricted to regions."""

    z: Tensor
    """n draws of each of N rows, `(N, n, features)`."""
    effective_sample_size: Tensor
    """Number of independent points, as a measure of quality, from which the draws of each row were selected, `(N,)`."""


def weigh_points(
    scorer: Scorer,
    gaussians: Gaussians,
    regions: Regions,
    context: Tensor | None,
    count: int,
    generator: torch.Generator | None = None,
    main: int | None = None,
) -> Particles:
    """Weighted points in regions: random ones, or quasi-random ones that all rows share if there is no generator.

    Quasi-random points are spread evenly over the proposal, along the feature at the position `main` above all.
    """
    n_features = regions.lower.shape[1]
    size = max(1, MAX_POINTS // count)
    if generator is None:
        points = draw_quasi_random(N_CANDIDATES * count, n_features + 2)
        noise = torch.from_numpy(points).clamp(1e-15, 1 - 1e-15)[None]
        size = max(1, size // 2)  # memory for the points among which those are chosen
    parts = []
    for start in range(0, len(regions.lower), size):
        block = regions.take(slice(start, start + size))
        c = None if context is None else context[start : start + size]
        proposal = Proposal(gaussians, block, c)
        if generator is not None:
            noise = _draw_uniform(len(block.lower), count, n_features + 2, generator)
        z = proposal.draw(noise)
        if generator is None:
            z = spread_points(z, count, block.is_fixed, main)
        log_weight = scorer(z, c) - proposal.log_density(z) + block.log_volume[:, None]
        parts.append(Particles(z, log_weight.nan_to_num(nan=-torch.inf, posinf=-torch.inf)))
    return Particles(*(torch.cat(part) for part in zip(*parts, strict=True)))


def spread_points(z: Tensor, count: int, is_fixed: Tensor, main: int | None = None) -> Tensor:
    """Choose `count` of K points of each row such that they are spread evenly, `(N, count, features)`.

    The points are divided into halves at their medians, along one feature after the other, and one point of each part
    is chosen, its place in the order of the last feature in turns.

    Arguments:
        z: Points of N rows, `(N, K, features)`, where K is a multiple of `count`.
        count: Number of points to choose.
        is_fixed: Features that are known, `(N, features)`: points are not divided along them.
        main: Position of a feature along which every second division is made; None to take all in turns.

    Example:
        >>> z = torch.rand(1, 64, 2, generator=torch.Generator().manual_seed(0))
        >>> chosen = spread_points(z, 16, torch.zeros(1, 2, dtype=torch.bool), main=0)
        >>> chosen.shape, int((chosen[..., 0] <= z[..., 0].median()).sum())
        (torch.Size([1, 16, 2]), 8)
    """
    n_rows, size = z.shape[:2]
    index = torch.arange(size).expand(n_rows, -1)
    for position in _choose_divisions(is_fixed, (count - 1).bit_length(), main).T:
        if size % 2 or size <= z.shape[1] // count:
            break
        values = z.gather(2, position[:, None, None].expand(-1, z.shape[1], 1))[..., 0].gather(1, index)
        order = values.reshape(n_rows, -1, size).argsort(stable=True, dim=-1)
        index = index.reshape(n_rows, -1, size).gather(2, order).reshape(n_rows, -1)
        size //= 2
    parts = index.reshape(n_rows, count, -1)
    # The bits of the number of a part tell its side of each division. With these weights, all places are as frequent
    # also among parts that are on the same side of every second division. All rows have the same places, so that their
    # results do not depend on each other.
    number = torch.arange(count)
    place = torch.zeros_like(number)
    for k in range(count.bit_length()):
        place += (number >> k & 1) * (1 + k // 2 % 2)
    chosen = (place % parts.shape[-1])[None, :, None]
    return _take(z, parts.gather(2, chosen.expand(n_rows, -1, -1))[..., 0])


def _choose_divisions(is_fixed: Tensor, count: int, main: int | None) -> Tensor:
    """Features along which points are divided one after the other, `(N, count)`."""
    turns = torch.arange(count)
    is_other = ~is_fixed
    if main is not None:
        is_other[:, main] = False
    others = (~is_other).long().argsort(stable=True, dim=1)  # those that are not known come first
    n_others = is_other.sum(1, keepdim=True).clamp(min=1)
    if main is None:
        return others.gather(1, turns % n_others)
    in_turn = others.gather(1, (turns // 2) % n_others)
    return torch.where((turns % 2 == 0) | ~is_other.any(1, keepdim=True), main, in_turn)


def weigh_until_precise(
    scorer: Scorer,
    gaussians: Gaussians,
    regions: Regions,
    context: Tensor | None,
    count: int,
    max_growth: int = MAX_GROWTH,
    main: int | None = None,
) -> Iterator[tuple[Tensor, Particles]]:
    """Groups of rows, as indices, with quasi-random weighted points.

    Rows in which `count` points have a small effective sample size have four times as many, up to `max_growth` times.
    For `main` see `weigh_points`.
    """
    rows = torch.arange(len(regions.lower))
    growth = 1
    while len(rows):
        size = max(1, MAX_POINTS // (count * growth))
        poor = []
        for index in rows.split(size):
            c = None if context is None else context[index]
            particles = weigh_points(scorer, gaussians, regions.take(index), c, count * growth, None, main)
            is_done = particles.effective_sample_size >= MIN_SAMPLE_SIZE
            if growth >= max_growth:
                is_done[:] = True
            if is_done.any():
                yield index[is_done], Particles(particles.z[is_done], particles.log_weight[is_done])
            poor.append(index[~is_done])
        rows, growth = torch.cat(poor), growth * 4


def draw_points(
    scorer: Scorer,
    gaussians: Gaussians,
    regions: Regions,
    context: Tensor | None,
    n: int,
    generator: torch.Generator,
) -> Draws:
    """Draw n points from the density restricted to each region.

    The first round draws points from Gaussians and selects by weight (sampling importance resampling). Each further
    round selects between the present point and new ones, which leaves the conditional distribution unchanged (iterated
    SIR: Andrieu, Lee and Vihola, 2018), until the effective sample size of all points is large enough. A
    row with many draws has that many points in its first round that no further ones are needed.

    Arguments:
        scorer: The density.
        gaussians: The proposal.
        regions: The regions of N rows.
        context: Encoded context of the rows, `(N, context)`.
        n: Number of draws of each row.
        generator: Source of random numbers, which is advanced.
    """
    n_rows, n_features = regions.lower.shape[:2]
    per_round = max(ROUND_POINTS, POINTS_PER_DRAW * n)
    z = torch.zeros(n_rows, n, n_features, dtype=torch.double)
    sizes = torch.zeros(n_rows, dtype=torch.double)
    size = max(1, MAX_POINTS // per_round)
    for start in range(0, n_rows, size):
        block = slice(start, start + size)
        c = None if context is None else context[block]
        z[block], sizes[block] = _draw_block(scorer, gaussians, regions.take(block), c, n, per_round, generator)
    return Draws(z, sizes)


def _draw_block(
    scorer: Scorer,
    gaussians: Gaussians,
    regions: Regions,
    context: Tensor | None,
    n: int,
    per_round: int,
    generator: torch.Generator,
) -> Draws:
    """Draws of rows whose points fit into the memory."""
    n_rows = len(regions.lower)
    first = weigh_points(scorer, gaussians, regions, context, per_round, generator)
    index = resample(first.weights, n, generator)
    z = _take(first.z, index)
    log_weight = first.log_weight.gather(1, index)
    # Moments of all weights relative to the largest so far give the effective sample size over all rounds.
    peak = first.log_weight.amax(1)
    total, squares = _weight_moments(first.log_weight, peak)
    active = torch.arange(n_rows)
    for round_number in range(1, MAX_ROUNDS):
        is_poor = total[active].square() < MIN_SAMPLE_SIZE * max(1.0, n / POINTS_PER_DRAW) * squares[active]
        is_poor |= peak[active] == -torch.inf
        if round_number < MIN_ROUNDS and n * POINTS_PER_DRAW <= ROUND_POINTS:
            is_poor[:] = True
        active = active[is_poor]
        if not len(active):
            break
        c = None if context is None else context[active]
        new = weigh_points(scorer, gaussians, regions.take(active), c, per_round, generator)
        z[active], log_weight[active] = _select(z[active], log_weight[active], new, generator)
        new_peak = torch.maximum(peak[active], new.log_weight.amax(1))
        ratio = (peak[active] - new_peak).exp().nan_to_num(nan=0.0)
        new_total, new_squares = _weight_moments(new.log_weight, new_peak)
        total[active] = total[active] * ratio + new_total
        squares[active] = squares[active] * ratio.square() + new_squares
        peak[active] = new_peak
    return Draws(z, torch.where(squares > 0, total.square() / squares.clamp(min=1e-300), 0.0))


def _select(z: Tensor, log_weight: Tensor, new: Particles, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each of n draws the present point or one of an equal share of new points, by weight."""
    n_rows, n, n_features = z.shape
    share = new.log_weight.shape[1] // n
    points = torch.cat([z[:, :, None], new.z[:, : share * n].reshape(n_rows, n, share, n_features)], 2)
    weights = torch.cat([log_weight[..., None], new.log_weight[:, : share * n].reshape(n_rows, n, share)], 2)
    probabilities = torch.softmax(weights, -1).nan_to_num(nan=1.0).reshape(n_rows * n, share + 1)
    index = torch.multinomial(probabilities, 1, generator=generator).reshape(n_rows, n, 1)
    chosen = points.gather(2, index[..., None].expand(-1, -1, -1, n_features))[:, :, 0]
    return chosen, weights.gather(2, index)[..., 0]


def resample(weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Indices of n points of each row in random order, `(N, n)`, by systematic resampling of weights `(N, K)`.

    A point appears more than once only if its weight exceeds 1 / n.

    Example:
        >>> weights = torch.tensor([[0.5, 0.25, 0.25, 0.0]]).double()
        >>> resample(weights, 4, torch.Generator().manual_seed(0)).sort().values.tolist()
        [[0, 0, 1, 2]]
    """
    start = torch.rand(len(weights), 1, dtype=torch.double, generator=generator)
    levels = (torch.arange(n, dtype=torch.double) + start) / n
    index = torch.searchsorted(weights.cumsum(1), levels).clamp(max=weights.shape[1] - 1)
    shuffle = torch.rand(len(weights), n, generator=generator).argsort(1)
    return index.gather(1, shuffle)


def _take(z: Tensor, index: Tensor) -> Tensor:
    """Points of each row at indices `(N, n)`."""
    return z.gather(1, index[..., None].expand(-1, -1, z.shape[-1]))


def _weight_moments(log_weight: Tensor, peak: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of weights and of their squares, relative to a peak, `(N,)` each."""
    weights = (log_weight - peak[:, None]).exp().nan_to_num(nan=0.0)
    return weights.sum(1), weights.square().sum(1)


def _draw_uniform(rows: int, count: int, features: int, generator: torch.Generator) -> Tensor:
    noise = torch.rand(rows, count, features, dtype=torch.double, generator=generator)
    return noise.clamp(1e-15, 1 - 1e-15)
