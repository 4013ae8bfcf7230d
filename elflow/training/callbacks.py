"""What happens beside the steps: checkpoints that are whole or not there, and the progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from elflow._files import replacing

__all__ = ["Bar", "Rounds"]

AfterRound = Callable[[Any, dict[str, float]], None]


class Rounds(lightning.Callback):
    """Notes each round in the history, then writes a checkpoint if there is a place for it, and tells of it."""

    def __init__(self, checkpoint: Path | None, fingerprint: str, after_round: AfterRound | None = None) -> None:
        self.checkpoint = checkpoint
        self.fingerprint = fingerprint
        self.after_round = after_round
        self.before = 0.0  # seconds of earlier runs that this one continues
        self.stopped = "time_limit"
        self.start = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the training has taken, over all runs."""
        return self.before + time.monotonic() - self.start

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        module.note(self.seconds)
        if module.steps >= module.recipe.max_steps:
            self.stopped = "max_steps"
            trainer.should_stop = True
        elif module.rounds_since_best >= module.recipe.patience:
            self.stopped = "patience"
        if self.checkpoint is not None:
            with replacing(self.checkpoint) as temporary:
                trainer.save_checkpoint(temporary)
        if self.after_round is not None:
            flow = module.averaged.module
            with torch.random.fork_rng(devices=[]):
                self.after_round(flow.eval(), module.history[-1])
            flow.train()

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint["rounds"] = {
            "fingerprint": self.fingerprint,
            "stopped": self.stopped,  # "time_limit" unless it is done: more time may be given
            "seconds": self.seconds,
        }

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: dict[str, Any]) -> None:
        self.before = checkpoint["rounds"]["seconds"]
        self.stopped = checkpoint["rounds"]["stopped"]


class Bar(lightning.Callback):
    """A bar of all steps, with the likelihood of the last batches and of the held-out rows."""

    def __init__(self) -> None:
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[nats]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.bar.start()
        self.task = self.bar.add_task("", total=module.recipe.max_steps, completed=module.steps, nats="")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        if index % 10 == 0:
            held_out = f", held out {module.history[-1]['validation']:.3f}" if module.history else ""
            nats = f"{module.recent:.3f} nats{held_out}"
            self.bar.update(self.task, completed=module.steps, nats=nats)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self.bar.stop()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self.bar.stop()
