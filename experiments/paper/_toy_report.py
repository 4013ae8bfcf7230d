"""What the toys' experiments show: tables of likelihoods and times, densities on the same levels, training curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from elflow.datasets import toy
from experiments.framework import figure as _figure
from experiments.framework.experiment import Plan, Record, Report, Table
from experiments.framework.measure import mean_and_error
from experiments.paper.published import ELF_AR
from experiments.systems import PEERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["report"]

PAPER = {one.dataset: f"{one.value:g}" for one in ELF_AR}
"""ELF-AR's figures in the paper."""
ABOVE = 4
"""By how many standard errors a model may be above the entropy bound: more is a mistake."""
RIVALS = ("nsf", "naf", "cpflow", "residual")
"""Those whose training ELF's must not be slower than."""
CURVES = ("elf", "realnvp", "nsf", "naf", "residual", "cpflow")


class Score(NamedTuple):
    """A model over its seeds."""

    gap: float
    error: float
    """Its standard error: over seeds and over test points, the greater of the two."""
    runs: list[Record]


def title(model: str) -> str:
    """What a model is called."""
    return "ELF-AR" if model == "elf" else PEERS[model].title


def source(model: str) -> str:
    """Where a model is from."""
    return "elflow" if model == "elf" else PEERS[model].source


