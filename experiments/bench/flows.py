"""Speed of ELF beside zuko's neural spline flow of the same size, on both toys: training, log-density, sampling.

python -m experiments.bench.flows
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import zuko
from torch import nn

import elflow
from experiments.bench._measure import RESULTS, interleaved, machine, write
from elflow.datasets import toy
from experiments.paper.toys import SETTINGS

NSF = {
    "eight-gaussians": {"transforms": 1, "hidden_features": (272,) * 4},
    "checkerboard": {"transforms": 5, "hidden_features": (176,) * 4},
}
"""Eight bins, as by default, and hidden layers that give about as many parameters as ELF's."""


def count(flow: nn.Module) -> int:
    return sum(p.numel() for p in flow.parameters())


def stepper(flow: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    """A training step: forward, backward, clipping and Adam."""
    optimizer = torch.optim.Adam(flow.parameters(), 1e-4, fused=True)

    def step() -> None:
        loss = -flow().log_prob(x).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimizer.step()

    return step


def no_grad(function: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        with torch.no_grad():
            function()

    return run


def measure(name: str, seconds: float) -> dict[str, Any]:
    torch.manual_seed(0)
    distribution = toy.DISTRIBUTIONS[name]()
    flows = {"elf": elflow.ELF(2, **SETTINGS[name].flow), "nsf": zuko.flows.NSF(2, **NSF[name])}
    batch, many = distribution.sample((128,)), distribution.sample((10_000,))
    for flow in flows.values():  # away from where they begin
        step = stepper(flow, batch)
        for _ in range(200):
            step()
    tasks: dict[str, Callable[[nn.Module], Callable[[], object]]] = {
        "training step, batch 128": lambda flow: stepper(flow, batch),
        "log_prob of 10,000 points": lambda flow: no_grad(lambda: flow().log_prob(many)),
        "1,000 samples": lambda flow: no_grad(lambda: flow().sample((1000,))),
    }
    results: dict[str, Any] = {"parameters": {key: count(flow) for key, flow in flows.items()}}
    for task, function in tasks.items():
        times = interleaved({key: function(flow) for key, flow in flows.items()}, seconds)
        results[task] = {f"{key}_ms": 1e3 * value for key, value in times.items()} | {
            "ratio": times["nsf"] / times["elf"]
        }
        ours, theirs = 1e3 * times["elf"], 1e3 * times["nsf"]
        print(
            f"{name:16} {task:26} ELF {ours:8.2f} ms, NSF {theirs:8.2f} ms: {theirs / ours:.2f} times as fast",
            flush=True,
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for results (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="for each comparison (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {name: measure(name, options.seconds) for name in NSF}
    write(options.output / "flows.json", {"machine": machine(), "threads": 1, "toys": results})


if __name__ == "__main__":
    main()
