"""`Warp`: an increasing map that makes a continuous column about normal."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, log_ndtr, ndtri_exp

from elflow.tabular._arrays import BoolArray, FloatArray
from elflow.tabular.columns._clusters import find_cluster_knots, interpolate_linearly
from elflow.tabular.columns._scales import MAX_FLOAT, robust_scale

__all__ = ["Warp"]

MAX_WARP_ROWS = 20_000
"""Maximum number of values that a warp is selected on."""
BASES = ["identity", "asinh", "log", "softplus", "weibull", "logit", "clusters"]
"""Names of the maps b of a `Warp`."""
LOGARITHMS = ("asinh", "log")
"""Those whose inverse grows exponentially."""
NO_END = 1e4
"""A number beyond all z."""
MIN_KNEE, MAX_KNEE = 8.0, 30.0
"""Smallest and largest |z| beyond which a warp is logarithmic, so that z of fill values such as 1e36 is moderate."""
BOUND_REACH = 8.0
"""Number of standard deviations from the median at which a warp becomes linear towards a bound."""
MARGIN_RATIO = 100.0
"""Ratio of the distance of the closest value from a bound to that at which a warp of heavy tails becomes linear."""
MIN_MARGIN, MIN_LOGIT_MARGIN = 1e-250, 1e-13
"""Smallest distance from a bound, relative to the unit, at which a warp becomes linear; floats near 1 are coarser."""
ASINH_QUANTILES = (0.02, 0.1, 0.5)
"""Quantiles of |x| that are tried as the unit of the asinh of numbers of both signs."""
MIN_UNBOUNDED_GAIN = 3.0
"""Log-likelihood of all values that a map without a lower bound must gain, if no value is negative and 0 may be a
bound: a Bayes factor of 20, which is called strong evidence (Kass and Raftery, 1995)."""
TAIL_SHARE, MIN_TAIL_ROWS = 0.1, 10
"""Share of the values in the tail that is compared with an exponential one, and minimum number of values in it."""


@dataclass(frozen=True)
class Warp:
    """Smooth increasing map z = k(t((b(x) - loc) / scale)) of a continuous column onto the real line.

    b maps bounds of the column towards infinity: the logit with two bounds; with one the logarithm, the inverse of
    softplus, or the normal quantile of a Weibull distribution, whose density may be finite at the bound. Without bounds
    it is the identity, the asinh of numbers of both signs that differ by orders of magnitude, such as profits, or
    piecewise linear where the values form clusters that are very far apart. t shortens heavy tails by asinh where that
    increases the likelihood, and is the identity otherwise: with softplus and Weibull
    only the tail away from the bound. k is the identity up to `knee`, and logarithmic beyond. Where two of the three
    are logarithmic, the last ones continue along their tangents beyond the fitted values, away from a bound: samples
    there are exponentials of z, but not exponentials of exponentials.

    Very close to a bound, b continues along its tangent. A value on the bound, or beyond it, then has a finite z and a
    small density; the map is a bijection of the real line, so that no mass is lost.

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
    loc: float
    scale: float
    heavy: bool
    """Whether t is asinh."""
    margin: float = MIN_MARGIN
    """Distance from a bound, in units of `unit`, within which b is linear."""
    knots: tuple[tuple[float, float], ...] = ()
    """Points (x, b(x)) of the piecewise linear b, for clusters."""
    knee: float = MIN_KNEE
    """Largest |z| up to which k is the identity."""
    shape: float = 1.0
    """Shape of the Weibull distribution."""
    first: float = 0.0
    """Smallest z of the fitted values."""
    last: float = 0.0
    """Largest z of the fitted values."""
    one_sided: bool = False
    """Whether t shortens only the tail away from the only bound."""
    straight: bool = False
    """Whether tails continue along tangents beyond `first` and `last`: k and t if b is a logarithm, else k if t is."""

    @classmethod
    def fit(cls, x: FloatArray, bounds: list[tuple[float, float]], margin: float = 0.0) -> Warp:
        """Select the map under which x has the highest Gaussian likelihood.

        Arguments:
            x: Values, `(N,)`.
            bounds: Candidates for the bounds `(low, high)`.
            margin: Minimum distance from a bound within which b is linear.
        """
        sample = x if len(x) <= MAX_WARP_ROWS else x[np.linspace(0, len(x) - 1, MAX_WARP_ROWS).astype(int)]
        knots = find_cluster_knots(sample)
        candidates = [
            cls._standardize(sample, base, low, high, unit, heavy, knots, margin)
            for low, high in bounds
            for base in _bases_for(low, high)
            for unit in _list_units(sample, base, low, high)
            for heavy in (False, True)
            if (base != "clusters" or knots) and (not heavy or _may_be_heavy(sample, base, low, high, margin))
        ]
        gains = [
            warp._gaussian_log_likelihood(sample) * len(sample) + MIN_UNBOUNDED_GAIN * bool(np.isfinite(warp.low))
            for warp in candidates
        ]
        best = candidates[int(np.argmax(np.nan_to_num(gains, nan=-np.inf)))]
        z = best(x)[0]
        straight = best.base != "logit" and (best.heavy or best.base in LOGARITHMS)
        return replace(best, first=float(z.min()), last=float(z.max()), straight=straight)

    @classmethod
    def _standardize(
        cls,
        x: FloatArray,
        base: str,
        low: float,
        high: float,
        unit: float,
        heavy: bool,
        knots: tuple[tuple[float, float], ...],
        min_margin: float,
    ) -> Warp:
        """Warp that maps the median to 0 and the quartiles to those of a standard normal distribution."""
        distance = np.minimum(x - low, high - x)
        shape = _estimate_weibull_shape(distance) if base == "weibull" else 1.0
        warp = cls(base, low, high, unit, 0.0, 1.0, False, knots=knots if base == "clusters" else (), shape=shape)
        y = warp._unbound(x)[0]
        median = float(np.quantile(y, 0.5))
        scale = robust_scale(y)
        # The linear part of b begins far below all values, where a normal distribution has no mass that matters. With
        # tails that are heavier it begins just below them: a flow that extrapolates these would make a pole there.
        one_sided = heavy and base in ("softplus", "weibull")
        if (heavy and not one_sided) or base == "weibull":
            start = float(distance.min(initial=np.inf, where=distance > 0)) / unit / MARGIN_RATIO
        else:
            # Away from the bound, the inverse of softplus is linear: outliers there do not matter.
            reach = np.abs(y - median) if base != "softplus" else warp._sign * (median - y)
            lowest = float(reach.max(initial=0.0, where=distance > 0))
            start = float(np.exp(-max(BOUND_REACH * scale, lowest) - abs(median)))
        margin = max(float(np.clip(start, MIN_MARGIN, 1e-3)), min_margin / unit)
        if base == "logit":
            margin = max(margin, MIN_LOGIT_MARGIN)
        warp = replace(warp, loc=median, scale=scale, heavy=heavy, margin=margin, knee=MAX_KNEE, one_sided=one_sided)
        # Only rare outliers are beyond the knee: the shape of clusters is not distorted.
        return replace(warp, knee=float(np.clip(np.quantile(np.abs(warp(x)[0]), 0.99), MIN_KNEE, MAX_KNEE)))

    def _gaussian_log_likelihood(self, x: FloatArray) -> float:
        """Mean log-likelihood of x if z were normal with the standard deviation of its values, up to a constant."""
        z, log_slope = self(x)
        return float(log_slope.mean() - np.log(z.std() + 1e-300))

    def __call__(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Map x to z, and return log dz/dx as well."""
        y, log_slope = self._unbound(x)
        with np.errstate(over="ignore"):
            z = np.clip((y - self.loc) / self.scale, -MAX_FLOAT, MAX_FLOAT)
        log_slope = log_slope - np.log(self.scale)
        inside = np.clip(z, *self._stretch(self._ends)) if self._has_straight_logarithm else z
        shortened, log_change = self._shorten(inside)
        return shortened + (z - inside) * np.exp(log_change), log_slope + log_change

    def _shorten(self, z: FloatArray) -> tuple[FloatArray, FloatArray]:
        """k(t(z)), and the logarithm of its slope."""
        log_slope = np.zeros_like(z)
        if self.heavy:
            shortened = self._shortens(z)
            log_slope = -np.where(shortened, np.log(np.hypot(1.0, np.minimum(np.abs(z), 1e150))), 0.0)
            z = np.where(shortened, np.arcsinh(z), z)
        inside = np.clip(z, *self._stretch_far(self._ends)[0]) if self.straight else z
        beyond = np.maximum(np.abs(inside) - self.knee, 0.0)
        shortened = np.where(beyond > 0, np.sign(inside) * (self.knee + np.log1p(beyond)), inside)
        return shortened + (z - inside) / (1 + beyond), log_slope - np.log1p(beyond)

    def _stretch(self, z: FloatArray) -> FloatArray:
        """Inverse of `_shorten`."""
        inside = np.clip(z, *self._ends) if self.straight else z
        stretched, slope = self._stretch_far(inside)
        with np.errstate(over="ignore"):
            z = np.clip(stretched + (z - inside) * slope, -MAX_FLOAT, MAX_FLOAT)
        # Clipped before sinh overflows: samples far out in the tails stay finite.
        return np.where(self._shortens(z), np.sinh(np.clip(z, -700, 700)), z) if self.heavy else z

    def _stretch_far(self, z: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Inverse of k, and its slope, before exp overflows."""
        beyond = np.clip(np.abs(z) - self.knee, 0.0, 700.0)
        return np.where(beyond > 0, np.sign(z) * (self.knee + np.expm1(beyond)), z), np.exp(beyond)

    @property
    def _ends(self) -> FloatArray:
        """Numbers z beyond which tails are straight; towards a bound they are not."""
        return np.array([self.first if np.isinf(self.low) else -NO_END, self.last if np.isinf(self.high) else NO_END])

    @property
    def _has_straight_logarithm(self) -> bool:
        return self.straight and self.base in LOGARITHMS

    def _shortens(self, z: FloatArray) -> BoolArray:
        """Whether z, before or after t, is in a tail that t shortens."""
        return np.asarray(not self.one_sided or z * self._sign > 0)

    def inverse(self, z: FloatArray) -> FloatArray:
        """Map z to a finite x."""
        inside = np.clip(z, *self._ends) if self._has_straight_logarithm else z
        stretched = self._stretch(inside)
        with np.errstate(over="ignore"):
            if self._has_straight_logarithm:
                stretched = stretched + (z - inside) * np.exp(-self._shorten(stretched)[1])
            z = np.clip(stretched, -MAX_FLOAT, MAX_FLOAT)
            y = np.clip(z * self.scale + self.loc, -MAX_FLOAT, MAX_FLOAT)
            return np.clip(self._bound(y), -MAX_FLOAT, MAX_FLOAT)

    def _unbound(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Map x to b(x), and return log db/dx as well."""
        if self.base == "identity":
            return x, np.zeros_like(x)
        if self.base == "asinh":
            return _asinh_in_units(x, self.unit), -np.log(np.hypot(self.unit, x))
        if self.base == "clusters":
            return interpolate_linearly(x, np.array(self.knots))
        with np.errstate(over="ignore"):
            if self.base == "logit":
                low, high = (x - self.low) / self.unit, (self.high - x) / self.unit
                y_low, slope_low = _log_with_tangent(low, self.margin)
                y_high, slope_high = _log_with_tangent(high, self.margin)
                # d/dx [l(p) - l(1 - p)], with l the logarithm or its tangent
                return y_low - y_high, np.logaddexp(slope_low, slope_high) - np.log(self.unit)
            distance = (x - self.low if self._sign > 0 else self.high - x) / self.unit
            if self.base == "log":
                y, log_slope = _log_with_tangent(distance, self.margin)
                return self._sign * y, log_slope - np.log(self.unit)
            inside = np.maximum(distance, self.margin)
            if self.base == "weibull":
                y, log_slope = _weibull_to_normal(inside, self.shape)
                return self._sign * (y + (distance - inside) * np.exp(log_slope)), log_slope - np.log(self.unit)
            log_slope = -np.log(-np.expm1(-inside))
            # the inverse of softplus is d + log(1 - exp(-d)), with the slope 1 / (1 - exp(-d))
            y = inside - log_slope + (distance - inside) * np.exp(log_slope)
        return self._sign * y, log_slope - np.log(self.unit)

    def _bound(self, y: FloatArray) -> FloatArray:
        """Inverse of b."""
        if self.base == "identity":
            return y
        if self.base == "asinh":
            # The hyperbolic sine of large y is an exponential, which the unit may bring back into range.
            large = np.sign(y) * np.exp(np.minimum(np.abs(y) + np.log(self.unit / 2), 709.0))
            return np.where(np.abs(y) > 20, large, self.unit * np.sinh(np.clip(y, -20.0, 20.0)))
        if self.base == "clusters":
            return interpolate_linearly(y, np.array(self.knots)[:, ::-1])[0]
        if self.base == "logit":
            return self._bound_logit(y)
        y = y * self._sign
        if self.base == "weibull":
            (start,), (log_slope,) = _weibull_to_normal(np.array([self.margin]), self.shape)
            distance = np.exp(np.minimum(np.log(-log_ndtr(-np.maximum(y, start)) / np.log(2)) / self.shape, 700.0))
            distance = (distance + np.minimum(y - start, 0.0) * np.exp(-log_slope)) * self.unit
            return self.low + distance if self._sign > 0 else self.high - distance
        start = np.log(self.margin) if self.base == "log" else self.margin + np.log(-np.expm1(-self.margin))
        inside = np.clip(y, start, 700.0) if self.base == "log" else np.maximum(y, start)
        slope = self.margin if self.base == "log" else -np.expm1(-self.margin)
        distance = np.exp(inside) if self.base == "log" else np.logaddexp(0.0, inside)
        distance = (distance + np.minimum(y - inside, 0.0) * slope) * self.unit
        return self.low + distance if self._sign > 0 else self.high - distance

    def _bound_logit(self, y: FloatArray) -> FloatArray:
        """Inverse of the logit with tangents at both ends."""
        share = np.minimum(expit(-np.abs(y)), 0.5)  # distance to the closer bound, in units of `unit`
        # Near a bound b is about the tangent alone, since the other logarithm is about 0. Newton steps do the rest.
        start = np.log(self.margin)
        share = np.where(-np.abs(y) < start, self.margin * (1 - np.abs(y) - start), share)
        for _ in range(3):
            y_near, slope_near = _log_with_tangent(share, self.margin)
            y_far, slope_far = _log_with_tangent(1 - share, self.margin)
            share = share - (y_near - y_far + np.abs(y)) / (np.exp(slope_near) + np.exp(slope_far))
        return np.where(y < 0, self.low + self.unit * share, self.high - self.unit * share)

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
        warp = cls(**{**state, "knots": tuple((float(x), float(y)) for x, y in state["knots"])})
        is_positive = all(0 < value < np.inf for value in (warp.scale, warp.unit, warp.margin, warp.knee, warp.shape))
        others = [warp.loc, warp.first, warp.last, *(value for knot in warp.knots for value in knot)]
        is_ordered = np.isfinite(others).all() and warp.low < warp.high and warp.first <= warp.last
        if not is_ordered or (warp.base in BASES and warp.base not in _bases_for(warp.low, warp.high)):
            raise ValueError(
                f"a warp must have finite numbers, and bounds that suit its base, got the base {warp.base!r} and the "
                f"bounds {warp.low} and {warp.high}"
            )
        if warp.base not in BASES or not is_positive:
            raise ValueError(
                f"a warp must have a base of {BASES} and a positive scale, unit, margin, knee and shape, got the base "
                f"{warp.base!r}, the scale {warp.scale}, the unit {warp.unit}, the margin {warp.margin}, the knee "
                f"{warp.knee} and the shape {warp.shape}"
            )
        rises = np.diff(np.array(warp.knots).reshape(-1, 2), axis=0)
        if (warp.base == "clusters") != (len(rises) > 0) or not (rises > 0).all():
            raise ValueError(f"knots must increase, and belong to clusters, got {len(warp.knots)} for {warp.base!r}")
        return warp


def _bases_for(low: float, high: float) -> list[str]:
    """Names of the maps b that suit these bounds."""
    n_bounds = int(np.isfinite(low)) + int(np.isfinite(high))
    return [["identity", "asinh", "clusters"], ["log", "softplus", "weibull"], ["logit"]][n_bounds]


def _list_units(x: FloatArray, base: str, low: float, high: float) -> list[float]:
    """Units in which b may measure distances from a bound, or from 0 for numbers of both signs.

    Arguments:
        x: Values, `(N,)`.
        base: Name of b. Without negative values, the asinh has no units.
        low: Lower bound.
        high: Upper bound.
    """
    if base == "logit":
        return [high - low]
    if base in ("identity", "clusters"):
        return [1.0]
    if base == "asinh":
        sizes = np.abs(x[x != 0])
        if not x.min() < 0 < x.max():
            return []
        return sorted({float(size) for size in np.quantile(sizes, ASINH_QUANTILES)})
    distance = np.minimum(x - low, high - x)
    inside = distance[distance > 0]
    return [float(np.quantile(inside, 0.5)) if len(inside) else 1.0]


def _may_be_heavy(x: FloatArray, base: str, low: float, high: float, margin: float) -> bool:
    """Whether tails may be shortened by a second asinh, with this base and these bounds."""
    n_bounds = int(np.isfinite(low)) + int(np.isfinite(high))
    if base == "asinh" or (n_bounds and margin > 0):  # a long linear part has too much mass beyond the bound
        return False
    return n_bounds != 1 or base != "log" or _has_heavy_logarithms(x, low, high)


def _has_heavy_logarithms(x: FloatArray, low: float, high: float) -> bool:
    """Whether the upper tail of log-distances from the only bound is heavier than an exponential one.

    Otherwise the logarithm alone is enough: no power law in x is heavier. With asinh on top of it, values far out are
    exponentials of exponentials. A mixture of several lognormal groups often has a higher Gaussian likelihood with it,
    since it is skewed, but samples beyond the largest group would be too large by orders of magnitude.
    """
    distance = x - low if np.isfinite(low) else high - x
    y = np.log(distance[distance > 0])
    if len(y) < MIN_TAIL_ROWS / TAIL_SHARE:
        return False
    threshold = np.quantile(y, 1 - TAIL_SHARE)
    excess = y[y > threshold] - threshold
    # The coefficient of variation of an exponential distribution is 1, with this standard error.
    return len(excess) > 0 and float(excess.std() / excess.mean()) > 1 + 2 / np.sqrt(len(excess))


def _log_with_tangent(d: FloatArray, margin: float) -> tuple[FloatArray, FloatArray]:
    """log(d), continued below `margin` by its tangent, and the logarithm of the slope."""
    inside = np.maximum(d, margin)
    log_inside = np.log(inside)
    return log_inside + (d - inside) / inside, -log_inside


def _asinh_in_units(x: FloatArray, unit: float) -> FloatArray:
    """asinh(x / unit), whose argument may overflow: for large arguments it is log(2 |x|) - log(unit)."""
    is_large = np.abs(x) > 1e8 * unit
    large = np.sign(x) * (np.log(np.maximum(np.abs(x), unit)) - np.log(unit / 2))
    return np.where(is_large, large, np.arcsinh(np.where(is_large, 0.0, x) / unit))


def _estimate_weibull_shape(distance: FloatArray) -> float:
    """Shape of a Weibull distribution with the ratio of the quartiles of positive values."""
    low, high = (float(end) for end in np.quantile(distance, [0.25, 0.75]))
    if not 0 < low < high:
        return 1.0
    return float(np.clip(np.log(np.log(4) / np.log(4 / 3)) / np.log(high / low), 0.05, 20.0))


def _weibull_to_normal(d: FloatArray, shape: float) -> tuple[FloatArray, FloatArray]:
    """Normal quantile of the Weibull distribution function 1 - exp(-log(2) d^shape), and the logarithm of its slope."""
    log_hazard = np.minimum(shape * np.log(d), 690.0) + np.log(np.log(2))
    hazard = np.exp(log_hazard)
    z = -ndtri_exp(-hazard)
    # exp(-hazard) / density(z), which is 1 / z far out, where both are too small
    log_ratio = np.where(
        hazard < 1e6, np.minimum(z, 1e4) ** 2 / 2 + np.log(2 * np.pi) / 2 - hazard, -np.log(np.maximum(z, 1.0))
    )
    return z, np.log(shape) + log_hazard - np.log(d) + log_ratio
