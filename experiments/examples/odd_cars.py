"""Figures of the example about odd cars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.examples.page import Namespace, build_experiment
from experiments.framework.figure import ACCENT, GREEN, INK, SOFT, draw_figure

__all__ = ["EXPERIMENT"]

N_SHOWN = 12
MAX_SURPRISE = 12.0
"""Surprise in nats of the darkest cells."""


def draw(page: Namespace, folder: Path) -> dict[str, str]:
    _draw_reasons(page, folder / "odd-cars-reasons.png")
    _draw_found(page, folder / "odd-cars-found.png")
    return {
        "odd-cars-reasons.png": "The oddest cars: the surprise of each cell, and what would be ordinary.",
        "odd-cars-found.png": "Errors that were found and errors that were not, among all cars.",
    }


def _draw_reasons(page: Namespace, path: Path) -> None:
    """Table of the oddest rows, coloured by the surprise of each cell."""
    cars, odd, truth = page["cars"], page["odd"], page["truth"]
    names, count = list(cars.columns), min(N_SHOWN, len(page["odd"]))
    reasons = page["reasons"].set_index(["row", "column"])
    with draw_figure(path, figsize=(8, 0.52 * count + 0.5)) as (_, axes):
        ax = axes[0, 0]
        surprise = np.array([[reasons.loc[(row, name), "surprise"] for name in names] for row in range(count)])
        ax.imshow(np.clip(surprise, 0, MAX_SURPRISE), cmap="OrRd", vmin=0, vmax=1.5 * MAX_SURPRISE, aspect="auto")
        for row in range(count):
            most = int(surprise[row].argmax())
            for k, name in enumerate(names):
                cell = reasons.loc[(row, name)]
                is_error = truth[odd.index[row]] == name
                text = _show(cell["value"]) + (" ★" if is_error else "")
                if k == most:
                    low, high = _show(cell["low"]), _show(cell["high"])
                    text += "\n" + (low if low == high else f"{low} to {high}")
                ax.text(k, row, text, ha="center", va="center", fontsize=8, weight="bold" if k == most else "normal")
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
    with draw_figure(path, columns=2, figsize=(8, 3.4)) as (_, axes):
        for ax, name, label in zip(axes[0], ("price", "km"), ("price", "kilometres"), strict=True):
            ax.scatter(shown["year"] + jitter[shown.index], shown[name], s=2, color=SOFT, alpha=0.5, linewidths=0)
            for mask, color, marker, text in (
                (is_found, ACCENT, "o", "error, found"),
                (~is_found, GREEN, "x", "error, not found"),
            ):
                rows = cars.index[(truth == name) & mask]
                style: dict[str, Any] = {"color": color, "marker": marker, "s": 26, "label": text, "zorder": 3}
                ax.scatter(cars["year"][rows] + jitter[rows], cars[name][rows], **style)
            ax.set(yscale="log", xlabel="year", ylabel=label)
        axes[0, 0].legend(frameon=False, loc="upper left", fontsize=8)


def _show(value: object) -> str:
    if isinstance(value, str):
        return value
    number = float(value)  # type: ignore[arg-type]
    return f"{number:.0f}" if 1900 <= number <= 2100 and number == round(number) else f"{number:,.0f}"


EXPERIMENT = build_experiment("odd-cars", "Odd cars, and why", draw)
