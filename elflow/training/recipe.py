"""How a flow is trained: every number that decides about it, in one place."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, ReduceLROnPlateau, StepLR

from elflow._checks import check_choice, check_count, check_positive

__all__ = ["SCHEDULES", "Recipe", "image_recipe"]

SCHEDULES = ["constant", "step", "plateau", "cosine", "warmup-exponential"]


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Training goes in rounds: so many steps, then the held-out likelihood.

    Arguments:
        rate: The learning rate of Adam at the beginning.
        schedule: What becomes of it. `"step"` halves it every `halve_every` steps; `"plateau"` halves it whenever the
            held-out likelihood has not grown for `plateau` rounds; `"cosine"` lowers it to zero along a cosine, over
            `max_steps`; `"warmup-exponential"` raises it linearly over `warmup` steps, and after `hold` steps
            multiplies it by `gamma` at each step, down to `least_rate`.
        batch_size: Rows in a batch.
        max_steps: The greatest number of steps.
        round_steps: Steps in a round.
        patience: How many rounds without a better held-out likelihood end the training.
        time_limit: How many seconds it may take; None for no limit.
        clip: The greatest norm of a gradient; longer ones are shortened.
        decay: How much of the averaged weights each step keeps.
        weight_decay: By how much of the rate each step shrinks the weights (AdamW).
        halve_every, plateau, warmup, hold, gamma, least_rate: See `schedule`.

    Example:
        >>> Recipe(learning_rate=1e-3, schedule="warmup-exponential", max_steps=100).learning_rate
        0.001
    """

    learning_rate: float = 3e-3
    schedule: str = "plateau"
    batch_size: int = 256
    max_steps: int = 20_000
    round_steps: int = 200
    patience: int = 20
    time_limit: float | None = None
    max_grad_norm: float = 1.0
    ema_decay: float = 0.998
    weight_decay: float = 0.0
    halve_every: int = 2_500
    plateau_patience: int = 4
    warmup_steps: int = 100
    hold_steps: int = 100_000
    gamma: float = 0.99999
    min_learning_rate: float = 2e-4

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_grad_norm", "gamma", "min_learning_rate"):
            check_positive(name, getattr(self, name))
        for name in (
            "batch_size",
            "max_steps",
            "round_steps",
            "patience",
            "halve_every",
            "plateau_patience",
            "warmup_steps",
        ):
            check_count(name, getattr(self, name))
        check_count("hold_steps", self.hold_steps, least=0)
        check_choice("schedule", self.schedule, SCHEDULES)
        if self.time_limit is not None:
            check_positive("time_limit", self.time_limit)
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be in [0, 1), got {self.ema_decay}")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative, got {self.weight_decay}")

    def to_dict(self) -> dict[str, Any]:
        """What the recipe is made of."""
        return asdict(self)

    def scheduler(self, optimizer: Optimizer) -> LRScheduler | ReduceLROnPlateau:
        """What changes the optimizer's rate: after each round for `"plateau"`, otherwise after each step."""
        if self.schedule == "plateau":
            # Any growth counts: torch's own threshold is relative, which has no meaning for a logarithm.
            return ReduceLROnPlateau(
                optimizer,
                mode="max",
                factor=0.5,
                patience=self.plateau_patience - 1,
                threshold=0.0,
                threshold_mode="abs",
            )
        if self.schedule == "step":
            return StepLR(optimizer, self.halve_every, gamma=0.5)
        if self.schedule == "cosine":
            return CosineAnnealingLR(optimizer, self.max_steps)
        if self.schedule == "constant":
            return StepLR(optimizer, 1, gamma=1.0)
        return WarmupExponential(optimizer, self.warmup_steps, self.hold_steps, self.gamma, self.min_learning_rate)


class WarmupExponential(LRScheduler):
    """A rate that grows linearly, holds, then shrinks by a factor at each step down to the least one.

    Like torch's own it changes the rate that it finds, so that a rate which was halved on the way stays halved.
    """

    def __init__(self, optimizer: Optimizer, warmup: int, hold: int, gamma: float, least: float) -> None:
        self.warmup, self.hold, self.gamma, self.least = warmup, hold, gamma, least
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """The rate after one more step."""
        step = self.last_epoch
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        if step == 0:
            return [rate / self.warmup for rate in rates]
        if step < self.warmup:
            return [rate * (step + 1) / step for rate in rates]
        if step <= self.hold:
            return rates
        return [max(rate * self.gamma, min(rate, self.least)) for rate in rates]


IMAGE_RECIPE = Recipe(
    learning_rate=1e-3,
    schedule="warmup-exponential",
    batch_size=64,
    max_steps=1_000_000,
    round_steps=1_000,
    patience=100,
    max_grad_norm=1.0,
    ema_decay=0.999,
    warmup_steps=100,
    hold_steps=100_000,
    gamma=0.99999,
    min_learning_rate=2e-4,
)
"""The paper's settings for images: 100 steps of warm-up, and a slow decay after 100,000 steps."""
IMAGE_RECIPE_CPU = replace(
    IMAGE_RECIPE,
    learning_rate=4e-3,
    batch_size=32,
    time_limit=600.0,
    round_steps=100,
    ema_decay=0.998,
    hold_steps=2_000,
    gamma=0.9996,
)
"""A larger rate and smaller batches, for ten minutes unless another time limit is set."""


def image_recipe(size: str = "paper") -> Recipe:
    """Training settings for image models.

    Arguments:
        size: As in `elflow.flows.preset`: `"paper"`, or `"cpu"` for ten minutes on a CPU.

    Example:
        >>> image_recipe("cpu").batch_size
        32
    """
    recipes = {"paper": IMAGE_RECIPE, "cpu": IMAGE_RECIPE_CPU}
    check_choice("size", size, recipes)
    return recipes[size]
