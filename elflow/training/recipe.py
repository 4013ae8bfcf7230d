"""Training settings: learning rate, schedule, batch size, limits and averaging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler, ReduceLROnPlateau, StepLR

from elflow._checks import check_choice, check_count, check_positive
from elflow.training.muon import Layout, Muon, find_matrices
from elflow.training.selection import list_parts

__all__ = ["OPTIMIZERS", "SCHEDULES", "Recipe", "image_recipe"]

OPTIMIZERS = ["adamw", "adam", "muon"]
SCHEDULES = ["constant", "step", "plateau", "cosine", "warmup-exponential"]


@dataclass(frozen=True)
class Recipe:
    """Training settings.

    Training proceeds in rounds of `round_steps` steps; after each, the validation rows are scored.

    Arguments:
        learning_rate: Initial learning rate.
        schedule: Learning-rate schedule. `"constant"` keeps it; `"step"` halves it every `halve_every` steps;
            `"plateau"` halves it when the held-out log-likelihood has not improved by more than `plateau_threshold` for
            `plateau_patience` rounds, down to `plateau_floor`;
            `"cosine"` decays it to zero over `max_steps`; `"warmup-exponential"` increases it linearly over
            `warmup_steps`, holds it until step `hold_steps`, then multiplies it by `gamma` at each step, down to
            `min_learning_rate`.
        batch_size: Number of rows in a batch.
        max_steps: Maximum number of steps.
        round_steps: Number of steps in a round.
        early_rounds: Number of additional rounds within the first one: with 3 of them, rounds end after an eighth, a
            quarter and a half of `round_steps`, for data that are learnt, or overfitted, in a few steps.
        patience: Number of rounds without a better held-out log-likelihood after which training stops.
        race_steps: Number of steps after which only the best member of a mixture is trained; None trains all of them.
        time_limit: Maximum time in seconds, over all runs if training is resumed; None for no limit. After a tenth of
            it, with a cosine, only as many members of a mixture are trained as can take all their steps within it.
        cooldown: Fraction of the time limit, at its end, over which the learning rate decays to zero. A checkpoint has
            the state before, so that a training which resumes with more time is not changed by it.
        max_grad_norm: Maximum norm of the gradient; longer gradients are scaled down. Infinity for no clipping.
        ema_decay: Decay of the exponential moving average of the weights; 0 for no averaging.
        weight_decay: Weight decay. Except with `"adam"`, it shrinks matrices of weights only: a density that depends on
            nothing else than biases may have any shape.
        halve_every: See `schedule`.
        plateau_patience: See `schedule`.
        plateau_threshold: See `schedule`; in nats.
        plateau_floor: See `schedule`.
        warmup_steps: See `schedule`.
        hold_steps: See `schedule`.
        gamma: See `schedule`.
        min_learning_rate: See `schedule`.
        optimizer: `"adamw"`, whose weight decay shrinks the weights by themselves; `"adam"`, which adds it to the
            gradient of all parameters, as in the paper; or `"muon"`, which orthogonalises the updates of matrices: see
            `elflow.training.Muon`. For a mixture, a list of `"adamw"` and `"muon"` has one for each member. The
            first one is that of flows that are one part.

    Example:
        >>> recipe = Recipe(schedule="cosine", max_steps=5_000)
        >>> recipe.learning_rate, recipe.batch_size
        (0.003, 256)
    """

    learning_rate: float = 3e-3
    schedule: str = "plateau"
    batch_size: int = 256
    max_steps: int = 20_000
    round_steps: int = 200
    early_rounds: int = 0
    patience: int = 20
    race_steps: int | None = None
    time_limit: float | None = None
    cooldown: float = 0.25
    max_grad_norm: float = 1.0
    ema_decay: float = 0.998
    weight_decay: float = 0.0
    halve_every: int = 2_500
    plateau_patience: int = 4
    warmup_steps: int = 100
    hold_steps: int = 100_000
    gamma: float = 0.99999
    min_learning_rate: float = 2e-4
    plateau_threshold: float = 0.0
    plateau_floor: float = 0.0
    optimizer: str | Sequence[str] = "adamw"

    def __post_init__(self) -> None:
        # Checked values are stored as Python's own numbers: NumPy scalars, as of parameter grids, do not fit into JSON.
        for name in ("learning_rate", "gamma", "min_learning_rate"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        for name in ("batch_size", "max_steps", "round_steps", "patience"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        for name in ("halve_every", "plateau_patience", "warmup_steps"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        for name in ("hold_steps", "early_rounds"):
            object.__setattr__(self, name, check_count(name, getattr(self, name), least=0))
        check_choice("schedule", self.schedule, SCHEDULES)
        if self.race_steps is not None:
            object.__setattr__(self, "race_steps", check_count("race_steps", self.race_steps))
        if isinstance(self.optimizer, str):
            check_choice("optimizer", self.optimizer, OPTIMIZERS)
        else:
            object.__setattr__(self, "optimizer", (*self.optimizer,))
            if not self.optimizer or not {*self.optimizer} <= {"adamw", "muon"}:
                raise ValueError(f"optimizer must be a name or a list of 'adamw' and 'muon', got {[*self.optimizer]!r}")
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", check_positive("time_limit", self.time_limit))
        if not self.max_grad_norm > 0:
            raise ValueError(f"max_grad_norm must be positive (inf disables clipping), got {self.max_grad_norm}")
        for name in ("ema_decay", "cooldown"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("weight_decay", "plateau_threshold", "plateau_floor"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("max_grad_norm", "ema_decay", "weight_decay", "cooldown", "plateau_threshold", "plateau_floor"):
            object.__setattr__(self, name, float(getattr(self, name)))

    def to_dict(self) -> dict[str, Any]:
        """The settings as a dictionary for JSON."""
        return asdict(self)

    def end_of_round(self, step: int) -> int:
        """Number of steps at the end of the round that begins after `step` steps.

        Example:
            >>> recipe, ends = Recipe(round_steps=100, early_rounds=2, max_steps=250), [0]
            >>> while ends[-1] < 250:
            ...     ends.append(recipe.end_of_round(ends[-1]))
            >>> ends
            [0, 25, 50, 100, 200, 250]
        """
        early = [self.round_steps >> k for k in range(self.early_rounds, 0, -1)]
        end = next((end for end in early if end > step), (step // self.round_steps + 1) * self.round_steps)
        return min(end, self.max_steps)

    def make_optimizer(self, flow: nn.Module) -> Optimizer:
        """The optimizer of the trainable parameters of a flow."""
        named = [(name, p) for name, p in flow.named_parameters() if p.requires_grad]
        if self.optimizer == "adam":
            return Adam([p for _, p in named], lr=self.learning_rate, weight_decay=self.weight_decay, fused=True)
        names = [self.optimizer] if isinstance(self.optimizer, str) else self.optimizer
        # Members beyond the list have no parameters, as the Gaussians of a mixture, which come last.
        parts = [part for k, part in enumerate(list_parts(flow)) if names[min(k, len(names) - 1)] == "muon"]
        matrices: dict[Tensor, Layout] = {}
        for part in parts:
            matrices |= find_matrices(flow.get_submodule(part))
        orthogonal = [p for _, p in named if p in matrices]
        weights = [p for name, p in named if p not in matrices and _is_weight(name, p)]
        others = [p for name, p in named if p not in matrices and not _is_weight(name, p)]
        groups: list[dict[str, Any]] = [
            {"params": orthogonal, "weight_decay": self.weight_decay, "orthogonal": True},
            {"params": weights, "weight_decay": self.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        groups = [group for group in groups if group["params"]]  # the first group tells the learning rate
        if "muon" in names:
            return Muon(groups, matrices, lr=self.learning_rate)
        return AdamW(groups, lr=self.learning_rate, fused=True)

    def make_scheduler(self, optimizer: Optimizer) -> LRScheduler | ReduceLROnPlateau:
        """Learning-rate scheduler; `"plateau"` steps after each round, all others after each training step."""
        if self.schedule == "plateau":
            # torch's default threshold is relative, which has no meaning for a log-likelihood.
            return ReduceLROnPlateau(
                optimizer,
                mode="max",
                factor=0.5,
                patience=self.plateau_patience - 1,
                threshold=self.plateau_threshold,
                threshold_mode="abs",
                min_lr=self.plateau_floor,
            )
        if self.schedule == "step":
            return StepLR(optimizer, self.halve_every, gamma=0.5)
        if self.schedule == "cosine":
            return CosineAnnealingLR(optimizer, self.max_steps)
        if self.schedule == "constant":
            return StepLR(optimizer, 1, gamma=1.0)
        return WarmupExponential(optimizer, self.warmup_steps, self.hold_steps, self.gamma, self.min_learning_rate)


def _is_weight(name: str, parameter: Parameter) -> bool:
    """Whether a parameter is a matrix of weights, and no bias, location, scale or network without inputs."""
    return parameter.dim() > 1 and len(parameter) > 1 and not name.endswith("bias")


class WarmupExponential(LRScheduler):
    """Linear warm-up, a constant phase, then exponential decay down to a minimum.

    Like torch's schedulers it multiplies the current rate, so that a rate halved by a skipped step stays halved.
    """

    def __init__(self, optimizer: Optimizer, warmup_steps: int, hold_steps: int, gamma: float, minimum: float) -> None:
        self.warmup_steps, self.hold_steps, self.gamma, self.minimum = warmup_steps, hold_steps, gamma, minimum
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        """Learning rates of the next step."""
        step = self.last_epoch
        rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        if step == 0:
            return [rate / self.warmup_steps for rate in rates]
        if step < self.warmup_steps:
            return [rate * (step + 1) / step for rate in rates]
        if step <= self.hold_steps:
            return rates
        return [max(rate * self.gamma, min(rate, self.minimum)) for rate in rates]


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
"""Settings of the paper for images: 100 steps of warm-up, and a slow decay after 100,000 steps."""
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
"""Settings for ten minutes on a CPU: a larger learning rate and smaller batches."""


def image_recipe(size: str = "gpu") -> Recipe:
    """Training settings for image models.

    Arguments:
        size: As in `elflow.flows.preset`: `"paper"` and `"gpu"` for the paper's settings, `"cpu"` for ten minutes on a
            CPU.

    Example:
        >>> image_recipe("cpu").batch_size
        32
    """
    recipes = {"paper": IMAGE_RECIPE, "gpu": IMAGE_RECIPE, "cpu": IMAGE_RECIPE_CPU}
    check_choice("size", size, recipes)
    return recipes[size]
