"""Speed of ELF beside zuko's neural spline flow on both toy distributions: training, log-density, sampling."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import zuko
from torch import nn

import elflow
from elflow.datasets import toy
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import count_parameters, median_times
from experiments.paper.toys import SETTINGS, make_step

__all__ = ["EXPERIMENT"]

NSF = {
    "eight-gaussians": {"transforms": 1, "hidden_features": (272,) * 4},
    "checkerboard": {"transforms": 5, "hidden_features": (176,) * 4},
}
"""Hidden layers that give NSF about as many parameters as ELF has; eight bins, its default."""
SECONDS = 30.0
WARM_UP_STEPS = 200


def jobs(plan: Plan) -> list[Job]:
    settings = {"seconds": plan.seconds(SECONDS), "warm_up": plan.scaled(WARM_UP_STEPS), "seed": plan.seed}
    return [Job(name, {"toy": name, **settings}) for name in NSF]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    name = settings["toy"]
    distribution = toy.DISTRIBUTIONS[name]()
    flows = {"elf": elflow.ELF(2, **SETTINGS[name].flow, scale=False), "nsf": zuko.flows.NSF(2, **NSF[name])}
    batch, many = distribution.sample((128,)), distribution.sample((10_000,))
    for flow in flows.values():
        step = make_step(flow, batch, 1e-4)
        for _ in range(settings["warm_up"]):  # away from the initial weights
            step()
    tasks: dict[str, Callable[[nn.Module], Callable[[], object]]] = {
        "training step, batch 128": lambda flow: make_step(flow, batch, 1e-4),
        "log_prob of 10,000 points": lambda flow: torch.no_grad()(lambda: flow().log_prob(many)),
        "1,000 samples": lambda flow: torch.no_grad()(lambda: flow().sample((1000,))),
    }
    times = {
        task: median_times({key: function(flow) for key, flow in flows.items()}, settings["seconds"])
        for task, function in tasks.items()
    }
    return {"parameters": {key: count_parameters(flow) for key, flow in flows.items()}, "times": times}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    tables, ratios = [], []
    for name, record in records.items():
        rows = []
        for task, times in record["times"].items():
            ratio = times["nsf"] / times["elf"]
            ratios.append(ratio)
            rows.append([task, f"{1e3 * times['elf']:.2f}", f"{1e3 * times['nsf']:.2f}", f"{ratio:.2f}"])
        sizes = record["parameters"]
        note = f"ELF has {sizes['elf']:,} parameters, NSF {sizes['nsf']:,}. One thread, medians of interleaved calls."
        tables.append(Table(name, ["task", "ELF, ms", "NSF, ms", "NSF / ELF"], rows, note))
    text = f"zuko's NSF takes {min(ratios):.2f} to {max(ratios):.2f} times as long as ELF."
    return Report(text, tables)


EXPERIMENT = Experiment("flows", "Speed of ELF and NSF on toy distributions", jobs, work, report, exclusive=True)
