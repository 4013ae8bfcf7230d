"""MNIST for an hour: an exact-Lipschitz flow and the Glow of normflows, side by side.

python -m benchmarks.image_mnist --data FOLDER --minutes 60

Both train at the same time, each in a process of its own on one thread, with the same engine and held-out images. The
folder holds mnist.npz, or MNIST's idx files. `--models uniform,variational --max-steps 1500` compares dequantisations
at equal steps instead.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import elflow
from benchmarks._glow import build_glow
from benchmarks._measure import RESULTS, machine, write
from elflow.data.images import read_images
from elflow.training import Recipe, Rows, fit, preset

HELD_OUT = 1_000
BITS = 784 * math.log(2)
"""Nats of an image for one bit of each pixel."""
GLOW: dict[str, Any] = {"scales": 2, "steps": 8, "hidden_channels": 64}
GLOW_RECIPE: dict[str, Any] = {"rate": 1e-3, "schedule": "warmup-exponential"}


def images(folder: Path, split: str) -> Tensor:
    file = folder / "mnist.npz"
    return read_images(file if file.exists() else folder, split).x


def model(name: str, x: Tensor) -> tuple[nn.Module, Recipe]:
    chosen = preset("mnist", scale="cpu")
    if name == "glow":
        zeros = float((x == 0).double().mean())
        return build_glow((1, 28, 28), 256, zeros=zeros, **GLOW), replace(chosen.recipe, **GLOW_RECIPE)
    return chosen.build(dequantization="variational" if name == "variational" else "uniform"), chosen.recipe


def one(name: str, folder: Path, seconds: float | None, steps: int | None, seed: int, kept: Path) -> None:
    """Trains one model and writes what came of it."""
    x, test = images(folder, "train"), images(folder, "test")
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    held_out, training = x[order[:HELD_OUT]], x[order[HELD_OUT:]]
    torch.manual_seed(seed)
    flow, recipe = model(name, training)
    recipe = replace(recipe, time_limit=seconds, round_steps=250, max_steps=steps or 1_000_000, patience=1_000)

    def told(_: Any, entry: dict[str, float]) -> None:
        bits = -entry["validation"] / BITS
        print(f"{name:12} step {entry['step']:6} {entry['seconds'] / 60:5.1f} min {bits:.4f} bits/dim", flush=True)

    flow, went = fit(flow, Rows(training), Rows(held_out), recipe, seed=seed, after_round=told)
    if isinstance(flow, elflow.ImageELF):
        elflow.save(flow, kept / f"{name}.elf")
    torch.manual_seed(seed)
    bits = torch.cat([flow.bits_per_dim(part) for part in test.split(500)])  # type: ignore[operator]
    found = {
        "test_bits": float(bits.mean()),
        "standard_error": float(bits.std() / math.sqrt(len(bits))),
        "parameters": sum(p.numel() for p in flow.parameters()),
        "steps": went.history[-1]["step"],
        "seconds": went.seconds,
        "batch_size": recipe.batch_size,
        "skipped": went.skipped,
        "curve": [[entry["step"], entry["seconds"], -entry["validation"] / BITS] for entry in went.history],
    }
    write(kept / f"{name}.json", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("ELFLOW_DATA"), required="ELFLOW_DATA" not in os.environ
    )
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--models", default="uniform,glow")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=RESULTS / "mnist", help="where models and their curves go")
    parser.add_argument("--output", type=Path, default=RESULTS / "image_mnist.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.keep.mkdir(parents=True, exist_ok=True)
    if given.one:
        torch.set_num_threads(given.threads)
        seconds = None if given.minutes is None else 60 * given.minutes
        one(given.one, given.data, seconds, given.max_steps, given.seed, given.keep)
        return
    names = given.models.split(",")
    again = [sys.executable, "-m", "benchmarks.image_mnist", *sys.argv[1:]]
    runs = [subprocess.Popen([*again, "--one", name]) for name in names]
    failed = [run.wait() for run in runs]
    if any(failed):
        raise SystemExit("a training failed")
    found = {name: json.loads((given.keep / f"{name}.json").read_text()) for name in names}
    for name, result in found.items():
        print(
            f"{name:12} {result['parameters']:9,} parameters, {result['steps']:6} steps in {result['seconds']:.0f} s: "
            f"{result['test_bits']:.4f} +- {result['standard_error']:.4f} bits/dim"
        )
    settings = {"minutes": given.minutes, "max_steps": given.max_steps, "seed": given.seed, "threads": given.threads}
    write(given.output, {"machine": machine(), "settings": settings, "models": found})


if __name__ == "__main__":
    main()
