"""All numbers of a report, computed once by `measure`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from elflow._checks import check_count
from elflow.report._compare import (
    SIGNIFICANCE,
    Correlations,
    Marginal,
    TwoSample,
    compare_correlations,
    compare_marginal,
    run_two_sample_test,
    select_dependent,
)
from elflow.report._pit import Pit, pits
from elflow.report._tables import Column, pair_columns, take_rows, to_frame
from elflow.report.baselines import fit_baselines
from elflow.tabular import N_DRAWS, ContextTable, FlowDensity, Table, table_kind
from elflow.training import Training

__all__ = ["Anomaly", "Column", "Correlations", "Findings", "Marginal", "Pit", "Score", "TwoSample", "measure"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MIN_ROWS = 10
MAX_NUMBERS = 100_000
"""Default limit of rows times features, for about half a minute of work."""
MAX_ROWS_RANGE = (2_000, 8_000)
"""Range of the default `max_rows`, which `MAX_NUMBERS` implies."""
MAX_TEST_SHARE = 1 / 3
"""Share of the used rows that may be test rows if there are enough training rows."""
MIN_TRAINING_SHARE = 1.0
"""Number of training rows for each held-out row below which the baselines are fitted to held-out rows, too."""
MIN_COMPARED_ROWS = 10
"""Number of rows without atoms below which there are no baselines."""
MIN_ATOM_ROWS, MIN_ATOM_SHARE = 5, 0.01
"""Number and share of rows from which on a value of a continuous column is an atom."""
MAX_SAMPLES = 4000
MIN_SAMPLES = 1000
MAX_JUDGED_ROWS = 2000
MIN_JUDGED_ROWS = 100
"""With fewer test rows, the classifier and the PIT histograms use other rows too."""
MAX_PIT_COLUMNS = 8
PIT_ROWS_RANGE = (100, 300)
MAX_PIT_NUMBERS = 24_000
"""Limit of rows times features times columns for the PIT histograms."""
MAX_INVERTED_ROWS = 500
MAX_PAIRED_COLUMNS = 5
MAX_CORRELATED_COLUMNS = 60
N_ANOMALIES = 10
EXTREME_SHARE = 0.005
"""A value is extreme if at most this share of its column is as far out on the same side, or has the same label."""


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
class Anomaly:
    """One of the least likely rows."""

    row: int
    """Index of the row in the table, from 0."""
    log_density: float
    anomaly_score: float
    """See `FlowDensity.anomaly_score`."""
    values: tuple[Any, ...]
    is_extreme: tuple[bool, ...]
    """For each value, whether it is extreme within its column."""


@dataclass(frozen=True)
class Findings:
    """The numbers of a report, as `measure` and `elflow.report.write` return them."""

    flow: str
    n_parameters: int
    n_fitted_rows: int
    """Number of rows that the model was fitted to, including validation rows."""
    training: Training
    """The record of the training."""
    kinds: tuple[str, ...]
    """Kind of each column."""
    n_context_columns: int
    n_table_rows: int
    n_used_rows: int
    """Number of rows of the table that the report uses."""
    n_training_rows: int
    """Number of rows of the table that the model was trained on."""
    n_validation_rows: int
    """Number of rows of the table that were validation rows of training."""
    n_new_rows: int
    """Number of rows of the table that the model has not seen. There may be other rows, of unknown origin."""
    n_train: int
    """Number of rows that the baselines were fitted to."""
    n_test: int
    """Number of rows that all models are scored on: held-out rows if there are any."""
    gap: float
    """Mean log-density of training rows minus that of the test rows, in nats: the extent of overfitting. NaN if the
    table has no training rows, or no others."""
    gap_error: float
    """Standard error of `gap`."""
    n_impossible: int
    """Number of test rows with a density of zero."""
    scores: tuple[Score, ...]
    """The reported model on all test rows, then the baselines on the compared rows; no baselines if these are few."""
    compared: Score
    """The reported model on the compared rows."""
    n_compared: int
    """Number of test rows on which the model is compared with the baselines: those without atoms."""
    atomic: tuple[str, ...]
    """Names of continuous columns with atoms: values so frequent that they have a probability, not a density."""
    columns: tuple[Column, ...]
    n_samples: int
    marginals: tuple[Marginal, ...]
    """Sorted by their distance, the largest first."""
    paired: tuple[int, ...]
    """Indices of the columns with the strongest dependence."""
    pits: tuple[Pit, ...]
    correlations: Correlations
    anomalies: tuple[Anomaly, ...]
    """The least likely row first."""
    two_sample: TwoSample | None
    """None if there are too few rows."""
    has_enough_test_rows: bool
    """Whether the classifier and the PIT histograms use test rows only."""
    warnings: tuple[str, ...]
    """Warnings of the fit."""
    inverse_residual: float
    """Maximum of |f(f^-1(z)) - z| / (1 + |z|) over latent points z."""
    n_inverted: int
    """Number of rows that `inverse_residual` is computed for."""

    @property
    def is_new(self) -> bool:
        """Whether the model saw no row of the table, neither for training nor for validation."""
        return self.n_new_rows == self.n_table_rows

    @property
    def is_held_out(self) -> bool:
        """Whether the test rows are held out; otherwise the table has training rows only, or rows of unknown origin."""
        return self.n_validation_rows + self.n_new_rows > 0

    @property
    def best_baseline(self) -> Score | None:
        """The baseline with the highest mean log-density; None if there are none."""
        return max(self.scores[1:], key=lambda score: score.mean, default=None)


def measure(
    est: FlowDensity, X: Table, context: ContextTable | None = None, max_rows: int | None = None, random_state: int = 0
) -> Findings:
    """Compute the numbers of a report.

    Arguments:
        est: A fitted `elflow.FlowDensity`.
        X: A table with the columns that `est` was fitted to, `(N, columns)`. Rows that `est` was trained on are
            recognised, in any order. The model is judged by the other rows, and the baselines are fitted to the
            training rows. Without enough of these, the other rows are split in half, and the baselines are fitted to
            one half.
        context: The context of each row, if the model has one.
        max_rows: Maximum number of rows to use, chosen at random. By default as many as take about half a minute.
        random_state: Seed of all random choices.

    Example:
        >>> from elflow.tabular import FlowDensity
        >>> table = np.random.default_rng(0).normal(size=(100, 1))
        >>> found = measure(FlowDensity(max_steps=20, random_state=0).fit(table), table)
        >>> found.n_training_rows, found.n_validation_rows, found.n_new_rows, found.n_test
        (90, 10, 0, 10)
    """
    max_rows = None if max_rows is None else check_count("max_rows", max_rows, MIN_ROWS)
    random_state = check_count("random_state", random_state, 0)
    if not isinstance(est, FlowDensity):
        raise TypeError(f"est must be a fitted elflow.FlowDensity, got {type(est).__name__}")
    check_is_fitted(est, "model_")
    if table_kind(X) == "numpy":
        X = np.asarray(X)
    count = len(X)
    if count < MIN_ROWS:
        raise ValueError(f"X must have at least {MIN_ROWS} rows for a report, got {count}")
    if context is not None and len(context) != count:
        raise ValueError(f"context must have as many rows as X, {count}, got {len(context)}")
    if max_rows is None:
        max_rows = int(np.clip(MAX_NUMBERS // est.schema_.features, *MAX_ROWS_RANGE))
    rng = np.random.default_rng(random_state)
    origins = est.row_origin(X)
    test, train = _split_rows(origins, max_rows, rng)
    used = np.append(test, train)  # test rows come first, here and in all that is derived from it
    X, context = take_rows(X, used), take_rows(context, used)
    real = to_frame(X, est.schema_)

    log_density = est.score_samples(X, context=context)
    of_test, of_training = log_density[: len(test)], log_density[len(test) :][origins[train] == "training"]
    comparison = _compare_with_baselines(est, X, len(test), of_test, random_state)
    of_compared = of_test[comparison.is_compared] if comparison.baselines else of_test

    compared = np.arange(min(len(used), MAX_SAMPLES))
    n_samples = len(compared) if context is not None else max(len(compared), MIN_SAMPLES)
    sampled = to_frame(_draw_samples(est, n_samples, take_rows(context, compared), random_state), est.schema_)
    columns = pair_columns(est.schema_, real, sampled)
    has_enough_test_rows = len(test) >= MIN_JUDGED_ROWS
    n_judged = min(len(test) if has_enough_test_rows else len(compared), MAX_JUDGED_ROWS)
    judged, inverted = compared[:n_judged], compared[:MAX_INVERTED_ROWS]
    with threadpool_limits(1):  # for trees this small, several threads are slower than one
        two_sample = run_two_sample_test(_take_judged(est, columns, context, n_judged), random_state)
    return Findings(
        flow=est.flow,
        n_parameters=est.n_parameters_,
        n_fitted_rows=est.n_rows_,
        training=est.training_,
        kinds=tuple(column.kind for column in est.schema_.columns),
        n_context_columns=len(est.context_schema_.columns) if est.context_schema_ is not None else 0,
        n_table_rows=count,
        n_used_rows=len(used),
        n_training_rows=int((origins == "training").sum()),
        n_validation_rows=int((origins == "validation").sum()),
        n_new_rows=int((origins == "new").sum()),
        n_train=len(train),
        n_test=len(test),
        gap=_subtract_means(of_training, of_test) if (origins[test] != "training").all() else np.nan,
        gap_error=float(np.hypot(_standard_error(of_test), _standard_error(of_training))),
        n_impossible=int(np.isneginf(of_test).sum()),
        scores=(_make_score("This model", est.flow, of_test, of_test), *comparison.baselines),
        compared=_make_score("This model", est.flow, of_compared, of_compared),
        n_compared=int(comparison.is_compared.sum()),
        atomic=comparison.atomic,
        columns=columns,
        n_samples=n_samples,
        marginals=_compare_marginals(columns),
        paired=select_dependent(columns, MAX_PAIRED_COLUMNS),
        pits=_transform_columns(est, columns, take_rows(X, judged), take_rows(context, judged), random_state),
        correlations=compare_correlations(columns[:MAX_CORRELATED_COLUMNS]),
        anomalies=_find_anomalies(est, log_density, used, real, columns),
        two_sample=two_sample,
        has_enough_test_rows=has_enough_test_rows,
        warnings=_collect_warnings(est),
        inverse_residual=float(est.inverse_residual(take_rows(X, inverted), context=take_rows(context, inverted))),
        n_inverted=len(inverted),
    )


def _collect_warnings(est: FlowDensity) -> tuple[str, ...]:
    """Warnings of the fit about the table, and one about the training if steps were skipped."""
    if not (skipped := est.training_.skipped):
        return tuple(est.warnings_)
    return (*est.warnings_, f"{skipped:,} training steps were skipped, because loss or gradient were not finite")


def _split_rows(origins: NDArray[np.str_], max_rows: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Choose the rows that all models are scored on, and those that the baselines are fitted to.

    Arguments:
        origins: Origin of each row of the table, `(N,)`: see `FlowDensity.row_origin`.
        max_rows: Maximum number of rows to choose.
        rng: Source of randomness.
    """
    order = rng.permutation(len(origins))
    held_out = order[np.isin(origins[order], ("validation", "new"))]
    training = order[origins[order] == "training"]
    if not len(held_out):
        half = min(len(order), max_rows) // 2
        return order[:half], order[half:max_rows]
    if len(training) >= MIN_TRAINING_SHARE * len(held_out):
        test = held_out[: max(int(MAX_TEST_SHARE * max_rows), max_rows - len(training))]
        return test, training[: max_rows - len(test)]
    n_used = min(len(held_out), max_rows)  # the baselines need about as many rows as they are scored on
    train = np.append(training, held_out[n_used // 2 :])
    return held_out[: n_used // 2], train[: max_rows - n_used // 2]


@dataclass(frozen=True)
class _Comparison:
    """The baselines, and the test rows on which the model is compared with them."""

    baselines: list[Score]
    is_compared: NDArray[np.bool_]
    """Mask of the test rows that are compared, `(N,)`."""
    atomic: tuple[str, ...]
    """Names of continuous columns in which some values are frequent."""


def _compare_with_baselines(est: FlowDensity, X: Table, n_test: int, of_test: Floats, random_state: int) -> _Comparison:
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
        return _Comparison([], np.zeros(n_test, dtype=bool), atomic)
    log_share = np.log((~has_atom_train).mean())
    scores = []
    for baseline in fit_baselines(z_train[~has_atom_train], random_state=random_state):
        of_draws = baseline.log_density(z[:, ~has_atom]) + log_volume[:, ~has_atom] + log_share
        log_density = logsumexp(of_draws, axis=0) - np.log(len(draws))
        scores.append(_make_score(baseline.name, baseline.detail, log_density, of_test[~has_atom]))
    return _Comparison(scores, ~has_atom, atomic)


def _find_atoms(values: Floats) -> Floats:
    """Frequent values of a feature. Discrete columns have none, as their values become random points of cells."""
    distinct, counts = np.unique(values, return_counts=True)
    return distinct[counts >= max(MIN_ATOM_ROWS, MIN_ATOM_SHARE * len(values))]


def _make_score(name: str, detail: str, log_density: Floats, of_model: Floats) -> Score:
    with np.errstate(invalid="ignore"):
        gains = np.where(of_model == log_density, 0.0, of_model - log_density)  # 0 if both are minus infinity
    mean, gain = float(log_density.mean()), float(gains.mean())
    return Score(name, detail, mean, _standard_error(log_density), gain, _standard_error(gains))


def _subtract_means(a: Floats, b: Floats) -> float:
    """Difference of means; NaN if a value is infinite, or one side is empty."""
    is_defined = len(a) and len(b) and np.isfinite(a).all() and np.isfinite(b).all()
    return float(a.mean() - b.mean()) if is_defined else np.nan


def _standard_error(values: Floats) -> float:
    """Standard error of the mean; NaN for fewer than two values, or if one is infinite."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 and np.isfinite(values).all() else np.nan


def _draw_samples(est: FlowDensity, count: int, context: ContextTable | None, random_state: int) -> Table:
    """Draw samples; with a context, one for each of its rows."""
    if context is None:
        return est.sample(count, random_state=random_state)
    return est.sample(1, context=context, random_state=random_state)


def _compare_marginals(columns: Sequence[Column]) -> tuple[Marginal, ...]:
    """Compare the marginal distributions, at a significance that holds for all columns together."""
    marginals = [compare_marginal(column, SIGNIFICANCE / len(columns)) for column in columns]
    return tuple(sorted(marginals, key=lambda marginal: -marginal.distance))


def _take_judged(est: FlowDensity, columns: Sequence[Column], context: ContextTable | None, count: int) -> list[Column]:
    """The first rows of each column, and of the context, which is the same for real and sampled rows."""
    first = [Column(c.name, c.kind, c.real[:count], c.sampled[:count], c.labels) for c in columns]
    if est.context_schema_ is not None:
        shared = to_frame(context, est.context_schema_).iloc[:count]
        first += pair_columns(est.context_schema_, shared, shared)
    return first


def _transform_columns(
    est: FlowDensity, columns: Sequence[Column], X: Table, context: ContextTable | None, random_state: int
) -> tuple[Pit, ...]:
    """Transform columns, numbers and times first, on few enough rows to keep the time bounded."""
    numbers = MAX_PIT_NUMBERS // est.schema_.features
    some = np.arange(min(len(X), int(np.clip(numbers // MAX_PIT_COLUMNS, *PIT_ROWS_RANGE))))
    ordered = sorted(columns, key=lambda column: column.has_labels)
    names = [column.name for column in ordered[: int(np.clip(numbers // len(some), 2, MAX_PIT_COLUMNS))]]
    return pits(est, take_rows(X, some), take_rows(context, some), names, random_state)


def _find_anomalies(
    est: FlowDensity, log_density: Floats, rows: Ints, real: pd.DataFrame, columns: Sequence[Column]
) -> tuple[Anomaly, ...]:
    lowest = np.argsort(log_density, kind="stable")[:N_ANOMALIES]
    is_extreme = np.column_stack([_mark_extremes(column)[lowest] for column in columns])
    return tuple(
        Anomaly(
            int(rows[i]),
            float(log_density[i]),
            float(percentile),
            tuple(real[name].iloc[i] for name in real.columns),
            tuple(bool(mark) for mark in marks),
        )
        for i, percentile, marks in zip(lowest, est.percentiles(log_density[lowest]), is_extreme, strict=True)
    )


def _mark_extremes(column: Column) -> NDArray[np.bool_]:
    """Whether each real value is extreme in its column, or has a rare label."""
    values = column.real
    if column.has_labels:
        shares = np.bincount(values[~np.isnan(values)].astype(int), minlength=1) / len(values)
        return np.array([not np.isnan(v) and shares[int(v)] <= EXTREME_SHARE for v in values])
    order = np.sort(values[~np.isnan(values)])
    limit = max(EXTREME_SHARE * len(order), 1)
    below, above = np.searchsorted(order, values, "right"), len(order) - np.searchsorted(order, values, "left")
    return ~np.isnan(values) & (np.minimum(below, above) <= limit)
