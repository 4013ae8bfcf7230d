"""Likelihoods of images: each data set beside published systems, and what a model's size does to them.

`images` trains models of MNIST, CIFAR-10 and ImageNet, as far as they are among the data, and always of scikit-learn's
digits, beside the Glow of normflows if that is installed. `parameter-efficiency` has the paper's small models.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elflow.flows import preset
from elflow.training import Recipe, image_recipe
from experiments.data import images as _image_data
from experiments.framework.experiment import Experiment, Job, Plan, Record
from experiments.paper import _image_report
from experiments.paper._image_fit import (
    SAMPLES_FILE,
    bits_of,
    histogram_bits,
    keep_samples,
    record_of,
    shortened,
    trained,
)

__all__ = ["EXPERIMENTS"]

STEPS = {"digits": 500, "mnist": 180, "cifar10": 60}
"""At the scale of CPUs: for about ten minutes of one core in all."""
HELD_OUT = {"digits": 150, "mnist": 256, "cifar10": 128}
TEST = {"digits": 300, "mnist": 1_000, "cifar10": 400}
"""How many test images are scored at the scale of CPUs; at that of the paper all are."""
MOST_HELD_OUT = 5_000
"""How many images are held out at the scale of the paper, or a tenth, where that is fewer."""
DRAWN = {"digits": 40, "mnist": 20, "cifar10": 12}
"""How many images each model draws, for the experiment `samples`."""
MANY_DRAWN = 40

GLOW: dict[str, Any] = {"scales": 2, "steps": 8, "hidden_channels": 64}
GLOW_RECIPE: dict[str, Any] = {"batch_size": 128, "learning_rate": 6e-3}
"""Of Glow's sizes, batches and rates for the digits, the best that short runs found."""

CHANNELS = [8, 16, 32]
"""Widths of the hypernetworks that are compared on CPUs; 16 is that of the presets."""
SIZE_STEPS = {"digits": 150, "mnist": 110}
COUNTED = ["mnist-small", "mnist", "cifar10-small", "cifar10-vardeq-4m", "cifar10", "imagenet64"]
SMALL = {"mnist-small": "mnist", "cifar10-small": "cifar10", "cifar10-vardeq-4m": "cifar10"}
"""The paper's small models, and what each is of."""


# --- images -----------------------------------------------------------------------------------------------------------


def _jobs(plan: Plan) -> list[Job]:
    both = ["uniform", "variational"]
    jobs = [_job(plan, "digits", "elf", kind, "cpu") for kind in both]
    if find_spec("normflows") is not None:
        jobs.append(_job(plan, "digits", "glow", "uniform", "cpu"))
    for name in _paper_sets(plan):
        if _image_data.find(plan, name) is not None:
            slow = plan.scale == "cpu" and name == "cifar10"
            jobs += [_job(plan, name, "elf", kind, plan.scale) for kind in both[: 1 if slow else 2]]
    return jobs


def _paper_sets(plan: Plan) -> list[str]:
    return ["mnist", "cifar10"] if plan.scale == "cpu" else ["mnist", "cifar10", "imagenet32", "imagenet64"]


def _job(plan: Plan, name: str, system: str, kind: str, scale: str) -> Job:
    key = f"{name}-{kind if system == 'elf' else system}"
    return Job(
        key,
        {
            "dataset": name,
            "file": (file := _image_data.find(plan, name)),
            "stamp": [] if file is None else plan.stamp(file),
            "system": system,
            "preset": name,
            "scale": scale,
            "changes": {"dequantization": kind} if system == "elf" else GLOW,
            "recipe": {} if system == "elf" else GLOW_RECIPE,
            "steps": plan.steps(STEPS[name] if scale == "cpu" else image_recipe().max_steps),
            "held_out": HELD_OUT[name] if scale == "cpu" else None,
            "test": TEST[name] if scale == "cpu" else None,
            "draw": DRAWN[name] if scale == "cpu" else MANY_DRAWN,
            "histogram": kind == "uniform" and system == "elf",
            "seed": plan.seed,
        },
    )


