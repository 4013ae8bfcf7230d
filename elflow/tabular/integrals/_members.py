"""Members of mixtures, and the Gaussians that represent or approximate them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import nn

from elflow.flows.group_norm import Grouped
from elflow.flows.groups import FAR
from elflow.flows.mixture import FlowMixture
from elflow.flows.strata import BoxGaussian
from elflow.flows.tilted import Tilted
from elflow.flows.whitening import Gaussian

__all__ = ["list_gaussians", "list_members"]

MIN_WEIGHT = 1e-4
"""Weight, in the mixture, from which a Gaussian of a group of categories is used."""


def list_members(flow: nn.Module, log_weight: float = 0.0) -> Iterator[tuple[float, nn.Module]]:
    """Flows that are no mixtures, with the logarithms of their weights."""
    if not isinstance(flow, FlowMixture):
        yield log_weight, flow
        return
    for weight, member in zip(flow.log_weights.tolist(), flow.flows, strict=True):
        if weight > -math.inf:
            yield from list_members(member, log_weight + weight)


def list_gaussians(flow: nn.Module) -> list[tuple[float, Gaussian]]:
    """Gaussians among the members of a mixture, with the logarithms of their weights; without factors of cells.

    Those behind a `GroupNorm` are approximated: each as it is, and once more for each group, moved to its place and
    truncated to its cells. This is good enough to propose points, and to place nodes of an integration.
    """
    gaussians: list[tuple[float, Gaussian]] = []
    for weight, member in list_members(flow.flow if isinstance(flow, Tilted) else flow):
        if isinstance(member, Gaussian):
            gaussians.append((weight, member))
        elif isinstance(member, Grouped):
            for inner_weight, inner in list_members(member.flow):
                if isinstance(inner, Gaussian):
                    gaussians.append((weight + inner_weight, inner))
                    gaussians += _move_to_groups(weight + inner_weight, inner, member)
    return gaussians


def _move_to_groups(log_weight: float, gaussian: Gaussian, grouped: Grouped) -> Iterator[tuple[float, Gaussian]]:
    """A Gaussian of standardised features in the place of each group, if it has enough weight there."""
    norm = grouped.norm
    mean, _, covariance = gaussian.whitening.moments()
    for lower, upper, loc, log_scale in zip(norm.lower, norm.upper, norm.loc, norm.log_scale, strict=True):
        is_boxed = ((lower > -FAR) | (upper < FAR)) & (lower < upper)
        if not is_boxed.any():
            continue
        box = {k: (float(lower[k]), float(upper[k])) for k in is_boxed.nonzero()[:, 0].tolist()}
        scale = log_scale.double().cpu().exp()
        moved = BoxGaussian(len(mean)).double()
        moved.set_box(box, loc.double().cpu() + scale * mean, scale[:, None] * covariance * scale)
        in_group = log_weight + float(moved.log_box)
        if in_group > math.log(MIN_WEIGHT):
            yield in_group, moved.eval()
