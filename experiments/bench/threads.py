"""Threads of a training: steps on one thread and on all, on an idle machine and beside another process.

`elflow.training.limiting_threads` follows from these ratios: small flows gain little from several threads, and lose
much if another process uses one of the cores, since threads that wait for each other spin.
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
LOADS = {"idle": "on an idle machine", "busy": "beside a process that uses one core"}
SECONDS = 8.0


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
    flow = elflow.ELF(
        sizes["features"], transforms=sizes["transforms"], units=sizes["units"], hidden_features=(sizes["width"],) * 2
    )
    step = make_step(flow, torch.randn(sizes["batch_size"], sizes["features"]))
    before = torch.get_num_threads()

    def step_with(threads: int) -> None:
        torch.set_num_threads(threads)
        step()

    with _keeping_busy(settings["load"] == "busy"):
        functions = {"one": lambda: step_with(1), "all": lambda: step_with(n_threads)}
        times = median_times(functions, settings["seconds"])
    torch.set_num_threads(before)
    work = sizes["batch_size"] * count_parameters(flow)
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
    for name in dict.fromkeys(record["name"] for record in records.values()):
        by_load = {record["load"]: record for record in records.values() if record["name"] == name}
        some = next(iter(by_load.values()))
        cells = [_format(by_load.get(load)) for load in LOADS]
        rows.append([name, f"{some['work'] / 1e6:.0f} million", *cells])
    threads = next(iter(records.values()))["threads"]
    columns = ["flow", "batch size x parameters", *LOADS.values()]
    note = f"Milliseconds of a training step on one thread and on {threads}, and their ratio; medians, interleaved."
    parts = [_summarize(load, [record for record in records.values() if record["load"] == load]) for load in LOADS]
    text = f"Training steps on {threads} threads are " + ", and ".join(part for part in parts if part) + "."
    return Report(text, [Table("Threads of a training", columns, rows, note)])


def _summarize(load: str, records: list[Record]) -> str:
    """The range of the ratios to one thread."""
    if not records:
        return ""
    ratios = [record["times"]["one"] / record["times"]["all"] for record in records]
    return f"{min(ratios):.2f} to {max(ratios):.2f} times as fast as on one {LOADS[load]}"


def _format(record: Record | None) -> str:
    if record is None:
        return ""
    one, every = record["times"]["one"], record["times"]["all"]
    return f"{1e3 * one:.1f}, {1e3 * every:.1f}: {one / every:.2f}"


EXPERIMENT = Experiment("threads", "Threads of a training", jobs, work, report, exclusive=True)
