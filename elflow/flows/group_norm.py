"""Standardisation of features within groups of categories, before a flow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy.special import digamma, polygamma
from torch import Tensor, nn
from torch.distributions import Transform, constraints
from zuko.distributions import NormalizingFlow
from zuko.lazy import LazyTransform

from elflow._checks import check_count
from elflow.flows.distribution import InitializingDistribution
from elflow.flows.groups import FAR, FloatArray, Group, RepeatedRows, divide
from elflow.flows.whitening import multiply
from elflow.nn import DataInitialized, InitializesParts

__all__ = ["GroupNorm", "GroupTransform", "Grouped"]


MIN_DISTANCE = 0.75
"""Total variation between a group and all others from which it is standardised: a flow learns smaller differences."""
MIN_SIZE = 10
"""Minimum number of rows of such a group, from which its scale is estimated."""
MAX_LOG_RATIO = 20.0
"""Maximum absolute value of the logarithm of a scale."""
N_BINS = 20
"""Number of bins of equal frequency in which distributions are compared."""


class Grouped(InitializesParts):
    """Flow of features that are standardised within groups of categories before: see `GroupNorm`.

    Arguments:
        flow: Any flow.
        norm: The layer before it.

    Example:
        >>> import elflow
        >>> kind = torch.randn(1000)
        >>> x = torch.stack([kind, torch.where(kind < -1.5, 9.0, 0.0) + torch.randn(1000)], 1)
        >>> flow = Grouped(elflow.ELF(features=2), GroupNorm(2, cells={0: [-1.5, 0.0]}, standardized={1: None}))
        >>> flow.initialize(x)
        >>> z = flow().sample((1000,))  # even before training, the amounts of the rare category are its own
        >>> bool(((z[:, 0] < -1.5) == (z[:, 1] > 4.5)).float().mean() > 0.98)
        True
    """

    def __init__(self, flow: nn.Module, norm: GroupNorm) -> None:
        super().__init__()
        self.norm = norm
        self.flow = flow

    def forward(self, c: Tensor | None = None) -> NormalizingFlow:
        """The distribution p(x | c), given the context `(..., context)`, or None for a flow without context."""
        distribution = InitializingDistribution(self.norm(c), self.flow(c))
        if self.training and not self.initialized:
            distribution.owner = self, c
        return distribution

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Initialise the groups from data `(N, features)`, then the flow from the standardised data."""
        self.norm.initialize(x, c)
        if initialize := getattr(self.flow, "initialize", None):
            initialize(self.norm(c)(x), c)


