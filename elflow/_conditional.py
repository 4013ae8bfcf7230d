"""One column given all others, by integrating the density along it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc
from torch import Tensor

from elflow.data._maps import Steps
from elflow.data.table import Schema
from elflow.flows.dequantization import Dequantized
from elflow.training.batches import Rows

__all__ = ["Conditional"]

POINTS = 49
"""Points of the first grid, and points that each refinement adds."""
REFINEMENTS = 2
WIDEST = 12.0
"""How far from the centre the density of a continuous column is looked for."""
DRAWS = 4
"""Points of the other columns' cells over which the density is averaged."""
ROWS = 2**15
"""Evaluations at a time."""

Floats = NDArray[np.float64]


class Conditional:
    """The distribution of one column for each row, given the row's other columns.

    Along the column's own number z the joint density is proportional to the conditional one. It is evaluated on a
    coarse grid, then on finer ones which are densest where most of the probability lies, and integrated by the
    trapezoidal rule.

    Arguments:
        model: The fitted flow.
        schema: What the columns are.
        frame: The rows.
        name: The column.
        rows: The same rows as numbers.
    """

    def __init__(self, model: Dequantized, schema: Schema, frame: pd.DataFrame, name: str, rows: Rows) -> None:
        self.model = model
        self.position = schema.positions(name)[-1]
        self.column = next(column for column in schema.columns if column.name == name)
        self.values = frame[name]
        if self.column.missing and self.values.isna().any():
            raise ValueError(f"X must have values of {name!r}, got {int(self.values.isna().sum())} missing ones")
        self.rows = rows
        self.draws = DRAWS if any(place != self.position for place in schema.cells) else 1
        self.knots = np.tile(np.linspace(-WIDEST, WIDEST, POINTS), (rows.length, 1))
        self.cumulative = self._integrate(self.knots)
        shares = np.linspace(0, 1, POINTS)
        for _ in range(REFINEMENTS):
            inner = [np.interp(shares, c, k) for c, k in zip(self.cumulative, self.knots, strict=True)]
            knots = np.concatenate([np.reshape(inner, (rows.length, POINTS)), self.knots[:, ::2]], 1)
            self.knots = np.sort(knots, 1)
            self.cumulative = self._integrate(self.knots)

    def cdf(self) -> Floats:
        """P(column <= its value) of each row."""
        if isinstance(self.column.map, Steps):
            low, width = self.column.map.cells(self.column._integers(self.values))
            z = ndtri(np.clip(low + width, 0, 1))
        else:
            z = self.column.cells(self.values)[0]
        return np.array([np.interp(*args) for args in zip(z, self.knots, self.cumulative, strict=True)])

    def quantiles(self, q: Floats) -> Any:
        """The values below which the shares q lie, `(N, K)`."""
        z = np.stack([np.interp(q, c, k) for c, k in zip(self.cumulative, self.knots, strict=True)])
        columns = [self.column.values(z[:, k]).to_numpy() for k in range(len(q))]
        return np.stack(columns, 1)

    @torch.no_grad()
    def _integrate(self, knots: Floats) -> Floats:
        """The cumulative distribution at each row's knots, `(N, K)`."""
        log_density = np.concatenate(
            [
                self._log_density(self.rows.take(slice(at, at + size)), torch.from_numpy(knots[at : at + size]))
                for size in [max(1, ROWS // (knots.shape[1] * self.draws))]
                for at in range(0, len(knots), size)
            ]
            or [np.zeros(knots.shape)]
        )
        density = np.exp(log_density - log_density.max(1, keepdims=True))
        pieces = (density[:, 1:] + density[:, :-1]) / 2 * np.diff(knots, axis=1)
        total = np.concatenate([np.zeros((len(knots), 1)), np.cumsum(pieces, 1)], 1)
        return total / total[:, -1:]

    def _log_density(self, rows: Rows, knots: Tensor) -> Floats:
        """Up to a constant of each row, averaged over where in their cells the other columns lie."""
        cells = len(self.model.cells)
        noise = torch.from_numpy(qmc.Sobol(max(1, cells), rng=0).random(self.draws)[:, None, :cells])
        z, extra = self.model.place(rows.x, rows.context, noise if cells else None)
        z, extra = z.expand(self.draws, -1, -1), extra.expand(self.draws, -1)
        along = z[:, :, None, :].repeat(1, 1, knots.shape[1], 1)
        along[..., self.position] = knots.to(z.dtype)
        c = None if rows.context is None else rows.context[:, None, :].expand(-1, knots.shape[1], -1)
        log_prob = self.model.flow(c).log_prob(along).double() + extra[..., None]
        return torch.logsumexp(log_prob, 0).numpy()
