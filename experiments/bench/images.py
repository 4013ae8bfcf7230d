"""Images: an exact-Lipschitz flow beside the Glow of normflows and a histogram of each pixel.

python -m experiments.bench.images --data digits --minutes 2
python -m experiments.bench.images --data FOLDER --minutes 60
python -m experiments.bench.images --data FOLDER --models uniform,variational --max-steps 1000

The flows train at the same time, each in a process of its own on one thread, with the same engine and the same held-out
images. `digits` are scikit-learn's; a folder holds MNIST, as mnist.npz or as its idx files. It needs normflows:
pip install --constraint constraints.txt --editable ".[reproduce]".
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import elflow
from experiments.bench._measure import RESULTS, machine, write
from elflow._files import replacing
from elflow.datasets.example import digits
from elflow.io.grids import write_grid
from elflow.io.images import read_images
from elflow.flows import Preset, preset
from elflow.training import Recipe, Rows, fit, image_recipe

LABELS = {
    "uniform": "ELF",
    "variational": "ELF, variational",
    "glow": "Glow of normflows",
    "histogram": "histogram of pixels",
}
HELD_OUT = {"digits": 150, "mnist": 1_000}
ROUND_STEPS = {"digits": 50, "mnist": 250}
GLOW: dict[str, Any] = {"scales": 2, "steps": 8, "hidden_channels": 64}
GLOW_RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"batch_size": 128, "learning_rate": 6e-3},
    "mnist": {"batch_size": 64, "learning_rate": 4e-3, "hold_steps": 4_000, "gamma": 0.9998},
}
"""The best of short runs, as are Glow's sizes and preprocessing: its steps are faster, and it likes larger batches."""


def images(data: str) -> tuple[str, Tensor, Tensor]:
    """The preset, the training images and the test images."""
    if data == "digits":
        found = digits()
        return "digits", torch.from_numpy(found["x_train"]), torch.from_numpy(found["x_test"])
    file = Path(data) / "mnist.npz"
    source = file if file.exists() else Path(data)
    return "mnist", read_images(source, "train").x, read_images(source, "test").x


def model(name: str, chosen: Preset, recipe: dict[str, Any], x: Tensor) -> tuple[nn.Module, Recipe]:
    if name == "glow":
        from experiments.systems.glow import build_glow

        zeros = float((x == 0).double().mean())
        shape, levels = chosen.flow["shape"], chosen.flow["levels"]
        return build_glow(shape, levels, zeros=zeros, **GLOW), replace(image_recipe("cpu"), **recipe)
    return chosen.build(dequantization="variational" if name == "variational" else "uniform"), image_recipe("cpu")


def bits_of(flow: Any, x: Tensor, seed: int) -> dict[str, float]:
    """The mean over test images, and its standard error."""
    torch.manual_seed(seed)
    bits = torch.cat([flow.bits_per_dim(part) for part in x.split(500)])
    return {"test_bits": float(bits.mean()), "standard_error": float(bits.std() / math.sqrt(len(bits)))}


class Histogram:
    """Each pixel for itself: its levels as often as in the training images, one more of each."""

    def __init__(self, x: Tensor, levels: int) -> None:
        pixels = torch.arange(x[0].numel())
        counts = torch.bincount((x.flatten(1).long() + levels * pixels).flatten(), minlength=levels * len(pixels))
        counts = counts.view(-1, levels) + 1
        self.log_share = (counts / counts.sum(-1, keepdim=True)).log2()

    def bits_per_dim(self, x: Tensor) -> Tensor:
        flat = x.flatten(1).long()
        return -self.log_share.expand(len(x), -1, -1).gather(-1, flat[..., None]).squeeze(-1).mean(-1)


def one(name: str, data: str, limits: dict[str, Any], seed: int, kept: Path) -> None:
    """Trains one flow and writes what came of it."""
    kind, x, test = images(data)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    held_out, training = x[order[: HELD_OUT[kind]]], x[order[HELD_OUT[kind] :]]
    torch.manual_seed(seed)
    flow, recipe = model(name, preset(kind, size="cpu"), GLOW_RECIPES[kind], training)
    recipe = replace(recipe, round_steps=ROUND_STEPS[kind], patience=1_000, **limits)
    bit = x[0].numel() * math.log(2)

    def told(_: Any, entry: dict[str, float]) -> None:
        bits = -entry["validation"] / bit
        print(f"{name:12} step {entry['step']:6} {entry['seconds'] / 60:5.1f} min {bits:.4f} bits/dim", flush=True)

    flow, went = fit(flow, Rows(training), Rows(held_out), recipe, seed=seed, after_round=told)
    sample: Callable[[int], Tensor] = flow.sample  # type: ignore[assignment]
    write_grid(sample(100), kept / f"{kind}-{name}.png", levels=preset(kind).flow["levels"])
    if isinstance(flow, elflow.ImageELF):
        elflow.save(flow, kept / f"{kind}-{name}.elf")
    found = {
        **bits_of(flow, test, seed),
        "parameters": sum(p.numel() for p in flow.parameters()),
        "steps": went.history[-1]["step"],
        "seconds": went.seconds,
        "batch_size": recipe.batch_size,
        "skipped": went.skipped,
        "curve": [[entry["step"], entry["seconds"], -entry["validation"] / bit] for entry in went.history],
    }
    write(kept / f"{kind}-{name}.json", found)


def draw(found: dict[str, Any], by_steps: bool, path: Path) -> None:
    """The learning curves, over minutes or over steps."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, result in found.items():
        if "curve" in result:
            steps, seconds, bits = zip(*result["curve"], strict=True)
            axes.plot(steps if by_steps else [s / 60 for s in seconds], bits, label=LABELS[name])
    axes.set_xlabel("steps" if by_steps else "minutes")
    axes.set_ylabel("held-out bits/dim")
    axes.legend()
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("ELFLOW_DATA", "digits"))
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--models", default="uniform,glow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, default=RESULTS / "images", help="where models, grids and curves go")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    if given.one:
        torch.set_num_threads(1)
        seconds = None if given.minutes is None else 60 * given.minutes
        limits = {"time_limit": seconds, "max_steps": given.max_steps or 1_000_000}
        one(given.one, given.data, limits, given.seed, given.keep)
        return
    names = given.models.split(",")
    again = [sys.executable, "-m", "benchmarks.images", *sys.argv[1:]]
    runs = [subprocess.Popen([*again, "--one", name]) for name in names]
    failed = [run.wait() for run in runs]
    if any(failed):
        raise SystemExit("a training failed")
    kind, x, test = images(given.data)
    found: dict[str, Any] = {name: json.loads((given.keep / f"{kind}-{name}.json").read_text()) for name in names}
    found["histogram"] = bits_of(Histogram(x, preset(kind).flow["levels"]), test, given.seed)
    for name, result in found.items():
        how = f", {result['parameters']:,} parameters, {result['steps']:,} steps" if "steps" in result else ""
        bits = f"{result['test_bits']:.4f} +- {result['standard_error']:.4f} bits/dim"
        print(f"{LABELS[name]:20} {bits} of test images, fewer are better{how}")
    settings = {"data": kind, "minutes": given.minutes, "max_steps": given.max_steps, "seed": given.seed}
    output = given.output or RESULTS / f"images_{kind}.json"
    draw(found, given.minutes is None, output.with_suffix(".png"))
    write(output, {"machine": machine(), "settings": settings, "models": found})


if __name__ == "__main__":
    main()
