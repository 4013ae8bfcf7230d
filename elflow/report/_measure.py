"""All the numbers of a report, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from elflow.report._baselines import baselines
from elflow.report._compare import (
    Correlations,
    Marginal,
    TwoSample,
    correlations,
    dependent,
    marginal,
    two_sample,
)
from elflow.report._pit import Pit, pits
from elflow.report._tables import Column, columns, frame, take
from elflow.tabular import N_DRAWS, FlowDensity, table_kind

__all__ = ["Anomaly", "Findings", "Score", "measure"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEWEST_ROWS = 10
USUAL_NUMBERS = 100_000
"""How many numbers of a table are looked at unless told otherwise: for about half a minute of work."""
USUAL_ROWS = (2_000, 8_000)
"""Between how many and how many rows these are."""
HELD_OUT_SHARE = 1 / 3
"""Of the rows looked at, how many at most are held-out ones."""
MOST_SAMPLES = 4000
FEWEST_SAMPLES = 1000
MOST_JUDGED = 2000
FEWEST_JUDGED = 100
"""With fewer held-out rows the classifier and the PIT histograms get other rows besides."""
MOST_PITS, PIT_ROWS, PIT_NUMBERS = 8, (100, 300), 24_000
"""Columns, between how many and how many rows, and about how many numbers of them in all."""
MOST_INVERTED = 500
MOST_PAIRED = 5
MOST_CORRELATED = 60
ANOMALIES = 10
EXTREME = 0.005
"""A value of an anomalous row is marked when no more of a column lies as far out on its side."""


@dataclass(frozen=True)
class Score:
    """A mean log-density of the held-out rows, in nats, with its standard error."""

    name: str
    detail: str
    mean: float
    error: float
    gain: float
    """By how much the model is better, row by row; 0 for the model itself."""
    gain_error: float


@dataclass(frozen=True)
class Anomaly:
    """One of the least likely rows."""

    row: int
    """Counted from 0."""
    log_density: float
    percentile: float
    values: tuple[Any, ...]
    extreme: tuple[bool, ...]


@dataclass(frozen=True)
class Findings:
    """What a report shows."""

    flow: str
    n_parameters: int
    n_rows: int
    """That the model was fitted to, those that chose when to stop included."""
    seconds: float
    stopped: str
    history: tuple[dict[str, float], ...]
    kinds: tuple[str, ...]
    n_context: int
    """Columns of the context."""
    table_rows: int
    looked_at: int
    held_out: bool
    """Whether the table is the one the model was fitted to, and its held-out rows are known."""
    n_train: int
    """Rows that the baselines were fitted to."""
    n_test: int
    gap: float
    """By how much the rows that are not held out are likelier than those that are, in nats."""
    gap_error: float
    impossible: int
    """Held-out rows with a density of 0."""
    scores: tuple[Score, ...]
    """The model's first, then the baselines'."""
    columns: tuple[Column, ...]
    n_samples: int
    marginals: tuple[Marginal, ...]
    paired: tuple[int, ...]
    """The columns that depend on each other most."""
    pits: tuple[Pit, ...]
    correlations: Correlations
    anomalies: tuple[Anomaly, ...]
    two_sample: TwoSample | None
    judged_held_out: bool
    """Whether the classifier and the PIT histograms have only held-out rows."""
    inverse_residual: float
    n_inverted: int

    @property
    def best_baseline(self) -> Score:
        return max(self.scores[1:], key=lambda score: score.mean)


def measure(est: FlowDensity, X: Any, context: Any, rows: int | None, random_state: int) -> Findings:
    """Everything in a report on this model and this table."""
    if not isinstance(est, FlowDensity):
        raise TypeError(f"est must be a fitted elflow.FlowDensity, got {type(est).__name__}")
    check_is_fitted(est, "model_")
    if table_kind(X) == "numpy":
        X = np.asarray(X)
    count = len(X)
    if count < FEWEST_ROWS:
        raise ValueError(f"X must have at least {FEWEST_ROWS} rows for a report, got {count}")
    if context is not None and len(context) != count:
        raise ValueError(f"context must have as many rows as X, {count}, got {len(context)}")
    if rows is None:
        rows = int(np.clip(USUAL_NUMBERS // est.schema_.features, *USUAL_ROWS))
    rng = np.random.default_rng(random_state)
    held_out = est.validation_mask(X)
    known = held_out is not None and bool(0 < held_out.sum() < count)
    test, train = _split(held_out if known else None, count, rows, rng)
    looked_at = np.append(test, train)  # held-out rows first, here and in everything below
    seen, given = take(X, looked_at), take(context, looked_at)
    real = frame(seen, est.schema_)

    log_density = est.score_samples(seen, context=given)
    ours, others = log_density[: len(test)], log_density[len(test) :]
    scores = [_score("This model", est.flow, ours, ours), *_baselines(est, seen, len(test), ours, random_state)]

    compared = np.arange(min(len(looked_at), MOST_SAMPLES))
    n_samples = len(compared) if context is not None else max(len(compared), FEWEST_SAMPLES)
    sampled = frame(_draw(est, n_samples, take(given, compared), random_state), est.schema_)
    pictured = columns(est.schema_, real, sampled)
    judged_held_out = len(test) >= FEWEST_JUDGED
    n_judged = min(len(test) if judged_held_out else len(compared), MOST_JUDGED)
    with threadpool_limits(1):  # trees this small lose more by waiting for each other than they gain
        classified = two_sample(_classified(est, pictured, given, n_judged), random_state)
    marginals = sorted((marginal(column) for column in pictured), key=lambda one: -one.distance)
    return Findings(
        flow=est.flow,
        n_parameters=est.n_parameters_,
        n_rows=est.n_rows_,
        seconds=est.training_.seconds,
        stopped=est.training_.stopped,
        history=tuple(est.training_.history),
        kinds=tuple(column.kind for column in est.schema_.columns),
        n_context=len(est.context_schema_.columns) if est.context_schema_ is not None else 0,
        table_rows=count,
        looked_at=len(looked_at),
        held_out=known,
        n_train=len(train),
        n_test=len(test),
        gap=_difference(others, ours),
        gap_error=float(np.hypot(_error(ours), _error(others))),
        impossible=int(np.isneginf(ours).sum()),
        scores=tuple(scores),
        columns=pictured,
        n_samples=n_samples,
        marginals=tuple(marginals),
        paired=dependent(pictured, MOST_PAIRED),
        pits=_transforms(
            est, pictured, take(seen, compared[:n_judged]), take(given, compared[:n_judged]), random_state
        ),
        correlations=correlations(pictured[:MOST_CORRELATED]),
        anomalies=_anomalies(est, seen, given, looked_at, log_density, real, pictured),
        two_sample=classified,
        judged_held_out=judged_held_out,
        inverse_residual=float(
            est.inverse_residual(take(seen, compared[:MOST_INVERTED]), context=take(given, compared[:MOST_INVERTED]))
        ),
        n_inverted=min(len(compared), MOST_INVERTED),
    )


def _split(held_out: NDArray[np.bool_] | None, count: int, rows: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """The rows that everything is scored on, and those that the baselines are fitted to; at most `rows` in all."""
    order = rng.permutation(count)
    if held_out is None:
        order = order[:rows]
        return order[: len(order) // 2], order[len(order) // 2 :]
    test, train = order[held_out[order]], order[~held_out[order]]
    most = max(int(HELD_OUT_SHARE * rows), rows - len(train))
    test = test[:most]
    return test, train[: rows - len(test)]


def _baselines(est: FlowDensity, seen: Any, n_test: int, ours: Floats, random_state: int) -> list[Score]:
    """The baselines' scores, in the units of the data and with as many points of each discrete value as the model's."""
    test, train = take(seen, np.arange(n_test)), take(seen, np.arange(n_test, len(seen)))
    draws = [est.encode(test, random_state=draw) for draw in range(N_DRAWS if est.schema_.cells else 1)]
    z, log_volume = (np.stack(parts) for parts in zip(*draws, strict=True))
    scores = []
    for baseline in baselines(est.encode(train)[0], z, random_state):
        theirs = logsumexp(baseline.log_density + log_volume, axis=0) - np.log(len(draws))
        scores.append(_score(baseline.name, baseline.detail, theirs, ours))
    return scores


def _score(name: str, detail: str, log_density: Floats, ours: Floats) -> Score:
    with np.errstate(invalid="ignore"):
        gains = np.where(ours == log_density, 0.0, ours - log_density)  # no gain where both say impossible
    return Score(name, detail, float(log_density.mean()), _error(log_density), float(gains.mean()), _error(gains))


def _difference(a: Floats, b: Floats) -> float:
    """Of the means; NaN where one of them is infinite."""
    return float(a.mean() - b.mean()) if np.isfinite(a).all() and np.isfinite(b).all() else np.nan


def _error(values: Floats) -> float:
    """The standard error of the mean: NaN for less than two values, or where one is infinite."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 and np.isfinite(values).all() else np.nan


