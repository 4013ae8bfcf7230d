"""Progress bar and log files of a training run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from elflow.training.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric.loggers.logger import Logger

__all__ = ["Monitor"]

REFRESH_STEPS = 10
"""Number of steps between two updates of the progress bar."""


class Monitor:
    """Progress bar, and logs of each round as CSV and for TensorBoard.

    Arguments:
        recipe: The training settings, for the maximum number of steps and its patience.
        log_dir: Folder for logs, or None.
        verbose: Whether to show the progress bar.
    """

    def __init__(self, recipe: Recipe, log_dir: str | os.PathLike[str] | None, verbose: bool) -> None:
        self.recipe = recipe
        self.loggers = [] if log_dir is None else _make_loggers(Path(log_dir))
        self.validated = ""
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not verbose,
        )
        self.task = self.bar.add_task("", total=recipe.max_steps, status="")

    def __enter__(self) -> Monitor:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.bar.stop()
        for logger in self.loggers:
            logger.finalize("success" if error is None else "failed")

    def advance(self, step: int, training: float) -> None:
        """Move the bar to a step; `training` is the mean log-density of the round so far."""
        if not self.bar.disable and step % REFRESH_STEPS == 0:
            self.bar.update(self.task, completed=step, status=f"{training:.3f} nats{self.validated}")

    def end_round(self, entry: dict[str, float], rounds_left: int) -> None:
        """Log a round, and show its held-out log-likelihood and the patience left."""
        if "validation" in entry:
            self.validated = f", held out {entry['validation']:.3f}, patience {rounds_left}/{self.recipe.patience}"
        step = int(entry["step"])
        self.bar.update(self.task, completed=step, status=f"{entry['training']:.3f} nats{self.validated}")
        for logger in self.loggers:
            logger.log_metrics({name: value for name, value in entry.items() if name != "step"}, step)
            logger.save()  # after every round: a crash loses nothing


def _make_loggers(folder: Path) -> list[Logger]:
    from lightning_fabric.loggers.csv_logs import CSVLogger
    from lightning_fabric.loggers.tensorboard import TensorBoardLogger

    loggers: list[Logger] = [CSVLogger(folder, name="csv")]
    with suppress(ModuleNotFoundError):  # TensorBoard is optional
        loggers.append(TensorBoardLogger(folder, name="tensorboard"))
    return loggers
