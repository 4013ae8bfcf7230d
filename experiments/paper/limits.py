"""The paper's limits and choices of training, in small runs: averaging, clipping, extrapolation, and overfitting."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elflow.datasets import toy
from elflow.flows import ELF
from elflow.training import Recipe, fit
from experiments.data.small_tables import make_table
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import mean_and_error, sample_mean_and_error
from experiments.framework.training import fit_batches
from experiments.paper.claims import with_claims
from experiments.systems import build

__all__ = ["EXPERIMENT"]

N_SEEDS = 2
DECAYS, NORMS = (0.0, 0.999), (math.inf, 1.0)
"""Without and with averaging, without and with clipping: the paper's values for images and tables."""
SMALL: dict[str, Any] = {"transforms": 3, "units": 32, "hidden_features": (64, 64)}
RADII = (2.0, 3.0, 4.0, 6.0, 8.0)
"""Distances from the centre of a normal distribution of two features, in standard deviations."""
EXTRAPOLATED = {"bumps": "ELF, bumps", "weights": "ELF, weights (the paper's)", "nsf": "Neural Spline (NSF)"}
ROWS = (500, 2_000, 6_000)
"""Numbers of training rows of a table of twenty columns, whose density is known."""


def jobs(plan: Plan) -> list[Job]:
    jobs = [
        Job(
            f"training-{decay:g}-{norm:g}-{seed}",
            # JSON has no infinity
            {"check": "training", "decay": decay, "norm": norm if math.isfinite(norm) else None, "seed": seed},
        )
        for decay, norm, seed in product(DECAYS, NORMS, plan.seeds(N_SEEDS))
    ]
    jobs += [
        Job(f"extrapolation-{model}-{seed}", {"check": "extrapolation", "model": model, "seed": seed})
        for model, seed in product(EXTRAPOLATED, plan.seeds(N_SEEDS))
    ]
    jobs += [Job(f"overfitting-{rows}", {"check": "overfitting", "rows": rows, "seed": plan.seed}) for rows in ROWS]
    steps = {"training": 1_000, "extrapolation": 600, "overfitting": 500}
    return [Job(job.key, job.settings | {"steps": plan.scaled(steps[job.settings["check"]])}) for job in jobs]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    kept = {name: value for name, value in settings.items() if name != "seed"}
    return kept | CHECKS[settings["check"]](settings)


def check_training(settings: Record) -> Record:
    """The gap to the entropy bound of the checkerboard."""
    distribution = toy.Checkerboard()
    norm = math.inf if settings["norm"] is None else settings["norm"]
    fitted, training = fit_batches(
        ELF(2, **SMALL, scale=False),
        lambda: distribution.sample((128,)),
        settings["steps"],
        ema_decay=settings["decay"],
        seed=settings["seed"],
        max_grad_norm=norm,
    )
    x = distribution.sample((20_000,))
    gap, error = sample_mean_and_error(distribution.log_prob(x).double() - _score(fitted, x))
    return {"gap": gap, "error": error, "skipped": training.skipped}