def _draw(est: FlowDensity, count: int, context: Any, random_state: int) -> Any:
    """Samples; under a context one for each of its rows."""
    if context is None:
        return est.sample(count, random_state=random_state)
    return est.sample(1, context=context, random_state=random_state)


def _classified(est: FlowDensity, pictured: tuple[Column, ...], context: Any, count: int) -> tuple[Column, ...]:
    """The first rows of each column, real and sampled, and those of the context, which both have in common."""
    first = [Column(c.name, c.kind, c.real[:count], c.sampled[:count], c.labels) for c in pictured]
    if context is not None:
        shared = frame(context, est.context_schema_).iloc[:count]
        first += columns(est.context_schema_, shared, shared)
    return tuple(first)


def _transforms(
    est: FlowDensity, pictured: tuple[Column, ...], judged: Any, context: Any, random_state: int
) -> tuple[Pit, ...]:
    """Of some columns, numbers and times first, and so few rows that it does not take long."""
    numbers = PIT_NUMBERS // est.schema_.features
    some = np.arange(min(len(judged), int(np.clip(numbers // MOST_PITS, *PIT_ROWS))))
    ordered = sorted(pictured, key=lambda column: column.labelled)
    names = [column.name for column in ordered[: int(np.clip(numbers // len(some), 2, MOST_PITS))]]
    return pits(est, take(judged, some), take(context, some), names, random_state)


def _anomalies(
    est: FlowDensity,
    seen: Any,
    context: Any,
    numbers: Ints,
    log_density: Floats,
    real: pd.DataFrame,
    pictured: tuple[Column, ...],
) -> tuple[Anomaly, ...]:
    least = np.argsort(log_density, kind="stable")[:ANOMALIES]
    percentiles = est.anomaly_score(take(seen, least), context=take(context, least))
    extreme = np.column_stack([_extreme(column)[least] for column in pictured])
    return tuple(
        Anomaly(
            int(numbers[row]),
            float(log_density[row]),
            float(percentile),
            tuple(real[name].iloc[row] for name in real.columns),
            tuple(bool(mark) for mark in marks),
        )
        for row, percentile, marks in zip(least, percentiles, extreme, strict=True)
    )


def _extreme(column: Column) -> NDArray[np.bool_]:
    """Which real values are far out in their column, or have a rare label."""
    values = column.real
    if column.labelled:
        share = np.bincount(values[~np.isnan(values)].astype(int), minlength=1) / len(values)
        return np.array([not np.isnan(v) and share[int(v)] <= EXTREME for v in values])
    order = np.sort(values[~np.isnan(values)])
    most = max(EXTREME * len(order), 1)
    below, above = np.searchsorted(order, values, "right"), len(order) - np.searchsorted(order, values, "left")
    return ~np.isnan(values) & (np.minimum(below, above) <= most)
