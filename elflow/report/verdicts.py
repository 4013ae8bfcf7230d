"""Verdicts: the most important numbers of a report, rated and put into words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from elflow.report._format import MINUS, format_count, format_error, format_number, to_printable
from elflow.report._groups import AND
from elflow.report._pit import Pit
from elflow.report.findings import Findings

__all__ = ["LEVELS", "RESIDUAL_LIMITS", "Verdict", "auc_limits", "judge"]

Level = Literal["good", "fair", "poor", ""]
LEVELS = {"good": "Good", "fair": "Fair", "poor": "Poor", "": "Not rated"}
"""The levels in words."""

AUC_LIMITS = (0.55, 0.7)
"""Upper limits of good and of fair, here and below: for the AUC of the two-sample test, at least. See `auc_limits`."""
MAX_AUC_ERROR = 0.05
"""Standard error of the AUC above which an AUC that may be 0.5 is not rated."""
RESIDUAL_LIMITS = (1e-3, 1e-1)
"""For the inverse residual."""
MARGINAL_LIMITS = (0.03, 0.1)
"""For the distance between the real and the sampled distribution of a column, if chance does not explain it."""
CORRELATION_LIMITS = (0.05, 0.15)
"""For the difference between a real and a sampled rank correlation, if chance does not explain it."""
GROUP_LIMITS = (0.1, 0.25)
"""For the distance between real and sampled values of a column within a category, if chance does not explain it."""
GROUP_SIGNIFICANCE = 0.01
"""p-value, for all categories and columns together, up to which sampled values differ from real ones."""
TAIL_LIMITS = (1.5, 3.0)
"""For the ratio of the shares of sampled and of real values in a tail, or its inverse, if it is not due to chance."""
TAIL_SIGNIFICANCE = 0.01
"""p-value, for all tails together, up to which sampled values are in a tail too often, or too rarely."""
PIT_LIMITS = (0.0, 0.15)
"""For the distance of PIT values from a uniform distribution, if chance does not explain it."""
PIT_SIGNIFICANCE = 0.01
"""p-value, for all columns together, up to which PIT values are not uniform."""
GAP_LIMITS = (0.05, 0.2)
"""For the gap between training and validation rows, in nats per column."""
SHIFT_LIMITS = (0.05, 0.25)
"""For the loss of a new table against the validation rows of training, in nats per column."""
MIN_TEST_ROWS = 20
"""Number of test rows below which log-likelihoods are not rated."""


@dataclass(frozen=True)
class Verdict:
    """One number of a report with its rating.

    Example:
        >>> Verdict("Two-sample test", "0.55", "AUC", "good", "Hard to distinguish.").level
        'good'
    """

    title: str
    value: str
    unit: str
    level: Level
    """Good, fair or poor; empty if the number cannot be rated."""
    reading: str
    """The meaning of the number, in one or two sentences."""


def judge(found: Findings) -> tuple[Verdict, ...]:
    """Rate log-likelihood, gain over baselines, the worst column, pair, group and tail, calibration, samples,
    memorization, inverse.

    Memorization is rated only if the table has training rows and others.

    Example:
        >>> import numpy
        >>> from elflow.report.findings import measure
        >>> from elflow.tabular import FlowDensity
        >>> table = numpy.random.default_rng(0).normal(size=(100, 1))
        >>> found = measure(FlowDensity(max_steps=20, random_state=0).fit(table), table)
        >>> [verdict.title for verdict in judge(found)][:3]
        ['Held-out log-likelihood', 'Gain over the best baseline', 'Worst column']
        >>> [verdict.title for verdict in judge(found)][3:]
        ['Worst pair', 'Worst group', 'Worst tail', 'Calibration', 'Two-sample test', 'Inverse residual']
    """
    return (
        _judge_likelihood(found),
        _judge_gain(found),
        _judge_marginals(found),
        _judge_correlations(found),
        _judge_groups(found),
        _judge_tails(found),
        _judge_calibration(found),
        _judge_samples(found),
        *_judge_memorization(found),
        _judge_inverse(found),
    )


def auc_limits(error: float) -> tuple[float, float]:
    """Upper limits of a good and of a fair AUC: those of many rows, or 0.5 plus two standard errors if that is more.

    Example:
        >>> auc_limits(0.01), auc_limits(0.04)
        ((0.55, 0.7), (0.58, 0.7))
    """
    first, second = (max(limit, 0.5 + 2 * error) for limit in AUC_LIMITS)
    return round(first, 3), round(second, 3)


def _rate(value: float, limits: tuple[float, float], scale: float = 1.0) -> Literal["good", "fair", "poor"]:
    return "good" if value <= scale * limits[0] else "fair" if value <= scale * limits[1] else "poor"


def _judge_likelihood(found: Findings) -> Verdict:
    score = found.scores[0]
    level, reading = _judge_gap(found) if found.n_training_rows else _judge_shift(found)
    if not found.is_held_out:
        known = "was trained on all rows" if found.n_training_rows else "may have been trained on the rows"
        level, reading = "", f"The model {known} of this table: nothing follows about other rows."
    elif found.n_test < MIN_TEST_ROWS:
        level, reading = "", _describe_few_rows(found)
    if found.n_impossible:
        level = "poor"
        verb = "lies" if found.n_impossible == 1 else "lie"
        reading = (
            f"{format_count(found.n_impossible, 'held-out row')} {verb} outside the bounds of the columns, where the "
            "density is zero."
        )
    title = "Held-out log-likelihood" if found.is_held_out else "Log-likelihood, not held out"
    return Verdict(title, format_number(score.mean, score.error), "nats per row", level, reading)


def _judge_gap(found: Findings) -> tuple[Level, str]:
    gap, slack = found.gap, 2 * found.gap_error
    if not math.isfinite(gap):
        return "", "Some rows have a density of zero."
    is_chance = gap <= (slack if math.isfinite(slack) else 0)
    level = "good" if is_chance else _rate(gap, GAP_LIMITS, len(found.kinds))
    comparison = f"Training rows score {format_number(abs(gap))} nats {'higher' if gap > 0 else 'lower'}"
    return level, {
        "good": f"{comparison}: no sign of overfitting.",
        "fair": f"{comparison}: slight overfitting. Rely on the held-out value.",
        "poor": f"{comparison}: the model overfits. Rely on the held-out value; more rows would help.",
    }[level]


def _judge_shift(found: Findings) -> tuple[Level, str]:
    history = [entry["validation"] for entry in found.training.history if math.isfinite(entry["validation"])]
    score = found.scores[0]
    if not history or not math.isfinite(score.mean):
        return "", "The score cannot be compared with that of the training data."
    drop = max(history) - score.mean
    slack = 3 * score.error if math.isfinite(score.error) else 0.0
    level = "good" if drop <= slack else _rate(drop, SHIFT_LIMITS, len(found.kinds))
    comparison = f"{format_number(abs(drop))} nats {'below' if drop > 0 else 'above'} the validation rows of training"
    return level, {
        "good": f"{comparison}: this table resembles the training data.",
        "fair": f"{comparison}: this table differs slightly from the training data.",
        "poor": f"{comparison}: this table differs from the training data.",
    }[level]


def _describe_few_rows(found: Findings) -> str:
    return f"Only {format_count(found.n_test, 'held-out row')}: too few for a conclusion."


def _judge_gain(found: Findings) -> Verdict:
    title, best = "Gain over the best baseline", found.best_baseline
    if best is None:
        reading = "Not compared: nearly all rows have values that are too frequent for a density."
        return Verdict(title, "none", "nats per row", "", reading)
    name = f"{best.name[0].lower()}{best.name[1:]}".replace("gaussian", "Gaussian")
    slack = 2 * best.gain_error if math.isfinite(best.gain_error) else 0.0
    level: Level
    if found.n_compared < MIN_TEST_ROWS:
        level, reading = "", f"Only {format_count(found.n_compared, 'row')} to compare: too few for a conclusion."
    elif math.isnan(best.gain):
        level, reading = "", "Undefined, because some rows have a density of zero."
    elif best.gain > slack:
        level, reading = "good", f"This model is better than the best baseline, a {name}."
    elif best.gain >= -slack:
        level, reading = "fair", f"This model is within two standard errors of the best baseline, a {name}."
    else:
        level, reading = "poor", f"This model is worse than a {name}: train longer, or use the {name} instead."
    if found.n_compared < found.n_test:
        reading += f" Compared on {found.n_compared:,} of {found.n_test:,} rows: see below."
    value = format_number(best.gain, best.gain_error, signed=True)
    return Verdict(title, value, "nats per row; above 0 this model is better", level, reading)


def _judge_marginals(found: Findings) -> Verdict:
    worst = next((one for one in found.marginals if one.distance > one.limit), found.marginals[0])
    is_chance = worst.distance <= worst.limit
    level = "good" if is_chance else _rate(worst.distance, MARGINAL_LIMITS)
    name = to_printable(worst.name)
    reading = {
        "good": f"{name}: sampled values are distributed like real ones, up to {worst.distance:.1%}.",
        "fair": f"{name}: the distribution of sampled values differs somewhat from that of real ones.",
        "poor": f"{name}: the distribution of sampled values differs from that of real ones.",
    }[level]
    if is_chance:
        reading = f"{name}: a difference of up to {worst.limit:.1%} may be chance."
    return Verdict("Worst column", f"{worst.distance:.1%}", "difference of real and sampled values", level, reading)


def _judge_correlations(found: Findings) -> Verdict:
    title, unit, worst = "Worst pair", "difference of rank correlations", found.correlations.worst
    if worst is None:
        return Verdict(title, "none", unit, "", "One column alone has no correlations.")
    names = " and ".join(to_printable(name) for name in worst.names)
    value = format_number(worst.difference, signed=True)
    if worst.is_chance:
        reading = f"{names}: a difference of up to {worst.limit:.2f} may be chance."
        return Verdict(title, value, unit, "good", reading)
    level = _rate(abs(worst.difference), CORRELATION_LIMITS)
    values = f"{format_number(worst.real)} in real rows and {format_number(worst.sampled)} in sampled rows"
    reading = {
        "good": f"{names}: {values}, a small difference.",
        "fair": f"{names}: {values}. Samples reproduce this dependence only roughly.",
        "poor": f"{names}: {values}. Samples do not reproduce this dependence.",
    }[level]
    return Verdict(title, value, unit, level, reading)


def _judge_groups(found: Findings) -> Verdict:
    title, unit = "Worst group", "difference of real and sampled values in a category"
    if not found.groups:
        return Verdict(title, "none", unit, "", "No category has enough rows and another column beside it.")
    significant = [group for group in found.groups if group.p_value * len(found.groups) < GROUP_SIGNIFICANCE]
    is_chance = not significant
    worst = max(significant or found.groups, key=lambda group: (-group.p_value if is_chance else 0, group.distance))
    level = "good" if is_chance else _rate(worst.distance, GROUP_LIMITS)
    verb = "are" if AND in worst.given else "is"
    name = f"{to_printable(worst.name)} where {to_printable(worst.given)} {verb} {to_printable(worst.label)}"
    reading = {
        "good": f"{name}: a small difference.",
        "fair": f"{name}: samples reproduce the values of this group only roughly.",
        "poor": f"{name}: samples do not reproduce the values of this group; do not rely on answers about it.",
    }[level]
    if is_chance:
        reading = f"{name}: chance explains it; the group has {worst.n_real:,} values."
    return Verdict(title, f"{worst.distance:.0%}", unit, level, reading)


def _judge_tails(found: Findings) -> Verdict:
    title, unit = "Worst tail", "times as many sampled as real values"
    if not found.tails:
        return Verdict(title, "none", unit, "", "No column of numbers has enough rows.")
    worst = min(found.tails, key=lambda tail: (tail.p_value, tail.name))
    value, factor = f"{worst.ratio:.2g}", max(worst.ratio, 1 / worst.ratio)
    name = to_printable(worst.name) + (f" given {to_printable(worst.given)}" if worst.given else "")
    if worst.p_value * len(found.tails) >= TAIL_SIGNIFICANCE:
        reading = f"{name}: {format_count(worst.n_real, 'real value')} in a tail of 2%. The difference may be chance."
        return Verdict(title, value, unit, "good", reading)
    level = _rate(factor, TAIL_LIMITS)
    side, often = "highest" if worst.is_upper else "lowest", "often" if worst.ratio > 1 else "rarely"
    reading = f"{name}: sampled values are {factor:.2g} times as {often} among the {side} 2% as real ones."
    return Verdict(title, value, unit, level, reading)


def _judge_calibration(found: Findings) -> Verdict:
    title, unit = "Calibration", "largest deviation of PIT values"
    if not found.pits:
        return Verdict(title, "none", unit, "", "No column has values to transform.")
    worst = min(found.pits, key=lambda pit: (pit.p_value, -pit.distance))
    value, name = f"{worst.distance:.1%}", to_printable(worst.name)
    if worst.p_value * len(found.pits) >= PIT_SIGNIFICANCE:
        reading = (
            f"Conditional distributions agree with {format_count(len(worst.values), 'row')}: deviations may be chance."
        )
        return Verdict(title, value, unit, "good", reading + _describe_training_rows(found))
    level = _rate(worst.distance, PIT_LIMITS)
    reading = f"{name}: its conditional distributions are {_describe_pit(worst)}."
    return Verdict(title, value, unit, level, reading + _describe_training_rows(found))


def _describe_training_rows(found: Findings) -> str:
    """Sentence to add if rows other than test rows were used too; empty otherwise."""
    if found.has_enough_test_rows or not found.n_training_rows:
        return ""
    return " These include training rows, as there are few others."


def _describe_pit(pit: Pit) -> str:
    """Describe in which respect PIT values differ most from a uniform distribution, in standard errors."""
    count = len(pit.values)
    shift = (pit.values.mean() - 1 / 2) / math.sqrt(1 / 12 / count)
    spread = (pit.values.var() - 1 / 12) / math.sqrt(1 / 180 / count)
    if max(abs(shift), abs(spread)) < 3:
        return "of the wrong shape"
    if abs(shift) > abs(spread):
        return "too low" if shift > 0 else "too high"
    return "too narrow" if spread > 0 else "too wide"


def _judge_samples(found: Findings) -> Verdict:
    title, test = "Two-sample test", found.two_sample
    if test is None:
        return Verdict(title, "none", "AUC", "", "Too few rows to train a classifier.")
    value, unit, limits = format_number(test.auc, test.error), "AUC; 0.5 is ideal", auc_limits(test.error)
    if test.error > MAX_AUC_ERROR and test.auc <= limits[0]:
        reading = f"Only {format_count(test.n_rows, 'row')}: an AUC below {limits[0]:.2f} may be chance."
        return Verdict(title, value, unit, "", reading)
    level = _rate(test.auc, limits)
    by = f", mainly by {to_printable(test.top_columns[0][0])}" if test.top_columns else ""
    rows = f"{test.n_sampled:,} sampled from {format_count(test.n_rows, 'real row')}"
    reading = {
        "good": f"A classifier can hardly distinguish {rows}.",
        "fair": f"A classifier distinguishes some sampled rows from real rows{by}.",
        "poor": f"A classifier distinguishes sampled rows from real rows{by}.",
    }[level]
    return Verdict(title, value, unit, level, reading + _describe_training_rows(found))


def _judge_memorization(found: Findings) -> tuple[Verdict, ...]:
    """Rate the share of memorized samples; nothing if the table has few training rows, or few others."""
    result = found.memorization
    if result is None:
        return ()
    level: Level = {"none": "good", "slight": "fair", "strong": "poor", "unknown": ""}[result.verdict]  # type: ignore[assignment]
    reading = {
        "none": "Samples are no closer to training rows than chance explains.",
        "slight": "Some samples are closer to training rows than chance explains.",
        "strong": "Samples are closer to training rows than chance explains: the model memorizes.",
        "unknown": f"Only {format_count(result.n_holdout, 'held-out row')}: too few for a conclusion.",
    }[result.verdict]
    value = f"{100 * result.memorized:.1f}% ± {100 * result.memorized_error:.1f}%".replace("-", MINUS)
    return (Verdict("Memorization", value, "share of samples, estimated", level, reading),)


def _judge_inverse(found: Findings) -> Verdict:
    residual = found.inverse_residual
    level = _rate(residual, RESIDUAL_LIMITS) if math.isfinite(residual) else "poor"
    reading = {
        "good": "Sampling inverts the flow up to rounding errors.",
        "fair": "Sampling inverts the flow with small errors.",
        "poor": "The inverse did not converge for some rows: samples may be wrong.",
    }[level]
    return Verdict("Inverse residual", format_error(residual), "maximum relative error", level, reading)
