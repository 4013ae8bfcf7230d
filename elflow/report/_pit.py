"""Where values lie in their conditional distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from elflow.tabular._conditional import SHARES, integrate
from elflow.tabular.estimator import FlowDensity

__all__ = ["Pit", "pits"]

Floats = NDArray[np.float64]

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
        z = est.model_.dequantize(rows.x, rows.context)[0]
    found = []
    for name in names:
        known = torch.from_numpy(np.flatnonzero(frame[name].notna()))
        if not len(known):
            continue
        c = None if rows.context is None else rows.context[known]
        at = est.schema_.positions(name)[-1]
        values = conditional(est.model_.flow, z[known], c, at, est.schema_.column(name).reach)
        found.append(Pit(name, values, float(stats.kstest(values, "uniform").pvalue)))
    return tuple(found)


@torch.no_grad()
def conditional(flow: Any, z: Tensor, c: Tensor | None, position: int, reach: tuple[float, float]) -> Floats:
    """P(number <= its value | the other numbers) of each row `(N, features)` under a flow, `(N,)`."""
    value = z[:, position].double().numpy()
    knots, cumulative = integrate(lambda knots: _along(flow, z, c, position, knots), len(z), reach, SHARES[::2])
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
