"""Processes that start quickly: children of a server that has imported torch, Lightning and elflow."""

import multiprocessing

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy

multiprocessing.set_forkserver_preload(["lightning_fabric", "pandas", "pytest", "elflow.tabular"])

# Lightning refuses a server once this process has used a GPU, which other tests may have done.
START_METHOD = "spawn" if torch.cuda.is_available() else "forkserver"


def launch_two(function, *arguments):
    """Call a function with a Fabric, and arguments, in each of two processes on CPUs."""
    strategy = DDPStrategy(start_method=START_METHOD, process_group_backend="gloo")
    Fabric(accelerator="cpu", devices=2, strategy=strategy).launch(function, *arguments)
