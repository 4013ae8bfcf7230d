"""Length of the training: is the default number of steps enough, and how long does it take?

The default fit of 5,000 rows and ten columns should end in about a minute on two cores, within 0.02 nats of a fit with
three times as many steps.
"""

from __future__ import annotations

import time
from pathlib import Path

import pandas as pd
import torch

from elflow.tabular import FlowDensity, default_recipe
from experiments.data.small_tables import make_table
from experiments.data.tables import find_table, load_table
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.measure import sample_mean_and_error
from experiments.framework.options import parse_choices

__all__ = ["EXPERIMENT"]

GENERATED = ["nonlinear", "time-series"]
FROM_FILES = ["magic", "california", "wine"]
MAX_ROWS = 5_000
MULTIPLES = {"default": 1, "longer": 3}
"""Multiples of the default number of steps."""
TOLERANCE = 0.02
"""Nats by which a longer training may be better."""


def jobs(plan: Plan) -> list[Job]:
    names = [*GENERATED, *(name for name in FROM_FILES if find_table(plan, name) is not None)]
    return [
        Job(f"{name}-{model}", {"set": name, "model": model, "seed": plan.seed, "effort": plan.effort})
        for name in plan.options.get("sets", names)
        if name in names
        for model in MULTIPLES
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Fit a table with a multiple of the default number of steps, and score its test rows."""
    training, test = _load(plan, settings)
    rows = round(0.9 * len(training))  # the others are held out for validation
    steps = min(1.0, settings["effort"]) * MULTIPLES[settings["model"]] * default_recipe(rows, 1).max_steps
    start = time.perf_counter()
    density = FlowDensity(random_state=settings["seed"], max_steps=max(2, round(steps))).fit(training)
    seconds = time.perf_counter() - start
    mean, error = sample_mean_and_error(torch.from_numpy(density.score_samples(test)))
    record = {"test": mean, "error": error, "fit_seconds": seconds, "steps": density.training_.steps}
    return record | {"set": settings["set"], "model": settings["model"], "size": list(training.shape)}


def _load(plan: Plan, settings: Record) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training rows, at most 5,000, and test rows."""
    name, seed, effort = settings["set"], settings["seed"], min(1.0, settings["effort"])
    if name in GENERATED:
        table = make_table(name, seed, effort)
        return table.training, table.test
    training, test = load_table(plan, name, seed, MAX_ROWS)
    count = max(60, round(effort * MAX_ROWS))
    return training.sample(min(count, len(training)), random_state=seed).reset_index(drop=True), test[:count]


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    by_set: dict[str, dict[str, Record]] = {}
    for record in records.values():
        by_set.setdefault(record["set"], {})[record["model"]] = record
    rows, failures = [], []
    for name, runs in by_set.items():
        if len(runs) < len(MULTIPLES):
            continue
        default, longer = runs["default"], runs["longer"]
        gain = longer["test"] - default["test"]
        size = "{:,} x {}".format(*default["size"])
        cells = [_format(run) for run in (default, longer)]
        rows.append([name, size, *cells, f"{gain:+.3f}"])
        failures += [f"{name}: {gain:.3f} nats better with three times the steps"] * (gain > TOLERANCE)
    columns = ["table", "rows x columns", "default", "three times the steps", "difference in nats"]
    note = "Mean test log-likelihood in nats, seconds of the fit, and number of steps until it stopped."
    text = f"Three times the steps gain at most {TOLERANCE} nats on {len(rows) - len(failures)} of {len(rows)} tables."
    return Report(text, [Table("Length of the training", columns, rows, note)], failures=failures)


def _format(record: Record) -> str:
    return f"{record['test']:.3f}, {record['fit_seconds']:.0f} s, {record['steps']:,} steps"


EXPERIMENT = Experiment(
    "horizon",
    "Default length of the training beside three times as many steps",
    jobs,
    work,
    report,
    options={"sets": Option(parse_choices([*GENERATED, *FROM_FILES]), "tables (default: all)")},
    exclusive=True,
)
