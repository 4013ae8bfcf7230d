"""Figures of the example about odd cars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.examples.page import Namespace, build_experiment
from experiments.framework.figure import ACCENT, GREEN, INK, SOFT, draw_figure

__all__ = ["EXPERIMENT"]

N_SHOWN = 3
"""Number of rows with errors of each kind."""


def draw(page: Namespace, folder: Path) -> dict[str, str]:
    _draw_reasons(page, folder / "odd-cars-reasons.png")
    _draw_found(page, folder / "odd-cars-found.png")
    return {
        "odd-cars-reasons.png": "The oddest cars: the surprise of each cell, and what would be ordinary.",
        "odd-cars-found.png": "Errors that were found and errors that were not, among all cars.",
    }


def _draw_reasons(page: Namespace, path: Path) -> None:
    """Table of odd rows with errors of all kinds and without, coloured by the surprise of each cell."""
    odd, truth, names = page["odd"], page["truth"], list(page["cars"].columns)
    kinds = truth[odd.index].reset_index(drop=True)
    rows = [row for kind in ("price", "km", "kw", "fuel", "") for row in np.flatnonzero(kinds == kind)[:N_SHOWN]]
    reasons = page["reasons"].set_index(["row", "column"])
    surprise = np.array([[reasons.loc[(row, name), "surprise"] for name in names] for row in rows])
    shade = np.clip(surprise, 0, None) / np.maximum(surprise.max(1, keepdims=True), 1e-9)
    with draw_figure(path, figsize=(9, 0.48 * len(rows) + 0.5)) as (_, axes):
        ax = axes[0, 0]
        ax.imshow(shade, cmap="OrRd", vmin=0, vmax=1.6, aspect="auto")
        for i, row in enumerate(rows):
            most = int(surprise[i].argmax())
            for k, name in enumerate(names):
                cell = reasons.loc[(row, name)]
                text = _show(cell["value"], name) + (" ★" if kinds[row] == name else "")
                if k == most:
                    low, high = _show(cell["low"], name), _show(cell["high"], name)
                    text += f"\n({low})" if low == high else f"\n({low} to {high})"
                ax.text(k, i, text, ha="center", va="center", fontsize=7.5, weight="bold" if k == most else "normal")
        ax.set_xticks(range(len(names)), names)
        ax.xaxis.tick_top()
        ax.tick_params(length=0, colors=INK)
        ax.set_yticks([])
        for side in ("left", "bottom"):
            ax.spines[side].set_visible(False)


def _draw_found(page: Namespace, path: Path) -> None:
    """Scatter plots with the errors in one column each."""
    cars, truth = page["cars"], page["truth"]
    is_found = pd.Series(page["score"] > 99.5, cars.index)
    shown = cars.sample(min(len(cars), 2500), random_state=0)
    jitter = np.random.default_rng(0).uniform(-0.4, 0.4, len(cars))
    x = cars.assign(year=cars["year"] + jitter)
    pairs = (("year", "price", "price"), ("year", "km", "km"), ("kw", "price", "kw"))
    with draw_figure(path, columns=3, figsize=(9, 3.2)) as (_, axes):
        for ax, (across, along, column) in zip(axes[0], pairs, strict=True):
            ax.scatter(x[across][shown.index], shown[along], s=2, color=SOFT, alpha=0.5, linewidths=0)
            for mask, color, marker, text in (
                (is_found, ACCENT, "o", "error, found"),
                (~is_found, GREEN, "x", "error, not found"),
            ):
                rows = cars.index[(truth == column) & mask]
                style: dict[str, Any] = {"color": color, "marker": marker, "s": 22, "label": text, "zorder": 3}
                ax.scatter(x[across][rows], cars[along][rows], **style)
            ax.set(yscale="log", xlabel=across, ylabel=along, title=f"errors in {column}")
        axes[0, 0].legend(frameon=False, loc="upper left", fontsize=8)


def _show(value: object, name: str) -> str:
    if isinstance(value, str):
        return value
    return f"{float(value):.0f}" if name == "year" else f"{float(value):,.0f}"  # type: ignore[arg-type]


EXPERIMENT = build_experiment("odd-cars", "Odd cars, and why", draw)
