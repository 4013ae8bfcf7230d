"""Report of the toy experiments: tables of likelihoods and times, densities, and training curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from elflow.datasets import toy
from experiments.framework.experiment import Plan, Record, Report, Table
from experiments.framework.figure import ACCENT, SOFT, draw_figure
from experiments.framework.measure import mean_and_error
from experiments.paper._toy_levels import draw_log_densities, tabulate_levels
from experiments.paper.published import TOY_SYSTEMS, TOYS
from experiments.systems import SYSTEMS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["PAPERS_ELF", "WIDTHS", "Score", "describe_rank", "report", "split_reading"]

PAPERS_ELF = "elf-paper"
"""The name of the paper's own ELF-AR; `"elf"` is that of this library."""
WIDTHS = "widths"
"""The reading of the paper by which a system has the width that it prints; otherwise the number of parameters."""
PAPER = {
    (one.dataset, name): f"{one.value:g}"
    for one in TOYS
    for name, system in TOY_SYSTEMS.items()
    if system == one.system
}
"""Figures of the paper by toy distribution and system."""
MAX_ERRORS_ABOVE = 4
"""A model that exceeds the entropy bound by more standard errors is implausible."""
TIMED = ("nsf", "naf", "cpflow", "residual")
"""Systems whose training step the text compares with ELF's."""
CURVES = ("elf", "realnvp", "nsf", "naf", "residual", "cpflow")


class Score(NamedTuple):
    """Results of a model over its seeds."""

    gap: float
    error: float
    """Standard error of the gap: over seeds, or over test points for a single seed."""
    runs: list[Record]

    @property
    def kind_of_error(self) -> str:
        """Whether the standard error is over seeds or over test points."""
        return "seeds" if len(self.runs) > 1 else "test points"


