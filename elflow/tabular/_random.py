"""Random states of scikit-learn as generators of torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from sklearn.utils import check_random_state

__all__ = ["RandomState", "as_generator", "use_generator"]

RandomState = int | np.random.RandomState | torch.Generator | None
"""Seed or generator; None for different random numbers in each call."""


def as_generator(random_state: RandomState) -> torch.Generator:
    """Generator of torch for any random state; a generator of torch is returned unchanged.

    Example:
        >>> as_generator(0).initial_seed() == as_generator(np.random.RandomState(0)).initial_seed()
        True
    """
    if isinstance(random_state, torch.Generator):
        return random_state
    return torch.Generator().manual_seed(int(check_random_state(random_state).randint(2**31 - 1)))


_lock = threading.RLock()


@contextmanager
def use_generator(generator: torch.Generator) -> Iterator[None]:
    """Let torch draw from a generator, for functions that take none; the global generator is restored afterwards.

    The global generator belongs to all threads of the process: they use this function one after the other.

    Example:
        >>> with use_generator(torch.Generator().manual_seed(0)):
        ...     first = torch.rand(1)
        >>> bool(first == torch.rand(1, generator=torch.Generator().manual_seed(0)))
        True
    """
    with _lock, torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        yield
        generator.set_state(torch.get_rng_state())
