"""Number of threads of a training on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from elflow.training.selection import list_parts

__all__ = ["sharing_threads"]

MIN_PARALLEL_WORK = 2**27
"""Number of multiplications of a forward pass below which the operations of a flow have one thread.

Threads within the operations of smaller flows are slower than one thread if they have to wait for a core, since a
thread that waits for another one spins (`python -m experiments bench threads`).
"""


@contextmanager
def sharing_threads(flow: nn.Module, batch_size: int, n_processes: int = 1) -> Iterator[None]:
    """Share the threads of the CPU between the parts of a flow within the context, if these are small.

    Within operations there is only one thread then. Parts that are trained independently, the members of a mixture,
    take turns on as many threads as torch had. Results do not depend on the number of threads.

    Arguments:
        flow: A flow over vectors, whose parameters are mostly the matrices of its hypernetworks; it is not trained
            elsewhere within the context.
        batch_size: Number of rows in a batch.
        n_processes: Number of processes that train the flow together. Several ones wait for the gradients of all parts
            in one order, so that parts do not run in parallel.

    Example:
        >>> import elflow
        >>> with sharing_threads(elflow.ELF(features=2), batch_size=128):
        ...     torch.get_num_threads()
        1
    """
    n_threads = torch.get_num_threads()
    parts = [flow.get_submodule(name) for name in list_parts(flow)]
    work = batch_size * max(sum(p.numel() for p in part.parameters() if p.requires_grad) for part in parts)
    if n_threads == 1 or work >= MIN_PARALLEL_WORK:
        yield
        return
    train_in_threads = getattr(flow, "train_in_threads", lambda _: None)
    try:
        torch.set_num_threads(1)
        train_in_threads(n_threads if n_processes == 1 else 1)
        yield
    finally:
        torch.set_num_threads(n_threads)
        train_in_threads(1)
