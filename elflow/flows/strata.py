"""Mixtures of Gaussians by category: each component has the rows of some categories, and no density at others."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Size, Tensor
from torch.distributions import Distribution, Transform
from zuko.distributions import DiagNormal

from elflow._checks import check_count
from elflow.flows.distribution import FlowDistribution
from elflow.flows.groups import FAR, MIN_VARIANCE, RepeatedRows, divide
from elflow.flows.mixture import N_COMPONENTS, FlowMixture, GaussianMixture, fit_gaussians
from elflow.flows.whitening import Gaussian

__all__ = ["BoxGaussian", "StratifiedMixture"]

ROWS_PER_FEATURE = 5
"""Minimum number of rows of one of several Gaussians, for each feature and one more."""
N_FOLDS = 5
"""Number of folds of the cross-validation that selects the prior of the covariances."""
PRIOR_ROWS = 10.0 ** np.arange(0, 5.1, 0.5)
"""Numbers of rows of the pooled covariance that each group of categories may have in addition to its own."""

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class BoxGaussian(Gaussian):
    """Gaussian over some features given others, which are normal within an interval each.

    The features of the box are independent of each other, and the mean of all other features is linear in them.

    Arguments:
        features: The number of features.

    Example:
        >>> gaussian = BoxGaussian(features=2)
        >>> gaussian.set_box({0: (0.5, 1.0)}, torch.tensor([0.7, 9.0]), torch.tensor([[0.1, 0.2], [0.2, 1.0]]))
        >>> x = gaussian().sample((100,))
        >>> bool(((x[:, 0] >= 0.5) & (x[:, 0] < 1.0)).all()), float(gaussian().log_prob(torch.zeros(2)))
        (True, -inf)
    """

    lower: Tensor
    upper: Tensor

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_buffer("lower", torch.full((features,), -FAR))
        self.register_buffer("upper", torch.full((features,), FAR))

    @property
    def is_boxed(self) -> Tensor:
        """Whether each feature has an interval, `(features,)`."""
        return (self.lower > -FAR) | (self.upper < FAR)

    @property
    def log_box(self) -> Tensor:
        """Logarithm of the probability of the box without truncation."""
        below, above = self.find_levels()
        return (above - below).log().sum()

    def find_levels(self) -> tuple[Tensor, Tensor]:
        """Cumulative probabilities below the ends of the intervals without truncation, `(features,)` each."""
        mean, _, covariance = (part.to(self.lower) for part in self.whitening.moments())
        scale = covariance.diagonal().sqrt()
        below, above = (torch.special.ndtr((end - mean) / scale) for end in (self.lower, self.upper))
        return torch.where(self.is_boxed, below, 0.0), torch.where(self.is_boxed, above, 1.0)

    @torch.no_grad()
    def set_box(
        self, box: Mapping[int, tuple[float, float]], mean: Tensor, covariance: Tensor, standard: Collection[int] = ()
    ) -> None:
        """Set the intervals of some features, and the moments of all.

        Arguments:
            box: Lower and upper ends by feature.
            mean: Means, `(features,)`.
            covariance: Covariance, `(features, features)`, from which the other features are regressed on the box.
            standard: Features of the box that are standard normal in their interval, whatever their moments.
        """
        mean, covariance = mean.double(), covariance.double()
        boxed, others = sorted(box), [k for k in range(len(mean)) if k not in box]
        slopes = torch.linalg.solve(covariance[boxed][:, boxed], covariance[boxed][:, others]).T
        rest = covariance[others][:, others] - slopes @ covariance[boxed][:, others]
        location, joint = torch.zeros_like(mean), torch.eye(len(mean), dtype=torch.double)
        location[others] = mean[others] - slopes @ mean[boxed]
        is_standard = torch.tensor([position in standard for position in boxed])
        location[boxed] = torch.where(is_standard, 0.0, mean[boxed])
        variance = torch.where(is_standard, 1.0, covariance.diagonal()[boxed])
        location[others] += slopes @ location[boxed]
        order, cross = torch.tensor([*boxed, *others]), slopes * variance
        blocks = [[variance.diag(), cross.T], [cross, rest + cross @ slopes.T]]
        joint[order[:, None], order] = torch.cat([torch.cat(row, 1) for row in blocks])
        self.whitening.set_moments(location, joint)
        for position, ends in box.items():
            self.lower[position], self.upper[position] = (min(max(end, -FAR), FAR) for end in ends)

    def forward(self, c: Tensor | None = None) -> FlowDistribution:
        """The distribution p(x); there is no context."""
        return _BoxDistribution(self.whitening(c), DiagNormal(self.zeros, torch.ones_like(self.zeros)), self)


class _BoxDistribution(FlowDistribution):
    """Distribution of a `BoxGaussian`.

    Arguments:
        transform: The map to the standard normal distribution.
        base: The standard normal distribution.
        box: The Gaussian.
    """

    def __init__(self, transform: Transform, base: Distribution, box: BoxGaussian) -> None:
        super().__init__(transform, base)
        self.box = box

    def expand(self, batch_shape: Size, new: Any = None) -> FlowDistribution:
        return _BoxDistribution(self.transform, self.base.expand(batch_shape), self.box)

    def log_prob(self, x: Tensor) -> Tensor:
        is_inside = ((x >= self.box.lower) & (x < self.box.upper)).all(-1)
        return torch.where(is_inside, super().log_prob(x) - self.box.log_box, -math.inf)

    def rsample(self, sample_shape: Size | Sequence[int] = (), method: str = "exact") -> Tensor:
        # Mixtures pass the same method to all members. Quantiles are exact, so that there is nothing to choose here.
        if isinstance(sample_shape, int):
            raise TypeError(f"sample_shape must be a tuple, got {sample_shape}: write ({sample_shape},)")
        box = self.box
        mean, _, covariance = (part.to(box.lower) for part in box.whitening.moments())
        below, above = box.find_levels()
        shape = *Size(sample_shape), *self.batch_shape, *self.event_shape
        u = torch.rand(shape, dtype=below.dtype, device=below.device)
        eps = torch.finfo(below.dtype).eps / 2
        # The features of the box come first, so that the others follow from them.
        order = torch.argsort(~box.is_boxed, stable=True)
        z = torch.special.ndtri((below + (above - below) * u).clamp(torch.finfo(below.dtype).tiny, 1 - eps))
        x = torch.zeros_like(z)
        x[..., order] = mean[order] + z[..., order] @ torch.linalg.cholesky(covariance[order][:, order]).T
        # Rounding must not move a point to the next cell, which begins at the upper end.
        return torch.minimum(torch.maximum(x, box.lower), box.upper.nextafter(box.lower))

    def rsample_and_log_prob(self, sample_shape: Size | Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        x = self.rsample(sample_shape)
        return x, self.log_prob(x)


class StratifiedMixture(GaussianMixture):
    """Mixture of up to 32 Gaussians by category, which `initialize` fits to the rows of each group of categories.

    Categories are neighbouring cells on the axis of a feature. A Gaussian that extends over such an axis has density in
    the cells of neighbours, so that a rare category takes over part of their distribution. Here the categories are
    divided into groups, as by a decision tree, as long as the Bayesian information criterion (BIC) improves, through
    means of the other features or frequencies of the categories. A group has no density outside its cells. It has
    its own Gaussians of the other features, or shares those of groups that differ only in their frequencies. The last
    Gaussian is that of all rows and counts as half a row, so that no combination of categories is impossible.

    Arguments:
        features: The number of features.
        cells: Ends between neighbouring cells, in increasing order, for each feature with categories.
        components: The maximum number of Gaussians.
        states: The same for features by which the groups of categories are divided further, such as whether a value is
            an atom.

    Example:
        >>> kind = torch.randn(1000)
        >>> x = torch.stack([kind, torch.where(kind < -1.5, 9.0, 0.0) + torch.randn(1000)], 1)
        >>> mixture = StratifiedMixture(features=2, cells={0: [-1.5, 0.0]})
        >>> mixture.initialize(x)
        >>> z = mixture().sample((1000,))
        >>> bool(((z[:, 0] < -1.5) == (z[:, 1] > 4.5)).float().mean() > 0.99)
        True
    """

    sources: Tensor | None = None
    """Index of the row of the data that each row for `initialize` repeats, `(N,)`; None if all are different rows."""

    def __init__(
        self,
        features: int,
        cells: Mapping[int, Sequence[float] | FloatArray],
        components: int = N_COMPONENTS[-1],
        states: Mapping[int, FloatArray] | None = None,
    ) -> None:
        # Not that of `GaussianMixture`, which builds Gaussians without boxes.
        FlowMixture.__init__(self, [BoxGaussian(features) for _ in range(check_count("components", components))])
        self.cells = {position: np.asarray(ends, np.float64) for position, ends in cells.items()}
        self.states = dict(states or {})

    @property
    def is_divided(self) -> bool:
        """Whether categories are in several groups; otherwise there is one Gaussian."""
        return bool(cast(BoxGaussian, self.flows[0]).is_boxed.any())

    def initialize_parts(self, x: Tensor, c: Tensor | None) -> None:
        """Set the components from data `(N, features)`."""
        gaussians = [cast(BoxGaussian, flow) for flow in self.flows]
        gaussians[0].initialize(x, c)
        sources, self.sources = self.sources, None
        rows = RepeatedRows.from_tensors(x, sources)
        components = _fit_components(rows, self.cells, self.states, len(gaussians))
        for gaussian, component in zip(gaussians, components, strict=False):
            moments = torch.from_numpy(component.mean), torch.from_numpy(component.covariance)
            gaussian.set_box(component.box, *moments, component.standard)
        for gaussian in gaussians:
            gaussian.whitening.initialized.fill_(True)
        weights = [component.weight for component in components] or [1.0]
        self.set_weights(weights + [0.0] * (len(gaussians) - len(weights)))


class _Component(NamedTuple):
    """One Gaussian."""

    weight: float
    mean: FloatArray
    covariance: FloatArray
    box: dict[int, tuple[float, float]]
    """Ends of the cells of its categories."""
    standard: list[int]
    """Features of the box with several categories, each of which must keep its frequency, the width of its cell."""


def _fit_components(
    rows: RepeatedRows, categories: Mapping[int, FloatArray], states: Mapping[int, FloatArray], max_components: int
) -> list[_Component]:
    """Gaussians of all groups of categories; none if there is only one group."""
    groups = divide(rows, categories, max_components - 1, by_frequency=True)
    if len(groups) == 1:
        return []
    # Categories come first: a state that happens to mean the same must not take their place.
    groups = divide(rows, states, max_components - 1, groups, by_frequency=True)
    cells = {**categories, **states}
    families = list({id(group.family): group.family for group in groups}.values())
    gaussians: dict[int, list[tuple[float, FloatArray, FloatArray]]] = {}
    for family, covariance in zip(families, _estimate_covariances(rows, families), strict=True):
        members = rows.take(family)
        single = 1.0, members.x.mean(0), covariance
        gaussians[id(family)] = _fit_group(members, (max_components - 1) // len(groups)) or [single]
    components = []
    for group in groups:
        box = group.find_ends(cells)
        standard = [position for position, (first, last) in group.box.items() if first < last]
        share = len(group.members) / len(rows.x)
        for weight, mean, covariance in gaussians[id(group.family)]:
            components.append(_Component(weight * share, mean, covariance, box, standard))
    # Half a row for combinations that are in no group, which are possible all the same.
    everywhere = dict.fromkeys(categories, (-FAR, FAR))
    covariance = np.cov(rows.x.T, bias=True) + MIN_VARIANCE * np.eye(rows.x.shape[1])
    components.append(_Component(0.5 / len(rows.x), rows.x.mean(0), covariance, everywhere, list(everywhere)))
    return components


def _estimate_covariances(rows: RepeatedRows, parts: Sequence[IntArray]) -> list[FloatArray]:
    """Covariance of each part of the rows, shrunk towards that of all by cross-validation.

    The more rows the prior has, the closer is quadratic discriminant analysis to the linear one (Friedman, 1989).
    """
    x = rows.x
    # Repeats of a row are in one fold: otherwise the others would be a copy of what is held out.
    folds = np.random.RandomState(0).permutation(int(rows.sources.max()) + 1)[rows.sources] % N_FOLDS
    scores = np.zeros((len(parts), len(PRIOR_ROWS)))
    for fold in range(N_FOLDS):
        fitted = _shrink(x, [part[folds[part] != fold] for part in parts])
        for k, (part, (mean, covariances)) in enumerate(zip(parts, fitted, strict=True)):
            held_out = x[part[folds[part] == fold]] - mean
            for i, covariance in enumerate(covariances):
                factor = np.linalg.cholesky(covariance)
                squares = (np.linalg.solve(factor, held_out.T) ** 2).sum()
                scores[k, i] -= squares / 2 + len(held_out) * np.log(factor.diagonal()).sum()
    fitted = _shrink(x, parts)
    return [covariances[best] for best, (_, covariances) in zip(scores.argmax(1).tolist(), fitted, strict=True)]


def _shrink(x: FloatArray, parts: Sequence[IntArray]) -> list[tuple[FloatArray, list[FloatArray]]]:
    """Mean of each part of the rows, and its covariance for each number of prior rows."""
    means = [x[part].mean(0) if len(part) else x.mean(0) for part in parts]
    scatters = [(x[part] - mean).T @ (x[part] - mean) for part, mean in zip(parts, means, strict=True)]
    pooled = sum(scatters) / sum(map(len, parts))
    minimum = MIN_VARIANCE * np.eye(x.shape[1])
    return [
        (mean, [(scatter + prior * pooled) / (len(part) + prior) + minimum for prior in PRIOR_ROWS])
        for part, mean, scatter in zip(parts, means, scatters, strict=True)
    ]


def _fit_group(rows: RepeatedRows, max_components: int) -> list[tuple[float, FloatArray, FloatArray]]:
    """Weights, means and covariances of several Gaussians of a group, by the BIC; none if one is better."""
    size, n_features = rows.effective_size, rows.x.shape[1]
    largest = min(max_components, size / (ROWS_PER_FEATURE * (n_features + 1)))
    best, best_bic = None, math.inf
    for count in (count for count in N_COMPONENTS if count <= largest):
        mixture = fit_gaussians(count, rows.x)
        # The method `bic` of scikit-learn would count repeated rows as new ones.
        n_parameters = count * (1 + n_features + n_features * (n_features + 1) // 2) - 1
        bic = -2 * size * float(mixture.score(rows.x)) + n_parameters * math.log(size)
        if bic >= best_bic:
            break
        best, best_bic = mixture, bic
    if best is None or best.n_components == 1:
        return []
    return list(zip(best.weights_.tolist(), best.means_, best.covariances_, strict=True))
