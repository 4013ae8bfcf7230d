"""Number of threads of a training on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from elflow.training.selection import list_parts

__all__ = ["limiting_threads"]

MIN_PARALLEL_WORK = 2**27
"""Number of multiplications of a forward pass below which training has one thread.

On two idle cores, 66 to 85 million (10 to 20 features, batches of 256) are 1.2 to 1.3 times as fast on two threads as on
one, and 184 million (63 features) 1.45 times. But a thread that waits for another one spins, and the layers of a flow
wait often: if another process uses one of the cores, two threads are 2 to 4 times slower than one
(`python -m experiments bench threads`).
"""


@contextmanager
def limiting_threads(flow: nn.Module, batch_size: int) -> Iterator[None]:
    """Limit torch to one thread within the context, if the layers of a flow are too small to be worth several.

    Arguments:
        flow: A flow over vectors, whose parameters are mostly the matrices of its hypernetworks.
        batch_size: Number of rows in a batch.

    Example:
        >>> import elflow
        >>> with limiting_threads(elflow.ELF(features=2), batch_size=128):
        ...     torch.get_num_threads()
        1
    """
    n_threads = torch.get_num_threads()
    parts = [flow.get_submodule(name) for name in list_parts(flow)]
    work = batch_size * max(sum(p.numel() for p in part.parameters() if p.requires_grad) for part in parts)
    if n_threads == 1 or work >= MIN_PARALLEL_WORK:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(n_threads)
