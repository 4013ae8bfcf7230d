"""Sampling from an image flow: exact sweeps, one coordinate after the other, and the paper's fixed point.

python -m experiments.bench.image_sampling MODEL

The model is one that `elflow fit-images` or `benchmarks.images` made. All ways start from the same latent points.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import elflow
from experiments.bench._measure import RESULTS, machine, write
from elflow.io.grids import write_grid

METHODS = ["exact", "fixed-point", "sequential"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--slow", type=int, default=16, help="how many of them by the other two ways")
    parser.add_argument("--tol", type=float, help="the residual at which an image has settled")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS / "image_sampling.json")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    model = elflow.load(given.model)
    z = torch.randn(given.samples, model.flow.features)
    found: dict[str, Any] = {}
    for method in METHODS:
        some = z if method == "exact" else z[: given.slow]
        start = time.perf_counter()
        x, info = model.decode(some, method=method, tol=given.tol, return_info=True)
        seconds = time.perf_counter() - start
        if method == "exact":
            exact = x
            write_grid(x, given.output.with_suffix(".png"), levels=model.levels)
        found[method] = {
            "samples": len(some),
            "calls": sum(info.calls),
            "calls_per_layer": info.calls,
            "residual": info.residual,
            "converged": info.converged,
            "seconds_per_sample": seconds / len(some),
            "pixels_unlike_exact": int((x != exact[: len(x)]).sum()),
        }
        print(method, found[method], flush=True)
    for method in METHODS[1:]:
        ratio = found[method]["seconds_per_sample"] / found["exact"]["seconds_per_sample"]
        found[method]["times_slower"] = ratio
        print(f"exact sweeps are {ratio:.1f} times as fast as {method}")
    settings = {"model": given.model.name, "tol": given.tol, "seed": given.seed, "threads": given.threads}
    write(given.output, {"machine": machine(), "settings": settings, "methods": found})


if __name__ == "__main__":
    main()