def report(name: str, plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    """Tables and figures of a toy distribution."""
    speed = records.get("speed")
    runs: dict[str, list[Record]] = {}
    for key, record in records.items():
        if key != "speed":
            runs.setdefault(record["model"], []).append(record)
    scores = {model: _compute_score(_choose_rate(some)) for model, some in runs.items()}
    implausible = [model for model, score in scores.items() if _is_above_bound(score)]
    ranked = sorted(scores, key=lambda model: scores[model].gap)
    bound = -float(toy.DISTRIBUTIONS[name]().entropy())
    tables = [_tabulate_likelihoods(name, scores, ranked, bound, _describe_protocol(plan))]
    plausible = {model: score for model, score in scores.items() if model not in implausible}
    sentences = [describe_rank(plausible)] if "elf" in plausible and len(plausible) > 1 else []
    if implausible:
        names = ", ".join(map(_make_title, implausible))
        sentences.append(f"**Implausible**: {names}, more than {MAX_ERRORS_ABOVE} standard errors above the bound.")
    if levels := tabulate_levels(ranked, {model: score.runs for model, score in scores.items()}, _make_title):
        tables.append(levels)
    if speed is not None:
        tables.append(_tabulate_times(scores, ranked, speed))
        sentences.append(_describe_speed(speed["step"]))
    pictures = {}
    keys = {record["model"]: key for key, record in records.items() if record in [s.runs[0] for s in scores.values()]}
    keys = {model: keys[model] for model in ranked if (folder / "jobs" / keys[model] / "density.npz").is_file()}
    if keys:
        _draw_densities(folder / "densities.png", name, folder, keys, scores)
        panels = [
            (f"{_make_title(model)}\n{scores[model].gap:.3f}", folder / "jobs" / key / "density.npz")
            for model, key in keys.items()
        ]
        draw_log_densities(folder / "log-densities.png", name, panels)
        pictures["densities.png"] = "Densities on the same levels, best first, with their gaps to the entropy bound."
        pictures["log-densities.png"] = (
            "Log-densities on the same levels, two nats apart from -40 to 0; white is below. Above each, the gap."
        )
    shown = [model for model in CURVES if model in runs]
    if shown:
        _draw_curves(folder / "curves.png", {model: runs[model][0]["curve"] for model in shown}, bound)
        pictures["curves.png"] = "Minus the mean log-density of training batches, against steps and seconds."
    return Report(" ".join(sentences), tables, pictures)


def split_reading(model: str) -> tuple[str, str]:
    """A system, and the reading of the paper that its size follows.

    Example:
        >>> split_reading("naf:widths"), split_reading("naf")
        (('naf', 'widths'), ('naf', ''))
    """
    name, _, reading = model.partition(":")
    return name, reading


def _choose_rate(runs: Sequence[Record]) -> list[Record]:
    """The runs with the better of the paper's learning rates."""
    rates: dict[float, list[Record]] = {}
    for run in runs:
        rates.setdefault(run.get("learning_rate", 0.0), []).append(run)
    return min(rates.values(), key=lambda some: statistics.fmean(run["gap"] for run in some))


def _make_title(model: str) -> str:
    name, reading = split_reading(model)
    title = {"elf": "ELF-AR", PAPERS_ELF: "ELF-AR (the paper's)"}.get(name) or SYSTEMS[name].title
    return f"{title}, printed width" if reading == WIDTHS else title


def _describe_source(model: str) -> str:
    """The package of a model, with the paper that introduced it for compared systems."""
    name, _ = split_reading(model)
    return f"{SYSTEMS[name].source}, {SYSTEMS[name].reference}" if name in SYSTEMS else "elflow"


def _describe_remarks(models: Sequence[str]) -> str:
    """The remarks on compared systems, each with the systems that it is about."""
    titles: dict[str, list[str]] = {}
    for model in models:
        system = SYSTEMS.get(split_reading(model)[0])
        if system is not None and system.note:
            titles.setdefault(system.note, []).append(_make_title(model))
    return "".join(f" {', '.join(some)}: {note}" for note, some in titles.items())


def _compute_score(runs: Sequence[Record]) -> Score:
    """The mean gap of a model with its own standard error: over its seeds, or over test points for one seed."""
    mean, error = mean_and_error([run["gap"] for run in runs])
    return Score(mean, error if len(runs) > 1 else runs[0]["error"], list(runs))


def _is_above_bound(score: Score) -> bool:
    """Whether the gap is negative by more than test points explain, whatever the spread over seeds."""
    over_points = math.hypot(*(run["error"] for run in score.runs)) / len(score.runs)
    return score.gap < -MAX_ERRORS_ABOVE * max(score.error, over_points)


def _describe_protocol(plan: Plan) -> str:
    """How the models were trained."""
    same = "All models were trained by one protocol: Adam, batches of 128"
    if plan.scale == "paper":
        return (
            f"{same}, a learning rate that halves each quarter, no averaging, four hidden layers in every system; the "
            "better of the paper's two rates is shown."
        )
    rates = "a rate of 0.003 (BNAF 0.01), averaged weights"
    sizes = "ELF has four hidden layers and a bound chosen for each distribution, the compared systems two or three"
    if "steps" in plan.options:
        return (
            f"{same}, {rates}, and a cosine decay to zero; the paper's ELF-AR by the paper's protocol: a rate of 0.002 "
            f"that halves each quarter, no averaging, no clipping. {sizes}."
        )
    return f"{same}, {rates}, halved each quarter. {sizes}. Slow models have fewer steps and seeds."


def _tabulate_likelihoods(name: str, scores: dict[str, Score], ranked: list[str], bound: float, protocol: str) -> Table:
    rows = [("Entropy bound", "", "", "", "", f"{bound:.4f}", "0", "", "")]
    for model in ranked:
        score = scores[model]
        run = score.runs[0]
        likelihood, gap = f"{bound - score.gap:.4f}", f"{score.gap:.4f} ± {score.error:.4f}"
        sizes = f"{run['parameters']:,}", f"{run['steps']:,}", str(len(score.runs))
        paper = PAPER.get((name, split_reading(model)[0]), "")
        rows.append((_make_title(model), _describe_source(model), *sizes, likelihood, gap, score.kind_of_error, paper))
    columns = (
        "model",
        "from",
        "parameters",
        "steps",
        "seeds",
        "log-likelihood",
        "gap to the bound",
        "standard error over",
        "paper",
    )
    note = (
        "Mean log-likelihood of fresh points in nats, best first; the gap is the divergence from the true density. "
        "Each standard error is that of the row's own runs: over its seeds, or over test points where there is one "
        f"seed, which leaves out the spread between seeds. {protocol}"
    )
    return Table("Likelihood", columns, rows, note + _describe_remarks(ranked))


def _tabulate_times(scores: dict[str, Score], ranked: list[str], speed: Record) -> Table:
    rows = []
    for model in [model for model in ranked if model in speed["step"]]:
        sampling = [run["sampling"] for run in scores[model].runs if "sampling" in run]
        step = speed["step"][model]
        cells = f"{1e3 * step:.1f} ms", f"{step / speed['step']['elf']:.2f}", f"{1e3 * speed['density'][model]:.1f} ms"
        samples = f"{1e3 * statistics.median(sampling):.0f} ms" if sampling else "cannot"
        rows.append((_make_title(model), *cells, samples, f"{step * scores[model].runs[0]['steps']:.0f} s"))
    columns = ("model", "training step", "relative to ELF", "1,000 densities", "1,000 samples", "whole training")
    note = (
        "One CPU thread. Steps and densities are medians of interleaved calls of all models before training; samples "
        "are drawn from trained models, the faster of two runs. The whole training is the step times their number."
    )
    return Table("Time", columns, rows, note)


def describe_rank(scores: dict[str, Score]) -> str:
    """Whether ELF is first, tied or behind, by two standard errors of the difference."""
    ours = scores["elf"]
    best = min((model for model in scores if model != "elf"), key=lambda model: scores[model].gap)
    difference = scores[best].gap - ours.gap
    error = math.hypot(ours.error, scores[best].error)
    amount = f"{abs(difference):.4f} ± {error:.4f} nats"
    if difference > 2 * error:
        return f"**ELF-AR is first**: the next best, {_make_title(best)}, is {amount} behind."
    if difference >= -2 * error:
        return f"**ELF-AR is tied for the first place** with {_make_title(best)}: the difference is {amount}."
    return f"**ELF-AR is behind** {_make_title(best)}, by {amount}."


def _describe_speed(step: dict[str, float]) -> str:
    """The time of a training step beside those of some compared systems."""
    ratios = {model: step[model] / step["elf"] for model in TIMED if model in step}
    if not ratios:
        return ""
    parts = ", ".join(f"{ratio:.1f} times as long for {_make_title(model)}" for model, ratio in ratios.items())
    return f"A training step of ELF-AR takes {1e3 * step['elf']:.1f} ms; it takes {parts}."


def _draw_densities(path: Path, name: str, folder: Path, keys: dict[str, str], scores: dict[str, Score]) -> None:
    panels: list[tuple[str, Any]] = []
    axis = np.zeros(0)
    for model, key in keys.items():
        with np.load(folder / "jobs" / key / "density.npz", allow_pickle=False) as file:
            axis = file["axis"]
            panels.append((f"{_make_title(model)}\n{scores[model].gap:.3f}", np.exp(file["log_density"])))
    distribution = toy.DISTRIBUTIONS[name]()
    points = torch.from_numpy(axis)
    true = distribution.log_prob(torch.cartesian_prod(points, points)).exp().reshape(len(axis), -1).numpy()
    panels.insert(0, ("True density\n", true))
    columns = 6
    rows = -(-len(panels) // columns)
    with draw_figure(path, rows, columns, figsize=(2.05 * columns, 2.4 * rows)) as (_, axes):
        for place in axes.flat[len(panels) :]:
            place.set_visible(False)
        for place, (label, density) in zip(axes.flat, panels, strict=False):
            _draw_density(place, axis, density, float(true.max()), label)


def _draw_density(place: Axes, axis: NDArray[np.float64], density: NDArray[np.float64], top: float, label: str) -> None:
    levels = [top * step / 12 for step in range(13)]
    place.contourf(axis, axis, np.clip(density.T, 0, 0.999 * top), levels=levels, cmap="Blues")
    place.set(aspect="equal", xticks=[], yticks=[])
    place.set_title(label, fontsize=8)


def _draw_curves(path: Path, curves: dict[str, Any], bound: float) -> None:
    from matplotlib import colormaps

    with draw_figure(path, columns=2, figsize=(12, 3.8), sharey=True) as (figure, axes):
        colors = colormaps["Dark2"].colors  # type: ignore[attr-defined]
        for place, horizontal in zip(axes[0], ("step", "seconds"), strict=True):
            for color, (model, curve) in zip(colors, curves.items(), strict=False):
                is_ours = model == "elf"
                style = {"color": ACCENT if is_ours else color, "linewidth": 1.8 if is_ours else 1.0}
                place.plot(curve[horizontal], curve["loss"], label=_make_title(model), **style)
            place.axhline(-bound, color=SOFT, linestyle=":", linewidth=1)
            place.set(xlabel=horizontal, ylim=(-bound - 0.1, -bound + 2.4))
            place.set_xscale("log")
        axes[0, 0].set_ylabel("nats")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), frameon=False, fontsize=8, loc="outside right upper")
