"""Groups of categories whose rows have different means, found as by a decision tree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, rel_entr
from torch import Tensor

__all__ = ["FAR", "MIN_VARIANCE", "Group", "RepeatedRows", "divide"]

FAR = 1e30
"""End of an interval that is not bounded: model files hold only finite numbers."""
MIN_VARIANCE = 1e-6
"""Minimum variance of rows, or of a component of a Gaussian mixture, in any direction."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class RepeatedRows(NamedTuple):
    """Rows, some of which may be repeated: those with weights are drawn with replacement."""

    x: FloatArray
    """Features, `(N, features)`."""
    sources: IntArray
    """Index of the row that each row repeats, from 0 without gaps."""
    n_repeats: IntArray
    """Number of rows with the same source as each row."""

    @classmethod
    def from_tensors(cls, x: Tensor, sources: Tensor | None) -> RepeatedRows:
        """Rows `(N, features)` with the indices of their sources, `(N,)`; None if all are different rows."""
        return cls.from_sources(
            x.cpu().double().numpy(), np.arange(len(x)) if sources is None else sources.cpu().numpy()
        )

    @classmethod
    def from_sources(cls, x: FloatArray, sources: IntArray) -> RepeatedRows:
        """Count the repeats of rows with the indices of their sources."""
        _, first, inverse, counts = np.unique(sources, return_index=True, return_inverse=True, return_counts=True)
        # In the order of their first rows, so that folds do not depend on the order of the data.
        return cls(x, first.argsort().argsort()[inverse], counts[inverse])

    def take(self, members: IntArray) -> RepeatedRows:
        """Some of the rows: all repeats of their sources."""
        return RepeatedRows(self.x[members], self.sources[members], self.n_repeats[members])

    @property
    def effective_size(self) -> float:
        """Number of different rows that have as much information (Kish, 1965)."""
        return len(self.x) ** 2 / float(self.n_repeats.sum())


class Group(NamedTuple):
    """Rows of some categories."""

    members: IntArray
    """Positions of the rows."""
    family: IntArray
    """Positions of the rows with the same means: more than the group has if it differs only by its frequency."""
    box: dict[int, tuple[int, int]]
    """First and last category of each feature whose categories are divided."""

    def find_ends(self, cells: Mapping[int, FloatArray]) -> dict[int, tuple[float, float]]:
        """Lower and upper end of each divided feature, `FAR` where there is none.

        Arguments:
            cells: Ends between neighbouring categories of each feature.
        """
        ends = {position: [-FAR, *cells[position].tolist(), FAR] for position in self.box}
        return {
            position: (ends[position][first], ends[position][last + 1]) for position, (first, last) in self.box.items()
        }

    def list_others(self, features: int, position: int) -> list[int]:
        """Features whose categories are not divided, apart from one."""
        return [k for k in range(features) if k not in self.box and k != position]


class _Cut(NamedTuple):
    """Division of a group in two."""

    gain: float
    """Improvement of half the BIC; 0 if no division is better than none."""
    position: int = -1
    """Position of the feature with the categories."""
    last: int = -1
    """Last category of the first part."""
    has_means: bool = True
    """Whether the parts have different means."""


def divide(
    rows: RepeatedRows,
    cells: Mapping[int, FloatArray],
    max_groups: int,
    groups: Sequence[Group] | None = None,
    by_frequency: bool = False,
) -> list[Group]:
    """Divide categories into groups while the BIC improves, where it improves most first.

    Arguments:
        rows: The rows.
        cells: Ends between neighbouring cells, in increasing order, for each feature by which rows may be divided.
        max_groups: The maximum number of groups.
        groups: Groups that are divided further, instead of all rows.
        by_frequency: Whether to divide also where a Gaussian has wrong probabilities of the categories of a group.
            Categories that do not occur in it are then in no group.
    """
    codes = {position: np.searchsorted(ends, rows.x[:, position], side="right") for position, ends in cells.items()}
    frequency_cells = cells if by_frequency else {}
    whole = np.arange(len(rows.x))
    groups = [Group(whole, whole, {})] if groups is None else list(groups)
    cuts = [_find_cut(rows, codes, group, frequency_cells) for group in groups]
    while len(groups) < max_groups:
        k = int(np.argmax([cut.gain for cut in cuts]))
        gain, position, last, has_means = cuts[k]
        if gain <= 0:
            break
        members, family, box = groups[k]
        is_left = codes[position][members] <= last
        first, end = box.get(position, (0, len(cells[position])))
        sides = (members[is_left], (first, last)), (members[~is_left], (last + 1, end))
        # Categories without rows are left out.
        parts = [
            Group(side, side if has_means else family, box | {position: ends}) for side, ends in sides if len(side)
        ]
        groups[k : k + 1] = parts
        cuts[k : k + 1] = [_find_cut(rows, codes, part, frequency_cells) for part in parts]
    return groups


