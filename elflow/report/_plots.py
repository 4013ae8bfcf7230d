"""Plots of a report: SVG with the colours of the page, or PNG if there are many points.

The only text of a user in them is the column names beside the correlations. All other text is HTML around the plots.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import HOURLY, MINUTELY, MONTHLY, SECONDLY, AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from elflow.report._compare import PLOTTED_QUANTILES, Marginal
from elflow.report._format import MINUS, to_printable
from elflow.report._pit import Pit
from elflow.report._tables import Column
from elflow.report.findings import Score
from elflow.report.html import to_data_uri

__all__ = [
    "draw_bins",
    "draw_heatmap",
    "draw_histogram",
    "draw_likelihood",
    "draw_pit",
    "draw_scatter",
    "draw_training",
]

Floats = NDArray[np.float64]

# Placeholders, replaced by the variables of the page: matplotlib cannot draw for light and dark at once.
INK, SOFT, LINE, REAL, SAMPLED = "#010203", "#040506", "#070809", "#0a0b0c", "#0d0e0f"
THEME = {
    INK: "var(--ink)",
    SOFT: "var(--soft)",
    LINE: "var(--line)",
    REAL: "var(--real)",
    SAMPLED: "var(--sampled)",
}
DOTS = {"real": "#3f83cc", "sampled": "#e2803c"}
"""Colours of the PNGs, legible on light and dark."""
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
"""Width, height and margins of the small plots."""
N_PIT_BINS = 10
MAX_NAMED_COLUMNS = 16
"""Number of columns up to which a heatmap shows their names."""
MAX_NUMBERED_COLUMNS = 6
"""Number of columns up to which a heatmap shows the numbers."""
MAX_NAME_LENGTH = 12
MAX_SHORT_LABEL = 7
"""Number of characters up to which the labels of three bins fit below a small plot."""
MAX_POINTS = 1500


@contextmanager
def _make_figure(
    width: float, height: float, margins: tuple[float, float, float, float]
) -> Iterator[tuple[Figure, Axes]]:
    """Make a figure with one pair of axes; sizes are in pixels, margins are left, right, bottom and top."""
    left, right, bottom, top = margins
    box = (left / width, bottom / height, 1 - (left + right) / width, 1 - (bottom + top) / height)
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # the browser has the glyphs that matplotlib lacks
        figure = Figure(figsize=(width / 72, height / 72), dpi=72)
        yield figure, figure.add_axes(box)


def _render_svg(figure: Figure, name: str, label: str) -> str:
    """Render a figure as an SVG element. The name makes its identifiers unique, and the same in every run."""
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)  # would apply to the whole page
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"| version="1.1"| width="[^"]*pt" height="[^"]*pt"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"font-family: [^;]*;? ?", "", svg).replace("xlink:href", "href")
    for placeholder, colour in THEME.items():
        svg = svg.replace(placeholder, colour)
    return re.sub(r"\s*\n\s*", " ", svg).replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _format_tick(value: float, _: int = 0) -> str:
    """Format the number of a tick, with a unit prefix if it is large."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            value, suffix = value / (1e3 if letter == "k" else size), letter
            break
    else:
        suffix = ""
    return f"{value:.6g}{suffix}".replace("-", MINUS)


def _set_ticks(axis: Axis, count: int) -> None:
    axis.set_major_locator(MaxNLocator(count))
    axis.set_major_formatter(FuncFormatter(_format_tick))


