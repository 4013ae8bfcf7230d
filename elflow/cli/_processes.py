"""Devices and processes of the commands that train."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from elflow._interrupts import Interrupted
from elflow.cli._options import describe_checkpoint, rename_argument, set_threads
from elflow.cli._terminal import note

if TYPE_CHECKING:
    from lightning_fabric import Fabric

OBSERVER = "lightning_fabric.strategies.launchers.subprocess_script"
"""Logger of the thread of Lightning that ends all processes of a machine if one of them has ended."""


def make_fabric(device: str, precision: str, devices: int | None, nodes: int | None) -> Fabric:
    """Devices and processes by the options of a command; those of `torchrun` are known from the environment."""
    from elflow.training import make_fabric

    if "TORCHELASTIC_RUN_ID" in os.environ:
        local, total = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
        for option, given, found in (("--devices", devices, local), ("--nodes", nodes, total // local)):
            if given not in (None, found):
                raise ValueError(f"{option} must be left out, or be {found} as for torchrun, got {given}")
        devices, nodes = local, total // local
    elif nodes is not None and nodes > 1 and not {"MASTER_ADDR", "SLURM_NTASKS"} & set(os.environ):
        raise ValueError(
            f"--nodes must be 1, unless each machine has the environment variables MASTER_ADDR, MASTER_PORT and "
            f"NODE_RANK, got {nodes}"
        )
    with rename_argument("device", "--device"), rename_argument("devices", "--devices"):
        return make_fabric(device, precision, devices or 1, nodes or 1)


def is_quiet(fabric: Fabric, quiet: bool) -> bool:
    """Whether to print errors only: only the first process prints anything else."""
    if not fabric.is_global_zero:
        warnings.simplefilter("ignore")
    return quiet or not fabric.is_global_zero


@contextmanager
def start(fabric: Fabric, checkpoint: Path, threads: int | None) -> Iterator[None]:
    """Start the other processes, if there are any, and print how to continue if the training in the block ends early.

    The exit code is 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, and 1 if another process has ended.
    """
    from elflow.training import LostProcessError, launch, name_lost_process

    try:
        with name_lost_process(fabric):
            _announce_end(checkpoint)
            launch(fabric)
            set_threads(threads)  # after the start, which divides the processors between the processes
            yield
    except (KeyboardInterrupt, Interrupted) as error:
        if fabric.is_global_zero:
            note(f"interrupted; {describe_checkpoint(checkpoint)}")
        raise typer.Exit(128 + getattr(error, "signum", signal.SIGINT)) from None
    except LostProcessError as error:
        note(f"error: {str(error).partition(':')[0]}; {describe_checkpoint(checkpoint)}")
        raise typer.Exit(1) from None


def _announce_end(checkpoint: Path) -> None:
    """Replace Lightning's message, before it ends all processes of a machine, by one that tells how to continue."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    observer = logging.getLogger(OBSERVER)
    observer.setLevel(logging.INFO)
    observer.filters.clear()

    def announce(_: logging.LogRecord) -> bool:
        note(f"error: a process has ended, and so do all others; {describe_checkpoint(checkpoint)}")
        return False

    observer.addFilter(announce)
