"""Log-likelihoods of the reported model and of the baselines, row by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from elflow.report._tables import take_rows
from elflow.report.baselines import fit_baselines
from elflow.tabular import N_DRAWS, FlowDensity, Table

__all__ = ["Comparison", "Score", "compare_with_baselines", "make_score", "standard_error", "subtract_means"]

Floats = NDArray[np.float64]

MIN_COMPARED_ROWS = 10
"""Number of rows without atoms below which there are no baselines."""
MIN_ATOM_ROWS, MIN_ATOM_SHARE = 5, 0.01
"""Number and share of rows from which on a value of a continuous column is an atom."""


@dataclass(frozen=True)
class Score:
    """Mean log-density of rows under one model, in nats."""

    name: str
    detail: str
    mean: float
    error: float
    """Standard error of `mean`."""
    gain: float
    """Mean advantage of the reported model over this one, row by row: positive if the reported model is better."""
    gain_error: float
    """Standard error of `gain`."""


@dataclass(frozen=True)
class Comparison:
    """The baselines, and the test rows on which the model is compared with them."""

    baselines: list[Score]
    is_compared: NDArray[np.bool_]
    """Mask of the test rows that are compared, `(N,)`."""
    atomic: tuple[str, ...]
    """Names of continuous columns in which some values are frequent."""


def compare_with_baselines(est: FlowDensity, X: Table, n_test: int, of_test: Floats, random_state: int) -> Comparison:
    """Score the baselines, in the units of the data and with as many draws per discrete value as the model.

    A frequent value of a continuous column, an atom, has a probability rather than a density. A baseline of which a
    component shrinks to the atom would have any density there. Therefore baselines model the rows without atoms, times
    the share of these rows, and are compared on such rows. Mixed columns, whose atoms are cells, need no exception.
    """
    test, train = take_rows(X, np.arange(n_test)), take_rows(X, np.arange(n_test, len(X)))
    draws = [est.encode(test, random_state=draw) for draw in range(N_DRAWS if est.schema_.cells else 1)]
    z, log_volume = (np.stack(parts) for parts in zip(*draws, strict=True))
    z_train, log_volume_train = est.encode(train)
    # Values outside the bounds of a column, where densities are zero, are encoded as the bound: this is no atom.
    atoms = [_find_atoms(values[np.isfinite(log_volume_train)]) for values in z_train.T]
    atomic = tuple(name for name in est.schema_.names if any(len(atoms[k]) for k in est.schema_.positions(name)))
    has_atom, has_atom_train = (
        np.any([np.isin(values, some) for values, some in zip(rows.T, atoms, strict=True)], axis=0)
        & np.isfinite(volumes)
        for rows, volumes in ((z[0], log_volume[0]), (z_train, log_volume_train))
    )
    if (~has_atom).sum() < MIN_COMPARED_ROWS or (~has_atom_train).sum() < MIN_COMPARED_ROWS:
        return Comparison([], np.zeros(n_test, dtype=bool), atomic)
    log_share = np.log((~has_atom_train).mean())
    scores = []
    for baseline in fit_baselines(z_train[~has_atom_train], random_state=random_state):
        of_draws = baseline.log_density(z[:, ~has_atom]) + log_volume[:, ~has_atom] + log_share
        log_density = logsumexp(of_draws, axis=0) - np.log(len(draws))
        scores.append(make_score(baseline.name, baseline.detail, log_density, of_test[~has_atom]))
    return Comparison(scores, ~has_atom, atomic)


def _find_atoms(values: Floats) -> Floats:
    """Frequent values of a feature. Discrete columns have none, as their values become random points of cells."""
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[counts >= max(MIN_ATOM_ROWS, MIN_ATOM_SHARE * len(values))]


def make_score(name: str, detail: str, log_density: Floats, of_model: Floats) -> Score:
    with np.errstate(invalid="ignore"):
        gains = np.where(of_model == log_density, 0.0, of_model - log_density)  # 0 if both are minus infinity
    mean, gain = float(log_density.mean()), float(gains.mean())
    return Score(name, detail, mean, standard_error(log_density), gain, standard_error(gains))


def subtract_means(a: Floats, b: Floats) -> float:
    """Difference of means; NaN if a value is infinite, or one side is empty."""
    is_defined = len(a) and len(b) and np.isfinite(a).all() and np.isfinite(b).all()
    return float(a.mean() - b.mean()) if is_defined else np.nan


def standard_error(values: Floats) -> float:
    """Standard error of the mean; NaN for fewer than two values, or if one is infinite."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 and np.isfinite(values).all() else np.nan
