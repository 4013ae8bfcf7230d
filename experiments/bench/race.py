"""Time to quality: seconds until ELF reaches the best held-out likelihood that NSF reaches at all.

Both flows are fitted with default settings to the same rows, one after the other on one thread.
"""

from __future__ import annotations

import statistics
from pathlib import Path

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
    curves = {}
    for flow in ("nsf", "elf"):
        density = FlowDensity(flow=flow, random_state=settings["seed"], max_steps=steps).fit(table.training)
        curves[flow] = [[entry["seconds"], entry["validation"]] for entry in density.training_.history]
    best = max(value for _, value in curves["nsf"])
    nsf = next(seconds for seconds, value in curves["nsf"] if value >= best)
    elf = next((seconds for seconds, value in curves["elf"] if value >= best), None)
    return {"set": settings["set"], "nsf": nsf, "elf": elf, "best": best, "curves": curves}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows, n_won = [], 0
    names = list(dict.fromkeys(record["set"] for record in records.values()))
    for name in names:
        runs = [record for record in records.values() if record["set"] == name]
        # A run in which ELF does not get there counts as endless.
        ratio = statistics.median(float("inf") if run["elf"] is None else run["elf"] / run["nsf"] for run in runs)
        n_won += ratio <= GOAL
        times = [", ".join(_format(run[key]) for run in runs) for key in ("nsf", "elf")]
        rows.append([name, *times, "never" if ratio == float("inf") else f"{ratio:.2f}"])
    text = "ELF reaches the best held-out likelihood of NSF in at most half of the time of NSF on "
    text += f"{n_won} of {len(names)} tables."
    columns = ["table", "NSF, seconds to its best", "ELF, seconds to the same", "median ratio"]
    return Report(text, [Table("Time to quality", columns, rows, "One number for each seed.")])


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
