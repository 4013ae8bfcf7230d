"""Likelihoods of images: each data set beside published systems.

Trains models of MNIST, CIFAR-10 and ImageNet if they are in the data folder, and of scikit-learn's digits in any case,
beside the Glow of normflows if that is installed.
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
from experiments.data.images import find_images, list_missing, load_images, spread
from experiments.framework.experiment import Experiment, Job, Plan, Record
from experiments.paper._image_report import report
from experiments.paper.claims import with_claims
from experiments.paper.image_fit import (
    GLOW,
    GLOW_RECIPE,
    SAMPLES_FILE,
    make_glow,
    save_samples,
    score_histogram,
    score_images,
    shorten_recipe,
    summarize_training,
    train_images,
)
from experiments.paper.settings import IMAGES

__all__ = ["EXPERIMENT", "make_job", "work"]

STEPS = {"digits": 500, "mnist": 180, "cifar10": 60}
"""Training steps at the scale of CPUs: about ten minutes of one core in total."""
N_VALIDATION = {"digits": 150, "mnist": 256, "cifar10": 128}
N_TEST = {"digits": 300, "mnist": 1_000, "cifar10": 400}
"""Numbers of test images at the scale of CPUs; at the scale of the paper all of them are scored."""
MAX_VALIDATION = 5_000
"""Maximum number of validation images at the scale of the paper, where they are a tenth of the images."""
N_SAMPLES = {"digits": 40, "mnist": 20, "cifar10": 12}
"""Numbers of images that each model draws for the experiment `samples`."""
N_SAMPLES_PAPER = 40


def jobs(plan: Plan) -> list[Job]:
    kinds = ["uniform", "variational"]
    jobs = [make_job(plan, "digits", "elf", kind, "cpu") for kind in kinds]
    if find_spec("normflows") is not None:
        jobs.append(make_job(plan, "digits", "glow", "uniform", "cpu"))
    for name in _list_datasets(plan):
        if find_images(plan, name) is not None:
            is_slow = plan.scale == "cpu" and name == "cifar10"
            jobs += [make_job(plan, name, "elf", kind, plan.scale) for kind in kinds[: 1 if is_slow else 2]]
    return jobs


def _list_datasets(plan: Plan) -> list[str]:
    return ["mnist", "cifar10"] if plan.scale == "cpu" else ["mnist", "cifar10", "imagenet32", "imagenet64"]


def make_job(plan: Plan, name: str, system: str, kind: str, scale: str) -> Job:
    """The training of one model.

    Arguments:
        plan: The plan.
        name: The data set.
        system: `"elf"` or `"glow"`.
        kind: The dequantisation of ELF.
        scale: `"cpu"` or `"paper"`.
    """
    key = f"{name}-{kind if system == 'elf' else system}"
    return Job(
        key,
        {
            "dataset": name,
            "file": (file := find_images(plan, name)),
            "stamp": [] if file is None else plan.stamp(file),
            "system": system,
            "preset": name,
            "scale": scale,
            "size": scale,
            "time_limit": None if scale == "cpu" else IMAGES.max_seconds,
            "changes": {"dequantization": kind} if system == "elf" else GLOW,
            "recipe": {} if system == "elf" else GLOW_RECIPE,
            "steps": plan.scaled(STEPS[name] if scale == "cpu" else image_recipe("paper").max_steps),
            "n_validation": N_VALIDATION[name] if scale == "cpu" else None,
            "n_test": N_TEST[name] if scale == "cpu" else None,
            "n_samples": N_SAMPLES[name] if scale == "cpu" else N_SAMPLES_PAPER,
            "histogram": kind == "uniform" and system == "elf",
            "seed": plan.seed,
        },
    )


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Train a model and score test images. Leave `model.elf` and `samples.npz` in the folder."""
    x, test = load_images(plan, settings["dataset"], settings["file"])
    scored = spread(test, settings["n_test"])
    flow, recipe = _make_model(settings, x)
    device = plan.device if settings["system"] == "elf" else "cpu"
    n_validation = min(settings["n_validation"] or MAX_VALIDATION, max(1, len(x) // 10))
    best, training = train_images(flow, recipe, x, None, n_validation, settings["seed"], folder, settings, device)
    best = best.to(device)
    record = {
        "dataset": settings["dataset"],
        "system": settings["system"],
        "scale": settings["scale"],
        "dequantization": getattr(best, "config", {}).get("dequantization", "uniform"),
        "channels": getattr(best, "config", {}).get("channels"),
        "file": settings["file"],
        "train_images": len(x),
        "all_test_images": len(test),
        **summarize_training(best, training, recipe, x[0].numel()),
        **score_images(best, scored, seed=settings["seed"]),
    }
    levels = preset(settings["preset"]).flow["levels"]
    if settings["histogram"]:
        record["histogram"] = score_histogram(x, scored, levels)
    if settings["n_samples"]:
        torch.manual_seed(settings["seed"])
        save_samples(folder / SAMPLES_FILE, best.sample(settings["n_samples"]), levels)
    return record


def _make_model(settings: Record, x: Tensor) -> tuple[nn.Module, Recipe]:
    """A model with random weights, and its recipe."""
    chosen = preset(settings["preset"], settings["size"])
    recipe = replace(image_recipe(settings["scale"]), **settings["recipe"])
    torch.manual_seed(settings["seed"])
    flow: nn.Module
    if settings["system"] == "glow":
        flow = make_glow(chosen.flow["shape"], chosen.flow["levels"], x, settings["changes"])
    else:
        flow = chosen.build(**settings["changes"])
    rounds: dict[str, Any] = {} if settings["scale"] == "cpu" else {"rounds": None}
    return flow, replace(shorten_recipe(recipe, settings["steps"], **rounds), time_limit=settings["time_limit"])


def missing(plan: Plan) -> list[str]:
    lines = list_missing(plan, _list_datasets(plan))
    if plan.scale == "cpu":
        lines.append("ImageNet, and CIFAR-10 with variational dequantisation, are trained with --scale paper only")
    if find_spec("normflows") is None:
        lines.append("no Glow without normflows: pip install 'elflow[experiments]' in a checkout")
    return lines


EXPERIMENT = with_claims(Experiment("images", "Likelihoods of images", jobs, work, report, missing))
