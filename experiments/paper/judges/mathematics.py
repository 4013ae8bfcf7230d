"""Verdicts on networks, proofs and sampling."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from experiments.framework.experiment import Record
from experiments.framework.measure import fit_line
from experiments.paper.judges.finding import BETTER, REFUTED, Finding, Records, compare, hold
from experiments.paper.published import TEXT

MIN_FITTED_UNITS = 128
"""Powers of the number of units are fitted from here on, where the highest power dominates."""


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
