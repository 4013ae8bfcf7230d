"""Proposals for conditional sampling: mixtures of Gaussians, conditioned on known features and restricted to sets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from elflow.flows.strata import BoxGaussian
from elflow.flows.whitening import Gaussian
from elflow.tabular.integrals._members import list_gaussians
from elflow.tabular.integrals._normal import log_interval as _log_interval
from elflow.tabular.integrals._normal import truncated_quantile as _truncated_quantile
from elflow.tabular.integrals._regions import Regions

__all__ = ["Gaussians", "Proposal"]

MAX_LEFT_OUT = 1e-3
"""Maximum probability, given the conditions of a row, of the Gaussians from which none of its points is drawn."""
WIDE_SCALE, WIDE_SHARE = 2.0, 0.2
"""Ratio by which a second copy of each Gaussian is wider, and its share: it bounds the weights in the tails."""
MAX_NUMBERS = 2**22
"""Maximum number of Gaussians times features times points that are in memory at a time."""
LOG_2PI = math.log(2 * math.pi)


class Gaussians(NamedTuple):
    """Mixture of C Gaussians over features."""

    log_weight: Tensor
    """Logarithms of the weights, `(C,)`."""
    mean: Tensor
    """Means without context, `(C, features)`."""
    coefficients: Tensor
    """Coefficients of the context in the means, `(C, features, context)`."""
    covariance: Tensor
    """Covariances, `(C, features, features)`."""
    boxes: Boxes
    """Intervals outside of which the Gaussians have no density."""

    @classmethod
    def from_flow(cls, flow: nn.Module) -> Gaussians | None:
        """The Gaussians among the members of a mixture; None if there are none."""
        members = list_gaussians(flow)
        if not members:
            return None
        moments = [part.whitening.moments() for _, part in members]
        mean, coefficients, covariance = (torch.stack(parts) for parts in zip(*moments, strict=True))
        log_weight = torch.tensor([weight for weight, _ in members], dtype=torch.double)
        boxes = Boxes.from_parts([part for _, part in members])
        return cls(log_weight - log_weight.logsumexp(0), mean, coefficients, covariance, boxes)

    def locate(self, context: Tensor | None) -> Tensor:
        """Means given the context of rows, `(N, context)`: `(N, C, features)`, or `(1, C, features)` without one."""
        if context is None:
            return self.mean[None]
        return self.mean + torch.einsum("nk,cfk->ncf", context, self.coefficients)


class Boxes(NamedTuple):
    """Intervals of features outside of which C Gaussians have no density, in units of the normal distribution.

    Proposals draw from whole Gaussians, whose density is known. But in the region of a rare category, those of its own
    groups of categories are far more likely than whole ones would be, and all others are impossible.
    """

    features: list[int]
    """The B features that have intervals in any of the Gaussians."""
    low: Tensor
    """Lower ends, as probabilities of the standard normal distribution, `(C, B)`."""
    high: Tensor
    """Upper ends, `(C, B)`."""
    log_mass: Tensor
    """Logarithms of the probabilities of the intervals under the whole Gaussians, `(C, B)`."""

    @classmethod
    def from_parts(cls, gaussians: Sequence[Gaussian]) -> Boxes:
        """The intervals of Gaussians; one without a box has the interval of all numbers."""
        features = sorted(
            {k for part in gaussians if isinstance(part, BoxGaussian) for k in part.is_boxed.nonzero()[:, 0].tolist()}
        )
        low = torch.zeros(len(gaussians), len(features), dtype=torch.double)
        high, log_mass = torch.ones_like(low), torch.zeros_like(low)
        for k, part in enumerate(gaussians):
            if isinstance(part, BoxGaussian):
                low[k], high[k] = (torch.special.ndtr(end[features].double()) for end in (part.lower, part.upper))
                below, above = part.find_levels()
                log_mass[k] = (above - below)[features].log()
        return cls(features, low, high, log_mass)

    def weigh(self, regions: Regions) -> Tensor:
        """Logarithm of how much more likely N regions are than without boxes, `(N, C)`; minus infinity outside."""
        low, high = (torch.special.ndtr(ends[:, self.features])[:, None] for ends in (regions.lower, regions.upper))
        box_low, box_high = self.low[..., None], self.high[..., None]
        # The share of the region inside: the ends in a file are rounded, and the next cell begins just beyond.
        width = (high - low).sum(-1)
        shared = (torch.minimum(high, box_high) - torch.maximum(low, box_low)).clamp(min=0).sum(-1)
        is_inside = ((low >= box_low) & (low < box_high)).any(-1).double()  # for points, which have no width
        share = torch.where(width > 0, shared / width, is_inside)
        is_free = regions.is_free[:, None, self.features]
        return torch.where(is_free, 0.0, share.log() - self.log_mass).sum(-1)


class Proposal:
    """Distribution of points in regions: a mixture of Gaussians, conditioned on the features that are known.

    Features are drawn one after the other, each from a normal distribution that is truncated to the set of the feature
    (the sampler of Geweke, Hajivassiliou and Keane). The density of the points is known exactly.

    Arguments:
        gaussians: The mixture.
        regions: The regions of N rows.
        context: Encoded context of the rows, `(N, context)`.
    """

    def __init__(self, gaussians: Gaussians, regions: Regions, context: Tensor | None = None) -> None:
        self._is_fixed = regions.is_fixed
        self._middle = torch.where(self._is_fixed, regions.lower[..., 0] + regions.width / 2, 0.0)
        rank = torch.where(regions.is_free, 3, torch.where(regions.is_gated, 2, 1))
        rank = torch.where(self._is_fixed, 0, rank)
        # Known features first, then those with a set; the sort keeps the state of a column before its value.
        self._order = rank.argsort(stable=True, dim=-1)  # (N, features)
        self._bounds = _Bounds.sort(regions, self._order)
        mean = gaussians.locate(context).expand(len(self._order), -1, -1)
        covariance = gaussians.covariance[:, self._order[:, :, None], self._order[:, None, :]].transpose(0, 1)
        self._factor = torch.linalg.cholesky(covariance)  # (N, C, features, features)
        self._mean = mean.gather(2, self._order[:, None].expand(-1, mean.shape[1], -1))
        self._n_known = self._is_fixed.sum(-1)
        self._weigh(gaussians.log_weight + gaussians.boxes.weigh(regions))
        self._scales = torch.tensor([1.0, WIDE_SCALE], dtype=torch.double)
        self._log_shares = torch.tensor([1 - WIDE_SHARE, WIDE_SHARE], dtype=torch.double).log()

    def _weigh(self, log_weight: Tensor) -> None:
        """Weights of the Gaussians given the conditions, from those without, `(N, C)`; unlikely ones are left out."""
        n_rows, _, n_features = self._mean.shape
        log_mass = log_weight.clone()
        z = self._middle.gather(1, self._order)
        scaled = torch.zeros_like(self._mean)
        is_known = self._is_fixed.gather(1, self._order)
        for t in range(n_features):
            scale = self._factor[..., t, t]
            mean = self._mean[..., t] + (self._factor[..., t, :t] * scaled[..., :t]).sum(-1)
            known = (z[:, None, t] - mean) / scale
            log_density = -known.square() / 2 - scale.log() - LOG_2PI / 2
            if (self._bounds.kind[:, t] == 1).any():
                lower, upper = self._bounds.standardize(t, mean, scale)
                log_interval = _log_interval(lower, upper)
                total = log_interval.logsumexp(-1)
                # The middle of the most likely interval stands for a point of the set.
                best = log_interval.argmax(-1, keepdim=True)
                ends = lower.gather(-1, best)[..., 0], upper.gather(-1, best)[..., 0]
                typical = _truncated_quantile(torch.full_like(mean, 0.5), *ends)
            else:
                total, typical = torch.zeros_like(mean), torch.zeros_like(mean)
            has_set = (self._bounds.kind[:, t] == 1)[:, None]
            log_mass += torch.where(is_known[:, t, None], log_density, torch.where(has_set, total, 0.0))
            scaled[..., t] = torch.where(is_known[:, t, None], known, torch.where(has_set, typical, 0.0))
        log_mass = log_mass.nan_to_num(nan=-torch.inf)
        # A row far away from all Gaussians has no weights: all are the same then.
        log_mass = torch.where(log_mass.amax(1, keepdim=True) > -torch.inf, log_mass, 0.0)
        log_mass, best = log_mass.log_softmax(1).sort(dim=1, descending=True)
        # Those that a row leaves out have no weight in it: its points do not depend on how many other rows need.
        is_kept = log_mass.exp().cumsum(1).roll(1, 1) < 1 - MAX_LEFT_OUT
        is_kept[:, 0] = True
        n_kept = int(is_kept.sum(1).amax()) if n_rows else 1
        log_mass, best = torch.where(is_kept, log_mass, -torch.inf)[:, :n_kept], best[:, :n_kept]
        self._log_mass = log_mass - log_mass.logsumexp(1, keepdim=True)
        self._mean = self._mean.gather(1, best[..., None].expand(-1, -1, n_features))
        self._factor = self._factor.gather(1, best[..., None, None].expand(-1, -1, n_features, n_features))

    def draw(self, noise: Tensor) -> Tensor:
        """Points in the regions, `(N, K, features)`.

        Arguments:
            noise: Uniform numbers in (0, 1), which broadcast to `(N, K, features + 2)`.
        """
        n_rows, _, n_features = self._mean.shape
        noise = noise.expand(n_rows, *noise.shape[-2:])
        component = torch.searchsorted(self._log_mass.exp().cumsum(1), noise[..., 0].contiguous())
        component = component.clamp(max=self._log_mass.shape[1] - 1)  # (N, K)
        is_wide = noise[..., 1] < WIDE_SHARE
        width = torch.where(is_wide, WIDE_SCALE, 1.0)
        z = self._middle.gather(1, self._order)[:, None].expand(-1, noise.shape[1], -1).clone()
        scaled = torch.zeros_like(z)
        rows = torch.arange(n_rows)[:, None]
        for t in range(n_features):
            scale = self._factor[rows, component, t, t]
            mean = self._mean[rows, component, t]
            if t:
                mean = mean + (self._factor[rows, component, t, :t] * scaled[..., :t]).sum(-1)
            is_known = t < self._n_known[:, None]
            if not is_known.all():
                drawn = self._draw_feature(t, mean, scale * width, z, noise[..., 2 + t])
                z[..., t] = torch.where(is_known, z[..., t], drawn)
            scaled[..., t] = (z[..., t] - mean) / scale
        return torch.zeros_like(z).scatter(2, self._order[:, None].expand_as(z), z)

    def _draw_feature(self, t: int, mean: Tensor, scale: Tensor, z: Tensor, noise: Tensor) -> Tensor:
        """Draw the feature at position t, `(N, K)`."""
        if not (self._bounds.kind[:, t] > 0).any():
            return mean + scale * torch.special.ndtri(noise)
        lower, upper = self._bounds.standardize(t, mean, scale, z)
        if lower.shape[-1] == 1:
            return mean + scale * _truncated_quantile(noise, lower[..., 0], upper[..., 0])
        mass = torch.softmax(_log_interval(lower, upper), -1).nan_to_num(nan=0.0)
        total = mass.cumsum(-1)
        interval = torch.searchsorted(total, noise[..., None].contiguous()).clamp(max=mass.shape[-1] - 1)
        before, inside = (total - mass).gather(-1, interval)[..., 0], mass.gather(-1, interval)[..., 0]
        share = ((noise - before) / inside.clamp(min=1e-300)).clamp(1e-15, 1 - 1e-15)
        ends = lower.gather(-1, interval)[..., 0], upper.gather(-1, interval)[..., 0]
        return mean + scale * _truncated_quantile(share, *ends)

    def log_density(self, z: Tensor) -> Tensor:
        """Log-densities of points in the regions, `(N, K, features)`, with respect to the features not known, `(N, K)`.

        Points outside the regions have any value.
        """
        z = z.gather(2, self._order[:, None].expand_as(z))
        size = max(1, MAX_NUMBERS // max(1, self._mean.numel()))
        return torch.cat([self._log_density(some) for some in z.split(size, dim=1)], 1)

    def _log_density(self, z: Tensor) -> Tensor:
        """Log-density of points whose features are in the order in which they are drawn."""
        difference = (z[:, None] - self._mean[:, :, None]).transpose(-1, -2)  # (N, C, features, K)
        scaled = torch.linalg.solve_triangular(self._factor, difference, upper=False)
        scale = self._factor.diagonal(dim1=-2, dim2=-1)
        is_open = ~self._is_fixed.gather(1, self._order)[:, None, :, None]
        squares = torch.where(is_open, scaled.square() / 2, 0.0).sum(2)
        n_open = is_open.sum(2)
        log_scale = torch.where(is_open, scale.log()[..., None], 0.0).sum(2) + n_open * LOG_2PI / 2
        log_densities = []
        for width, log_share in zip(self._scales.tolist(), self._log_shares, strict=True):
            log_density = log_share - squares / width**2 - log_scale - n_open * math.log(width)
            for t in range(z.shape[-1]):
                if not (self._bounds.kind[:, t] > 0).any():
                    continue
                at_t = scale[..., t, None]
                mean = z[:, None, :, t] - at_t * scaled[:, :, t]
                lower, upper = self._bounds.standardize(t, mean, at_t * width, z[:, None])
                log_density = log_density - torch.where(
                    is_open[:, :, t], _log_interval(lower, upper).logsumexp(-1), 0.0
                )
            log_densities.append(log_density)
        mixed = torch.logsumexp(torch.stack(log_densities), 0) + self._log_mass[..., None]
        return mixed.logsumexp(1)


class _Bounds(NamedTuple):
    """Sets of the features in the order in which they are drawn."""

    lower: Tensor
    upper: Tensor
    gate_lower: Tensor
    gate_upper: Tensor
    gate_at: Tensor
    """Position of the feature of the gate, `(N, features)`."""
    kind: Tensor
    """0 for a free or known feature, 1 for one with a set, 2 for one with a gate, `(N, features)`."""

    @classmethod
    def sort(cls, regions: Regions, order: Tensor) -> _Bounds:
        index = order[..., None].expand(-1, -1, regions.lower.shape[-1])
        kind = torch.where(regions.is_gated, 2, 1)
        kind = torch.where(regions.is_free | regions.is_fixed, 0, kind).gather(1, order)
        position = order.argsort(1)  # of each feature among those in order
        before = position.roll(1, 1).gather(1, order)
        return cls(
            regions.lower.gather(1, index),
            regions.upper.gather(1, index),
            regions.gate_lower.gather(1, order),
            regions.gate_upper.gather(1, order),
            before,
            kind,
        )

    def standardize(self, t: int, mean: Tensor, scale: Tensor, z: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Ends of the intervals of the feature at position t in units of normals, `(N, K, J)`.

        Arguments:
            t: The position.
            mean: Means of the normals, `(N, ..., K)`.
            scale: Their standard deviations.
            z: Points in order, `(N, ..., K, features)`, whose features before t are known; None without gates.
        """
        shape = (len(mean), *[1] * (mean.dim() - 1))
        lower, upper = (ends[:, t].reshape(*shape, -1) for ends in (self.lower, self.upper))
        if z is not None and (self.kind[:, t] == 2).any():
            at = self.gate_at[:, t].reshape(*[len(mean), *[1] * (z.dim() - 1)])
            gate = z.gather(-1, at.expand(*z.shape[:-1], 1))
            is_open = (gate >= self.gate_lower[:, t].reshape(*shape, 1)) & (
                gate <= self.gate_upper[:, t].reshape(*shape, 1)
            )
            first = torch.arange(lower.shape[-1]) == 0
            lower = torch.where(is_open, lower, torch.where(first, -torch.inf, torch.inf))
            upper = torch.where(is_open, upper, torch.inf)
        return (lower - mean[..., None]) / scale[..., None], (upper - mean[..., None]) / scale[..., None]
