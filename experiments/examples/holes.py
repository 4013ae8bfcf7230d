"""Figures of the example about missing values."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments.examples.page import Namespace, build_experiment
from experiments.framework.figure import ACCENT, GREEN, INK, SOFT, draw_figure

__all__ = ["EXPERIMENT"]


def draw(page: Namespace, folder: Path) -> dict[str, str]:
    _draw_slopes(page, folder / "holes-slopes.png")
    _draw_filled(page, folder / "holes-filled.png")
    return {
        "holes-slopes.png": "Slopes and their intervals over repeated surveys.",
        "holes-filled.png": "Values that were hidden, and values that were filled in.",
    }


def _draw_slopes(page: Namespace, path: Path) -> None:
    """Intervals of each method over all surveys."""
    results, slope = page["results"], page["TRUE_SLOPE"]
    names = list(results[0])
    with draw_figure(path, columns=len(names), figsize=(9, 3), sharey=True, sharex=True) as (_, axes):
        for ax, name in zip(axes[0], names, strict=True):
            for i, result in enumerate(results):
                estimate, low, high = result[name]
                color = GREEN if low <= slope <= high else ACCENT
                ax.plot([low, high], [i, i], color=color, linewidth=1.5)
                ax.plot([estimate], [i], "o", color=color, markersize=3.5)
            ax.axvline(slope, color=INK, linestyle="--", linewidth=0.8)
            ax.set_title(name.replace(", ", ",\n"), fontsize=9)
            ax.set_yticks([])
            ax.spines["left"].set_visible(False)
        axes[0, len(names) // 2].set_xlabel("slope and 95 % interval, mmHg per mmol/l")


def _draw_filled(page: Namespace, path: Path) -> None:
    """Hidden values, draws of elflow and linear draws of the last survey."""
    full, survey, density = page["full"], page["survey"], page["density"]
    is_hole = survey["sugar"].isna()
    parts = {
        "what was hidden": full,
        "one draw of elflow": density.impute(survey, random_state=0),
        "one linear draw": page["fill_linearly"](survey, 2)[0],
    }
    with draw_figure(path, columns=3, figsize=(9, 3.2), sharey=True, sharex=True) as (_, axes):
        for ax, (title, table) in zip(axes[0], parts.items(), strict=True):
            ax.scatter(survey["bmi"][~is_hole], survey["sugar"][~is_hole], s=3, color=SOFT, alpha=0.5, linewidths=0)
            for flag, color, label in ((False, GREEN, "filled, others"), (True, ACCENT, "filled, smokers")):
                rows = is_hole & (full["smoker"] == flag)
                ax.scatter(
                    full["bmi"][rows], table["sugar"][rows], s=5, color=color, alpha=0.7, linewidths=0, label=label
                )
            ax.axhline(3.5, color=INK, linewidth=0.6, linestyle=":")
            ax.set(title=title, xlabel="body mass index")
        limit = float(np.quantile(full["sugar"], 0.995))
        axes[0, 0].set(ylabel="blood sugar, mmol/l", ylim=(1, limit), xlim=(12, 45))
        axes[0, 2].legend(frameon=False, fontsize=8, loc="upper left", markerscale=2)


EXPERIMENT = build_experiment("holes", "Holes filled, and their uncertainty", draw)
