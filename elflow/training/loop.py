"""Training loop: maximum likelihood with Lightning Fabric, early stopping and averaged weights."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn

from elflow._interrupts import Interrupted, deferring_interrupts
from elflow.flows.group_norm import GroupNorm
from elflow.flows.strata import StratifiedMixture
from elflow.training.checkpoint import compute_fingerprint, read_shared_checkpoint, write_checkpoint
from elflow.training.devices import make_fabric, name_lost_process
from elflow.training.monitor import Monitor
from elflow.training.recipe import Recipe
from elflow.training.record import Training
from elflow.training.rows import Batch, Rows, RowSource, StreamSource, as_rows
from elflow.training.run import Run

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["fit"]

F = TypeVar("F", bound=nn.Module)
Data = Batch | Callable[[], Batch]
OnRoundEnd = Callable[[Any, dict[str, float]], None]

N_INITIAL_ROWS = 10_000
"""Number of rows that initialise a flow."""


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
            initial, index = source.take_initial(N_INITIAL_ROWS)
            initial = initial.to(torch.device("cpu"))
            for part in flow.modules():
                if isinstance(part, StratifiedMixture | GroupNorm):  # which must not take repeats of a row for new ones
                    part.sources = index
            initialize(initial.x, initial.context)
        run = Run(flow, recipe, fabric, start)
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
