"""The paper's two toy distributions: ELF and the compared systems with about the same number of parameters.

All models are trained by one protocol and compared with the entropy bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from elflow._files import replacing
from elflow.datasets import toy
from elflow.flows import ELF
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record
from experiments.framework.measure import count_parameters, median_times, sample_mean_and_error
from experiments.framework.options import parse_count
from experiments.framework.runner import CHECKPOINT
from experiments.framework.training import fit_batches
from experiments.paper._toy_levels import measure_levels
from experiments.paper._toy_report import PAPERS_ELF, WIDTHS, report, split_reading
from experiments.paper.claims import with_claims
from experiments.paper.settings import TOYS
from experiments.systems import SYSTEMS, available, build

__all__ = ["CHECKERBOARD", "EIGHT_GAUSSIANS", "SETTINGS", "Fit", "Setting", "evaluate", "fit_toy", "make_step"]


@dataclass(frozen=True)
class Setting:
    """A flow and its training settings: by default the paper's protocol for its toy distributions."""

    flow: dict[str, Any]
    learning_rate: float = 3e-3
    ema_decay: float = 0.999
    batch_size: int = 128
    parameters: int = 250_000
    """Approximate number of parameters of the compared systems."""
    clip: bool = True
    """Whether gradients are clipped to a norm of 1."""
    schedule: str = "step"
    """`"step"` halves the learning rate each quarter of the steps, `"cosine"` decays it to zero."""


SETTINGS = {
    "eight-gaussians": Setting({"transforms": 1, "units": 64, "hidden_features": (256,) * 4, "bound": 0.999}),
    "checkerboard": Setting(
        {"transforms": 5, "units": 64, "hidden_features": (160,) * 4, "bound": 0.95}, parameters=500_000
    ),
}
"""Settings of ELF for the toy distributions: about 250 and 500 thousand parameters."""
LONG_SETTINGS = {
    "eight-gaussians": replace(SETTINGS["eight-gaussians"], schedule="cosine"),
    "checkerboard": replace(
        SETTINGS["checkerboard"],
        flow=SETTINGS["checkerboard"].flow | {"bound": 0.997},
        schedule="cosine",
    ),
}
"""Settings for a chosen number of steps, such as the paper's 10,000. That of the checkerboard was chosen by runs of
2,500 steps: `docs/paper.md` lists them."""
LONG_MODELS = ("elf", "nsf", PAPERS_ELF, "realnvp", "iaf", "naf", "bnaf", "cpflow", "residual")
"""Models for a chosen number of steps: those of the paper's figures, and NSF. The slowest ones come last."""
LONG_SEEDS = {"elf": 3, "nsf": 3}
"""Numbers of seeds for a chosen number of steps, where it is not 1."""
STEPS = {"eight-gaussians": 2_000, "checkerboard": 1_500}
"""Training steps at the scale of CPUs."""
PAPER_STEPS = TOYS["checkerboard"].steps
N_SEEDS = 3
SLOW = {"cnf": 0.05, "cpflow": 0.5, "residual": 0.5, "unaf": 0.25, "planar": 1.0, "radial": 1.0}
"""Fraction of the steps that slow systems have at the scale of CPUs, where they have one seed only."""
LEARNING_RATES = {"bnaf": 1e-2}
"""Learning rates of systems that need another one than ELF's."""
TEST_POINTS = 100_000
"""Number of test points; models that are slow to evaluate have a twentieth."""
GRID = 160
"""Number of points of a density plot in each direction."""


@dataclass(frozen=True)
class Fit:
    """A fitted flow with averaged weights, and its quality."""

    flow: nn.Module = field(repr=False)
    curve: dict[str, list[float]] = field(repr=False)
    """Steps, seconds and losses: minus the mean log-density of the batches of each round."""
    gap: float
    """Difference between the best possible mean log-density and that of the flow, in nats."""
    error: float
    """Standard error of the gap over test points."""
    parameters: int
    seconds: float
    """Training time."""


def fit_toy(
    flow: nn.Module,
    distribution: toy.Toy,
    setting: Setting,
    steps: int = PAPER_STEPS,
    points: int = TEST_POINTS,
    seed: int = 0,
    device: str = "cpu",
    checkpoint: Path | None = None,
) -> Fit:
    """Fit a flow to a toy distribution, and evaluate it.

    Example:
        >>> flow = ELF(features=2, transforms=1, units=8, hidden_features=(16,))
        >>> result = fit_toy(flow, toy.Moons(), SETTINGS["eight-gaussians"], steps=20, points=1000)
        >>> result.gap > 0
        True
    """
    fitted, training = fit_batches(
        flow,
        lambda: distribution.sample((setting.batch_size,)),
        steps,
        setting.learning_rate,
        setting.ema_decay,
        seed=seed,
        device=device,
        max_grad_norm=1.0 if setting.clip else math.inf,
        schedule=setting.schedule,
        checkpoint=checkpoint,
    )
    curve = {
        "step": [float(entry["step"]) for entry in training.history],
        "seconds": [round(entry["seconds"], 3) for entry in training.history],
        "loss": [round(-entry["training"], 5) for entry in training.history],
    }
    gap, error = evaluate(fitted, distribution, points)
    return Fit(fitted, curve, gap, error, count_parameters(flow), training.seconds)


