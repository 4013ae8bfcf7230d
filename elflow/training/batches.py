"""Batches of tensors that are in memory: slices of a random permutation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from elflow.flows.dequantization import Cells

__all__ = ["Batches", "Blocks", "Rows"]


class Rows(NamedTuple):
    """What a flow is trained on.

    Example:
        >>> rows = Rows(torch.randn(10, 2), context=torch.randn(10, 1))
        >>> rows.take(torch.arange(3)).x.shape
        torch.Size([3, 2])
    """

    x: Any
    """Rows of features, `(N, features)`, or cells for a `Dequantized` flow."""
    context: Tensor | None = None
    """Their context, `(N, context)`."""
    weight: Tensor | None = None
    """How much each counts, `(N,)`."""

    @property
    def length(self) -> int:
        """How many rows there are."""
        return len(self.x.offset if isinstance(self.x, Cells) else self.x)

    def take(self, index: Tensor | slice) -> Rows:
        """Some of the rows."""
        x = Cells(*(part[index] for part in self.x)) if isinstance(self.x, Cells) else self.x[index]
        return Rows(x, *(None if part is None else part[index] for part in self[1:]))


class Batches:
    """The batches of one round at a time, without end.

    Each pass over the rows has a permutation of its own, which follows from the seed and the number of the pass. So a
    round's batches follow from its number alone, and a training that was interrupted finds them again.
    """

    def __init__(self, rows: Rows, size: int, steps: Callable[[], range], seed: int) -> None:
        self.rows = rows
        self.size = min(size, rows.length)
        self.steps = steps
        self.seed = seed

    def __iter__(self) -> Iterator[Any]:
        per_pass = self.rows.length // self.size
        current, order = -1, torch.empty(0)
        for step in self.steps():
            number, at = divmod(step, per_pass)
            if number != current:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
                current, order = number, torch.randperm(self.rows.length, generator=generator)
            yield self.rows.take(order[at * self.size : (at + 1) * self.size])


class Blocks:
    """All rows in order, so many at a time."""

    def __init__(self, rows: Rows, size: int) -> None:
        self.rows = rows
        self.size = size

    def __len__(self) -> int:
        return -(-self.rows.length // self.size)

    def __iter__(self) -> Iterator[Rows]:
        return (self.rows.take(slice(at, at + self.size)) for at in range(0, self.rows.length, self.size))
