"""Conditional distribution of one column given all others, by numerical integration of the joint density."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import ndtri, softmax
from torch import Tensor

from elflow.flows.dequantization import Cells, Dequantized
from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular._flow import draw_quasi_random, encode_rows
from elflow.tabular.columns import Column
from elflow.tabular.columns._steps import Steps
from elflow.tabular.columns._warnings import OutsideBoundsWarning
from elflow.tabular.integrals._integration import (
    Distributions,
    integrate_density,
    interpolate,
    measure_precisions,
    merge_distributions,
)
from elflow.tabular.integrals._lines import Lines
from elflow.tabular.schema import Schema
from elflow.training import Rows

__all__ = ["Conditional", "condition", "condition_by_points", "pit_values"]

MAX_EDGES = 1025
"""Maximum number of ends of cells at which the distribution of a discrete column is computed from points."""
N_CELL_DRAWS = 16
"""Number of points of the other columns' cells over which the density is averaged, as for scores."""
MAX_CELL_VARIANCE = 0.005
"""Maximum variance of points of cells, relative to that of their columns given all others, for which one is enough."""


class Conditional:
    """Conditional distribution of one column in each row of a table, given other columns of the row.

    `FlowDensity.conditional` builds it. A column with atoms has several states, and its distribution is a mixture of
    the atoms and of the continuous part.

    Arguments:
        column: The column.
        knots: Increasing points z, `(N, K)`, for values that are not atoms.
        cumulative: Cumulative distribution at the knots, `(N, K)`, given that the value is not an atom.
        probabilities: Probabilities of the states but that of missing values, `(N, states)`.
        effective_sample_size: Number of independent points that would be as precise, `(N,)`, if other columns are
            integrated out by sampling; None if the distribution is integrated numerically.
        log_density: Function of points z, `(N,)`, that returns the log-density of z at them, given that the value is
            not an atom; None if it is known from the knots only.

    Example:
        >>> from elflow import FlowDensity
        >>> table = np.random.default_rng(0).normal(size=(200, 2))
        >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
        >>> distribution = density.conditional(table[:3], column=1)
        >>> distribution.quantile([0.05, 0.5, 0.95]).shape
        (3, 3)
        >>> distribution.cdf(table[:3, 1]).shape, distribution.method
        ((3,), 'exact')
    """

    def __init__(
        self,
        column: Column,
        knots: FloatArray,
        cumulative: FloatArray,
        probabilities: FloatArray,
        effective_sample_size: FloatArray | None = None,
        log_density: Callable[[FloatArray], FloatArray] | None = None,
    ) -> None:
        self.column = column
        self.knots = knots
        self.cumulative = cumulative
        self.probabilities = probabilities
        self.effective_sample_size = effective_sample_size
        self.log_density = log_density

    @property
    def method(self) -> str:
        """`"exact"` for numerical integration, or `"importance sampling"`."""
        return "exact" if self.effective_sample_size is None else "importance sampling"

    def cdf(self, values: pd.Series | NDArray[Any]) -> FloatArray:
        """P(column <= value) in each row, `(N,)`, for one value per row, `(N,)`."""
        values = pd.Series(values)
        if len(values) != len(self.knots):
            raise ValueError(f"values must hold one value for each of {len(self.knots)} rows, got {len(values)}")
        if n_missing := int(values.isna().sum()):
            raise ValueError(f"values of {self.column.name!r} must not be missing, got {n_missing} missing values")
        total = self.probabilities[:, self.column.position] * self._continuous_cdf(values)
        for state, atom in self._atoms():
            tolerance = (self.column.step or 0.0) / 4  # values on a grid may be rounded
            total += self.probabilities[:, state] * (values.to_numpy(np.float64) >= atom - tolerance)
        return total

    def quantile(self, q: FloatArray | list[float]) -> NDArray[Any]:
        """Quantiles of the column in each row, `(N, K)`, for probabilities q in (0, 1), `(K,)` or `(N, K)`."""
        q = np.broadcast_to(np.asarray(q, np.float64), (len(self.knots), np.shape(q)[-1]))
        share = self.probabilities[:, [self.column.position]]
        rest = q.copy()  # what is left for the continuous part, and the state of each quantile
        states = np.full(q.shape, self.column.position)
        below = np.zeros((len(q), 1))
        for state, atom in self._atoms():
            reached = share * self._continuous_cdf(np.full(len(q), atom))[:, None] + below
            probability = self.probabilities[:, [state]]
            states[(q > reached) & (q <= reached + probability)] = state
            rest = np.where(q > reached + probability, rest - probability, rest)
            below = below + probability
        rest = np.clip(rest / np.maximum(share, 1e-300), 0, 1)
        z = np.reshape([np.interp(*row) for row in zip(rest, self.cumulative, self.knots, strict=True)], q.shape)
        columns = [self.column.decode(z[:, k], states[:, k]).to_numpy() for k in range(z.shape[1])]
        return np.stack(columns, 1)

    def _atoms(self) -> Iterator[tuple[int, float]]:
        """States of the column that are atoms, and these."""
        for state in range(self.probabilities.shape[1]):
            if (atom := self.column.state_value(state)) is not None:
                yield state, atom

    def _continuous_cdf(self, values: pd.Series | FloatArray) -> FloatArray:
        """P(column <= value) in each row, `(N,)`, given that the column is not at an atom."""
        z = self.column.encode_upper(pd.Series(values))
        return interpolate(z[:, None], self.knots, self.cumulative)[:, 0]


