"""The paper's tables of numbers: POWER, GAS, HEPMASS, MINIBOONE and BSDS300, or those of them that are there."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elflow.flows.named import build_flow
from elflow.flows.whitening import Whitened
from elflow.training import Recipe, Rows, fit
from experiments.data.maf import MAF_SETS, find_maf, maf_files, read_maf
from experiments.framework.experiment import Experiment, Job, Plan, Record
from experiments.paper._tabular_report import report

__all__ = ["EXPERIMENTS"]

HIDDEN = (8, 16, 32, 64)
"""The paper's grid of hidden features, for each feature of the table."""
DECAYS = (1e-4, 1e-5, 1e-6)
"""The paper's grid of weight decays."""
TEST_BLOCK = 4_096

PAPER = Recipe(
    learning_rate=1e-3,
    schedule="plateau",
    batch_size=512,
    max_steps=2_000_000,
    round_steps=1_000,
    plateau_patience=5,
    patience=30,
)
"""The paper's protocol: the rate halves on plateaus with a patience of five rounds, and training stops early."""
CPU = Recipe(learning_rate=3e-3, schedule="cosine", batch_size=256, round_steps=200, patience=100_000)
HELD_OUT = 5_000
"""How many rows decide about the best weights, at most."""

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
"""Models for CPUs. By these steps those of a table train for about the same time; NSF does better without whitening."""


def _small(features: int) -> dict[str, dict[str, Any]]:
    return SMALL["wide" if features >= 32 else "narrow"]


def _jobs(plan: Plan) -> list[Job]:
    jobs = []
    for name in _found(plan):
        features = _WIDTHS[name]
        base = {"set": name, "seed": plan.seed, "files": _files(plan, name)}
        jobs.append(Job(f"{name}-gaussian", base | {"model": "gaussian"}))
        if plan.scale == "cpu":
            for model, small in _small(features).items():
                recipe = replace(CPU, max_steps=plan.steps(small["steps"]))
                settings = {"model": model, "flow": small["flow"], "whiten": small.get("whiten", False)}
                jobs.append(Job(f"{name}-{model}", base | settings | {"recipe": recipe.to_dict()}))
            continue
        for times in HIDDEN:
            for decay in DECAYS:
                recipe = replace(PAPER, weight_decay=decay, max_steps=plan.steps(PAPER.max_steps))
                flow = {"transforms": 5, "units": 32, "hidden_features": [times * features] * 2}
                settings = {"model": "elf", "flow": flow, "whiten": False, "recipe": recipe.to_dict()}
                jobs.append(Job(f"{name}-elf-{times}d-{decay:g}", base | settings | {"device": plan.device}))
    return jobs


_WIDTHS = dict(zip(MAF_SETS, (6, 8, 21, 43, 63), strict=True)) | {"bsds300-patches": 63, "power-halfyear": 6}


def _found(plan: Plan) -> list[str]:
    return [name for name in _WIDTHS if plan.data is not None and find_maf(name, plan.data) is not None]


def _files(plan: Plan, name: str) -> list[list[Any]]:
    """What tells the data from others, so that no record of others is taken for one of these."""
    folder = find_maf(name, plan.data) if plan.data is not None else None
    if folder is None:
        return []
    files = {path for file in maf_files(name) for path in folder.glob(f"{Path(file).stem}.*")}
    return plan.stamp(*(str(path.relative_to(plan.data)) for path in sorted(files)))  # type: ignore[arg-type]


def _missing(plan: Plan) -> list[str]:
    found = _found(plan)
    return [
        f"no {name}: --data must be a folder with {', '.join(maf_files(name))}" for name in _WIDTHS if name not in found
    ]


def _work(plan: Plan, settings: Record, folder: Path) -> Record:
    if plan.data is None:
        raise ValueError(f"data must be a folder with {settings['set']}, got None")
    train, val, test = (torch.from_numpy(part) for part in read_maf(settings["set"], plan.data, settings["seed"]))
    loc, scale = train.mean(0), train.std(0)
    for part in (train, val, test):
        part.sub_(loc).div_(scale)
    volume = -float(scale.double().log().sum())
    if not (scale > 0).all() or len(test) < 2:
        constant = [i for i, value in enumerate(scale.tolist()) if not value > 0]
        raise ValueError(
            f"{settings['set']} must have columns that vary and two test rows, got the constant columns {constant} "
            f"and {len(test)} test rows"
        )
    record = {"set": settings["set"], "model": settings["model"], "rows": len(train), "features": train.shape[1]}
    if settings["model"] == "gaussian":
        return (
            record | _mean(_gaussian(train, test) + volume) | {"parameters": train.shape[1] * (train.shape[1] + 3) // 2}
        )
    torch.manual_seed(settings["seed"])
    features = train.shape[1]
    flow = build_flow(settings["model"], features, options=settings["flow"])
    if settings["whiten"]:
        flow = Whitened(flow, range(features))
    best, training = fit(
        flow,
        Rows(train),
        Rows(val[:: -(-len(val) // HELD_OUT)]),
        Recipe(**settings["recipe"]),
        seed=settings["seed"],
        checkpoint=folder / "checkpoint",
        fingerprint=json.dumps(settings, sort_keys=True),
        trainer_options={"accelerator": "gpu"} if settings.get("device") == "cuda" else None,
    )
    scores = _mean(_log_prob(best, test) + volume)
    history = [entry for entry in training.history if math.isfinite(entry["validation"])]
    shown = history[:: max(1, len(history) // 200)]
    curve = {
        "step": [entry["step"] for entry in shown],
        "seconds": [entry["seconds"] for entry in shown],
        "validation": [round(entry["validation"] + volume, 4) for entry in shown],
    }
    return (
        record
        | scores
        | {
            "validation": max(entry["validation"] for entry in history) + volume,
            "parameters": sum(p.numel() for p in flow.parameters()),
            "steps": history[-1]["step"],
            "training": training.seconds,
            "stopped": training.stopped,
            "whitened": settings["whiten"],
            "batch_size": settings["recipe"]["batch_size"],
            "curve": curve,
        }
    )


@torch.no_grad()
def _log_prob(flow: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([flow().log_prob(some).double() for some in x.split(TEST_BLOCK)])


def _gaussian(train: Tensor, test: Tensor) -> Tensor:
    """The log-density of a Gaussian with the covariance of the rows."""
    x = train.double()
    normal = torch.distributions.MultivariateNormal(x.mean(0), x.T.cov())
    return torch.cat([normal.log_prob(some.double()) for some in test.split(TEST_BLOCK)])


def _mean(log_prob: Tensor) -> Record:
    return {"test": float(log_prob.mean()), "error": float(log_prob.std()) / math.sqrt(len(log_prob))}


EXPERIMENTS = {
    "tabular": Experiment("tabular", "Tables: density estimation in 6 to 63 dimensions", _jobs, _work, report, _missing)
}
