"""What the most important numbers mean, in words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from elflow.report._measure import Findings
from elflow.report._tables import MINUS

__all__ = ["AUC_LIMITS", "RESIDUAL_LIMITS", "Verdict", "decimals", "tiny", "verdicts"]

AUC_LIMITS = (0.6, 0.75)
RESIDUAL_LIMITS = (1e-3, 1e-1)
"""Up to the first is good, up to the second fair."""
OVERFITTED = (0.05, 0.2)
"""The same for the gap between training and held-out rows, in nats for each column."""
STRANGE = (0.05, 0.25)
"""The same for how much less likely a new table is than the rows that were held out when the model was fitted."""


FEW = 20
"""Held-out rows, below which likelihoods say little."""


@dataclass(frozen=True)
class Verdict:
    """One number with its reading. The level is good, fair, look, or empty where nothing can be said."""

    title: str
    value: str
    unit: str
    level: str
    reading: str


def verdicts(found: Findings) -> tuple[Verdict, ...]:
    """On likelihood, baselines, samples and the inverse."""
    return (_likelihood(found), _gain(found), _samples(found), _inverse(found))


def decimals(value: float, error: float = math.nan, signed: bool = False) -> str:
    """A number, with its standard error where there is one; two digits of the error count."""
    if not math.isfinite(value):
        return "undefined" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    places = 2
    if math.isfinite(error) and error > 0:
        places = min(max(1 - math.floor(math.log10(error)), 0), 4)
    value = round(value, places) or 0.0  # never -0.00
    text = f"{value:{'+' if signed and value else ''},.{places}f}".replace("-", MINUS)
    return f"{text} ± {error:,.{places}f}" if math.isfinite(error) else text


def tiny(value: float) -> str:
    """A number that is mostly its exponent."""
    return re.sub(r"e([+-])0", r"e\1", f"{value:.1e}")


def _level(value: float, limits: tuple[float, float]) -> str:
    return "good" if value <= limits[0] else "fair" if value <= limits[1] else "look"


def _likelihood(found: Findings) -> Verdict:
    ours = found.scores[0]
    level, reading = _generalisation(found) if found.held_out else _strangeness(found)
    if found.n_test < FEW:
        level, reading = "", _few(found)
    if found.impossible:
        level = "look"
        rows = "row lies" if found.impossible == 1 else "rows lie"
        reading = (
            f"{found.impossible} held-out {rows} outside the bounds of the columns: the model calls this impossible."
        )
    return Verdict("Held-out log-likelihood", decimals(ours.mean, ours.error), "nats per row", level, reading)


def _generalisation(found: Findings) -> tuple[str, str]:
    gap, slack = found.gap, 2 * found.gap_error
    if not math.isfinite(gap):
        return "", "Some rows have a density of zero."
    limits = tuple(limit * len(found.kinds) for limit in OVERFITTED)
    level = "good" if gap <= (slack if math.isfinite(slack) else 0) else _level(gap, (limits[0], limits[1]))
    size = f"Training rows score {decimals(abs(gap))} nats {'higher' if gap > 0 else 'lower'}"
    return level, {
        "good": f"{size}: no sign that the model learnt them by heart.",
        "fair": f"{size}: the model knows them a little too well. Trust the held-out number.",
        "look": f"{size}: the model has learnt part of them by heart. Trust the held-out number; more rows would help.",
    }[level]


def _strangeness(found: Findings) -> tuple[str, str]:
    values = [entry["validation"] for entry in found.history if math.isfinite(entry["validation"])]
    ours = found.scores[0]
    if not values or not math.isfinite(ours.mean):
        return "", "How far this table is from the one that the model was fitted to is not known."
    drop = max(values) - ours.mean
    limits = tuple(limit * len(found.kinds) for limit in STRANGE)
    slack = 3 * ours.error if math.isfinite(ours.error) else 0.0
    level = "good" if drop <= slack else _level(drop, (limits[0], limits[1]))
    size = f"{decimals(abs(drop))} nats {'below' if drop > 0 else 'above'} the rows held out in training"
    return level, {
        "good": f"{size}: this table looks like the one that the model was fitted to.",
        "fair": f"{size}: this table differs a little from the one that the model was fitted to.",
        "look": f"{size}: this table is unlike the one that the model was fitted to.",
    }[level]


def _few(found: Findings) -> str:
    return f"Only {found.n_test} row{'' if found.n_test == 1 else 's'} to judge by: little can be said."


def _gain(found: Findings) -> Verdict:
    best = found.best_baseline
    slack = 2 * best.gain_error if math.isfinite(best.gain_error) else 0.0
    if found.n_test < FEW:
        level, reading = "", _few(found)
    elif math.isnan(best.gain):
        level, reading = "", "Cannot be told: some rows have a density of zero."
    elif best.gain > slack:
        level, reading = "good", f"Better than the best of the classics here, {_named(best.name)}."
    elif best.gain >= -slack:
        level, reading = "fair", f"No different from {_named(best.name)}, within two standard errors."
    else:
        level, reading = "look", f"{_named(best.name, 'A')} does better: train longer, or take that instead."
    return Verdict(
        "Gain over the best baseline", decimals(best.gain, best.gain_error, signed=True), "nats per row", level, reading
    )


def _named(baseline: str, article: str = "a") -> str:
    return f"{article} {baseline[0].lower()}{baseline[1:]}".replace("gaussian", "Gaussian")


def _samples(found: Findings) -> Verdict:
    title = "Two-sample test"
    test = found.two_sample
    if test is None:
        return Verdict(title, "none", "AUC", "", "Too few rows to train a classifier on.")
    level = _level(test.auc - 2 * test.error, AUC_LIMITS)
    by = f", mostly by {test.telling[0][0]}" if test.telling else ""
    reading = {
        "good": "A classifier can hardly tell samples from real rows.",
        "fair": f"A classifier tells some samples from real rows{by}.",
        "look": f"A classifier tells samples from real rows{by}.",
    }[level]
    return Verdict(title, decimals(test.auc, test.error), "AUC; 0.5 is perfect", level, reading)


def _inverse(found: Findings) -> Verdict:
    residual = found.inverse_residual
    level = _level(residual, RESIDUAL_LIMITS) if math.isfinite(residual) else "look"
    reading = {
        "good": "Samples are exact: mapped back, they meet the numbers that they were drawn from.",
        "fair": "Samples are a little off the numbers that they were drawn from.",
        "look": "The inverse did not converge for some rows: samples may be wrong.",
    }[level]
    return Verdict("Inverse residual", tiny(residual), "at most", level, reading)
