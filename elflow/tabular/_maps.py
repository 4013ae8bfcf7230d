"""Increasing maps of one column: `Warp` makes continuous numbers look normal, `Steps` gives integers their cells."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, logit

__all__ = ["Floats", "Ints", "Steps", "Warp"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SAMPLE = 20_000
"""How many values a warp is chosen from."""
OWN_CELLS = 512
"""Up to how many distinct integers have each a probability of their own."""
FARTHEST = 2**61
"""Beyond this distance all integers are equally far."""
BINS = 128
"""Into about how many bins other integers fall."""


@dataclass(frozen=True)
class Warp:
    """A smooth map z = t((b(x) - loc) / scale) of a continuous column.

    b sends the bounds to infinity: it is the logit between two bounds, the logarithm or the inverse of softplus beside
    one, and the identity without any. t is asinh where it pays, which draws in heavy tails, or else the identity.
    """

    base: str
    low: float
    high: float
    unit: float
    pad: float
    loc: float
    scale: float
    heavy: bool
    first: float = 0.0
    """The least z that was seen."""
    last: float = 0.0
    """The greatest."""

    @classmethod
    def fit(cls, x: Floats, bounds: list[tuple[float, float]]) -> Warp:
        """Of the maps with any of these bounds, the one under which x looks most like a Gaussian, by its likelihood."""
        some = x if len(x) <= SAMPLE else x[np.linspace(0, len(x) - 1, SAMPLE).astype(int)]
        candidates = [
            cls._scaled(some, base, low, high, heavy)
            for low, high in bounds
            for base in _bases(low, high)
            for heavy in (False, True)
        ]
        best = max(candidates, key=lambda warp: warp._gaussian_likelihood(some))
        z = best(x)[0]
        return replace(best, first=float(z.min()), last=float(z.max()))

    @classmethod
    def _scaled(cls, x: Floats, base: str, low: float, high: float, heavy: bool) -> Warp:
        """With the median at 0 and the quartiles where a Gaussian has them."""
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
        scale = next((r for r in ranges if r > 1e-12 * np.abs(y).max()), 1.349) / 1.349  # half of y may be equal
        return cls(base, low, high, unit, min(pad, 0.01), median, float(scale), heavy)

    def _gaussian_likelihood(self, x: Floats) -> float:
        z, log_slope = self(x)
        return float(log_slope.mean() - np.log(z.std() + 1e-300))

    def __call__(self, x: Floats) -> tuple[Floats, Floats]:
        """z, and the logarithm of dz/dx. x must lie within the bounds."""
        y, log_slope = self._open(x)
        z = (y - self.loc) / self.scale
        log_slope = log_slope - np.log(self.scale)
        if self.heavy:
            log_slope = log_slope - np.log(np.hypot(1.0, z))
            z = np.arcsinh(z)
        return z, log_slope

    def inverse(self, z: Floats) -> Floats:
        """x, within the bounds and finite."""
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

    def _open(self, x: Floats) -> tuple[Floats, Floats]:
        """b(x), and the logarithm of db/dx."""
        if self.base == "identity":
            return x, np.zeros_like(x)
        if self.base == "logit":
            y = logit(self.pad + (1 - 2 * self.pad) * (x - self.low) / self.unit)
            return y, np.log((1 - 2 * self.pad) / self.unit) - log_expit(y) - log_expit(-y)
        distance = (x - self.low if self._sign > 0 else self.high - x) / self.unit + self.pad
        if self.base == "log":
            return self._sign * np.log(distance), -np.log(distance * self.unit)
        rest = np.log(-np.expm1(-distance))
        return self._sign * (distance + rest), -rest - np.log(self.unit)

    @property
    def _sign(self) -> int:
        """-1 where the only bound is the upper one, from which distances are then measured."""
        return 1 if np.isfinite(self.low) else -1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Warp:
        warp = cls(**state)
        if warp.base not in BASES or not (0 < warp.scale < np.inf and 0 < warp.unit < np.inf):
            raise ValueError(f"a warp must have a base of {BASES} and a positive scale and unit")
        return warp


BASES = ["identity", "log", "softplus", "logit"]


def _bases(low: float, high: float) -> list[str]:
    bounded = int(np.isfinite(low)) + int(np.isfinite(high))
    return [["identity"], ["log", "softplus"], ["logit"]][bounded]


@dataclass(frozen=True)
class Steps:
    """Cells of (0, 1), one for each integer, as wide as the integer is frequent and in the same order.

    The cumulative distribution is linear between `edges`, which are integers, so that an integer has the width of the
    unit cell to its right. Integers that were not seen have narrow cells, the narrower the farther out.
    """

    edges: Ints
    cumulative: Floats

    @classmethod
    def fit(cls, values: Ints) -> Steps:
        """Bins of these integers; half a count is spread over all bins, and one over what lies outside."""
        distinct, counts = np.unique(values, return_counts=True)
        own = distinct
        edges = distinct[:1]
        if len(distinct) > OWN_CELLS:
            own = distinct[counts > len(values) / (2 * BINS)]
            edges = distinct[np.linspace(0, len(distinct) - 1, BINS).astype(int)]
        edges = np.unique(np.concatenate([edges, own, own + 1, distinct[:1], distinct[-1:] + 1]))
        lengths = np.diff(edges).astype(np.float64)
        mass = np.add.reduceat(counts, np.searchsorted(distinct, edges[:-1]).clip(max=len(counts) - 1)).astype(float)
        mass[np.searchsorted(distinct, edges[:-1]) == np.searchsorted(distinct, edges[1:])] = 0.0
        mass += 0.5 * lengths / lengths.sum()
        total = mass.sum() + 1.0
        return cls(edges, (0.5 + np.concatenate([[0.0], np.cumsum(mass)])) / total)

    def cells(self, values: Ints) -> tuple[Floats, Floats]:
        """The lower end and the width of each cell."""
        first, last = int(self.edges[0]), int(self.edges[-1])
        values = np.clip(values, max(first - FARTHEST, -FARTHEST * 2), min(last + FARTHEST, FARTHEST * 2))
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
        return low, np.maximum(width, 1e-300)

    def values(self, u: Floats) -> Ints:
        """The integers whose cells hold these numbers of (0, 1); those outside of what was seen are its ends."""
        bins = np.clip(np.searchsorted(self.cumulative, u, side="right") - 1, 0, len(self.edges) - 2)
        share = (u - self.cumulative[bins]) / (self.cumulative[bins + 1] - self.cumulative[bins])
        lengths = (self.edges[bins + 1] - self.edges[bins]).astype(np.int64)
        inside = np.floor(np.clip(share, 0, 1) * lengths).astype(np.int64)
        return self.edges[bins] + np.minimum(inside, lengths - 1)

    def __post_init__(self) -> None:
        rising = (np.diff(self.edges) > 0).all() and (np.diff(self.cumulative) > 0).all()
        if len(self.edges) != len(self.cumulative) or len(self.edges) < 2 or not rising:
            raise ValueError("edges and what lies below them must rise")

    def to_dict(self) -> dict[str, Any]:
        return {"edges": self.edges.tolist(), "cumulative": self.cumulative.tolist()}

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Steps:
        return cls(np.array(state["edges"], np.int64), np.array(state["cumulative"], np.float64))