def report(name: str, plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    """Tables and pictures of a toy."""
    speed = records.get("speed")
    runs: dict[str, list[Record]] = {}
    for key, record in records.items():
        if key != "speed":
            runs.setdefault(record["model"], []).append(record)
    spread = _spread(list(runs.values()))
    scores = {model: _score(some, spread) for model, some in runs.items()}
    impossible = [model for model, score in scores.items() if score.gap < -ABOVE * score.error]
    ranked = sorted(scores, key=lambda model: scores[model].gap)
    bound = -float(toy.DISTRIBUTIONS[name]().entropy())
    tables = [_likelihoods(name, scores, ranked, bound)]
    possible = {model: score for model, score in scores.items() if model not in impossible}
    sentences = [_standing(possible)] if "elf" in possible and len(possible) > 1 else []
    if impossible:
        names = ", ".join(map(title, impossible))
        sentences.append(f"**Not to be believed**: {names}, more than {ABOVE} standard errors above the bound.")
    if speed is not None:
        tables.append(_times(scores, ranked, speed))
        sentences.append(_pace(speed["step"]))
    pictures = {}
    keys = {model: f"{model}-0" for model in ranked if (folder / "jobs" / f"{model}-0" / "density.npz").is_file()}
    if keys:
        _draw_densities(folder / "densities.png", name, folder, keys, scores)
        pictures["densities.png"] = "Densities on the same levels, best first, with their gaps to the entropy bound."
    shown = [model for model in CURVES if model in runs]
    if shown:
        _draw_curves(folder / "curves.png", {model: runs[model][0]["curve"] for model in shown}, bound)
        pictures["curves.png"] = "Minus the mean log-density of training batches, over steps and over seconds."
    return Report(" ".join(sentences), tables, pictures)


def _spread(models: Sequence[Sequence[Record]]) -> float:
    """The standard deviation of gaps over seeds, of all models that have several."""
    variances = [statistics.variance([run["gap"] for run in runs]) for runs in models if len(runs) > 1]
    return math.sqrt(statistics.mean(variances)) if variances else 0.0


def _score(runs: Sequence[Record], spread: float) -> Score:
    """Of a model with one seed, seeds are taken to matter as much as they do for the others."""
    over_points = math.hypot(*(run["error"] for run in runs)) / len(runs)
    mean, over_seeds = mean_and_error([run["gap"] for run in runs])
    return Score(mean, max(over_points, over_seeds if len(runs) > 1 else spread), list(runs))


def _likelihoods(name: str, scores: dict[str, Score], ranked: list[str], bound: float) -> Table:
    rows = [("Entropy bound", "", "", "", "", f"{bound:.4f}", "0", "")]
    for model in ranked:
        score = scores[model]
        run = score.runs[0]
        likelihood, gap = f"{bound - score.gap:.4f}", f"{score.gap:.4f} ± {score.error:.4f}"
        sizes = f"{run['parameters']:,}", f"{run['steps']:,}", str(len(score.runs))
        rows.append((title(model), source(model), *sizes, likelihood, gap, PAPER[name] if model == "elf" else ""))
    columns = ("model", "from", "parameters", "steps", "seeds", "log-likelihood", "gap to the bound", "paper")
    note = (
        "Mean log-likelihood in nats of fresh points, best first; the gap is the divergence from the truth. All were "
        "trained by one protocol: Adam, batches of 128, a rate of 0.003 (BNAF 0.01) that halves each quarter, averaged "
        "weights. ELF has four hidden layers and a bound chosen for each toy, peers two or three hidden layers. Slow "
        "models have fewer steps and seeds, as the columns say; the error of a single seed has the spread of the "
        "others' seeds. The paper's figures for its peers could not be had."
    )
    return Table("Likelihood", columns, rows, note)


def _times(scores: dict[str, Score], ranked: list[str], speed: Record) -> Table:
    rows = []
    for model in ranked:
        sampling = [run["sampling"] for run in scores[model].runs if "sampling" in run]
        step = speed["step"][model]
        cells = f"{1e3 * step:.1f} ms", f"{step / speed['step']['elf']:.2f}", f"{1e3 * speed['density'][model]:.1f} ms"
        draw = f"{1e3 * statistics.median(sampling):.0f} ms" if sampling else "cannot"
        rows.append((title(model), *cells, draw, f"{step * scores[model].runs[0]['steps']:.0f} s"))
    columns = ("model", "training step", "times ELF's", "1,000 densities", "1,000 samples", "whole training")
    note = (
        "One thread of the CPU. Steps and densities are medians, all models by turns in one run, before training; "
        "samples are drawn from trained models, the quicker of two goes. The whole training is the step "
        "times the number of them."
    )
    return Table("Time", columns, rows, note)


def _standing(scores: dict[str, Score]) -> str:
    """Whether ELF is first, tied or behind, by two standard errors of the difference."""
    ours = scores["elf"]
    best = min((model for model in scores if model != "elf"), key=lambda model: scores[model].gap)
    difference = scores[best].gap - ours.gap
    error = math.hypot(ours.error, scores[best].error)
    by = f"{abs(difference):.4f} ± {error:.4f} nats"
    if difference > 2 * error:
        return f"**ELF-AR is first**: the next best, {title(best)}, is {by} behind."
    if difference >= -2 * error:
        return f"**ELF-AR is tied for the first place** with {title(best)}: the difference is {by}."
    return f"**ELF-AR is behind** {title(best)}, by {by}."


def _pace(step: dict[str, float]) -> str:
    """How a training step compares with those of the peers that matter."""
    ratios = {model: step[model] / step["elf"] for model in RIVALS if model in step}
    if not ratios:
        return ""
    parts = ", ".join(f"{ratio:.1f} times as long for {title(model)}" for model, ratio in ratios.items())
    return f"A training step of ELF-AR takes {1e3 * step['elf']:.1f} ms; it takes {parts}."


def _draw_densities(path: Path, name: str, folder: Path, keys: dict[str, str], scores: dict[str, Score]) -> None:
    plt = _figure.pyplot()
    panels: list[tuple[str, Any]] = []
    axis = np.zeros(0)
    for model, key in keys.items():
        with np.load(folder / "jobs" / key / "density.npz", allow_pickle=False) as file:
            axis = file["axis"]
            panels.append((f"{title(model)}\n{scores[model].gap:.3f}", file["density"]))
    distribution = toy.DISTRIBUTIONS[name]()
    points = torch.from_numpy(axis)
    true = distribution.log_prob(torch.cartesian_prod(points, points)).exp().reshape(len(axis), -1).numpy()
    panels.insert(0, ("The truth\n", true))
    columns = 6
    lines = -(-len(panels) // columns)
    with plt.rc_context(_figure.STYLE):
        figure, axes = plt.subplots(lines, columns, figsize=(2.05 * columns, 2.4 * lines), layout="constrained")
        for place in axes.flat[len(panels) :]:
            place.set_visible(False)
        for place, (label, density) in zip(axes.flat, panels, strict=False):
            _draw_density(place, axis, density, float(true.max()), label)
        _figure.save(figure, path)
        plt.close(figure)


def _draw_density(place: Axes, axis: Any, density: Any, top: float, label: str) -> None:
    levels = [top * step / 12 for step in range(13)]
    place.contourf(axis, axis, np.clip(density.T, 0, 0.999 * top), levels=levels, cmap="Blues")
    place.set(aspect="equal", xticks=[], yticks=[])
    place.set_title(label, fontsize=8)


def _draw_curves(path: Path, curves: dict[str, Any], bound: float) -> None:
    plt = _figure.pyplot()
    with plt.rc_context(_figure.STYLE):
        figure, axes = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained", sharey=True)
        colors = plt.get_cmap("Dark2").colors
        for place, horizontal in zip(axes, ("step", "seconds"), strict=True):
            for color, (model, curve) in zip(colors, curves.items(), strict=False):
                ours = model == "elf"
                style = {"color": _figure.ACCENT if ours else color, "linewidth": 1.8 if ours else 1.0}
                place.plot(curve[horizontal], curve["loss"], label=title(model), **style)
            place.axhline(-bound, color=_figure.SOFT, linestyle=":", linewidth=1)
            place.set(xlabel=horizontal, ylim=(-bound - 0.1, -bound + 2.4))
            place.set_xscale("log")
        axes[0].set_ylabel("nats")
        figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside right upper")
        _figure.save(figure, path)
        plt.close(figure)
