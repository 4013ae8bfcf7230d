"""Training data: rows with context and weights, in memory or in a memory-mapped file, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from elflow._checks import check_finite
from elflow.flows.dequantization import Cells
from elflow.kernels import has_double
from elflow.training.permutations import Permutation

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["Batch", "RowSource", "Rows", "StreamSource", "as_rows"]

MAX_DEVICE_BYTES = 2**32
"""Maximum memory of rows that are moved to the device of a training as a whole."""


class Rows:
    """Training or validation data: features, and optionally a context and a weight of each row.

    A plain class on purpose: Lightning Fabric and DistributedDataParallel cast and copy the tensors of tuples and
    dataclasses, and cells must stay in double precision.

    Arguments:
        x: Features, `(N, features)`; images, `(N, channels, height, width)`; or `Cells` for a `Dequantized` flow.
        context: Context, `(N, context)`; class labels, `(N,)`, for images.
        weight: Weight of each row in the likelihood, `(N,)`.
        noise: Random numbers of each row, `(N, ...)`: see `draw_noise`.

    Example:
        >>> rows = Rows(torch.randn(10, 2), context=torch.randn(10, 1))
        >>> len(rows), len(rows.take(slice(3)))
        (10, 3)
    """

    def __init__(
        self, x: Any, context: Tensor | None = None, weight: Tensor | None = None, noise: Tensor | None = None
    ) -> None:
        self.x = x
        self.context = context
        self.weight = weight
        self.noise = noise

    def __len__(self) -> int:
        return len(self.x.offset if isinstance(self.x, Cells) else self.x)

    def __repr__(self) -> str:
        context = "" if self.context is None else f", context={tuple(self.context.shape)}"
        return f"Rows({len(self)}{context}{'' if self.weight is None else ', weighted'})"

    @property
    def device(self) -> torch.device:
        """The device of the features."""
        device: torch.device = (self.x.low if isinstance(self.x, Cells) else self.x).device
        return device

    def take(self, index: Tensor | slice) -> Rows:
        """The rows at an index: integers, a mask or a slice."""
        return self._map(lambda part: part[index])

    def to(self, device: torch.device) -> Rows:
        """The same rows on another device; cells stay where they are if it has no double precision."""
        context, weight = (None if part is None else part.to(device) for part in (self.context, self.weight))
        if isinstance(self.x, Cells):
            keep = not has_double(device)
            return Rows(self.x if keep else Cells(*(part.to(device) for part in self.x)), context, weight, self.noise)
        return Rows(self.x.to(device), context, weight, self.noise)

    def draw_noise(self, flow: nn.Module) -> Rows:
        """The same rows, with the random numbers of the flow's method `draw_noise(n)`, if it has one.

        Processes that share a batch draw the numbers of all its rows first, and take their share of rows and numbers
        then. So the noise of a row does not depend on the number of processes.
        """
        draw = getattr(flow, "draw_noise", None)
        return self if draw is None else Rows(self.x, self.context, self.weight, draw(len(self)))

    def log_prob(self, distribution: Any, method: str = "log_prob") -> Tensor:
        """Log-density of each row under a distribution, with the noise of the rows if they have any."""
        function = getattr(distribution, method)
        result: Tensor = function(self.x) if self.noise is None else function(self.x, noise=self.noise)
        return result

    @property
    def n_bytes(self) -> int:
        """Memory of all tensors, in bytes."""
        parts = [*self.x] if isinstance(self.x, Cells) else [self.x]
        return sum(part.nbytes for part in [*parts, self.context, self.weight] if part is not None)

    def check(self, name: str) -> None:
        """Raise an error if shapes do not match or a value is not finite; the error names the argument `name`."""
        if not len(self):
            raise ValueError(f"{name} must have at least one row, got none")
        if self.context is not None and len(self.context) != len(self):
            raise ValueError(f"{name}.context must have one row per row of {name}, got {len(self.context)}")
        if self.weight is not None and self.weight.shape != (len(self),):
            raise ValueError(f"{name}.weight must have the shape ({len(self)},), got {tuple(self.weight.shape)}")
        if self.weight is not None and not ((self.weight >= 0).all() and self.weight.any()):
            raise ValueError(f"{name}.weight must not be negative, and not zero for all rows")
        tensors = {"": self.x, ".context": self.context, ".weight": self.weight}
        if isinstance(self.x, Cells):
            tensors |= {"": self.x.exact, " (cells)": self.x.low, " (offsets)": self.x.offset}
        for suffix, tensor in tensors.items():
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel():
                check_finite(name + suffix, tensor.reshape(len(tensor), -1))

    def concatenate(self, others: Sequence[Rows]) -> Rows:
        """These rows, followed by others of the same kind."""
        every = [rows for rows in [self, *others] if len(rows)] or [self]
        if len(every) == 1:
            return every[0]
        parts = zip(*(rows._list_parts() for rows in every), strict=True)
        *x, context, weight, noise = (None if group[0] is None else torch.cat(group) for group in parts)
        return Rows(Cells(*x) if isinstance(self.x, Cells) else x[0], context, weight, noise)

    def _list_parts(self) -> list[Any]:
        x = [*self.x] if isinstance(self.x, Cells) else [self.x]
        return [*x, self.context, self.weight, self.noise]

    def update_digest(self, digest: _Hash) -> None:
        """Add all values to a digest of hashlib."""
        parts = [*self.x] if isinstance(self.x, Cells) else [self.x]
        for part in [*parts, self.context, self.weight]:
            if part is None:
                digest.update(b"none")
            else:
                digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
                digest.update(part.detach().cpu().contiguous().numpy().tobytes())

    def _map(self, function: Callable[[Tensor], Tensor]) -> Rows:
        x = Cells(*map(function, self.x)) if isinstance(self.x, Cells) else function(self.x)
        others = self.context, self.weight, self.noise
        return Rows(x, *(None if part is None else function(part) for part in others))


Batch = Rows | Tensor | Sequence[Tensor]
"""`Rows`, features `(N, features)`, or a sequence of features, context and weights."""


def as_rows(name: str, data: Batch) -> Rows:
    """Convert a tensor, or a pair of features and context, to `Rows`.

    Arguments:
        name: The name of the argument, for errors.
        data: `Rows`, features `(N, features)`, or a sequence of features, context and weights.
    """
    if isinstance(data, Rows):
        return data
    if isinstance(data, Tensor):
        return Rows(data)
    if isinstance(data, tuple | list) and 1 <= len(data) <= 3 and all(isinstance(part, Tensor) for part in data):
        return Rows(*data)
    raise TypeError(f"{name} must be Rows, a tensor or a pair (x, context) of tensors, got {type(data).__name__}")


class RowSource:
    """Batches of rows in memory or in a memory-mapped file, as slices of random permutations.

    Each pass over the rows has its own permutation, which depends only on the seed and the index of the pass. So the
    batch of a step depends only on the index of the step, and a resumed training sees the batches that it would have
    seen without the interruption. Batches are those of all processes together: each takes its share of them.

    Arguments:
        rows: The rows.
        batch_size: The number of rows in a batch, over all processes.
        seed: Seed of the permutations.
        device: The device on which batches are taken. Rows of more than 4 GiB stay where they are, and only their
            batches are moved.

    Example:
        >>> source = RowSource(Rows(torch.arange(6.0)[:, None]), batch_size=3, seed=0)
        >>> first, second = source.iter_batches(range(2))
        >>> sorted(torch.cat([first.x, second.x]).flatten().tolist())
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """

    def __init__(self, rows: Rows, batch_size: int, seed: int, device: torch.device | None = None) -> None:
        self.rows = rows
        self.batch_size = min(batch_size, len(rows))
        self.seed = seed
        self.device = device or torch.device("cpu")

    @cached_property
    def _rows_at_hand(self) -> Rows:
        """The rows on the device of the training, if they fit."""
        fits = self.rows.n_bytes <= MAX_DEVICE_BYTES and (has_double(self.device) or not isinstance(self.rows.x, Cells))
        return self.rows.to(self.device) if fits else self.rows

    def take_initial(self, count: int) -> tuple[Rows, Tensor]:
        """Random rows for data-dependent initialisation, and their indices.

        They are random because the order of a table may have a meaning, such as time. Rows with weights are drawn with
        replacement, in proportion to these.
        """
        if self.rows.weight is None or (self.rows.weight == self.rows.weight[0]).all():
            index = Permutation(len(self.rows), self.seed).take(0, count)
            return self.rows.take(index), index
        # torch.multinomial takes at most 2^24 rows
        generator = torch.Generator().manual_seed(self.seed)
        cumulative = self.rows.weight.double().cumsum(0)
        u = torch.rand(min(count, len(self.rows)), dtype=torch.double, generator=generator) * cumulative[-1]
        index = torch.searchsorted(cumulative, u, right=True).clamp(max=len(self.rows) - 1)
        return self.rows.take(index), index

    def iter_batches(self, steps: range) -> Iterator[Rows]:
        """Yield the batch of each step."""
        per_pass = len(self.rows) // self.batch_size
        current, order = -1, Permutation(1, 0)
        rows = self._rows_at_hand
        for step in steps:
            number, position = divmod(step, per_pass)
            if number != current:
                # Permutations are those of the CPU on every device.
                current, order = number, Permutation(len(rows), self.seed * 1_000_003 + number)
            index = order.take(position * self.batch_size, (position + 1) * self.batch_size)
            yield rows.take(index.to(rows.device)).to(self.device)


class StreamSource:
    """Batches from a function that returns the next one, such as new samples of a known distribution.

    Several processes call the function each, and take their share of every batch. Random numbers of torch's default
    generator are the same in all of them.

    Arguments:
        next_batch: Function that returns features `(N, features)`, a pair of features and context, or `Rows`.

    Example:
        >>> source = StreamSource(lambda: torch.zeros(3, 2))
        >>> [len(batch) for batch in source.iter_batches(range(2))]
        [3, 3]
    """

    def __init__(self, next_batch: Callable[[], Batch]) -> None:
        self.next_batch = next_batch
        self._peeked: Rows | None = None

    def take_initial(self, count: int) -> tuple[Rows, Tensor]:
        """The first batch, for data-dependent initialisation, and the indices of its rows; training sees it again."""
        self._peeked = as_rows("data()", self.next_batch())
        self._peeked.check("data()")
        return self._peeked, torch.arange(len(self._peeked))

    def iter_batches(self, steps: range) -> Iterator[Rows]:
        """Yield the next batch for each step."""
        for _ in steps:
            batch, self._peeked = self._peeked, None
            yield as_rows("data()", self.next_batch()) if batch is None else batch
