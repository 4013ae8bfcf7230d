"""How long a Lipschitz constant takes: the paper's algorithm and ours, by the size of the network and of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elflow import testing
from elflow.functional import lipschitz
from elflow.kernels import native
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.figure import ACCENT, INK, SOFT, STYLE, pyplot, save
from experiments.framework.measure import interleaved, machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ALGORITHMS", "EXPERIMENTS", "fit_line", "networks_at_once", "papers_algorithm"]

UNITS = [16, 32, 64, 128, 256, 512, 1024]
BATCHES = [64, 128, 256, 384, 512, 768, 1024]
FIXED_UNITS = 32
SECONDS = 40.0
FROM_UNITS = 128
"""Powers of the number of units are fitted from here on, where the highest of them weighs most."""


def papers_algorithm(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """The greatest abs(g') over both breakpoints of each unit and both ends, each time from all units: O(H^2).

    Arguments:
        w1, b1, w2: Networks of FELU units, `(N, H)` each, without zeros in w1.

    Returns:
        Their constants, `(N,)`.

    Example:
        >>> w1, b1, w2 = torch.randn(3, 5, 16)
        >>> torch.allclose(papers_algorithm(w1, b1, w2), lipschitz(w1, b1, w2), atol=1e-4)
        True
    """
    slopes = w1 * w2
    points = torch.cat([-b1, -1 - b1], dim=-1) / torch.cat([w1, w1], dim=-1)
    ramps = w1[:, None] * points[..., None]
    ramps.add_(b1[:, None] + 1).clamp_(0, 1)  # in place: new memory for each step can take longer than the step
    rising = (slopes * (w1 > 0)).sum(-1, keepdim=True)
    ends = torch.cat([rising, slopes.sum(-1, keepdim=True) - rising], dim=-1)
    return torch.cat([torch.einsum("nph,nh->np", ramps, slopes), ends], dim=-1).abs().amax(-1)


def _native_direct(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    return native.find_steepest(w1, b1, w2, "direct")[0]


Algorithm = Callable[[Tensor, Tensor, Tensor], Tensor]
ALGORITHMS: dict[str, Algorithm] = {"paper": papers_algorithm, "elflow": lipschitz}
if native.extension is not None:
    ALGORITHMS["direct"] = _native_direct
LABELS = {
    "paper": "The paper's algorithm, in torch",
    "direct": "The paper's algorithm, in C++",
    "elflow": "elflow",
}
LOOKS = {"paper": (ACCENT, "o"), "direct": (SOFT, "s"), "elflow": ("#1d6b4f", "D")}


def networks_at_once(name: str, units: int) -> int:
    """How many networks a call takes: so many that calling does not weigh, with 16 MB of slopes at most.

    Example:
        >>> networks_at_once("paper", 1024), networks_at_once("elflow", 1024)
        (2, 64)
    """
    return 2**16 // units if name == "elflow" else 2**21 // units**2


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """The straight line through points by least squares: where it begins, its slope, and R^2.

    Example:
        >>> fit_line([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
        (1.0, 2.0, 1.0)
    """
    a, b = torch.tensor([list(x), list(y)], dtype=torch.float64)
    across, up = a - a.mean(), b - b.mean()
    slope = (across @ up) / (across @ across)
    rest = up - slope * across
    return float(b.mean() - slope * a.mean()), float(slope), float(1 - (rest @ rest) / (up @ up))


def jobs(plan: Plan) -> list[Job]:
    settings = {"seed": plan.seed, "units": UNITS, "batches": BATCHES, "seconds": SECONDS * plan.effort}
    return [Job("times", settings)]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Seconds of a network by its units, and of a call by its networks, for each algorithm; in turn, on one thread."""
    generator = torch.Generator().manual_seed(settings["seed"])
    calls: dict[str, Callable[[], object]] = {}
    counts: dict[str, int] = {}
    apart = 0.0
    for kind, sizes in (("units", settings["units"]), ("batches", settings["batches"])):
        for size in sizes:
            for name, algorithm in ALGORITHMS.items():
                units, count = (size, networks_at_once(name, size)) if kind == "units" else (FIXED_UNITS, size)
                weights = testing.make_networks("ordinary", count, units, torch.float32, generator)
                truth = lipschitz(*weights)
                apart = max(apart, float(((algorithm(*weights) - truth).abs() / truth).max()))
                call = f"{kind} {name} {size}"
                calls[call] = partial(algorithm, *weights)
                counts[call] = count if kind == "units" else 1
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        taken = interleaved(calls, settings["seconds"])
    finally:
        torch.set_num_threads(threads)
    times = {
        kind: {
            name: [taken[f"{kind} {name} {size}"] / counts[f"{kind} {name} {size}"] for size in settings[kind]]
            for name in ALGORITHMS
        }
        for kind in ("units", "batches")
    }
    sizes = {"units": settings["units"], "batches": settings["batches"]}
    return {"sizes": sizes, "times": times, "apart": apart, "machine": machine()}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    (record,) = records.values()
    sizes, times = record["sizes"], record["times"]
    names = [name for name in LABELS if name in times["units"]]
    squares = [h * h for h in sizes["units"]]
    large = [k for k, h in enumerate(sizes["units"]) if h >= FROM_UNITS]
    logs = torch.tensor([sizes["units"][k] for k in large], dtype=torch.float64).log().tolist()
    quadratic, powers, linear = {}, {}, {}
    for name in names:
        quadratic[name] = fit_line(squares, times["units"][name])
        powers[name] = fit_line(logs, torch.tensor([times["units"][name][k] for k in large]).log().tolist())[1]
        linear[name] = fit_line(sizes["batches"], times["batches"][name])
    _draw(folder / "runtime.png", sizes, times, quadratic["paper"], linear)
    text = (
        f"{_ratios(sizes['units'][-1], times['units'])}\n\n"
        f"Times on one thread of {record['machine']['processor']}, medians of calls in turn. The paper's "
        "algorithm evaluates the slope at both breakpoints of each unit, from all units each time. Its time follows "
        f"a + b H² in the number of units H with R² = {quadratic['paper'][2]:.4f}, and grows as "
        f"H^{powers['paper']:.2f} from {FROM_UNITS} units on. elflow sorts the breakpoints and walks along them: its "
        f"time grows as H^{powers['elflow']:.2f}. "
        f"A straight line in the number of networks has R² = {linear['paper'][2]:.4f} for the paper's and "
        f"{linear['elflow'][2]:.4f} for ours. Their constants differ by at most {record['apart']:.0e}, relatively."
    )
    tables = [
        _table("Microseconds per network, by its units", "Units", 1e6, sizes["units"], times["units"]),
        _table(f"Milliseconds per call, {FIXED_UNITS} units", "Networks", 1e3, sizes["batches"], times["batches"]),
        Table(
            "Fits",
            ["Algorithm", "R² of a + b H²", "Power of H", "R² of a + b N", "Microseconds per network"],
            [
                [
                    LABELS[name],
                    f"{quadratic[name][2]:.4f}",
                    f"{powers[name]:.2f}",
                    f"{linear[name][2]:.4f}",
                    f"{1e6 * linear[name][1]:.3g}",
                ]
                for name in names
            ],
            f"H is the number of units, N that of networks. The power is fitted from {FROM_UNITS} units on, "
            f"microseconds are the slope b for networks of {FIXED_UNITS} units. The C++ code of the paper's algorithm "
            "is called without the checks that elflow makes of its arguments, which weigh where a call is short.",
        ),
    ]
    caption = "Time of a network by its units (left), and of a call by its networks (right), with the fits dotted."
    return Report(text, tables, {"runtime.png": caption})


def _ratios(units: int, times: dict[str, list[float]]) -> str:
    """How much longer the paper's algorithm takes: written as elflow is, and as most would write it."""
    parts = [
        f"{times[name][-1] / times['elflow'][-1]:.3g} times as long as elflow {how}"
        for name, how in (("direct", "where it is written in C++, too"), ("paper", "in plain torch"))
        if name in times
    ]
    return f"With {units:,} units the paper's algorithm takes {', and '.join(parts)}."


def _table(title: str, column: str, scale: float, sizes: list[int], times: dict[str, list[float]]) -> Table:
    names = [name for name in LABELS if name in times]
    rows = [
        [
            f"{size:,}",
            *[f"{scale * times[name][k]:.3g}" for name in names],
            f"{times['paper'][k] / times['elflow'][k]:.3g}",
        ]
        for k, size in enumerate(sizes)
    ]
    return Table(title, [column, *[LABELS[name] for name in names], "Paper's in torch / elflow"], rows)


def _draw(
    path: Path,
    sizes: dict[str, list[int]],
    times: dict[str, dict[str, list[float]]],
    quadratic: tuple[float, float, float],
    linear: dict[str, tuple[float, float, float]],
) -> None:
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
        begin, slope, score = quadratic
        _draw_fit(left, sizes["units"], lambda h: 1e6 * (begin + slope * h**2), f"a + b H², R² = {score:.4f}")
        for name in ("paper", "elflow"):
            a, b, _ = linear[name]
            label = f"a + b N, R² = {linear['paper'][2]:.4f} and {linear['elflow'][2]:.4f}" if name == "paper" else None
            _draw_fit(right, sizes["batches"], partial(_line, 1e3 * a, 1e3 * b), label)
        for place, kind, scale in ((left, "units", 1e6), (right, "batches", 1e3)):
            for name in [name for name in LABELS if name in times[kind]]:
                color, marker = LOOKS[name]
                taken = [scale * t for t in times[kind][name]]
                place.plot(sizes[kind], taken, color=color, marker=marker, markersize=5, label=LABELS[name])
            place.set(xscale="log", yscale="log")
            place.set_xticks(sizes[kind], [str(size) for size in sizes[kind]])
            place.minorticks_off()
            place.grid(color=SOFT, alpha=0.25)
            place.legend(frameon=False, fontsize=8)
        left.set(title="One network", xlabel="units H", ylabel="microseconds per network")
        right.set(title=f"Networks of {FIXED_UNITS} units", xlabel="networks N", ylabel="milliseconds per call")
        figure.suptitle("Time of exact Lipschitz constants, one thread", fontsize=12)
        save(figure, path)
        plt.close(figure)


def _line(begin: float, slope: float, x: Tensor) -> Tensor:
    return begin + slope * x


def _draw_fit(place: Axes, sizes: list[int], fit: Callable[[Tensor], Tensor], label: str | None) -> None:
    x = torch.logspace(math.log10(sizes[0]), math.log10(sizes[-1]), 100)
    y = fit(x)
    place.plot(x[y > 0], y[y > 0], color=INK, linestyle=":", linewidth=1.2, label=label, zorder=3)


EXPERIMENTS = {
    "runtime": Experiment("runtime", "Time of exact Lipschitz constants", jobs, work, report),
}
