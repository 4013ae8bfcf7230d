"""Ablation: the paper's weights, bumps, and bumps with a scale, with equal parameters and steps.

Weights have 3 H + 1 outputs of the hypernetwork, bumps 5/2 H + 1: with 5 units for 6, networks are of equal size. All
models have one protocol (Adam, a learning rate that halves each quarter, averaged weights), and the same data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from elflow.datasets import toy
from elflow.flows import ELF
from elflow.training import Training
from experiments.data.images import load_images
from experiments.data.tables import FILES, find_table, list_missing, load_table
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import count_parameters, mean_and_error, sample_mean_and_error
from experiments.framework.training import fit_batches
from experiments.paper.claims import with_claims

__all__ = ["EXPERIMENT", "MODELS", "TASKS", "Task"]

MODELS: dict[str, dict[str, Any]] = {
    "weights": {"parametrization": "weights"},
    "bumps": {"scale": False},
    "bumps-scale": {"scale": True},
}
TITLES = {"weights": "Weights (the paper's ELF-AR)", "bumps": "ELF, bumps", "bumps-scale": "ELF, bumps with a scale"}
N_SEEDS = 3
LEARNING_RATE, EMA_DECAY, BATCH_SIZE = 2e-3, 0.998, 128
MAX_TEST_ROWS = 20_000
N_POINTS = 50_000
LEVELS = 17
TIGHT = 0.1
"""Noise of the tight modes, of which the paper says that they lead to bad minima; that of its own eight is 0.5."""


@dataclass(frozen=True)
class Task:
    """Data, and the sizes of the models for them. `units` are those of bumps; weights have five sixths of them."""

    title: str
    steps: int
    transforms: int
    units: int
    hidden_features: tuple[int, ...]
    bound: float = 0.99
    table: str = ""
    """The name of a table of `experiments.data.tables`, if the data are one."""

    def make_flow(self, features: int, model: str) -> ELF:
        """The untrained model, with about the same number of parameters for every name."""
        units = self.units * 5 // 6 if model == "weights" else self.units
        sizes: dict[str, Any] = {"units": units, "hidden_features": self.hidden_features, "transforms": self.transforms}
        return ELF(features, bound=self.bound, **sizes, **MODELS[model])


TASKS = {
    "eight-gaussians": Task("Eight Gaussians", 3_000, 1, 60, (128,) * 3, 0.999),
    "tight-modes": Task("Tight modes", 3_000, 1, 60, (128,) * 3, 0.999),
    "checkerboard": Task("Checkerboard", 2_000, 5, 60, (96,) * 3),
    "power-halfyear": Task("Half a year of POWER", 1_500, 5, 24, (128,) * 2, table="power"),
    "magic": Task("MAGIC", 1_000, 5, 24, (64,) * 2, table="magic"),  # many more overfit its 15,000 rows
    "digits": Task("Digits, 64 values", 1_000, 3, 12, (256,) * 2),
}


def jobs(plan: Plan) -> list[Job]:
    jobs = [
        Job(
            f"{name}-{model}-{seed}",
            {"task": name, "model": model, "steps": plan.scaled(task.steps), "seed": seed, "files": _stamp(plan, task)},
        )
        for seed in plan.seeds(N_SEEDS)
        for name, task in TASKS.items()
        if _is_available(plan, task)
        for model in MODELS
    ]
    # A run may be cut short: one seed of everything, then the other seeds of toy distributions, which train fastest.
    first = plan.seeds(N_SEEDS)[0]
    return sorted(
        jobs, key=lambda job: job.settings["seed"] != first and 1 + (_make_distribution(job.settings["task"]) is None)
    )


def _is_available(plan: Plan, task: Task) -> bool:
    return not task.table or find_table(plan, task.table) is not None


def _stamp(plan: Plan, task: Task) -> list[list[Any]]:
    return plan.stamp(FILES[task.table]) if task.table else []


def missing(plan: Plan) -> list[str]:
    return list_missing(plan, [task.table for task in TASKS.values() if task.table])


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Train a model on a task. Toy distributions have a gap to the entropy bound, other data a test score."""
    name, model, seed = settings["task"], settings["model"], settings["seed"]
    task = TASKS[name]
    torch.manual_seed(seed)
    distribution = _make_distribution(name)
    record: Record = {"task": name, "model": model, "steps": settings["steps"]}
    if distribution is None:
        train, test, offset = _load(plan, name, seed)
        flow = task.make_flow(train.shape[-1], model)
        fitted, training = _fit(flow, lambda: train[torch.randint(len(train), (BATCH_SIZE,))], settings)
        with torch.no_grad():
            scores = torch.cat([fitted().log_prob(some).double() for some in test.split(4_096)]) + offset
        record["test"], record["error"] = sample_mean_and_error(scores)
    else:
        flow = task.make_flow(2, model)
        fitted, training = _fit(flow, lambda: distribution.sample((BATCH_SIZE,)), settings)
        with torch.no_grad():
            x = distribution.sample((plan.scaled(N_POINTS),))
            record["gap"], record["error"] = sample_mean_and_error(
                distribution.log_prob(x).double() - fitted().log_prob(x).double()
            )
            if isinstance(distribution, toy.EightGaussians):
                record["modes"] = _count_modes(fitted().sample((8_000,)), distribution)
    return record | {"parameters": count_parameters(flow), "training": training.seconds}