@torch.no_grad()
def evaluate(flow: nn.Module, distribution: toy.Toy, points: int = TEST_POINTS) -> tuple[float, float]:
    """The gap to the best possible mean log-density on fresh points, and its standard error, in nats."""
    x = distribution.sample((points,))
    return sample_mean_and_error(distribution.log_prob(x) - _log_prob(flow, x))


def _log_prob(flow: nn.Module, x: Tensor) -> Tensor:
    """Log-densities, computed in blocks: some systems need much memory."""
    device = next(flow.parameters()).device
    return torch.cat([flow().log_prob(some.to(device)).detach().double().cpu() for some in x.split(10_000)])


def _make_model(toy_name: str, model: str, layers: int | None = None, flow: dict[str, Any] | None = None) -> nn.Module:
    setting, paper = SETTINGS[toy_name], TOYS[toy_name]
    name, reading = split_reading(model)
    if name == "elf":
        return ELF(features=2, **{"scale": False} | (flow or setting.flow))
    if name == PAPERS_ELF:
        return ELF(features=2, **paper.make_elf())
    transforms = setting.flow["transforms"]
    if reading == WIDTHS:
        return build(name, features=2, transforms=transforms, width=paper.widths[name], layers=layers)
    return build(name, features=2, transforms=transforms, parameters=setting.parameters, layers=layers)


def _cpu_jobs(toy_name: str, plan: Plan, models: Sequence[str]) -> list[Job]:
    setting, jobs = SETTINGS[toy_name], []
    for model in models:
        share = SLOW.get(model, 1.0)
        for number, seed in enumerate(plan.seeds(N_SEEDS)[: 1 if model in SLOW else N_SEEDS]):
            settings = {"toy": toy_name, "model": model, "steps": plan.scaled(round(share * STEPS[toy_name]))}
            settings |= {"seed": seed, "device": plan.device}
            learning_rate = LEARNING_RATES.get(model, setting.learning_rate)
            settings |= {"setting": asdict(replace(setting, learning_rate=learning_rate))}
            jobs.append(Job(f"{model}-{number}", settings))
    # First one seed of each model, the slowest ones last, then the other seeds: the time may not suffice for all.
    return sorted(jobs, key=lambda job: (job.key.rpartition("-")[2], -SLOW.get(job.settings["model"], 2.0)))


def _long_jobs(toy_name: str, plan: Plan, models: Sequence[str]) -> list[Job]:
    """Every model with the same number of steps."""
    paper, jobs = TOYS[toy_name], []
    for model in models:
        setting = replace(LONG_SETTINGS[toy_name], learning_rate=LEARNING_RATES.get(model, 3e-3))
        if model == PAPERS_ELF:  # by the paper's own protocol
            setting = Setting(paper.make_elf(), 2e-3, paper.ema_decay, paper.batch_size, paper.parameters, clip=False)
        for number, seed in enumerate(plan.seeds(N_SEEDS)[: LONG_SEEDS.get(model, 1)]):
            settings = {"toy": toy_name, "model": model, "steps": plan.scaled(plan.options["steps"]), "seed": seed}
            jobs.append(Job(f"{model}-{number}", settings | {"device": plan.device, "setting": asdict(setting)}))
    return sorted(jobs, key=lambda job: job.settings["seed"])  # one seed of each model first


def _paper_jobs(toy_name: str, plan: Plan, models: Sequence[str]) -> list[Job]:
    """Every model by the paper's protocol, with each of its learning rates.

    The systems whose hidden sizes the paper prints are trained twice: with these, and with the printed number of
    parameters.
    """
    paper, jobs = TOYS[toy_name], []
    printed = [f"{name}:{WIDTHS}" for name in paper.widths if name in models]
    for model, rate in product([*models, *printed], paper.learning_rates):
        own = Setting(
            paper.make_elf() if model == PAPERS_ELF else SETTINGS[toy_name].flow,
            rate,
            paper.ema_decay,
            paper.batch_size,
            paper.parameters,
            clip=False,
        )
        for number, seed in enumerate(plan.seeds(N_SEEDS)):
            settings = {"toy": toy_name, "model": model, "steps": plan.scaled(paper.steps), "seed": seed}
            settings |= {"device": plan.device, "layers": paper.hidden_layers, "setting": asdict(own)}
            jobs.append(Job(f"{model.replace(':', '-')}-{rate:g}-{number}", settings))
    return jobs


