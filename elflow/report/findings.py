"""All numbers of a report, computed once by `measure`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from elflow._checks import check_count
from elflow.report._anomalies import Anomaly, Reason, find_anomalies
from elflow.report._compare import SIGNIFICANCE, Marginal, compare_marginal, select_dependent
from elflow.report._correlations import Correlations, compare_correlations
from elflow.report._groups import Group, compare_groups
from elflow.report._memorization import measure_memorization
from elflow.report._pit import Pit, pits
from elflow.report._scores import Score, compare_with_baselines, make_score, standard_error, subtract_means
from elflow.report._tables import Column, pair_columns, take_rows, to_frame
from elflow.report._tails import Tail, compare_tails
from elflow.report._two_sample import TwoSample, run_two_sample_test
from elflow.tabular import ContextTable, FlowDensity, Memorization, Table, table_kind
from elflow.training import Training

__all__ = [
    "Anomaly",
    "Column",
    "Correlations",
    "Findings",
    "Group",
    "Marginal",
    "Pit",
    "Reason",
    "Score",
    "Tail",
    "TwoSample",
    "measure",
]

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
MAX_COMPARED_ROWS = 4000
MIN_SAMPLES, MAX_SAMPLES = 1000, 10_000
MAX_SAMPLED_NUMBERS = 200_000
"""Limit of samples times features, unless there are fewer samples than compared rows."""
MAX_SAMPLES_PER_ROW = 10
"""Number of samples for each real row in the two-sample test, at most: more hardly increase its power."""
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
    groups: tuple[Group, ...]
    """Columns of numbers within each category of the other columns."""
    tails: tuple[Tail, ...]
    """Both tails of the columns of numbers, overall and given categories."""
    anomalies: tuple[Anomaly, ...]
    """The least likely row first."""
    two_sample: TwoSample | None
    """None if there are too few rows."""
    has_enough_test_rows: bool
    """Whether the classifier and the PIT histograms use test rows only."""
    warnings: tuple[str, ...]
    """Warnings of the fit."""
    memorization: Memorization | None
    """Whether samples are copies of training rows; None if the table has few training rows, or few others."""
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
    memorization = measure_memorization(est, X, context, origins, random_state)
    test, train = _split_rows(origins, max_rows, rng)
    used = np.append(test, train)  # test rows come first, here and in all that is derived from it
    X, context = take_rows(X, used), take_rows(context, used)
    real = to_frame(X, est.schema_)

    log_density = est.score_samples(X, context=context)
    of_test, of_training = log_density[: len(test)], log_density[len(test) :][origins[train] == "training"]
    comparison = compare_with_baselines(est, X, len(test), of_test, random_state)
    of_compared = of_test[comparison.is_compared] if comparison.baselines else of_test

    compared = np.arange(min(len(used), MAX_COMPARED_ROWS))
    has_enough_test_rows = len(test) >= MIN_JUDGED_ROWS
    n_judged = min(len(test) if has_enough_test_rows else len(compared), MAX_JUDGED_ROWS)
    judged, inverted = compared[:n_judged], compared[:MAX_INVERTED_ROWS]
    per_row = _choose_samples_per_row(n_judged, est.schema_.features)
    n_samples = len(compared) if context is not None else max(len(compared), MIN_SAMPLES, per_row * n_judged)
    columns = pair_columns(est.schema_, real, _draw(est, n_samples, take_rows(context, compared), random_state))
    judged_columns = _take_judged(est, real[:n_judged], columns, take_rows(context, judged), per_row, random_state)
    with threadpool_limits(1):  # for trees this small, several threads are slower than one
        two_sample = run_two_sample_test(judged_columns, random_state)
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
        gap=subtract_means(of_training, of_test) if (origins[test] != "training").all() else np.nan,
        gap_error=float(np.hypot(standard_error(of_test), standard_error(of_training))),
        n_impossible=int(np.isneginf(of_test).sum()),
        scores=(make_score("This model", est.flow, of_test, of_test), *comparison.baselines),
        compared=make_score("This model", est.flow, of_compared, of_compared),
        n_compared=int(comparison.is_compared.sum()),
        atomic=comparison.atomic,
        columns=columns,
        n_samples=n_samples,
        marginals=_compare_marginals(columns),
        paired=select_dependent(columns, MAX_PAIRED_COLUMNS),
        pits=_transform_columns(est, columns, take_rows(X, judged), take_rows(context, judged), random_state),
        correlations=compare_correlations(columns[:MAX_CORRELATED_COLUMNS]),
        groups=compare_groups(columns),
        tails=compare_tails(columns),
        anomalies=find_anomalies(est, log_density, used, real, columns, context),
        two_sample=two_sample,
        has_enough_test_rows=has_enough_test_rows,
        warnings=_collect_warnings(est),
        memorization=memorization,
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


def _choose_samples_per_row(n_rows: int, features: int) -> int:
    """Number of samples for each real row of the two-sample test: ten, or as many as keep the time bounded."""
    limit = min(MAX_SAMPLES, MAX_SAMPLED_NUMBERS // features)
    return int(np.clip(limit // max(n_rows, 1), 1, MAX_SAMPLES_PER_ROW))


def _draw(
    est: FlowDensity, count: int, context: ContextTable | None, random_state: int, per_row: int = 1
) -> pd.DataFrame:
    """Draw `count` samples; with a context, `per_row` for each of its rows."""
    if context is None:
        return to_frame(est.sample(count, random_state=random_state), est.schema_)
    return to_frame(est.sample(per_row, context=context, random_state=random_state), est.schema_)


def _compare_marginals(columns: Sequence[Column]) -> tuple[Marginal, ...]:
    """Compare the marginal distributions, at a significance that holds for all columns together."""
    marginals = [compare_marginal(column, SIGNIFICANCE / len(columns)) for column in columns]
    return tuple(sorted(marginals, key=lambda marginal: -marginal.distance))


def _take_judged(
    est: FlowDensity,
    real: pd.DataFrame,
    columns: Sequence[Column],
    context: ContextTable | None,
    per_row: int,
    random_state: int,
) -> list[Column]:
    """Columns of the judged rows and of `per_row` samples for each of them, and the context, which both share."""
    if est.context_schema_ is None:
        n_samples = per_row * len(real)
        return [Column(c.name, c.kind, c.real[: len(real)], c.sampled[:n_samples], c.labels) for c in columns]
    own = pair_columns(est.schema_, real, _draw(est, len(real), context, random_state, per_row))
    shared = to_frame(context, est.context_schema_)
    repeated = shared.iloc[np.repeat(np.arange(len(shared)), per_row)]
    return [*own, *pair_columns(est.context_schema_, shared, repeated)]


def _transform_columns(
    est: FlowDensity, columns: Sequence[Column], X: Table, context: ContextTable | None, random_state: int
) -> tuple[Pit, ...]:
    """Transform columns, numbers and times first, on few enough rows to keep the time bounded."""
    numbers = MAX_PIT_NUMBERS // est.schema_.features
    some = np.arange(min(len(X), int(np.clip(numbers // MAX_PIT_COLUMNS, *PIT_ROWS_RANGE))))
    ordered = sorted(columns, key=lambda column: column.has_labels)
    names = [column.name for column in ordered[: int(np.clip(numbers // len(some), 2, MAX_PIT_COLUMNS))]]
    return pits(est, take_rows(X, some), take_rows(context, some), names, random_state)
