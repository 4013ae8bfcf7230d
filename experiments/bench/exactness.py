"""How exact the network is, over a million networks: python -m experiments.bench.exactness

Every kind of network in `elflow.testing.NETWORK_KINDS`, most of them hostile, of 1 to 1000 units, in both dtypes: against
direct evaluation in wider arithmetic, against dense search, and there and back through the inverse at bounds up to
0.9999. Prints the worst error of each kind and writes `bench/exactness.json`; exits with 1 if one is
beyond what is promised.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Generator

from experiments.bench._measure import RESULTS, machine, write
from elflow import functional, testing

PROMISED = {
    "float32": {"lipschitz": 2e-5, "dense search": 2e-5, "inverse": 1e-5},
    "float64": {"lipschitz": 1e-12, "dense search": 1e-12, "inverse": 1e-11},
}
# How the networks of a kind are shared out between numbers of units: many small ones, a few large ones.
SHARES = {1: 0.1, 2: 0.1, 3: 0.1, 5: 0.1, 8: 0.15, 16: 0.2, 33: 0.15, 64: 0.08, 128: 0.019, 1000: 0.001}
BOUNDS = (0.5, 0.99, 0.9999)
DISTANCES = (1e-3, 1.0, 1e3, 1e8)


def worst(kind: str, units: int, count: int, dtype: torch.dtype, generator: Generator) -> dict[str, float]:
    """The worst errors over so many networks, a slice at a time."""
    found = {"lipschitz": 0.0, "dense search": -math.inf, "inverse": 0.0}
    slice_ = max(1, min(count, 2**17 // units))
    for start in range(0, count, slice_):
        n = min(slice_, count - start)
        w1, b1, w2 = testing.make_networks(kind, n, units, dtype, generator)
        b2, noise = torch.randn(2, n, dtype=dtype, generator=generator)
        constants = functional.lipschitz(w1, b1, w2)
        errors = {
            "lipschitz": testing.lipschitz_error(constants, w1, b1, w2),
            "dense search": testing.excess_slope(constants, w1, b1, w2, generator, points=32),
        }
        for name, error in errors.items():
            found[name] = max(found[name], error.max().item())
        for bound in BOUNDS:
            for distance in DISTANCES:
                error = testing.inverse_error(distance * noise, w1, b1, w2, b2, bound)
                found["inverse"] = max(found["inverse"], error.nan_to_num(nan=math.inf).max().item())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", type=int, default=1_000_000, help="how many for each dtype (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS / "exactness.json", help="a JSON file (%(default)s)")
    options = parser.parse_args()
    if options.networks < 1:
        parser.error(f"--networks must be at least 1, got {options.networks}")
    results: dict[str, Any] = {"machine": machine(), "networks": options.networks, "seed": options.seed, "worst": {}}
    kept, generator = True, Generator().manual_seed(options.seed)
    for dtype in (torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        print(f"{name}: promised " + ", ".join(f"{what} {error:g}" for what, error in PROMISED[name].items()))
        total = 0
        for kind in testing.NETWORK_KINDS:
            start, errors = time.perf_counter(), dict.fromkeys(PROMISED[name], -math.inf)
            for units, share in SHARES.items():
                count = max(1, math.ceil(options.networks * share / len(testing.NETWORK_KINDS)))
                total += count
                for what, error in worst(kind, units, count, dtype, generator).items():
                    errors[what] = max(errors[what], error)
            results["worst"][f"{name} {kind}"] = errors
            broken = [what for what, error in errors.items() if error > PROMISED[name][what]]
            kept = kept and not broken
            listed = "   ".join(f"{what} {error:9.2e}" for what, error in errors.items())
            verdict = f"BROKEN: {broken}" if broken else ""
            print(f"  {kind:11s} {listed}   {time.perf_counter() - start:6.1f} s {verdict}", flush=True)
        print(f"  {total:,} networks")
    write(options.output, results)
    print(f"Written to {options.output}")
    sys.exit(not kept)


if __name__ == "__main__":
    main()
