"""The paper's first figures: activations, one-layer networks, and the points that decide their Lipschitz constants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from elflow.activations import FELU, QELU, RELU, PiecewiseQuadratic
from elflow.functional import elf, elf_inverse, lipschitz
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.figure import ACCENT, GREEN, INK, SOFT, draw_figure
from experiments.paper.claims import with_claims

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "breakpoints", "draw", "random_network", "steepest_on_grid"]

COLORS = {FELU: GREEN, RELU: "#b8860b", QELU: "#4a5fa5"}
NAMES = {FELU: "FELU", RELU: "ReLU", QELU: "QELU"}
UNITS = [5, 50, 500]
POINTS = 20_001
REACH = 10.0
"""Grids extend this far on both sides of zero: all ramps of `random_network` lie within."""


def random_network(units: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """A random network whose ramps lie within about three of zero: w1, b1 and w2, `(units,)` each.

    Example:
        >>> w1, b1, w2 = random_network(units=5, seed=0)
        >>> lipschitz(w1, b1, w2).dtype
        torch.float64
    """
    generator = torch.Generator().manual_seed(seed)
    uniform, sign, place, weight = torch.rand(4, units, generator=generator, dtype=torch.float64)
    w1 = (0.5 + 2 * uniform) * torch.where(sign < 0.5, -1, 1)
    return w1, -w1 * (6 * place - 3), 2 * weight - 1


def breakpoints(w1: Tensor, b1: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    """Sorted points between which the slope of the network is linear.

    Example:
        >>> breakpoints(torch.tensor([2.0]), torch.tensor([4.0]), FELU)
        tensor([-2.5000, -2.0000])
    """
    points = w1.new_tensor(activation.breakpoints)
    return ((points[:, None] - b1) / w1).flatten().sort().values


def steepest_on_grid(weights: tuple[Tensor, ...], slope: Callable[[Tensor], Tensor], points: int = POINTS) -> float:
    """Maximum of abs(g') on an equidistant grid: a search without knowledge of the breakpoints.

    Arguments:
        weights: w1, b1 and w2 of the network, `(H,)` each.
        slope: The slope of the activation.
        points: The number of points.

    Example:
        >>> w1, b1, w2 = random_network(units=5, seed=0)
        >>> steepest_on_grid((w1, b1, w2), FELU.slope) <= lipschitz(w1, b1, w2)
        tensor(True)
    """
    w1, b1, w2 = weights
    x = torch.linspace(-REACH, REACH, points, dtype=w1.dtype)
    return max(float((slope(w1 * part[:, None] + b1) @ (w1 * w2)).abs().max()) for part in x.split(2**20 // len(w1)))


def _elu_slope(u: Tensor) -> Tensor:
    return u.clamp(max=0).exp()


def draw(path: Path, units: int = 5, seed: int = 11, bound: float = 0.99) -> dict[str, float]:
    """Draw the figure to a PNG file and return the Lipschitz constant of each activation in it."""
    weights = random_network(units, seed)
    with draw_figure(path, rows=2, columns=3, figsize=(12, 6.4)) as (figure, axes):
        _draw_activations(axes[0, 0], axes[1, 0])
        constants = {}
        for column, activation in enumerate((RELU, FELU), start=1):
            constants[NAMES[activation]] = _draw_network(axes[:, column], weights, activation, bound)
        figure.suptitle(f"One-layer networks of {units} units and their exact Lipschitz constants", fontsize=12)
    return constants


def _draw_activations(above: Axes, below: Axes) -> None:
    u = torch.linspace(-4, 2, 601, dtype=torch.float64)
    for activation, color in COLORS.items():
        above.plot(u, activation(u), color=color, label=NAMES[activation])
        below.plot(u, activation.slope(u), color=color)
    above.plot(u, torch.nn.functional.elu(u), color=SOFT, linestyle="--", label="ELU")
    below.plot(u, _elu_slope(u), color=SOFT, linestyle="--")
    above.set(title="Activations", ylabel="value")
    below.set(xlabel="u", ylabel="slope")
    above.legend(frameon=False)


def _draw_network(axes: list[Axes], weights: tuple[Tensor, ...], activation: PiecewiseQuadratic, bound: float) -> float:
    w1, b1, w2 = weights
    zero = w1.new_zeros(())
    corners = breakpoints(w1, b1, activation)
    # Points on both sides of each corner, so that the jumps of ReLU's slope are vertical lines.
    x = torch.cat([torch.linspace(-5, 5, 2001, dtype=w1.dtype), corners - 1e-9, corners + 1e-9]).sort().values
    u = w1 * x[:, None] + b1
    g, slope = (w2 * activation(u)).sum(-1), (w1 * w2 * activation.slope(u)).sum(-1)
    constant = lipschitz(w1, b1, w2, activation).item()
    y, _ = elf(x, w1, b1, w2, zero, bound, activation)
    back = elf_inverse(y, w1, b1, w2, zero, bound, activation)
    steepest = x[slope.abs().argmax()].item()

    color, above, below = COLORS[activation], *axes
    above.plot(x, g, color=color, label="g(x)")
    above.plot(x, y, color=INK, linewidth=1, label=f"x + s g(x), s = {min(1, bound / constant):.2f}")
    above.plot(y, back, color=INK, linewidth=1, linestyle="--", label="its inverse")
    above.plot([-5, 5], [-5, 5], color=SOFT, linewidth=0.7)
    above.set(title=f"{NAMES[activation]} network", xlabel="x", xlim=(-5, 5), ylim=(-5, 5), aspect="equal")
    above.legend(frameon=False, loc="lower right", fontsize=8, handlelength=1)
    below.plot(x, slope, color=color)
    for line in (constant, -constant):
        below.axhline(line, color=ACCENT, linestyle=":", linewidth=1)
    for side in (-1e-9, 1e-9):
        at_corners = (w1 * w2 * activation.slope(w1 * (corners[:, None] + side) + b1)).sum(-1)
        below.plot(corners, at_corners, "o", color=color, markersize=3.5)
    below.plot(steepest, slope[slope.abs().argmax()], "o", color=ACCENT, markersize=8, fillstyle="none")
    below.set(xlabel="x", ylabel="slope g'(x)", xlim=(-5, 5), title=f"Lip(g) = {constant:.4f} at x = {steepest:.3f}")
    return constant


def jobs(plan: Plan) -> list[Job]:
    return [Job("networks", {"seed": 11 + plan.seed, "units": UNITS, "points": POINTS})]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Lipschitz constants of random networks, exact and on a grid. ELU has no exact ones."""
    rows = []
    for units in settings["units"]:
        weights = random_network(units, settings["seed"])
        for activation in (RELU, FELU, QELU):
            exact = lipschitz(*weights, activation).item()
            grid = steepest_on_grid(weights, activation.slope, settings["points"])
            rows.append({"activation": NAMES[activation], "units": units, "exact": exact, "grid": grid})
        grid = steepest_on_grid(weights, _elu_slope, settings["points"])
        rows.append({"activation": "ELU", "units": units, "exact": None, "grid": grid})
    return {"seed": settings["seed"], "points": settings["points"], "rows": rows}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    (record,) = records.values()
    draw(folder / "networks.png", record["rows"][0]["units"], record["seed"])
    known = [row for row in record["rows"] if row["exact"] is not None]
    short = [1 - row["grid"] / row["exact"] for row in known]
    below = sum(gap >= -1e-12 for gap in short)
    text = (
        "The slope of a one-layer network of ReLU, FELU or QELU units is linear between finitely many breakpoints, so "
        "that its maximum is at one of them: that gives the Lipschitz constant exactly, whereas a grid only gives a "
        f"lower bound. On {below} of {len(known)} networks none of {record['points']:,} grid points was steeper than "
        f"the exact constant, and the largest slope on the grid was at most {100 * max(short):.2g} % below it. The "
        "slope of ELU is exponential and has no such breakpoints. With the same weights, its largest slope on the grid "
        f"differs from that of QELU by at most {100 * _compare_slopes(record, 'QELU'):.0f} %, from that of FELU by "
        f"{100 * _compare_slopes(record, 'FELU'):.0f} %, and from that of ReLU by "
        f"{100 * _compare_slopes(record, 'ReLU'):.0f} %."
    )
    rows = [
        [
            row["activation"],
            str(row["units"]),
            "unknown" if row["exact"] is None else f"{row['exact']:.6f}",
            f"{row['grid']:.6f}",
            "" if row["exact"] is None else f"{max(0.0, row['exact'] - row['grid'] - 1e-12):.1e}",
        ]
        for row in record["rows"]
    ]
    columns = ["Activation", "Units", "Exact constant", "Largest slope on the grid", "Difference"]
    note = "The same random weights for all activations. The paper shows such networks; the weights are ours."
    caption = (
        "Left: the activations and their slopes. Middle and right: a random network of ReLU units and one of FELU "
        "units, the increasing map that ELF makes of it and the inverse of that map; below, its slope, the "
        "breakpoints, and the one that gives the Lipschitz constant, circled."
    )
    return Report(text, [Table("Exact constants and slopes on a grid", columns, rows, note)], {"networks.png": caption})


def _compare_slopes(record: Record, activation: str) -> float:
    """Largest relative difference between the slopes of ELU and of an activation on the grid."""
    slopes = {(row["activation"], row["units"]): row["grid"] for row in record["rows"]}
    return max(abs(grid / slopes["ELU", units] - 1) for (name, units), grid in slopes.items() if name == activation)


EXPERIMENT = with_claims(Experiment("networks", "One-layer networks and their Lipschitz constants", jobs, work, report))
