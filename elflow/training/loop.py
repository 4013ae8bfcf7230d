"""The plain training loop: Adam, clipping, a rate that halves, averaged weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from elflow._checks import check_count, check_positive
from elflow.training.averaging import exponential_average

__all__ = ["History", "train"]

F = TypeVar("F", bound=nn.Module)
Batch = Tensor | Sequence[Tensor]


@dataclass
class History:
    """What happened in a training."""

    loss: list[float] = field(default_factory=list)
    """Minus the mean log-density of each batch."""


def train(
    flow: F,
    batch: Callable[[], Batch],
    steps: int = 10_000,
    rate: float = 2e-3,
    halve_every: int = 2_500,
    clip: float = 1.0,
    decay: float = 0.995,
    progress: Callable[[int, float], None] | None = None,
) -> tuple[F, History]:
    """Fits a flow by maximum likelihood.

    Arguments:
        flow: Any flow of elflow or zuko. It is trained in place.
        batch: Gives the next batch: x `(N, features)`, or a pair of x and its context `(N, context)`.
        steps: How many batches to take.
        rate: The learning rate of Adam at the beginning.
        halve_every: After how many steps the rate halves.
        clip: The greatest norm of a gradient; infinity does not clip.
        decay: How much of the averaged weights each step keeps, once there have been enough of them.
        progress: Told the step and the loss after each step.

    Returns:
        A copy of the flow with averaged weights, in evaluation mode, and the history. The average is mostly better than
        where the last step happened to end.

    Example:
        >>> import elflow
        >>> flow = elflow.ELF(features=2, transforms=1, units=8, hidden_features=(16,))
        >>> averaged, history = train(flow, lambda: 3 + 2 * torch.randn(64, 2), steps=50)
        >>> len(history.loss)
        50
    """
    if not callable(batch):
        raise TypeError(f"batch must be a function that gives the next batch, got {type(batch).__name__}")
    check_count("steps", steps)
    check_count("halve_every", halve_every)
    check_positive("rate", rate)
    if not clip > 0:
        raise ValueError(f"clip must be positive, infinite for none, got {clip}")
    if not 0 <= decay < 1:
        raise ValueError(f"decay must be in [0, 1), got {decay}")
    flow.train()
    history = History()
    parameters = [p for p in flow.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, halve_every, gamma=0.5)
    averaged = AveragedModel(flow, multi_avg_fn=exponential_average(decay))
    for step in range(1, steps + 1):
        loss = _loss(flow, batch())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, clip)
        history.loss.append(loss.item())
        if not (torch.isfinite(norm) and torch.isfinite(loss)):
            raise FloatingPointError(
                f"the loss is {loss.item():g} and its gradient {norm.item():g} at step {step}: lower the rate, which "
                f"began at {rate:g}, or look for values in the data that are far from all others"
            )
        optimizer.step()
        schedule.step()
        averaged.update_parameters(flow)
        if progress is not None:
            progress(step, history.loss[-1])
    return cast(F, averaged.module.eval()), history


def _loss(flow: nn.Module, batch: Batch) -> Tensor:
    x, c = (batch, None) if isinstance(batch, Tensor) else (batch[0], batch[1] if len(batch) > 1 else None)
    return -flow(c).log_prob(x).mean()