def _find_cut(rows: RepeatedRows, codes: Mapping[int, IntArray], group: Group, cells: Mapping[int, FloatArray]) -> _Cut:
    """The best division of a group in two.

    The parts have different means and the same covariance, as in linear discriminant analysis. A division costs the BIC
    of a mean, and the logarithm of the number of possible divisions. Features with `cells` also gain by the frequencies
    of the parts, which cost the BIC of a probability; for these alone, the parts have the same means.
    """
    members = rows.take(group.members)
    n, n_features = members.x.shape
    lasts = {position: np.unique(code[group.members])[:-1] for position, code in codes.items()}
    lasts |= {position: np.arange(*group.box.get(position, (0, len(ends)))) for position, ends in cells.items()}
    n_cuts = sum(map(len, lasts.values()))
    best = _Cut(0.0)
    for position, last in lasts.items():
        others = group.list_others(n_features, position)
        if not len(last) or not (others or position in cells) or members.effective_size <= 2 * n_features:
            continue
        code = codes[position][group.members]
        n_left = np.bincount(code, minlength=last[-1] + 1).cumsum()[last]
        is_proper = (n_left > 0) & (n_left < n)
        # Number of different rows with which the means would be as precise; n if no row is repeated.
        repeats = np.bincount(code, members.n_repeats, minlength=last[-1] + 1).cumsum()
        of_left, of_right = repeats[last], repeats[-1] - repeats[last]
        left, right = n_left.clip(min=1), (n - n_left).clip(min=1)
        size = np.where(is_proper, n**2 / (right * of_left / left + left * of_right / right).clip(min=1), n)
        by_means = np.full(len(last), -math.inf)
        if others:
            u = members.x[:, others]
            u = u - u.mean(0)
            factor = np.linalg.cholesky(u.T @ u / n + MIN_VARIANCE * np.eye(len(others)))
            u = np.linalg.solve(factor, u.T)
            sums = np.stack([np.bincount(code, feature, minlength=last[-1] + 1).cumsum()[last] for feature in u])
            # Share of the determinant of the covariance that is due to the difference of the means.
            between = (sums**2).sum(0) / (left * right)
            gain = -0.5 * size * np.log1p(-between.clip(max=1 - 1e-9)) - 0.5 * len(others) * np.log(size)
            by_means = np.where(is_proper, gain, -math.inf)
        gain = by_means
        if position in cells:
            expected = _expect_shares(members.x[:, position], cells[position], last, group.box.get(position))
            by_frequency = members.effective_size * _compute_divergence(n_left / n, expected) - 0.5 * np.log(size)
            gain = by_frequency + by_means.clip(min=0.0)
        k = int(gain.argmax())
        cut = _Cut(float(gain[k]) - math.log(n_cuts), position, int(last[k]), bool(by_means[k] > 0))
        best = max(best, cut, key=lambda cut: cut.gain)
    return best


def _expect_shares(z: FloatArray, ends: FloatArray, last: IntArray, box: tuple[int, int] | None) -> FloatArray:
    """Shares of the rows up to some categories, `(cuts,)`, under the Gaussian of a group.

    Arguments:
        z: The feature in the rows of the group, `(N,)`.
        ends: Ends between neighbouring categories.
        last: Last category of the first part, for each cut.
        box: First and last category of the group, if the feature is divided already: it is then standard normal in its
            interval; None otherwise.
    """
    if box is None:
        return ndtr((ends[last] - z.mean()) / math.sqrt(z.var() + MIN_VARIANCE))
    levels = np.concatenate([[0.0], ndtr(ends), [1.0]])
    low, high = levels[box[0]], levels[box[1] + 1]
    return (levels[last + 1] - low) / max(high - low, 1e-300)


def _compute_divergence(share: FloatArray, expected: FloatArray) -> FloatArray:
    """Kullback-Leibler divergence of expected shares from observed ones."""
    expected = expected.clip(1e-12, 1 - 1e-12)
    return np.asarray(rel_entr(share, expected) + rel_entr(1 - share, 1 - expected))