class _Quadrature:
    """Numerical integration of the joint density along the feature z of one column.

    Along z, the joint density is proportional to the conditional density. The integral over z in each state of the
    column is proportional to the probability of the state.

    Arguments:
        model: The fitted flow.
        schema: The columns of the table.
        name: Name of the column.
    """

    def __init__(self, model: Dequantized, schema: Schema, name: str) -> None:
        self._column = schema.column(name)
        self._model = model
        self._position = schema.positions(name)[-1]
        has_other_cells = any(position != self._position for position in schema.cells)
        self._n_draws = N_CELL_DRAWS if has_other_cells else 1
        self._precisions = measure_precisions(model.flow)

    def integrate(self, rows: Sequence[Rows]) -> Conditional:
        """Distribution of the column.

        Arguments:
            rows: The N encoded rows for each state of the column but that of missing values, in their order, with any
                valid value of the column itself.
        """
        log_masses = []
        flow = self._model.flow
        for state, encoded in enumerate(rows):
            is_continuous = state == self._column.position
            z_range = self._column.z_range if is_continuous else (-8.0, 8.0)
            lines = self._draw_lines(encoded, self._n_draws)
            result = self._integrate_state(encoded, lines, z_range)
            log_masses.append(result.log_mass)
            if is_continuous:
                found, of_values = result, lines

        def log_density(z: FloatArray) -> FloatArray:
            along = of_values.evaluate(flow, torch.from_numpy(z[:, None]))
            total: FloatArray = torch.logsumexp(along, 0)[:, 0].numpy() - found.log_mass
            return total

        probabilities = softmax(np.stack(log_masses, 1), 1)
        return Conditional(self._column, found.knots, found.cumulative, probabilities, log_density=log_density)

    def _integrate_state(self, rows: Rows, lines: Lines, z_range: tuple[float, float]) -> Distributions:
        """Distributions of z in one state of the column; one line is enough for rows with narrow cells only."""
        if self._n_draws == 1:
            return integrate_density(lines, self._model.flow, z_range)
        is_narrow = self._find_narrow(rows.x)
        parts = []
        for index, part in (
            (is_narrow.nonzero()[:, 0], self._draw_lines(rows, 1)),
            ((~is_narrow).nonzero()[:, 0], lines),
        ):
            if len(index):
                parts.append((index.numpy(), integrate_density(part.take(index), self._model.flow, z_range)))
        return merge_distributions(parts, len(rows))

    def _find_narrow(self, x: Cells) -> Tensor:
        """Rows in which all cells of other columns are far narrower than what these columns vary given the rest."""
        width = self._without_cell(x).width
        # The points of a learned distribution have densities of their own, however narrow the cell.
        if self._precisions is None or self._model.noise is not None:
            return torch.zeros(len(width), dtype=torch.bool)
        variance = width.square() / 12 * self._precisions[self._model.cells]
        return (width <= 0).all(1) & (variance.sum(1) < MAX_CELL_VARIANCE)

    def _draw_lines(self, rows: Rows, n_draws: int) -> Lines:
        """Lines along the column through points of the other columns' cells."""
        n_cells = len(self._model.cells)
        # One set of quasi-random points for all rows, so that results do not depend on the other rows.
        points = draw_quasi_random(n_draws, n_cells) if n_draws > 1 else np.full((1, n_cells), 0.5)
        noise = torch.from_numpy(points[:, None]) if n_cells else None
        z, log_volume = self._model.dequantize(self._without_cell(rows.x), rows.context, noise, self._position)
        z, log_volume = z.expand(n_draws, -1, -1), log_volume.expand(n_draws, -1) - math.log(n_draws)
        return Lines(z, log_volume, self._position, rows.context)

    def _without_cell(self, x: Cells) -> Cells:
        """The rows with an exact number in place of the column's own cell, whose volume must not count."""
        if self._position not in self._model.cells:
            return x
        index = self._model.cells.index(self._position)
        low, width = x.low.clone(), x.width.clone()
        low[:, index] = width[:, index] = 0.0
        return x._replace(low=low, width=width)


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
    column = schema.column(name)
    rows = []
    for state in range(len(column.atoms) + 1):
        values = column.decode(np.zeros(len(frame)), np.full(len(frame), state))
        frame[name] = values.set_axis(frame.index)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OutsideBoundsWarning)  # an error follows
            encoded = encode_rows(schema, frame, context)
        # The volume of the column's own value must not count, in any state.
        offset = encoded.x.offset - torch.from_numpy(column.encode(values)[2]).to(encoded.x.offset)
        rows.append(Rows(encoded.x._replace(offset=offset), encoded.context))
    if n_outside := int((~rows[0].x.offset.isfinite()).sum()):
        raise ValueError(f"X must lie within the bounds of the columns conditioned on, got {n_outside} rows outside")
    with torch.no_grad():
        return _Quadrature(model, schema, name).integrate(rows)


