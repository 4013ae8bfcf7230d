"""Processes that start quickly: children of a server that has imported torch, Lightning and elflow."""

import multiprocessing
import os
import sys

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy

from elflow.cli import main

multiprocessing.set_forkserver_preload(["lightning_fabric", "pandas", "pytest", "elflow.cli.tables", "elflow.tabular"])

# Lightning refuses a server once this process has used a GPU, which other tests may have done.
START_METHOD = "spawn" if torch.cuda.is_available() else "forkserver"


def launch_two(function, *arguments):
    """Call a function with a Fabric, and arguments, in each of two processes on CPUs."""
    strategy = DDPStrategy(start_method=START_METHOD, process_group_backend="gloo")
    Fabric(accelerator="cpu", devices=2, strategy=strategy).launch(function, *arguments)


def start_command(folder, *arguments, **variables):
    """Start `elflow` with these arguments and variables of the environment. Its output goes to files in the folder.

    Returns a function that waits for its end, and returns standard output, standard error and the exit code.
    """
    out, err = folder / "out", folder / "err"
    context = multiprocessing.get_context(START_METHOD)
    process = context.Process(target=_run_command, args=(out, err, [str(each) for each in arguments], variables))
    process.start()

    def wait():
        process.join()
        return out.read_text(), err.read_text(), process.exitcode

    return wait


def _run_command(out, err, arguments, variables):
    os.environ |= variables
    for path, number in ((out, 1), (err, 2)):
        with open(path, "w") as file:
            os.dup2(file.fileno(), number)
    sys.exit(main(arguments))
