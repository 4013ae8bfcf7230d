"""Small image models: their numbers of parameters, and the effect of the size on the likelihood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from elflow.flows import preset
from experiments.data.images import find_images, list_missing
from experiments.framework.experiment import Experiment, Job, Plan, Record
from experiments.framework.measure import count_parameters
from experiments.paper import images
from experiments.paper._image_report import size_report
from experiments.paper.claims import with_claims
from experiments.paper.settings import IMAGES

__all__ = ["EXPERIMENT"]

CHANNELS = [8, 16, 32]
"""Widths of the hypernetworks that are compared on CPUs; 16 is that of the presets."""
STEPS = {"digits": 150, "mnist": 110}
COUNTED = ["mnist-small", "mnist", "cifar10-small", "cifar10-vardeq-4m", "cifar10", "imagenet64"]
READINGS = {"counts": "gpu", "widths": "paper"}
"""The two readings of the paper's small models, by the sizes of the presets: the printed numbers of parameters, and the
printed widths."""
SMALL = {"mnist-small": "mnist", "cifar10-small": "cifar10", "cifar10-vardeq-4m": "cifar10"}
"""Presets of the paper's small models, and their data sets."""


def jobs(plan: Plan) -> list[Job]:
    both = [*COUNTED, *(f"{name}:paper" for name in SMALL)]
    jobs = [Job("counts", {"count": both})]
    if plan.scale == "paper":
        for name, dataset in SMALL.items():
            if find_images(plan, dataset) is not None:
                kind = preset(name).flow.get("dequantization", "uniform")
                for reading, size in READINGS.items():
                    own = {"preset": name, "changes": {}, "size": size, "time_limit": IMAGES.max_seconds_small}
                    jobs.append(Job(f"{name}-{reading}", _settings(plan, dataset, kind) | own))
        return jobs
    dataset = "digits" if find_images(plan, "mnist") is None else "mnist"
    for channels in CHANNELS:
        changes = {"dequantization": "uniform", "channels": channels}
        own = {"changes": changes, "steps": plan.scaled(STEPS[dataset])}
        jobs.append(Job(f"{dataset}-{channels}-channels", _settings(plan, dataset, "uniform") | own))
    return jobs


def _settings(plan: Plan, dataset: str, kind: str) -> dict[str, Any]:
    job = images.make_job(plan, dataset, "elf", kind, plan.scale)
    return job.settings | {"n_samples": 0, "histogram": False}


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    if "count" in settings:
        return {"counts": {name: _count(name) for name in settings["count"]}}
    return images.work(plan, settings, folder) | {"preset": settings["preset"]}


def _count(name: str) -> int:
    """Parameters of a preset: its name, or its name and size as in `mnist-small:paper`."""
    own, _, size = name.partition(":")
    return count_parameters(preset(own, size or "gpu").build())


def missing(plan: Plan) -> list[str]:
    if plan.scale == "paper":
        return list_missing(plan, ["mnist", "cifar10"])
    lines = list_missing(plan, ["mnist"])
    return [*lines, "the paper's small models are trained with --scale paper only; here their parameters are counted"]


EXPERIMENT = with_claims(Experiment("parameter-efficiency", "Small image models", jobs, work, size_report, missing))