def _fit(flow: ELF, draw: Callable[[], Tensor], settings: Record) -> tuple[ELF, Training]:
    return fit_batches(flow, draw, settings["steps"], LEARNING_RATE, EMA_DECAY, seed=settings["seed"])


def _make_distribution(name: str) -> toy.Toy | None:
    makers = {
        "eight-gaussians": toy.EightGaussians,
        "tight-modes": lambda: toy.EightGaussians(TIGHT),
        "checkerboard": toy.Checkerboard,
    }
    return makers[name]() if name in makers else None


def _load(plan: Plan, name: str, seed: int) -> tuple[Tensor, Tensor, float]:
    """Standardised training and test rows, and the log-density of the data minus that of the rows."""
    if name == "digits":  # in bits they would be minus the scores over 64 ln 2
        parts = [x.flatten(1).float() for x in load_images(plan, "digits", None)]
        train, test = ((x + torch.rand_like(x)) / LEVELS for x in parts)
        offset = -train.shape[1] * math.log(LEVELS)
    else:
        train, test = (torch.tensor(x.to_numpy("float32")) for x in load_table(plan, TASKS[name].table, seed))
        test, offset = test[:: -(-len(test) // MAX_TEST_ROWS)], 0.0
    loc, scale = train.mean(0), train.std(0).clamp(min=1e-6)
    return (train - loc) / scale, (test - loc) / scale, offset - float(scale.double().log().sum())


def _count_modes(x: Tensor, distribution: toy.EightGaussians) -> int:
    """The number of modes that have at least half of their share of a sample, within five standard deviations."""
    distance, nearest = torch.cdist(x.double(), distribution.centres).min(-1)
    counts = torch.bincount(nearest[distance < 5 * distribution.noise], minlength=8)
    return int((counts >= len(x) / 16).sum())


# --- the report -------------------------------------------------------------------------------------------------------


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows, sentences = [], []
    for name, task in TASKS.items():
        runs = {m: [r for r in records.values() if (r["task"], r["model"]) == (name, m)] for m in MODELS}
        measure = "gap" if any("gap" in run for some in runs.values() for run in some) else "test"
        scores = {m: _score(some, measure) for m, some in runs.items() if some}
        for model, (mean, error) in scores.items():
            some = runs[model]
            what = f"gap {mean:.4f} ± {error:.4f}" if measure == "gap" else f"{mean:.3f} ± {error:.3f}"
            modes = ", ".join(str(run["modes"]) for run in some if "modes" in run)
            sizes = f"{some[0]['parameters']:,}", f"{some[0]['steps']:,}", str(len(some))
            rows.append([task.title, TITLES[model], *sizes, what, modes, f"{_mean_seconds(some):.0f} s"])
        if {"weights", "bumps"} <= set(scores):
            n_seeds = min(len(runs["weights"]), len(runs["bumps"]))
            sentences.append(_describe(task.title, measure, scores, n_seeds))
    columns = ["data", "model", "parameters", "steps", "seeds", "nats", "modes found", "training"]
    note = (
        "Means over seeds with standard errors, over test points for one seed: the gap to the entropy bound, lower is "
        "better, or the test log-likelihood, higher is better. Modes are those of eight with at least half of their "
        "share, for each seed."
    )
    return Report(" ".join(sentences), [Table("Ablation", columns, rows, note)])


def _score(runs: list[Record], measure: str) -> tuple[float, float]:
    """The mean and its standard error: over seeds, or over test points for one seed."""
    mean, error = mean_and_error([run[measure] for run in runs])
    return mean, error if len(runs) > 1 else runs[0]["error"]


def _mean_seconds(runs: list[Record]) -> float:
    return mean_and_error([run["training"] for run in runs])[0]


def _describe(title: str, measure: str, scores: dict[str, tuple[float, float]], n_seeds: int) -> str:
    sign = -1 if measure == "gap" else 1
    (ours, error), (theirs, other) = scores["bumps"], scores["weights"]
    difference, spread = sign * (ours - theirs), math.hypot(error, other)
    if n_seeds < 2:
        return f"{title}: bumps have {difference:+.4f} nats relative to weights, with one seed: no verdict."
    verdict = "better" if difference > 2 * spread else "worse" if difference < -2 * spread else "no better and no worse"
    return f"{title}: bumps are {verdict} than weights, by {difference:+.4f} ± {spread:.4f} nats."


EXPERIMENT = with_claims(Experiment("ablation", "Weights, bumps and scales", jobs, work, report, missing))
