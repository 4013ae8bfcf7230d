"""Gaussian dequantisation: points of cells that follow the correlations of the features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from elflow.nn import DataInitialized

__all__ = ["MIN_PROBABILITY", "CellNoise", "draw_truncated", "draw_uniform"]

SHRINKAGE, SWEEP_SHRINKAGE = 0.03, 0.003
"""Share by which correlations are shrunk, and that during estimation: it bounds variances given other features."""
N_SWEEPS, N_AVERAGED = 40, 15
"""Number of sweeps of stochastic expectation maximisation, and of the last ones whose moments are averaged."""
MAX_ROWS, MAX_NUMBERS = 5_000, 500_000
"""Maximum number of rows from which the moments are estimated, and of rows times features."""
MIN_WIDTH = 1e-4
"""Width of a cell of (0, 1) from which its points are correlated. The ends of narrow ones may be the same in floats."""
FREE_WIDTH = 1 - 1e-9
"""Width from which a cell is all of (0, 1): that of a constant, or of the number of a row at an atom or missing."""
MIN_PROBABILITY = 1e-12
"""Minimum distance of a uniform point of a cell from 0 and 1, so that its normal quantile stays within +-7.04."""
REACH = 3.0
"""Largest distance of the mean of a truncated normal distribution from its interval, in standard deviations."""
LOG_2PI = math.log(2 * math.pi)


class CellNoise(DataInitialized):
    """Distribution of points in cells, given the exact numbers of a row and the other cells.

    All features are taken to be thresholded or rounded values of one Gaussian, as in a Gaussian copula. Points of cells
    are drawn one after the other, each from a normal distribution given the features before, truncated to its cell (the
    sampler of Geweke, Hajivassiliou and Keane). Uniform points of a cell are independent of all other features, which
    weakens the correlations that a flow sees.

    `estimate_moments` sets mean and covariance by stochastic expectation maximisation: it alternates between drawing
    each point given all other features (Gibbs sampling) and the moments of the points.

    Arguments:
        exact: Positions of the features that are exact numbers.
        cells: Positions of the features that have cells.
        independent: Positions of those among them whose points are uniform, such as categories without an order.

    Example:
        >>> noise = CellNoise(exact=[0], cells=[1])
        >>> x = torch.randn(2000, 1).double()
        >>> width = torch.full((2000, 1), 0.5).double()
        >>> noise.estimate_moments(x, (x > 0) * 0.5, width)  # the second feature has the sign of the first
        >>> bool(noise.covariance[0, 1] > 0.9)
        True
        >>> z, log_density = noise.draw(x, (x > 0) * 0.5, width, torch.rand(2000, 1).double())
        >>> z.shape, log_density.shape, bool(((z > 0) == (x > 0)).all())
        (torch.Size([2000, 1]), torch.Size([2000]), True)
    """

    mean: Tensor
    covariance: Tensor

    def __init__(self, exact: Sequence[int], cells: Sequence[int], independent: Sequence[int] = ()) -> None:
        super().__init__()
        self.exact, self.cells = list(exact), list(cells)
        self.correlated = [position not in set(independent) for position in self.cells]
        features = len(self.exact) + len(self.cells)
        # In the order of the exact features, then those with cells.
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("covariance", torch.eye(features))
        self.register_load_state_dict_post_hook(_check_covariance)

    @torch.no_grad()
    def estimate_moments(self, exact: Tensor, low: Tensor, width: Tensor) -> None:
        """Set mean and covariance from rows: see `elflow.flows.dequantization.Cells`; does nothing if they are set."""
        if self.initialized or len(low) < 2:
            return
        generator = torch.Generator().manual_seed(0)
        n_rows = min(MAX_ROWS, max(2, MAX_NUMBERS // len(self.mean)))
        index = torch.randperm(len(low), generator=generator)[:n_rows]
        exact, low, width = (part.cpu().double()[index] for part in (exact, low, width))
        ends = _find_ends(low, width)
        is_wide = self._find_wide(width)
        # Cells of (0, 1) are those of a standard normal distribution. With few of them, its moments are not determined.
        is_standard = torch.cat([torch.zeros(exact.shape[1]), (width > 0).double().mean(0)]) > 0.5
        is_free = torch.cat([torch.zeros_like(exact, dtype=torch.bool), width >= FREE_WIDTH], 1)
        noise = torch.rand(low.shape, generator=generator, dtype=torch.double)
        z = torch.cat([exact, draw_uniform(low, width, noise)[0]], 1)
        moments = []
        for _ in range(N_SWEEPS):
            mean, covariance = _estimate_moments(z, is_standard, is_free)
            moments.append((mean, covariance))
            precision = torch.linalg.inv(covariance)
            for k in is_wide.any(0).nonzero()[:, 0].tolist():
                t = len(self.exact) + k
                scale = precision[t, t].rsqrt()
                centre = z[:, t] - (z - mean) @ precision[t] * scale**2
                noise = torch.rand(len(z), generator=generator, dtype=torch.double)
                drawn = draw_truncated(centre, scale, ends[0][:, k], ends[1][:, k], noise)[0]
                z[:, t] = torch.where(is_wide[:, k], drawn, z[:, t])
        means, covariances = zip(*moments[-N_AVERAGED:], strict=True)
        self.mean.copy_(torch.stack(means).mean(0))
        self.covariance.copy_(_shrink(torch.stack(covariances).mean(0), SHRINKAGE))
        self.initialized.fill_(True)

    @torch.no_grad()
    def draw(
        self, exact: Tensor, low: Tensor, width: Tensor, noise: Tensor, skipped: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Points of cells, `(..., C)`, and the log-density of those that are drawn, `(...)`.

        Arguments:
            exact: Exact numbers, `(..., E)`.
            low: Lower ends of the cells, `(..., C)`.
            width: Their widths, `(..., C)`.
            noise: Uniform numbers in (0, 1), which broadcast to `(..., C)`.
            skipped: Position of a feature on which the others do not depend, for instance since it is not known.
        """
        shape = torch.broadcast_shapes(noise.shape, low.shape)
        noise, low, width = (part.expand(shape) for part in (noise, low, width))
        positions = [*self.exact, *self.cells]
        kept = [i for i, position in enumerate(positions) if position != skipped]
        n_exact = sum(i < len(self.exact) for i in kept)
        mean = self.mean.to(low)[kept]
        factor = torch.linalg.cholesky(self.covariance.to(low)[kept][:, kept])
        known = exact.to(low)[..., kept[:n_exact]] - mean[:n_exact]
        scaled = low.new_zeros(*shape[:-1], len(kept))
        scaled[..., :n_exact] = torch.linalg.solve_triangular(
            factor[:n_exact, :n_exact].T, known, upper=True, left=False
        )
        z, log_uniform = draw_uniform(low, width, noise)
        lower, upper = _find_ends(low, width)
        is_wide = self._find_wide(width)
        has_wide = is_wide.reshape(-1, is_wide.shape[-1]).any(0).tolist()
        log_density = torch.where(is_wide, 0.0, log_uniform).sum(-1)
        for t, i in enumerate(kept[n_exact:], start=n_exact):
            k = i - len(self.exact)
            centre = mean[t] + scaled[..., :t] @ factor[t, :t]
            if has_wide[k]:
                drawn, log_drawn = draw_truncated(centre, factor[t, t], lower[..., k], upper[..., k], noise[..., k])
                z[..., k] = torch.where(is_wide[..., k], drawn, z[..., k])
                log_density = log_density + torch.where(is_wide[..., k], log_drawn, 0.0)
            scaled[..., t] = (z[..., k] - centre) / factor[t, t]
        return z, log_density

    def _find_wide(self, width: Tensor) -> Tensor:
        """Whether points of cells are correlated with other features, in the shape of the widths."""
        return (width >= MIN_WIDTH) & torch.tensor(self.correlated, device=width.device)


