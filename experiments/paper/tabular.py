"""The paper's tabular data sets: POWER, GAS, HEPMASS, MINIBOONE and BSDS300, as far as they are available."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elflow.flows.named import build_flow
from elflow.flows.whitening import Whitened
from elflow.training import OPTIMIZERS, Recipe, Rows, Training, fit, make_fabric
from experiments.data import describe_missing
from experiments.data.maf import MAF_SETS, find_maf, maf_files, read_maf
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record
from experiments.framework.measure import count_parameters, sample_mean_and_error
from experiments.framework.options import parse_choice, parse_choices, parse_count
from experiments.paper._tabular_report import report
from experiments.paper.claims import with_claims
from experiments.paper.settings import TABLES

__all__ = ["EXPERIMENT", "work"]

TEST_BLOCK = 4_096

CPU = Recipe(learning_rate=3e-3, schedule="cosine", batch_size=256, round_steps=200, patience=100_000)
MAX_VALIDATION_ROWS = 5_000
"""Maximum number of validation rows at the scale of CPUs."""

_NARROW: dict[str, Any] = {"transforms": 5, "hidden_features": [128, 128]}
_WIDE: dict[str, Any] = {"transforms": 3, "hidden_features": [256, 256]}
SMALL: dict[str, dict[str, dict[str, Any]]] = {
    "narrow": {
        "elf": {"flow": _NARROW | {"units": 16}, "steps": 1_700},
        "nsf": {"flow": _NARROW, "steps": 1_500},
        "maf": {"flow": _NARROW, "steps": 5_000},
    },
    "wide": {
        "elf": {"flow": _WIDE | {"units": 8, "scale": True}, "steps": 1_050, "whiten": True},
        "nsf": {"flow": _WIDE, "steps": 750},
        "maf": {"flow": _WIDE, "steps": 3_750, "whiten": True},
    },
}
"""Models for CPUs. Models of a table train for about the same time; NSF is better without whitening."""


FEATURES = dict(zip(MAF_SETS, (6, 8, 21, 43, 63), strict=True)) | {"bsds300-patches": 63, "power-halfyear": 6}
"""Number of features of each data set."""


def jobs(plan: Plan) -> list[Job]:
    jobs = []
    for name in _find_sets(plan):
        if name not in plan.options.get("sets", FEATURES):
            continue
        features = FEATURES[name]
        base = {"set": name, "seed": plan.seed, "files": _stamp_files(plan, name)}
        jobs.append(Job(f"{name}-gaussian", base | {"model": "gaussian"}))
        if plan.scale == "cpu":
            small = SMALL["wide" if features >= 32 else "narrow"]
            changed = {key: plan.options[key] for key in ("optimizer", "batch_size") if key in plan.options}
            for model in plan.options.get("flows", small):
                recipe = replace(CPU, max_steps=plan.scaled(small[model]["steps"]), **changed)
                settings = {"model": model, "flow": small[model]["flow"], "whiten": small[model].get("whiten", False)}
                jobs.append(Job(f"{name}-{model}", base | settings | {"recipe": recipe.to_dict()}))
        else:
            jobs += _make_grid(plan, name, features, base)
    return jobs


def _make_grid(plan: Plan, name: str, features: int, base: Record) -> list[Job]:
    """The paper's grid on a data set: the jobs of its ELF-AR."""
    options, jobs = plan.options, []
    grid = product(
        map(int, options.get("widths", TABLES.widths)),
        map(float, options.get("decays", TABLES.decays)),
        map(int, options.get("units", TABLES.units)),
        plan.seeds(TABLES.models)[: options.get("models", TABLES.models)],
    )
    for width, decay, units, seed in grid:
        settings = {
            "model": "elf-paper",
            "cell": f"{width}d, {units} units, decay {decay:g}",
            "flow": TABLES.make_elf(features, width, units),
            "whiten": False,
            "recipe": TABLES.make_recipe(name, decay),
            "epochs": plan.scaled(TABLES.max_epochs),
            "model_seed": seed,
            "device": plan.device,
        }
        jobs.append(Job(f"{name}-elf-{width}d-{units}-{decay:g}-{seed}", base | settings))
    return jobs


def _find_sets(plan: Plan) -> list[str]:
    return [name for name in FEATURES if plan.data is not None and find_maf(name, plan.data) is not None]


def _stamp_files(plan: Plan, name: str) -> list[list[Any]]:
    """The stamp of the files of a data set."""
    folder = find_maf(name, plan.data) if plan.data is not None else None
    if folder is None or plan.data is None:
        return []
    files = {path for file in maf_files(name) for path in folder.glob(f"{Path(file).stem}.*")}
    return plan.stamp(*(str(path.relative_to(plan.data)) for path in sorted(files)))


