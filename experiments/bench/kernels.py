"""Speed and memory of the one-dimensional network, beside the paper's algorithm.

Everything runs on one thread, in float32, except the scaling to two threads.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import zuko
from torch import Tensor

from elflow import functional, kernels, testing
from elflow.kernels import native
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.figure import GREEN, draw_figure
from experiments.framework.measure import median_times, time_calls
from experiments.paper.runtime import fit_line, native_direct, papers_algorithm

__all__ = ["EXPERIMENT"]

UNITS = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
MAX_QUICK_UNITS = 512
"""Maximum number of units with an effort below 0.5."""
SECONDS = 3.0
STEPS = {
    "batch 1024, 6 features, hidden 5 x 192": (1024, 6, (192,) * 5),
    "batch 128, 43 features, hidden 2 x 344": (128, 43, (344,) * 2),
}
STEP_UNITS = [16, 32, 64, 128]
N_NETWORKS, HEADLINE_UNITS = 4096, 128
FITTED = {"native sweep": (256, 4096), "paper (torch)": (64, 4096)}
"""Ranges of units over which the power of the time is fitted."""
PEAK_MEMORY = """
import torch
from elflow import functional
from experiments.framework.measure import peak_memory
def resident():
    return next(int(l.split()[1]) / 2**20 for l in open("/proc/self/status") if l.startswith("VmRSS"))
def run(count):
    weights = [torch.randn(count, 64).requires_grad_() for _ in range(3)]
    x, shift = torch.randn(2, count)
    before = resident()
    y, log_slope = functional.elf(x, *weights, shift)
    torch.autograd.backward((y, log_slope), (x, x))
    return (peak_memory() - before) * 2**30 / (3 * 64 * 4 * count)
run(100)
print(run(200_000))
"""


def _reference(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    with kernels.backend("reference"):
        return functional.lipschitz(w1, b1, w2)


def _sweep(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    return native.find_steepest(w1, b1, w2, "sweep")[0]


def _papers_algorithm_in_cache(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """The paper's algorithm on 16 networks at a time: with 128 units its temporaries fit into the cache."""
    parts = zip(*(torch.split(w, 16) for w in (w1, b1, w2)), strict=True)
    return torch.cat([papers_algorithm(*part) for part in parts])