def draw_uniform(low: Tensor, width: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Uniform points of cells, as normal quantiles for those of (0, 1), and their log-densities; 0 where z is known."""
    is_linear = width <= 0
    # Values of the other branch are replaced before ndtri, which must not see numbers outside (0, 1).
    u = torch.where(is_linear, 0.5, low + width * noise).clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    z = torch.where(is_linear, low - width * noise, torch.special.ndtri(u))
    volume = torch.where(width == 0, 1.0, width.abs())
    return z, -volume.log() - torch.where(is_linear, 0.0, z.square() / 2 + LOG_2PI / 2)


def _find_ends(low: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Ends of wide cells of (0, 1) as normal quantiles; any for other cells."""
    is_wide = width >= MIN_WIDTH
    lower = torch.where(is_wide, low, 0.25).clamp(0.0, 1.0)
    upper = torch.where(is_wide, low + width, 0.75).clamp(0.0, 1.0)
    return torch.special.ndtri(lower), torch.special.ndtri(upper)


def _estimate_moments(z: Tensor, is_standard: Tensor, is_free: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of points `(N, features)` with shrunk correlations; some have mean 0 and variance 1.

    Points of free cells do not count: they were drawn from the moments themselves, and nothing else would determine the
    correlation of two features of which one is always free. The products of the other points are those of all points
    with zeros in place of free ones, so that the matrix stays positive definite.
    """
    is_known = (~is_free).to(z)
    n_known = is_known.sum(0).clamp(min=1)
    mean = (z * is_known).sum(0) / n_known
    centred = (z - mean) * is_known
    deviation = (centred.square().sum(0) / n_known).clamp(min=1e-6).sqrt()
    products = centred.T @ centred / len(z)
    spread = products.diagonal().clamp(min=1e-12).sqrt()
    correlation = products / spread[:, None] / spread
    correlation.fill_diagonal_(1.0)
    deviation = torch.where(is_standard, 1.0, deviation)
    covariance = deviation[:, None] * correlation * deviation
    return torch.where(is_standard, 0.0, mean), _shrink(covariance, SWEEP_SHRINKAGE)


def _shrink(covariance: Tensor, shrinkage: float) -> Tensor:
    """Covariance `(features, features)` with shrunk correlations."""
    return (1 - shrinkage) * covariance + (shrinkage * covariance.diagonal() + 1e-6).diag()


def _check_covariance(noise: nn.Module, _: object) -> None:
    """Raise an error for moments that are not those of a distribution, as in a damaged file."""
    covariance = cast(CellNoise, noise).covariance
    if covariance.is_meta:
        return
    covariance = covariance.double().cpu()
    if not torch.equal(covariance, covariance.T) or torch.linalg.cholesky_ex(covariance).info.item() != 0:
        raise ValueError("the covariance of Gaussian dequantisation must be symmetric and positive definite")


def draw_truncated(mean: Tensor, scale: Tensor, lower: Tensor, upper: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Points of normal distributions that are truncated to intervals, and their log-densities.

    A mean that is far outside of the interval is moved closer to it, so that the interval has a probability.

    Arguments:
        mean: Means.
        scale: Standard deviations.
        lower: Lower ends of the intervals; minus infinity for none.
        upper: Upper ends of the intervals; infinity for none.
        noise: Uniform numbers in (0, 1). All arguments broadcast.

    Example:
        >>> mean, scale, lower, upper = torch.tensor([[0.0], [1.0], [1.0], [2.0]]).double()
        >>> z, log_density = draw_truncated(mean, scale, lower, upper, torch.tensor([0.001, 0.999]).double())
        >>> z
        tensor([1.0006, 1.9975], dtype=torch.float64)
    """
    mean = torch.minimum(torch.maximum(mean, lower - REACH * scale), upper + REACH * scale)
    a, b = (lower - mean) / scale, (upper - mean) / scale
    flip = a > -b  # the left tail has more digits
    a, b, noise = torch.where(flip, -b, a), torch.where(flip, -a, b), torch.where(flip, 1 - noise, noise)
    below, mass = torch.special.ndtr(a), (torch.special.ndtr(b) - torch.special.ndtr(a)).clamp(min=1e-300)
    x = torch.special.ndtri((below + mass * noise).clamp(1e-300, 1 - 1e-16))
    x = torch.minimum(torch.maximum(x, a), b)
    log_density = -x.square() / 2 - LOG_2PI / 2 - mass.log() - torch.log(scale)
    return mean + scale * torch.where(flip, -x, x), log_density
