"""Time to quality: seconds until ELF reaches the best held-out likelihood that NSF reaches at all.

NSF is one flow on standardised columns, as other libraries train it. ELF is the default of `FlowDensity`, a mixture of
two flows and Gaussians, and for comparison one flow like NSF. All are fitted to the same rows with the same number of
steps, one after the other on one thread. Times are CPU time, which other jobs on the machine hardly change. The rows
that are held out are as many as the test rows of the table, so that the best round is not one of good luck.
"""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from typing import Any

import pandas as pd

from elflow.tabular import FlowDensity
from experiments.data.small_tables import SMALL_TABLES, make_table
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.options import parse_choices, parse_count

__all__ = ["EXPERIMENT"]

TABLES = [
    "factor-0.1",
    "nearly-gaussian-6000",
    "heavy-tails",
    "skewed",
    "clusters",
    "ring",
    "lattice",
    "bounded",
    "categories",
    "nonlinear",
]
N_SEEDS = 3
STEPS_OF_LITTLE_EFFORT = 2_000
"""Number of training steps, times the effort, if the effort is below one."""
MODELS: dict[str, dict[str, Any]] = {
    "nsf": {"flow": "nsf", "members": ["identity"]},
    "elf": {},
    "elf_flow": {"members": ["identity"]},
}
GOAL = 0.5
"""Share of the time of NSF that ELF may take."""


def jobs(plan: Plan) -> list[Job]:
    return [
        Job(f"{name}-{seed}", {"set": name, "seed": seed, "effort": plan.effort})
        for seed in plan.seeds(plan.options.get("seeds", N_SEEDS))
        for name in plan.options.get("sets", TABLES)
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    table = make_table(settings["set"], settings["seed"], settings["effort"])
    steps = None if settings["effort"] >= 1 else max(2, round(STEPS_OF_LITTLE_EFFORT * settings["effort"]))
    rows = pd.concat([table.training, table.test], ignore_index=True)
    shared = {"random_state": settings["seed"], "max_steps": steps, "validation": len(table.test) / len(rows)}
    curves = {}
    for model, options in MODELS.items():
        start = time.process_time()
        density = FlowDensity(**shared, **options).fit(rows)
        # Wall-clock times of the rounds, scaled to the CPU time of the whole fit.
        scale = (time.process_time() - start) / density.training_.seconds
        curves[model] = [[scale * entry["seconds"], entry["validation"]] for entry in density.training_.history]
    best = max(value for _, value in curves["nsf"])
    times = {model: _find_time(curve, best) for model, curve in curves.items()}
    return {"set": settings["set"], **times, "best": best, "curves": curves}


def _find_time(curve: list[list[float]], goal: float) -> float | None:
    """Seconds after which a held-out likelihood is reached; None if it never is."""
    return next((seconds for seconds, value in curve if value >= goal), None)


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows, n_won = [], 0
    names = list(dict.fromkeys(record["set"] for record in records.values()))
    for name in names:
        runs = [record for record in records.values() if record["set"] == name]
        # A run in which ELF does not get there counts as endless.
        ratios = {
            model: statistics.median(math.inf if run[model] is None else run[model] / run["nsf"] for run in runs)
            for model in ("elf", "elf_flow")
        }
        n_won += ratios["elf"] <= GOAL
        times = [", ".join(_format(run[model]) for run in runs) for model in MODELS]
        rows.append([name, *times, *("never" if math.isinf(r) else f"{r:.2f}" for r in ratios.values())])
    text = "ELF reaches the best held-out likelihood of NSF in at most half of the time of NSF on "
    text += f"{n_won} of {len(names)} tables."
    columns = ["table", "NSF, seconds to its best", "ELF", "one ELF flow", "ratio of ELF", "ratio of one ELF flow"]
    return Report(
        text, [Table("Time to quality", columns, rows, "CPU seconds for each seed, and medians of the ratios to NSF.")]
    )


def _format(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.1f}"


EXPERIMENT = Experiment(
    "race",
    "Seconds until ELF is as good as NSF ever is",
    jobs,
    work,
    report,
    options={
        "sets": Option(parse_choices(SMALL_TABLES), f"tables (default: {','.join(TABLES)})"),
        "seeds": Option(parse_count, f"number of seeds (default: {N_SEEDS})"),
    },
    exclusive=True,
)
