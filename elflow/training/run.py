"""State of a training run: steps and rounds that advance it, validation, and what a checkpoint stores of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from elflow._checks import warn_user
from elflow.kernels import NonFiniteError, has_double
from elflow.training.averages import ExponentialAverage, Mean
from elflow.training.monitor import Monitor
from elflow.training.processes import LogLikelihood, gather_log_probs, is_any, sum_means, sum_rows, take_share
from elflow.training.recipe import Recipe
from elflow.training.rows import Rows, RowSource, StreamSource
from elflow.training.selection import Selection

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Run"]

MAX_BLOCK_ROWS = 4_096
"""Maximum number of validation rows scored at once."""
MAX_SKIPPED = 20
"""Number of consecutive skipped steps after which training goes back to its best weights, or fails without any."""
MAX_OVERFLOWS = 3
"""Number of skipped steps after which a part that caused them is not trained any more, if there are others."""
MAX_LAG = 1e4
"""Nats per row by which a part is behind the best one if it causes a skipped step, and a flow behind its best round if
its weights are lost."""
MIN_TIME_SHARE = 0.1
"""Share of the time limit after which parts that cannot take all their steps within it are not trained any more."""
TIME_TOLERANCE = 0.2
"""Part of the steps of a part that may be missing: its learning rate decays before the time limit anyway."""
_COUNTERS = ["history", "step", "skipped", "skipped_in_a_row", "halvings", "stopped", "overflows"]
"""Attributes of `Run` that a checkpoint stores unchanged."""


class Run:
    """State of a training run, and the steps and rounds that advance it.

    The averaged weights are validated, stored and returned. The parts of a mixture are selected independently.
    """

    def __init__(self, flow: nn.Module, recipe: Recipe, fabric: Fabric, start: float) -> None:
        self.recipe = recipe
        self.fabric = fabric
        flow = flow.to(fabric.device)
        self.flow = flow
        optimizer = recipe.make_optimizer(flow)
        self.scheduler = recipe.make_scheduler(optimizer)
        # All processes start from the weights of the first one: setup copies them, to be averaged afterwards.
        self.module, self.optimizer = fabric.setup(LogLikelihood(flow), optimizer)
        self.averaged = ExponentialAverage(flow, recipe.ema_decay)
        self.history: list[dict[str, float]] = []
        self.selection = Selection(flow, recipe.patience, recipe.race_steps)
        self.step = 0
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.halvings = 0  # of the learning rate by skipped steps, since weights were good or restored
        self.overflows = [0] * len(self.selection.parts)  # skipped steps that each part has caused
        self.stopped = ""
        self.is_cooling = False  # whether a rate was lowered because the time limit is near
        self._seconds_before = 0.0  # of earlier runs, which this one continues
        self._start = start  # the time before the initialisation of the flow
        self._training_mean = Mean()
        self._round_end: int | None = None  # the last step of a round that is not validated yet
        self._random_state: list[Tensor] | None = None  # of the round of a checkpoint that continues in this run
        self.check_interrupt: Callable[[], None] = lambda: None

    @property
    def seconds(self) -> float:
        """Wall-clock time over all runs."""
        return self._seconds_before + time.monotonic() - self._start

    @property
    def learning_rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def train_round(self, source: RowSource | StreamSource, seed: int, monitor: Monitor | None) -> bool:
        """Train for one round, and return whether it is complete: the time limit may cut it short."""
        if self._round_end is None:
            # The noise of a round depends on seed and step only: a resumed training draws the same, and so do processes
            # that share its batches.
            torch.manual_seed(seed * 1_000_003 + self.step)
            self._training_mean = Mean()
            self._round_end = self.recipe.end_of_round(self.step)
        elif self._random_state is not None:
            self._set_random_state(self._random_state)
            self._random_state = None
        end = self._round_end
        for batch in source.iter_batches(range(self.step, end)):
            self.train_step(batch)
            if monitor is not None:
                monitor.advance(self.step, self._training_mean.value)
            if self._time_left() <= 0:
                break
            self.check_interrupt()
        return self.step == end

    @property
    def is_storable(self) -> bool:
        """Whether a run with a longer time limit would have reached the same state, except for parts without time."""
        return not self.is_cooling

    def _get_random_state(self) -> list[Tensor]:
        """States of the generators that draw noise: of the CPU, and of the device if it has its own."""
        device = self.fabric.device
        return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

    def _set_random_state(self, states: Sequence[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1 and self.fabric.device.type == "cuda":
            torch.cuda.set_rng_state(states[1], self.fabric.device)

    def train_step(self, batch: Rows) -> None:
        """One step of the optimizer on a batch of all processes.

        A step whose loss or gradient is not finite is skipped.
        """
        self.step += 1
        total, weight, is_refused = torch.tensor(math.nan), 0.0, False
        try:
            total, weight = self.module(take_share(batch, self.flow, self.fabric))
        except NonFiniteError:  # weights so large that the networks overflow
            is_refused = True
        loss = norm = torch.tensor(math.nan)
        if not is_any(is_refused, self.fabric):  # otherwise no process may wait for the gradients of the others
            # Gradients are averaged over processes, whose shares may differ by a row.
            loss = -total * self.fabric.world_size / len(batch)
            self.optimizer.zero_grad()
            self.fabric.backward(loss)
            clipped = self.fabric.clip_gradients(
                self.module, self.optimizer, max_norm=self.recipe.max_grad_norm, error_if_nonfinite=False
            )
            norm = cast(Tensor, clipped)  # there is a norm, as max_norm is given
        # The norm is the same in all processes, unlike the loss.
        if torch.isfinite(norm) and not is_any(not bool(torch.isfinite(loss)), self.fabric):
            self._update_weights()
            self.averaged.update()
            self.skipped_in_a_row = 0
            self._training_mean.add(total, weight)
        else:
            self._skip(loss.item(), norm.item(), batch)
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()

    def _drop_parts_without_time(self, n_parts: int) -> None:
        """Train only as many parts as can take all their steps within the time limit, and at least the best one.

        Half of the steps of a cosine are worth little: the learning rate is still high. Other schedules have no end
        that a part must reach.

        Arguments:
            n_parts: Number of parts that were trained in the last round.
        """
        left = self._time_left()
        has_end = self.recipe.schedule == "cosine" and 0 < left < 1 - MIN_TIME_SHARE
        if len(self.selection.trained) < 2 or not self.history or not has_end:
            return
        before = self.history[-1]
        limit = cast(float, self.recipe.time_limit)
        n_steps = (self.step - before["step"]) * left * limit / max(self.seconds - before["seconds"], 1e-9)
        n_needed = max(1, self.recipe.max_steps - self.step)
        n_possible = int(n_parts * n_steps / n_needed + TIME_TOLERANCE)
        # The first process decides: the clocks of the others differ.
        self.selection.train_best(max(1, self.fabric.broadcast(n_possible)))

    def _freeze_finished_parts(self) -> None:
        """Leave parts that are not trained any more out of the gradients for which the processes wait."""
        selection = self.selection
        finished = [selection.parts[k] for k in selection.trainable if k not in selection.trained]
        parameters = [p for part in finished for p in self.flow.get_submodule(part).parameters() if p.requires_grad]
        if self.fabric.world_size == 1 or not parameters or not selection.trained:
            return
        for parameter in parameters:
            parameter.requires_grad_(False)
        # The wrapper of DistributedDataParallel expects a gradient of all parameters that it was built with.
        self.module = self.fabric.setup_module(LogLikelihood(self.flow))

    def _update_weights(self) -> None:
        """A step of the optimizer, with a lower learning rate near the time limit."""
        left = self._time_left()
        if not 0 < left < self.recipe.cooldown:
            self.optimizer.step()
            return
        self.is_cooling = True
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"] *= left / self.recipe.cooldown
        self.optimizer.step()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # the schedule starts from the rate without cooling

    def _skip(self, loss: float, norm: float, batch: Rows) -> None:
        """Leave the weights unchanged, halve the learning rate and warn.

        A part that has caused several skipped steps is not trained any more, for instance one whose density of columns
        that determine each other grows without limit. The other parts go on.
        """
        self.skipped += 1
        causes = self._find_overflowing_parts(batch)
        for k in causes:
            self.overflows[k] += 1
        kept = [k for k in self.selection.trained if self.overflows[k] < MAX_OVERFLOWS]
        if causes and kept and kept != self.selection.trained:
            self.selection.train(kept)
            self._freeze_finished_parts()
            self.skipped_in_a_row = 0
            return
        self.skipped_in_a_row += 1
        self._scale_rates(0.5)
        self.halvings += 1
        problem = f"the loss was {loss:g} and the norm of its gradient {norm:g} at step {self.step}"
        can_restore = self._can_restore()
        if self.skipped_in_a_row == MAX_SKIPPED and can_restore:
            self._restore(f"{problem}, as in the previous {MAX_SKIPPED - 1} steps")
            return
        if self.skipped_in_a_row >= MAX_SKIPPED * (2 if can_restore else 1):
            raise FloatingPointError(
                f"{problem}, as in the previous {self.skipped_in_a_row - 1} steps: lower learning_rate (now "
                f"{self.recipe.learning_rate:g}), or check the data for outliers and for columns that determine each "
                "other"
            )
        if causes and kept:
            return  # the other parts are trained
        warn_user(f"{problem}: the step is skipped and the learning rate halved", RuntimeWarning)

    def _scale_rates(self, factor: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] *= factor

    @torch.no_grad()
    def _find_overflowing_parts(self, batch: Rows) -> list[int]:
        """Parts whose log-density of a batch is not finite, or far below that of the best part."""
        trained = self.selection.trained
        if len(trained) < 2:
            return []
        with torch.random.fork_rng(devices=[]):
            share = take_share(batch, self.flow, self.fabric)
        means = self._score_parts(cast(Any, self.flow), share).double().mean(1).tolist()
        best = max((means[k] for k in trained if math.isfinite(means[k])), default=-math.inf)
        return [k for k in trained if is_any(not means[k] > best - MAX_LAG, self.fabric)]

    @torch.no_grad()
    def validate(self, validation: Rows | None, seed: int) -> dict[str, float]:
        """Score the averaged weights, keep the best ones, and decide whether to stop."""
        entry = {
            "step": self.step,
            "seconds": 0.0,
            "learning_rate": self.learning_rate,
            "training": sum_means(self._training_mean, self.fabric).value,
        }
        score, is_lost = entry["training"], False
        self.averaged.copy_buffers()
        weights = self.averaged.module.state_dict()
        if validation is None:
            self.selection.keep(weights)
        else:
            scores, score = self._score(validation, seed)
            entry["validation"] = score
            n_parts = len(self.selection.trained)
            self.selection.update(weights, scores, self.step)
            is_lost = self._can_restore() and not scores[0] > self.selection.scores[0] - MAX_LAG
            self._drop_parts_without_time(n_parts)
            self._freeze_finished_parts()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(score if math.isfinite(score) else -math.inf)
        if self.step >= self.recipe.max_steps:
            self.stopped = "max_steps"
        elif not self.selection.trained:
            self.stopped = "patience"
        elif self._time_left() <= 0:
            self.stopped = "time_limit"
        if is_lost and not self.stopped:
            self._restore(f"the held-out log-likelihood was {score:g} after step {self.step}")
        elif validation is not None and not math.isfinite(score):
            warn_user(f"the held-out log-likelihood is {score:g} after step {self.step}", RuntimeWarning)
        if not self.skipped_in_a_row:
            self.halvings = 0
        entry["seconds"] = round(self.seconds, 3)
        self.history.append(entry)
        self._round_end = None
        return entry

    def _can_restore(self) -> bool:
        """Whether to go back to the best weights if the present ones are lost: those of a flow without parts.

        Parts of a mixture that are lost, such as those of columns that determine each other, leave it to the others.
        """
        return len(self.selection.parts) == 1 and self.selection.scores[0] > -math.inf

    @torch.no_grad()
    def _restore(self, problem: str) -> None:
        """Go on from the best weights with half the learning rate, and warn.

        One step may lead so far away that no number of steps leads back.
        """
        for module in (self.flow, self.averaged.module):
            module.load_state_dict(self.selection.weights)
        self.optimizer.state.clear()
        # The rate has been halved by each skipped step, as if it had been the reason.
        self._scale_rates(2.0**self.halvings / 2)
        self.halvings = 0
        warn_user(f"{problem}: training goes on from its best weights with half the learning rate", RuntimeWarning)

    def _score(self, validation: Rows, seed: int) -> tuple[list[float], float]:
        """Mean log-density of the validation rows under the averaged weights: of each part of the flow, and of all.

        The noise is the same in every round.
        """
        torch.manual_seed(seed)
        flow = cast(Any, self.averaged.module.eval())
        blocks = []
        for start in range(0, len(validation), MAX_BLOCK_ROWS):
            block = validation.take(slice(start, start + MAX_BLOCK_ROWS))
            log_probs = self._score_parts(flow, take_share(block, self.flow, self.fabric))
            blocks.append(gather_log_probs(log_probs, len(block), self.fabric))
            self.check_interrupt()
        flow.train()
        log_probs = torch.cat(blocks, 1)
        weight = None if validation.weight is None else validation.weight.to(log_probs.device)
        whole = [] if len(log_probs) == 1 else [flow.combine(log_probs, weight)]
        values = []
        for log_prob in [*log_probs, *whole]:
            mean = Mean()
            mean.add(*sum_rows(log_prob.double() if has_double(log_prob.device) else log_prob, weight))
            values.append(mean.value)
        return values[: len(log_probs)], values[-1]

    def _score_parts(self, flow: Any, rows: Rows) -> Tensor:
        """Log-densities of rows under each part of the flow, `(parts, N)`; NaN if the networks overflow."""
        n_parts = len(self.selection.parts)
        try:
            if len(rows):
                distribution = flow(rows.context)
                return rows.log_prob(distribution)[None] if n_parts == 1 else rows.log_prob(distribution, "log_probs")
        except NonFiniteError:  # weights so large that the networks overflow
            pass
        dtype = next((weights.dtype for weights in flow.parameters()), None)
        return torch.full((n_parts, len(rows)), math.nan, dtype=dtype, device=self.fabric.device)

    def _time_left(self) -> float:
        """Fraction of the time limit that is left; 1 without a limit."""
        limit = self.recipe.time_limit
        return 1.0 if limit is None else float(self.fabric.broadcast(1 - self.seconds / limit))  # the same for all

    def load_best(self) -> nn.Module:
        """Load the best averaged weights, and return their flow."""
        if not self.selection.weights:
            raise FloatingPointError(
                f"the held-out log-likelihood was never finite: lower learning_rate (now "
                f"{self.recipe.learning_rate:g}), or check the data for outliers"
            )
        self.averaged.module.load_state_dict(self.selection.weights)
        return self.averaged.module

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {
            "flow": self.flow.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "selection": self.selection.state_dict(),
            "seconds": self.seconds,
            "round": None if self._round_end is None else self._get_round_state(),
        } | {name: getattr(self, name) for name in _COUNTERS}

    def _get_round_state(self) -> dict[str, Any]:
        """State of a round that is not complete."""
        mean = self._training_mean
        return {"end": self._round_end, "mean": [mean.total, mean.weight], "random": self._get_random_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a checkpoint."""
        self.flow.load_state_dict(state["flow"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.selection.load_state_dict(state["selection"])
        self._freeze_finished_parts()
        self._seconds_before = state["seconds"]
        if (begun := state["round"]) is not None:
            self._round_end, self._random_state = begun["end"], begun["random"]
            self._training_mean.total, self._training_mean.weight = begun["mean"]
        for name in _COUNTERS:
            setattr(self, name, state.get(name, getattr(self, name)))  # earlier versions had fewer
        if self.stopped in ("", "time_limit"):  # the new time limit may be longer
            self.stopped = "time_limit" if self.selection.weights and self._time_left() <= 0 else ""
