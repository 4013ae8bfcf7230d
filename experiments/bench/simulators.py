"""Posteriors of simulators: conditional densities by ELF and NSF, of the same widths and steps.

A flow of each by itself, and `FlowDensity` with ELF: a mixture of two flows and a Gaussian. The tasks are those of the
benchmark of simulation-based inference (Lueckmann et al., 2021).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import zuko
from torch import Tensor, nn

import elflow
from elflow.tabular import FlowDensity
from elflow.training import Recipe, fit
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table, group_records
from experiments.framework.measure import mean_and_error, sample_mean_and_error
from experiments.framework.options import parse_choices, parse_count

__all__ = ["EXPERIMENT", "SIMULATORS"]

N_SIMULATIONS, N_TEST, N_SEEDS, STEPS = 10_000, 5_000, 3, 2_000
SIZES: dict[str, Any] = {"transforms": 5, "hidden_features": (50, 50)}
UNITS = 16
MODELS = {"elf": "ELF, one flow", "nsf": "NSF, one flow", "density": "FlowDensity"}

Simulation = tuple[Tensor, Tensor]
"""Parameters `(N, features)` and observations `(N, context)`."""


def simulate_two_moons(n: int) -> Simulation:
    """Two parameters; their posterior has the shape of two crescents."""
    theta = 2 * torch.rand(n, 2) - 1
    angle, radius = math.pi * (torch.rand(n) - 0.5), 0.1 + 0.01 * torch.randn(n)
    moon = torch.stack([radius * angle.cos() + 0.25, radius * angle.sin()], 1)
    shift = torch.stack([-theta.sum(1).abs(), theta[:, 1] - theta[:, 0]], 1) / math.sqrt(2)
    return theta, moon + shift


def simulate_slcp(n: int) -> Simulation:
    """Simple likelihood, complex posterior: four points of a Gaussian with five parameters."""
    theta = 6 * torch.rand(n, 5) - 3
    first, second, rho = theta[:, 2] ** 2, theta[:, 3] ** 2, theta[:, 4].tanh()
    noise = torch.randn(n, 4, 2)
    x = theta[:, None, 0] + first[:, None] * noise[..., 0]
    mixed = rho[:, None] * noise[..., 0] + (1 - rho**2).sqrt()[:, None] * noise[..., 1]
    y = theta[:, None, 1] + second[:, None] * mixed
    return theta, torch.cat([x, y], 1)


def simulate_gaussian_mixture(n: int) -> Simulation:
    """A wide and a narrow Gaussian with the same mean."""
    theta = 20 * torch.rand(n, 2) - 10
    scale = torch.where(torch.rand(n, 1) < 0.5, 1.0, 0.1)
    return theta, theta + scale * torch.randn(n, 2)


def simulate_gaussian_linear(n: int) -> Simulation:
    """Ten parameters with a Gaussian prior, and noise: the posterior is Gaussian."""
    theta = math.sqrt(0.1) * torch.randn(n, 10)
    return theta, theta + math.sqrt(0.1) * torch.randn(n, 10)


SIMULATORS: dict[str, Callable[[int], Simulation]] = {
    "two-moons": simulate_two_moons,
    "slcp": simulate_slcp,
    "gaussian-mixture": simulate_gaussian_mixture,
    "gaussian-linear": simulate_gaussian_linear,
}


def jobs(plan: Plan) -> list[Job]:
    sizes = {"steps": plan.scaled(STEPS), "simulations": max(100, plan.scaled(N_SIMULATIONS))}
    return [
        Job(f"{name}-{model}-{seed}", {"simulator": name, "model": model, "seed": seed, **sizes})
        for seed in plan.seeds(plan.options.get("seeds", N_SEEDS))
        for name in plan.options.get("sets", SIMULATORS)
        for model in plan.options.get("models", MODELS)
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings["seed"])
        simulate = SIMULATORS[settings["simulator"]]
        (theta, x), (test_theta, test_x) = simulate(settings["simulations"]), simulate(N_TEST)
        flow = None if settings["model"] == "density" else _build(settings["model"], theta.shape[1], x.shape[1])
    if flow is None:
        return _work_density(settings, (theta, x), (test_theta, test_x))
    volume = float(theta.std(0).log().sum())
    test_theta, test_x = (test_theta - theta.mean(0)) / theta.std(0), (test_x - x.mean(0)) / x.std(0)
    theta, x = (theta - theta.mean(0)) / theta.std(0), (x - x.mean(0)) / x.std(0)
    steps, cut = settings["steps"], round(0.9 * len(theta))
    recipe = Recipe(schedule="cosine", max_steps=steps, round_steps=max(1, steps // 20), patience=10**6)
    start = time.perf_counter()
    best, _ = fit(flow, (theta[:cut], x[:cut]), (theta[cut:], x[cut:]), recipe, seed=settings["seed"])
    seconds = time.perf_counter() - start
    with torch.no_grad():
        mean, error = sample_mean_and_error(volume - best(test_x).log_prob(test_theta))
    return {"test": mean, "error": error, "seconds": seconds}


def _work_density(settings: Record, training: Simulation, test: Simulation) -> Record:
    """Fits `FlowDensity` to the parameters, with the observations as context."""
    (theta, x), (test_theta, test_x) = ([part.numpy() for part in rows] for rows in (training, test))
    density = FlowDensity(
        flow_options=SIZES | {"units": UNITS}, max_steps=settings["steps"], random_state=settings["seed"]
    )
    start = time.perf_counter()
    density.fit(theta, context=x)
    seconds = time.perf_counter() - start
    log_density = torch.from_numpy(density.score_samples(test_theta, context=test_x))
    mean, error = sample_mean_and_error(-log_density)
    return {"test": mean, "error": error, "seconds": seconds}


def _build(model: str, features: int, context: int) -> nn.Module:
    flow: nn.Module
    if model == "elf":
        flow = elflow.ELF(features, context, units=UNITS, **SIZES)
    else:
        flow = zuko.flows.NSF(features, context, **SIZES)
    return flow


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    models = [model for model in MODELS if model in plan.options.get("models", MODELS)]
    rows, n_compared, n_ahead = [], 0, {model: 0 for model in models if model != "nsf"}
    for name in SIMULATORS:
        groups = group_records(records, [f"{name}-{model}" for model in MODELS])
        values = {model: [run["test"] for run in groups.get(f"{name}-{model}", [])] for model in models}
        if not any(values.values()):
            continue
        means = {model: mean_and_error(runs)[0] for model, runs in values.items() if runs}
        if "nsf" in means:
            n_compared += 1
            for model in n_ahead:
                n_ahead[model] += model in means and means[model] < means["nsf"]
        rows.append([name, *(_format(values[model]) for model in models)])
    note = "Mean over seeds and its standard error; lower is better. All flows have the same widths and steps."
    if "density" in models:
        note += " `FlowDensity` mixes two such ELF flows and a Gaussian whose mean is linear in the observations."
    columns = ["simulator", *(MODELS[model] for model in models)]
    table = Table("Held-out negative log posterior in nats", columns, rows, note)
    counts = "; ".join(f"{MODELS[model]}: {count}" for model, count in n_ahead.items())
    return Report(f"Of {n_compared} simulators, ahead of one NSF flow on: {counts}.", [table])


def _format(values: list[float]) -> str:
    return "{:.3f} ± {:.3f}".format(*mean_and_error(values)) if values else ""


EXPERIMENT = Experiment(
    "simulators",
    "Posteriors of simulators",
    jobs,
    work,
    report,
    options={
        "models": Option(parse_choices(MODELS), f"models (default: {','.join(MODELS)})"),
        "sets": Option(parse_choices(SIMULATORS), f"simulators (default: {','.join(SIMULATORS)})"),
        "seeds": Option(parse_count, f"number of seeds (default: {N_SEEDS})"),
    },
)
