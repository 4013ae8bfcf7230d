"""Averages of the weights over the steps of a training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["exponential_average"]


def exponential_average(decay: float) -> Callable[[Any, Any, Any], None]:
    """For torch's `AveragedModel`: an exponential average that forgets its first weights sooner, as they are the worst.

    Arguments:
        decay: How much of the average each step keeps, once there have been enough of them.
    """

    @torch.no_grad()
    def update(averaged: Any, current: Any, count: Any) -> None:
        keep = min(decay, (1 + int(count)) / (10 + int(count)))
        torch._foreach_lerp_(averaged, current, 1 - keep)

    return update
