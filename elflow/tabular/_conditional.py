"""One column given all others, by integrating the density along it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import qmc
from torch import Tensor

from elflow.flows.dequantization import Cells, Dequantized
from elflow.tabular.schema import Schema
from elflow.training import Rows

__all__ = ["SHARES", "Conditional", "integrate"]

COARSE = 65
"""Points of the first grid."""
SHARES = ndtr(np.linspace(-5, 5, 81))
"""At which quantiles a refinement adds points: also far out in the tails."""
TEMPERATURES = (10.0, 1.0)
"""By how much each refinement flattens the logarithm of the density, so that none of several narrow peaks is lost."""
DRAWS = 8
"""Points of the other columns' cells over which the density is averaged."""
ROWS = 2**15
"""Evaluations at a time."""

Floats = NDArray[np.float64]


class Conditional:
    """The distribution of one column for each row, given the row's other columns.

    Along the column's own number z the joint density is proportional to the conditional one. It is evaluated on a
    coarse grid, then at quantiles of what was found, and integrated as if its logarithm were linear between points:
    tails then come out right where the trapezoidal rule would give them too much.

    Arguments:
        model: The fitted flow.
        schema: What the columns are.
        name: The column.
        rows: The rows as numbers, with any valid value of the column itself.
    """

    def __init__(self, model: Dequantized, schema: Schema, name: str, rows: Rows) -> None:
        self.model = model
        self.position = schema.positions(name)[-1]
        self.column = next(column for column in schema.columns if column.name == name)
        self.rows = Rows(self._without_cell(rows.x), rows.context, rows.weight)
        self.draws = DRAWS if any(place != self.position for place in schema.cells) else 1
        self.knots, self.cumulative = integrate(self._evaluate, len(rows), self.column.reach)

    def cdf(self, frame: pd.DataFrame) -> Floats:
        """P(column <= its value) of each row."""
        name = self.column.name
        if name not in frame or frame[name].isna().any():
            missing = int(frame[name].isna().sum()) if name in frame else len(frame)
            raise ValueError(f"X must have values of {name!r}, got {missing} missing ones")
        values = frame[name]
        low, width, _ = self.column.cells(values)
        z = np.where(width == 0, low, ndtri(np.clip(low + width, 0, 1)))
        return np.array([np.interp(*args) for args in zip(z, self.knots, self.cumulative, strict=True)])

    def quantiles(self, q: Floats) -> Any:
        """The values below which the shares q lie, `(N, K)`."""
        z = np.stack([np.interp(q, c, k) for c, k in zip(self.cumulative, self.knots, strict=True)])
        columns = [self.column.values(z[:, k]).to_numpy() for k in range(len(q))]
        return np.stack(columns, 1)

    def _without_cell(self, x: Cells) -> Cells:
        """The rows with the column's own number known, so that the volume of its cell does not count."""
        if self.position not in self.model.cells:
            return x
        at = self.model.cells.index(self.position)
        low, width = x.low.clone(), x.width.clone()
        low[:, at] = width[:, at] = 0.0
        return x._replace(low=low, width=width)

    @torch.no_grad()
    def _evaluate(self, knots: Floats) -> Floats:
        """The logarithm of the density at each row's knots, `(N, K)`, up to a constant of each row."""
        size = max(1, ROWS // (max(1, knots.shape[1]) * self.draws))
        blocks = [
            self._log_density(self.rows.take(slice(at, at + size)), torch.from_numpy(knots[at : at + size]))
            for at in range(0, len(knots), size)
        ]
        return np.concatenate(blocks) if blocks else np.zeros(knots.shape)

    def _log_density(self, rows: Rows, knots: Tensor) -> Floats:
        """One block of `_evaluate`, averaged over where in their cells the other columns lie."""
        cells = len(self.model.cells)
        noise = torch.from_numpy(qmc.Sobol(max(1, cells), rng=0).random(self.draws)[:, None, :cells])
        z, extra = self.model.dequantize(rows.x, rows.context, noise if cells else None)
        z, extra = z.expand(self.draws, -1, -1), extra.expand(self.draws, -1)
        along = z[:, :, None, :].repeat(1, 1, knots.shape[1], 1)
        along[..., self.position] = knots.to(z.dtype)
        c = None if rows.context is None else rows.context[:, None, :].expand(-1, knots.shape[1], -1)
        log_prob = self.model.flow(c).log_prob(along).double() + extra[..., None]
        return torch.logsumexp(log_prob, 0).numpy()


def integrate(
    evaluate: Callable[[Floats], Floats], count: int, reach: tuple[float, float], shares: Floats = SHARES
) -> tuple[Floats, Floats]:
    """Points and the cumulative distribution at them, `(count, K)` each, of densities that are known up to a factor.

    Arguments:
        evaluate: Gives the logarithms of the densities at points, `(count, K)`.
        count: How many densities there are.
        reach: Between which numbers to look.
        shares: At which quantiles each refinement adds points.
    """
    knots = np.tile(np.linspace(*reach, COARSE), (count, 1))
    log_density = evaluate(knots)
    for temperature in TEMPERATURES:
        found = zip(_cumulative(knots, log_density / temperature), knots, strict=True)
        finer = np.reshape([np.interp(shares, total, points) for total, points in found], (count, -1))
        log_density = np.concatenate([log_density, evaluate(finer)], 1)
        knots = np.concatenate([knots, finer], 1)
        order = np.argsort(knots, 1, kind="stable")
        knots, log_density = (np.take_along_axis(each, order, 1) for each in (knots, log_density))
    return knots, _cumulative(knots, log_density)


def _cumulative(knots: Floats, log_density: Floats) -> Floats:
    """The cumulative distribution at the knots of each row, of a density whose logarithm is linear between them."""
    rise = np.abs(np.diff(log_density, axis=1))
    higher = np.maximum(log_density[:, 1:], log_density[:, :-1]) - log_density.max(1, keepdims=True, initial=-np.inf)
    mean = np.where(rise > 1e-6, -np.expm1(-rise) / np.maximum(rise, 1e-6), 1 - rise / 2)
    pieces = np.exp(higher) * mean * np.diff(knots, axis=1)
    total = np.concatenate([np.zeros((len(knots), 1)), np.cumsum(pieces, 1)], 1)
    return total / total[:, -1:]
