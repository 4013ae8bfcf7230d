"""Verdicts on local minima, averaged weights and extrapolation."""

from __future__ import annotations

import math
import statistics

from experiments.framework.measure import mean_and_error
from experiments.paper.judges.finding import REFUTED, REPRODUCED, Finding, Records, hold

BAD_GAP = 0.1
"""Gap to the entropy, in nats, beyond which training has ended in a bad minimum: wide modes have less than 0.01."""


def judge_minima(records: Records) -> Finding | None:
    def gaps(model: str) -> list[float]:
        return [r["gap"] for r in records.values() if (r["task"], r["model"]) == ("tight-modes", model)]

    weights, bumps = gaps("weights"), gaps("bumps")
    if not weights or not bumps:
        return None
    if min(len(weights), len(bumps)) < 2:
        here = f"gap {weights[0]:.3f} with weights, {bumps[0]:.3f} with bumps"
        return Finding(here, "not comparable: one seed, modes of width 0.1")
    (theirs, error), (ours, other) = mean_and_error(weights), mean_and_error(bumps)
    here = f"gap {theirs:.3f} ± {error:.3f} with weights, {ours:.3f} ± {other:.3f} with bumps"
    if theirs - 2 * error <= BAD_GAP:
        return Finding(here, REFUTED, "modes of width 0.1")
    if theirs - ours > 2 * math.hypot(error, other):
        return Finding(here, REPRODUCED, "modes of width 0.1, avoided by bumps")
    # A small model or a short training would leave a gap for both.
    return Finding(here, "not comparable: modes of width 0.1, small models, no significant difference to bumps")


def judge_averaging(records: Records) -> Finding:
    def gap(decay: float, norm: float | None) -> tuple[float, float]:
        runs = [r for r in records.values() if r["check"] == "training" and (r["decay"], r["norm"]) == (decay, norm)]
        return mean_and_error([run["gap"] for run in runs])

    plain, averaged, both = gap(0.0, None), gap(0.999, None), gap(0.999, 1.0)
    here = f"gap {plain[0]:.3f} without, {averaged[0]:.3f} with averaging, {both[0]:.3f} with both"
    gain, error = plain[0] - both[0], math.hypot(plain[1], both[1])
    return Finding(here, hold(gain > 2 * error), "a small model of the checkerboard")


FAR = 6.0
"""Distance in standard deviations at which the extrapolation is judged."""


def judge_simplicity(records: Records) -> Finding:
    def error(model: str) -> float:
        runs = [r for r in records.values() if r["check"] == "extrapolation" and r["model"] == model]
        return statistics.fmean(each["absolute"] for r in runs for each in r["errors"] if each["radius"] == FAR)

    ours, theirs, other = error("bumps"), error("weights"), error("nsf")
    here = f"errors of {ours:.1f} nats with bumps, {theirs:.1f} with weights, {other:.1f} of NSF"
    return Finding(here, hold(min(ours, theirs) > 1), f"a normal distribution at {FAR:g} standard deviations")
