"""How fast the one-dimensional network is: python -m experiments.bench.kernels

Prints tables and writes `bench/kernels.json` and `bench/kernels.png`. Everything but the thread scaling runs on
one thread, in float32. `--quick` takes a minute instead of five, for a first look.
"""

from __future__ import annotations

import argparse
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import zuko
from torch import Tensor

from experiments.bench._measure import RESULTS, interleaved, machine, timings, write
from elflow import functional, kernels, testing
from elflow.kernels import native

UNITS = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
STEPS = {
    "batch 1024, 6 features, hidden 5 x 192": (1024, 6, (192,) * 5),
    "batch 128, 43 features, hidden 2 x 344": (128, 43, (344,) * 2),
}


def papers_algorithm(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """The slope at all 2H breakpoints and both ends, each from all H units, as vectorised torch."""
    x = torch.cat([-b1 / w1, -(1 + b1) / w1], -1)
    q = (w1[:, None] * x[..., None] + b1[:, None] + 1).clamp(0, 1)
    a = w1 * w2
    inner = (q @ a[..., None]).squeeze(-1)
    ends = torch.stack([(a * (w1 > 0)).sum(-1), (a * (w1 < 0)).sum(-1)], -1)
    return torch.cat([inner, ends], -1).abs().amax(-1)


def papers_algorithm_sliced(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """The same on 16 networks at a time: for 128 units that keeps its temporaries in the cache, and is the fastest."""
    parts = zip(*(torch.split(w, 16) for w in (w1, b1, w2)), strict=True)
    return torch.cat([papers_algorithm(*part) for part in parts])


def reference(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    with kernels.backend("reference"):
        return functional.lipschitz(w1, b1, w2)


def sweep(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    return native.find_steepest(w1, b1, w2, "sweep")[0]


def direct(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    return native.find_steepest(w1, b1, w2, "direct")[0]


# Each with how many numbers its networks may have between them, by how much work it has to do for one of H units.
ALGORITHMS: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], Callable[[int], int], int]] = {
    "paper (torch)": (papers_algorithm, lambda h: 2**25 // (2 * h * h), 4096),
    "reference": (reference, lambda h: 2**22 // (2 * h * h), 1024),
    "native direct": (direct, lambda h: 2**25 // (2 * h * h), 1024),
    "native sweep": (sweep, lambda h: 2**18 // h, 4096),
}


def by_units(units: list[int], seconds: float) -> dict[str, dict[str, float]]:
    """Seconds per Lipschitz constant: for each algorithm, all numbers of units in turn."""
    generator = torch.Generator().manual_seed(0)
    rows: dict[str, dict[str, float]] = {str(h): {} for h in units}
    for name, (algorithm, how_many, largest) in ALGORITHMS.items():
        sizes = {str(h): max(1, how_many(h)) for h in units if h <= largest}
        jobs = {h: testing.make_networks("ordinary", n, int(h), torch.float32, generator) for h, n in sizes.items()}
        taken = interleaved({h: partial(algorithm, *weights) for h, weights in jobs.items()}, seconds * len(jobs))
        for h, time in taken.items():
            rows[h][name] = time / sizes[h]
    return rows


def exponent(rows: dict[str, dict[str, float]], name: str, low: int, high: int) -> float:
    """The slope of log time against log units, by least squares."""
    points = [(math.log(int(h)), math.log(t[name])) for h, t in rows.items() if name in t and low <= int(h) <= high]
    x, y = torch.tensor(points, dtype=torch.float64).T
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))


def against_the_paper(seconds: float) -> dict[str, float]:
    """The headline: 4096 networks of 128 units."""
    weights = testing.make_networks("ordinary", 4096, 128, torch.float32, torch.Generator().manual_seed(0))
    ours: Callable[..., Tensor] = functional.lipschitz
    torch.testing.assert_close(ours(*weights), papers_algorithm(*weights), rtol=1e-4, atol=1e-5)
    algorithms = {"paper": papers_algorithm, "paper, sliced": papers_algorithm_sliced, "elflow": ours}
    taken = interleaved({name: partial(algorithm, *weights) for name, algorithm in algorithms.items()}, seconds)
    ratios = {"ratio": taken["paper"] / taken["elflow"], "ratio, sliced": taken["paper, sliced"] / taken["elflow"]}
    return {**taken, **ratios}


def training_step(batch: int, features: int, hidden: tuple[int, ...], units: int, seconds: float) -> dict[str, float]:
    """A masked hypernetwork, forward and backward, without and with the transformation behind it."""
    torch.manual_seed(0)
    total = 3 * units + 1
    adjacency = torch.ones(features, features).tril(-1).bool().repeat_interleave(total, 0)
    network = zuko.nn.MaskedMLP(adjacency, hidden, activation=torch.nn.ELU)
    x = torch.randn(batch, features)
    grad_y, grad_log_slope = torch.randn(2, batch, features) / batch
    grad_parameters = torch.randn(batch, features, total) / batch

    def hypernetwork() -> Tensor:
        network.zero_grad()
        return network(x).unflatten(-1, (features, total))

    def without() -> None:
        torch.autograd.backward(hypernetwork(), grad_parameters)

    def with_elf() -> None:
        w1, b1, w2, b2 = torch.split(hypernetwork(), [units, units, units, 1], -1)
        y, log_slope = functional.elf(x, w1, b1, w2, b2.squeeze(-1))
        torch.autograd.backward((y, log_slope), (grad_y, grad_log_slope))

    taken = interleaved({"hypernetwork": without, "with elf": with_elf}, seconds, least=15)
    return {**taken, "ratio": taken["with elf"] / taken["hypernetwork"]}


def thread_scaling(seconds: float) -> dict[str, dict[str, float]]:
    """50,176 networks of 64 units (a batch of 64 images of 28 x 28) on one thread and on two."""
    generator = torch.Generator().manual_seed(0)
    count, before = 64 * 28 * 28, torch.get_num_threads()
    w1, b1, w2 = (w.requires_grad_() for w in testing.make_networks("ordinary", count, 64, torch.float32, generator))
    x, b2 = torch.randn(2, count, generator=generator)
    y, log_slope = functional.elf(x, w1, b1, w2, b2)

    jobs: dict[str, Callable[[], object]] = {
        "lipschitz": lambda: functional.lipschitz(w1, b1, w2),
        "forward": lambda: functional.elf(x, w1, b1, w2, b2),
        "backward": lambda: torch.autograd.grad((y, log_slope), (w1, b1, w2), (x, x), retain_graph=True),
        "inverse": lambda: functional.elf_inverse(x, w1, b1, w2, b2),
    }

    def on(threads: int, job: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            torch.set_num_threads(threads)
            job()

        return run

    rows = {}
    for name, job in jobs.items():
        one, two = timings({"1": on(1, job), "2": on(2, job)}, seconds).values()
        # Cores shared with others are fast for some seconds and slow for some: only neighbouring calls compare.
        ratio = statistics.median(a / b for a, b in zip(one, two, strict=True))
        rows[name] = {"1": statistics.median(one), "2": statistics.median(two), "ratio": ratio}
    torch.set_num_threads(before)
    return rows


def memory() -> dict[str, float]:
    """Peak memory beyond the parameters, forward and backward, relative to the parameters; in a process of its own."""
    program = """
import torch
from elflow import functional
def status(field):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(field))
def run(count):
    weights = [torch.randn(count, 64).requires_grad_() for _ in range(3)]
    x, shift = torch.randn(2, count)
    before = status("VmRSS")
    y, log_slope = functional.elf(x, *weights, shift)
    torch.autograd.backward((y, log_slope), (x, x))
    return (status("VmHWM") - before) / (3 * 64 * 4 * count)
run(100)
print(run(200_000))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {"extra over parameters": float(run.stdout)}


def plot(rows: dict[str, dict[str, float]], path: Path) -> None:
    """The paper's figure of run time against hidden size, ours beside it."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    styles = {
        "paper (torch)": ("#b04a4a", "o", "the paper's algorithm, vectorised torch"),
        "reference": ("#8a8a8a", "s", "elflow reference (exhaustive, float64)"),
        "native direct": ("#4a74b0", "^", "elflow native, direct"),
        "native sweep": ("#1d6b4f", "D", "elflow native, sweep (used)"),
    }
    for name, (color, marker, label) in styles.items():
        h = [int(h) for h in rows if name in rows[h]]
        axes.loglog(h, [rows[str(n)][name] * 1e6 for n in h], color=color, marker=marker, markersize=5, label=label)
    axes.set(xlabel="units H", ylabel="microseconds per Lipschitz constant, one thread")
    axes.set_xticks([int(h) for h in rows], list(rows))
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter measurements, up to 512 units")
    parser.add_argument("--output", type=Path, default=RESULTS / "kernels.json", help="a JSON file (%(default)s)")
    options = parser.parse_args()
    seconds = 0.5 if options.quick else 3.0
    torch.set_num_threads(1)
    results: dict[str, Any] = {"machine": machine()}
    print(f"{results['machine']['processor']}, {results['machine']['instruction_set']}, torch {torch.__version__}")

    print("\nLipschitz constant, microseconds per network:")
    rows = results["lipschitz"] = by_units([h for h in UNITS if h <= 512] if options.quick else UNITS, seconds)
    print("  units " + "".join(f"{name:>16}" for name in ALGORITHMS))
    for h, row in rows.items():
        print(f"  {h:>5} " + "".join(f"{row[name] * 1e6:16.3f}" if name in row else " " * 16 for name in ALGORITHMS))
    fits = {"native sweep": (256, 4096), "paper (torch)": (64, 4096)}
    results["exponents"] = {name: exponent(rows, name, *span) for name, span in fits.items()}
    for name, value in results["exponents"].items():
        print(f"  {name}, from {fits[name][0]} units on: time grows as H^{value:.2f}")

    headline = results["4096 x 128"] = against_the_paper(seconds * 4)
    print("\n4096 networks of 128 units, paper (torch) / elflow, milliseconds:")
    print(f"  {pair(headline, 'paper', 'elflow')}")
    print(f"  {pair(headline, 'paper, sliced', 'elflow', 'ratio, sliced')}, sixteen at a time, in the cache")

    print("\nTraining step, with the transformation / hypernetwork alone, milliseconds:")
    results["training_step"] = {}
    for name, shape in STEPS.items():
        for units in (16, 32, 64, 128):
            step = results["training_step"][f"{name}, {units} units"] = training_step(*shape, units, seconds * 3)
            print(f"  {name}, {units:3d} units: {pair(step, 'with elf', 'hypernetwork')}", flush=True)

    print("\nOne thread / two, 50,176 networks of 64 units, milliseconds, and the median ratio of neighbouring calls:")
    results["threads"] = thread_scaling(seconds * 3)
    for name, row in results["threads"].items():
        print(f"  {name:10s}{pair(row, '1', '2')}")

    results["memory"] = memory()
    print(f"\nPeak memory of forward and backward: {results['memory']['extra over parameters']:.2f} x parameters")

    write(options.output, results)
    plot(rows, options.output.with_suffix(".png"))
    print(f"\nWritten to {options.output} and {options.output.with_suffix('.png')}")


def pair(row: dict[str, float], above: str, below: str, ratio: str = "ratio") -> str:
    return f"{row[above] * 1e3:6.1f} / {row[below] * 1e3:6.1f} = {row[ratio]:.3g}"


if __name__ == "__main__":
    main()
