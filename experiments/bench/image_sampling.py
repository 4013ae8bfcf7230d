"""Sampling from an image model: exact sweeps, one coordinate after the other, and the paper's fixed point.

The model is `mnist.elf` of the data folder, or that of `--set model=PATH`. All methods start from the same noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import elflow
from elflow.io.grids import write_grid
from elflow.transforms import METHODS
from experiments.data import describe_missing
from experiments.data.images import MODEL, find_model
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.paper.sampling import METHOD_TITLES, compare_methods, invert_images

__all__ = ["EXPERIMENT"]

N_SAMPLES, N_SLOW_SAMPLES = 64, 16
"""Numbers of samples of exact sweeps, and of each method for the comparison."""


def _parse_model(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError(f"must be the file of a model, got {value!r}")
    return str(Path(value).resolve())


def _find_model(plan: Plan) -> Path | None:
    return Path(plan.options["model"]) if "model" in plan.options else find_model(plan)


def jobs(plan: Plan) -> list[Job]:
    path = _find_model(plan)
    if path is None:
        return []
    stamp = [path.stat().st_size, path.stat().st_mtime_ns]
    counts = {"samples": max(2, plan.scaled(N_SAMPLES)), "slow_samples": plan.scaled(N_SLOW_SAMPLES)}
    return [Job("methods", {"model": path.name, "stamp": stamp, "seed": plan.seed, **counts})]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    path = _find_model(plan)
    assert path is not None  # without it there are no jobs
    model = elflow.load(path)
    if not isinstance(model, elflow.ImageELF) or model.context:
        raise ValueError(f"model must be an image model without a context, got {type(model).__name__} in {path}")
    decode = invert_images(model, torch.arange(model.classes) if model.classes else None)
    last: list[Tensor] = []

    def invert(z: Tensor, method: str) -> tuple[Tensor, Any]:
        x, info = decode(z, method)
        last[:] = [x]
        return x, info

    torch.manual_seed(settings["seed"])
    z = torch.randn(settings["samples"], model.flow.features)
    methods = compare_methods(invert, z, settings["slow_samples"])  # exact sweeps over all points come last
    write_grid(last[0], folder / "samples.png", levels=model.levels)
    return {"model": settings["model"], "shape": list(model.shape), "methods": methods}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    (record,) = records.values()
    *few, many = record["methods"]
    by_method = {each["method"]: each for each in few}
    rows = []
    for each in [*few, many]:
        per_sample = each["seconds"] / each["samples"]
        ratio = per_sample / (by_method["exact"]["seconds"] / by_method["exact"]["samples"])
        rows.append(
            [
                f"ELF, {METHOD_TITLES[each['method']]}",
                str(each["samples"]),
                f"{sum(each['calls']):,}",
                "not finite" if each["residual"] is None else f"{each['residual']:.1e}",
                "yes" if each["converged"] else "no",
                str(each["n_different"]),
                f"{per_sample:.2g}",
                f"{ratio:.1f}",
            ]
        )
    ratios = [by_method[name]["seconds"] / by_method["exact"]["seconds"] for name in METHODS if name != "exact"]
    slower = " and ".join(
        f"{METHOD_TITLES[name]} takes {ratio:.1f}"
        for name, ratio in zip([name for name in METHODS if name != "exact"], ratios, strict=True)
    )
    text = f"Relative to exact sweeps, {slower} times as long for the same {few[0]['samples']} images."
    columns = [
        "method",
        "samples",
        "network evaluations",
        "residual",
        "converged",
        "different pixels",
        "seconds per sample",
        "relative to exact sweeps",
    ]
    (folder / "samples.png").write_bytes((folder / "jobs" / "methods" / "samples.png").read_bytes())
    pictures = {"samples.png": f"Samples of {record['model']} by exact sweeps."}
    note = (
        "Calls are those of the slowest sample. Pixels are compared with exact sweeps over the same noise. CPU seconds."
    )
    return Report(text, [Table(f"Sampling from {record['model']}", columns, rows, note)], pictures)


def missing(plan: Plan) -> list[str]:
    if _find_model(plan) is not None:
        return []
    return [f"{describe_missing('A model of images', MODEL)}, or --set model=PATH must name one"]


EXPERIMENT = Experiment(
    "image-sampling",
    "Speed of sampling images",
    jobs,
    work,
    report,
    missing,
    options={"model": Option(_parse_model, f"file of an image model (default: {MODEL} of the data folder)")},
    exclusive=True,
)
