"""Averages of a training run: log-likelihoods of a round, and weights over steps."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

__all__ = ["ExponentialAverage", "Mean"]


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


class ExponentialAverage(AveragedModel):
    """Exponential moving average of the weights of a flow.

    The decay is smaller in the first steps, so that the initial weights are forgotten quickly. Unlike torch's
    `update_parameters`, which visits all modules and copies all buffers in each step, `update` is one operation.

    Arguments:
        flow: The flow in training. `self.module` is a copy of it with the averaged weights.
        decay: The decay; 0 for no averaging.

    Example:
        >>> layer = torch.nn.Linear(1, 1, bias=False)
        >>> average = ExponentialAverage(layer, decay=0.5)
        >>> before = layer.weight.item()
        >>> with torch.no_grad():
        ...     _ = layer.weight.add_(1)
        >>> average.update()
        >>> round(average.module.weight.item() - before, 4)  # the first decay is 2 / 11
        0.8182
    """

    def __init__(self, flow: nn.Module, decay: float) -> None:
        super().__init__(flow)
        self.n_averaged.fill_(1)  # the initial weights are the first ones averaged
        self.decay = decay
        self._averaged: list[Tensor] = list(self.module.parameters())
        self._current: list[Tensor] = list(flow.parameters())
        self._buffers_of = list(self.module.buffers()), list(flow.buffers())

    @torch.no_grad()
    def update(self) -> None:
        """Include the present weights of the flow."""
        count = int(self.n_averaged)
        keep = min(self.decay, (1 + count) / (10 + count))
        torch._foreach_lerp_(self._averaged, self._current, 1 - keep)
        self.n_averaged += 1

    @torch.no_grad()
    def copy_buffers(self) -> None:
        """Copy the buffers of the flow, which are not averaged."""
        for own, buffer in zip(*self._buffers_of, strict=True):
            own.copy_(buffer)
