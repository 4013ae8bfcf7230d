"""Devices, precision and processes of a training, as a Lightning Fabric."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from elflow._checks import check_choice, check_count

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = [
    "DEVICES",
    "PRECISIONS",
    "LostProcessError",
    "choose_device",
    "launch",
    "make_fabric",
    "name_lost_process",
]

DEVICES = ["auto", "cpu", "cuda", "mps"]
PRECISIONS = ["32", "bf16-mixed"]
LOST_CONNECTION = ["connection closed", "connection reset", "broken pipe", "gloo", "nccl", "timed out", "socket"]
"""Words of torch's errors after another process has ended; these errors have no class of their own."""
STARTER = "ELFLOW_STARTER"
"""Environment variable with the number of the process that has started the others."""
WATCH_SECONDS = 2.0
"""Seconds between two looks at the process that has started this one."""


class LostProcessError(ConnectionError):
    """Another process of a training has ended."""


def choose_device(device: str | torch.device = "auto") -> torch.device:
    """Find a device by its name, and raise an error if this machine does not have it.

    Arguments:
        device: `"cpu"`; `"cuda"` for GPUs of NVIDIA and AMD, `"cuda:1"` for the second of them; `"mps"` for those of
            Apple; or `"auto"`, a CUDA device if there is one, the CPU otherwise.

    Example:
        >>> choose_device("cpu")
        device(type='cpu')
    """
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    available = [name for name, count in counts.items() if count]
    if device == "auto":
        # Not mps, which has no kernels of its own: the C++ kernel on the CPU has less work for each network.
        return torch.device("cuda" if "cuda" in available else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be one of {DEVICES}, got {device!r}") from None
    if counts.get(chosen.type, 0) <= (chosen.index or 0) and chosen.type != "meta":
        raise ValueError(f"device must be one that is available, 'auto' or one of {available}, got {str(device)!r}")
    return chosen


def make_fabric(device: str | torch.device = "auto", precision: str = "32", devices: int = 1, nodes: int = 1) -> Fabric:
    """Describe devices and processes for `elflow.training.fit`.

    Arguments:
        device: The device: see `choose_device`.
        precision: `"32"`, or `"bf16-mixed"`, in which hypernetworks multiply matrices in bfloat16 and everything else
            stays in single precision.
        devices: The number of processes on each machine, one per device.
        nodes: The number of machines.

    Returns:
        A Fabric. With several processes, pass it to `launch` before `fit`.

    Example:
        >>> make_fabric("cpu").device
        device(type='cpu')
    """
    from lightning_fabric import Fabric

    chosen = choose_device(device)
    check_choice("precision", precision, PRECISIONS)
    devices, nodes = check_count("devices", devices), check_count("nodes", nodes)
    if chosen.index is not None and devices > 1 and chosen.type != "cpu":
        raise ValueError(f"devices must be 1 with a numbered device, got {devices} and {str(device)!r}")
    available = {"cuda": torch.cuda.device_count(), "mps": 1}.get(chosen.type)
    if available is not None and devices > available:
        raise ValueError(f"devices must be at most {available}, the number of {chosen.type} devices, got {devices}")
    return Fabric(
        accelerator=chosen.type,
        devices=devices if chosen.index is None or chosen.type == "cpu" else [chosen.index],
        num_nodes=nodes,
        precision="bf16-mixed" if precision == "bf16-mixed" else "32-true",
        strategy="auto" if devices * nodes == 1 else "ddp",
    )


def launch(fabric: Fabric) -> None:
    """Start the other processes of a Fabric on this machine, and connect them.

    Each runs the same command as this process. It ends if this process ends, so that none waits forever.

    Arguments:
        fabric: That of `make_fabric`.

    Example:
        >>> fabric = make_fabric("cpu")  # devices=2: two processes
        >>> launch(fabric)
        >>> fabric.global_rank, fabric.world_size
        (0, 1)
    """
    if fabric.world_size == 1:
        return
    starter = os.environ.setdefault(STARTER, str(os.getpid()))
    fabric.launch()
    if starter == str(os.getpid()):
        os.environ.pop(STARTER)  # a command that this process starts later is no part of this training
    if starter == str(os.getppid()):
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(1)  # the main thread may wait for a process that has ended, and never return


@contextmanager
def name_lost_process(fabric: Fabric) -> Iterator[None]:
    """Raise a `LostProcessError` instead of torch's error if another process of a training has ended."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).lower()
        if fabric.world_size == 1 or not any(words in text for words in LOST_CONNECTION):
            raise
        raise LostProcessError(
            f"process {fabric.global_rank + 1} of {fabric.world_size} has lost the connection to another, which may "
            "have ended: start all of them again, with the same checkpoint to continue"
        ) from error
