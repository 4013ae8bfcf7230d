"""Increasing maps of one column: `Warp` makes a continuous column about normal, `Steps` assigns cells to integers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, log_expit, logit

from elflow.tabular._arrays import FloatArray, IntArray

__all__ = ["Steps", "Warp"]

MAX_WARP_ROWS = 20_000
"""Maximum number of values that a warp is selected on."""
MAX_SINGLE_CELLS = 512
"""Maximum number of distinct integers that each have a separate probability; more of them are binned."""
N_BINS = 128
"""Approximate number of bins where integers are binned."""
MAX_DISTANCE = 2**61
"""Distance from the fitted range beyond which all integers share the width of their cells."""
NORMAL_IQR = 1.349
"""Interquartile range of the standard normal distribution."""
BASES = ["identity", "log", "softplus", "logit"]
"""Names of the maps b of a `Warp`."""


@dataclass(frozen=True)
class Warp:
    """Smooth increasing map z = t((b(x) - loc) / scale) of a continuous column.

    b maps the bounds of the column to infinity: the logit with two bounds, the logarithm or the inverse of softplus
    with one, the identity without bounds. t shortens heavy tails by asinh where that increases the likelihood, and is
    the identity otherwise.

    Example:
        >>> x = np.random.default_rng(0).lognormal(size=1000)
        >>> warp = Warp.fit(x, [(-np.inf, np.inf), (0.0, np.inf)])
        >>> z, log_slope = warp(x)
        >>> warp.base, bool(np.allclose(warp.inverse(z), x))
        ('log', True)
    """

    base: str
    """Name of b, one of `BASES`."""
    low: float
    """Lower bound of x, possibly minus infinity."""
    high: float
    """Upper bound of x, possibly infinity."""
    unit: float
    """Unit in which b measures distances from a bound."""
    pad: float
    """Added to distances from a bound, so that a value on the bound has a finite z."""
    loc: float
    scale: float
    heavy: bool
    """Whether t is asinh."""
    first: float = 0.0
    """Smallest z of the fitted values."""
    last: float = 0.0
    """Largest z of the fitted values."""

    @classmethod
    def fit(cls, x: FloatArray, bounds: list[tuple[float, float]]) -> Warp:
        """Select the map under which x has the highest Gaussian likelihood.

        Arguments:
            x: Values, `(N,)`.
            bounds: Candidates for the bounds `(low, high)`.
        """
        sample = x if len(x) <= MAX_WARP_ROWS else x[np.linspace(0, len(x) - 1, MAX_WARP_ROWS).astype(int)]
        candidates = [
            cls._standardize(sample, base, low, high, heavy)
            for low, high in bounds
            for base in _bases_for(low, high)
            for heavy in (False, True)
        ]
        best = max(candidates, key=lambda warp: warp._gaussian_log_likelihood(sample))
        z = best(x)[0]
        return replace(best, first=float(z.min()), last=float(z.max()))

    @classmethod
    def _standardize(cls, x: FloatArray, base: str, low: float, high: float, heavy: bool) -> Warp:
        """Warp that maps the median to 0 and the quartiles to those of a standard normal distribution."""
        distance = np.minimum(x - low, high - x)
        unit, pad = 1.0, 0.0
        if base != "identity":
            unit = high - low if base == "logit" else float(np.median(distance)) or float(distance.mean()) or 1.0
            positive = distance[distance > 0]
            touching = len(positive) < len(distance) and len(positive) > 0
            pad = max(float(positive.min()) / (2 * unit), 1e-6) if touching else 1e-9
        y = cls(base, low, high, unit, min(pad, 0.01), 0.0, 1.0, False)(x)[0]
        median = float(np.median(y))
        ranges = [np.quantile(y, 1 - tail) - np.quantile(y, tail) for tail in (0.25, 0.1, 0.02, 0.0)]
        # Half of y may be one value: its interquartile range is then 0, and wider ranges are tried.
        scale = next((r for r in ranges if r > 1e-12 * np.abs(y).max()), NORMAL_IQR) / NORMAL_IQR
        return cls(base, low, high, unit, min(pad, 0.01), median, float(scale), heavy)

    def _gaussian_log_likelihood(self, x: FloatArray) -> float:
        """Mean log-likelihood of x if z were normal with the standard deviation of its values, up to a constant."""
        z, log_slope = self(x)
        return float(log_slope.mean() - np.log(z.std() + 1e-300))

    def __call__(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Map x within the bounds to z, and return log dz/dx as well."""
        y, log_slope = self._unbound(x)
        z = (y - self.loc) / self.scale
        log_slope = log_slope - np.log(self.scale)
        if self.heavy:
            log_slope = log_slope - np.log(np.hypot(1.0, z))
            z = np.arcsinh(z)
        return z, log_slope

    def inverse(self, z: FloatArray) -> FloatArray:
        """Map z to x, which is finite and within the bounds."""
        # Clipped before sinh and exp overflow: samples far out in the tails stay finite.
        z = np.sinh(np.clip(z, -700, 700)) if self.heavy else z
        y = np.clip(z * self.scale + self.loc, -1e300, 1e300)
        if self.base == "identity":
            return y
        if self.base == "logit":
            share = (expit(y) - self.pad) / (1 - 2 * self.pad)
            return np.clip(self.low + self.unit * share, self.low, self.high)
        y = y * self._sign
        distance = np.exp(np.minimum(y, 600.0)) if self.base == "log" else np.logaddexp(0.0, y)
        distance = np.maximum(distance - self.pad, 0.0) * self.unit
        return self.low + distance if self._sign > 0 else self.high - distance

    def _unbound(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Map x to b(x), and return log db/dx as well."""
        if self.base == "identity":
            return x, np.zeros_like(x)
        if self.base == "logit":
            y = logit(self.pad + (1 - 2 * self.pad) * (x - self.low) / self.unit)
            return y, np.log((1 - 2 * self.pad) / self.unit) - log_expit(y) - log_expit(-y)
        distance = (x - self.low if self._sign > 0 else self.high - x) / self.unit + self.pad
        if self.base == "log":
            return self._sign * np.log(distance), -np.log(distance * self.unit)
        rest = np.log(-np.expm1(-distance))  # the inverse of softplus is d + log(1 - exp(-d))
        return self._sign * (distance + rest), -rest - np.log(self.unit)

    @property
    def _sign(self) -> int:
        """-1 with an upper bound only, from which distances are then measured; 1 otherwise."""
        return 1 if np.isfinite(self.low) else -1

    def to_dict(self) -> dict[str, Any]:
        """Configuration for JSON; `from_dict` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Warp:
        """Build a warp from the output of `to_dict`."""
        warp = cls(**state)
        if warp.base not in BASES or not (0 < warp.scale < np.inf and 0 < warp.unit < np.inf):
            raise ValueError(
                f"a warp must have a base of {BASES} and a positive scale and unit, got the base {warp.base!r}, "
                f"the scale {warp.scale} and the unit {warp.unit}"
            )
        return warp


def _bases_for(low: float, high: float) -> list[str]:
    """Names of the maps b that suit these bounds."""
    n_bounds = int(np.isfinite(low)) + int(np.isfinite(high))
    return [["identity"], ["log", "softplus"], ["logit"]][n_bounds]


@dataclass(frozen=True)
class Steps:
    """Partition of (0, 1) into one cell per integer, in order, with widths proportional to frequencies.

    The cumulative distribution is linear between `edges`. An edge is an integer, and the cell of an integer k is the
    image of [k, k + 1). Integers outside the fitted range have narrow cells, whose widths fall with the distance.

    Example:
        >>> steps = Steps.fit(np.array([0, 0, 0, 1]))
        >>> low, width = steps.encode(np.array([0, 1, 7]))
        >>> width.round(3)
        array([0.591, 0.227, 0.003])
        >>> steps.decode(low[:2] + width[:2] / 2)
        array([0, 1])
    """

    edges: IntArray
    """Increasing integers, `(K,)`."""
    cumulative: FloatArray
    """Cumulative probability below each edge, `(K,)`."""

    @classmethod
    def fit(cls, values: IntArray) -> Steps:
        """Estimate the cumulative distribution of integers, `(N,)`.

        Smoothing: half a count is spread over the fitted range, and one count over all integers outside it.
        """
        distinct, counts = np.unique(values, return_counts=True)
        single = distinct
        edges = distinct[:1]
        if len(distinct) > MAX_SINGLE_CELLS:
            single = distinct[counts > len(values) / (2 * N_BINS)]
            edges = distinct[np.linspace(0, len(distinct) - 1, N_BINS).astype(int)]
        edges = np.unique(np.concatenate([edges, single, single + 1, distinct[:1], distinct[-1:] + 1]))
        lengths = np.diff(edges).astype(np.float64)
        mass = np.add.reduceat(counts, np.searchsorted(distinct, edges[:-1]).clip(max=len(counts) - 1)).astype(float)
        # reduceat takes one element where a bin is empty
        mass[np.searchsorted(distinct, edges[:-1]) == np.searchsorted(distinct, edges[1:])] = 0.0
        mass += 0.5 * lengths / lengths.sum()
        total = mass.sum() + 1.0
        return cls(edges, (0.5 + np.concatenate([[0.0], np.cumsum(mass)])) / total)

    def encode(self, values: IntArray) -> tuple[FloatArray, FloatArray]:
        """Lower end and width of the cell of each integer, `(N,)` both."""
        first, last = int(self.edges[0]), int(self.edges[-1])
        values = np.clip(
            values, max(first - MAX_DISTANCE, -MAX_DISTANCE * 2), min(last + MAX_DISTANCE, MAX_DISTANCE * 2)
        )
        bins = np.clip(np.searchsorted(self.edges, values, side="right") - 1, 0, len(self.edges) - 2)
        slopes = np.diff(self.cumulative) / np.diff(self.edges)
        low = self.cumulative[bins] + (values - self.edges[bins]) * slopes[bins]
        width = slopes[bins]
        span = float(last - first)
        below, above = np.maximum(first - values, 1.0), np.maximum(values - last, 0.0)
        left, right = self.cumulative[0] * span, (1 - self.cumulative[-1]) * span
        low = np.where(values < first, left / (span + below), low)
        low = np.where(values >= last, 1 - right / (span + above), low)
        width = np.where(values < first, left / ((span + below) * (span + below - 1)), width)
        width = np.where(values >= last, right / ((span + above) * (span + above + 1)), width)
        return low, np.maximum(width, 1e-300)  # far out the width underflows, and its logarithm must stay finite

    def decode(self, u: FloatArray) -> IntArray:
        """Integers whose cells contain u, `(N,)`; u outside the fitted range gives the nearest end of that range."""
        bins = np.clip(np.searchsorted(self.cumulative, u, side="right") - 1, 0, len(self.edges) - 2)
        share = (u - self.cumulative[bins]) / (self.cumulative[bins + 1] - self.cumulative[bins])
        lengths = (self.edges[bins + 1] - self.edges[bins]).astype(np.int64)
        inside = np.floor(np.clip(share, 0, 1) * lengths).astype(np.int64)
        return self.edges[bins] + np.minimum(inside, lengths - 1)

    def __post_init__(self) -> None:
        rising = (np.diff(self.edges) > 0).all() and (np.diff(self.cumulative) > 0).all()
        if len(self.edges) != len(self.cumulative) or len(self.edges) < 2 or not rising:
            raise ValueError("edges and cumulative must increase and have the same length of at least 2")

    def to_dict(self) -> dict[str, Any]:
        """Configuration for JSON; `from_dict` reads it."""
        return {"edges": self.edges.tolist(), "cumulative": self.cumulative.tolist()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Steps:
        """Build steps from the output of `to_dict`."""
        return cls(np.array(state["edges"], np.int64), np.array(state["cumulative"], np.float64))
