"""Conditional distribution of one column given all others, by numerical integration of the joint density."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, softmax
from scipy.stats import qmc
from torch import Tensor, nn

from elflow.flows.dequantization import Cells, Dequantized
from elflow.flows.mixture import FlowMixture
from elflow.flows.whitening import Gaussian
from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import encode_rows
from elflow.tabular.schema import OutsideBoundsWarning, Schema
from elflow.training import Rows

__all__ = ["Conditional", "condition", "pit_values"]

N_COARSE_POINTS = 65
"""Number of points of the first grid."""
REFINED_QUANTILES = ndtr(np.linspace(-5, 5, 81))
"""Quantiles at which a refinement adds points, including far tails."""
TEMPERATURES = (10.0, 1.0)
"""Temperatures of the first refinements: the first flattens the log-density, so that no narrow peak is lost."""
MAX_REFINEMENTS = 6
"""Maximum number of further refinements."""
MAX_CDF_CHANGE = 1e-3
"""Maximum change of a cumulative distribution by a refinement at which there are no further ones."""
N_CELL_DRAWS = 8
"""Number of points of the other columns' cells over which the density is averaged."""
MAX_EVALUATIONS = 2**15
"""Maximum number of densities that are evaluated at a time."""

MEMBER_QUANTILES = REFINED_QUANTILES[::4]
"""Quantiles of each member of a mixture that are among the first points of the mixture."""
MAX_MEMBER_CHANGE = 0.02
"""Maximum change of the distribution of a member, which only has to be located."""

