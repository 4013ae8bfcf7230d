"""Steps of densities along a feature: the ends between cells and between groups of categories."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from elflow.flows.group_norm import Grouped
from elflow.flows.groups import FAR
from elflow.flows.strata import BoxGaussian
from elflow.flows.tilted import Tilted
from elflow.flows.whitening import Gaussian
from elflow.tabular._arrays import FloatArray
from elflow.tabular.integrals._lines import Lines
from elflow.tabular.integrals._normal import log_interval

__all__ = ["find_ends", "find_steps", "measure_box"]


def find_ends(member: Gaussian, position: int) -> tuple[float, float]:
    """Ends of the interval of a feature outside of which a Gaussian has no density."""
    if not isinstance(member, BoxGaussian) or not member.is_boxed[position]:
        return -math.inf, math.inf
    return float(member.lower[position]), float(member.upper[position])


def find_steps(member: nn.Module, position: int) -> FloatArray:
    """Points of a feature at which the density of a flow has a step, in increasing order."""
    if isinstance(member, BoxGaussian):
        ends = torch.stack([member.lower[position], member.upper[position]])
    elif isinstance(member, Tilted):
        return member.ends.get(position, np.zeros(0))
    elif isinstance(member, Grouped):
        ends = torch.cat([member.norm.lower[:, position], member.norm.upper[:, position]])
    else:
        return np.zeros(0)
    ends = ends.double().cpu().unique()
    return ends[ends.abs() < FAR].numpy()


def measure_box(member: Gaussian, lines: Lines, mean: Tensor, scale: Tensor) -> Tensor | float:
    """Logarithms of the factors by which the box of a Gaussian changes its mass along lines, `(D, N)`.

    Arguments:
        member: The Gaussian.
        lines: The lines.
        mean: Means along the lines without the box, `(D, N)`.
        scale: Their standard deviation.
    """
    if not isinstance(member, BoxGaussian):
        return 0.0
    is_outside = (lines.z < member.lower) | (lines.z >= member.upper)
    is_outside[..., lines.position] = False
    low, high = ((end - mean) / scale for end in find_ends(member, lines.position))
    return torch.where(is_outside.any(-1), -math.inf, log_interval(low, high) - member.log_box)
