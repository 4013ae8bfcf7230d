"""Grids and atoms of numeric columns: statistical tests that decide how their values are treated."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from scipy.stats import nbinom, poisson

from elflow.tabular._arrays import BoolArray, FloatArray, IntArray

__all__ = [
    "are_single",
    "find_atoms",
    "find_decimal_step",
    "find_lattice_step",
    "find_single_digits",
    "is_on_grid",
    "is_smooth",
    "multiply_step",
    "round_to_single",
]

MAX_DIGITS = 12
"""Maximum number of decimals of a grid."""
MAX_ULPS = 4
"""Maximum distance of a value from its grid point, in units of the last place."""
MIN_STEP_ULPS = 64
"""Minimum spacing of a grid, in units of the last place of the largest value."""
SINGLE_DIGITS = (17, 15)
"""Significant digits with which programs write doubles: all of them, or 15 as R and spreadsheets do."""
MAX_LATTICE_DIVISOR = 4
"""Maximum ratio of the smallest difference of values on a lattice to its spacing."""
MAX_LATTICE_POINTS = 20
"""Maximum number of points of a lattice for each distinct value."""
MAX_NUMERATOR = 10_000
"""Numerator of a decimal spacing below which its multiples are rounded once, by the division."""
MAX_TEXT_ERROR = 1e-14
"""Maximum relative error of numbers that were written with 15 digits."""
N_NEIGHBOURS, N_NEAREST = 8, 3
"""Number of distinct values on either side with which the frequency of a value is compared, and of the nearest ones."""
MIN_ATOM_SHARE, MIN_ATOM_RATIO, MAX_ATOMS = 0.002, 2.0, 8
"""Minimum share of the rows of an atom, minimum ratio to the frequencies of its neighbours, maximum number of atoms."""
MIN_GRID_ATOM_RATIO, MIN_GRID_ATOM_ROWS = 5.0, 30
"""Minimum ratio to the frequencies of its neighbours, and minimum number of rows, of an atom on a grid.

A smooth density is finite there as well, and fewer rows do not tell how other columns depend on the atom. They do not
need to if a smooth density would lose more than `MAX_LOST_NATS`."""
MIN_END_ATOM_RATIO = 3.0
"""Minimum ratio to the frequencies of its neighbours of an atom at an end of a grid."""
SIGNIFICANCE = 0.01
"""Probability that a column without atoms has one by chance, over all of its values."""
MIN_LEVELS = 16
"""Minimum number of grid points of a smooth distribution."""
MAX_TESTED_POINTS = 4096
"""Maximum number of grid points whose frequencies are tested for smoothness."""
MIN_WINDOW_ROWS = 20
"""Number of rows in the window from which the expected frequency of a grid point is estimated."""
MIN_CUBIC_ROWS = 30
"""Number of rows per grid point from which expected frequencies are interpolated by cubic polynomials."""
MAX_LOST_NATS = 0.05
"""Nats per row that a smooth density may lose against separate frequencies of all grid points."""


def find_decimal_step(distinct: FloatArray, dtype: str = "float64") -> float | None:
    """Spacing of the coarsest decimal grid that contains all values up to rounding; None if there is no such grid.

    It is a power of ten, or a multiple of one that divides all of at least `MIN_LEVELS` values, such as 0.05.

    Arguments:
        distinct: Distinct values, `(N,)`.
        dtype: Data type of the column, which determines the rounding of its values.

    Example:
        >>> find_decimal_step(np.array([0.25, 1.5, 7.0]))
        0.01
        >>> find_decimal_step(np.arange(30) * 0.05)
        0.05
        >>> find_decimal_step(np.array([1.0, 2.0, 3.0]) / 3)
    """
    spacing = _find_spacing(distinct, dtype)
    with np.errstate(over="ignore"):
        for digits in range(MAX_DIGITS + 1):
            multiples = np.round(distinct * 10.0**digits)
            if MIN_STEP_ULPS * spacing.max() * 10.0**digits > 1 or np.abs(multiples).max() >= 2.0**50:
                return None
            if is_on_grid(distinct, digits, dtype).all():
                divisor = int(np.gcd.reduce(multiples.astype(np.int64))) if len(distinct) >= MIN_LEVELS else 1
                return divisor / 10.0**digits
    return None


def find_lattice_step(distinct: FloatArray) -> float | None:
    """Spacing of the multiples of one number, such as thirds or whole degrees Fahrenheit in Celsius; None without one.

    Arguments:
        distinct: Distinct values in increasing order, `(N,)`.

    Example:
        >>> round(find_lattice_step((np.arange(40, 90) - 32) / 1.8), 6)
        0.555556
        >>> find_lattice_step(np.log(np.arange(1, 50)))
    """
    if len(distinct) < MIN_LEVELS:
        return None
    largest, errors = float(np.abs(distinct).max()), 2 * MAX_TEXT_ERROR * np.abs(distinct)  # of values and spacing
    gap = float(np.diff(distinct).min())
    for divisor in range(1, MAX_LATTICE_DIVISOR + 1):
        step = gap / divisor
        # Products: quotients of large and small numbers overflow.
        is_too_fine = distinct[-1] - distinct[0] > step * MAX_LATTICE_POINTS * len(distinct)
        if step < MIN_STEP_ULPS * errors.max() or is_too_fine or step == 0:
            return None
        step = largest / max(1.0, np.round(largest / step))  # the largest value has the most digits of the spacing
        if (np.abs(np.round(distinct / step) * step - distinct) <= errors).all():
            return float(step)
    return None


def is_on_grid(x: FloatArray, digits: int, dtype: str = "float64") -> BoolArray:
    """Whether values have at most this number of decimals, up to rounding, `(N,)`.

    Example:
        >>> is_on_grid(np.array([0.3, 0.25]), digits=1)
        array([ True, False])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.abs(np.round(x * 10.0**digits) / 10.0**digits - x) <= MAX_ULPS * _find_spacing(x, dtype)


