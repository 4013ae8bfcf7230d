"""Wide tables: likelihood against parameters on 63 features, with and without an embedding before the last layer.

The data are 8x8 grey patches of natural images. Each model takes the same number of steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import elflow
from experiments.data.maf import prepare_patches
from experiments.data.tables import FILES, find_table, list_missing
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.figure import GREEN, draw_figure
from experiments.framework.measure import count_parameters, sample_mean_and_error
from experiments.framework.training import fit_batches

__all__ = ["EXPERIMENT"]

MODELS: dict[str, dict[str, Any]] = {
    "full-256": {"hidden_features": [256, 256]},
    "full-64": {"hidden_features": [64, 64]},
    "rank-8-256": {"hidden_features": [256, 256], "rank": 8},
    "rank-16-256": {"hidden_features": [256, 256], "rank": 16},
    "rank-16-512": {"hidden_features": [512, 512], "rank": 16},
    "rank-32-256": {"hidden_features": [256, 256], "rank": 32},
}
STEPS, BATCH_SIZE, LEARNING_RATE = 1_000, 256, 1e-3
TEST_STRIDE = 25
"""Every 25th test patch is scored."""


def jobs(plan: Plan) -> list[Job]:
    if find_table(plan, "bsds") is None:
        return []
    same = {"steps": plan.scaled(STEPS), "seed": plan.seed, "stamp": plan.stamp(FILES["bsds"])}
    return [Job(name, {"model": name, "flow": flow, **same}) for name, flow in MODELS.items()]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    path = find_table(plan, "bsds")
    assert path is not None  # without it there are no jobs
    with np.load(path, allow_pickle=False) as file:
        training, test = file["train"], file["test"][::TEST_STRIDE]
    rng = np.random.default_rng(settings["seed"])

    def draw_batch() -> Tensor:
        return torch.from_numpy(prepare_patches(training[rng.integers(len(training), size=BATCH_SIZE)], rng))

    torch.manual_seed(settings["seed"])
    flow = elflow.ELF(63, transforms=2, units=16, scale=False, **settings["flow"])
    fitted, record = fit_batches(flow, draw_batch, settings["steps"], LEARNING_RATE, seed=settings["seed"])
    with torch.no_grad():
        mean, error = sample_mean_and_error(fitted().log_prob(torch.from_numpy(prepare_patches(test, rng))))
    sizes = {"parameters": count_parameters(flow), "steps": record.steps, "training": record.seconds}
    return {"test": mean, "error": error, "flow": settings["flow"], **sizes}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    ranked = sorted(records.values(), key=lambda record: -record["test"])
    rows = [
        [
            _describe(r["flow"]),
            f"{r['parameters']:,}",
            f"{r['steps']:,}",
            f"{r['test']:.2f} ± {r['error']:.2f}",
            f"{r['training']:.0f}",
        ]
        for r in ranked
    ]
    _draw(folder / "wide.png", ranked)
    text = f"The best model is {_describe(ranked[0]['flow'])}, with {ranked[0]['test']:.2f} nats of test patches."
    columns = ["model", "parameters", "steps", "test nats", "seconds"]
    note = "Two transformations of 16 units, one seed; the standard error is over test patches."
    pictures = {"wide.png": "Test log-likelihood against the number of parameters."}
    return Report(text, [Table("63 features of image patches", columns, rows, note)], pictures)


def _describe(flow: Record) -> str:
    rank = f"rank {flow['rank']}" if "rank" in flow else "full"
    return f"ELF, {rank}, hidden {flow['hidden_features'][0]}"


def _draw(path: Path, ranked: list[Record]) -> None:
    with draw_figure(path, figsize=(6.5, 4)) as (_, axes):
        place = axes[0, 0]
        for r in ranked:
            place.errorbar(r["parameters"], r["test"], yerr=r["error"], fmt="o", color=GREEN, capsize=3)
            label = _describe(r["flow"]).removeprefix("ELF, ")
            place.annotate(label, (r["parameters"], r["test"]), (6, 4), textcoords="offset points", fontsize=8)
        place.set(xlabel="parameters", ylabel="test nats", xscale="log")
        place.margins(x=0.25, y=0.15)


def missing(plan: Plan) -> list[str]:
    return list_missing(plan, ["bsds"])


EXPERIMENT = Experiment("wide", "Wide tables: likelihood against parameters", jobs, work, report, missing)