def condition_by_points(
    column: Column, z: FloatArray, states: IntArray, weights: FloatArray, sizes: FloatArray
) -> Conditional:
    """Build the conditional distribution of a column from weighted points.

    Arguments:
        column: The column.
        z: Points of its feature z in N rows, `(N, K)`.
        states: Their states, `(N, K)`; none of them is missing.
        weights: Their weights, `(N, K)`, which sum to 1 in each row.
        sizes: Effective sample sizes, `(N,)`.
    """
    n_states = len(column.atoms) + 1
    probabilities = np.stack([(weights * (states == state)).sum(1) for state in range(n_states)], 1)
    order = np.argsort(z, 1, kind="stable")
    knots = np.take_along_axis(z, order, 1)
    inside = np.take_along_axis(np.where(states == column.position, weights, 0.0), order, 1)
    # A row without points of the continuous part needs any distribution of it.
    inside = np.where(inside.sum(1, keepdims=True) > 0, inside, 1.0)
    total = np.cumsum(inside, 1)
    middle = (total - inside / 2) / total[:, -1:]
    if isinstance(column.map, Steps) and len(column.map.edges) <= MAX_EDGES:
        # The probability of a cell is the weight of the points in it: nothing is interpolated across its ends.
        edges = ndtri(column.map.cumulative)
        below = np.stack([((knots <= edge) * inside).sum(1) for edge in edges], 1) / total[:, -1:]
        knots, middle = np.broadcast_to(edges, below.shape), below
    ends = np.broadcast_to(np.array(column.z_range), (len(z), 2))
    knots = np.concatenate([np.minimum(ends[:, :1], knots[:, :1]), knots, np.maximum(ends[:, 1:], knots[:, -1:])], 1)
    cumulative = np.concatenate([np.zeros((len(z), 1)), middle, np.ones((len(z), 1))], 1)
    return Conditional(column, knots, cumulative, probabilities / probabilities.sum(1, keepdims=True), sizes)


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
    lines = Lines(z[None], z.new_zeros(1, len(z)), position, context)
    # No further refinements: a histogram of PIT values needs less precision than a single conditional probability.
    knots, cumulative, _ = integrate_density(lines, model.flow, schema.column(name).z_range, max_refinements=0)
    return interpolate(z[:, [position]].double().numpy(), knots, cumulative)[:, 0]
