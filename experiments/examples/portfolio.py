"""Figures of the example about the risk of a portfolio."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import stats

from experiments.examples.page import Namespace, build_experiment
from experiments.framework.figure import ACCENT, GREEN, INK, SOFT, draw_figure

__all__ = ["EXPERIMENT"]

LEVEL = 1
"""Position of the level that is drawn."""
BLUE = "#2c5f8a"


def draw(page: Namespace, folder: Path) -> dict[str, str]:
    _draw_risk(page, folder / "portfolio-risk.png")
    _draw_crash(page, folder / "portfolio-crash.png")
    return {
        "portfolio-risk.png": "Returns of the portfolio and its value at risk.",
        "portfolio-crash.png": "Losses of the portfolio on days on which one stock crashes.",
    }


def _draw_risk(page: Namespace, path: Path) -> None:
    """Returns and quantiles of the test days."""
    realised, forecasts, days = page["realised"], page["forecasts"], np.arange(page["n_test"])
    with draw_figure(path, figsize=(9, 3.8)) as (_, axes):
        ax = axes[0, 0]
        ax.bar(days, realised, width=1.0, color=SOFT, alpha=0.7, label="return")
        ax.plot(days, page["true"][:, LEVEL], color=INK, linewidth=2.2, alpha=0.35, label="true quantile")
        ax.plot(
            days, forecasts["last 250 days"][:, LEVEL], color=BLUE, linewidth=1, linestyle="--", label="last 250 days"
        )
        ax.plot(days, forecasts["elflow"][:, LEVEL], color=GREEN, linewidth=1, label="elflow")
        is_below = realised < forecasts["elflow"][:, LEVEL]
        ax.scatter(days[is_below], realised[is_below], s=14, color=ACCENT, zorder=4, label="breach")
        ax.set(xlabel="day", ylabel="return, %", xlim=(0, len(days)))
        ax.legend(frameon=False, fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.14))


def _draw_crash(page: Namespace, path: Path) -> None:
    """Kernel densities of losses in two moods of the market."""
    joint, moods, crash = page["joint"], page["moods"], page["crash"]
    grid = np.linspace(-5, 12, 400)
    with draw_figure(path, columns=2, figsize=(8, 2.8), sharey=True, sharex=True) as (_, axes):
        for ax, title, mood in zip(axes[0], ("calm market", "wild market"), (moods[:1], moods[1:]), strict=True):
            for given, color, label in ((None, GREEN, "any day"), (crash, ACCENT, "a falls by more than 3 %")):
                rows = joint.sample(2000, given=given, context=mood, random_state=0)
                losses = -rows.mean(axis=1).to_numpy()
                curve = stats.gaussian_kde(losses)(grid)
                ax.fill_between(grid, curve, color=color, alpha=0.25)
                ax.plot(grid, curve, color=color, linewidth=1, label=label)
            ax.set(title=title, xlabel="loss of the portfolio, %")
            ax.set_yticks([])
            ax.spines["left"].set_visible(False)
        axes[0, 0].legend(frameon=False, fontsize=8)


EXPERIMENT = build_experiment("portfolio", "The risk of a portfolio", draw)
