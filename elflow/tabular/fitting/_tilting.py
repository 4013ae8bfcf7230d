"""Factors that give a fitted flow the frequencies of combinations of categories, zeros and missing values."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr

from elflow.flows.dequantization import Dequantized
from elflow.flows.tilted import MAX_FEATURES, Tilted, fit_factors
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


def tilt_model(model: Dequantized, schema: Schema, training: Rows, validation: Rows, seed: int) -> Dequantized:
    """Give a fitted flow without context the frequencies of the combinations of its cells: see `Schema.cell_ends`.

    Factors are found from the training rows: see `Tilted`. They stay if the validation rows become more likely. If more
    than `MAX_FEATURES` features have cells, those with the fewest cells are corrected.

    Arguments:
        model: The fitted flow, in double precision.
        schema: The columns of the table.
        training: Training rows.
        validation: Validation rows.
        seed: Seed of the samples of the flow.
    """
    ends = schema.cell_ends
    if len(ends) < 2 or not len(validation) or validation.context is not None:
        return model
    ends = dict(sorted(ends.items(), key=lambda item: len(item[1]))[:MAX_FEATURES])
    training = training.take(Permutation(len(training), seed=0).take(0, min(len(training), MAX_TILTING_ROWS)))
    rows = _find_cells(model, training, ends)
    n_samples = min(MAX_TILTING_SAMPLES, max(MAX_TILTING_SAMPLES // 4, len(training) * SAMPLES_PER_ROW))
    with use_generator(torch.Generator().manual_seed(seed)):
        z = model().sample((n_samples,)).numpy()
    samples = {position: np.searchsorted(end, z[:, position], side="right") for position, end in ends.items()}
    weight = np.ones(len(training)) if training.weight is None else training.weight.double().numpy()
    sizes = {position: len(end) + 1 for position, end in ends.items()}
    fitted = fit_factors(rows, samples, sizes, weight)
    if fitted is None:
        return model
    tilted = Tilted(model.flow, ends, fitted.tables).double().eval()
    tilted.set_factors(fitted.factors, fitted.log_constant)
    middle = torch.zeros(len(validation), schema.features, dtype=torch.double)
    for position, codes in _find_cells(model, validation, ends).items():
        middle[:, position] = torch.from_numpy(np.concatenate([ends[position][:1] - 1, ends[position]])[codes])
    gain = tilted.compute_log_factor(middle)
    weights = torch.ones_like(gain) if validation.weight is None else validation.weight.double()
    if float(gain @ weights) > 0:
        model.flow = tilted
    return model.float().double()


def _find_cells(model: Dequantized, rows: Rows, ends: dict[int, FloatArray]) -> dict[int, NDArray[np.int64]]:
    """Index of the cell of each row, `(N,)`, for each feature with ends between cells."""
    low, width = (part.double().numpy() for part in (rows.x.low, rows.x.width))
    middle = {position: low[:, k] + width[:, k] / 2 for k, position in enumerate(model.cells) if position in ends}
    return {position: np.searchsorted(ndtr(ends[position]), u, side="right") for position, u in middle.items()}
