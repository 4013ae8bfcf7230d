"""The pictures of a report, as SVG that takes its colours from the page, or as PNG where there are many points.

Nothing that a user wrote is drawn but the names beside the correlations: all other text around pictures is HTML.
"""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from scipy import stats

from elflow.report._compare import MIDDLE, Marginal
from elflow.report._measure import Score
from elflow.report._pit import Pit
from elflow.report._tables import MINUS, Column, plain

__all__ = ["heat", "histogram", "likelihood", "pit", "scatter", "training"]

Floats = NDArray[np.float64]

# Stand-ins, which become the page's own colours: matplotlib knows nothing of light and dark.
INK, SOFT, LINE, REAL, SAMPLED = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
THEME = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    LINE: "var(--line)",
    REAL: "var(--real)",
    SAMPLED: "var(--sampled)",
}
DOTS = {"real": "#3f83cc", "sampled": "#e2803c"}
"""The colours of PNGs, which are legible on light and dark."""
POSITIVE, NEGATIVE = (0.46, 0.29, 0.78), (0.10, 0.60, 0.52)
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.linewidth": 1,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 12,
    "svg.fonttype": "none",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.color": LINE,
    "ytick.labelcolor": SOFT,
}
TILE = (200, 116, (14, 14, 20, 4))
"""Width, height and margins of the small pictures."""
PIT_BINS = 10
MOST_NAMED = 16
"""Columns, beyond which correlations have no names beside them."""
MOST_POINTS = 1500


@contextmanager
def _drawing(width: float, height: float, margins: tuple[float, float, float, float]) -> Iterator[tuple[Figure, Any]]:
    """A figure of that many pixels with one pair of axes; margins left, right, bottom, top."""
    left, right, bottom, top = margins
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # the browser has it
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        yield figure, figure.add_axes(box)


