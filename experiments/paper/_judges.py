"""Verdicts on the paper's claims: functions that judge a claim by the records of its experiment."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from elflow.datasets import toy
from elflow.flows import preset
from experiments.data.images import is_complete
from experiments.framework.experiment import Record
from experiments.framework.measure import fit_line, mean_and_error
from experiments.paper.published import TEXT, TOY_SYSTEMS, find

REPRODUCED, BETTER, WORSE, REFUTED = "reproduced", "better", "worse", "not reproduced"
MIN_FITTED_UNITS = 128
"""Powers of the number of units are fitted from here on, where the highest power dominates."""
Records = Mapping[str, Record]


class Finding(NamedTuple):
    """Our figure, the verdict, and a remark."""

    here: str
    verdict: str
    remark: str = ""


def compare(here: float, paper: float, tolerance: float, higher: bool = True) -> str:
    """The verdict on a figure.

    Arguments:
        here: Our figure.
        paper: The paper's.
        tolerance: The largest difference that counts as reproduced: the rounding of the paper's figure and errors.
        higher: Whether higher figures are better.

    Example:
        >>> compare(-3.52, -3.56, 0.005), compare(1.13, 0.87, 0.005, higher=False), compare(-2.84, -2.8, 0.05)
        ('better', 'worse', 'reproduced')
    """
    if abs(here - paper) <= tolerance:
        return REPRODUCED
    return BETTER if (here > paper) == higher else WORSE


def hold(condition: bool) -> str:
    """The verdict on a statement."""
    return REPRODUCED if condition else REFUTED


# --- networks ---------------------------------------------------------------------------------------------------------


def judge_networks(records: Records) -> Finding:
    rows = [row for row in records["networks"]["rows"] if row["exact"] is not None]  # ELU has no closed form
    below = sum(row["grid"] <= row["exact"] * (1 + 1e-12) for row in rows)
    short = max(1 - row["grid"] / row["exact"] for row in rows)
    return Finding(f"{below} of {len(rows)} networks: a grid is at most {short:.3%} below", hold(below == len(rows)))


def judge_fits(records: Records) -> Finding:
    sizes, times = records["times"]["sizes"], records["times"]["times"]
    units = fit_line([h * h for h in sizes["units"]], times["units"]["paper"])[2]
    networks = fit_line(sizes["batches"], times["batches"]["paper"])[2]
    # Each against the printed figure and its rounding: a fit that is better than printed is reproduced, too.
    verdicts = [hold(units >= TEXT["r2_units"] - 0.0005), hold(networks >= TEXT["r2_networks"] - 0.0005)]
    verdict = f"units {verdicts[0]}; networks {verdicts[1]}"
    return Finding(f"{units:.3f} and {networks:.3f}", verdict, "the same algorithm on a CPU shared with others")


def judge_cost(records: Records) -> Finding:
    sizes, times = records["times"]["sizes"]["units"], records["times"]["times"]["units"]
    large = [k for k, h in enumerate(sizes) if h >= MIN_FITTED_UNITS]
    logs = [math.log(sizes[k]) for k in large]
    power = fit_line(logs, [math.log(times["elflow"][k]) for k in large])[1]
    return Finding(f"H^{power:.2f}", compare(power, 2.0, 0.1, higher=False), "elflow sorts the breakpoints")


def judge_absolute(records: Records) -> Finding:
    def error(name: str) -> float:
        return statistics.fmean(record["error"] for key, record in records.items() if key.startswith(name))

    exact, spectral = error("exact-felu"), min(error(f"spectral-{layers}") for layers in (1, 2, 3))
    here = f"mean squared error {exact:.1e}, spectral norms {spectral:.1e}"
    return Finding(here, hold(exact < spectral / 10))


NORMAL_GAP = 0.5 * math.log(2 * math.pi * math.e / 12)
"""The divergence of a uniform distribution from the best normal one, in nats."""


def judge_relu(name: str, learns: bool) -> Callable[[Records], Finding]:
    def judge(records: Records) -> Finding:
        gap = statistics.fmean(record["gap"] for key, record in records.items() if key.startswith(name))
        closed = round(1 - gap / NORMAL_GAP, 2) + 0.0  # no minus zero
        return Finding(f"{closed:.0%} of the gap closed", hold((closed > 0.5) == learns and (closed < 0.05) != learns))

    return judge


# --- theory -----------------------------------------------------------------------------------------------------------


def judge_convergence(records: Records) -> Finding:
    worst = max(records["convergence"]["ratios"].values())
    return Finding(f"at most {worst:.3f} of the bound", hold(worst <= 1), "in one dimension")


def judge_vectors(records: Records) -> Finding:
    worst = max(records["convergence"]["vectors"].values())
    return Finding(f"{worst:.0e} times the bound", hold(worst <= 1), "the iteration over vectors is no contraction")


def judge_determinants(records: Records) -> Finding:
    one = records["determinants"]
    return Finding(f"{one['low']:.2f} and {one['high']:.2f} of the bounds", hold(max(one["low"], one["high"]) <= 1))


def judge_epsilon(name: str, remark: str = "") -> Callable[[Records], Finding]:
    def judge(records: Records) -> Finding:
        one = records[name]
        holds = one["error"] <= one["epsilon"] and one["constant" if "constant" in one else "steepest"] <= 1 + 1e-9
        return Finding(f"error {one['error']:.3f} for epsilon {one['epsilon']:.3f}", hold(holds), remark)

    return judge


def judge_growth(records: Records) -> Finding:
    one = records["parameters"]
    saved = one["full"][-1] / one["rank"][-1]
    here = f"d^{one['power']:.2f}; `rank=8` saves a factor of {saved:.1f} at d = {one['features'][-1]}"
    return Finding(here, hold(one["power"] > 1.5))


# --- sampling ---------------------------------------------------------------------------------------------------------


def _find_method(records: Records, name: str, method: str) -> Record:
    few: Record = next(each for each in records[name]["methods"] if each["method"] == method)
    return few


def judge_inverse(records: Records) -> Finding:
    exact = [_find_method(records, name, "exact") for name in records]
    residual = max(each["residual"] for each in exact)
    verdict = BETTER if all(each["converged"] for each in exact) else REFUTED
    return Finding(f"closed form, residual {residual:.0e}", verdict, "in float32")


def judge_fixed_point(records: Records) -> Finding:
    fixed = [_find_method(records, name, "fixed-point") for name in records]
    settled = sum(each["converged"] for each in fixed)
    here = f"{settled} of {len(fixed)} flows converge within 1,000 steps per layer"
    return Finding(here, hold(settled == len(fixed)), "at a constant of 0.99")


def judge_speedup(records: Records) -> Finding:
    exact, one = (_find_method(records, "mnist", method) for method in ("exact", "sequential"))
    calls, ratio = sum(exact["calls"]), one["seconds"] / exact["seconds"]
    why = f"MNIST, {exact['samples']} samples on one core, a model {records['mnist']['source']}"
    return Finding(f"{calls} instead of {sum(one['calls']):,}, {ratio:.1f} times", f"not comparable: {why}")


# --- toy distributions ------------------------------------------------------------------------------------------------


def _find_gaps(records: Records, model: str) -> list[Record]:
    return [record for key, record in records.items() if key != "speed" and record["model"] == model]


PEERS = ("realnvp", "naf", "residual", "cpflow")


def judge_toy(name: str, model: str, digits: int, steps: int = 10_000) -> Callable[[Records], Finding | None]:
    table = 1 if name == "eight-gaussians" else 6

    def judge(records: Records) -> Finding | None:
        runs = _find_gaps(records, model)
        if not runs:
            return None
        bound = -float(toy.DISTRIBUTIONS[name]().entropy())
        here, paper = bound - statistics.fmean(run["gap"] for run in runs), find(table, TOY_SYSTEMS[model], name).value
        verdict = compare(here, paper, 0.5 * 10**-digits)
        remark = f"{runs[0]['steps']:,} steps instead of {steps:,}" if runs[0]["steps"] < steps else ""
        if verdict == WORSE and remark:
            verdict, remark = f"not comparable: {remark}", ""
        return Finding(f"{here:.3f}", verdict, remark)

    return judge


def prefer_most_systems(results: Sequence[Records]) -> list[Records]:
    """Results with most of the paper's systems first: models must not be ranked after different numbers of steps."""
    return sorted(results, key=lambda records: -sum(bool(_find_gaps(records, model)) for model in ("elf", *PEERS)))


