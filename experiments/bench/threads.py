"""Threads of a training step: one, several within each operation, or several for the members of a mixture.

Measured on an idle machine and beside another process. `elflow.training.sharing_threads` follows from the ratios:
operations of small flows gain little from several threads, and lose much if another process uses one of the cores,
since threads that wait for each other spin. Members of a mixture wait for each other only twice in a step.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import elflow
from elflow.flows.mixture import FlowMixture
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import count_parameters, median_times
from experiments.paper.toys import make_step

__all__ = ["EXPERIMENT"]

SIZES: dict[str, dict[str, Any]] = {
    "11 features, few rows": {"features": 11, "transforms": 5, "width": 64, "units": 16, "batch_size": 128},
    "10 features": {"features": 10, "transforms": 5, "width": 128, "units": 16, "batch_size": 256},
    "20 features": {"features": 20, "transforms": 3, "width": 128, "units": 16, "batch_size": 256},
    "63 features": {"features": 63, "transforms": 3, "width": 128, "units": 16, "batch_size": 256},
    "63 features, many rows": {"features": 63, "transforms": 3, "width": 256, "units": 8, "batch_size": 512},
}
"""Default flows of `FlowDensity` for tables of several sizes."""
N_MEMBERS = 3
"""Number of flows of the default mixture of 1,000 to 20,000 rows."""
LOADS = {"idle": "idle", "busy": "beside a process that uses one core"}
WAYS = {"operations": "threads within operations", "members": "threads for members"}
SECONDS = 12.0


def jobs(plan: Plan) -> list[Job]:
    same = {"seconds": plan.seconds(SECONDS), "seed": plan.seed}
    return [
        Job(f"{name.replace(' ', '-').replace(',', '')}-{load}", {"name": name, "load": load, "sizes": sizes, **same})
        for name, sizes in SIZES.items()
        for load in LOADS
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    sizes, n_threads = settings["sizes"], os.cpu_count() or 1
    options = {"transforms": sizes["transforms"], "units": sizes["units"], "hidden_features": (sizes["width"],) * 2}
    flows = [elflow.ELF(sizes["features"], **options) for _ in range(N_MEMBERS)]
    mixture = FlowMixture(flows)
    step = make_step(mixture, torch.randn(sizes["batch_size"], sizes["features"]))
    before = torch.get_num_threads()

    def step_with(in_operations: int, for_members: int) -> None:
        torch.set_num_threads(in_operations)
        mixture.train_in_threads(for_members)
        step()

    with _keeping_busy(settings["load"] == "busy"):
        functions = {
            "one": lambda: step_with(1, 1),
            "operations": lambda: step_with(n_threads, 1),
            "members": lambda: step_with(1, n_threads),
        }
        times = median_times(functions, settings["seconds"])
    torch.set_num_threads(before)
    work = sizes["batch_size"] * count_parameters(flows[0])
    return {"name": settings["name"], "load": settings["load"], "work": work, "threads": n_threads, "times": times}


@contextmanager
def _keeping_busy(is_busy: bool) -> Iterator[None]:
    """Keep one core busy with another process."""
    if not is_busy:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _spin() -> None:
    while True:
        pass


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows = []
    for record in records.values():
        times = record["times"]
        ratios = [f"{times['one'] / times[name]:.2f}" for name in WAYS]
        cells = [f"{record['work'] / 1e6:.0f} million", LOADS[record["load"]], f"{1e3 * times['one']:.1f}"]
        rows.append([record["name"], *cells, *ratios])
    n_threads = next(iter(records.values()))["threads"]
    parts = [_summarize(load, way, list(records.values())) for way in WAYS for load in LOADS]
    text = f"Speed-ups of {n_threads} threads over one: {'; '.join(parts)}."
    columns = ["flows", "batch size x parameters", "machine", "one thread, ms", *WAYS.values()]
    note = f"Training steps of {N_MEMBERS} flows, and speed-ups of {n_threads} threads; medians, interleaved."
    return Report(text, [Table("Threads of a training", columns, rows, note)])


def _summarize(load: str, way: str, records: list[Record]) -> str:
    """The range of the speed-ups of one way to use threads."""
    ratios = [each["times"]["one"] / each["times"][way] for each in records if each["load"] == load]
    return f"{WAYS[way]}, {LOADS[load]}, {min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""


EXPERIMENT = Experiment("threads", "Threads of a training", jobs, work, report, exclusive=True)
