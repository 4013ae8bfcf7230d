"""Flows whose probabilities of combinations of categories are corrected to those of data, as by raking."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Size, Tensor, nn
from torch.distributions import Distribution, constraints

from elflow.kernels import NonFiniteError

__all__ = ["MAX_LOG_FACTOR", "MAX_LOG_PART", "MAX_TABLES", "MIN_LOG_FACTOR", "Tilted"]

MAX_LOG_FACTOR = math.log(16.0)
"""Maximum logarithm of the factor of a point, and of the constant in size: samples are rejected as often.

With 8, factors of several rules at once (engines of electric cars, gearboxes of hybrids, countries of brands) reached
the limit after three tables."""
MIN_LOG_FACTOR = -20.0
"""Minimum logarithm of the factor of a point: no combination becomes impossible."""
MAX_LOG_PART = 20.0
"""Maximum size of the logarithm of a factor of one table. Those of a combination and of its parts may cancel out."""
MAX_PROPOSED, MAX_FAILURES = 2**16, 20
"""Maximum number of samples of the flow at a time, and of times in a row that none of them is accepted."""
MAX_COMBINATIONS = 2**20
"""Maximum number of combinations of cells of all tables among which the largest factor is found."""
MAX_TABLES = 136
"""Maximum number of tables: those of 16 features and of their pairs."""

FloatArray = NDArray[np.float64]


class Tilted(nn.Module):
    """Flow whose density is multiplied by factors of the cells of some features, with an integral of one again.

    Categories are neighbouring cells on the axis of a feature. A smooth density cannot be zero in one combination of
    cells and high in the next one, such as men and women in a ward for women only. The factors are tables over one or
    two features: a log-linear model of the cells, with the flow for all that it leaves open.

    Reference:
        On a least squares adjustment of a sampled frequency table when the expected marginal totals are known
        (Deming and Stephan, 1940), for raking

    Arguments:
        flow: A flow in evaluation mode, without context.
        cells: Ends between neighbouring cells, in increasing order, for each feature with cells.
        tables: Features of each table, one or two.

    Example:
        >>> import elflow
        >>> flow = Tilted(elflow.ELF(features=2).eval(), cells={0: [0.0], 1: [0.0]}, tables=[[0, 1]])
        >>> flow.set_factors([np.log([[0.5, 1.5], [1.5, 0.5]])], log_constant=0.0)
        >>> x = flow().sample((1000,))
        >>> bool(((x[:, 0] < 0) != (x[:, 1] < 0)).float().mean() > 0.6)
        True
    """

    log_constant: Tensor

    def __init__(
        self, flow: nn.Module, cells: Mapping[int, Sequence[float] | FloatArray], tables: Sequence[Sequence[int]]
    ) -> None:
        super().__init__()
        self.flow = flow
        self.tables = [list(table) for table in tables]
        if unknown := {position for table in tables for position in table} - set(cells):
            raise ValueError(f"tables must be over features with cells ({sorted(cells)}), got {sorted(unknown)}")
        self.ends = {position: np.asarray(cells[position], np.float64) for table in tables for position in table}
        self.highest: tuple[tuple[int, ...], float] | None = None
        self.register_buffer("log_constant", torch.zeros(()))
        for k, table in enumerate(self.tables):
            self.register_buffer(f"table{k}", torch.zeros([len(self.ends[position]) + 1 for position in table]))

    def extra_repr(self) -> str:
        return f"tables={self.tables}"

    @property
    def factors(self) -> list[Tensor]:
        """Logarithms of the factors of each table."""
        return [getattr(self, f"table{k}") for k in range(len(self.tables))]

    @torch.no_grad()
    def set_factors(self, factors: Sequence[FloatArray], log_constant: float) -> None:
        """Set the logarithms of the factors of each table, and of the constant that all points have."""
        for table, values in zip(self.factors, factors, strict=True):
            table.copy_(torch.from_numpy(values))
        self.log_constant.fill_(log_constant)

    @property
    def log_highest(self) -> float:
        """Upper bound of the logarithms of the factors of all points: the maximum, if there are few combinations."""
        versions = tuple(values._version for values in [*self.factors, self.log_constant])
        if self.highest is None or self.highest[0] != versions:
            self.highest = versions, self._find_highest()
        return self.highest[1]

    def _find_highest(self) -> float:
        positions = list(self.ends)
        sizes = [len(self.ends[position]) + 1 for position in positions]
        if math.prod(sizes) <= MAX_COMBINATIONS:
            total = torch.zeros(sizes, dtype=torch.double)
            for table, values in zip(self.tables, self.factors, strict=True):
                order = [table.index(position) for position in positions if position in table]
                shape = [size if position in table else 1 for position, size in zip(positions, sizes, strict=True)]
                total += values.double().cpu().permute(order).reshape(shape)
            highest = float(total.max())
        else:
            highest = sum(float(values.max()) for values in self.factors)
        return min(max(MIN_LOG_FACTOR, highest), MAX_LOG_FACTOR) + float(self.log_constant)

    def compute_log_factor(self, x: Tensor) -> Tensor:
        """Logarithms of the factors of points `(..., features)`, `(...)`."""
        return self._add_up({position: self._find_cells(x, position) for position in self.ends}, x)

    def compute_along(self, x: Tensor, position: int) -> Tensor:
        """Logarithms of the factors of points with a feature in each of its K cells, `(..., K)`.

        Arguments:
            x: Points, `(..., features)`.
            position: The feature, which must have cells.
        """
        codes = {other: self._find_cells(x, other)[..., None] for other in self.ends}
        codes[position] = torch.arange(len(self.ends[position]) + 1, device=x.device).expand(*x.shape[:-1], -1)
        return self._add_up(codes, x)

    def _add_up(self, codes: Mapping[int, Tensor], x: Tensor) -> Tensor:
        """Logarithms of the factors of points in these cells, whose shapes broadcast."""
        total: Tensor | float = 0.0
        for table, values in zip(self.tables, self.factors, strict=True):
            total = total + values.to(x)[tuple(codes[position] for position in table)]
        return torch.as_tensor(total).clamp(MIN_LOG_FACTOR, MAX_LOG_FACTOR) + self.log_constant.to(x)

    def _find_cells(self, x: Tensor, position: int) -> Tensor:
        ends = torch.from_numpy(self.ends[position]).to(x)
        return torch.searchsorted(ends, x[..., position].contiguous(), right=True)

    def forward(self, c: Tensor | None = None) -> _TiltedDistribution:
        """The distribution p(x); there is no context."""
        return _TiltedDistribution(self, self.flow(c))


class _TiltedDistribution(Distribution):
    """Distribution of a `Tilted` flow.

    Arguments:
        tilted: The flow with its factors.
        base: The distribution without factors.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}

    def __init__(self, tilted: Tilted, base: Distribution) -> None:
        self.tilted = tilted
        self.base = base
        super().__init__(base.batch_shape, base.event_shape, validate_args=False)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of points `(..., features)` in nats, `(...)`."""
        log_prob: Tensor = self.base.log_prob(x) + self.tilted.compute_log_factor(x)
        return log_prob

    @torch.no_grad()
    def sample(self, sample_shape: Size | Sequence[int] = (), **options: Any) -> Tensor:
        """Samples without gradients, `(*sample_shape, features)`, by rejection.

        Arguments:
            sample_shape: The shape of the samples.
            options: Options of the flow's own `sample`.
        """
        shape = self._extended_shape(Size(sample_shape))
        n_missing, n_failures = shape[:-1].numel(), 0
        accepted = [self.base.sample(Size([0]), **options)]
        highest = self.tilted.log_highest
        rate = math.exp(-max(0.0, highest))  # on average, if the density has an integral of one
        while n_missing > 0:
            # A few more than are needed on average, so that another round is rare.
            count = min(MAX_PROPOSED, math.ceil(1.05 * n_missing / rate) + 16)
            x = self.base.sample(Size([count]), **options)
            is_accepted = torch.rand_like(x[..., 0]).log() < self.tilted.compute_log_factor(x) - highest
            accepted.append(x[is_accepted][:n_missing])
            n_missing -= len(accepted[-1])
            n_failures = 0 if len(accepted[-1]) else n_failures + 1
            if n_failures == MAX_FAILURES:
                raise NonFiniteError(
                    f"factors of cells must leave some samples, got none of {n_failures} times {count:,}: the flow and "
                    "its factors do not belong together"
                )
        return torch.cat(accepted).reshape(shape)
