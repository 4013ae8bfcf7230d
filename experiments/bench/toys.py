"""How near ELF comes to the entropy bound on the paper's toys, by the paper's protocol, over several seeds.

python -m experiments.bench.toys

10,000 steps of Adam, batches of 128, the rate halved every 2,500 steps; averaged weights, on 100,000 fresh points.
"Tight modes" are the eight Gaussians with noise 0.1 instead of 0.5.
"""

from __future__ import annotations

import argparse
import math
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import multiprocessing

import elflow
from experiments.bench._measure import RESULTS, machine, write
from elflow.datasets import toy
from experiments.paper.toys import SETTINGS, fit

TASKS = {
    "eight-gaussians": (SETTINGS["eight-gaussians"], 0.5, 3),
    "checkerboard": (SETTINGS["checkerboard"], None, 3),
    "tight modes": (SETTINGS["eight-gaussians"], 0.1, 10),
}
"""Setting, noise and number of seeds."""


def run(task: tuple[str, int, int]) -> tuple[str, dict[str, Any]]:
    name, seed, steps = task
    torch.set_num_threads(1)
    setting, noise, _ = TASKS[name]
    distribution = toy.Checkerboard() if noise is None else toy.EightGaussians(noise)
    torch.manual_seed(seed)
    result = fit(elflow.ELF(features=2, **setting.flow), distribution, setting, steps)
    print(f"{name:16} seed {seed}: gap {result.gap:.4f} ± {result.error:.4f}, {result.seconds:.0f} s", flush=True)
    return name, {
        "seed": seed,
        "gap": result.gap,
        "error": result.error,
        "seconds": result.seconds,
        "parameters": result.parameters,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for results (%(default)s)")
    parser.add_argument("--steps", type=int, default=10_000, help="training steps (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="how many fits at a time (%(default)s)")
    options = parser.parse_args()
    tasks = [(name, seed, options.steps) for name, (_, _, seeds) in TASKS.items() for seed in range(seeds)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        done = pool.map(run, tasks, chunksize=1)
    results: dict[str, Any] = {}
    for name, (setting, noise, _) in TASKS.items():
        runs = [result for task, result in done if task == name]
        gaps = [r["gap"] for r in runs]
        spread = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else runs[0]["error"]
        results[name] = {"setting": asdict(setting), "noise": noise, "runs": runs, "gap": statistics.mean(gaps)}
        print(f"{name:16} mean gap {statistics.mean(gaps):.4f} ± {spread:.4f}, worst {max(gaps):.4f}")
    write(options.output / "toys.json", {"machine": machine(), "steps": options.steps, "tasks": results})


if __name__ == "__main__":
    main()
