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
from elflow.reproduce._experiment import Experiment, Job, Plan, Record, Report, Table
from elflow.reproduce._figure import ACCENT, INK, SOFT, STYLE, pyplot, save
from elflow.reproduce._measure import interleaved, machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ALGORITHMS", "EXPERIMENTS", "fit_line", "papers_algorithm"]

UNITS = [16, 32, 64, 128, 256, 512, 1024]
BATCHES = [16, 32, 64, 128, 256, 512, 1024]
FIXED_BATCH, FIXED_UNITS = 8, 64
SECONDS = 40.0
FROM_UNITS = 128
"""Powers of the number of units are fitted from here on: below, calling torch takes most of the time."""


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
    ramps = (w1[:, None] * points[..., None] + (b1[:, None] + 1)).clamp_(0, 1)
    rising = (slopes * (w1 > 0)).sum(-1, keepdim=True)
    ends = torch.cat([rising, slopes.sum(-1, keepdim=True) - rising], dim=-1)
    return torch.cat([torch.einsum("nph,nh->np", ramps, slopes), ends], dim=-1).abs().amax(-1)


def _native_direct(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    return native.steepest(w1, b1, w2, "direct")[0]


Algorithm = Callable[[Tensor, Tensor, Tensor], Tensor]
ALGORITHMS: dict[str, Algorithm] = {"paper": papers_algorithm, "elflow": lipschitz}
if not native.why_not:
    ALGORITHMS["direct"] = _native_direct
LABELS = {
    "paper": "The paper's algorithm, in torch",
    "direct": "The paper's algorithm, in C++",
    "elflow": "elflow",
}
LOOKS = {"paper": (ACCENT, "o"), "direct": (SOFT, "s"), "elflow": ("#1d6b4f", "D")}


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
    """Seconds of a call, by algorithm, and then by units and by batch; all in turn, on one thread."""
    generator = torch.Generator().manual_seed(settings["seed"])
    calls: dict[str, Callable[[], object]] = {}
    apart = 0.0
    shapes = {"units": [(FIXED_BATCH, h) for h in settings["units"]]}
    shapes["batches"] = [(n, FIXED_UNITS) for n in settings["batches"]]
    for kind, sizes in shapes.items():
        for count, units in sizes:
            weights = testing.networks("ordinary", count, units, torch.float32, generator)
            truth = lipschitz(*weights)
            for name, algorithm in ALGORITHMS.items():
                apart = max(apart, float(((algorithm(*weights) - truth).abs() / truth).max()))
                calls[f"{kind} {name} {count} {units}"] = partial(algorithm, *weights)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        taken = interleaved(calls, settings["seconds"])
    finally:
        torch.set_num_threads(threads)
    times = {
        kind: {name: [taken[f"{kind} {name} {n} {h}"] for n, h in sizes] for name in ALGORITHMS}
        for kind, sizes in shapes.items()
    }
    return {"sizes": {k: settings[k] for k in shapes}, "times": times, "apart": apart, "machine": machine()}


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
    ratio = times["units"]["paper"][-1] / times["units"]["elflow"][-1]
    text = (
        f"Seconds of a call on one thread of {record['machine']['processor']}, medians of calls in turn. The paper's "
        "algorithm evaluates the slope at both breakpoints of each unit, from all units each time. Its time follows "
        f"a + b H² in the number of units H with R² = {quadratic['paper'][2]:.4f}, and grows as "
        f"H^{powers['paper']:.2f} from {FROM_UNITS} units on. elflow sorts the breakpoints and walks along them: its "
        f"time grows as H^{powers['elflow']:.2f}, and at {sizes['units'][-1]:,} units it takes "
        + (f"1/{ratio:.3g} of the time. " if ratio > 1 else f"{1 / ratio:.3g} times as long. ")
        + f"In the number of networks both are linear, with R² = {linear['paper'][2]:.4f} for the paper's and "
        f"{linear['elflow'][2]:.4f} for ours. Their constants differ by at most {record['apart']:.0e}, relatively."
    )
    tables = [
        _table("By units", "Units", sizes["units"], times["units"], f"A call takes {FIXED_BATCH} networks."),
        _table("By batch", "Networks", sizes["batches"], times["batches"], f"Networks of {FIXED_UNITS} units."),
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
            f"microseconds are the slope b for networks of {FIXED_UNITS} units.",
        ),
    ]
    caption = "Time of a call by the number of units (left) and of networks (right), with the fits dotted."
    return Report(text, tables, {"runtime.png": caption})


def _table(title: str, column: str, sizes: list[int], times: dict[str, list[float]], note: str) -> Table:
    names = [name for name in LABELS if name in times]
    rows = [
        [
            f"{size:,}",
            *[f"{1e3 * times[name][k]:.3g}" for name in names],
            f"{times['paper'][k] / times['elflow'][k]:.3g}",
        ]
        for k, size in enumerate(sizes)
    ]
    return Table(f"{title}, milliseconds", [column, *[LABELS[name] for name in names], "Paper's / elflow"], rows, note)


def _draw(
    path: Path,
    sizes: dict[str, list[int]],
    times: dict[str, dict[str, list[float]]],
    quadratic: tuple[float, float, float],
    linear: dict[str, tuple[float, float, float]],
) -> None:
    plt = pyplot()
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained", sharey=True)
        begin, slope, score = quadratic
        _draw_fit(left, sizes["units"], lambda h: begin + slope * h**2, f"a + b H², R² = {score:.4f}")
        for name in ("paper", "elflow"):
            a, b, _ = linear[name]
            label = f"a + b N, R² = {linear['paper'][2]:.4f} and {linear['elflow'][2]:.4f}" if name == "paper" else None
            _draw_fit(right, sizes["batches"], partial(_line, a, b), label)
        for place, kind in ((left, "units"), (right, "batches")):
            for name, taken in times[kind].items():
                color, marker = LOOKS[name]
                milliseconds = [1e3 * t for t in taken]
                place.plot(sizes[kind], milliseconds, color=color, marker=marker, markersize=5, label=LABELS[name])
            place.set(xscale="log", yscale="log")
            place.set_xticks(sizes[kind], [str(size) for size in sizes[kind]])
            place.minorticks_off()
            place.grid(color=SOFT, alpha=0.25)
            place.legend(frameon=False, fontsize=8)
        left.set(title=f"{FIXED_BATCH} networks", xlabel="units H", ylabel="milliseconds")
        right.set(title=f"Networks of {FIXED_UNITS} units", xlabel="networks N")
        figure.suptitle("Time of exact Lipschitz constants, one thread", fontsize=12)
        save(figure, path)
        plt.close(figure)


def _line(begin: float, slope: float, x: Tensor) -> Tensor:
    return begin + slope * x


def _draw_fit(place: Axes, sizes: list[int], fit: Callable[[Tensor], Tensor], label: str | None) -> None:
    x = torch.logspace(math.log10(sizes[0]), math.log10(sizes[-1]), 100)
    y = 1e3 * fit(x)
    place.plot(x[y > 0], y[y > 0], color=INK, linestyle=":", linewidth=1.2, label=label, zorder=3)


EXPERIMENTS = {
    "runtime": Experiment("runtime", "Time of exact Lipschitz constants", jobs, work, report),
}
