"""Training on Lightning, from rows in memory to the best averaged weights."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from elflow.training.batches import Batches, Blocks, Rows
from elflow.training.recipe import Recipe

__all__ = ["Training", "fit"]

F = TypeVar("F", bound=nn.Module)

START_ROWS = 10_000
"""How many rows set what a flow takes from its first data."""
VALIDATION_ROWS = 4_096
"""How many held-out rows are scored at a time."""


@dataclass(frozen=True)
class Training:
    """How a training went."""

    history: list[dict[str, float]]
    """For each round the steps and seconds so far, the rate, and the mean log-density of training and held-out rows."""
    seconds: float
    """How long it took, over all runs."""
    stopped: str
    """Why it ended: `"patience"`, `"max_steps"` or `"time_limit"`."""
    skipped: int
    """How many steps were skipped because they were not finite."""


def fit(
    flow: F,
    rows: Rows,
    held_out: Rows,
    recipe: Recipe | None = None,
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    fingerprint: str = "",
    log: str | os.PathLike[str] | None = None,
    progress: bool = False,
    after_round: Callable[[Any, dict[str, float]], None] | None = None,
    trainer_options: dict[str, Any] | None = None,
) -> tuple[F, Training]:
    """Trains a flow of elflow or zuko by maximum likelihood.

    Arguments:
        flow: The flow. It is left as it is.
        rows: What to train on.
        held_out: What decides about the best weights, the plateau schedule and when to stop.
        recipe: How to train.
        seed: What batches and noise follow from.
        checkpoint: A file that keeps the state after every round. If it is there, training goes on from it, and ends
            with the very weights that it would have ended with. It is left there at the end.
        fingerprint: What a checkpoint is of. One with another fingerprint is refused.
        log: A folder for logs as CSV and, if TensorBoard is installed, for TensorBoard.
        progress: Whether to show a progress bar.
        after_round: What is called after each round, with the flow of the averaged weights in evaluation mode and the
            round's entry of the history.
        trainer_options: Arguments of Lightning's `Trainer` that take precedence, such as its accelerator.

    Returns:
        A copy of the flow with the best averaged weights, in evaluation mode, and how it went.

    Example:
        >>> import elflow
        >>> flow = elflow.ELF(features=2, transforms=1, units=8, hidden_features=(16,))
        >>> x = 3 + 2 * torch.randn(1000, 2)
        >>> best, training = fit(flow, Rows(x[:900]), Rows(x[900:]), Recipe(max_steps=100, round_steps=50))
        >>> [entry["step"] for entry in training.history]
        [50, 100]
    """
    import lightning.pytorch as lightning

    from elflow.training.callbacks import Bar, Rounds
    from elflow.training.module import FlowModule

    recipe = recipe or Recipe()
    path = None if checkpoint is None else Path(checkpoint)
    state = _read(path, fingerprint)
    with torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        flow = deepcopy(flow).train()
        if initialize := getattr(flow, "initialize", None):
            start = rows.take(slice(START_ROWS))
            initialize(start.x, start.context)
        module = FlowModule(flow, recipe, seed)
        rounds = Rounds(path, fingerprint, after_round)
        if state is not None and state["rounds"]["stopped"] != "time_limit":
            module.on_load_checkpoint(state)
            rounds.on_load_checkpoint(None, module, state)
        else:
            early = lightning.callbacks.EarlyStopping(
                "validation",
                mode="max",
                patience=recipe.patience,
                check_finite=False,
                check_on_train_epoch_end=False,
            )
            callbacks = [early, rounds] + ([Bar()] if progress else [])
            if recipe.time_limit is not None:
                callbacks.append(lightning.callbacks.Timer(timedelta(seconds=recipe.time_limit), verbose=False))
            options: dict[str, Any] = {
                "accelerator": "cpu",
                "devices": 1,
                "max_epochs": -1,  # rounds may be shorter where time was up: steps are counted instead
                "callbacks": callbacks,
                "logger": False if log is None else _loggers(Path(log)),
                "log_every_n_steps": 1,
                "num_sanity_val_steps": 0,
                "enable_checkpointing": False,
                "enable_progress_bar": False,
                "enable_model_summary": False,
                "inference_mode": False,
            }
            trainer = lightning.Trainer(**(options | (trainer_options or {})))

            batches = Batches(rows, recipe.batch_size, module.next_steps, seed)
            resume = None if state is None else path
            trainer.fit(module, batches, Blocks(held_out, VALIDATION_ROWS), ckpt_path=resume, weights_only=True)
            if trainer.interrupted:
                raise KeyboardInterrupt
    if not module.best:
        raise FloatingPointError(
            f"the held-out likelihood was never finite: lower the rate, which began at {recipe.learning_rate:g}, or look for "
            "values in the data that are far from all others"
        )
    best = cast(F, module.averaged.module)
    best.load_state_dict(module.best)
    return best.eval(), Training(module.history, rounds.seconds, rounds.stopped, module.skipped)


def _read(path: Path | None, fingerprint: str) -> dict[str, Any] | None:
    """The checkpoint, if there is one."""
    if path is None or not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        found = state["rounds"]["fingerprint"]
    except Exception as error:
        raise ValueError(f"checkpoint must be one that elflow wrote, got {path}, which is damaged: {error}") from None
    if found != fingerprint:
        raise ValueError(
            f"checkpoint must be of the same data and settings, got {path} of others: delete it to begin anew"
        )
    return state


def _loggers(folder: Path) -> list[Any]:
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

    loggers: list[Any] = [CSVLogger(folder, name="csv")]
    with suppress(ModuleNotFoundError):
        loggers.append(TensorBoardLogger(folder, name="tensorboard"))
    return loggers


@contextmanager
def _quiet() -> Iterator[None]:
    """Lightning tells of its devices and gives tips; and it warns of habits that do not apply here."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            yield
    finally:
        logger.setLevel(level)
