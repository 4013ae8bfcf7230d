"""Factors that give a fitted flow the frequencies of combinations of categories, zeros and missing values."""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from elflow.flows.dequantization import Dequantized
from elflow.flows.raking import fit_factors
from elflow.flows.tilted import MAX_LOG_FACTOR, Tilted
from elflow.kernels import NonFiniteError
from elflow.tabular._arrays import FloatArray
from elflow.tabular._random import use_generator
from elflow.tabular.schema import Schema
from elflow.training import Rows
from elflow.training.permutations import Permutation

__all__ = ["tilt_model"]

MAX_TILTING_ROWS = 2**17
"""Maximum number of training rows with whose combinations of cells the samples of a flow are compared."""
MAX_TILTING_SAMPLES, SAMPLES_PER_ROW = 2**15, 8
"""Maximum number of these samples, and their number per row; there are at least a quarter of the maximum."""
TILTING_BLOCK = 2**11
"""Number of samples that are drawn at a time."""
TIME_SHARE = 0.1
"""Part of the time limit of the training that samples may take in addition."""
MAX_FEATURES = 16
"""Maximum number of features with cells that are corrected."""


def tilt_model(
    model: Dequantized, schema: Schema, training: Rows, validation: Rows, seed: int, time_limit: float | None = None
) -> Dequantized:
    """Give a fitted flow without context the frequencies of the combinations of its cells: see `Schema.cell_ends`.

    Factors are found from the training rows: see `Tilted`. They stay if the validation rows become more likely. If more
    than `MAX_FEATURES` features have cells, those with the fewest cells are corrected.

    Arguments:
        model: The fitted flow, in double precision.
        schema: The columns of the table.
        training: Training rows.
        validation: Validation rows.
        seed: Seed of the samples of the flow.
        time_limit: Time limit of the training in seconds; if samples take more than a tenth of it, there are no
            factors.
    """
    ends = schema.cell_ends
    if len(ends) < 2 or not len(validation) or validation.context is not None:
        return model
    ends = dict(sorted(ends.items(), key=lambda item: len(item[1]))[:MAX_FEATURES])
    training = training.take(Permutation(len(training), seed=0).take(0, min(len(training), MAX_TILTING_ROWS)))
    rows = _find_cells(model, training, ends)
    n_samples = min(MAX_TILTING_SAMPLES, max(MAX_TILTING_SAMPLES // 4, len(training) * SAMPLES_PER_ROW))
    # The constant of the density comes from other samples than the factors, which suit theirs too well.
    both = _draw_samples(model, 2 * n_samples, seed, time_limit)
    if both is None:
        return model
    samples = {p: np.searchsorted(end, both[:n_samples, p].numpy(), side="right") for p, end in ends.items()}
    weight = np.ones(len(training)) if training.weight is None else training.weight.double().numpy()
    sizes = {position: len(end) + 1 for position, end in ends.items()}
    fitted = fit_factors(rows, samples, sizes, weight)
    if fitted is None:
        return model
    tilted = Tilted(model.flow, ends, fitted.tables).double().eval()
    tilted.set_factors(fitted.factors, log_constant=0.0)
    log_constant = -math.log(float(tilted.compute_log_factor(both[n_samples:]).exp().mean()))
    if abs(log_constant) > MAX_LOG_FACTOR:  # few samples have all the weight
        return model
    tilted.set_factors(fitted.factors, log_constant)
    middle = torch.zeros(len(validation), schema.features, dtype=torch.double)
    for position, codes in _find_cells(model, validation, ends).items():
        middle[:, position] = torch.from_numpy(np.concatenate([ends[position][:1] - 1, ends[position]])[codes])
    gain = tilted.compute_log_factor(middle)
    weights = torch.ones_like(gain) if validation.weight is None else validation.weight.double()
    if float(gain @ weights) > 0:
        model.flow = tilted
    return model.float().double()


def _draw_samples(model: Dequantized, n: int, seed: int, time_limit: float | None) -> Tensor | None:
    """Samples of the flow, `(n, features)`; None if they would take too long, or are not finite."""
    blocks: list[Tensor] = []
    end = math.inf if time_limit is None else time.monotonic() + TIME_SHARE * time_limit
    with use_generator(torch.Generator().manual_seed(seed)), torch.no_grad():
        for start in range(0, n, TILTING_BLOCK):
            if time.monotonic() > end:
                return None
            try:
                blocks.append(model().sample((min(TILTING_BLOCK, n - start),)))
            except NonFiniteError:
                return None
    z = torch.cat(blocks)
    return z if bool(z.isfinite().all()) else None


def _find_cells(model: Dequantized, rows: Rows, ends: dict[int, FloatArray]) -> dict[int, NDArray[np.int64]]:
    """Index of the cell of each row, `(N,)`, for each feature with ends between cells."""
    low, width = (part.double().numpy() for part in (rows.x.low, rows.x.width))
    middle = {position: low[:, k] + width[:, k] / 2 for k, position in enumerate(model.cells) if position in ends}
    return {position: np.searchsorted(ndtr(ends[position]), u, side="right") for position, u in middle.items()}
