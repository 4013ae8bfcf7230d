"""Verdicts on toy distributions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from elflow.datasets import toy
from experiments.framework.experiment import Record
from experiments.paper.judges.finding import WORSE, Finding, Records, compare, hold
from experiments.paper.published import TOY_SYSTEMS, find


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
