"""Dequantisation: flows over rows with discrete, rounded or missing values."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import torch
from torch import Size, Tensor, nn

from elflow.flows.cell_noise import MIN_PROBABILITY, CellNoise, draw_uniform
from elflow.flows.elf import ELF
from elflow.kernels import has_double
from elflow.nn import InitializesParts

__all__ = ["Cells", "Dequantized"]


class Cells(NamedTuple):
    """Encoded rows of a table: exact numbers for continuous values, and cells for discrete or missing values.

    The flow models numbers z. A continuous value has one exact z. Any other value has a cell, an interval of (0, 1);
    z is the normal quantile of a point u drawn from it. With u uniform in the cell,

        log p(row) >= E[log p(z) - log phi(z)] + log(width) + offset

    where phi is the standard normal density of those z that come from cells. A rounded value of a smooth column has a
    cell that is an interval of z itself, from `low` to `low - width` with a negative width. With z uniform in it,

        log p(row) >= E[log p(z)] + log(-width) + offset

    The fields are numpy arrays after encoding, and tensors for a flow.

    Example:
        >>> low = torch.tensor([[0.0], [0.25]], dtype=torch.double)
        >>> width = torch.tensor([[0.25], [0.75]], dtype=torch.double)
        >>> Cells(torch.zeros(2, 1), low, width, offset=torch.zeros(2)).width.shape
        torch.Size([2, 1])
    """

    exact: Any
    """The numbers z of continuous values, `(N, E)`."""
    low: Any
    """Lower ends of cells, `(N, C)`, in double precision: of (0, 1) if the width is positive, of z otherwise."""
    width: Any
    """Widths of cells, `(N, C)`: positive for intervals of (0, 1), negative for intervals of z, 0 where z is known."""
    offset: Any
    """Term to add to the log-density of each row, `(N,)`."""


class Dequantized(InitializesParts):
    """Flow over rows with cells, by dequantisation.

    Points z are drawn from the cells: uniformly, from Gaussians that are truncated to the cells, or from a learned
    distribution (variational dequantisation). The log-density of z gives a lower bound (in expectation) on the
    log-probability of the cells.

    Reference:
        Flow++: Improving Flow-Based Generative Models with Variational Dequantization (Ho et al., 2019)

    Arguments:
        flow: Any flow over all features.
        exact: The features that are exact numbers.
        cells: The features that have cells.
        variational: Whether to learn the distribution of points in their cells; uniform otherwise.
        context: The number of context features of the flow.
        gaussian: Whether points in their cells are correlated with the other features: see `CellNoise`.
        independent: Features whose points are not, although those of others are.

    Example:
        >>> model = Dequantized(ELF(features=2), exact=[0], cells=[1])
        >>> low = torch.tensor([[0.0], [0.25]], dtype=torch.double)
        >>> width = torch.tensor([[0.25], [0.75]], dtype=torch.double)
        >>> rows = Cells(torch.zeros(2, 1), low, width, torch.zeros(2))
        >>> model().log_prob(rows).shape
        torch.Size([2])
    """

    def __init__(
        self,
        flow: nn.Module,
        exact: Sequence[int],
        cells: Sequence[int],
        variational: bool = False,
        context: int = 0,
        gaussian: bool = False,
        independent: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.flow = flow
        self.exact = list(exact)
        self.cells = list(cells)
        columns = [*self.exact, *self.cells]
        self.order = sorted(range(len(columns)), key=columns.__getitem__)
        features = len(columns)
        self.noise = (
            ELF(len(cells), features + context, transforms=2, units=8, hidden_features=(64,))
            if variational and cells
            else None
        )
        self.cell_noise = CellNoise(self.exact, self.cells, independent) if gaussian and cells else None

    def extra_repr(self) -> str:
        return f"exact={self.exact}, cells={self.cells}"

    def forward(self, c: Tensor | None = None) -> DequantizedDistribution:
        """The distribution of rows given their context, `(N, context)`, or None for a flow without context."""
        return DequantizedDistribution(self, c)

    @property
    def parts(self) -> list[str]:
        """Names of the parts of the flow that are trained independently: see `elflow.training.selection`.

        With learned noise, which they share, there is only one part.
        """
        parts = [] if self.noise is not None else getattr(self.flow, "parts", [])
        return [f"flow.{part}" for part in parts] or [""]

    def train_parts(self, indices: Sequence[int]) -> None:
        """Train only these parts of the flow from now on."""
        if train_parts := getattr(self.flow, "train_parts", None):
            train_parts(indices)

    def train_in_threads(self, n_threads: int) -> None:
        """Train the parts of the flow on this many threads."""
        if train_in_threads := getattr(self.flow, "train_in_threads", None):
            train_in_threads(n_threads)

    @property
    def device(self) -> torch.device:
        """The device of the weights. Cells may be on the CPU instead, for devices without double precision."""
        weights = next(chain(self.parameters(), self.buffers()), None)
        return torch.device("cpu") if weights is None else weights.device

    def draw_noise(self, n: int) -> Tensor | None:
        """Random positions of the points of n rows in their cells, `(n, C)`; None if there are no cells."""
        if not self.cells:
            return None
        device = self.device if has_double(self.device) else torch.device("cpu")
        return torch.rand(n, len(self.cells), dtype=torch.double, device=device)

    def combine(self, log_probs: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        """Log-densities of held-out rows, `(N,)`, under the mixture of the parts with the weights that suit them."""
        return cast(Tensor, cast(Any, self.flow).combine(log_probs, sample_weight))

    def initialize_parts(self, rows: Cells, c: Tensor | None) -> None:
        """Initialise the noise and the flow."""
        if self.cell_noise is not None:
            self.cell_noise.estimate_moments(rows.exact, rows.low, rows.width)
        if self.noise is not None:
            noise_context = self._make_noise_context(rows, c)
            self.noise.initialize(torch.randn_like(noise_context[..., : len(self.cells)]), noise_context)
        if initialize := getattr(self.flow, "initialize", None):
            initialize(self.dequantize(rows, c)[0], c)

    def dequantize(
        self, rows: Cells, c: Tensor | None = None, noise: Tensor | None = None, skipped: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Draw a point z for each row.

        Arguments:
            rows: N rows with C cells each.
            c: Their context, `(N, context)`, or None for a flow without context.
            noise: Positions of the points in their cells, in (0, 1), `(..., C)`, which broadcast to `(..., N, C)`; None
                for random ones. For a learned distribution these are quantile levels of its base.
            skipped: A feature on whose value the points do not depend; only for Gaussian noise.

        Returns:
            z, `(..., N, features)`, and the term that makes its log-density a bound for the row, `(..., N)`.

        Example:
            >>> model = Dequantized(ELF(features=1), exact=[], cells=[0])
            >>> low, width = torch.zeros(2, 1).double(), torch.ones(2, 1).double()
            >>> z, log_volume = model.dequantize(Cells(torch.zeros(2, 0), low, width, torch.zeros(2)))
            >>> z.shape, log_volume.shape
            (torch.Size([2, 1]), torch.Size([2]))
        """
        if not self.cells:
            return rows.exact.to(self.device), rows.offset.to(self.device)
        if noise is None:
            noise = torch.rand_like(rows.low)
        if self.cell_noise is not None:
            # Tables of float need double here, and mps has none: cells and their noise may be on the CPU.
            z, log_density = self.cell_noise.draw(rows.exact.to(rows.low), rows.low, rows.width, noise, skipped)
            return self._join(rows, z, rows.offset - log_density.to(rows.offset))
        ladj: Tensor | float = 0.0
        if self.noise is not None:
            normal = torch.special.ndtri(noise.clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY))
            normal = normal.to(self.device, rows.exact.dtype)
            normal = normal.expand(torch.broadcast_shapes(normal.shape, rows.low.shape))
            noise_context = self._make_noise_context(rows, c).expand(*normal.shape[:-1], -1)
            v, log_slope = self.noise.transform(noise_context).call_and_ladj(normal)
            ladj = log_slope + (normal**2 - v**2).sum(-1) / 2
            noise = torch.special.ndtr(v.to(rows.low.device).double())
        z, log_density = draw_uniform(rows.low, rows.width, noise)
        log_volume = -log_density.sum(-1)
        z, log_volume = self._join(rows, z, rows.offset + log_volume.to(rows.exact.dtype))
        return z, log_volume + ladj

    def _join(self, rows: Cells, z: Tensor, log_volume: Tensor) -> tuple[Tensor, Tensor]:
        """Exact numbers and points of cells in the order of the features, on the device of the flow."""
        z = z.to(rows.exact.dtype)
        z = torch.cat([rows.exact.expand(*z.shape[:-1], -1), z], -1)[..., self.order]
        return z.to(self.device), log_volume.to(self.device)

    def _make_noise_context(self, rows: Cells, c: Tensor | None) -> Tensor:
        """Context of the learned noise: exact numbers, the middle of each cell, and the context of the rows."""
        u = (rows.low + rows.width / 2).clamp(MIN_PROBABILITY, 1 - MIN_PROBABILITY)
        middle = torch.where(rows.width <= 0, rows.low - rows.width / 2, torch.special.ndtri(u)).to(rows.exact.dtype)
        known = torch.cat([rows.exact, middle], -1).to(self.device)
        return known if c is None else torch.cat([known, c], -1)


