"""Gaps of ELF to the entropy bound on toy distributions, by the paper's protocol, over several seeds.

10,000 steps of Adam with batches of 128 and a learning rate that halves every 2,500 steps; averaged weights, 100,000
fresh points. "Tight modes" are the eight Gaussians with noise 0.1 instead of 0.5.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

import elflow
from elflow.datasets import toy
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import mean_and_error
from experiments.paper.toys import PAPER_STEPS, SETTINGS, TEST_POINTS, Setting, fit_toy

__all__ = ["EXPERIMENT"]

TASKS = {
    "eight-gaussians": ("eight-gaussians", 0.5, 3),
    "checkerboard": ("checkerboard", None, 3),
    "tight-modes": ("eight-gaussians", 0.1, 10),
}
"""Setting, noise and number of seeds of each toy."""


def jobs(plan: Plan) -> list[Job]:
    sizes = {"steps": plan.scaled(PAPER_STEPS), "points": plan.scaled(TEST_POINTS)}
    return [
        Job(f"{name}-{seed}", {"toy": name, "seed": seed, "noise": noise, "setting": asdict(SETTINGS[of]), **sizes})
        for name, (of, noise, n_seeds) in TASKS.items()
        for seed in plan.seeds(n_seeds)
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    noise, seed, setting = settings["noise"], settings["seed"], Setting(**settings["setting"])
    distribution = toy.Checkerboard() if noise is None else toy.EightGaussians(noise)
    torch.manual_seed(seed)
    flow = elflow.ELF(features=2, **setting.flow, scale=False)
    result = fit_toy(flow, distribution, setting, settings["steps"], settings["points"], seed)
    sizes = {"parameters": result.parameters, "steps": settings["steps"], "training": result.seconds}
    return {"toy": settings["toy"], "gap": result.gap, "error": result.error, **sizes}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows = []
    for name in TASKS:
        runs = [record for record in records.values() if record["toy"] == name]
        if not runs:
            continue
        gaps = [run["gap"] for run in runs]
        mean, error = mean_and_error(gaps)
        gap = f"{mean:.4f} ± {error if len(gaps) > 1 else runs[0]['error']:.4f}"
        sizes = f"{runs[0]['parameters']:,}", f"{runs[0]['steps']:,}", str(len(runs))
        rows.append([name, *sizes, gap, f"{max(gaps):.4f}", f"{mean_and_error([r['training'] for r in runs])[0]:.0f}"])
    columns = ["toy", "parameters", "steps", "seeds", "mean gap", "largest gap", "seconds"]
    note = "Gap to the entropy bound in nats, with the standard error over seeds, or over test points for one seed."
    text = "ELF has these gaps to the entropy bound: " + "; ".join(f"{row[0]} {row[4]}" for row in rows) + "."
    return Report(text, [Table("Gaps to the entropy bound", columns, rows, note)])


EXPERIMENT = Experiment("toys", "Gaps to the entropy bound on toy distributions", jobs, work, report)
