"""Run time of exact Lipschitz constants: the paper's algorithm and ours, by number of units and of networks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elflow import testing
from elflow.functional import lipschitz
from elflow.kernels import native
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.figure import ACCENT, GREEN, INK, SOFT, draw_figure
from experiments.framework.measure import describe_machine, fit_line, median_times
from experiments.paper.claims import with_claims
from experiments.paper.judges.mathematics import MIN_FITTED_UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ALGORITHMS", "EXPERIMENT", "fit_line", "native_direct", "networks_per_call", "papers_algorithm"]

UNITS = [16, 32, 64, 128, 256, 512, 1024]
BATCHES = [64, 128, 256, 384, 512, 768, 1024]
FIXED_UNITS = 32
SECONDS = 40.0


def papers_algorithm(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """The paper's algorithm: the maximum of abs(g') over all breakpoints and both ends, in O(H^2).

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
    ramps.add_(b1[:, None] + 1).clamp_(0, 1)  # in place: allocating memory can take longer than the computation
    rising = (slopes * (w1 > 0)).sum(-1, keepdim=True)
    ends = torch.cat([rising, slopes.sum(-1, keepdim=True) - rising], dim=-1)
    return torch.cat([torch.einsum("nph,nh->np", ramps, slopes), ends], dim=-1).abs().amax(-1)