def jobs(toy_name: str, plan: Plan) -> list[Job]:
    setting = SETTINGS[toy_name]
    models = ["elf", PAPERS_ELF, *(name for name in SYSTEMS if available(name))]
    if "steps" in plan.options and plan.scale == "cpu":
        return _long_jobs(toy_name, plan, [model for model in LONG_MODELS if model in models])
    make_jobs = _cpu_jobs if plan.scale == "cpu" else _paper_jobs
    jobs = make_jobs(toy_name, plan, models)
    speed = {
        "toy": toy_name,
        "models": models,
        "layers": None if plan.scale == "cpu" else TOYS[toy_name].hidden_layers,
        "setting": asdict(setting),
        "seconds": 60 * min(1.0, plan.effort),
    }
    return [*jobs, Job("speed", speed, exclusive=True)]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    if "models" in settings:
        return _measure_speed(settings)
    name, model, seed = settings["toy"], settings["model"], settings["seed"]
    torch.manual_seed(seed)
    distribution = toy.DISTRIBUTIONS[name]()
    flow = _make_model(name, model, settings.get("layers"), settings["setting"]["flow"]).to(settings["device"])
    own, _ = split_reading(model)
    points = TEST_POINTS if SLOW.get(own, 1.0) == 1 else TEST_POINTS // 20
    setting = Setting(**settings["setting"])
    checkpoint = folder / CHECKPOINT
    result = fit_toy(flow, distribution, setting, settings["steps"], points, seed, settings["device"], checkpoint)
    extent = float(distribution.extent)
    axis = torch.linspace(-extent, extent, GRID)
    grid = torch.cartesian_prod(axis, axis)
    log_density = _log_prob(result.flow, grid)
    with replacing(folder / "density.npz") as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, axis=axis.numpy(), log_density=log_density.float().reshape(GRID, GRID).numpy())
    record = {"model": model, "gap": result.gap, "error": result.error, "parameters": result.parameters}
    record |= {"steps": settings["steps"], "training": result.seconds, "curve": result.curve}
    record |= {"learning_rate": setting.learning_rate, "schedule": setting.schedule}
    # Some systems have no density far out, as in float32 it is zero there.
    if log_density.isfinite().all():
        record["levels"] = measure_levels(distribution.log_prob(grid).double(), log_density)
    if own not in SYSTEMS or SYSTEMS[own].samples:
        record["sampling"] = _time_sampling(result.flow)
    return record


@torch.no_grad()
def _time_sampling(flow: nn.Module, count: int = 1_000) -> float:
    """Seconds for a sample of `count` points, the shorter of two."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        flow().sample((count,))
        times.append(time.perf_counter() - start)
    return min(times)


def _measure_speed(settings: Record) -> Record:
    """Seconds of a training step and of the density of a thousand points, all models in turn."""
    setting = SETTINGS[settings["toy"]]
    x = toy.DISTRIBUTIONS[settings["toy"]]().sample((1_000,))
    steps, densities = {}, {}
    for model in settings["models"]:
        steps[model] = make_step(_make_model(settings["toy"], model, settings["layers"]), x[: setting.batch_size])
        densities[model] = _make_score(_make_model(settings["toy"], model, settings["layers"]), x)
    step = median_times(steps, settings["seconds"] / 2)
    return {"step": step, "density": median_times(densities, settings["seconds"] / 2)}


def make_step(flow: nn.Module, x: Tensor, learning_rate: float = 1e-3) -> Callable[[], None]:
    """A function that takes a training step: forward, backward, clipping and Adam."""
    optimizer = torch.optim.Adam(flow.parameters(), learning_rate, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        loss = -flow().log_prob(x).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimizer.step()

    return step


def _make_score(flow: nn.Module, x: Tensor) -> Callable[[], None]:
    flow.train()
    with torch.no_grad():
        flow().log_prob(x)  # initialises ActNorms
    flow.eval()

    @torch.no_grad()
    def score() -> None:
        flow().log_prob(x)

    return score


def missing(plan: Plan) -> list[str]:
    absent: dict[str, list[str]] = {}
    for name, system in SYSTEMS.items():
        if not available(name):
            absent.setdefault(system.source, []).append(system.title)
    return [
        f"no {', '.join(titles)} without {source}: pip install 'elflow[experiments]' in a checkout"
        for source, titles in absent.items()
    ]


def _make_experiment(name: str, title: str) -> Experiment:
    about = "training steps of ELF, NSF and the paper's systems, such as 10000 (default: fewer, of all systems)"
    options = {"steps": Option(parse_count, about)}
    return with_claims(Experiment(name, title, partial(jobs, name), work, partial(report, name), missing, options))


EIGHT_GAUSSIANS = _make_experiment(
    "eight-gaussians", "Eight Gaussians: one transformation, about 250 thousand parameters"
)
CHECKERBOARD = _make_experiment("checkerboard", "Checkerboard: five transformations, about 500 thousand parameters")