Evaluate = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""Log-density under a flow up to a constant, `(N, K)`, of the rows at N indices, `(N,)`, at K points each, `(N, K)`."""


class Conditional:
    """Conditional distribution of one column in each row of a table, given the row's other columns.

    `FlowDensity.conditional` builds it. Along the feature z of the column, the joint density is proportional to the
    conditional density. It is evaluated on a coarse grid, then at quantiles of the estimate, and integrated with a
    log-linear interpolation: exponential tails are exact, where the trapezoidal rule would overestimate them.

    A column with atoms has several states. The integral over z in each of them is proportional to the probability of
    the state, and the distribution is a mixture of the atoms and of the continuous part.

    Arguments:
        model: The fitted flow.
        schema: The columns of the table.
        name: Name of the column.
        rows: The N encoded rows for each state of the column but that of missing values, in their order, with any valid
            value of the column itself.

    Attributes:
        column: The column.
        knots: Increasing points z, `(N, K)`, for values that are not atoms.
        cumulative: Cumulative distribution at the knots, `(N, K)`, given that the value is not an atom.
        probabilities: Probabilities of the states, `(N, states)`.

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

    def __init__(self, model: Dequantized, schema: Schema, name: str, rows: Sequence[Rows]) -> None:
        self.column = schema.column(name)
        self._model = model
        self._position = schema.positions(name)[-1]
        has_other_cells = any(position != self._position for position in schema.cells)
        self._n_draws = N_CELL_DRAWS if has_other_cells else 1
        log_masses = []
        for state, encoded in enumerate(rows):
            is_continuous = state == self.column.position
            z_range = self.column.z_range if is_continuous else (-8.0, 8.0)
            evaluate = partial(self._log_density, Rows(self._without_cell(encoded.x), encoded.context))
            knots, cumulative, log_mass = integrate_density(
                evaluate, model.flow, len(encoded), z_range, n_draws=self._n_draws
            )
            log_masses.append(log_mass)
            if is_continuous:
                self.knots, self.cumulative = knots, cumulative
        self.probabilities: FloatArray = softmax(np.stack(log_masses, 1), 1)

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
        return _interpolate(z, self.knots, self.cumulative)

    def _without_cell(self, x: Cells) -> Cells:
        """The rows with an exact number in place of the column's own cell, whose volume must not count."""
        if self._position not in self._model.cells:
            return x
        index = self._model.cells.index(self._position)
        low, width = x.low.clone(), x.width.clone()
        low[:, index] = width[:, index] = 0.0
        return x._replace(low=low, width=width)

    def _log_density(self, all_rows: Rows, flow: nn.Module, index: Tensor, points: Tensor) -> Tensor:
        """Log-density along the column under a flow, averaged over points of the other columns' cells."""
        rows = all_rows.take(index)
        n_cells = len(self._model.cells)
        # One set of quasi-random points for all rows, so that results do not depend on the other rows.
        noise = torch.from_numpy(qmc.Sobol(max(1, n_cells), rng=0).random(self._n_draws)[:, None, :n_cells])
        z, log_volume = self._model.dequantize(rows.x, rows.context, noise if n_cells else None)
        z, log_volume = z.expand(self._n_draws, -1, -1), log_volume.expand(self._n_draws, -1)
        log_density = log_density_along(flow, z, self._position, points, rows.context)
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

    def evaluate(flow: nn.Module, index: Tensor, points: Tensor) -> Tensor:
        c = None if context is None else context[index]
        return log_density_along(flow, z[index], position, points, c)

    # Every other quantile: a histogram of PIT values needs less precision than a single conditional probability.
    z_range = schema.column(name).z_range
    knots, cumulative, _ = integrate_density(
        evaluate, model.flow, len(z), z_range, REFINED_QUANTILES[::2], max_refinements=0
    )
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
    flow: nn.Module,
    count: int,
    z_range: tuple[float, float],
    quantiles: FloatArray = REFINED_QUANTILES,
    n_draws: int = 1,
    max_refinements: int = MAX_REFINEMENTS,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Cumulative distributions of densities that are known up to a factor.

    Arguments:
        evaluate: Log-densities of rows.
        flow: The flow whose density is integrated.
        count: Number of rows N.
        z_range: Range of the points.
        quantiles: Quantiles at which each refinement adds points.
        n_draws: Number of densities that `evaluate` averages for each point.
        max_refinements: Maximum number of refinements after the first ones, until the distributions have converged.

    Returns:
        Increasing points and the cumulative distribution at them, `(N, K)` each, and the log-mass of each row, `(N,)`.
    """
    size = max(1, MAX_EVALUATIONS // (len(quantiles) * n_draws))
    distributions: list[tuple[FloatArray, FloatArray, float]] = []
    for start in range(0, count, size):
        index = torch.arange(start, min(start + size, count))
        distributions += _integrate_rows(evaluate, flow, index, z_range, quantiles, max_refinements)
    if not distributions:
        return np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0)
    n_knots = max(len(knots) for knots, _, _ in distributions)
    # Rows may have different numbers of knots: the last one is repeated.
    padding = [(0, n_knots - len(knots)) for knots, _, _ in distributions]
    knots, cumulative, log_mass = zip(*distributions, strict=True)
    return (
        np.stack([np.pad(row, pad, mode="edge") for row, pad in zip(knots, padding, strict=True)]),
        np.stack([np.pad(row, pad, mode="edge") for row, pad in zip(cumulative, padding, strict=True)]),
        np.array(log_mass),
    )


def _integrate_rows(
    evaluate: Evaluate,
    flow: nn.Module,
    index: Tensor,
    z_range: tuple[float, float],
    quantiles: FloatArray,
    max_refinements: int,
    max_change: float = MAX_CDF_CHANGE,
) -> list[tuple[FloatArray, FloatArray, float]]:
    """Knots, cumulative distribution and log-mass of each of the rows at some indices.

    Each row is refined until it has converged, so that its result does not depend on the other rows. The first points
    of a mixture contain quantiles of its members: a member with a broad density would hide the peak of a narrow one.
    """
    results: dict[int, tuple[FloatArray, FloatArray, float]] = {}
    knots = np.tile(np.linspace(*z_range, N_COARSE_POINTS), (len(index), 1))
    for member in flow.used_members() if isinstance(flow, FlowMixture) else []:
        if isinstance(member, Gaussian):
            located = _locate_gaussian(evaluate, member, index)
        else:
            parts = _integrate_rows(
                evaluate, member, index, z_range, MEMBER_QUANTILES, max_refinements, MAX_MEMBER_CHANGE
            )
            located = np.stack([np.interp(MEMBER_QUANTILES, cumulative, points) for points, cumulative, _ in parts])
        knots = np.sort(np.concatenate([knots, np.clip(located, *z_range)], 1), 1)
    log_density = evaluate(flow, index, torch.from_numpy(knots)).numpy()
    active = index
    temperatures = TEMPERATURES[-1:] if isinstance(flow, FlowMixture) else TEMPERATURES
    for number, temperature in enumerate([*temperatures, *[1.0] * max_refinements]):
        estimates = zip(_accumulate(knots, log_density / temperature)[0], knots, strict=True)
        refined = np.stack([np.interp(quantiles, total, points) for total, points in estimates])
        log_density = np.concatenate([log_density, evaluate(flow, active, torch.from_numpy(refined)).numpy()], 1)
        knots = np.concatenate([knots, refined], 1)
        order = np.argsort(knots, 1, kind="stable")
        knots, log_density = (np.take_along_axis(array, order, 1) for array in (knots, log_density))
        if number < len(temperatures) - 1:
            continue
        cumulative, log_mass = _accumulate(knots, log_density)
        changes = [
            np.abs(_interpolate(points, knots, cumulative) - q) for points, q in zip(refined.T, quantiles, strict=True)
        ]
        is_done = (np.max(changes, 0) < max_change) | (number + 1 == len(temperatures) + max_refinements)
        for row in np.flatnonzero(is_done):
            results[int(active[row])] = knots[row], cumulative[row], float(log_mass[row])
        active, knots, log_density = active[~torch.from_numpy(is_done)], knots[~is_done], log_density[~is_done]
        if len(active) == 0:
            break
    return [results[int(row)] for row in index]


def _locate_gaussian(evaluate: Evaluate, gaussian: Gaussian, index: Tensor) -> FloatArray:
    """Quantiles of a Gaussian along the column in each row, `(N, K)`: its log-density is a parabola of three points."""
    points = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.double).expand(len(index), -1)
    left, middle, right = evaluate(gaussian, index, points).numpy().T
    curvature = np.maximum(2 * middle - left - right, 1e-12)
    return ((right - left) / 2 / curvature)[:, None] + curvature[:, None] ** -0.5 * ndtri(MEMBER_QUANTILES)


def _accumulate(knots: FloatArray, log_density: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Cumulative distribution at the knots of each row, for a log-density that is linear between them; its log-mass."""
    rise = np.abs(np.diff(log_density, axis=1))
    highest = log_density.max(1, keepdims=True, initial=-np.inf)
    higher = np.maximum(log_density[:, 1:], log_density[:, :-1]) - highest
    # Mean of exp over a piece, relative to its higher end; its expansion near 0 avoids 0/0.
    mean = np.where(rise > 1e-6, -np.expm1(-rise) / np.maximum(rise, 1e-6), 1 - rise / 2)
    pieces = np.exp(higher) * mean * np.diff(knots, axis=1)
    total = np.concatenate([np.zeros((len(knots), 1)), np.cumsum(pieces, 1)], 1)
    return total / total[:, -1:], np.log(total[:, -1]) + highest[:, 0]


def _interpolate(z: FloatArray, knots: FloatArray, cumulative: FloatArray) -> FloatArray:
    """Cumulative distribution of each row at one point z, `(N,)`."""
    return np.array([np.interp(*row) for row in zip(z, knots, cumulative, strict=True)])
