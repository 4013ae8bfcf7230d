"""Wide tables: likelihood against parameters on 63 features, with and without an embedding before the last layer.

python -m experiments.bench.wide --data FOLDER

FOLDER holds `bsds300_patches_u8.npz`: 8x8 grey patches of natural images, as bytes. Each model takes the same steps.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, multiprocessing

import elflow
from experiments.bench._measure import RESULTS, machine, write
from elflow.training import train

DATA = Path(os.environ["ELFLOW_DATA"]) if "ELFLOW_DATA" in os.environ else None
MODELS: dict[str, dict[str, Any]] = {
    "full, hidden 256": {"hidden_features": (256, 256)},
    "full, hidden 64": {"hidden_features": (64, 64)},
    "rank 8, hidden 256": {"hidden_features": (256, 256), "rank": 8},
    "rank 16, hidden 256": {"hidden_features": (256, 256), "rank": 16},
    "rank 16, hidden 512": {"hidden_features": (512, 512), "rank": 16},
    "rank 32, hidden 256": {"hidden_features": (256, 256), "rank": 32},
}


def patches(rows: Tensor) -> Tensor:
    """Dequantised, without the mean of each patch and without the last pixel."""
    x = (rows + torch.rand(rows.shape)) / 256
    return (x - x.mean(-1, keepdim=True))[:, :-1]


def run(task: tuple[str, Path, int]) -> tuple[str, dict[str, Any]]:
    name, folder, steps = task
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with np.load(folder / "bsds300_patches_u8.npz", allow_pickle=False) as file:
        training, test = torch.from_numpy(file["train"]), torch.from_numpy(file["test"][::25])
    flow = elflow.ELF(63, transforms=2, units=16, **MODELS[name])
    start = time.perf_counter()
    flow, _ = train(flow, lambda: patches(training[torch.randint(len(training), (256,))]), steps, 1e-3, steps // 4)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        log_p = flow().log_prob(patches(test))
    result = {
        "parameters": sum(p.numel() for p in flow.parameters()),
        "test": log_p.mean().item(),
        "error": log_p.std().item() / len(log_p) ** 0.5,
        "seconds": seconds,
    }
    print(f"{name:20} {result['parameters']:9,} parameters {result['test']:8.2f} nats, {seconds:.0f} s", flush=True)
    return name, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the patches")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for results (%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="training steps (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="how many models at a time (%(default)s)")
    options = parser.parse_args()
    if options.data is None or not (options.data / "bsds300_patches_u8.npz").is_file():
        parser.error("--data, or ELFLOW_DATA, must be a folder with bsds300_patches_u8.npz")
    tasks = [(name, options.data, options.steps) for name in MODELS]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        results = dict(pool.map(run, tasks, chunksize=1))
    write(options.output / "wide.json", {"machine": machine(), "steps": options.steps, "models": results})


if __name__ == "__main__":
    main()
