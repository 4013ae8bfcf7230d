"""Training loop: maximum likelihood with Lightning Fabric, early stopping and averaged weights."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from elflow._checks import warn_user
from elflow._interrupts import Interrupted, deferring_interrupts
from elflow.kernels import NonFiniteError, has_double
from elflow.training.averages import ExponentialAverage, Mean
from elflow.training.checkpoint import compute_fingerprint, read_shared_checkpoint, write_checkpoint
from elflow.training.devices import make_fabric, name_lost_process
from elflow.training.monitor import Monitor
from elflow.training.recipe import Recipe
from elflow.training.record import Training
from elflow.training.rows import Batch, Rows, RowSource, StreamSource, as_rows
from elflow.training.selection import Selection

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["fit"]

F = TypeVar("F", bound=nn.Module)
Data = Batch | Callable[[], Batch]
OnRoundEnd = Callable[[Any, dict[str, float]], None]

N_INITIAL_ROWS = 10_000
"""Number of rows that initialise a flow."""
MAX_BLOCK_ROWS = 4_096
"""Maximum number of validation rows scored at once."""
MAX_SKIPPED = 20
"""Number of consecutive skipped steps after which training fails."""


def fit(
    flow: F,
    data: Data,
    validation: Batch | None = None,
    recipe: Recipe | None = None,
    *,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    fingerprint: str = "",
    log_dir: str | os.PathLike[str] | None = None,
    verbose: bool = False,
    on_round_end: OnRoundEnd | None = None,
    fabric: Fabric | None = None,
) -> tuple[F, Training]:
    """Train a flow of elflow or zuko by maximum likelihood.

    Training proceeds in rounds of `recipe.round_steps` steps. After each round the averaged weights are scored on the
    validation rows. Batches and noise depend only on the seed and the step, so that a run which resumes from its
    checkpoint ends with the weights of one that was never interrupted, bit for bit. Several processes share each batch
    and its noise, and follow the training of one process up to rounding. The command line stores the state after the
    last step, too, when it is interrupted by a signal.

    Arguments:
        flow: The flow; any module for which `flow(context).log_prob(x)` is the log-density. It is not modified.
        data: Training data: `Rows`, a tensor `(N, features)`, a pair of features and context, or a function that
            returns the next batch in one of these forms, the same in all processes.
        validation: Held-out data, which select the best weights, drive the plateau schedule and stop training.
            Without them the last averaged weights are returned, and only steps and time stop training.
        recipe: Training settings.
        seed: Seed of batches and noise.
        checkpoint: A file that stores the state after every round. If it exists, training resumes from it. It is not
            removed at the end. A second training with the same file is refused.
        fingerprint: Text that identifies the data, if `data` is a function. A checkpoint is rejected if this text, the
            rows, the settings other than the time limit, or the shapes of the weights differ.
        log_dir: A folder for logs as CSV and, if TensorBoard is installed, for TensorBoard.
        verbose: Whether to show a progress bar.
        on_round_end: Called after each round with the flow of averaged weights, in evaluation mode, and the round's
            entry of the history; in the first process only.
        fabric: A launched `lightning_fabric.Fabric` for other devices, precisions or several processes, such as that of
            `make_fabric`; by default one CPU device.

    Returns:
        A copy of the flow with the best averaged weights, in evaluation mode, and the training record. The flow is on
        the device of the training.

    Example:
        >>> import elflow
        >>> flow = elflow.ELF(features=2, transforms=1, units=8, hidden_features=(16,))
        >>> x = 3 + 2 * torch.randn(1000, 2)
        >>> best, training = fit(flow, x[:900], x[900:], Recipe(max_steps=100, round_steps=50))
        >>> [entry["step"] for entry in training.history]
        [50, 100]
    """
    recipe = recipe or Recipe()
    fabric = fabric or make_fabric("cpu")
    source = _make_source(data, recipe.batch_size, seed, fabric)
    held_out = None if validation is None else as_rows("validation", validation)
    if held_out is not None:
        held_out.check("validation")
    with ExitStack() as stack:
        path, state = None, None
        if checkpoint is not None:
            path = Path(checkpoint)
            fingerprint = compute_fingerprint(fingerprint, flow, source, held_out, recipe, seed)
            state = read_shared_checkpoint(path, fingerprint, fabric, stack)
        start = time.monotonic()
        stack.enter_context(torch.random.fork_rng(devices=[fabric.device] if fabric.device.type == "cuda" else []))
        torch.manual_seed(seed)
        flow = deepcopy(flow).cpu().train()
        if state is None and (initialize := getattr(flow, "initialize", None)):
            # On the CPU of every process, from the same rows: not every device has double precision.
            initial = source.take_initial(N_INITIAL_ROWS).to(torch.device("cpu"))
            initialize(initial.x, initial.context)
        run = _Run(flow, recipe, fabric, start)
        if state is not None:
            run.load_state_dict(state)
        monitor = stack.enter_context(Monitor(recipe, log_dir, verbose)) if fabric.is_global_zero else None
        stack.enter_context(name_lost_process(fabric))
        # Several processes would wait for one that ends after another step than they do.
        is_deferring = path is not None and fabric.world_size == 1
        while not run.stopped:
            with deferring_interrupts() if is_deferring else nullcontext(lambda: None) as run.check_interrupt:
                try:
                    is_complete = run.train_round(source, seed, monitor)
                    entry = run.validate(held_out, seed)
                except Interrupted as error:
                    # A second signal may arrive in the midst of a step, whose state must not be stored.
                    if path is not None and error.is_deferred and run.is_storable:
                        write_checkpoint(path, run.state_dict(), fingerprint)
                    raise
                if monitor is not None:
                    monitor.end_round(entry, run.selection.rounds_left)
                # Rounds that the time limit has changed are not stored: a resumed run with more time repeats them.
                if path is not None and is_complete and run.is_storable and fabric.is_global_zero:
                    write_checkpoint(path, run.state_dict(), fingerprint)
            if on_round_end is not None and fabric.is_global_zero:
                with torch.random.fork_rng(devices=[]):
                    on_round_end(run.averaged.module.eval(), entry)
                run.averaged.module.train()
        best = run.load_best()
    return cast(F, best.eval()), Training(run.history, run.seconds, run.stopped, run.skipped)


class _Run:
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
        """Whether a run with a longer time limit would have reached the same state."""
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
            total, weight = self.module(self._take_share(batch))
        except NonFiniteError:  # weights so large that the networks overflow
            is_refused = True
        loss = norm = torch.tensor(math.nan)
        if not self._is_any(is_refused):  # otherwise no process may wait for the gradients of the others
            # Gradients are averaged over processes, whose shares may differ by a row.
            loss = -total * self.fabric.world_size / len(batch)
            self.optimizer.zero_grad()
            self.fabric.backward(loss)
            clipped = self.fabric.clip_gradients(
                self.module, self.optimizer, max_norm=self.recipe.max_grad_norm, error_if_nonfinite=False
            )
            norm = cast(Tensor, clipped)  # there is a norm, as max_norm is given
        # The norm is the same in all processes, unlike the loss.
        if torch.isfinite(norm) and not self._is_any(not bool(torch.isfinite(loss))):
            self._update_weights()
            self.averaged.update()
            self.skipped_in_a_row = 0
            self._training_mean.add(total, weight)
        else:
            self._skip(loss.item(), norm.item())
        if not isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step()

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

    def _take_share(self, rows: Rows) -> Rows:
        """The share of this process in rows of all processes, with its noise."""
        rows = rows.draw_noise(self.flow)
        if self.fabric.world_size > 1:
            rows = rows.take(slice(self.fabric.global_rank, None, self.fabric.world_size))
        return rows.to(self.fabric.device)

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

    def _is_any(self, condition: bool) -> bool:
        """Whether a condition holds in any of the processes, so that all of them take the same decision."""
        if self.fabric.world_size == 1:
            return condition
        count = torch.tensor(float(condition), device=self.fabric.device)
        return bool(cast(Tensor, self.fabric.all_reduce(count, reduce_op="sum")) > 0)

    def _skip(self, loss: float, norm: float) -> None:
        """Leave the weights unchanged, halve the learning rate and warn."""
        self.skipped += 1
        self.skipped_in_a_row += 1
        for group in self.optimizer.param_groups:
            group["lr"] /= 2
        problem = f"the loss was {loss:g} and the norm of its gradient {norm:g} at step {self.step}"
        if self.skipped_in_a_row >= MAX_SKIPPED:
            raise FloatingPointError(
                f"{problem}, as in the previous {MAX_SKIPPED - 1} steps: lower learning_rate (now "
                f"{self.recipe.learning_rate:g}), or check the data for outliers"
            )
        warn_user(f"{problem}: the step is skipped and the learning rate halved", RuntimeWarning)

    @torch.no_grad()
    def validate(self, validation: Rows | None, seed: int) -> dict[str, float]:
        """Score the averaged weights, keep the best ones, and decide whether to stop."""
        entry = {
            "step": self.step,
            "seconds": 0.0,
            "learning_rate": self.learning_rate,
            "training": self._sum_over_processes(self._training_mean).value,
        }
        score = entry["training"]
        self.averaged.copy_buffers()
        weights = self.averaged.module.state_dict()
        if validation is None:
            self.selection.keep(weights)
        else:
            scores, score = self._score(validation, seed)
            entry["validation"] = score
            if not math.isfinite(score):
                warn_user(f"the held-out log-likelihood is {score:g} after step {self.step}", RuntimeWarning)
            self.selection.update(weights, scores, self.step)
            self._freeze_finished_parts()
        if isinstance(self.scheduler, ReduceLROnPlateau):
            self.scheduler.step(score if math.isfinite(score) else -math.inf)
        if self.step >= self.recipe.max_steps:
            self.stopped = "max_steps"
        elif not self.selection.trained:
            self.stopped = "patience"
        elif self._time_left() <= 0:
            self.stopped = "time_limit"
        entry["seconds"] = round(self.seconds, 3)
        self.history.append(entry)
        self._round_end = None
        return entry

    def _score(self, validation: Rows, seed: int) -> tuple[list[float], float]:
        """Mean log-density of the validation rows under the averaged weights: of each part of the flow, and of all.

        The noise is the same in every round.
        """
        torch.manual_seed(seed)
        flow = cast(Any, self.averaged.module.eval())
        blocks = []
        for start in range(0, len(validation), MAX_BLOCK_ROWS):
            block = validation.take(slice(start, start + MAX_BLOCK_ROWS))
            blocks.append(self._gather(self._score_parts(flow, self._take_share(block)), len(block)))
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

    def _gather(self, log_probs: Tensor, count: int) -> Tensor:
        """Log-densities of `count` rows, `(parts, count)`, from the shares of all processes, which take turns."""
        n_processes = self.fabric.world_size
        if n_processes == 1:
            return log_probs
        size = -(-count // n_processes)
        shares = self.fabric.all_gather(nn.functional.pad(log_probs, (0, size - log_probs.shape[1])))
        return cast(Tensor, shares).movedim(0, -1).flatten(1)[:, :count]

    def _sum_over_processes(self, mean: Mean) -> Mean:
        """The mean over the rows of all processes."""
        if self.fabric.world_size == 1:
            return mean
        sums = torch.tensor([mean.total, mean.weight], dtype=torch.float64, device=self.fabric.device)
        total = Mean()
        total.total, total.weight = cast(Tensor, self.fabric.all_reduce(sums, reduce_op="sum")).tolist()
        return total

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
            setattr(self, name, state[name])
        if self.stopped in ("", "time_limit"):  # the new time limit may be longer
            self.stopped = "time_limit" if self.selection.weights and self._time_left() <= 0 else ""


_COUNTERS = ["history", "step", "skipped", "skipped_in_a_row", "stopped"]
"""Attributes of `_Run` that a checkpoint stores unchanged."""


class LogLikelihood(nn.Module):
    """Log-likelihood of rows: the weighted sum of their log-densities, and the sum of the weights.

    This is a module because distributed strategies wrap the forward pass of a module.
    """

    def __init__(self, flow: nn.Module) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, rows: Rows) -> tuple[Tensor, float]:
        return sum_rows(rows.log_prob(self.flow(rows.context)), rows.weight)


def sum_rows(log_prob: Tensor, weight: Tensor | None) -> tuple[Tensor, float]:
    """Weighted sum of the log-densities of rows, and the sum of the weights."""
    if weight is None:
        return log_prob.sum(), float(len(log_prob))
    return (log_prob * weight).sum(), float(weight.sum())


def _make_source(data: Data, batch_size: int, seed: int, fabric: Fabric) -> RowSource | StreamSource:
    """Batches of rows in memory, or of a function that returns the next batch."""
    if callable(data) and not isinstance(data, Rows | Tensor):
        return StreamSource(data)
    rows = as_rows("data", data)
    rows.check("data")
    source = RowSource(rows, batch_size, seed, fabric.device)
    if source.batch_size < fabric.world_size:
        raise ValueError(
            f"batch_size must be at least the number of processes, {fabric.world_size}, got {source.batch_size}"
        )
    return source
