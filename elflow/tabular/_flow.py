"""What `FlowDensity` does with a flow over the rows of a table, once columns are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.stats import qmc
from torch import Tensor

from elflow.flows.dequantization import Cells, Dequantized
from elflow.flows.named import build_flow
from elflow.flows.whitening import Whitened
from elflow.tabular._conditional import Conditional
from elflow.tabular.schema import Schema
from elflow.training import Rows

__all__ = [
    "build",
    "conditional",
    "context_numbers",
    "held_out_rows",
    "inverse_residual",
    "numbers",
    "samples",
    "scores",
]

Floats = NDArray[np.float64]

BLOCK = 2**16
"""How many rows, times draws, are scored or sampled at a time."""


def held_out_rows(count: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows are held out, `(count,)`."""
    held_out = np.zeros(count, dtype=bool)
    held_out[np.random.RandomState(seed).permutation(count)[: min(max(1, round(share * count)), count - 2)]] = True
    return held_out


def build(
    name: str, schema: Schema, context_schema: Schema | None, options: dict[str, Any], dequantization: str
) -> Dequantized:
    """A flow of that name for the rows of a table, with fresh weights; `whiten` is among its options."""
    context = 0 if context_schema is None else context_schema.context_features
    arguments = {key: value for key, value in options.items() if key != "whiten"}
    flow = build_flow(name, schema.features, context, arguments)
    if options["whiten"] and len(schema.exact) > 1:
        flow = Whitened(flow, schema.exact)
    return Dequantized(flow, schema.exact, schema.cells, dequantization == "variational", context)


def numbers(schema: Schema, frame: pd.DataFrame, context: Tensor | None = None, weight: Any = None) -> Rows:
    """What a flow is given of a frame."""
    exact, low, width, offset = map(torch.from_numpy, schema.encode(frame))
    w = None if weight is None else torch.from_numpy(weight / weight.mean()).float()
    return Rows(Cells(exact.float(), low, width, offset.float()), context, w)


def context_numbers(schema: Schema | None, conditions: pd.DataFrame | None) -> Tensor | None:
    """What a flow is given of a context."""
    return None if schema is None or conditions is None else torch.from_numpy(schema.context(conditions)).float()


@torch.no_grad()
def scores(model: Dequantized, rows: Rows, draws: int) -> Floats:
    """The log-density of each row, `(N,)`, from so many points of its cells: the same for all rows."""
    columns = len(model.cells)
    draws = draws if columns else 1
    noise = torch.from_numpy(quasi_random(draws, columns)[:, None]) if columns else None
    found = []
    for at in range(0, len(rows), size := max(1, BLOCK // draws)):
        block = rows.take(slice(at, at + size))
        bounds = model(block.context).log_prob(block.x, noise).double()
        found.append(torch.logsumexp(bounds, 0) - np.log(draws) if columns else bounds)
    return torch.cat(found).numpy() if found else np.zeros(0)


def quasi_random(draws: int, columns: int) -> Floats:
    """Points that fill the unit cube evenly, `(draws, columns)`."""
    power = max(0, draws - 1).bit_length()
    return np.asarray(qmc.Sobol(columns, rng=0).random_base2(power)[:draws], np.float64)


@torch.no_grad()
def samples(model: Dequantized, count: int, c: Tensor | None, seed: int) -> Floats:
    """New numbers, `(count, features)`, one for each row of the context if there is one."""
    blocks = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for at in range(0, count, BLOCK):
            size = min(BLOCK, count - at)
            blocks.append(model().sample((size,)) if c is None else model(c[at : at + size]).sample())
    return torch.cat(blocks).double().numpy()


def conditional(
    model: Dequantized, schema: Schema, name: str, frame: pd.DataFrame, context: Tensor | None
) -> Conditional:
    """The distribution of a column for each row, whatever values of it the rows have."""
    neutral = schema.column(name).values(np.zeros(len(frame))).set_axis(frame.index)
    rows = numbers(schema, frame.assign(**{name: neutral}), context)
    if not rows.x.offset.isfinite().all():
        outside = int((~rows.x.offset.isfinite()).sum())
        raise ValueError(f"X must lie within the bounds of the columns conditioned on, got {outside} rows outside")
    return Conditional(model, schema, name, rows)


@torch.no_grad()
def inverse_residual(model: Dequantized, rows: Rows) -> float:
    """How far latent points z are from f(f^-1(z)) at most, relative to 1 + |z|."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = model.dequantize(rows.x, rows.context)[0]
    flow: Any = model.flow
    if isinstance(flow, Whitened):
        flow, x = flow.flow, flow.whitening()(x)
    transform = flow(rows.context).transform
    z = transform(x)
    again = transform(transform.inv(z))
    return float(((again - z).abs() / (1 + z.abs())).max())
