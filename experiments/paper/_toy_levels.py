"""Log-densities of toy models by level of the true one, and their contours in log space, as in the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elflow.datasets import toy
from experiments.framework.experiment import Record, Table
from experiments.framework.figure import draw_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_log_densities", "measure_levels", "tabulate_levels"]

EDGES = (math.inf, -4.0, -8.0, -16.0, -40.0, -math.inf)
"""Edges of the levels of the true log-density, in nats."""
LOWEST = -40.0
"""Lowest level of the contours; below it the plots are white."""


def measure_levels(true: Tensor, model: Tensor) -> list[Record]:
    """Errors of log-densities by level of the true ones, on the points of a grid.

    Arguments:
        true: The true log-densities, `(N,)`.
        model: Those of the model.

    Returns:
        For each level with points: its edges, the number of points, and the mean and mean absolute error in nats.
        Where the true density is zero, there is no error, and `mean` is the mean log-density of the model.

    Example:
        >>> for level in measure_levels(torch.tensor([-2.0, -10.0, -12.0]), torch.tensor([-2.0, -9.0, -13.0])):
        ...     print(level["points"], level["mean"], level["absolute"])
        1 0.0 0.0
        2 0.0 1.0
    """
    levels = []
    for high, low in pairwise(EDGES):
        within = (true <= high) & (true > low)
        if within.any():
            error = (model - true)[within].double()
            levels.append(_describe_level(high, low, error, error.abs()))
    outside = true == -math.inf
    if outside.any():
        levels.append(_describe_level(-math.inf, -math.inf, model[outside].double(), None))
    return levels


def _describe_level(high: float, low: float, error: Tensor, absolute: Tensor | None) -> Record:
    edges = [edge if math.isfinite(edge) else None for edge in (high, low)]
    mean = None if absolute is None else float(absolute.mean())
    return {"high": edges[0], "low": edges[1], "points": len(error), "mean": float(error.mean()), "absolute": mean}


def tabulate_levels(models: Sequence[str], runs: dict[str, list[Record]], title: Callable[[str], str]) -> Table | None:
    """The errors of each model by level, means over its seeds; None if no record has them."""
    measured = {model: some for model in models if (some := [run for run in runs[model] if "levels" in run])}
    if not measured:
        return None
    first = next(iter(measured.values()))[0]["levels"]
    rows = []
    for model, some in measured.items():
        cells = []
        for k, level in enumerate(first):
            mean = sum(run["levels"][k]["mean"] for run in some) / len(some)
            if level["absolute"] is None:
                cells.append(f"{mean:.1f}")
            else:
                absolute = sum(run["levels"][k]["absolute"] for run in some) / len(some)
                cells.append(f"{mean:+.2f} ({absolute:.2f})")
        rows.append([title(model), *cells])
    note = (
        "Error of the log-density (model minus truth), averaged over the points of a grid where the true one has "
        "the given level, with the mean absolute error in parentheses, in nats. Few or no training points fall on "
        "the lower levels. Where the true density is zero: the mean log-density of the model, lower is better."
    )
    return Table("Log-densities by level", ["model", *map(_name_level, first)], rows, note)


def _name_level(level: Record) -> str:
    high, low = level["high"], level["low"]
    if level["absolute"] is None:
        return "density zero"
    if high is None:
        return f"above {low:g}"
    return f"below {high:g}" if low is None else f"{low:g} to {high:g}"


def draw_log_densities(path: Path, name: str, panels: Sequence[tuple[str, Path]]) -> None:
    """Contours of log-densities on the same levels.

    Arguments:
        path: The figure.
        name: The toy distribution, whose truth is the first panel.
        panels: A label and a file of a job, `density.npz`, for each further panel.
    """
    distribution = toy.DISTRIBUTIONS[name]()
    with np.load(panels[0][1], allow_pickle=False) as file:
        axis = file["axis"]
    points = torch.from_numpy(axis)
    true = distribution.log_prob(torch.cartesian_prod(points, points)).reshape(len(axis), -1).numpy()
    columns = min(6, len(panels) + 1)
    rows = -(-(len(panels) + 1) // columns)
    with draw_figure(path, rows, columns, figsize=(2.05 * columns, 2.4 * rows)) as (_, axes):
        for place in axes.flat[len(panels) + 1 :]:
            place.set_visible(False)
        _draw_contours(axes.flat[0], axis, true, "True log-density\n")
        for place, (label, file_path) in zip(axes.flat[1:], panels, strict=False):
            with np.load(file_path, allow_pickle=False) as file:
                _draw_contours(place, axis, file["log_density"], label)


def _draw_contours(place: Axes, axis: NDArray[np.float64], log_density: NDArray[np.float64], label: str) -> None:
    levels = np.linspace(LOWEST, 0, 21)
    shown = np.ma.masked_less(log_density.T, LOWEST)
    place.contourf(axis, axis, shown, levels=levels, cmap="viridis")
    place.set(aspect="equal", xticks=[], yticks=[])
    place.set_title(label, fontsize=8)