def _find_spacing(x: FloatArray, dtype: str) -> FloatArray:
    """Distance of values to the next float of a data type, `(N,)`."""
    name = dtype.lower()
    with np.errstate(over="ignore"):  # of the largest float
        return np.spacing(np.abs(x).astype(name if name in ("float16", "float32") else "float64"))


def are_single(x: FloatArray) -> BoolArray:
    """Whether doubles are numbers of single precision, up to the rounding of 15 digits, `(N,)`.

    Programs that store numbers in single precision turn the decimal 0.3 into the double 0.30000001192092896. A double
    is that close to a number of single precision by chance with a probability of about 1e-7.

    Example:
        >>> are_single(np.array([0.30000001192092896, 0.300000011920929, 0.5, 0.3]))
        array([ True,  True,  True, False])
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return np.abs(x.astype(np.float32).astype(np.float64) - x) <= MAX_TEXT_ERROR * np.abs(x)


def find_single_digits(distinct: FloatArray) -> int | None:
    """Number of digits with which numbers of single precision were written; None if some have another precision.

    Example:
        >>> find_single_digits(np.array([0.300000011920929, 0.5]))
        15
        >>> find_single_digits(np.array([0.3, 0.5]))
    """
    if not are_single(distinct).all():
        return None
    return next((digits for digits in SINGLE_DIGITS if (round_to_single(distinct, digits) == distinct).all()), 17)


def round_to_single(x: FloatArray, digits: int) -> FloatArray:
    """Round numbers to single precision, and write them as doubles with so many significant digits, `(N,)`.

    Example:
        >>> round_to_single(np.array([0.3]), digits=15).tolist()
        [0.300000011920929]
    """
    largest = float(np.finfo(np.float32).max)
    single, index = np.unique(np.clip(x, -largest, largest).astype(np.float32), return_inverse=True)
    return np.array([float(f"{value:.{digits}g}") for value in single.tolist()])[index.reshape(np.shape(x))]


def multiply_step(multiples: IntArray, step: float) -> FloatArray:
    """Multiples of a spacing as decimals read them: 0.3 for 3 and 0.1, not 0.30000000000000004."""
    decimal = Fraction(f"{step:.15g}")
    if decimal.denominator <= 10**MAX_DIGITS and decimal.numerator < MAX_NUMERATOR:
        return np.asarray(multiples * float(decimal.numerator) / float(decimal.denominator), np.float64)
    divisor = float(f"{1 / step:.6g}")  # exact if the spacing is a fraction such as 1/3 or 1/1.8
    is_fraction = step % 1 != 0 and abs(divisor * step - 1) < MAX_TEXT_ERROR
    return np.asarray(multiples / divisor if is_fraction else multiples * step, np.float64)


def find_atoms(x: FloatArray, step: float = 0.0) -> FloatArray:
    """Values that are far more frequent than a smooth density allows, `(K,)`, in increasing order.

    The frequency of a value is compared with those of its neighbours among the distinct values. If all have the same
    expected frequency, the count of the value has a negative binomial distribution given theirs (a Poisson
    distribution whose rate has a gamma posterior). Small probabilities, corrected for the number of values, are atoms.

    Arguments:
        x: The values, `(N,)`.
        step: Spacing of the grid on which the values lie, 0 for none. Some points of a grid are a little more frequent
            in most tables, as when people prefer round numbers. To separate these from the others costs more than it
            gains, because the relation to other columns is smooth across them. At the ends of the range, where values
            may be clipped or stand for missing ones, an atom needs less evidence.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> find_atoms(np.append(np.zeros(40), rng.exponential(size=960)))
        array([0.])
        >>> find_atoms(rng.poisson(100, size=1000) * 1.0)
        array([], dtype=float64)
    """
    values, counts = np.unique(x, return_counts=True)
    candidates = np.flatnonzero(counts >= max(3, MIN_ATOM_SHARE * len(x)))
    if len(values) < 3 or len(candidates) == 0:
        return np.zeros(0)
    atoms = np.array(
        [
            i
            for i in candidates.tolist()
            if (_is_atom(counts, i, MIN_ATOM_RATIO) and (not step or _is_grid_atom(counts, i)))
            or (step and (_is_clipped_end(values, counts, i, step) or _is_isolated_end(values, i)))
        ],
        dtype=np.int64,
    )
    most_frequent = atoms[np.argsort(-counts[atoms], kind="stable")][:MAX_ATOMS]
    return np.sort(values[most_frequent])


def _is_atom(counts: IntArray, index: int, min_ratio: float) -> bool:
    """Whether one of the distinct values is an atom."""
    others = np.delete(counts[max(0, index - N_NEIGHBOURS) : index + N_NEIGHBOURS + 1], min(index, N_NEIGHBOURS))
    nearest = np.delete(counts[max(0, index - N_NEAREST) : index + N_NEAREST + 1], min(index, N_NEAREST))
    # The nearest neighbours are those with which a steep density is smooth. Medians do not see another atom.
    if counts[index] < min_ratio * np.median(nearest):
        return False
    others = np.minimum(others, MIN_ATOM_RATIO * np.median(others))
    # The first row of each distinct value is there by construction: only repetitions are compared.
    repeats, n_others = float((others - 1).sum()), len(others)
    return bool(nbinom.sf(counts[index] - 2, repeats + 0.5, n_others / (n_others + 1)) < SIGNIFICANCE / len(counts))


def _is_grid_atom(counts: IntArray, index: int) -> bool:
    """Whether one of the distinct values on a grid is an atom, if it would be one without the grid."""
    if index in (0, len(counts) - 1):
        return _is_atom(counts, index, MIN_END_ATOM_RATIO)
    is_large = counts[index] >= MIN_GRID_ATOM_ROWS or _count_lost_nats(counts, index) > MAX_LOST_NATS
    return bool(is_large) and _is_atom(counts, index, MIN_GRID_ATOM_RATIO)


def _count_lost_nats(counts: IntArray, index: int) -> float:
    """Nats per row that are lost if a value is as frequent as its nearest neighbours: a relative entropy."""
    nearest = np.delete(counts[max(0, index - N_NEAREST) : index + N_NEAREST + 1], min(index, N_NEAREST))
    share, smooth = (float(count / counts.sum()) for count in (counts[index], np.median(nearest)))
    return share * np.log(share / smooth) + (1 - share) * np.log((1 - share) / (1 - smooth))


def _is_isolated_end(values: FloatArray, index: int) -> bool:
    """Whether the first or last value is further from the next one than all others are from each other, as -999.

    Rows of a smooth density would not all have the same value there.
    """
    if index not in (0, len(values) - 1):
        return False
    others = np.delete(values, index)
    return bool(np.abs(others - values[index]).min() > others[-1] - others[0])


def _is_clipped_end(values: FloatArray, counts: IntArray, index: int, step: float) -> bool:
    """Whether the last value of a grid has more rows than the frequencies of the values before it lead to expect.

    These are extrapolated: where they rise towards the end, the expected frequency is higher than theirs.
    """
    if index not in (0, len(counts) - 1) or len(counts) < 2 * N_NEIGHBOURS:
        return False
    away = slice(1, N_NEIGHBOURS + 1) if index == 0 else slice(-2, -N_NEIGHBOURS - 2, -1)
    near, far = np.split(counts[away], 2)
    is_dense = abs(values[away][-1] - values[index]) < (N_NEIGHBOURS + 0.5) * step  # no grid point is empty
    # The end is 2.5 points from the middle of the near ones, and these are 4 from the middle of the far ones.
    rise = max(1.0, near.sum() / far.sum()) ** (2.5 / 4)
    if not is_dense or counts[index] < MIN_ATOM_RATIO * rise * near.mean():
        return False
    return bool(nbinom.sf(counts[index] - 1, near.sum() + 0.5, len(near) / (len(near) + rise)) < SIGNIFICANCE / 2)


def is_smooth(multiples: IntArray, shares: FloatArray | None = None) -> bool:
    """Whether the frequencies of integers look like those of a smooth density that was rounded.

    The frequency of each integer in the central 98% is predicted from its neighbours. Separate frequencies of all
    integers would gain the deviance of these predictions, less what it is for Poisson counts. A smooth density is
    rejected if this gain is significant and more than `MAX_LOST_NATS` per row. Where integers are spread so widely that
    most occur at most once, the number of ties is compared with the number of pairs close to each other.

    Arguments:
        multiples: The integers, `(N,)`.
        shares: Relative frequencies of integers with the same remainder when they are divided by K, `(K,)`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> is_smooth(rng.normal(0, 50, size=2000).round().astype(int))
        True
        >>> is_smooth(rng.normal(0, 10, size=2000).round().astype(int) * 5)
        False
    """
    low, high = (int(end) for end in np.quantile(multiples, [0.01, 0.99], method="nearest"))
    inside = multiples[(multiples >= low) & (multiples <= high)]
    if high - low >= MAX_TESTED_POINTS:
        return not _has_excess_ties(inside)
    if high - low + 1 < MIN_LEVELS or len(np.unique(inside)) < MIN_LEVELS:
        return False
    counts = np.bincount(inside - low, minlength=high - low + 1).astype(np.float64)
    weights = np.ones(1) if shares is None else shares / shares.mean()
    expected, variance = _predict_from_neighbours(counts, weights[np.arange(low, high + 1) % len(weights)])
    with np.errstate(divide="ignore", invalid="ignore"):
        deviance = np.where(counts > 0, counts * np.log(counts / expected), 0.0) - (counts - expected)
    interior = slice(2, -2)  # predictions at the ends are one-sided
    excess = (deviance - _expected_deviance(expected) * (1 + variance))[interior]
    is_significant = excess.sum() > 4 * np.sqrt((1 + variance) * np.minimum(expected, 1.0)[interior].sum())
    return not (is_significant and excess.sum() > MAX_LOST_NATS * counts[interior].sum())


def _has_excess_ties(values: IntArray) -> bool:
    """Whether integers coincide far more often than they come close to each other."""
    ordered = np.sort(values)
    counts = np.unique(ordered, return_counts=True)[1].astype(np.float64)
    n_ties = (counts * (counts - 1) / 2).sum()
    reach = max(1, int(ordered[-1] - ordered[0]) // 50)
    n_close = (np.searchsorted(ordered, ordered + reach, side="right") - np.arange(len(ordered)) - 1.0).sum() - n_ties
    expected = n_close / (2 * reach)  # pairs at a distance d > 0 have two orders, ties one
    return bool(n_ties > 2 * expected and poisson.sf(n_ties - 1, expected) < SIGNIFICANCE)


def _predict_from_neighbours(counts: FloatArray, shares: FloatArray) -> tuple[FloatArray, float]:
    """Expected count of each grid point from those around it, and the relative variance of this estimate.

    Arguments:
        counts: The counts, `(N,)`.
        shares: Relative frequencies of the grid points if the density is constant, `(N,)`, about 1.
    """
    reach = int(np.clip(np.ceil(MIN_WINDOW_ROWS / 2 / counts.mean()), 2, max(2, len(counts) // 8)))
    weights = np.ones(2 * reach + 1)
    if reach == 2 and counts.mean() >= MIN_CUBIC_ROWS and np.ptp(shares) == 0:
        weights = np.array([-1.0, 4.0, 0.0, 4.0, -1.0])  # exact for cubic polynomials
    weights[reach] = 0.0
    total = np.convolve(shares, weights, mode="same")
    expected = shares * np.convolve(counts, weights, mode="same") / total
    floor = 0.5 / (2 * reach)
    return np.maximum(expected, floor), float((weights**2).sum() / weights.sum() ** 2)


def _expected_deviance(rates: FloatArray) -> FloatArray:
    """Mean of n log(n / rate) - (n - rate) over Poisson counts n, for each rate; about 1/2 for large rates."""
    n = np.arange(1, 80)
    small = np.minimum(rates, 20.0)[:, None]
    terms = poisson.pmf(n, small) * n * np.log(n / small)
    return np.where(rates < 20, terms.sum(1), 0.5 + 1 / (12 * np.maximum(rates, 1)))