class DequantizedDistribution:
    """Distribution of rows under a `Dequantized` flow, given a context.

    Arguments:
        model: The flow.
        c: The context, `(N, context)`, or None for a flow without context.
    """

    def __init__(self, model: Dequantized, c: Tensor | None) -> None:
        self.model = model
        self.c = c

    def log_prob(self, rows: Cells, noise: Tensor | None = None) -> Tensor:
        """Stochastic lower bound (in expectation) on the log-density of each row.

        Arguments:
            rows: N rows with C cells each.
            noise: Positions of the points in their cells: see `Dequantized.dequantize`.

        Returns:
            `(N,)`; with noise of shape `(K, 1, C)`, K bounds for each row, `(K, N)`.
        """
        if self.model.training and not self.model.initialized:
            self.model.initialize(rows, self.c)
        z, log_volume = self.model.dequantize(rows, self.c, noise)
        return self.model.flow(self.c).log_prob(z) + log_volume

    def log_probs(self, rows: Cells, noise: Tensor | None = None) -> Tensor:
        """Bounds as of `log_prob` for each part of a mixture, `(parts, N)`."""
        z, log_volume = self.model.dequantize(rows, self.c, noise)
        return self.model.flow(self.c).log_probs(z) + log_volume

    def sample(self, shape: Size | Sequence[int] = (), **options: Any) -> Tensor:
        """Samples of z, `(*shape, *batch, features)`; `options` are those of the flow's own `sample`."""
        return self.model.flow(self.c).sample(Size(shape), **options)
