"""Sampling in 64 dimensions: exact sweeps, the paper's fixed point, and one coordinate after the other.

python -m experiments.bench.digits

The flow is trained on scikit-learn's 8x8 digits, dequantised.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import elflow
from experiments.bench._measure import RESULTS, interleaved, machine, write
from elflow.training import train
from elflow.transforms import AutoregressiveTransform, InverseInfo


def digits() -> Tensor:
    return torch.tensor(load_digits().data, dtype=torch.float32)


def fitted(steps: int) -> elflow.ELF:
    torch.manual_seed(0)
    x = digits()
    held_out, training = x[:300], x[300:]
    flow = elflow.ELF(64, transforms=3, units=16, hidden_features=(256, 256))

    def batch() -> Tensor:
        rows = training[torch.randint(len(training), (128,))]
        return (rows + torch.rand_like(rows)) / 17

    flow, _ = train(flow, batch, steps, rate=1e-3, halve_every=steps // 4)
    with torch.no_grad():
        log_p = flow().log_prob((held_out + torch.rand_like(held_out)) / 17).mean()
    bits = -(log_p / 64 - torch.log(torch.tensor(17.0))) / torch.log(torch.tensor(2.0))
    print(f"{steps} steps: {bits:.3f} bits/dim held out")
    return flow


def one_by_one(flow: elflow.ELF, z: Tensor) -> Tensor:
    """The inverse as zuko's: each pass makes one more coordinate final, as many passes as there are coordinates."""
    for layer in reversed(flow.transform().transforms):
        if not isinstance(layer, AutoregressiveTransform):
            z = layer.inv(z)
            continue
        x = torch.zeros_like(z)
        for _ in range(z.shape[-1]):
            x = layer.maps(x, None).inv(z)
        z = x
    return z


def describe(name: str, info: InverseInfo) -> dict[str, Any]:
    print(f"{name:12} sweeps {info.sweeps}, residual {info.residual:.2g}, converged: {info.converged}", flush=True)
    return {"sweeps": info.sweeps, "residual": info.residual, "converged": info.converged}


def measure(flow: elflow.ELF, seconds: float) -> dict[str, Any]:
    torch.manual_seed(1)
    z = torch.randn(1000, 64)
    results: dict[str, Any] = {}
    with torch.no_grad():
        x, info = flow.inverse(z, return_info=True)
        results["exact"] = describe("exact", info)
        _, info = flow.inverse(z, tol=5e-5, return_info=True)
        results["exact, tol 5e-5"] = describe("tol 5e-5", info)
        start = time.perf_counter()
        _, info = flow.inverse(z[:50], method="fixed-point", return_info=True)
        results["fixed-point"] = describe("fixed-point", info) | {
            "samples": 50,
            "seconds": time.perf_counter() - start,
        }
        slow = one_by_one(flow, z)
        results["difference from one by one"] = (x - slow).abs().max().item()
        methods: dict[str, Callable[[], object]] = {
            "exact": lambda: flow.inverse(z, return_info=True),
            "exact, tol 5e-5": lambda: flow.inverse(z, tol=5e-5, return_info=True),
            "one by one": lambda: one_by_one(flow, z),
        }
        times = interleaved(methods, seconds)
    results["seconds"] = times
    for name in ("exact", "exact, tol 5e-5"):
        ratio = results[name]["ratio"] = times["one by one"] / times[name]
        print(f"{name} {times[name]:.3f} s, one by one {times['one by one']:.3f} s: {ratio:.1f} times as fast")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for results (%(default)s)")
    parser.add_argument("--steps", type=int, default=3000, help="training steps (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60, help="for the comparison (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    flow = fitted(options.steps)
    write(
        options.output / "digits.json",
        {"machine": machine(), "threads": 1, "steps": options.steps, **measure(flow, options.seconds)},
    )


if __name__ == "__main__":
    main()
