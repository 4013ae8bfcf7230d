"""Conditional distribution of one column given all others, by numerical integration of the joint density."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import qmc
from torch import Tensor, nn

from elflow.flows.dequantization import Cells, Dequantized
from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import encode_rows
from elflow.tabular.schema import Schema
from elflow.training import Rows

__all__ = ["Conditional", "condition", "pit_values"]

N_COARSE_POINTS = 65
"""Number of points of the first grid."""
REFINED_QUANTILES = ndtr(np.linspace(-5, 5, 81))
"""Quantiles at which a refinement adds points, including far tails."""
TEMPERATURES = (10.0, 1.0)
"""Temperatures of the refinements: the first flattens the log-density, so that no narrow peak is lost."""
N_CELL_DRAWS = 8
"""Number of points of the other columns' cells over which the density is averaged."""
MAX_EVALUATIONS = 2**15
"""Maximum number of densities that are evaluated at a time."""

Evaluate = Callable[[slice, Tensor], Tensor]
"""Log-density up to a constant of each row, `(N, K)`, of a slice of N rows at K points each, `(N, K)`."""


class Conditional:
    """Conditional distribution of one column in each row of a table, given the row's other columns.

    `FlowDensity.conditional` builds it. Along the feature z of the column, the joint density is proportional to the
    conditional density. It is evaluated on a coarse grid, then at quantiles of the estimate, and integrated with a
    log-linear interpolation: exponential tails are exact, where the trapezoidal rule would overestimate them.

    Arguments:
        model: The fitted flow.
        schema: The columns of the table.
        name: Name of the column.
        rows: The N encoded rows, with any valid value of the column itself.

    Attributes:
        column: The column.
        knots: Increasing points z, `(N, K)`.
        cumulative: Cumulative distribution at the knots, `(N, K)`.

    Example:
        >>> from elflow import FlowDensity
        >>> table = np.random.default_rng(0).normal(size=(200, 2))
        >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
        >>> distribution = density.conditional(table[:3], column=1)
        >>> distribution.quantile([0.05, 0.5, 0.95]).shape
        (3, 3)
        >>> distribution.cdf(table[:3, 1]).shape
        (3,)
    """

    def __init__(self, model: Dequantized, schema: Schema, name: str, rows: Rows) -> None:
        self.column = schema.column(name)
        self._model = model
        self._position = schema.positions(name)[-1]
        self._rows = Rows(self._without_cell(rows.x), rows.context)
        has_other_cells = any(position != self._position for position in schema.cells)
        self._n_draws = N_CELL_DRAWS if has_other_cells else 1
        self.knots, self.cumulative = integrate_density(
            self._log_density, len(rows), self.column.z_range, n_draws=self._n_draws
        )

    def cdf(self, values: pd.Series | NDArray[Any]) -> FloatArray:
        """P(column <= value) in each row, `(N,)`, for one value per row, `(N,)`."""
        values = pd.Series(values)
        if len(values) != len(self.knots):
            raise ValueError(f"values must hold one value for each of {len(self.knots)} rows, got {len(values)}")
        if n_missing := int(values.isna().sum()):
            raise ValueError(f"values of {self.column.name!r} must not be missing, got {n_missing} missing values")
        low, width, _ = self.column.encode(values)
        z = np.where(width == 0, low, ndtri(np.clip(low + width, 0, 1)))
        return _interpolate(z, self.knots, self.cumulative)

    def quantile(self, q: FloatArray | list[float]) -> NDArray[Any]:
        """Quantiles of the column in each row, `(N, K)`, for probabilities q in (0, 1), `(K,)` or `(N, K)`."""
        q = np.broadcast_to(np.asarray(q, np.float64), (len(self.knots), np.shape(q)[-1]))
        z = np.reshape([np.interp(*row) for row in zip(q, self.cumulative, self.knots, strict=True)], q.shape)
        columns = [self.column.decode(z[:, k]).to_numpy() for k in range(z.shape[1])]
        return np.stack(columns, 1)

    def _without_cell(self, x: Cells) -> Cells:
        """The rows with an exact number in place of the column's own cell, whose volume must not count."""
        if self._position not in self._model.cells:
            return x
        index = self._model.cells.index(self._position)
        low, width = x.low.clone(), x.width.clone()
        low[:, index] = width[:, index] = 0.0
        return x._replace(low=low, width=width)

    def _log_density(self, block: slice, points: Tensor) -> Tensor:
        """Log-density along the column, averaged over points of the other columns' cells."""
        rows = self._rows.take(block)
        n_cells = len(self._model.cells)
        # One set of quasi-random points for all rows, so that results do not depend on the other rows.
        noise = torch.from_numpy(qmc.Sobol(max(1, n_cells), rng=0).random(self._n_draws)[:, None, :n_cells])
        z, log_volume = self._model.dequantize(rows.x, rows.context, noise if n_cells else None)
        z, log_volume = z.expand(self._n_draws, -1, -1), log_volume.expand(self._n_draws, -1)
        log_density = log_density_along(self._model.flow, z, self._position, points, rows.context)
        return torch.logsumexp(log_density + log_volume[..., None], 0)


