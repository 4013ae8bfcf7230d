"""Verdicts on tables and images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from elflow.flows import preset
from experiments.data.images import is_complete
from experiments.paper.judges.finding import REFUTED, Finding, Records, compare, hold
from experiments.paper.published import find


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


def judge_images(dataset: str) -> Callable[[Records], Finding | None]:
    """Judge the likelihood of a data set: that of the variational model if there is one, with the uniform one beside
    it as in the paper."""

    def judge(records: Records) -> Finding | None:
        uniform, variational = (records.get(f"{dataset}-{kind}") for kind in ("uniform", "variational"))
        one = variational or uniform
        if one is None:
            return None
        here = f"{one['bits']:.3f}"
        if uniform is not None:
            here += " (uniform)" if variational is None else f" ({uniform['bits']:.3f} uniform)"
        paper = find(3, "ELF-AR", dataset)
        target = paper.value if variational is not None or paper.uniform is None else paper.uniform
        complete = is_complete(dataset, one["train_images"], one["all_test_images"])
        if one["scale"] == "paper" and complete:
            return Finding(here, compare(one["bits"], target, 2 * one["error"] + 0.005, higher=False))
        why = f"{one['parameters']:,} parameters, {one['steps']:,} steps in {one['training_seconds'] / 60:.0f} minutes"
        return Finding(here, f"not comparable: {why}{'' if complete else ', a part of the data'}")

    return judge


def judge_variational(records: Records) -> Finding | None:
    here, verdicts = [], []
    for name in ("digits", "mnist", "cifar10"):
        pair = [records.get(f"{name}-{kind}") for kind in ("uniform", "variational")]
        if pair[0] is None or pair[1] is None or pair[0]["steps"] != pair[1]["steps"]:
            continue
        gain, error = pair[0]["bits"] - pair[1]["bits"], math.hypot(pair[0]["error"], pair[1]["error"])
        here.append(f"{name} {gain:.3f} ± {error:.3f}")
        is_clear = abs(gain) > 2 * error
        verdicts.append(f"{name} {hold(gain > 0) if is_clear else 'not comparable, within two standard errors'}")
    return Finding(", ".join(here), "; ".join(verdicts), "small models, equal steps") if here else None


def judge_glow(records: Records) -> Finding | None:
    here, verdicts, kinds = [], [], set()
    for name in ("digits", "mnist", "cifar10"):
        ours, glow = records.get(f"{name}-uniform"), records.get(f"{name}-glow")
        if ours is None or glow is None:
            continue
        gain, error = glow["bits"] - ours["bits"], math.hypot(ours["error"], glow["error"])
        here.append(f"{name}: {gain:.3f} ± {error:.3f} bits")
        verdicts.append(f"{name} {hold(gain > 2 * error)}")
        if ours["steps"] == glow["steps"]:
            kinds.add("equal steps")
        else:
            ratio = ours["training_seconds"] / glow["training_seconds"]
            kinds.add("equal time" if 0.95 < ratio < 1.05 else f"{ratio:.2f} times the time of Glow")
    return Finding(", ".join(here), "; ".join(verdicts), ", ".join(["small models", *sorted(kinds)])) if here else None


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