Algorithm = Callable[[Tensor, Tensor, Tensor], Tensor]
ALGORITHMS: dict[str, tuple[Algorithm, Callable[[int], int], int]] = {
    "paper (torch)": (papers_algorithm, lambda h: 2**25 // (2 * h * h), 4096),
    "reference": (_reference, lambda h: 2**22 // (2 * h * h), 1024),
    "native direct": (native_direct, lambda h: 2**25 // (2 * h * h), 1024),
    "native sweep": (_sweep, lambda h: 2**18 // h, 4096),
}
"""For each algorithm: its function, the number of networks of a call by their units, and the maximum of units."""
STYLES = {
    "paper (torch)": ("#b04a4a", "o", "the paper's algorithm, vectorised torch"),
    "reference": ("#8a8a8a", "s", "elflow reference (exhaustive, float64)"),
    "native direct": ("#4a74b0", "^", "elflow native, direct"),
    "native sweep": (GREEN, "D", "elflow native, sweep (default)"),
}


def jobs(plan: Plan) -> list[Job]:
    units = [h for h in UNITS if h <= MAX_QUICK_UNITS or plan.effort >= 0.5]
    seconds = plan.seconds(SECONDS)
    return [
        Job("units", {"task": "units", "units": units, "seconds": seconds}),
        Job("headline", {"task": "headline", "seconds": 4 * seconds}),
        Job("training-step", {"task": "training-step", "seconds": 3 * seconds}),
        Job("threads", {"task": "threads", "seconds": 3 * seconds}),
        Job("memory", {"task": "memory"}),
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    tasks = {"headline": _compare_with_paper, "training-step": _time_training_steps, "threads": _time_threads}
    if settings["task"] == "units":
        return {"times": _time_by_units(settings["units"], settings["seconds"])}
    if settings["task"] == "memory":
        run = subprocess.run([sys.executable, "-c", PEAK_MEMORY], capture_output=True, text=True, check=True)
        return {"extra over parameters": float(run.stdout)}
    return {"times": tasks[settings["task"]](settings["seconds"])}


def _time_by_units(units: list[int], seconds: float) -> dict[str, dict[str, float]]:
    """Seconds per Lipschitz constant by units and algorithm, all numbers of units of an algorithm in turn."""
    generator = torch.Generator().manual_seed(0)
    rows: dict[str, dict[str, float]] = {str(h): {} for h in units}
    for name, (algorithm, count_networks, max_units) in ALGORITHMS.items():
        sizes = {str(h): max(1, count_networks(h)) for h in units if h <= max_units}
        weights = {h: testing.make_networks("ordinary", n, int(h), torch.float32, generator) for h, n in sizes.items()}
        times = median_times({h: partial(algorithm, *w) for h, w in weights.items()}, seconds * len(weights))
        for h, time in times.items():
            rows[h][name] = time / sizes[h]
    return rows


def _compare_with_paper(seconds: float) -> dict[str, float]:
    weights = testing.make_networks(
        "ordinary", N_NETWORKS, HEADLINE_UNITS, torch.float32, torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(functional.lipschitz(*weights), papers_algorithm(*weights), rtol=1e-4, atol=1e-5)
    ours: Algorithm = functional.lipschitz
    algorithms = {"paper": papers_algorithm, "paper, in cache": _papers_algorithm_in_cache, "elflow": ours}
    return median_times({name: partial(algorithm, *weights) for name, algorithm in algorithms.items()}, seconds)


def _time_training_steps(seconds: float) -> dict[str, dict[str, float]]:
    return {
        f"{name}, {units} units": _time_training_step(*shape, units, seconds)
        for name, shape in STEPS.items()
        for units in STEP_UNITS
    }


def _time_training_step(
    batch: int, features: int, hidden: tuple[int, ...], units: int, seconds: float
) -> dict[str, float]:
    """Forward and backward of a masked hypernetwork, without and with the transformation."""
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

    return median_times({"hypernetwork": without, "with elf": with_elf}, seconds, least=15)


def _time_threads(seconds: float) -> dict[str, dict[str, float]]:
    """50,176 networks of 64 units (a batch of 64 images of 28 x 28) on one thread and on two."""
    generator = torch.Generator().manual_seed(0)
    count, before = 64 * 28 * 28, torch.get_num_threads()
    w1, b1, w2 = (w.requires_grad_() for w in testing.make_networks("ordinary", count, 64, torch.float32, generator))
    x, b2 = torch.randn(2, count, generator=generator)
    y, log_slope = functional.elf(x, w1, b1, w2, b2)
    functions: dict[str, Callable[[], object]] = {
        "lipschitz": lambda: functional.lipschitz(w1, b1, w2),
        "forward": lambda: functional.elf(x, w1, b1, w2, b2),
        "backward": lambda: torch.autograd.grad((y, log_slope), (w1, b1, w2), (x, x), retain_graph=True),
        "inverse": lambda: functional.elf_inverse(x, w1, b1, w2, b2),
    }

    def run_on(threads: int, function: Callable[[], object]) -> None:
        torch.set_num_threads(threads)
        function()

    rows = {}
    for name, function in functions.items():
        one, two = time_calls({str(n): partial(run_on, n, function) for n in (1, 2)}, seconds).values()
        # Shared cores are fast for some seconds and slow for others: only neighbouring calls are comparable.
        ratio = statistics.median(a / b for a, b in zip(one, two, strict=True))
        rows[name] = {"1": statistics.median(one), "2": statistics.median(two), "ratio": ratio}
    torch.set_num_threads(before)
    return rows


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    tables, sentences, pictures = [], [], {}
    if headline := records.get("headline"):
        times = headline["times"]
        ratios = [times[name] / times["elflow"] for name in ("paper", "paper, in cache")]
        sentences.append(
            f"For {N_NETWORKS} networks of {HEADLINE_UNITS} units, the paper's algorithm in torch takes "
            f"{ratios[0]:.3g} times as long as elflow, and {ratios[1]:.3g} times if it works on 16 networks at a time, "
            "in the cache."
        )
    if record := records.get("units"):
        rows = record["times"]
        tables.append(_tabulate_units(rows))
        powers = {name: _fit_power(rows, name, *span) for name, span in FITTED.items()}
        sentences += [f"The time of {name} grows as H^{p:.2f}." for name, p in powers.items() if math.isfinite(p)]
        _draw(folder / "kernels.png", rows)
        pictures["kernels.png"] = "Microseconds per Lipschitz constant against the number of units, one thread."
    if record := records.get("training-step"):
        cells = [[name, *_format_pair(times, "with elf", "hypernetwork")] for name, times in record["times"].items()]
        columns = ["setting", "with ELF, ms", "hypernetwork alone, ms", "ratio"]
        tables.append(Table("Training step", columns, cells, "Forward and backward; medians of interleaved calls."))
    if record := records.get("threads"):
        cells = [
            [name, f"{1e3 * t['1']:.1f}", f"{1e3 * t['2']:.1f}", f"{t['ratio']:.3g}"]
            for name, t in record["times"].items()
        ]
        note = "50,176 networks of 64 units. The ratio is the median over neighbouring calls."
        tables.append(Table("One thread and two", ["function", "one, ms", "two, ms", "ratio"], cells, note))
    if record := records.get("memory"):
        extra = record["extra over parameters"]
        sentences.append(f"The peak memory of forward and backward is {extra:.2f} times that of the parameters.")
    return Report(" ".join(sentences), tables, pictures)


def _format_pair(times: dict[str, float], above: str, below: str) -> list[str]:
    return [f"{1e3 * times[above]:.1f}", f"{1e3 * times[below]:.1f}", f"{times[above] / times[below]:.3g}"]


def _tabulate_units(rows: dict[str, dict[str, float]]) -> Table:
    cells = [
        [h, *(f"{1e6 * times[name]:.3f}" if name in times else "" for name in ALGORITHMS)] for h, times in rows.items()
    ]
    return Table("Microseconds per Lipschitz constant", ["units", *ALGORITHMS], cells, "Float32, one thread.")


def _fit_power(rows: dict[str, dict[str, float]], name: str, low: int, high: int) -> float:
    """Slope of log time against log units; NaN if there are fewer than two points."""
    points = [(math.log(int(h)), math.log(t[name])) for h, t in rows.items() if name in t and low <= int(h) <= high]
    return fit_line(*zip(*points, strict=True))[1] if len(points) > 1 else math.nan


def _draw(path: Path, rows: dict[str, dict[str, float]]) -> None:
    with draw_figure(path, figsize=(7, 4.5)) as (_, axes):
        place = axes[0, 0]
        for name, (color, marker, label) in STYLES.items():
            h = [int(h) for h in rows if name in rows[h]]
            times = [rows[str(n)][name] * 1e6 for n in h]
            place.loglog(h, times, color=color, marker=marker, markersize=5, label=label)
        place.set(xlabel="units H", ylabel="microseconds per Lipschitz constant, one thread")
        place.set_xticks([int(h) for h in rows], list(rows))
        place.minorticks_off()
        place.grid(alpha=0.25)
        place.legend(frameon=False)


EXPERIMENT = Experiment("kernels", "Speed of the one-dimensional network", jobs, work, report, exclusive=True)
