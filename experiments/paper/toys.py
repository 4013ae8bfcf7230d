"""The paper's two toys: ELF and its peers at about equal parameters, by one protocol, beside the entropy bound."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from elflow._files import replacing
from elflow.datasets import toy
from elflow.flows import ELF
from elflow.training import train
from experiments.framework.experiment import Experiment, Job, Plan, Record
from experiments.framework.measure import interleaved
from experiments.paper._toy_report import report
from experiments.systems import PEERS, available, build

__all__ = ["EXPERIMENTS", "SETTINGS", "Fit", "Setting", "evaluate", "fit"]


@dataclass(frozen=True)
class Setting:
    """A flow, and how to train it: by default the paper's protocol for its toys."""

    flow: dict[str, Any]
    rate: float = 3e-3
    decay: float = 0.999
    batch: int = 128
    parameters: int = 250_000
    """About as many as a peer is to have."""


SETTINGS = {
    "eight-gaussians": Setting({"transforms": 1, "units": 64, "hidden_features": (256,) * 4, "bound": 0.999}),
    "checkerboard": Setting(
        {"transforms": 5, "units": 64, "hidden_features": (160,) * 4, "bound": 0.95}, parameters=500_000
    ),
}
"""What the paper's two toys are fitted with: about 250 and 500 thousand parameters."""
STEPS = {"eight-gaussians": 2_000, "checkerboard": 1_500}
"""Training steps at the scale of CPUs; the paper's are 10,000."""
PAPER_STEPS = 10_000
SEEDS = 3
SLOW = {"cnf": 0.05, "cpflow": 0.5, "residual": 0.5, "unaf": 0.25, "planar": 1.0, "radial": 1.0}
"""The share of the steps that slow peers have at the scale of CPUs, and one seed only."""
RATES = {"bnaf": 1e-2}
"""The rates of peers that want another one than ELF's."""
TEST_POINTS = 100_000
"""How many fresh points decide about a gap; models that are slow to evaluate have a twentieth."""
GRID = 160
"""Points of a density's picture, in each direction."""


@dataclass(frozen=True)
class Fit:
    """A fitted flow, with averaged weights, and how good it is."""

    flow: nn.Module = field(repr=False)
    loss: list[float] = field(repr=False)
    """Minus the mean log-density of each batch."""
    clock: list[float] = field(repr=False)
    """The seconds after each step."""
    gap: float
    """By how much the mean log-density is below the best possible, in nats."""
    error: float
    """The standard error of the gap."""
    parameters: int

    @property
    def seconds(self) -> float:
        """How long the training took."""
        return self.clock[-1]