def missing(plan: Plan) -> list[str]:
    available = _find_sets(plan)
    return [describe_missing(name, " and ".join(maf_files(name))) for name in FEATURES if name not in available]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Fit a model to a data set and score its test rows, in the units of the data."""
    train, val, test, volume = _read_standardized(plan, settings)
    features = train.shape[1]
    record = {"set": settings["set"], "model": settings["model"], "rows": len(train), "features": features}
    if settings["model"] == "gaussian":
        scores = _summarize(_score_gaussian(train, test) + volume)
        return record | scores | {"parameters": features * (features + 3) // 2}
    seed = settings["model_seed"] if "model_seed" in settings else settings["seed"]
    torch.manual_seed(seed)
    defaults = {"scale": False} if settings["model"] == "elf" else {}
    flow = build_flow(settings["model"].removesuffix("-paper"), features, options=defaults | settings["flow"])
    recipe = Recipe(**settings["recipe"])
    if "epochs" in settings:  # rounds are epochs, and all validation rows are scored
        epoch = math.ceil(len(train) / recipe.batch_size)
        recipe = replace(recipe, round_steps=epoch, max_steps=settings["epochs"] * epoch)
    else:
        val = val[:: -(-len(val) // MAX_VALIDATION_ROWS)]
    start = time.process_time()  # of this process: a resumed run counts its last part only
    if settings["whiten"]:
        flow = Whitened(flow, features, learnable=False)
    best, training = fit(
        flow,
        Rows(train),
        Rows(val),
        recipe,
        seed=seed,
        checkpoint=folder / "checkpoint",
        fingerprint=json.dumps(settings, sort_keys=True),
        fabric=make_fabric(settings.get("device", "cpu")),
    )
    scores = _summarize(_log_prob(best.cpu(), test) + volume)
    described = _describe_training(training, settings, volume)
    sizes = {"parameters": count_parameters(flow), "cpu_seconds": time.process_time() - start}
    return record | scores | described | sizes


def _read_standardized(plan: Plan, settings: Record) -> tuple[Tensor, Tensor, Tensor, float]:
    """Standardised training, validation and test rows, and the log-volume that converts scores to units of the data."""
    if plan.data is None:
        raise FileNotFoundError(describe_missing(settings["set"], " and ".join(maf_files(settings["set"]))))
    train, val, test = (torch.from_numpy(part) for part in read_maf(settings["set"], plan.data, settings["seed"]))
    loc, scale = train.mean(0), train.std(0)
    for part in (train, val, test):
        part.sub_(loc).div_(scale)
    if not (scale > 0).all() or len(test) < 2:
        constant = [i for i, value in enumerate(scale.tolist()) if not value > 0]
        raise ValueError(
            f"{settings['set']} must have columns that vary and two test rows, got the constant columns {constant} "
            f"and {len(test)} test rows"
        )
    return train, val, test, -float(scale.double().log().sum())


def _describe_training(training: Training, settings: Record, volume: float) -> Record:
    """Settings, length and curve of a training, with log-likelihoods in units of the data."""
    history = [entry for entry in training.history if math.isfinite(entry["validation"])]
    shown = history[:: max(1, len(history) // 200)]
    return {
        "validation": max(entry["validation"] for entry in history) + volume,
        "steps": history[-1]["step"],
        "training": training.seconds,
        "stopped": training.stopped,
        "whitened": settings["whiten"],
        "cell": settings.get("cell", ""),
        "batch_size": settings["recipe"]["batch_size"],
        "optimizer": settings["recipe"]["optimizer"],
        "curve": {
            "step": [entry["step"] for entry in shown],
            "seconds": [entry["seconds"] for entry in shown],
            "validation": [round(entry["validation"] + volume, 4) for entry in shown],
        },
    }


@torch.no_grad()
def _log_prob(flow: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([flow().log_prob(some).double() for some in x.split(TEST_BLOCK)])


def _score_gaussian(train: Tensor, test: Tensor) -> Tensor:
    """Log-densities under a Gaussian with the mean and covariance of the training rows."""
    x = train.double()
    normal = torch.distributions.MultivariateNormal(x.mean(0), x.T.cov())
    return torch.cat([normal.log_prob(some.double()) for some in test.split(TEST_BLOCK)])


def _summarize(log_prob: Tensor) -> Record:
    mean, error = sample_mean_and_error(log_prob)
    return {"test": mean, "error": error}


def _parse_some(values: Sequence[float]) -> Option:
    names = [f"{value:g}" for value in values]
    return Option(parse_choices(names), f"part of the paper's grid, with --scale paper: some of {', '.join(names)}")


OPTIONS = {
    "sets": Option(parse_choices(list(FEATURES)), "data sets (default: all that are found)"),
    "flows": Option(parse_choices(list(SMALL["wide"])), "flows, with --scale cpu (default: all)"),
    "optimizer": Option(parse_choice(OPTIMIZERS), f"optimizer, with --scale cpu: one of {', '.join(OPTIMIZERS)}"),
    "batch_size": Option(parse_count, f"batch size, with --scale cpu (default: {CPU.batch_size})"),
    "widths": _parse_some(TABLES.widths),
    "decays": _parse_some(TABLES.decays),
    "units": _parse_some(TABLES.units),
    "models": Option(parse_count, f"models of each cell of the paper's grid, at most {TABLES.models}"),
}
EXPERIMENT = with_claims(
    Experiment("tabular", "Tables: density estimation in 6 to 63 dimensions", jobs, work, report, missing, OPTIONS)
)
