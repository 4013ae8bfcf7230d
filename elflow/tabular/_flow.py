"""Operations of `FlowDensity` on encoded rows: building the flow, scoring and sampling."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from scipy.stats import qmc
from torch import Tensor, nn

from elflow.flows.compiled import CompiledDensity, compile_density
from elflow.flows.dequantization import Cells, Dequantized
from elflow.flows.group_norm import Grouped, GroupNorm
from elflow.flows.mixture import FlowMixture, GaussianMixture, fit_weights
from elflow.flows.named import build_flow
from elflow.flows.strata import StratifiedMixture
from elflow.flows.tilted import Tilted
from elflow.flows.whitening import Gaussian, Whitened
from elflow.kernels import NonFiniteError
from elflow.tabular._arrays import FloatArray
from elflow.tabular._random import use_generator
from elflow.tabular.schema import Schema
from elflow.training import Rows

__all__ = [
    "MIXTURE_OPTIONS",
    "N_DRAWS",
    "SAMPLE_BLOCK",
    "build_model",
    "count_components",
    "count_parameters",
    "draw_quasi_random",
    "encode_context",
    "encode_rows",
    "get_mixture",
    "iter_samples",
    "measure_inverse_residual",
    "score_rows",
    "stack_members",
    "to_single",
]

MIXTURE_OPTIONS = ["members", "components", "strata", "groups", "tables"]
"""Options of the mixture, which are not arguments of its flows."""
MAX_REDRAWS = 10
"""Maximum number of times that samples beyond limits are drawn again."""
N_DRAWS = 16
"""Default number of points of each cell from which its probability is estimated."""
MAX_STACKED_ROWS = 10_000
"""Maximum number of validation rows that determine the weights of a mixture."""
MIN_WEIGHT = 0.01
"""Minimum weight of a flow in a mixture; others are left out, which makes scoring faster."""
MAX_SCORED_ROWS = 2**16
"""Maximum number of rows, times draws, that are scored at a time."""
MAX_STORED_POWER = 10
"""Binary logarithm of the number of quasi-random points up to which they are stored."""
SAMPLE_BLOCK = 2**16
"""Number of rows that are sampled at a time."""


MAX_CORRELATED_CELLS = 16
"""Number of features with cells up to which their points are correlated by default: see `choose_dequantization`."""


def choose_dequantization(schema: Schema) -> str:
    """Default distribution of points in cells: Gaussian if few features have cells, uniform otherwise.

    The density of Gaussian points is a product over the features with cells, each given those before. A probability is
    estimated from a few points of each cell, and the more factors there are, the more of them it takes: for many
    discrete columns, such as the pixels of digits, the estimate is far lower than with uniform points.

    Example:
        >>> choose_dequantization(Schema.fit(pd.DataFrame({"kind": ["a", "b", "a"], "size": [0.1, 0.7, 0.3]})))
        'gaussian'
    """
    n_cells = sum(column.is_discrete + bool(column.shares) for column in schema.columns)
    return "gaussian" if n_cells <= MAX_CORRELATED_CELLS else "uniform"


def build_model(
    name: str, schema: Schema, context_schema: Schema | None, options: dict[str, Any], dequantization: str
) -> Dequantized:
    """Build a mixture with new weights for the rows of a table.

    Arguments:
        name: Name of the flow.
        schema: The columns of the table.
        context_schema: The columns of the context, or None.
        options: Arguments of the flow, the `members` of the mixture as pairs of position and name, and the maximum
            numbers of Gaussians: `components`, and `strata` if there is such a member; `groups`, the maximum number of
            groups of categories whose rows are standardised before all other members, if there are any; `tables`, the
            features of the tables of `Tilted`, if there are any.
        dequantization: Distribution of points in cells, or `"auto"`: see `choose_dequantization`.
    """
    independent: list[int] = []
    if dequantization == "auto":
        dequantization = choose_dequantization(schema)
        # The place of a category among others without any order says nothing: correlations with it are accidents.
        unordered = [
            column
            for column in schema.columns
            if not column.has_order and not column.is_arranged and len(column.levels or ()) > 2
        ]
        independent = [schema.positions(column.name)[-1] for column in unordered]
    context = 0 if context_schema is None else context_schema.context_features
    arguments = {key: value for key, value in options.items() if key not in MIXTURE_OPTIONS}
    categories, gates = schema.category_ends, schema.value_gates
    flows: list[nn.Module] = []
    for position, member in options["members"]:
        if member == "strata":
            flows.append(StratifiedMixture(schema.features, categories, options["strata"], schema.state_ends))
            continue
        if member == "gaussian":
            flow: nn.Module = GaussianMixture(schema.features, context, options["components"])
        else:
            flow = _build_flow(member, position, name, schema.features, context, arguments)
        if groups := options.get("groups"):
            flow = Grouped(flow, GroupNorm(schema.features, categories, gates, groups))
        flows.append(flow)
    mixture = flows[0] if len(flows) == 1 else FlowMixture(flows)
    if tables := options.get("tables"):
        mixture = Tilted(mixture, schema.cell_ends, tables)
    noise = {"variational": dequantization == "variational", "gaussian": dequantization == "gaussian"}
    return Dequantized(mixture, schema.exact, schema.cells, context=context, independent=independent, **noise)


def _build_flow(
    member: str, position: int, name: str, features: int, context: int, arguments: dict[str, Any]
) -> nn.Module:
    """Build the flow at a position of a mixture; the linear layers of every second one reverse the features."""
    flow = build_flow(name, features, context, arguments)
    if member == "plain":
        return flow
    order = range(features) if position % 2 == 0 else range(features)[::-1]
    return Whitened(flow, features, context, member, order)


@torch.no_grad()
def stack_members(model: Dequantized, rows: Rows, n_draws: int) -> tuple[Dequantized, list[int]]:
    """Find the weights of the mixture from validation rows, and drop the members that they do not need.

    Arguments:
        model: The trained mixture, in single precision.
        rows: Validation rows.
        n_draws: Number of points of each cell.

    Returns:
        The model in double precision, with weights that a file in single precision stores exactly, and the indices of
        the members that it keeps.
    """
    model = model.double()
    if not isinstance(model.flow, FlowMixture) or isinstance(model.flow, GaussianMixture):
        return model, [0]
    mixture = model.flow
    mixture.flows = nn.ModuleList([_drop_unmoved(flow) for flow in mixture.flows])
    rows = rows.take(torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:MAX_STACKED_ROWS])
    log_probs = torch.from_numpy(np.stack([_score_member(model, flow, rows, n_draws) for flow in mixture.flows]))
    is_divided = [isinstance(flow, StratifiedMixture) and flow.is_divided for flow in mixture.flows]
    for k, flow in enumerate(mixture.flows):
        if isinstance(flow, StratifiedMixture) and not is_divided[k]:
            log_probs[k] = -torch.inf  # one group is all rows, which have Gaussians already
    # Gaussians stay in any case, those of groups if there are any. Another member stays if the rows alone demand it:
    # the prior of the weights does not count.
    demanded = fit_weights(log_probs, rows.weight, prior=0.0) >= MIN_WEIGHT
    is_gaussian = is_divided if any(is_divided) else [type(flow) is GaussianMixture for flow in mixture.flows]
    kept = [k for k in range(len(demanded)) if demanded[k] or is_gaussian[k]]
    weights = fit_weights(log_probs[kept], rows.weight)
    flows = [mixture.flows[k] for k in kept]
    model.flow = flows[0] if len(flows) == 1 else FlowMixture(flows, weights.tolist()).eval()
    return model.float().double(), kept


@torch.no_grad()
def _drop_unmoved(flow: nn.Module) -> nn.Module:
    """A member without its groups if none of them moves."""
    is_unmoved = isinstance(flow, Grouped) and flow.norm.drop_unused() == 0
    return cast(Grouped, flow).flow if is_unmoved else flow


def _score_member(model: Dequantized, flow: nn.Module, rows: Rows, n_draws: int) -> FloatArray:
    """Log-densities of rows under one member of a mixture, `(N,)`; -inf if its networks overflow."""
    member = Dequantized(flow, model.exact, model.cells)
    member.noise, member.cell_noise = model.noise, model.cell_noise
    try:
        return score_rows(member.eval(), rows, n_draws)
    except NonFiniteError:
        return np.full(len(rows), -np.inf)


def get_mixture(model: Dequantized) -> nn.Module:
    """The mixture of a model, or its only flow, without factors of cells."""
    return model.flow.flow if isinstance(model.flow, Tilted) else model.flow


def count_parameters(model: Dequantized) -> int:
    """Number of trainable parameters, and of the means and covariances of Gaussians."""
    n_trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    gaussians = [part.whitening.matrix for part in model.modules() if isinstance(part, Gaussian)]
    # The upper triangle of a matrix is not used.
    return n_trainable + sum(matrix.numel() - len(matrix) * (len(matrix) - 1) // 2 for matrix in gaussians)


def count_components(model: Dequantized) -> dict[str, Any]:
    """Remove unused Gaussians from a mixture, and return its options: numbers of the others and of groups, tables."""
    counts: dict[str, Any] = {"components": 1}
    if isinstance(model.flow, Tilted):
        counts["tables"] = model.flow.tables
    mixture = get_mixture(model)
    for flow in [mixture, *(mixture.flows if isinstance(mixture, FlowMixture) else [])]:
        inner = flow.flow if isinstance(flow, Grouped) else flow
        if isinstance(inner, GaussianMixture):
            name = "strata" if isinstance(inner, StratifiedMixture) else "components"
            counts[name] = inner.drop_unused()
        if isinstance(flow, Grouped):  # all members have the same groups
            counts["groups"] = len(flow.norm.loc)
    return counts


def encode_rows(
    schema: Schema, frame: pd.DataFrame, context: Tensor | None = None, weight: FloatArray | None = None
) -> Rows:
    """Encode a frame of N rows as tensors, with its encoded context `(N, context)` and weights `(N,)`.

    All tensors are in double precision, in which the fitted flow computes. In single precision, the score of a row
    would depend on the other rows of its batch and on the number of threads, by the rounding of matrix products.
    """
    w = None if weight is None else torch.from_numpy(weight)
    return Rows(Cells(*map(torch.from_numpy, schema.encode(frame))), context, w)


def encode_context(schema: Schema | None, context: pd.DataFrame | None) -> Tensor | None:
    """Encode the context of N rows as a tensor, `(N, context)`; None without a context."""
    return None if schema is None or context is None else torch.from_numpy(schema.encode_context(context)).double()


def to_single(rows: Rows) -> Rows:
    """Rows in single precision, in which flows are trained.

    Ends of cells stay in double precision: those of rare values far out in the tails would merge in single.
    """
    x = rows.x._replace(exact=rows.x.exact.float(), offset=rows.x.offset.float())
    return Rows(x, *(None if part is None else part.float() for part in (rows.context, rows.weight)))


@torch.no_grad()
def score_rows(model: Dequantized, rows: Rows, n_draws: int) -> FloatArray:
    """Log-density of each row, `(N,)`, averaged over `n_draws` points of its cells; all rows share the points."""
    n_cells = len(model.cells)
    n_draws = n_draws if n_cells else 1
    noise = torch.from_numpy(draw_quasi_random(n_draws, n_cells)) if n_cells else None
    compiled = compile_density(model.flow)
    score = partial(_score_block, model) if compiled is None else partial(_score_compiled, model, compiled)
    blocks = []
    for start in range(0, len(rows), size := max(1, MAX_SCORED_ROWS // n_draws)):
        block = rows if len(rows) <= size else rows.take(slice(start, start + size))
        bounds = score(block, noise).cpu().double()
        blocks.append(torch.logsumexp(bounds, 1) - np.log(n_draws) if n_cells else bounds)
    return torch.cat(blocks).numpy() if blocks else np.zeros(0)


def _score_block(model: Dequantized, rows: Rows, noise: Tensor | None) -> Tensor:
    """Bounds of N rows by torch, `(N,)`; with noise `(D, C)`, D bounds for each, `(N, D)`."""
    context = None if rows.context is None else rows.context.to(model.device)
    if noise is None:
        return model(context).log_prob(rows.x)
    return model(context).log_prob(rows.x, noise[:, None]).T


def _score_compiled(model: Dequantized, compiled: CompiledDensity, rows: Rows, noise: Tensor | None) -> Tensor:
    """Bounds of N rows by the native kernel, for which the points of a row are next to each other."""
    x, c = rows.x, rows.context
    if noise is not None:
        x = Cells(*(part.unsqueeze(1) for part in x))
        c = None if c is None else c.unsqueeze(1)
    z, log_volume = model.dequantize(x, c, noise)
    return compiled.log_prob(z, rows.context) + log_volume


def draw_quasi_random(count: int, dimensions: int) -> FloatArray:
    """Points of a Sobol sequence, `(count, dimensions)`, which fill the unit cube evenly."""
    power = max(0, count - 1).bit_length()
    draw = _draw_sobol_once if power <= MAX_STORED_POWER else _draw_sobol
    return draw(power, dimensions)[:count].copy()


@lru_cache(maxsize=8)
def _draw_sobol_once(power: int, dimensions: int) -> FloatArray:
    """Few points, stored: to set up the sequence takes longer than to score a row."""
    return _draw_sobol(power, dimensions)


def _draw_sobol(power: int, dimensions: int) -> FloatArray:
    """2^power points."""
    return np.asarray(qmc.Sobol(dimensions, rng=0).random_base2(power), np.float64)


def iter_samples(
    model: Dequantized,
    n: int,
    context: Tensor | None,
    generator: torch.Generator,
    limits: tuple[FloatArray, FloatArray] | None = None,
) -> Iterator[FloatArray]:
    """Samples of the features, at most `SAMPLE_BLOCK` rows at a time, `(rows, features)` in each block.

    Arguments:
        model: The fitted flow.
        n: Number of rows; with a context, number of consecutive rows for each row of the context.
        context: Encoded context, `(N, context)`.
        generator: Source of random numbers, which is advanced.
        limits: Smallest and largest number of each feature, `(features,)` each; rows beyond are drawn again.
    """
    total = n if context is None else n * len(context)

    def draw(rows: Tensor) -> Tensor:
        with torch.no_grad(), use_generator(generator):
            z = model().sample(rows.shape) if context is None else model(context[rows // n]).sample()
        if not bool(z.isfinite().all()):
            raise NonFiniteError("samples of the model must be finite, got NaN or infinity: its weights overflow")
        return z.double()

    # Blocks have a fixed size: the numbers that torch draws depend on how many are drawn at once.
    for start in range(0, total, SAMPLE_BLOCK):
        rows = torch.arange(start, min(start + SAMPLE_BLOCK, total))
        z = draw(rows)
        if limits is not None:
            low, high = (torch.from_numpy(limit) for limit in limits)
            for _ in range(MAX_REDRAWS):
                is_far = ((z < low) | (z > high)).any(1)
                if not bool(is_far.any()):
                    break
                z[is_far] = draw(rows[is_far])
        yield z.numpy()


@torch.no_grad()
def measure_inverse_residual(model: Dequantized, rows: Rows) -> float:
    """Maximum of |f(f^-1(z)) - z| / (1 + |z|) over the latent points z of the rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        x = model.dequantize(rows.x, rows.context)[0]
    mixture = get_mixture(model)
    flows = mixture.flows if isinstance(mixture, FlowMixture) else [mixture]
    return max(_measure_residual(flow, x, rows.context) for flow in flows)


def _measure_residual(flow: nn.Module, x: Tensor, context: Tensor | None) -> float:
    """Maximum of |f(f^-1(z)) - z| / (1 + |z|) over the latent points z of x, `(N, features)`."""
    inner: Any = flow
    if isinstance(inner, Grouped):
        inner, x = inner.flow, inner.norm(context)(x)
    if isinstance(inner, GaussianMixture | Gaussian):
        return 0.0  # linear maps, whose inverse is exact
    if isinstance(inner, Whitened):
        inner, x = inner.flow, inner.whitening(context)(x)
    transform = inner(context).transform
    z = transform(x)
    again = transform(transform.inv(z))
    return float(((again - z).abs() / (1 + z.abs())).max())
