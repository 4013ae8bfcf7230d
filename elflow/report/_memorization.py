"""Memorization: whether samples are closer to training rows than chance explains."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elflow.report._tables import take_rows
from elflow.tabular import ContextTable, FlowDensity, Memorization, Table

__all__ = ["measure_memorization"]

MIN_ROWS = 20
"""Minimum number of training rows, and of held-out rows, in the table."""


def measure_memorization(
    est: FlowDensity, X: Table, context: ContextTable | None, origins: NDArray[np.str_], random_state: int
) -> Memorization | None:
    """Compare samples with the training rows and the held-out rows of a table; None if there are too few of these.

    Arguments:
        est: The density.
        X: The table.
        context: Its context.
        origins: Origin of each row: see `FlowDensity.row_origin`.
        random_state: Seed of the samples.
    """
    training = np.flatnonzero(origins == "training")
    held_out = np.flatnonzero(np.isin(origins, ("validation", "new")))
    if min(len(training), len(held_out)) < MIN_ROWS:
        return None
    return est.memorization(
        take_rows(X, training),
        take_rows(X, held_out),
        context_train=take_rows(context, training),
        context_holdout=take_rows(context, held_out),
        random_state=random_state,
    )