def condition(
    model: Dequantized, schema: Schema, name: str, frame: pd.DataFrame, context: Tensor | None = None
) -> Conditional:
    """Build the conditional distribution of a column given the other columns of a frame.

    Arguments:
        model: The fitted flow.
        schema: The columns of the table.
        name: Name of the column. Its values in the frame are ignored, and may be missing or left out.
        frame: The table, N rows.
        context: Encoded context of the rows, `(N, context)`.
    """
    frame = frame.copy(deep=False)
    frame[name] = schema.column(name).decode(np.zeros(len(frame))).set_axis(frame.index)
    rows = encode_rows(schema, frame, context)
    if not rows.x.offset.isfinite().all():
        n_outside = int((~rows.x.offset.isfinite()).sum())
        raise ValueError(f"X must lie within the bounds of the columns conditioned on, got {n_outside} rows outside")
    return Conditional(model, schema, name, rows)


def pit_values(model: Dequantized, schema: Schema, name: str, z: Tensor, context: Tensor | None = None) -> FloatArray:
    """Probability integral transform of one feature: P(feature <= its value | all other features) in each row.

    Arguments:
        model: The fitted flow.
        schema: The columns of the table.
        name: Name of the column whose feature is transformed.
        z: Features of the rows, `(N, features)`, with one point of each cell.
        context: Encoded context of the rows, `(N, context)`.

    Returns:
        Values in (0, 1), `(N,)`, which are uniform if the model is right.
    """
    position = schema.positions(name)[-1]

    def evaluate(block: slice, points: Tensor) -> Tensor:
        c = None if context is None else context[block]
        return log_density_along(model.flow, z[block], position, points, c)

    # Every other quantile: a histogram of PIT values needs less precision than a single conditional probability.
    knots, cumulative = integrate_density(evaluate, len(z), schema.column(name).z_range, REFINED_QUANTILES[::2])
    return _interpolate(z[:, position].double().numpy(), knots, cumulative)


def log_density_along(
    flow: nn.Module, z: Tensor, position: int, points: Tensor, context: Tensor | None = None
) -> Tensor:
    """Joint log-density with one feature replaced by each of K points.

    Arguments:
        flow: A flow over all features.
        z: Rows, `(..., N, features)`.
        position: Position of the feature that is replaced.
        points: Values of this feature, `(N, K)`.
        context: Encoded context of the rows, `(N, context)`.

    Returns:
        Log-densities in double precision, `(..., N, K)`.
    """
    along = z[..., None, :].expand(*z.shape[:-1], points.shape[1], -1).clone()
    along[..., position] = points.to(z.dtype)
    c = None if context is None else context[:, None, :].expand(-1, points.shape[1], -1)
    return flow(c).log_prob(along).double()


@torch.no_grad()
def integrate_density(
    evaluate: Evaluate,
    count: int,
    z_range: tuple[float, float],
    quantiles: FloatArray = REFINED_QUANTILES,
    n_draws: int = 1,
) -> tuple[FloatArray, FloatArray]:
    """Cumulative distributions of densities that are known up to a factor.

    Arguments:
        evaluate: Log-densities of a slice of rows.
        count: Number of rows N.
        z_range: Range of the points.
        quantiles: Quantiles at which each refinement adds points.
        n_draws: Number of densities that `evaluate` averages for each point.

    Returns:
        Increasing points and the cumulative distribution at them, `(N, K)` each.
    """

    def evaluate_all(points: FloatArray) -> FloatArray:
        size = max(1, MAX_EVALUATIONS // (points.shape[1] * n_draws))
        blocks = [slice(start, start + size) for start in range(0, count, size)]
        log_densities = [evaluate(block, torch.from_numpy(points[block])).numpy() for block in blocks]
        return np.concatenate(log_densities) if log_densities else np.zeros(points.shape)

    knots = np.tile(np.linspace(*z_range, N_COARSE_POINTS), (count, 1))
    log_density = evaluate_all(knots)
    for temperature in TEMPERATURES:
        estimates = zip(_accumulate(knots, log_density / temperature), knots, strict=True)
        refined = np.reshape(
            [np.interp(quantiles, total, points) for total, points in estimates], (count, len(quantiles))
        )
        log_density = np.concatenate([log_density, evaluate_all(refined)], 1)
        knots = np.concatenate([knots, refined], 1)
        order = np.argsort(knots, 1, kind="stable")
        knots, log_density = (np.take_along_axis(array, order, 1) for array in (knots, log_density))
    return knots, _accumulate(knots, log_density)


def _accumulate(knots: FloatArray, log_density: FloatArray) -> FloatArray:
    """Cumulative distribution at the knots of each row, for a log-density that is linear between them."""
    rise = np.abs(np.diff(log_density, axis=1))
    higher = np.maximum(log_density[:, 1:], log_density[:, :-1]) - log_density.max(1, keepdims=True, initial=-np.inf)
    # Mean of exp over a piece, relative to its higher end; its expansion near 0 avoids 0/0.
    mean = np.where(rise > 1e-6, -np.expm1(-rise) / np.maximum(rise, 1e-6), 1 - rise / 2)
    pieces = np.exp(higher) * mean * np.diff(knots, axis=1)
    total = np.concatenate([np.zeros((len(knots), 1)), np.cumsum(pieces, 1)], 1)
    return total / total[:, -1:]


def _interpolate(z: FloatArray, knots: FloatArray, cumulative: FloatArray) -> FloatArray:
    """Cumulative distribution of each row at one point z, `(N,)`."""
    return np.array([np.interp(*row) for row in zip(z, knots, cumulative, strict=True)])