def _work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Trains a model, and scores test images; it leaves `model.elf` and `samples.npz`."""
    x, test = _image_data.images(plan, settings["dataset"], settings["file"])
    scored = _image_data.spread(test, settings["test"])
    flow, recipe = _model(settings, x)
    accelerator = plan.device if settings["system"] == "elf" else "cpu"
    held_out = min(settings["held_out"] or MOST_HELD_OUT, max(1, len(x) // 10))
    best, training = trained(
        flow, recipe, x, None, held_out, settings["seed"], folder, settings, accelerator=accelerator
    )
    best = best.to(accelerator)
    record = {
        "dataset": settings["dataset"],
        "system": settings["system"],
        "scale": settings["scale"],
        "dequantization": getattr(best, "config", {}).get("dequantization", "uniform"),
        "channels": getattr(best, "config", {}).get("channels"),
        "file": settings["file"],
        "train_images": len(x),
        "all_test_images": len(test),
        **record_of(best, training, recipe, x[0].numel()),
        **bits_of(best, scored, seed=settings["seed"]),
    }
    levels = preset(settings["preset"]).flow["levels"]
    if settings["histogram"]:
        record["histogram"] = histogram_bits(x, scored, levels)
    if settings["draw"]:
        torch.manual_seed(settings["seed"])
        keep_samples(folder / SAMPLES_FILE, best.sample(settings["draw"]), levels)
    return record


def _model(settings: Record, x: Tensor) -> tuple[nn.Module, Recipe]:
    """What is to be trained, with fresh weights, and how."""
    found = preset(settings["preset"], settings["scale"])
    recipe = replace(image_recipe(settings["scale"]), **settings["recipe"])
    torch.manual_seed(settings["seed"])
    flow: nn.Module
    if settings["system"] == "glow":
        from experiments.systems.glow import build_glow

        zeros = float((x == 0).double().mean())
        flow = build_glow(found.flow["shape"], found.flow["levels"], zeros=zeros, **settings["changes"])
    else:
        flow = found.build(**settings["changes"])
    rounds: dict[str, Any] = {} if settings["scale"] == "cpu" else {"rounds": None}
    return flow, shortened(recipe, settings["steps"], **rounds)


def _missing(plan: Plan) -> list[str]:
    lines = _image_data.absent(plan, _paper_sets(plan))
    if plan.scale == "cpu":
        lines.append("ImageNet is trained at the scale of the paper only, and CIFAR-10 with variational dequantisation")
    if find_spec("normflows") is None:
        lines.append("Glow is left out, as normflows is not installed: pip install normflows")
    return lines


# --- parameter-efficiency ---------------------------------------------------------------------------------------------


def _size_jobs(plan: Plan) -> list[Job]:
    jobs = [Job("counts", {"count": COUNTED})]
    if plan.scale == "paper":
        for name, of in SMALL.items():
            if _image_data.find(plan, of) is not None:
                job = _job(plan, of, "elf", preset(name).flow.get("dequantization", "uniform"), "paper")
                jobs.append(Job(name, job.settings | {"preset": name, "changes": {}, "draw": 0, "histogram": False}))
        return jobs
    of = _compared(plan)
    for channels in CHANNELS:
        settings = _job(plan, of, "elf", "uniform", "cpu").settings
        changes = {"dequantization": "uniform", "channels": channels}
        steps = plan.steps(SIZE_STEPS[of])
        own = {"changes": changes, "steps": steps, "draw": 0, "histogram": False}
        jobs.append(Job(f"{of}-{channels}-channels", settings | own))
    return jobs


def _compared(plan: Plan) -> str:
    """What widths are compared on at the scale of CPUs."""
    return "digits" if _image_data.find(plan, "mnist") is None else "mnist"


def _size_work(plan: Plan, settings: Record, folder: Path) -> Record:
    if "count" not in settings:
        record = _work(plan, settings, folder)
        return record | {"preset": settings["preset"]}
    counts = {}
    for name in settings["count"]:
        counts[name] = sum(p.numel() for p in preset(name).build().parameters())
    return {"counts": counts}


def _size_missing(plan: Plan) -> list[str]:
    if plan.scale == "paper":
        return _image_data.absent(plan, ["mnist", "cifar10"])
    lines = _image_data.absent(plan, ["mnist"])
    return [*lines, "the paper's small models are trained at the scale of the paper only, and counted here"]


EXPERIMENTS = {
    "images": Experiment("images", "Likelihoods of images", _jobs, _work, _image_report.report, _missing),
    "parameter-efficiency": Experiment(
        "parameter-efficiency",
        "Small models of images",
        _size_jobs,
        _size_work,
        _image_report.size_report,
        _size_missing,
    ),
}