def fill_in_models(results: Sequence[Records]) -> list[Records]:
    """One result, in which each model has its records of the first result that has any: each system is compared with
    its own figure only."""
    filled: dict[str, Record] = {}
    for records in results:
        known = {record.get("model") for record in filled.values()}
        filled |= {key: record for key, record in records.items() if key != "speed" and record["model"] not in known}
    return [filled]


def judge_peers(name: str, digits: int) -> Callable[[Records], Finding | None]:
    def judge(records: Records) -> Finding | None:
        parts = {m: f for m in PEERS if (f := judge_toy(name, m, digits)(records)) is not None}
        if not parts:
            return None
        here = ", ".join(f"{TOY_SYSTEMS[model]} {finding.here}" for model, finding in parts.items())
        verdicts = [f"{TOY_SYSTEMS[model]} {finding.verdict.split(':')[0]}" for model, finding in parts.items()]
        steps = {m: min(run["steps"] for run in _find_gaps(records, m)) for m in parts}
        short = [f"{TOY_SYSTEMS[model]} {count:,}" for model, count in steps.items() if count < 10_000]
        return Finding(here, "; ".join(verdicts), f"steps instead of 10,000: {', '.join(short)}" if short else "")

    return judge


def judge_rank(name: str) -> Callable[[Records], Finding | None]:
    def judge(records: Records) -> Finding | None:
        models = {record["model"] for key, record in records.items() if key != "speed"}
        gaps = {model: statistics.fmean(run["gap"] for run in _find_gaps(records, model)) for model in models}
        own = {model: gap for model, gap in gaps.items() if model in ("elf", *PEERS)}
        if len(own) < 2 or "elf" not in own:
            return None
        places = [1 + sum(gap < some["elf"] for gap in some.values()) for some in (own, gaps)]
        here = f"place {places[0]} of the paper's {len(own)} systems, {places[1]} of all {len(gaps)}"
        return Finding(here, hold(places[0] == 1), "with our bumps")

    return judge


