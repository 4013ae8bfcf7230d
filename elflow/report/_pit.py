"""Where values lie in their conditional distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from elflow.estimator import FlowDensity

__all__ = ["Pit", "pits"]

Floats = NDArray[np.float64]

WIDEST = 10.0
"""How far from zero the density along a column is looked for, unless its value is further out."""
COARSE, NEAR, FINE = 33, 20, 40
"""Points over all of it, on either side of the value, and where the probability has turned out to be."""
BLOCK = 2**15
"""Evaluations at a time."""


@dataclass(frozen=True)
class Pit:
    """Where values lie in their distributions given the other columns: uniform between 0 and 1, if these are right."""

    name: str
    values: Floats
    p_value: float
    """Of Kolmogorov and Smirnov's test of uniformity."""


def pits(est: FlowDensity, X: Any, context: Any, names: list[str], random_state: int) -> tuple[Pit, ...]:
    """The probability integral transforms of each of these columns given all others.

    They are of the numbers that the flow sees, with a random point for each discrete value. `conditional_cdf` would
    average over such points, at a cost, and a discrete column's would not be uniform.
    """
    frame = est._frame(X)
    rows: Any = est._rows(frame, est._as_context(context, len(frame)))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(random_state)
        z = est.model_.place(rows.x, rows.context)[0]
    found = []
    for name in names:
        known = torch.from_numpy(np.flatnonzero(frame[name].notna()))
        if not len(known):
            continue
        c = None if rows.context is None else rows.context[known]
        values = conditional(est.model_.flow, z[known], c, est.schema_.positions(name)[-1])
        found.append(Pit(name, values, float(stats.kstest(values, "uniform").pvalue)))
    return tuple(found)


@torch.no_grad()
def conditional(flow: Any, z: Tensor, c: Tensor | None, position: int) -> Floats:
    """P(number <= its value | the other numbers) of each row `(N, features)` under a flow, `(N,)`.

    Along one number the joint density is proportional to the conditional one. It is evaluated over all the line and
    close to the value, where a narrow distribution would be, and once more where that has found the probability to lie.
    """
    value = z[:, position].double().numpy()
    reach = np.maximum(WIDEST, np.abs(value) + 2)[:, None]
    offsets = np.geomspace(0.003, 4, NEAR)
    knots = np.sort(
        np.concatenate(
            [reach * np.linspace(-1, 1, COARSE), value[:, None] + np.concatenate([-offsets, [0.0], offsets])], 1
        ),
        1,
    )
    log_density = _along(flow, z, c, position, knots)
    shares = np.linspace(0, 1, FINE + 2)[1:-1]
    cumulative = _cumulative(knots, log_density)
    finer = np.stack([np.interp(shares, f, k) for f, k in zip(cumulative, knots, strict=True)])
    log_density = np.concatenate([log_density, _along(flow, z, c, position, finer)], 1)
    knots = np.concatenate([knots, finer], 1)
    order = np.argsort(knots, 1, kind="stable")
    knots = np.take_along_axis(knots, order, 1)
    cumulative = _cumulative(knots, np.take_along_axis(log_density, order, 1))
    return np.array([np.interp(v, k, f) for v, k, f in zip(value, knots, cumulative, strict=True)])


def _along(flow: Any, z: Tensor, c: Tensor | None, position: int, knots: Floats) -> Floats:
    """The joint log-densities with one number replaced by each of `(N, K)` others."""
    count, points = knots.shape
    parts = []
    for at in range(0, count, size := max(1, BLOCK // points)):
        some = z[at : at + size, None, :].repeat(1, points, 1)
        some[..., position] = torch.from_numpy(knots[at : at + size]).to(z.dtype)
        given = None if c is None else c[at : at + size, None, :].expand(-1, points, -1)
        parts.append(flow(given).log_prob(some).double().numpy())
    return np.concatenate(parts)


def _cumulative(knots: Floats, log_density: Floats) -> Floats:
    """The distribution function at the knots, by the trapezoidal rule."""
    density = np.exp(log_density - log_density.max(1, keepdims=True))
    pieces = (density[:, 1:] + density[:, :-1]) / 2 * np.diff(knots, axis=1)
    total = np.concatenate([np.zeros((len(knots), 1)), np.cumsum(pieces, 1)], 1)
    return total / total[:, -1:]