@torch.no_grad()
def _score(flow: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([flow().log_prob(some).double() for some in x.split(5_000)])


def check_extrapolation(settings: Record) -> Record:
    """Errors of the log-density of a standard normal distribution, on circles around its centre."""
    model = settings["model"]
    flow: nn.Module
    if model == "nsf":
        flow = build("nsf", features=2, transforms=3, parameters=40_000)
    else:
        flow = ELF(2, **SMALL, parametrization=model)
    fitted, _ = fit_batches(flow, lambda: torch.randn(128, 2), settings["steps"], seed=settings["seed"])
    angles = torch.linspace(0, 2 * math.pi, 241)[:-1]
    circle = torch.stack([angles.cos(), angles.sin()], dim=-1)
    errors = []
    for radius in RADII:
        error = _score(fitted, radius * circle) + 0.5 * radius**2 + math.log(2 * math.pi)
        errors.append({"radius": radius, "mean": float(error.mean()), "absolute": float(error.abs().mean())})
    return {"errors": errors}


def check_overfitting(settings: Record) -> Record:
    """Gaps to the true density of test rows: after all steps, with early stopping, and of a normal distribution."""
    table = make_table(f"nearly-gaussian-{settings['rows']}", settings["seed"])
    train, test = (torch.tensor(x.to_numpy("float32")) for x in (table.training, table.test))
    assert table.truth is not None
    truth, (loc, scale) = torch.tensor(table.truth), (train.mean(0), train.std(0))
    offset = float(scale.double().log().sum())
    train, test = (train - loc) / scale, (test - loc) / scale
    normal = torch.distributions.MultivariateNormal(train.mean(0).double(), train.double().T.cov())
    gaps = {"normal": float((truth - normal.log_prob(test.double()) + offset).mean())}
    held_out = len(train) // 5
    recipe = Recipe(max_steps=settings["steps"], round_steps=50, schedule="cosine", batch_size=128, patience=5)
    for name, validation in (("all", None), ("stopped", train[:held_out])):
        flow = ELF(train.shape[-1], transforms=3, units=16, hidden_features=(64, 64))
        some = train if validation is None else train[held_out:]
        fitted, training = fit(flow, some, validation, recipe, seed=settings["seed"])
        gaps[name] = float((truth - _score(fitted, test) + offset).mean())
        gaps[f"{name}-training"] = float(_score(fitted, some).mean() - offset)
        gaps[f"{name}-steps"] = training.history[-1]["step"]
    return {"gaps": gaps}


CHECKS = {"training": check_training, "extrapolation": check_extrapolation, "overfitting": check_overfitting}


# --- the report -------------------------------------------------------------------------------------------------------


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    groups = {name: [r for r in records.values() if r["check"] == name] for name in CHECKS}
    makers = {"training": _tabulate_training, "extrapolation": _tabulate_circles, "overfitting": _tabulate_rows}
    tables = [makers[name](group) for name, group in groups.items() if group]
    return Report("Choices of training and limits of the paper, in small runs.", tables)


def _tabulate_training(runs: list[Record]) -> Table:
    rows = []
    for decay, norm in product(DECAYS, NORMS):
        some = [r for r in runs if r["decay"] == decay and r["norm"] == (norm if math.isfinite(norm) else None)]
        if some:
            mean, error = mean_and_error([r["gap"] for r in some])
            skipped = sum(r["skipped"] for r in some)
            rows.append(
                [
                    _format_flag(decay > 0),
                    _format_flag(math.isfinite(norm)),
                    str(len(some)),
                    f"{mean:.4f} ± {error:.4f}",
                    str(skipped),
                ]
            )
    columns = ["averaged weights", "clipped gradients", "seeds", "gap", "skipped steps"]
    note = f"A small ELF on the checkerboard after {runs[0]['steps']:,} steps: gap to the entropy bound in nats."
    return Table("Averaging and clipping", columns, rows, note)


def _format_flag(value: bool) -> str:
    return "yes" if value else "no"


def _tabulate_circles(runs: list[Record]) -> Table:
    rows = []
    for model, title in EXTRAPOLATED.items():
        some = [r["errors"] for r in runs if r["model"] == model]
        cells: list[Any] = []
        for k in range(len(RADII) if some else 0):
            mean, absolute = (sum(r[k][kind] for r in some) / len(some) for kind in ("mean", "absolute"))
            cells.append(f"{mean:+.2f} ({absolute:.2f})")
        rows += [[title, *cells]] if some else []
    columns = ["model", *(f"{radius:g} sd" for radius in RADII)]
    note = (
        f"Error of the log-density of a normal distribution of two features after {runs[0]['steps']:,} steps, by the "
        "distance from its centre in standard deviations (sd), in nats; the mean absolute error in parentheses. Beyond "
        "4 sd there are hardly any data."
    )
    return Table("Extrapolation", columns, rows, note)


def _tabulate_rows(runs: list[Record]) -> Table:
    rows = [
        [
            f"{r['rows']:,}",
            *(f"{r['gaps'][name]:,.2f}" for name in ("all", "stopped", "normal")),
            f"{r['gaps']['stopped-steps']:,.0f}",
        ]
        for r in runs
    ]
    columns = ["training rows", "all steps", "early stopping", "normal distribution", "steps until stopped"]
    note = (
        "Gap to the true density of test rows in nats: two overlapping Gaussians in twenty columns. "
        f"All steps are {runs[0]['steps']:,}; early stopping holds out a fifth of the rows."
    )
    return Table("Overfitting", columns, rows, note)


EXPERIMENT = with_claims(Experiment("limits", "Limits of the method, and training choices", jobs, work, report))