def judge_speed(name: str) -> Callable[[Records], Finding | None]:
    def judge(records: Records) -> Finding | None:
        step = records.get("speed", {}).get("step", {})
        known = {model: step[model] / step["elf"] for model in PEERS if model in step}
        if not known:
            return None
        slower = all(ratio > 1 for model, ratio in known.items() if model != "realnvp")
        here = ", ".join(f"{TOY_SYSTEMS[model]} {ratio:.1f}" for model, ratio in known.items())
        return Finding(f"times ELF's step: {here}", hold(slower and known.get("realnvp", 0) < 1), "one CPU thread")

    return judge


def print_times(name: str, table: int) -> str:
    ours = find(table, "ELF-AR", name).times
    assert ours is not None
    ratios = []
    for model in PEERS:
        times = find(table, TOY_SYSTEMS[model], name).times
        assert times is not None
        ratios.append(f"{TOY_SYSTEMS[model]} {times[0] / ours[0]:.1f}")
    return f"times ELF's training: {', '.join(ratios)}"


# --- tables and images ------------------------------------------------------------------------------------------------


def judge_patches(records: Records) -> Finding | None:
    one = records.get("bsds300-patches-elf")
    if one is None:
        return None
    verdict = compare(one["test"], find(2, "ELF-AR", "bsds300").value, 2 * one["error"] + 0.09)
    minutes = one["cpu"] / 60
    return Finding(f"{one['test']:.2f}", verdict, f"redrawn patches, {minutes:.0f} minutes of one core")


def judge_table_rank(records: Records) -> Finding | None:
    ours, maf = (records.get(f"bsds300-patches-{model}") for model in ("elf", "maf"))
    if ours is None or maf is None:
        return None
    here = f"{ours['test'] - maf['test']:+.2f} nats on redrawn patches, about equal time"
    return Finding(here, hold(ours["test"] - maf["test"] > 2 * math.hypot(ours["error"], maf["error"])))