def draw_training(history: Sequence[dict[str, float]]) -> str:
    """Plot log-likelihoods against steps, with seconds along the top."""
    step, seconds, training, validation = (
        np.array([entry[key] for entry in history], float) for key in ("step", "seconds", "training", "validation")
    )
    with _make_figure(440, 400, (70, 16, 48, 48)) as (figure, axes):
        axes.grid(color=LINE, linewidth=0.6)
        axes.plot(step, training, color=REAL, linewidth=1.4, marker="o" if len(step) < 3 else None, markersize=4)
        axes.plot(step, validation, color=SAMPLED, linewidth=1.8, marker="o" if len(step) < 3 else None, markersize=4)
        if np.isfinite(validation).any():
            best = int(np.nanargmax(np.where(np.isfinite(validation), validation, -np.inf)))
            axes.plot(step[best], validation[best], "o", color=SAMPLED, markersize=7, markeredgecolor=INK)
        later = np.concatenate([values[len(values) // 10 :] for values in (training, validation)])
        later = later[np.isfinite(later)]
        if len(later):  # the first rounds may be far below all others
            low, high = np.quantile(later, 0.02), later.max()
            margin = 0.08 * max(high - low, 1e-3 * abs(high), 1e-6)
            axes.set_ylim(low - 2 * margin, high + margin)
        _set_ticks(axes.xaxis, 5)
        _set_ticks(axes.yaxis, 5)
        axes.set_xlabel("steps")
        axes.set_ylabel("nats per row")
        axes.yaxis.set_label_coords(-0.17, 0.5)  # otherwise wide numbers push it out of the figure
        if len(step) > 1 and (np.diff(step) > 0).all() and (np.diff(seconds) > 0).all():
            time = axes.secondary_xaxis("top", functions=(_interpolate(step, seconds), _interpolate(seconds, step)))
            time.set_xlabel("seconds")
            _set_ticks(time.xaxis, 5)
            time.tick_params(colors=LINE, labelcolor=SOFT)
            time.spines["top"].set_color(LINE)
        return _render_svg(figure, "training", "Log-likelihood of training and validation rows against steps")


def _interpolate(x: Floats, y: Floats) -> Callable[[ArrayLike], Floats]:
    """The piecewise linear function through points, continued with the mean slope."""
    slope = (y[-1] - y[0]) / (x[-1] - x[0])

    def evaluate(values: ArrayLike) -> Floats:
        at = np.asarray(values, np.float64)
        return np.interp(at, x, y) + slope * (np.minimum(at - x[0], 0) + np.maximum(at - x[-1], 0))

    return evaluate


def draw_likelihood(scores: Sequence[Score]) -> str:
    """Plot the score of each model with two standard errors; those far to the left become arrows at the edge."""
    ours = scores[0]
    shown = [s for s in scores if np.isfinite(s.mean)]
    error = {s.name: s.error if np.isfinite(s.error) else 0.0 for s in scores}
    near = sorted(abs(s.mean - ours.mean) for s in shown[1:]) if np.isfinite(ours.mean) else []
    reach = max(8 * near[0], 12 * error[ours.name], 0.5) if near else np.inf
    shown = [s for s in shown if not s.mean < ours.mean - reach]
    with _make_figure(440, 62 + 40 * len(scores), (132, 20, 50, 6)) as (figure, axes):
        axes.grid(axis="x", color=LINE, linewidth=0.6)
        for y, score in enumerate(scores):
            colour = SAMPLED if y == 0 else REAL
            if score in shown:
                axes.errorbar(score.mean, y, xerr=2 * error[score.name], color=colour, capsize=4, linewidth=1.8)
                axes.plot(score.mean, y, "o", color=colour, markersize=8)
            else:
                place = axes.get_yaxis_transform()
                axes.plot(0.02, y, "<", color=colour, markersize=8, transform=place)
                text = (
                    f"{score.mean:,.4g}".replace("-", MINUS) if np.isfinite(score.mean) else "some rows have density 0"
                )
                axes.text(0.06, y, text, va="center", color=SOFT, transform=place)
        axes.set_ylim(len(scores) - 0.5, -0.5)
        axes.set_yticks(range(len(scores)), [score.name for score in scores])
        axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=13)
        axes.spines["left"].set_visible(False)
        axes.margins(x=0.08)
        if shown:
            _set_ticks(axes.xaxis, 5)
        else:
            axes.set_xticks([])
        axes.set_xlabel("nats per row (higher is better)")
        return _render_svg(figure, "likelihood", "Held-out log-likelihood of the model and the baselines")


def draw_histogram(marginal: Marginal, name: str) -> str:
    """Plot the shares of real rows as an area, and those of sampled rows as a line."""
    edges = marginal.edges / 86400 if marginal.kind == "datetime" else marginal.edges
    with _make_figure(*TILE) as (figure, axes):
        axes.stairs(marginal.real, edges, fill=True, color=REAL, alpha=0.35, linewidth=0)
        axes.stairs(marginal.sampled, edges, color=SAMPLED, linewidth=1.6)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, 1.05 * max(marginal.real.max(), marginal.sampled.max(), 1e-9))
        axes.set_yticks([])
        axes.tick_params(labelsize=11)
        axes.spines["left"].set_visible(False)
        if marginal.kind == "datetime":
            locator = _make_date_locator()
            axes.xaxis.set_major_locator(locator)
            axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, show_offset=False))
        else:
            _set_ticks(axes.xaxis, 3)
        return _render_svg(figure, name, "Histogram of real and sampled values")


def _make_date_locator() -> AutoDateLocator:
    """Positions of at most four ticks of dates."""
    locator = AutoDateLocator(minticks=2, maxticks=4)
    # Without these, there is no interval for 19 to 23 months, for instance, and matplotlib warns about it.
    for frequency, interval in {MONTHLY: 12, HOURLY: 24, MINUTELY: 60, SECONDLY: 60}.items():
        locator.intervald[frequency] = [*locator.intervald[frequency], interval]
    return locator


def draw_bins(reference: Sequence[float], new: Sequence[float], labels: Sequence[str], name: str) -> str:
    """Plot the shares of held-out rows in bins as an area, and those of new rows as a line."""
    edges = np.arange(len(reference) + 1)
    with _make_figure(*TILE) as (figure, axes):
        axes.stairs(reference, edges, fill=True, color=REAL, alpha=0.35, linewidth=0)
        axes.stairs(new, edges, color=SAMPLED, linewidth=1.6)
        axes.set_xlim(0, len(reference))
        axes.set_ylim(0, 1.05 * max(*reference, *new, 1e-9))
        axes.set_yticks([])
        texts = [_shorten(_format_label(label)) for label in labels]
        count = min(len(texts), 3 if max(map(len, texts)) <= MAX_SHORT_LABEL else 2)
        places = [round((2 * k + 1) * len(texts) / (2 * count) - 0.5) for k in range(count)]
        axes.set_xticks([k + 0.5 for k in places], [texts[k] for k in places])
        axes.tick_params(labelsize=11)
        axes.spines["left"].set_visible(False)
        return _render_svg(figure, name, "Shares of held-out and of new rows in bins of values")


