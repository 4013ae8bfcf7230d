"""Cumulative distributions of one feature from few evaluations, for densities that are smooth along the feature.

The first nodes are placed with the Gaussians of a mixture. Between them, the log-density is interpolated by cubic
polynomials. New nodes divide the intervals that contribute most to the error, and measure it. Rows in which the error
stays large, because the density has narrow peaks for instance, are left to `elflow.tabular.integrals._integration`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from elflow.tabular._arrays import BoolArray, FloatArray, IntArray

__all__ = ["MAX_ERROR", "MAX_ROUNDS", "N_NEW", "N_PIECES", "NewNodes", "QuickIntegrator"]

SPREAD_NODES = np.array([-6.5, -4.5, -3.2, -2.3, -1.5, -0.8, -0.25, 0.25, 0.8, 1.5, 2.3, 3.2, 4.5, 6.5])
"""First nodes, in standard deviations from the mean of the Gaussians along the feature."""
PEAK_NODES = np.array([-1.2, 0.0, 1.2])
"""First nodes at the most likely Gaussian, in its standard deviations."""
N_NEW = 8
"""Number of new nodes of a row in each round."""
MAX_ERROR = 0.006
"""Maximum error of a cumulative distribution before the last round; the nodes of that round divide it by four or so."""
MAX_ROUNDS = 6
"""Maximum number of rounds of new nodes."""
MIN_DISTANCE = 0.2
"""Minimum distance of a new node to the ends of its interval, relative to the width."""
N_PIECES = 6
"""Number of pieces of an interval between nodes in which the interpolated log-density is linear."""
MIN_SCALE = 0.01
"""Smallest standard deviation of a Gaussian along the feature, relative to that of all, that the nodes resolve."""
MAX_DROP = 700.0
"""Difference from the largest log-density below which densities do not count."""


class NewNodes(NamedTuple):
    """New nodes of N rows, at most one in each interval between nodes."""

    points: FloatArray
    """The nodes in increasing order, `(N, N_NEW)`."""
    mass: FloatArray
    """Estimated probabilities of their intervals, `(N, N_NEW)`."""


class QuickIntegrator:
    """Interpolated log-density of N rows along one feature.

    Arguments:
        mean: Means of Gaussians along the feature, `(N, K)`.
        scale: Their standard deviations, `(N, K)`.
        share: Their weights in each row, `(N, K)`.
        z_range: Range of the feature.
    """

    def __init__(self, mean: FloatArray, scale: FloatArray, share: FloatArray, z_range: tuple[float, float]) -> None:
        low, high = z_range
        centre = (share * mean).sum(1, keepdims=True)
        spread = np.sqrt((share * (scale**2 + (mean - centre) ** 2)).sum(1, keepdims=True))
        best = share.argmax(1)[:, None]
        best_mean, best_scale = (np.take_along_axis(array, best, 1) for array in (mean, scale))
        self.is_smooth: BoolArray = (scale > MIN_SCALE * spread).all(1, where=share > 1e-4) & np.isfinite(spread[:, 0])
        nodes = np.concatenate([centre + spread * SPREAD_NODES, best_mean + best_scale * PEAK_NODES], 1)
        ends = np.broadcast_to(np.array([low, high]), (len(mean), 2))
        self.nodes = np.sort(np.clip(np.concatenate([nodes, ends], 1), low, high), 1)
        self.log_density: FloatArray | None = None

    def set_values(self, log_density: FloatArray) -> None:
        """Set the log-densities at the first nodes, `(N, K)`."""
        self.log_density = _limit(log_density)

    def choose_nodes(self, knots: FloatArray, cumulative: FloatArray) -> NewNodes:
        """New nodes in the middle of the probability of the intervals that contribute most to the error.

        A cubic polynomial is off by about the third power of the width, relative to a density whose curvature changes.
        The error of an interval is therefore its probability times the third power of its width.

        Arguments:
            knots: The knots of `refine`, `(N, M)`.
            cumulative: Cumulative distribution at the knots, `(N, M)`.
        """
        at_nodes, width = cumulative[:, ::N_PIECES], np.diff(self.nodes, axis=1)
        mass = np.diff(at_nodes, axis=1)
        chosen = np.sort(np.argpartition(-mass * width**3, N_NEW, axis=1)[:, :N_NEW], 1)
        left, width, mass = (np.take_along_axis(array, chosen, 1) for array in (self.nodes, width, mass))
        levels = np.take_along_axis(at_nodes, chosen, 1) + mass / 2
        middle = np.stack([np.interp(*row) for row in zip(levels, cumulative, knots, strict=True)])
        return NewNodes(np.clip(middle, left + MIN_DISTANCE * width, left + (1 - MIN_DISTANCE) * width), mass)

    def add(self, new: NewNodes, log_density: FloatArray) -> FloatArray:
        """Add nodes with their log-densities, `(N, N_NEW)`.

        Returns:
            The largest error of the cumulative distribution without these nodes, `(N,)`: the relative error of the
            interpolated density at each node is that of its interval.
        """
        assert self.log_density is not None
        predicted = interpolate_log_density(new.points, self.nodes, self.log_density)
        error = np.expm1(np.clip(log_density - predicted, -50, 50)) * new.mass
        order = np.argsort(merged := np.concatenate([self.nodes, new.points], 1), 1, kind="stable")
        self.nodes = np.take_along_axis(merged, order, 1)
        values = np.concatenate([self.log_density, log_density], 1)
        self.log_density = _limit(np.take_along_axis(values, order, 1))
        return np.asarray(np.abs(np.cumsum(error, 1)).max(1), np.float64)

    def take(self, rows: IntArray) -> QuickIntegrator:
        """The integrator of some rows."""
        part = object.__new__(QuickIntegrator)
        part.nodes = self.nodes[rows]
        part.log_density = None if self.log_density is None else self.log_density[rows]
        part.is_smooth = self.is_smooth[rows]
        return part

    def refine(self) -> tuple[FloatArray, FloatArray]:
        """Closely spaced knots, `(N, M)`, and the interpolated log-density at them."""
        assert self.log_density is not None
        steps = np.arange(N_PIECES) / N_PIECES
        inner = self.nodes[:, :-1, None] + np.diff(self.nodes, axis=1)[..., None] * steps
        knots = np.concatenate([inner.reshape(len(self.nodes), -1), self.nodes[:, -1:]], 1)
        slopes = _estimate_slopes(self.nodes, self.log_density)
        width = np.diff(self.nodes, axis=1)[..., None]
        left, right = self.log_density[:, :-1, None], self.log_density[:, 1:, None]
        values = _hermite(steps, width, left, right, slopes[:, :-1, None], slopes[:, 1:, None])
        return knots, np.concatenate([values.reshape(len(self.nodes), -1), self.log_density[:, -1:]], 1)


def interpolate_log_density(points: FloatArray, nodes: FloatArray, log_density: FloatArray) -> FloatArray:
    """Cubic interpolation of the log-densities of each row at points `(N, K)`.

    Example:
        >>> nodes = np.linspace(-3, 3, 13)[None]
        >>> points = np.array([[0.3, 1.1]])
        >>> bool(np.allclose(interpolate_log_density(points, nodes, -(nodes**2) / 2), -(points**2) / 2, atol=0.01))
        True
    """
    index = np.stack([np.searchsorted(row, x, side="right") - 1 for row, x in zip(nodes, points, strict=True)])
    index = np.clip(index, 0, nodes.shape[1] - 2)
    slopes = _estimate_slopes(nodes, log_density)
    (x0, x1), (y0, y1), (d0, d1) = (
        (np.take_along_axis(array, index, 1), np.take_along_axis(array, index + 1, 1))
        for array in (nodes, log_density, slopes)
    )
    width = x1 - x0
    share = np.where(width > 0, (points - x0) / np.where(width > 0, width, 1.0), 0.0)
    return _hermite(share, width, y0, y1, d0, d1)


def _hermite(
    share: FloatArray, width: FloatArray, y0: FloatArray, y1: FloatArray, d0: FloatArray, d1: FloatArray
) -> FloatArray:
    """Cubic polynomials with values y and slopes d at the ends of intervals, at shares of their widths."""
    rest = 1 - share
    cubic = share * rest * (width * (d0 * rest - d1 * share) + (y1 - y0) * (share - rest))
    return y0 * rest + y1 * share + cubic


def _estimate_slopes(x: FloatArray, y: FloatArray) -> FloatArray:
    """Slopes at nodes `(N, K)`: those of parabolas, limited where the values are monotone so that they stay so."""
    width = np.diff(x, axis=1)
    secant = np.where(width > 0, np.diff(y, axis=1) / np.where(width > 0, width, 1.0), 0.0)
    left, right, before, after = secant[:, :-1], secant[:, 1:], width[:, :-1], width[:, 1:]
    total = before + after
    parabola = np.where(total > 0, (left * after + right * before) / np.where(total > 0, total, 1.0), 0.0)
    limit = 3 * np.minimum(np.abs(left), np.abs(right))
    inner = np.where(left * right > 0, np.clip(parabola, -limit, limit), parabola)
    # Where a node is repeated, its parabola is that of one secant.
    inner = np.where(before > 0, inner, right)
    inner = np.where(after > 0, inner, left)
    return np.concatenate([secant[:, :1], inner, secant[:, -1:]], 1)


def _limit(log_density: FloatArray) -> FloatArray:
    """Log-densities that are finite: those far below the largest are raised."""
    finite = np.where(np.isfinite(log_density), log_density, -np.inf)
    highest = finite.max(1, keepdims=True, initial=-1e300)
    return np.maximum(finite, highest - MAX_DROP)