def judge_tables(names: Sequence[str]) -> Callable[[Records], Finding | None]:
    def judge(records: Records) -> Finding | None:
        here, verdicts = [], []
        for name in names:
            runs = [r for key, r in records.items() if key.startswith(f"{name}-elf")]
            if not runs:
                continue
            best, paper = max(runs, key=lambda run: float(run["validation"])), find(2, "ELF-AR", name)
            here.append(f"{best['test']:.2f}")
            verdicts.append(f"{name} {compare(best['test'], paper.value, 2 * best['error'] + (paper.error or 0))}")
        return Finding(", ".join(here), "; ".join(verdicts)) if here else None

    return judge


def judge_images(key: str) -> Callable[[Records], Finding | None]:
    def judge(records: Records) -> Finding | None:
        one = records.get(key)
        if one is None:
            return None
        dataset = one["dataset"]
        paper = find(3, "ELF-AR", dataset)
        target = paper.value if one["dequantization"] == "variational" or paper.uniform is None else paper.uniform
        if one["scale"] != "paper" or not is_complete(dataset, one["train_images"], one["all_test_images"]):
            part = "" if is_complete(dataset, one["train_images"], one["all_test_images"]) else ", a part of the data"
            why = f"{one['parameters']:,} parameters, {one['steps']:,} steps{part}"
            return Finding(f"{one['bits']:.3f}", f"not comparable: {why}")
        return Finding(f"{one['bits']:.3f}", compare(one["bits"], target, 2 * one["error"] + 0.005, higher=False))

    return judge


def judge_variational(records: Records) -> Finding | None:
    here, verdicts = [], []
    for name in ("digits", "mnist", "cifar10"):
        pair = [records.get(f"{name}-{kind}") for kind in ("uniform", "variational")]
        if pair[0] is None or pair[1] is None:
            continue
        gain, error = pair[0]["bits"] - pair[1]["bits"], math.hypot(pair[0]["error"], pair[1]["error"])
        here.append(f"{name} {gain:.3f} ± {error:.3f}")
        is_clear = abs(gain) > 2 * error
        verdicts.append(f"{name} {hold(gain > 0) if is_clear else 'not comparable, within two standard errors'}")
    return Finding(", ".join(here), "; ".join(verdicts), "small models, equal steps") if here else None


def judge_glow(records: Records) -> Finding | None:
    ours, glow = records.get("digits-uniform"), records.get("digits-glow")
    if ours is None or glow is None:
        return None
    gain, error = glow["bits"] - ours["bits"], math.hypot(ours["error"], glow["error"])
    return Finding(f"digits: {gain:.3f} ± {error:.3f} bits", hold(gain > 2 * error), "similar parameters, equal steps")


def judge_counts(records: Records) -> Finding:
    """By the presets themselves, which no training changes."""
    widths = [preset(name, "paper").parameters for name in ("mnist-small", "cifar10-small", "cifar10-vardeq-4m")]
    here = ", ".join(f"{count / 1e6:.1f}M" for count in widths)
    return Finding(f"{here} from the printed widths", REFUTED, 'both readings are available: sizes `"gpu"`, `"paper"`')


def judge_small(records: Records) -> Finding | None:
    runs = [r for key, r in records.items() if key.startswith("mnist-")]
    if not runs:
        return None
    best = min(runs, key=lambda run: float(run["bits"]))
    why = f"{best['parameters']:,} parameters, {best['steps']:,} steps"
    if best["scale"] == "paper":
        return Finding(f"{best['bits']:.3f}", compare(best["bits"], 0.92, 2 * best["error"] + 0.005, higher=False), why)
    return Finding(f"{best['bits']:.3f}", f"not comparable: {why}")


def judge_samples(records: Records) -> Finding | None:
    one = records.get("digits")
    if one is None or "recognised" not in one:
        return None
    here = f"{one['recognised']:.0%} of sampled digits are recognised, {one['test_recognised']:.0%} of real ones"
    return Finding(here, "not comparable: the paper shows pictures only")


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
    return Finding(here, "not comparable: modes of width 0.1, small models, the same gap with bumps")


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