class GroupNorm(DataInitialized, LazyTransform):
    """Layer that moves groups of categories to the other rows: y = exp(-s) * (x - loc), with parameters by group.

    Categories are neighbouring cells on the axis of a feature. If the amounts of a category are far from those of its
    neighbours, a flow must learn a jump of its networks at the end of a cell, and the few rows of a rare category do
    not teach it: part of its samples have amounts of other categories. Here `divide` finds groups of categories with
    different means. A feature of a group that hardly overlaps with all others (total variation) is given their mean and
    scale. Groups that overlap stay as they are: what they share, such as a bound, is then in the same place for all.

    It has no trainable parameters. Scales of small groups are shrunk towards those of others (empirical Bayes).

    Reference:
        Linear models and empirical Bayes methods for assessing differential expression in microarray experiments
        (Smyth, 2004), for the shrinkage of variances

    Arguments:
        features: The number of features.
        cells: Ends between neighbouring cells, in increasing order, for each feature with categories.
        standardized: The features that are standardised, none of which has categories; for each of them None, or a
            gate: the position of another feature and the interval of its values for which it is standardised.
        groups: The maximum number of groups.

    Example:
        >>> kind = torch.randn(1000)
        >>> x = torch.stack([kind, torch.where(kind < -1.5, 9.0, 0.0) + torch.randn(1000)], 1)
        >>> norm = GroupNorm(features=2, cells={0: [-1.5, 0.0]}, standardized={1: None})
        >>> norm.initialize(x)
        >>> bool(norm()(x)[:, 1].max() < 5), torch.allclose(norm().inv(norm()(x)), x, atol=1e-5)
        (True, True)
    """

    sources: Tensor | None = None
    """Index of the row of the data that each row for `initialize` repeats, `(N,)`; None if all are different rows."""
    lower: Tensor
    upper: Tensor
    loc: Tensor
    log_scale: Tensor
    gate: Tensor
    gate_lower: Tensor
    gate_upper: Tensor

    def __init__(
        self,
        features: int,
        cells: Mapping[int, Sequence[float] | FloatArray],
        standardized: Mapping[int, tuple[int, float, float] | None],
        groups: int = 32,
    ) -> None:
        super().__init__()
        self.cells = {position: np.asarray(ends, np.float64) for position, ends in cells.items()}
        self.standardized = dict(standardized)
        shape = check_count("groups", groups), check_count("features", features)
        # No row is in a group whose lower and upper ends are the same.
        for name in ("lower", "upper", "loc", "log_scale"):
            self.register_buffer(name, torch.zeros(shape))
        # Without a gate, the interval has all values of the feature itself.
        gates = [self.standardized.get(k) or (k, -FAR, FAR) for k in range(features)]
        for name, values in zip(("gate", "gate_lower", "gate_upper"), zip(*gates, strict=True), strict=True):
            self.register_buffer(name, torch.tensor(values), persistent=False)

    def extra_repr(self) -> str:
        return f"groups={len(self.loc)}, features={self.loc.shape[1]}"

    def forward(self, c: Tensor | None = None) -> GroupTransform:
        gates = self.gate, self.gate_lower, self.gate_upper
        return GroupTransform(list(self.cells), self.lower, self.upper, self.loc, self.log_scale, *gates)

    @torch.no_grad()
    def initialize(self, x: Tensor, c: Tensor | None = None) -> None:
        """Find the groups and their moments from data `(N, features)`; does nothing if they are set."""
        sources, self.sources = self.sources, None
        if self.initialized or len(x) < 2:
            return
        rows = RepeatedRows.from_tensors(x, sources)
        groups = divide(rows, self.cells, len(self.loc))
        if len(groups) > 1:
            self._set_groups(rows, groups)
        self.initialized.fill_(True)

    def _set_groups(self, rows: RepeatedRows, groups: Sequence[Group]) -> None:
        count = len(groups)
        self.lower[:count], self.upper[:count] = -FAR, FAR
        for k, group in enumerate(groups):
            for position, ends in group.find_ends(self.cells).items():
                self.lower[k, position], self.upper[k, position] = ends
        for position, gate in self.standardized.items():
            at, low, high = gate or (position, -FAR, FAR)
            is_open = (rows.x[:, at] >= low) & (rows.x[:, at] < high)
            parts = {k: rows.take(group.members[is_open[group.members]]) for k, group in enumerate(groups)}
            self._standardize(position, {k: part for k, part in parts.items() if len(part.x)})

    def _standardize(self, position: int, parts: Mapping[int, RepeatedRows]) -> None:
        """Set the maps of groups whose values of a feature are apart from those of all others.

        Arguments:
            position: The feature.
            parts: Rows of the groups, by index; none is empty.
        """
        values = [part.x[:, position] for part in parts.values()]
        sizes = np.array([part.effective_size for part in parts.values()])
        distances = np.array([_measure_distance(values, k, size) for k, size in enumerate(sizes)])
        is_apart = (distances > MIN_DISTANCE) & (sizes >= MIN_SIZE)
        if len(values):  # the group with most rows stays in its place
            is_apart[np.argmax([len(value) for value in values])] = False
        if not is_apart.any():
            return
        centre = np.concatenate([value for value, moves in zip(values, is_apart, strict=True) if not moves]).mean()
        variances = np.array([value.var() for value in values]) * sizes / np.maximum(sizes - 1, 1)
        log_scale = _shrink_log_scales(variances, sizes)
        log_scale -= np.average(log_scale[~is_apart], weights=sizes[~is_apart])
        log_scale = log_scale.clip(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        for k, value, moves, s in zip(parts, values, is_apart, log_scale, strict=True):
            if moves:  # so that its mean becomes that of the rows that stay
                self.loc[k, position] = float(value.mean() - np.exp(s) * centre)
                self.log_scale[k, position] = float(s)

    def drop_unused(self) -> int:
        """Remove the places of groups that do not move, and return the number of others."""
        is_used = (self.loc != 0).any(1) | (self.log_scale != 0).any(1)
        for name in ("lower", "upper", "loc", "log_scale"):
            setattr(self, name, getattr(self, name)[is_used])
        return len(self.loc)


def _measure_distance(values: Sequence[FloatArray], k: int, size: float) -> float:
    """Total variation between the distribution of one group and that of all others, on a grid of quantiles.

    It is positive even if the distributions are the same, since few rows are in few bins. The result is scaled so that
    it is then 0 on average, and still 1 for groups without overlap.

    Arguments:
        values: Values of a feature in each group.
        k: Index of the group.
        size: Its number of rows, or of different ones that have as much information.
    """
    if len(values) == 1:
        return 0.0
    others = np.concatenate([*values[:k], *values[k + 1 :]])
    edges = np.quantile(np.concatenate(values), np.linspace(0, 1, N_BINS + 1)[1:-1])
    shares = [np.bincount(np.searchsorted(edges, x), minlength=N_BINS) / len(x) for x in (values[k], others)]
    # Mean absolute deviations of the shares of `size` rows, by the normal approximation.
    by_chance = np.sqrt(shares[1] * (1 - shares[1]) * 2 / (np.pi * size)).sum() / 2
    return float((np.abs(shares[0] - shares[1]).sum() / 2 - by_chance) / max(1 - by_chance, 1e-9))


def _shrink_log_scales(variances: FloatArray, sizes: FloatArray) -> FloatArray:
    """Logarithms of the standard deviations of groups relative to their mean, shrunk towards it.

    The logarithm of a variance that is estimated with d degrees of freedom has the error trigamma(d / 2), and the bias
    digamma(d / 2) - log(d / 2), if the data are normal.
    """
    result = np.zeros_like(variances)
    is_used = (sizes >= 2) & (variances > 0)
    if is_used.sum() < 2:
        return result
    half = (sizes[is_used] - 1) / 2
    log_variance = np.log(variances[is_used]) - (digamma(half) - np.log(half))
    error = polygamma(1, half)
    mean = np.average(log_variance, weights=1 / error)
    total = (1 / error).sum()
    spread = ((log_variance - mean) ** 2 / error).sum() - (len(error) - 1)
    spread = max(0.0, spread / (total - (1 / error**2).sum() / total))
    result[is_used] = 0.5 * (log_variance - mean) * spread / (spread + error)
    return result


class GroupTransform(Transform):
    """Transform y = exp(-s) * (x - loc), whose parameters depend on the group of the row.

    Features by which rows are divided, and those that are gates of others, must have `loc` and `s` of zero. Rows that
    are in no group do not change.

    Arguments:
        divided: The features by which rows are divided into groups.
        lower: Lower ends of the cells of the groups, `(G, features)`.
        upper: Upper ends, `(G, features)`.
        loc: Shifts, `(G, features)`.
        log_scale: Logarithms of the scales, `(G, features)`.
        gate: For each feature, the feature whose value decides whether it changes, `(features,)`.
        gate_lower: Lower end of the interval of values with which it does, `(features,)`.
        gate_upper: Upper end, `(features,)`.
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(
        self,
        divided: Sequence[int],
        lower: Tensor,
        upper: Tensor,
        loc: Tensor,
        log_scale: Tensor,
        gate: Tensor,
        gate_lower: Tensor,
        gate_upper: Tensor,
    ) -> None:
        super().__init__()
        self.divided, self.lower, self.upper = list(divided), lower, upper
        self.loc, self.log_scale = loc, log_scale
        self.gate, self.gate_lower, self.gate_upper = gate, gate_lower, gate_upper

    def _locate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and logarithm of the scale of each row, `(..., features)`."""
        z, lower, upper = x[..., None, self.divided], self.lower[:, self.divided], self.upper[:, self.divided]
        is_inside = ((z >= lower) & (z < upper)).all(-1).to(self.loc)
        is_open = (x[..., self.gate] >= self.gate_lower) & (x[..., self.gate] < self.gate_upper)
        return is_open * multiply(is_inside, self.loc), is_open * multiply(is_inside, self.log_scale)

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        loc, log_scale = self._locate(y)
        return loc + y * log_scale.exp()

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y, `(..., features)`, and the log-determinant of the Jacobian, `(...)`."""
        loc, log_scale = self._locate(x)
        return (x - loc) * (-log_scale).exp(), -log_scale.sum(-1)
