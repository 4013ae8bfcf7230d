"""Times of the operations of the installed version of elflow: run by `bench versions` with the Python of each version.

It reads names of operations from standard input, and writes the CPU time of a call. Without elflow's own tools, since
they may differ between versions.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import elflow
from elflow import functional

ROUND_SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 0.2


def make_operations() -> dict[str, Callable[[], object]]:
    """Functions without arguments, by name."""
    torch.manual_seed(0)
    w1, b1, w2 = torch.randn(3, 4096, 16)
    v1, c1, v2 = (w.clone().requires_grad_() for w in (w1, b1, w2))
    x, shift = torch.randn(2, 4096)
    y = functional.elf(x, w1, b1, w2, shift)
    flow = elflow.ELF(features=6, transforms=3, units=16, hidden_features=(64, 64))
    rows = torch.randn(256, 6)
    optimizer = torch.optim.Adam(flow.parameters())

    def train_step() -> None:
        optimizer.zero_grad()
        (-flow().log_prob(rows).mean()).backward()
        optimizer.step()

    def backward() -> None:
        sum(part.sum() for part in as_tuple(functional.elf(x, v1, c1, v2, shift))).backward()

    return {
        "lipschitz": lambda: functional.lipschitz(w1, b1, w2),
        "elf": lambda: functional.elf(x, w1, b1, w2, shift),
        "elf, forward and backward": backward,
        "elf_inverse": lambda: functional.elf_inverse(as_tuple(y)[0], w1, b1, w2, shift),
        "density of ELF": without_gradient(lambda: flow().log_prob(rows)),
        "training step of ELF": train_step,
        "samples of ELF": without_gradient(lambda: flow().sample((256,))),
    }


def as_tuple(value: Any) -> tuple[Any, ...]:
    """The result of `elf`, with or without logarithms of slopes."""
    return value if isinstance(value, tuple) else (value,)


def without_gradient(function: Callable[[], object]) -> Callable[[], None]:
    """The function, without a graph for gradients."""

    def call() -> None:
        with torch.no_grad():
            function()

    return call


def main() -> None:
    """Answer requests until the input ends."""
    torch.set_num_threads(1)
    operations = make_operations()
    print(elflow.__file__)
    print("\t".join(operations), flush=True)
    for line in sys.stdin:
        function = operations[line.strip()]
        function()
        calls, start, end = 0, time.process_time(), time.perf_counter() + ROUND_SECONDS
        while time.perf_counter() < end:
            function()
            calls += 1
        print((time.process_time() - start) / max(1, calls), flush=True)


if __name__ == "__main__":
    main()
