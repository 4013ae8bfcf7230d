"""Figures of the example about the posterior of a simulator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy import stats

from experiments.examples.page import Namespace, build_experiment
from experiments.framework.figure import ACCENT, GREEN, INK, SOFT, draw_figure

__all__ = ["EXPERIMENT"]

N_BINS = 20
N_EPIDEMICS, N_SAMPLES = 40, 1000


def draw(page: Namespace, folder: Path) -> dict[str, str]:
    _draw_posterior(page, folder / "epidemic-posterior.png")
    _draw_ranks(page, folder / "epidemic-ranks.png")
    return {
        "epidemic-posterior.png": "The exact posterior and samples of ELF, and the epidemics that they predict.",
        "epidemic-ranks.png": "Ranks of the true parameters among samples of their posteriors.",
    }


def _draw_posterior(page: Namespace, path: Path) -> None:
    """Samples with lines of the exact posterior, and posterior predictive epidemics."""
    samples, exact = page["samples"].numpy(), page["exact"].numpy().reshape(300, 300)
    beta, gamma = page["grid_beta"].numpy(), page["grid_gamma"].numpy()
    order = np.sort(exact.ravel())[::-1]
    levels = sorted(order[np.searchsorted(order.cumsum(), share)] for share in (0.5, 0.9))
    with draw_figure(path, columns=2, figsize=(8.5, 3.6)) as (_, axes):
        left, right = axes[0]
        left.scatter(*samples[:N_SAMPLES].T, s=4, color=GREEN, alpha=0.35, linewidths=0, label="ELF")
        left.contour(beta, gamma, exact.T, levels=levels, colors=INK, linewidths=1.2)
        left.plot([], [], color=INK, linewidth=1.2, label="exact")
        left.plot(*page["true"][0].numpy(), "*", color=ACCENT, markersize=11, label="true parameters")
        low, high = np.quantile(samples, [0.001, 0.999], axis=0)
        margin = 0.15 * (high - low)
        left.set(xlabel="rate of infection", ylabel="rate of recovery")
        left.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
        left.legend(frameon=False, fontsize=8)
        days = list(page["DAYS"])
        expected = page["TESTED"] * page["infectious"](page["samples"][:N_EPIDEMICS]).numpy()
        right.plot(days, expected.T, color=GREEN, alpha=0.2, linewidth=1)
        right.plot(days, page["observed"][0].numpy(), "o", color=ACCENT, markersize=5, label="observed")
        right.plot([], [], color=GREEN, label="expected, posterior")
        right.set(xlabel="day", ylabel="positive tests")
        right.legend(frameon=False, fontsize=8)


def _draw_ranks(page: Namespace, path: Path) -> None:
    """Histograms of ranks, with the band in which they are expected."""
    ranks = page["ranks"].numpy()
    band = stats.binom(len(ranks), 1 / N_BINS).ppf([0.005, 0.995])
    with draw_figure(path, columns=2, figsize=(7, 2.4), sharey=True) as (_, axes):
        for ax, name, values in zip(axes[0], ("infection", "recovery"), ranks.T, strict=True):
            ax.axhspan(*band, color=SOFT, alpha=0.3, linewidth=0)
            ax.hist(values, bins=np.linspace(-0.5, 99.5, N_BINS + 1), color=GREEN, alpha=0.8, rwidth=0.9)
            ax.set(xlabel=f"rank of the true rate of {name}", xlim=(-0.5, 99.5))
        axes[0, 0].set_ylabel("epidemics")


EXPERIMENT = build_experiment("epidemic", "From a simulator to a posterior", draw)