def native_direct(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """The paper's algorithm in C++."""
    return native.find_steepest(w1, b1, w2, "direct")[0]


Algorithm = Callable[[Tensor, Tensor, Tensor], Tensor]
ALGORITHMS: dict[str, Algorithm] = {"paper": papers_algorithm, "elflow": lipschitz}
if native.extension is not None:
    ALGORITHMS["direct"] = native_direct
LABELS = {
    "paper": "The paper's algorithm, in torch",
    "direct": "The paper's algorithm, in C++",
    "elflow": "elflow",
}
LOOKS = {"paper": (ACCENT, "o"), "direct": (SOFT, "s"), "elflow": (GREEN, "D")}


def networks_per_call(name: str, units: int) -> int:
    """Number of networks of a call: enough to hide the cost of the call, with at most 16 MB of slopes.

    Example:
        >>> networks_per_call("paper", 1024), networks_per_call("elflow", 1024)
        (2, 64)
    """
    return 2**16 // units if name == "elflow" else 2**21 // units**2


def jobs(plan: Plan) -> list[Job]:
    settings = {"seed": plan.seed, "units": UNITS, "batches": BATCHES, "seconds": plan.seconds(SECONDS)}
    return [Job("times", settings)]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Seconds per network by its units, and per call by its networks, for each algorithm: interleaved, one thread."""
    generator = torch.Generator().manual_seed(settings["seed"])
    calls: dict[str, Callable[[], object]] = {}
    counts: dict[str, int] = {}
    apart = 0.0
    for kind, sizes in (("units", settings["units"]), ("batches", settings["batches"])):
        for size in sizes:
            for name, algorithm in ALGORITHMS.items():
                units, count = (size, networks_per_call(name, size)) if kind == "units" else (FIXED_UNITS, size)
                weights = testing.make_networks("ordinary", count, units, torch.float32, generator)
                truth = lipschitz(*weights)
                apart = max(apart, float(((algorithm(*weights) - truth).abs() / truth).max()))
                call = f"{kind} {name} {size}"
                calls[call] = partial(algorithm, *weights)
                counts[call] = count if kind == "units" else 1
    taken = median_times(calls, settings["seconds"])
    times = {
        kind: {
            name: [taken[f"{kind} {name} {size}"] / counts[f"{kind} {name} {size}"] for size in settings[kind]]
            for name in ALGORITHMS
        }
        for kind in ("units", "batches")
    }
    sizes = {"units": settings["units"], "batches": settings["batches"]}
    return {"sizes": sizes, "times": times, "apart": apart, "machine": describe_machine()}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    (record,) = records.values()
    sizes, times = record["sizes"], record["times"]
    names = [name for name in LABELS if name in times["units"]]
    squares = [h * h for h in sizes["units"]]
    large = [k for k, h in enumerate(sizes["units"]) if h >= MIN_FITTED_UNITS]
    logs = torch.tensor([sizes["units"][k] for k in large], dtype=torch.float64).log().tolist()
    quadratic, powers, linear = {}, {}, {}
    for name in names:
        quadratic[name] = fit_line(squares, times["units"][name])
        powers[name] = fit_line(logs, torch.tensor([times["units"][name][k] for k in large]).log().tolist())[1]
        linear[name] = fit_line(sizes["batches"], times["batches"][name])
    _draw(folder / "runtime.png", sizes, times, quadratic["paper"], linear)
    text = (
        f"{_describe_ratios(sizes['units'][-1], times['units'])}\n\n"
        f"Medians of interleaved calls on one thread of {record['machine']['processor']}. The paper's algorithm "
        "evaluates the slope at both breakpoints of each unit, from all units each time. Its time fits a + b H² in the "
        f"number of units H with R² = {quadratic['paper'][2]:.4f}, and grows as H^{powers['paper']:.2f} from "
        f"{MIN_FITTED_UNITS} units on. elflow sorts the breakpoints and sweeps over them: its time grows as "
        f"H^{powers['elflow']:.2f}. A linear fit in the number of networks has R² = {linear['paper'][2]:.4f} for the "
        f"paper's algorithm and {linear['elflow'][2]:.4f} for ours. The constants differ by at most "
        f"{record['apart']:.0e}, relatively."
    )
    tables = [
        _tabulate_times("Microseconds per network, by its units", "Units", 1e6, sizes["units"], times["units"]),
        _tabulate_times(
            f"Milliseconds per call, {FIXED_UNITS} units", "Networks", 1e3, sizes["batches"], times["batches"]
        ),
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
            f"H is the number of units, N that of networks. The power is fitted from {MIN_FITTED_UNITS} units on; "
            f"microseconds are the slope b for networks of {FIXED_UNITS} units. The C++ code of the paper's algorithm "
            "is called without elflow's checks of arguments, which matter for short calls.",
        ),
    ]
    caption = "Time per network by its units (left), and per call by its networks (right); fits are dotted."
    return Report(text, tables, {"runtime.png": caption})


def _describe_ratios(units: int, times: dict[str, list[float]]) -> str:
    """The time of the paper's algorithm relative to elflow's, in C++ and in torch."""
    parts = [
        f"{times[name][-1] / times['elflow'][-1]:.3g} times as long as elflow {how}"
        for name, how in (("direct", "if it is also written in C++"), ("paper", "in plain torch"))
        if name in times
    ]
    return f"With {units:,} units the paper's algorithm takes {', and '.join(parts)}."


def _tabulate_times(title: str, column: str, scale: float, sizes: list[int], times: dict[str, list[float]]) -> Table:
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
    with draw_figure(path, columns=2, figsize=(11, 4.4)) as (figure, axes):
        left, right = axes[0]
        begin, slope, score = quadratic
        _draw_fit(left, sizes["units"], lambda h: 1e6 * (begin + slope * h**2), f"a + b H², R² = {score:.4f}")
        for name in ("paper", "elflow"):
            a, b, _ = linear[name]
            label = f"a + b N, R² = {linear['paper'][2]:.4f} and {linear['elflow'][2]:.4f}" if name == "paper" else None
            _draw_fit(right, sizes["batches"], partial(_evaluate_line, 1e3 * a, 1e3 * b), label)
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
        figure.suptitle("Run time of exact Lipschitz constants, one thread", fontsize=12)


def _evaluate_line(begin: float, slope: float, x: Tensor) -> Tensor:
    return begin + slope * x


def _draw_fit(place: Axes, sizes: list[int], fit: Callable[[Tensor], Tensor], label: str | None) -> None:
    x = torch.logspace(math.log10(sizes[0]), math.log10(sizes[-1]), 100)
    y = fit(x)
    place.plot(x[y > 0], y[y > 0], color=INK, linestyle=":", linewidth=1.2, label=label, zorder=3)


EXPERIMENT = with_claims(
    Experiment("runtime", "Run time of exact Lipschitz constants", jobs, work, report, exclusive=True)
)
