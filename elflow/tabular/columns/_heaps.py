"""Heaps: numbers that are more frequent than others all along a grid, such as multiples of 100."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import gammaln

from elflow.tabular._arrays import BoolArray, FloatArray, IntArray
from elflow.tabular.columns import _grids

__all__ = ["Heaps", "are_smooth", "clip_inside", "find_codes", "find_heaps"]

MAX_INTEGER = 2.0**52
"""Integers from here on have no intervals: doubles do not resolve their ends."""
END_TOLERANCE = 1e-9
"""Relative error of the ends of intervals."""
MAX_END_ERROR = 1e-5
"""Maximum error of the ends of intervals in steps, unless rounding is larger: narrow ones must not be skipped."""
MAX_PERIOD = 10_000
"""Maximum distance of heaps, in steps of the grid."""
PERIODS = tuple(p for p in range(2, MAX_PERIOD + 1) if 10_000 % p == 0 or 3_600 % p == 0)
"""Distances of heaps that are tried: those of decimals, and of minutes, hours and dozens."""
MAX_RESIDUES = 64
"""Maximum number of heaps in a period."""
MIN_PERIODS = 16
"""Minimum number of periods in the central 98% of the values: fewer do not show that heaps repeat."""
MAX_NEW_SHARE = 0.01
"""Share of values that occur once up to which the frequencies of single values say all about them: the share of new
values is about the same (Good and Turing)."""
N_NEIGHBOURS = 4
"""Number of values next to an end with which it is compared."""
MIN_CODE_ROWS, MIN_CODE_RATIO = 5, 3.0
"""Minimum number of rows of a code, and its minimum ratio to the mean number of rows of its neighbours."""
N_GROUPS = 4
"""Number of groups of values of similar size in which the share of heaps is compared."""


@dataclass(frozen=True)
class Heaps:
    """Positions of integers on an axis on which the frequencies of heaps and of other integers look smooth.

    If 98 of 100 amounts are multiples of 100, the interval of a multiple is 98 units wide on this axis, and the 99
    integers up to the next one share the other two. The probability of an integer is then a smooth density times the
    share of its residue, its remainder when it is divided by the period. Atoms have no width.

    Example:
        >>> heaps = Heaps(period=10, residues=(0,), shares=(0.91,))
        >>> heaps.find_lower(np.array([0, 1, 10, 11])).round(3)
        array([-0.5,  8.6,  9.5, 18.6])
        >>> heaps.find_integers(np.array([0.0, 8.65, 9.5]))
        array([ 0,  1, 10])
    """

    period: int
    """Number of integers after which the heaps repeat; 1 without heaps."""
    residues: tuple[int, ...] = ()
    """Remainders of the integers that are heaps, in increasing order."""
    shares: tuple[float, ...] = ()
    """Share of all values at each of these residues."""
    atoms: tuple[int, ...] = ()
    """Integers without a width, in increasing order."""

    @cached_property
    def _cumulative(self) -> FloatArray:
        """Width of the residues below each one, `(period + 1,)`."""
        widths = np.full(self.period, (1 - sum(self.shares)) / max(1, self.period - len(self.residues)))
        widths[list(self.residues)] = self.shares
        return np.append(0.0, np.cumsum(widths)) * self.period / widths.sum()

    def _find_base(self, integers: IntArray) -> FloatArray:
        """Lower ends of integers, `(N,)`, as if there were no atoms and the integer 0 began at 0."""
        turns, residues = np.divmod(integers, self.period)
        return turns * float(self.period) + self._cumulative[residues]

    def contains(self, integers: IntArray) -> BoolArray:
        """Whether integers are heaps, `(N,)`."""
        return np.isin(integers % self.period, self.residues)

    def find_lower(self, integers: IntArray) -> FloatArray:
        """Lower ends of the intervals of integers, `(N,)`; that of an atom is the one of the next integer."""
        atoms = np.array(self.atoms, np.int64)
        widths = np.append(0.0, np.cumsum(self._find_base(atoms + 1) - self._find_base(atoms)))
        return np.asarray(self._find_base(integers) - widths[np.searchsorted(atoms, integers)] - 0.5)

    def find_end(self, integer: float) -> float:
        """Lower end of the interval of one integer; infinite if the integer is, or is too large for exact ends."""
        if abs(integer) >= MAX_INTEGER:
            return math.copysign(math.inf, integer)
        return float(self.find_lower(np.array([integer], np.int64))[0])

    def find_widths(self, integers: IntArray) -> FloatArray:
        """Widths of the intervals of integers, `(N,)`, none of which is an atom."""
        return np.diff(self._cumulative)[integers % self.period]

    def find_integers(self, positions: FloatArray) -> IntArray:
        """Integers whose intervals contain positions, `(N,)`."""
        x = positions + 0.5
        for atom in self.atoms:
            low, high = self._find_base(np.array([atom, atom + 1]))
            x = np.where(x >= low, x + (high - low), x)
        turns = np.floor(x / self.period)
        residues = np.searchsorted(self._cumulative, x - turns * self.period, side="right") - 1
        return turns.astype(np.int64) * self.period + np.clip(residues, 0, self.period - 1)


def clip_inside(positions: FloatArray, ends: FloatArray) -> FloatArray:
    """Positions within the first and the last interval, `(N,)`.

    A position on an end, which is that of the last interval, may be rounded to the wrong side of it.

    Arguments:
        positions: Positions on the axis of `Heaps`, `(N,)`.
        ends: Lower end of the first interval and upper end of the last one, `(2,)`; either may be infinite.
    """
    sizes = np.where(np.isfinite(ends), np.abs(ends), 0.0)
    tolerances = np.minimum(END_TOLERANCE * np.maximum(1.0, sizes), MAX_END_ERROR)
    margins = np.where(np.isfinite(ends), np.maximum(tolerances, 4 * np.spacing(sizes)), 0.0)
    return np.clip(positions, ends[0] + margins[0], ends[1] - margins[1])


def find_codes(multiples: IntArray) -> IntArray:
    """Smallest and largest of integers, `(N,)`, if they are codes such as -1 or 99999: frequent, and far from others.

    A smooth density becomes rare towards its ends: an end that is several times as frequent as its neighbours, and
    farther away from them than they are from each other, is none of its values.

    Example:
        >>> find_codes(np.array([100, 200, 200, 300, 400, 500, 600, 99999, 99999, 99999, 99999, 99999]))
        array([99999])
    """
    values, counts = np.unique(multiples, return_counts=True)
    if len(values) <= N_NEIGHBOURS:
        return values[:0]
    codes = []
    for ends in (slice(None, N_NEIGHBOURS + 1), slice(None, -N_NEIGHBOURS - 2, -1)):
        near, n_near = values[ends], counts[ends]
        gaps = np.abs(np.diff(near))
        is_frequent = n_near[0] >= MIN_CODE_ROWS and n_near[0] > MIN_CODE_RATIO * n_near[1:].mean()
        if is_frequent and gaps[0] >= gaps[1:].max():
            codes.append(near[0])
    return np.array(codes, np.int64)


def find_heaps(multiples: IntArray) -> Heaps | None:
    """Heaps of integers, `(N,)`, that repeat after a period; None if there are no such heaps.

    The period and the heaps are those with the shortest description (minimum description length): the code length of
    the residues, half a logarithm of the number of rows for each share, and the choice of the heaps among the residues.
    There are no heaps if fewer than `MAX_LOST_NATS` per row are gained, if small and large values have other heaps, or
    if hardly any value is new.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> amounts = rng.normal(5000, 1000, size=1000).astype(int)
        >>> find_heaps(amounts)
        >>> heaps = find_heaps(np.where(rng.random(1000) < 0.9, amounts // 100 * 100, amounts))
        >>> heaps.period, heaps.residues, round(heaps.shares[0], 2)
        (100, (0,), 0.9)
    """
    if (np.unique(multiples, return_counts=True)[1] == 1).sum() < MAX_NEW_SHARE * len(multiples):
        return None
    low, high = (int(end) for end in np.quantile(multiples, [0.01, 0.99], method="nearest"))
    best, best_gain = None, _grids.MAX_LOST_NATS * len(multiples)
    for period in PERIODS:
        if high - low < MIN_PERIODS * period:
            break
        heaps, gain = _select_residues(multiples, period)
        # A longer period has to be better by more than rounding.
        if gain > best_gain + 1e-6:
            best, best_gain = heaps, gain
    return None if best is None or _varies(multiples, best) else best


def _select_residues(multiples: IntArray, period: int) -> tuple[Heaps, float]:
    """Heaps of one period, and the nats by which they shorten the description of all integers, `(N,)`."""
    n = len(multiples)
    counts = np.bincount(multiples % period, minlength=period)
    order = np.argsort(-counts, kind="stable")[: min(MAX_RESIDUES, period - 1)]
    n_heaps = np.arange(1, len(order) + 1)
    at_heaps = counts[order].astype(np.float64)
    # Half a row at other residues: they may occur even if none did.
    others = np.maximum(n - np.cumsum(at_heaps), 0.5)
    fit = np.cumsum(at_heaps * np.log(np.maximum(at_heaps, 0.5) * period / n))
    fit += others * np.log(others * period / (n * (period - n_heaps)))
    choices = gammaln(period + 1) - gammaln(n_heaps + 1) - gammaln(period - n_heaps + 1)
    gains = fit - 0.5 * n_heaps * np.log(n) - choices - np.log(len(PERIODS))
    best = int(np.argmax(gains))
    chosen = np.sort(order[: best + 1])
    shares = counts[chosen] / (counts[chosen].sum() + others[best])
    return Heaps(period, tuple(chosen.tolist()), tuple(shares.tolist())), float(gains[best])


def _varies(multiples: IntArray, heaps: Heaps) -> bool:
    """Whether the shares of heaps depend on the size of the integers, as with a number of significant digits.

    This is so if their mutual information with the size, less its mean for independent ones, is `MAX_LOST_NATS`.
    """
    ordered = np.sort(multiples)
    others = len(heaps.residues)
    heap = np.where(heaps.contains(ordered), np.searchsorted(heaps.residues, ordered % heaps.period), others)
    group = np.arange(len(ordered)) * N_GROUPS // len(ordered)
    joint = np.bincount(group * (others + 1) + heap, minlength=N_GROUPS * (others + 1)).reshape(N_GROUPS, -1)
    expected = joint.sum(1, keepdims=True) * joint.sum(0) / len(ordered)
    lost = float((joint * np.log(np.maximum(joint, 1) / np.maximum(expected, 1e-9))).sum()) / len(ordered)
    return lost - (N_GROUPS - 1) * others / (2 * len(ordered)) > _grids.MAX_LOST_NATS


def are_smooth(multiples: IntArray, heaps: Heaps) -> bool:
    """Whether the frequencies of heaps among integers, `(N,)`, look smooth if those between them are left out."""
    at_heaps = multiples[heaps.contains(multiples)]
    turns, residues = np.divmod(at_heaps, heaps.period)
    numbers = turns * len(heaps.residues) + np.searchsorted(heaps.residues, residues)
    if len(heaps.residues) == 1:  # atoms would be gaps
        atoms = np.array(heaps.atoms, np.int64)
        numbers -= np.searchsorted(atoms[heaps.contains(atoms)], at_heaps)
    return _grids.is_smooth(numbers, np.array(heaps.shares))
