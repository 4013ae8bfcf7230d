"""Densities of values that are known only up to a cell: discrete, rounded or missing ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor, nn

from elflow.flows.elf import ELF
from elflow.nn import InitializesParts

__all__ = ["Cells", "Dequantized"]

CLOSEST = 1e-12
"""How close to 0 and 1 a point of a cell may lie, so that its normal quantile stays within 7."""


class Cells(NamedTuple):
    """Rows of a table as a flow sees them: exact numbers, and cells for discrete or missing values.

    The flow models numbers z. A continuous value has one exact z. Any other value has a cell, an interval of (0, 1);
    z is the normal quantile of a point u drawn from it. With u uniform in the cell,

        log p(row) >= E[log p(z) - log phi(z)] + log(width) + offset

    where phi is the standard normal density of those z that come from cells.
    """

    exact: Any
    """The numbers z of continuous values, `(N, E)`."""
    low: Any
    """Lower ends of cells, `(N, C)`, in double precision; where the width is zero, the number z itself."""
    width: Any
    """Widths of cells, `(N, C)`."""
    offset: Any
    """Added to the log-density of each row, `(N,)`."""


class Dequantized(InitializesParts):
    """A flow over rows that hold cells.

    Its distributions have the log-probability of cells, or rather a lower bound: log p(z) where the points z are drawn
    from the cells, uniformly or from a distribution that is learned (variational dequantisation, Ho et al., 2019).

    Arguments:
        flow: Any flow over all numbers.
        exact: Which numbers are known.
        cells: Which numbers have cells.
        variational: Whether to learn from where in the cells points are drawn.
        context: The number of context features of the flow.

    Example:
        >>> model = Dequantized(ELF(features=2), exact=[0], cells=[1])
        >>> low = torch.tensor([[0.0], [0.25]], dtype=torch.double)
        >>> width = torch.tensor([[0.25], [0.75]], dtype=torch.double)
        >>> rows = Cells(torch.zeros(2, 1), low, width, torch.zeros(2))
        >>> model().log_prob(rows).shape
        torch.Size([2])
    """

    def __init__(
        self, flow: nn.Module, exact: Sequence[int], cells: Sequence[int], variational: bool = False, context: int = 0
    ) -> None:
        super().__init__()
        self.flow = flow
        self.exact = list(exact)
        self.cells = list(cells)
        places = [*self.exact, *self.cells]
        self.order = sorted(range(len(places)), key=places.__getitem__)
        features = len(places)
        self.noise = (
            ELF(len(cells), features + context, transforms=2, units=8, hidden_features=(64,))
            if variational and cells
            else None
        )

    def forward(self, c: Tensor | None = None) -> DequantizedDistribution:
        return DequantizedDistribution(self, c)

    def initialize_parts(self, rows: Cells, c: Tensor | None) -> None:
        """Sets the parts of the learned noise and of the flow."""
        if self.noise is not None:
            where = self._where(rows, c)
            self.noise.initialize(torch.randn_like(where[..., : len(self.cells)]), where)
        if initialize := getattr(self.flow, "initialize", None):
            initialize(self.place(rows, c)[0], c)

    def place(self, rows: Cells, c: Tensor | None = None, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Numbers z for each row, and what to add to their log-density so that it bounds that of the row.

        Arguments:
            rows: The rows.
            c: Their context, if any.
            noise: Where in the cells the points lie, in (0, 1), `(..., C)`; random if left out.
        """
        if not self.cells:
            return rows.exact, rows.offset
        ladj = 0.0
        if self.noise is not None:
            normal = torch.randn_like(rows.low) if noise is None else torch.special.ndtri(noise)
            normal = normal.to(rows.exact.dtype).expand(torch.broadcast_shapes(normal.shape, rows.low.shape))
            where = self._where(rows, c).expand(*normal.shape[:-1], -1)
            v, log_slope = self.noise.transform(where).call_and_ladj(normal)
            ladj = log_slope + (normal**2 - v**2).sum(-1) / 2
            noise = torch.special.ndtr(v.double())
        elif noise is None:
            noise = torch.rand_like(rows.low)
        known = rows.width == 0
        z = torch.special.ndtri((rows.low + rows.width * noise).clamp(CLOSEST, 1 - CLOSEST))
        log_volume = rows.width.log() + z**2 / 2 + math.log(2 * math.pi) / 2
        z = torch.where(known, rows.low, z)
        log_volume = torch.where(known, torch.zeros_like(z), log_volume).sum(-1)
        z = z.to(rows.exact.dtype)
        z = torch.cat([rows.exact.expand(*z.shape[:-1], -1), z], -1)[..., self.order]
        return z, rows.offset + log_volume.to(z.dtype) + ladj

    def _where(self, rows: Cells, c: Tensor | None) -> Tensor:
        """What the learned noise may look at: each cell's middle, all known numbers, the context."""
        middle = torch.special.ndtri((rows.low + rows.width / 2).clamp(CLOSEST, 1 - CLOSEST))
        middle = torch.where(rows.width == 0, rows.low, middle).to(rows.exact.dtype)
        return torch.cat([rows.exact, middle] + ([] if c is None else [c]), -1)


class DequantizedDistribution:
    """What a `Dequantized` flow says under a context: log-densities of rows of cells, and samples z."""

    def __init__(self, model: Dequantized, c: Tensor | None) -> None:
        self.model = model
        self.c = c

    def log_prob(self, rows: Cells, noise: Tensor | None = None) -> Tensor:
        """A lower bound, in expectation, of each row's log-density; with noise of `(K, 1, C)`, K bounds of each."""
        z, extra = self.model.place(rows, self.c, noise)
        return self.model.flow(self.c).log_prob(z) + extra

    def sample(self, shape: Size | Sequence[int] = (), **options: Any) -> Tensor:
        """Samples of z, `(*shape, features)`."""
        return self.model.flow(self.c).sample(Size(shape), **options)