def _svg(figure: Figure, name: str, label: str) -> str:
    """The figure as an element of a page. The name makes its identifiers unique and the same in every run."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)  # would hold for the whole page
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"| width="[^"]*pt" height="[^"]*pt"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font-family: [^;]*;? ?", "", svg).replace("xlink:href", "href")
    for stand_in, colour in THEME.items():
        svg = svg.replace(stand_in, colour)
    return re.sub(r"\s*\n\s*", " ", svg).replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _number(value: float, _: int = 0) -> str:
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            value, suffix = value / (1e3 if letter == "k" else size), letter
            break
    else:
        suffix = ""
    return f"{value:.6g}{suffix}".replace("-", MINUS)


def _ticks(axis: Any, count: int) -> None:
    axis.set_major_locator(MaxNLocator(count))
    axis.set_major_formatter(FuncFormatter(_number))


def training(history: Sequence[dict[str, float]]) -> str:
    """Likelihood against steps, with seconds along the top."""
    step, seconds, fit, held = (
        np.array([entry[key] for entry in history], float) for key in ("step", "seconds", "training", "validation")
    )
    with _drawing(440, 400, (70, 16, 48, 48)) as (figure, axes):
        axes.grid(color=LINE, linewidth=0.6)
        axes.plot(step, fit, color=REAL, linewidth=1.4, marker="o" if len(step) < 3 else None, markersize=4)
        axes.plot(step, held, color=SAMPLED, linewidth=1.8, marker="o" if len(step) < 3 else None, markersize=4)
        if np.isfinite(held).any():
            best = int(np.nanargmax(np.where(np.isfinite(held), held, -np.inf)))
            axes.plot(step[best], held[best], "o", color=SAMPLED, markersize=7, markeredgecolor=INK)
        later = np.concatenate([values[len(values) // 10 :] for values in (fit, held)])
        later = later[np.isfinite(later)]
        if len(later):  # the first steps may be far below everything else
            low, high = np.quantile(later, 0.02), later.max()
            margin = 0.08 * max(high - low, 1e-3 * abs(high), 1e-6)
            axes.set_ylim(low - 2 * margin, high + margin)
        _ticks(axes.xaxis, 5)
        _ticks(axes.yaxis, 5)
        axes.set_xlabel("steps")
        axes.set_ylabel("nats per row")
        axes.yaxis.set_label_coords(-0.17, 0.5)  # else wide numbers push it out of the picture
        if len(step) > 1 and (np.diff(step) > 0).all() and (np.diff(seconds) > 0).all():
            time = axes.secondary_xaxis("top", functions=(_between(step, seconds), _between(seconds, step)))
            time.set_xlabel("seconds")
            _ticks(time.xaxis, 5)
            time.tick_params(colors=LINE, labelcolor=SOFT)
            time.spines["top"].set_color(LINE)
        return _svg(figure, "training", "Log-likelihood of training and held-out rows against steps")


def _between(x: Floats, y: Floats) -> Any:
    """Straight lines through the points, and beyond them with the mean slope."""
    slope = (y[-1] - y[0]) / (x[-1] - x[0])

    def line(at: Any) -> Any:
        at = np.asarray(at, float)
        return np.interp(at, x, y) + slope * (np.minimum(at - x[0], 0) + np.maximum(at - x[-1], 0))

    return line


def likelihood(scores: Sequence[Score]) -> str:
    """A dot with two standard errors either way for each model; those far to the left are an arrow at the edge."""
    ours = scores[0]
    shown = [s for s in scores if np.isfinite(s.mean)]
    error = {s.name: s.error if np.isfinite(s.error) else 0.0 for s in scores}
    near = sorted(abs(s.mean - ours.mean) for s in shown[1:]) if np.isfinite(ours.mean) else []
    reach = max(8 * near[0], 12 * error[ours.name], 0.5) if near else np.inf
    shown = [s for s in shown if not s.mean < ours.mean - reach]
    with _drawing(440, 62 + 40 * len(scores), (132, 20, 50, 6)) as (figure, axes):
        axes.grid(axis="x", color=LINE, linewidth=0.6)
        for at, score in enumerate(scores):
            colour = SAMPLED if at == 0 else REAL
            if score in shown:
                axes.errorbar(score.mean, at, xerr=2 * error[score.name], color=colour, capsize=4, linewidth=1.8)
                axes.plot(score.mean, at, "o", color=colour, markersize=8)
            else:
                place = axes.get_yaxis_transform()
                axes.plot(0.02, at, "<", color=colour, markersize=8, transform=place)
                text = "impossible" if not np.isfinite(score.mean) else f"{score.mean:,.4g}".replace("-", MINUS)
                axes.text(0.06, at, text, va="center", color=SOFT, transform=place)
        axes.set_ylim(len(scores) - 0.5, -0.5)
        axes.set_yticks(range(len(scores)), [score.name for score in scores])
        axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=13)
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.08)
        _ticks(axes.xaxis, 5)
        axes.set_xlabel("nats per row; further right is better")
        return _svg(figure, "likelihood", "Held-out log-likelihood of the model and the baselines")


def histogram(marginal: Marginal, name: str) -> str:
    """The shares of real rows as an area, those of sampled rows as a line."""
    edges = marginal.edges / 86400 if marginal.kind == "datetime" else marginal.edges
    with _drawing(*TILE) as (figure, axes):
        axes.stairs(marginal.real, edges, fill=True, color=REAL, alpha=0.35, linewidth=0)
        axes.stairs(marginal.sampled, edges, color=SAMPLED, linewidth=1.6)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, 1.05 * max(marginal.real.max(), marginal.sampled.max(), 1e-9))
        axes.set_yticks([])
        axes.tick_params(labelsize=11)
        axes.spines["left"].set_visible(False)
        if marginal.kind == "datetime":
            locator = AutoDateLocator(minticks=2, maxticks=4)
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))
        else:
            _ticks(axes.xaxis, 3)
        return _svg(figure, name, "Histogram of real and sampled values")


def pit(found: Pit, name: str) -> str:
    """A histogram in ten bins, over the band in which 95 of 100 bins of uniform numbers lie."""
    count = len(found.values)
    low, high = stats.binom.ppf([0.025, 0.975], count, 1 / PIT_BINS) / count * PIT_BINS
    shares = np.histogram(found.values, PIT_BINS, (0, 1))[0] / count * PIT_BINS
    with _drawing(*TILE) as (figure, axes):
        axes.stairs(shares, np.linspace(0, 1, PIT_BINS + 1), fill=True, color=SAMPLED, alpha=0.7, linewidth=0)
        axes.axhspan(low, high, color=SOFT, alpha=0.22, linewidth=0)
        axes.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xlim(0, 1)
        axes.set_ylim(0, max(2.0, 1.05 * shares.max()))
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_yticks([])
        axes.tick_params(labelsize=11)
        axes.spines["left"].set_visible(False)
        return _svg(figure, name, "Histogram of probability integral transforms")


def scatter(across: Column, up: Column, which: str, random_state: int) -> str:
    """Points of real or of sampled rows, as the address of a PNG. Both kinds get the same axes."""
    x, y = (getattr(column, which) for column in (across, up))
    most = min(len(across.real), len(across.sampled), MOST_POINTS)  # as many of either kind, or one looks denser
    some = np.flatnonzero(~np.isnan(x[:most]) & ~np.isnan(y[:most]))
    rng = np.random.default_rng(random_state)
    with _drawing(180, 180, (0, 0, 0, 0)) as (figure, axes):
        x, y = (_apart(column, values[some], rng) for column, values in ((across, x), (up, y)))
        room = 1 / np.sqrt(len(some) + 1)
        opacity, size = np.clip(16 * room, 0.4, 0.85), np.clip(110 * room, 4, 16)
        axes.scatter(x, y, s=size, color=DOTS[which], alpha=opacity, linewidths=0)
        axes.set_xlim(_range(across))
        axes.set_ylim(_range(up))
        axes.axis("off")
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=144, transparent=True, metadata={"Software": None})
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


def _apart(column: Column, values: Floats, rng: np.random.Generator) -> Floats:
    """Labels and integers with some noise, so that equal ones do not hide each other."""
    width = 0.7 if column.labelled else 0.5 if column.kind == "integer" else 0.0
    return values + width * (rng.random(len(values)) - 0.5)


def _range(column: Column) -> tuple[float, float]:
    """Of the middle of the real values, and a little more."""
    values = column.real[~np.isnan(column.real)]
    if not len(values):
        return 0.0, 1.0
    low, high = np.quantile(values, MIDDLE)
    margin = 0.6 if column.labelled else 0.06 * (high - low) or max(abs(high), 1.0) / 2
    return float(low - margin), float(high + margin)


def heat(values: Floats, names: Sequence[str], limit: float, name: str, label: str) -> str:
    """A matrix from -limit to limit: the closer to zero, the more transparent."""
    count, named = len(names), len(names) <= MOST_NAMED
    strength = np.clip(np.abs(values) / limit, 0, 1)
    image = np.empty((*values.shape, 4))
    image[..., :3] = np.where((values > 0)[..., None], POSITIVE, NEGATIVE)
    image[..., 3] = strength**0.8
    short = [one if len(one) <= 12 else f"{one[:11]}…" for one in map(plain, names)] if named else []
    room = 4 + 6 * max((len(one) + 1 for one in short), default=0)
    with _drawing(300, 300, (room, 4, room, 4)) as (figure, axes):
        axes.imshow(image, interpolation="none")
        axes.tick_params(length=0, labelcolor=INK, labelsize=10)
        axes.set_xticks(range(len(short)), short, rotation=90)
        axes.set_yticks(range(len(short)), short)
        for spine in axes.spines.values():
            spine.set_visible(True)
        for i, j in np.ndindex(values.shape) if count <= 6 else ():
            text = f"{values[i, j]:.2f}".replace("-", MINUS)
            colour = "#ffffff" if strength[i, j] > 0.6 else INK
            axes.text(j, i, text, ha="center", va="center", fontsize=10, color=colour)
        return _svg(figure, name, label)
