"""The Lightning module that trains any flow by maximum likelihood."""

from __future__ import annotations

import math
import warnings
from typing import Any

import lightning.pytorch as lightning
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel

from elflow.training.averaging import exponential_average
from elflow.training.batches import Rows
from elflow.training.recipe import Recipe

__all__ = ["FlowModule"]

MOST_SKIPPED = 20
"""How many steps in a row may be skipped before training gives up."""


class FlowModule(lightning.LightningModule):
    """Maximum likelihood with clipped gradients, averaged weights and a guard against steps that are not finite.

    What is validated, kept and returned is the average of the weights. It is a part of the module, so that checkpoints
    hold both it and the weights that are being trained.

    Arguments:
        flow: Any flow: `flow(context).log_prob(x)` must be its log-density.
        recipe: How to train it.
        seed: Where the random numbers of training start: each round has its own, whatever came before.
    """

    def __init__(self, flow: nn.Module, recipe: Recipe, seed: int = 0) -> None:
        super().__init__()
        self.automatic_optimization = False  # the guard must see a gradient before it is applied
        self.flow = flow
        self.recipe = recipe
        self.seed = seed
        self.averaged = AveragedModel(flow, multi_avg_fn=exponential_average(recipe.ema_decay))
        self.averaged.n_averaged.fill_(1)  # what it is now, is the first of the weights
        self.parts = [p for p in flow.parameters() if p.requires_grad]
        self.history: list[dict[str, float]] = []
        self.best: dict[str, Tensor] = {}
        self.best_score = -math.inf
        self.rounds_since_best = 0
        self.skipped = 0
        self.steps = 0
        self._skipped_in_a_row = 0
        self._sums = {"training": [0.0, 0.0], "validation": [0.0, 0.0]}

    def next_steps(self) -> range:
        """The steps of the round that comes next."""
        return range(self.steps, min(self.steps + self.recipe.round_steps, self.recipe.max_steps))

    def configure_optimizers(self) -> Any:
        recipe = self.recipe
        optimizer = torch.optim.AdamW(self.parts, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)
        return [optimizer], [recipe.scheduler(optimizer)]

    def on_train_epoch_start(self) -> None:
        torch.manual_seed(self.seed * 1_000_003 + self.steps)
        self._sums["training"] = [0.0, 0.0]

    def training_step(self, batch: Rows, _: int) -> None:
        optimizer, scheduler = self.trainer.optimizers[0], self.scheduler
        try:
            total, weight = likelihood(self.flow, batch)
        except ValueError as error:  # weights so large that a network is not finite are refused by the kernel
            if "finite" not in str(error):
                raise
            self.steps += 1
            self._skip(math.nan, math.nan, optimizer)
            return
        loss = -total / batch.length
        optimizer.zero_grad()
        self.manual_backward(loss)
        norm = nn.utils.clip_grad_norm_(self.parts, self.recipe.max_grad_norm)
        self.steps += 1
        if torch.isfinite(norm) and torch.isfinite(loss):
            optimizer.step()
            self.averaged.update_parameters(self.flow)
            self._skipped_in_a_row = 0
            self._add("training", total, weight)
        else:
            self._skip(loss.item(), norm.item(), optimizer)
        if not isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step()

    def _skip(self, loss: float, norm: float, optimizer: torch.optim.Optimizer) -> None:
        """Leaves the weights as they are, halves the rate and says so."""
        self.skipped += 1
        self._skipped_in_a_row += 1
        for group in optimizer.param_groups:
            group["lr"] /= 2
        what = f"the loss was {loss:g} and its gradient {norm:g} at step {self.steps}"
        if self._skipped_in_a_row >= MOST_SKIPPED:
            raise FloatingPointError(
                f"{what}, as in the {MOST_SKIPPED - 1} steps before: lower the rate, which began at "
                f"{self.recipe.learning_rate:g}, or look for values in the data that are far from all others"
            )
        warnings.warn(f"{what}: it is skipped and the rate halved", RuntimeWarning, stacklevel=2)

    def on_validation_epoch_start(self) -> None:
        torch.manual_seed(self.seed)  # the same noise in every round
        self._sums["validation"] = [0.0, 0.0]

    def validation_step(self, batch: Rows, _: int) -> None:
        self._add("validation", *likelihood(self.averaged.module, batch))

    def on_validation_epoch_end(self) -> None:
        score = self._mean("validation")
        self.log_dict({"validation": score, "training": self._mean("training"), "learning_rate": self.rate})
        self.rounds_since_best += 1
        if not math.isfinite(score):
            warnings.warn(f"the held-out likelihood is {score:g} after step {self.steps}", RuntimeWarning, stacklevel=1)
        if score > self.best_score:
            self.rounds_since_best = 0
            self.best_score = score
            self.best = {key: value.detach().clone() for key, value in self.averaged.module.state_dict().items()}
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(score if math.isfinite(score) else -math.inf)

    @property
    def scheduler(self) -> Any:
        """What changes the learning rate."""
        return self.lr_schedulers()

    @property
    def rate(self) -> float:
        """The learning rate as it stands."""
        return float(self.trainer.optimizers[0].param_groups[0]["lr"])

    @property
    def recent(self) -> float:
        """The mean log-density of the batches of this round so far."""
        return self._mean("training")

    def note(self, seconds: float) -> None:
        """Adds the round that has just ended to the history."""
        self.history.append(
            {
                "step": self.steps,
                "seconds": round(seconds, 3),
                "learning_rate": self.rate,
                "training": self._mean("training"),
                "validation": self._mean("validation"),
            }
        )

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["elflow"] = {
            "history": self.history,
            "best": self.best,
            "best_score": self.best_score,
            "rounds_since_best": self.rounds_since_best,
            "skipped": self.skipped,
            "skipped_in_a_row": self._skipped_in_a_row,
            "steps": self.steps,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        state = checkpoint["elflow"]
        self.history, self.best, self.best_score = state["history"], state["best"], state["best_score"]
        self.rounds_since_best = state["rounds_since_best"]
        self.skipped, self._skipped_in_a_row, self.steps = state["skipped"], state["skipped_in_a_row"], state["steps"]

    def _add(self, name: str, total: Tensor, weight: float) -> None:
        self._sums[name][0] += float(total.detach())
        self._sums[name][1] += weight

    def _mean(self, name: str) -> float:
        total, weight = self._sums[name]
        return total / weight if weight else float("nan")


def likelihood(flow: nn.Module, batch: Rows) -> tuple[Tensor, float]:
    """The weighted sum of a batch's log-densities, and the sum of the weights."""
    log_prob = flow(batch.context).log_prob(batch.x)
    if batch.weight is None:
        return log_prob.sum(), float(len(log_prob))
    return (log_prob * batch.weight).sum(), float(batch.weight.sum())
