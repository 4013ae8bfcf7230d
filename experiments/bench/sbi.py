"""Posteriors of simulators with sbi: ELF beside sbi's own flows, in sbi's own training.

All models are trained by `NPE` of sbi with its default settings, and so are the sizes of its flows: only the density
estimator differs. The simulators are those of `simulators`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.bench.simulators import SIMULATORS
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table, group_records
from experiments.framework.measure import mean_and_error, sample_mean_and_error
from experiments.framework.options import parse_choices, parse_count

__all__ = ["EXPERIMENT"]

N_SIMULATIONS = [1_000, 10_000]
N_TEST, N_SEEDS = 5_000, 3
MAX_EPOCHS = 2**31 - 1
"""That of sbi: early stopping ends the training."""
MODELS = {"elf": "ELF", "zuko_nsf": "NSF (zuko)", "nsf": "NSF (nflows)", "maf": "MAF (nflows)"}


def jobs(plan: Plan) -> list[Job]:
    if missing(plan):
        return []
    epochs = MAX_EPOCHS if plan.effort >= 1 else plan.scaled(100)
    return [
        Job(
            f"{name}-{model}-{count}-{seed}",
            {
                "simulator": name,
                "model": model,
                "simulations": max(100, plan.scaled(count)),
                "max_epochs": epochs,
                "seed": seed,
            },
        )
        for count in plan.options.get("simulations", N_SIMULATIONS)
        for seed in plan.seeds(plan.options.get("seeds", N_SEEDS))
        for name in plan.options.get("sets", SIMULATORS)
        for model in plan.options.get("models", MODELS)
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Train one posterior, and score held-out pairs of parameters and observations."""
    from sbi.inference import NPE  # takes seconds to import: not for other benchmarks

    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sbi, about priors that are not given
        torch.manual_seed(settings["seed"])
        simulate = SIMULATORS[settings["simulator"]]
        (theta, x), (test_theta, test_x) = simulate(settings["simulations"]), simulate(N_TEST)
        trainer = NPE(
            density_estimator=_choose_estimator(settings["model"]), tracker=NoTracker(), show_progress_bars=False
        )
        start = time.perf_counter()
        estimator = trainer.append_simulations(theta, x).train(max_num_epochs=settings["max_epochs"])
        seconds = time.perf_counter() - start
        with torch.no_grad():
            log_density = estimator.log_prob(test_theta[None], test_x)[0]
    mean, error = sample_mean_and_error(-log_density)
    return {
        "test": mean,
        "error": error,
        "seconds": seconds,
        "epochs": trainer.summary["epochs_trained"][-1],
        "parameters": sum(p.numel() for p in estimator.parameters() if p.requires_grad),
    }


def _choose_estimator(model: str) -> str | Callable[[Tensor, Tensor], Any]:
    if model != "elf":
        return model
    from elflow.integrations.sbi import build_elf  # needs sbi

    return build_elf()


class NoTracker:
    """Tracker of sbi that discards everything, instead of a folder of TensorBoard."""

    log_dir: str | None = None

    def log_metric(self, name: str, value: float, step: int | None = None) -> None:
        """Discard a number."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """Discard numbers."""

    def log_params(self, params: dict[str, Any]) -> None:
        """Discard settings."""

    def add_figure(self, name: str, figure: object, step: int | None = None) -> None:
        """Discard a figure."""

    def flush(self) -> None:
        """Nothing is kept back."""


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    models = [model for model in MODELS if model in plan.options.get("models", MODELS)]
    rows, sizes, n_best, n_rows = [], [], 0, 0
    for count in plan.options.get("simulations", N_SIMULATIONS):
        for name in SIMULATORS:
            keys = {model: f"{name}-{model}-{count}-" for model in models}
            groups = group_records(records, keys.values())
            runs = {model: groups.get(key, []) for model, key in keys.items()}
            if not any(runs.values()):
                continue
            means = {model: mean_and_error([r["test"] for r in found])[0] for model, found in runs.items() if found}
            n_rows += 1
            n_best += min(means, key=lambda model: means[model]) == "elf"
            first = [name, f"{count:,}"]
            rows.append([*first, *(_format(runs[model]) for model in models)])
            sizes.append([*first, *(_format_sizes(runs[model]) for model in models)])
    columns = ["simulator", "simulations", *(MODELS[model] for model in models)]
    note = (
        "Mean over seeds and its standard error, or that over the 5,000 held-out pairs if there is one seed; lower is "
        "better."
    )
    tables = [
        Table("Held-out negative log posterior in nats", columns, rows, note),
        Table("Mean number of epochs, and number of parameters", columns, sizes),
    ]
    return Report(f"ELF has the best mean in {n_best} of {n_rows} comparisons.", tables)


def _format(runs: list[Record]) -> str:
    if len(runs) < 2:
        return "".join(f"{run['test']:.3f} ± {run['error']:.3f}" for run in runs)
    return "{:.3f} ± {:.3f}".format(*mean_and_error([run["test"] for run in runs]))


def _format_sizes(runs: list[Record]) -> str:
    return f"{mean_and_error([r['epochs'] for r in runs])[0]:.0f}, {runs[0]['parameters']:,}" if runs else ""


def _parse_counts(text: str) -> list[int]:
    return [parse_count(part) for part in text.split(",")]


def missing(plan: Plan) -> list[str]:
    return [] if find_spec("sbi") else ["sbi not found: pip install 'elflow[sbi]'"]


EXPERIMENT = Experiment(
    "sbi",
    "Posteriors of simulators with sbi",
    jobs,
    work,
    report,
    missing,
    options={
        "models": Option(parse_choices(MODELS), f"density estimators (default: {','.join(MODELS)})"),
        "sets": Option(parse_choices(SIMULATORS), f"simulators (default: {','.join(SIMULATORS)})"),
        "simulations": Option(_parse_counts, "numbers of simulations (default: 1000,10000)"),
        "seeds": Option(parse_count, f"number of seeds (default: {N_SEEDS})"),
    },
)