def _format_label(label: str) -> str:
    """Format the label of a bin: a number as that of a tick."""
    try:
        return _format_tick(float(f"{float(label):.3g}"))
    except ValueError:
        return to_printable(label)


def draw_pit(found: Pit, name: str) -> str:
    """Plot a histogram, with the band that contains 95% of the bins of uniform numbers."""
    count = len(found.values)
    low, high = stats.binom.ppf([0.025, 0.975], count, 1 / N_PIT_BINS) / count * N_PIT_BINS
    shares = np.histogram(found.values, N_PIT_BINS, (0, 1))[0] / count * N_PIT_BINS
    with _make_figure(*TILE) as (figure, axes):
        axes.stairs(shares, np.linspace(0, 1, N_PIT_BINS + 1), fill=True, color=SAMPLED, alpha=0.7, linewidth=0)
        axes.axhspan(low, high, color=SOFT, alpha=0.22, linewidth=0)
        axes.axhline(1, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xlim(0, 1)
        axes.set_ylim(0, max(2.0, 1.05 * shares.max()))
        axes.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
        axes.set_yticks([])
        axes.tick_params(labelsize=11)
        axes.spines["left"].set_visible(False)
        return _render_svg(figure, name, "Histogram of probability integral transforms")


def draw_scatter(across: Column, up: Column, which: str, random_state: int) -> str:
    """Plot real or sampled rows as points, and return the address of a PNG. The axes are the same for both."""
    x, y = (getattr(column, which) for column in (across, up))
    # The same number of rows for both plots: otherwise one of them looks denser.
    count = min(len(across.real), len(across.sampled), MAX_POINTS)
    some = np.flatnonzero(~np.isnan(x[:count]) & ~np.isnan(y[:count]))
    rng = np.random.default_rng(random_state)
    with _make_figure(180, 180, (0, 0, 0, 0)) as (figure, axes):
        x, y = (_add_jitter(column, values[some], rng) for column, values in ((across, x), (up, y)))
        room = 1 / np.sqrt(len(some) + 1)
        opacity, size = np.clip(16 * room, 0.4, 0.85), np.clip(110 * room, 4, 16)
        axes.scatter(x, y, s=size, color=DOTS[which], alpha=opacity, linewidths=0)
        axes.set_xlim(_choose_range(across))
        axes.set_ylim(_choose_range(up))
        axes.axis("off")
        data = io.BytesIO()
        figure.savefig(data, format="png", dpi=144, transparent=True, metadata={"Software": None})
    return to_data_uri(data.getvalue())


def _add_jitter(column: Column, values: Floats, rng: np.random.Generator) -> Floats:
    """Add noise to labels and integers, so that equal ones do not hide each other."""
    width = 0.7 if column.has_labels else 0.5 if column.kind == "integer" else 0.0
    return values + width * (rng.random(len(values)) - 0.5)


def _choose_range(column: Column) -> tuple[float, float]:
    """The range of most real values, with a margin."""
    values = column.real[~np.isnan(column.real)]
    if not len(values):
        return 0.0, 1.0
    low, high = np.quantile(values, PLOTTED_QUANTILES)
    margin = 0.6 if column.has_labels else 0.06 * (high - low) or max(abs(high), 1.0) / 2
    return float(low - margin), float(high + margin)


def draw_heatmap(values: Floats, names: Sequence[str], limit: float, name: str, label: str) -> str:
    """Plot a matrix on a scale from -limit to limit; values close to zero are transparent."""
    count, is_named = len(names), len(names) <= MAX_NAMED_COLUMNS
    strength = np.clip(np.abs(values) / limit, 0, 1)
    image = np.empty((*values.shape, 4))
    image[..., :3] = np.where((values > 0)[..., None], POSITIVE, NEGATIVE)
    image[..., 3] = strength**0.8
    labels = [_shorten(to_printable(one)) for one in names] if is_named else []
    room = 4 + 6 * max((len(one) + 1 for one in labels), default=0)
    with _make_figure(300, 300, (room, 4, room, 4)) as (figure, axes):
        axes.imshow(image, interpolation="none")
        axes.tick_params(length=0, labelcolor=INK, labelsize=10)
        axes.set_xticks(range(len(labels)), labels, rotation=90)
        axes.set_yticks(range(len(labels)), labels)
        for spine in axes.spines.values():
            spine.set_visible(True)
        for i, j in np.ndindex(values.shape) if count <= MAX_NUMBERED_COLUMNS else ():
            text = f"{values[i, j]:.2f}".replace("-", MINUS)
            colour = "#ffffff" if strength[i, j] > 0.6 else INK
            axes.text(j, i, text, ha="center", va="center", fontsize=10, color=colour)
        return _render_svg(figure, name, label)


def _shorten(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else f"{name[: MAX_NAME_LENGTH - 1]}…"
