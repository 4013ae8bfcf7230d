"""Where networks begin."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["initial_phi"]

REACH = 3.0
"""Bumps begin at most so far from zero, which is where ActNorm puts the data."""
WIDTH = 0.3, 3.0
"""Between which the width of a bump begins."""
SHARPNESS = 1.0, 4.0
"""Between which the sharpness of an edge begins."""


def initial_phi(networks: int, units: int) -> Tensor:
    """Where networks begin, `(networks, bump_size(units))`."""
    pairs = (units + 1) // 2
    log_k = torch.empty(networks, units).uniform_(*map(math.log, SHARPNESS))
    t = torch.empty(networks, pairs).uniform_(-REACH, REACH)
    log_w = torch.empty(networks, pairs).uniform_(*map(math.log, WIDTH))
    a = 0.5 * pairs**-0.5 * torch.randn(networks, pairs)
    return torch.cat([log_k, t, log_w, a, torch.zeros(networks, 1)], dim=-1)
