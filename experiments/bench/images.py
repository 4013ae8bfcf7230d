"""Image models: ELF beside the Glow of normflows and a histogram of each pixel, within the same time.

The models train in parallel, each on one thread, with the same validation images. Digits are scikit-learn's; MNIST and
CIFAR-10, or a part of it, are read from the data folder.
"""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from elflow.flows import preset
from elflow.io.grids import write_grid
from elflow.training import OPTIMIZERS, format_duration, image_recipe
from experiments.data.images import DATASETS, find_images, list_missing, load_images
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.figure import GREEN, draw_figure
from experiments.framework.options import (
    parse_choice,
    parse_choices,
    parse_count,
    parse_positive,
    parse_seconds,
    parse_sizes,
)
from experiments.paper.image_fit import (
    GLOW,
    GLOW_RECIPE,
    make_glow,
    score_histogram,
    score_images,
    shorten_recipe,
    summarize_training,
    train_images,
)

__all__ = ["EXPERIMENT"]

MODELS = {
    "uniform": "ELF",
    "attention": "ELF, attention",
    "variational": "ELF, variational",
    "glow": "Glow of normflows",
}
COLORS = {"uniform": GREEN, "attention": "#8c2d5a", "variational": "#4a5fa5", "glow": "#b8860b"}
MODEL_CHANGES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "attention": {"attention": 1},
    "variational": {"dequantization": "variational"},
}
"""Changes of the preset for each ELF."""
STEP_COSTS = {"digits": {"attention": 1.33}, "mnist": {"attention": 1.13}, "cifar10": {}}
"""CPU time of a training step in multiples of that of the ELF without attention, of interleaved steps; 1 if it was not
measured."""
TIME_LIMITS = {"digits": 120.0, "mnist": 3600.0, "cifar10": 3600.0}
N_VALIDATION = {"digits": 150, "mnist": 1_000, "cifar10": 200}
ROUND_STEPS = {"digits": 50, "mnist": 250, "cifar10": 100}
ELF_RECIPES: dict[str, dict[str, Any]] = {"digits": {}, "mnist": {}, "cifar10": {"batch_size": 16}}
"""Changes of the recipe for CPUs. On CIFAR-10, batches of 16 were ahead of 32 in short runs."""
GLOW_SIZES = {"digits": GLOW, "mnist": GLOW, "cifar10": GLOW | {"scales": 3}}
GLOW_RECIPES: dict[str, dict[str, Any]] = {
    "digits": GLOW_RECIPE,
    "mnist": {"batch_size": 64, "learning_rate": 4e-3, "hold_steps": 4_000, "gamma": 0.9998},
    "cifar10": {"batch_size": 32, "learning_rate": 4e-3, "hold_steps": 4_000, "gamma": 0.9998},
}
"""The best of short runs, as are the size and preprocessing of Glow on digits and MNIST. On CIFAR-10, only learning
rates of 0.002 and 0.004 were tried, with one size and batch size. At 0.002, Glow's own linear preprocessing was
slightly ahead of the logit after a minute; it was not tried at 0.004."""
MAX_STEPS = 1_000_000
N_ROUNDS = 20
"""Number of validations of a training run with a given number of steps."""
N_SAMPLES = 100
SIZES = ["transforms", "units", "channels", "blocks"]
"""Arguments of `elflow.ImageELF` that `--set sizes` changes."""
RECIPE = ["optimizer", "learning_rate", "weight_decay", "batch_size", "cooldown"]
"""Arguments of `elflow.training.Recipe` that options change, for ELF."""


