"""Averages of a training run: log-likelihoods of a round, and weights over steps."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim.swa_utils import PARAM_LIST

__all__ = ["Mean", "make_exponential_average"]


class Mean:
    """Running weighted mean."""

    def __init__(self) -> None:
        self.total = 0.0
        self.weight = 0.0

    def add(self, total: Tensor, weight: float) -> None:
        self.total += float(total.detach())
        self.weight += weight

    @property
    def value(self) -> float:
        return self.total / self.weight if self.weight else math.nan


def make_exponential_average(decay: float) -> Callable[[PARAM_LIST, PARAM_LIST, Tensor | int], None]:
    """Exponential moving average of weights, for torch's `AveragedModel`.

    The decay is smaller in the first steps, so that the initial weights are forgotten quickly.
    """

    @torch.no_grad()
    def update(averaged: PARAM_LIST, current: PARAM_LIST, count: Tensor | int) -> None:
        keep = min(decay, (1 + int(count)) / (10 + int(count)))
        torch._foreach_lerp_(averaged, current, 1 - keep)

    return update