def fit(
    flow: nn.Module, distribution: toy.Toy, setting: Setting, steps: int = 10_000, points: int = TEST_POINTS
) -> Fit:
    """Fits a flow to a toy distribution, in steps of which every quarter halves the rate.

    Example:
        >>> flow = ELF(features=2, transforms=1, units=8, hidden_features=(16,))
        >>> result = fit(flow, toy.Moons(), SETTINGS["eight-gaussians"], steps=20, points=1000)
        >>> result.gap > 0
        True
    """
    clock: list[float] = []
    device = next(flow.parameters()).device
    start = time.perf_counter()
    fitted, history = train(
        flow,
        lambda: distribution.sample((setting.batch,)).to(device),
        steps=steps,
        rate=setting.rate,
        halve_every=max(1, steps // 4),
        decay=setting.decay,
        progress=lambda step, loss: clock.append(time.perf_counter() - start),
    )
    gap, error = evaluate(fitted, distribution, points)
    return Fit(fitted, history.loss, clock, gap, error, sum(p.numel() for p in flow.parameters()))


@torch.no_grad()
def evaluate(flow: nn.Module, distribution: toy.Toy, points: int = TEST_POINTS) -> tuple[float, float]:
    """The gap to the best possible mean log-density on fresh points, and its standard error, in nats."""
    x = distribution.sample((points,))
    difference = distribution.log_prob(x) - _log_prob(flow, x)
    return difference.mean().item(), difference.std().item() / math.sqrt(points)


def _log_prob(flow: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """In blocks, for the peers that take much memory."""
    device = next(flow.parameters()).device
    return torch.cat([flow().log_prob(some.to(device)).detach().double().cpu() for some in x.split(10_000)])


def _model(toy_name: str, model: str) -> nn.Module:
    setting = SETTINGS[toy_name]
    if model == "elf":
        return ELF(features=2, **setting.flow)
    return build(model, features=2, transforms=setting.flow["transforms"], parameters=setting.parameters)


def _jobs(toy_name: str, plan: Plan) -> list[Job]:
    setting = SETTINGS[toy_name]
    steps = STEPS[toy_name] if plan.scale == "cpu" else PAPER_STEPS
    jobs = []
    models = ["elf", *(name for name in PEERS if available(name))]
    for model in models:
        slow = model in SLOW and plan.scale == "cpu"
        share = SLOW[model] if slow else 1.0
        for number, seed in enumerate(plan.seeds(SEEDS)[: 1 if slow else SEEDS]):
            settings = {"toy": toy_name, "model": model, "steps": plan.steps(round(share * steps))}
            settings |= {"seed": seed, "device": plan.device}
            settings |= {"setting": asdict(replace(setting, rate=RATES.get(model, setting.rate)))}
            jobs.append(Job(f"{model}-{number}", settings))
    speed = {"toy": toy_name, "models": models, "setting": asdict(setting), "seconds": 60 * min(1.0, plan.effort)}
    return [*sorted(jobs, key=lambda job: job.settings["model"] != "cnf"), Job("speed", speed)]  # the longest first


def _work(plan: Plan, settings: Record, folder: Path) -> Record:
    if "models" in settings:
        return _speed(settings)
    torch.manual_seed(settings["seed"])
    name, model = settings["toy"], settings["model"]
    distribution = toy.DISTRIBUTIONS[name]()
    flow = _model(name, model).to(settings["device"])
    points = TEST_POINTS if SLOW.get(model, 1.0) == 1 else TEST_POINTS // 20
    result = fit(flow, distribution, Setting(**settings["setting"]), settings["steps"], points)
    extent = float(distribution.extent)
    axis = torch.linspace(-extent, extent, GRID)
    density = _log_prob(result.flow, torch.cartesian_prod(axis, axis)).exp().reshape(GRID, GRID)
    with replacing(folder / "density.npz") as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, axis=axis.numpy(), density=density.float().numpy())
    record = {"model": model, "gap": result.gap, "error": result.error, "parameters": result.parameters}
    record |= {"steps": settings["steps"], "training": result.seconds, "curve": _curve(result)}
    if model == "elf" or PEERS[model].samples:
        record["sampling"] = _sampling(result.flow)
    return record


def _curve(result: Fit, points: int = 100) -> dict[str, list[float]]:
    """The loss over steps and seconds, each point the mean of the batches since the one before."""
    window = max(1, len(result.loss) // points)
    whole = len(result.loss) // window * window
    loss = np.array(result.loss[:whole]).reshape(-1, window).mean(1)
    return {
        "step": [float(step) for step in range(window, whole + 1, window)],
        "seconds": [round(value, 3) for value in result.clock[window - 1 : whole : window]],
        "loss": [round(float(value), 5) for value in loss],
    }


def _sampling(flow: nn.Module, count: int = 1_000) -> float:
    """Seconds for a sample of so many points, the shorter of two."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        with torch.no_grad():
            flow().sample((count,))
        times.append(time.perf_counter() - start)
    return min(times)


def _speed(settings: Record) -> Record:
    """The seconds of a training step and of the density of a thousand points, all models by turns."""
    setting = SETTINGS[settings["toy"]]
    x = toy.DISTRIBUTIONS[settings["toy"]]().sample((1_000,))
    steps, densities = {}, {}
    for model in settings["models"]:
        flow = _model(settings["toy"], model)
        optimizer = torch.optim.Adam(flow.parameters(), fused=True)
        steps[model] = _stepping(flow, optimizer, x[: setting.batch])
        densities[model] = _scoring(_model(settings["toy"], model), x)
    step = interleaved(steps, settings["seconds"] / 2)
    return {"step": step, "density": interleaved(densities, settings["seconds"] / 2)}


def _stepping(flow: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> Any:
    def step() -> None:
        optimizer.zero_grad()
        loss = -flow().log_prob(x).mean()
        loss.backward()
        optimizer.step()

    return step


def _scoring(flow: nn.Module, x: torch.Tensor) -> Any:
    flow.train()
    with torch.no_grad():
        flow().log_prob(x)  # ActNorms take their start from it
    flow.eval()

    @torch.no_grad()
    def score() -> None:
        flow().log_prob(x)

    return score


def _experiment(name: str, title: str) -> Experiment:
    return Experiment(
        name,
        title,
        jobs=lambda plan: _jobs(name, plan),
        work=_work,
        report=lambda plan, records, folder: report(name, plan, records, folder),
        missing=_missing,
    )


def _missing(plan: Plan) -> list[str]:
    absent = [peer.title for name, peer in PEERS.items() if not available(name)]
    return [f"without normflows there is no {', '.join(absent)}: pip install 'elflow[reproduce]'"] if absent else []


EXPERIMENTS = {
    "eight-gaussians": _experiment("eight-gaussians", "Eight Gaussians: one flow, about 250 thousand parameters"),
    "checkerboard": _experiment("checkerboard", "Checkerboard: five flows, about 500 thousand parameters"),
}