def jobs(plan: Plan) -> list[Job]:
    models = plan.options.get("models", ["uniform", "glow"])
    if find_spec("normflows") is None:
        models = [model for model in models if model != "glow"]
    jobs = []
    for name in plan.options.get("datasets", TIME_LIMITS):
        file = find_images(plan, name)
        if file is None and DATASETS[name].files:
            continue
        seconds = plan.options.get("time_limit")
        if seconds is None and "max_steps" not in plan.options:
            seconds = plan.seconds(TIME_LIMITS[name])
        same = {"dataset": name, "file": file, "stamp": [] if file is None else plan.stamp(file), "seed": plan.seed}
        for model in models:
            steps = plan.options.get("max_steps")
            steps = None if steps is None else round(steps / STEP_COSTS[name].get(model, 1.0))
            settings: Record = {"model": model, "limits": {"steps": steps, "time_limit": seconds}, **same}
            if model == "glow":
                settings |= {"sizes": GLOW_SIZES[name], "recipe": GLOW_RECIPES[name]}
            else:
                recipe = {key: plan.options[key] for key in RECIPE if key in plan.options}
                settings |= {"sizes": plan.options.get("sizes", {}), "recipe": ELF_RECIPES[name] | recipe}
            jobs.append(Job(f"{name}-{model}", settings))
        jobs.append(Job(f"{name}-histogram", {"model": "histogram", **same}))
    return jobs


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    name, model, seed = settings["dataset"], settings["model"], settings["seed"]
    x, test = load_images(plan, name, settings["file"])
    chosen = preset(name, size="cpu")
    levels = chosen.flow["levels"]
    if model == "histogram":
        return {"dataset": name, "model": model, **score_histogram(x, test, levels)}
    torch.manual_seed(seed)
    flow: nn.Module
    recipe = replace(image_recipe("cpu"), round_steps=ROUND_STEPS[name], patience=1_000, max_steps=MAX_STEPS)
    if settings["limits"]["steps"] is not None:
        recipe = shorten_recipe(recipe, settings["limits"]["steps"], N_ROUNDS)
    recipe = replace(recipe, time_limit=settings["limits"]["time_limit"])
    if model == "glow":
        flow = make_glow(chosen.flow["shape"], levels, x, settings["sizes"])
    else:
        flow = chosen.build(**MODEL_CHANGES[model] | settings["sizes"])
    recipe = replace(recipe, **settings["recipe"])
    n_validation = min(N_VALIDATION[name], max(1, len(x) // 10))
    start = time.process_time()
    best, training = train_images(flow, recipe, x, None, n_validation, seed, folder, settings)
    cpu = time.process_time() - start
    torch.manual_seed(seed)
    write_grid(best.sample(N_SAMPLES), folder / "samples.png", levels=levels)
    summary = summarize_training(best, training, recipe, x[0].numel())
    return {"dataset": name, "model": model, "training_cpu": cpu, **summary, **score_images(best, test, seed=seed)}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    tables, sentences, pictures = [], [], {}
    for name in TIME_LIMITS:
        runs = {key: record for key, record in records.items() if record["dataset"] == name}
        if not runs:
            continue
        ranked = sorted(runs.values(), key=lambda record: float(record["bits"]))
        title = DATASETS[name].title
        columns = ["model", "bits/dim", "parameters", "steps", "batch size", "training", "CPU time"]
        note = (
            "Bits per dimension of test images with the standard error over images; lower is better. The CPU time is "
            "that of the last run if training was resumed."
        )
        tables.append(Table(title, columns, [_make_row(record) for record in ranked], note))
        sentences.append(
            f"On {title}, {_make_title(ranked[0])} is best, with {ranked[0]['bits']:.3f} bits per dimension."
        )
        trained = [record for record in runs.values() if "curve" in record]
        if trained:
            _draw_curves(folder / f"{name}-curves.png", title, trained)
            pictures[f"{name}-curves.png"] = f"{title}: validation bits per dimension during training."
        for key, record in runs.items():
            samples = folder / "jobs" / key / "samples.png"
            if samples.is_file():
                (folder / f"{key}.png").write_bytes(samples.read_bytes())
                pictures[f"{key}.png"] = f"{title}: samples of {_make_title(record)}."
    return Report(" ".join(sentences), tables, pictures)


def _make_title(record: Record) -> str:
    return MODELS.get(record["model"], "histogram of each pixel")


def _make_row(record: Record) -> list[str]:
    sizes = ["", "", "", "", ""]
    if "curve" in record:
        sizes = [f"{record['parameters']:,}", f"{record['steps']:,}", str(record["batch_size"])]
        sizes += [format_duration(record["training_seconds"]), format_duration(record["training_cpu"])]
    return [_make_title(record), f"{record['bits']:.4f} ± {record['error']:.4f}", *sizes]


def _draw_curves(path: Path, title: str, runs: list[Record]) -> None:
    with draw_figure(path, columns=2, figsize=(11, 4), sharey=True) as (_, axes):
        for record in runs:
            steps, seconds, bits = zip(*record["curve"], strict=True)
            for place, x in ((axes[0, 0], [s / 60 for s in seconds]), (axes[0, 1], steps)):
                place.plot(x, bits, color=COLORS[record["model"]], label=_make_title(record))
        axes[0, 0].set(xlabel="minutes", ylabel="validation bits per dimension", title=title)
        axes[0, 1].set(xlabel="steps")
        axes[0, 1].legend(frameon=False)


def missing(plan: Plan) -> list[str]:
    lines = list_missing(plan, list(plan.options.get("datasets", TIME_LIMITS)))
    if find_spec("normflows") is None:
        lines.append("no Glow without normflows: pip install 'elflow[experiments]' in a checkout")
    return lines


EXPERIMENT = Experiment(
    "images",
    "Image models with equal training time",
    jobs,
    work,
    report,
    missing,
    options={
        "time_limit": Option(parse_seconds, "seconds for each training (default: 120 for digits, 3600 for others)"),
        "max_steps": Option(
            parse_count,
            "training steps without attention, in place of the time limit; with attention, as many as take as long",
        ),
        "models": Option(parse_choices(MODELS), "models (default: uniform,glow)"),
        "datasets": Option(parse_choices(TIME_LIMITS), f"data sets (default: {','.join(TIME_LIMITS)})"),
        "optimizer": Option(parse_choice(OPTIMIZERS), "optimizer of ELF (default: adamw)"),
        "learning_rate": Option(parse_positive, "learning rate of ELF (default: 0.004)"),
        "weight_decay": Option(parse_positive, "weight decay of ELF (default: none)"),
        "batch_size": Option(parse_count, "batch size of ELF (default: 32; 16 for cifar10)"),
        "cooldown": Option(
            parse_positive, "part of the time limit over which the learning rate of ELF falls (default: 0.25)"
        ),
        "sizes": Option(parse_sizes(SIZES), "sizes of ELF that differ from the preset, such as channels=24,blocks=3"),
    },
)
