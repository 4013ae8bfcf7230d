"""Sections of the page that compare real and sampled rows, and those on single rows and on the inverse."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from elflow.report import _plots
from elflow.report._anomalies import Anomaly, Reason
from elflow.report._compare import Marginal
from elflow.report._format import format_count, format_error, format_number
from elflow.report._parts import KINDS, describe_judged_rows, render_card, render_note, render_table
from elflow.report._tables import Column
from elflow.report.findings import Findings
from elflow.report.html import escape
from elflow.report.verdicts import RESIDUAL_LIMITS, auc_limits
from elflow.tabular import Memorization

__all__ = [
    "render_anomalies",
    "render_bars",
    "render_correlations",
    "render_inverse",
    "render_marginals",
    "render_memorization",
    "render_pairs",
    "render_pits",
    "render_two_sample",
]

Floats = NDArray[np.float64]

MAX_MARGINALS = 16
MAX_ANOMALY_COLUMNS = 20
"""Number of columns in the table of anomalous rows."""
N_LARGEST_DIFFERENCES = 5
REAL_AND_SAMPLED = '<p class="legend"><span class="real">real rows</span><span class="sampled">sampled rows</span></p>'


def render_marginals(found: Findings) -> str:
    shown = found.marginals[:MAX_MARGINALS]
    figures = [_render_marginal(marginal, f"marginal-{k}") for k, marginal in enumerate(shown)]
    groups = [  # plots and lists differ in height, so each group has its own grid
        "".join(figure for figure, marginal in zip(figures, shown, strict=True) if bool(marginal.labels) == has_labels)
        for has_labels in (False, True)
    ]
    grids = "".join(f'<div class="small">{group}</div>' for group in groups if group)
    n_hidden = len(found.marginals) - len(shown)
    note = (
        "The difference is the maximum distance between the two distribution functions (Kolmogorov-Smirnov), or the "
        "total variation distance for categories, or the difference between the shares of missing values, if that is "
        "larger. The column with the largest difference comes first."
    )
    if n_hidden:
        verb = "is" if n_hidden == 1 else "are"
        note += f" {format_count(n_hidden, 'other column')} with smaller differences {verb} not shown."
    note += " Histograms omit the lowest and the highest 0.5% of the values."
    return render_card("marginals", "Marginal distributions", REAL_AND_SAMPLED + grids + render_note(note))


def _render_marginal(marginal: Marginal, name: str) -> str:
    chance = " (may be chance)" if marginal.distance <= marginal.limit else ""
    caption = f"{KINDS.get(marginal.kind, marginal.kind)} · difference {marginal.distance:.1%}{chance}"
    if any(marginal.missing):
        caption += " · missing {:.1%} (sampled {:.1%})".format(*marginal.missing)
    if marginal.labels:
        plot = render_bars(marginal.labels, marginal.real, marginal.sampled, marginal.n_others)
    else:
        plot = _plots.draw_histogram(marginal, name)
    return f"<figure><figcaption><b>{escape(marginal.name)}</b>{caption}</figcaption>{plot}</figure>"


def render_bars(
    labels: Sequence[str],
    real: Floats,
    sampled: Floats,
    n_others: int,
    names: tuple[str, str] = ("real rows", "sampled rows"),
) -> str:
    """Render a list with two bars per label, in which labels are text.

    Arguments:
        labels: The labels.
        real: Share of the first kind of rows with each label.
        sampled: Share of the second kind of rows.
        n_others: Number of labels that are not shown.
        names: Names of the kinds of rows.
    """
    largest = max(real.max(), sampled.max(), 1e-9)
    items = []
    for label, *shares in zip(labels, real, sampled, strict=True):
        text = ", ".join(f"{share:.1%} of {name}" for share, name in zip(shares, names, strict=True))
        bars = "".join(
            f'<i class="{which}" style="--w:{share / largest:.3f}"></i>'
            for which, share in zip(("real", "sampled"), shares, strict=True)
        )
        items.append(
            f'<li title="{escape(label)}: {text}"><span>{escape(label) or "&nbsp;"}</span><div>{bars}</div></li>'
        )
    if n_others:
        items.append(f'<li class="others">and {format_count(n_others, "other")}</li>')
    return f'<ul class="bars">{"".join(items)}</ul>'


def render_pairs(found: Findings, random_state: int) -> str:
    chosen = [found.columns[k] for k in found.paired]
    if len(chosen) < 2:
        return ""
    cells, k = [], 0
    for i, up in enumerate(chosen):
        cells.append(f'<div class="self" style="--r:{i + 1};--c:{i + 1}"><b>{escape(up.name)}</b></div>')
        for j, across in enumerate(chosen[:i]):
            axes = f"{escape(up.name)} against {escape(across.name)}"
            cells.append(f'<div class="both" style="--k:{k}">{axes}</div>')
            for which, row, column in (("real", i, j), ("sampled", j, i)):
                k += 1
                source = _plots.draw_scatter(across, up, which, random_state)
                place = f"--r:{row + 1};--c:{column + 1};--k:{k}"
                image = f'<img src="{source}" alt="{which} rows: {axes}">'
                cells.append(f'<figure style="{place}" title="{which}: {axes}">{image}</figure>')
            k += 1
    note = "Real rows are below the diagonal, sampled rows above it. A plot and its mirror image have the same axes."
    if len(found.columns) > len(chosen):
        note += f" Shown are the {len(chosen)} of {len(found.columns)} columns with the strongest dependence."
    grid = f'<div class="pairs" style="--n:{len(chosen)}">{"".join(cells)}</div>'
    return render_card("pairs", "Pairs of columns", REAL_AND_SAMPLED + grid + render_note(note))


def render_pits(found: Findings) -> str:
    if not found.pits:
        return ""
    figures = "".join(
        f"<figure><figcaption><b>{escape(pit.name)}</b>{_describe_p_value(pit.p_value)}</figcaption>"
        f"{_plots.draw_pit(pit, f'pit-{k}')}</figure>"
        for k, pit in enumerate(found.pits)
    )
    legend = (
        '<p class="legend"><span class="sampled">real values</span>'
        '<span class="band">95% range of a uniform distribution</span></p>'
    )
    rows = describe_judged_rows(found, len(found.pits[0].values))
    note = (
        f"Probability integral transform (PIT) of {rows}: the value of the conditional distribution function of a "
        "column, given all other columns. If the model is calibrated, the histogram is flat. A hump in the middle "
        "means that the conditional distributions are too wide, peaks at both ends that they are too narrow, and a "
        "slope that they are too low or too high."
    )
    return render_card("pit", "Calibration", legend + f'<div class="small">{figures}</div>' + render_note(note))


def _describe_p_value(p_value: float) -> str:
    if p_value < 0.001:
        return f'<span class="poor"><span class="level">not uniform</span></span> (p = {p_value:.0e})'
    return f"{'possibly not uniform' if p_value < 0.05 else 'uniform'} (p = {p_value:.2g})"


def render_correlations(found: Findings) -> str:
    both = found.correlations
    if len(both.names) < 2:
        return ""
    difference = both.sampled - both.real
    limit = max(0.1, float(np.abs(difference).max()))
    maps = "".join(
        f"<figure><figcaption><b>{title}</b>scale from &minus;{end:.2g} to {end:.2g}</figcaption>"
        f"{_plots.draw_heatmap(values, both.names, end, f'heat-{k}', f'{title}: rank correlations')}</figure>"
        for k, (title, values, end) in enumerate(
            [("Real rows", both.real, 1.0), ("Sampled rows", both.sampled, 1.0), ("Difference", difference, limit)]
        )
    )
    legend = '<p class="legend"><span class="positive">positive</span><span class="negative">negative</span></p>'
    rows = [
        (
            f"{escape(pair.names[0])} &times; {escape(pair.names[1])}",
            format_number(pair.real),
            format_number(pair.sampled),
            format_number(pair.difference, signed=True) + ("<small>may be chance</small>" if pair.is_chance else ""),
        )
        for pair in both.largest_differences(N_LARGEST_DIFFERENCES)
    ]
    table = render_table(("largest differences", "real", "sampled", "difference"), rows)
    note = (
        "Spearman rank correlations. Categories are ranked by frequency, or by value if they are numbers. A difference "
        "may be chance if Fisher's test of two correlations does not reject it, at a significance of 1% for all pairs "
        "together."
    )
    if len(found.columns) > len(both.names):
        note += f" Shown are the first {len(both.names)} of {len(found.columns)} columns."
    content = legend + f'<div class="heats">{maps}</div>' + table + render_note(note)
    return render_card("correlations", "Correlations", content)


def render_anomalies(found: Findings) -> str:
    n_odd = np.zeros(len(found.columns), int)
    for one in found.anomalies:
        n_odd[[reason.column for reason in one.reasons if reason.is_odd]] += 1
    shown = sorted(np.argsort(-n_odd, kind="stable")[:MAX_ANOMALY_COLUMNS].tolist())
    head = ["row", "log-density", "anomaly score", "most surprising", *(escape(found.columns[k].name) for k in shown)]
    body = "".join(_render_anomaly(one, shown, found.columns) for one in found.anomalies)
    table = (
        f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>{body}</tbody></table>"
    )
    note = (
        f"The {len(found.anomalies)} least likely of {format_count(found.n_used_rows, 'row')}, numbered from 0. The "
        "anomaly score is the percentage of reference rows that are more likely; each point above 100 stands for rows "
        "that are ten times as rare. Values in red are odd given all other values of their row: values as extreme have "
        "a probability of at most 2%. Ordinary values, in brackets, are an interval of 90%, or the most likely "
        "category. In a row without odd values, it is the combination of many values that is unlikely."
    )
    n_hidden = len(found.columns) - len(shown)
    if n_hidden:
        note += f" {format_count(n_hidden, 'column')} {'is' if n_hidden == 1 else 'are'} not shown."
    scrollable = f'<div class="scroll" tabindex="0">{table}</div>'
    return render_card("anomalies", "Most anomalous rows, and why", scrollable + render_note(note))


def _render_anomaly(one: Anomaly, shown: Sequence[int], columns: Sequence[Column]) -> str:
    """Render a row of the table of anomalous rows."""
    reasons = {reason.column: reason for reason in one.reasons if reason.is_odd}
    cells = [f"<td>{one.row:,}</td>", f"<td>{format_number(one.log_density)}</td>"]
    cells.append(f"<td>{_format_anomaly_score(one.anomaly_score)}</td>")
    if one.reasons:
        first = one.reasons[0]
        value = f"<b>{escape(columns[first.column].name)}</b> {_format_cell(one.values[first.column])}"
        cells.append(f'<td class="reason">{value}<small>{_describe_reason(first)}</small></td>')
    else:
        cells.append('<td class="reason">&ndash;</td>')
    cells += [_render_cell(one.values[k], reasons.get(k)) for k in shown]
    return f"<tr>{''.join(cells)}</tr>"


def _describe_reason(reason: Reason) -> str:
    """Describe the values that would be ordinary, and how improbable the value is."""
    low, high = (_format_cell(end) for end in (reason.low, reason.high))
    ordinary = low if low == high else f"{low} to {high}"
    if reason.is_outside:
        return f"(outside {ordinary})"
    p = reason.tail_probability
    return f"({ordinary}), p {'&lt; 1e-16' if p < 1e-16 else f'= {p:.1g}'}"


def _format_anomaly_score(score: float) -> str:
    return f"{score:,.2f}" if score < 1e6 else "density 0" if score >= 1e300 else f"{score:.1e}"


def _format_cell(value: Any) -> str:
    if pd.isna(value):
        return "&ndash;"
    if isinstance(value, float | np.floating):
        number = float(value)
        content = f"{number:,.0f}" if 1e5 <= abs(number) < 1e15 else f"{number:.4g}"
        return content.replace("-", "&minus;")
    if isinstance(value, pd.Timestamp):
        return escape(str(value).removesuffix(" 00:00:00"))
    return escape(value)


def _render_cell(value: Any, reason: Reason | None) -> str:
    if reason is None:
        return f'<td title="{escape(value)}">{_format_cell(value)}</td>'
    return f'<td class="extreme" title="{escape(value)} {_describe_reason(reason)}">{_format_cell(value)}</td>'


def render_two_sample(found: Findings) -> str:
    test = found.two_sample
    if test is None:
        return render_card("two-sample", "Two-sample test", "<p>There are too few rows to train a classifier.</p>")
    gauge = _render_gauge(test.auc, format_number(test.auc, test.error), (0.5, 1.0), auc_limits(test.error), float)
    note = (
        "Area under the ROC curve (AUC) of a gradient-boosting classifier that distinguishes "
        f"{describe_judged_rows(found, test.n_rows)} from {test.n_sampled:,} sampled rows, in five-fold "
        "cross-validation. At 0.5 the classifier guesses, at 1 it is always right. The limits depend on the number of "
        f"rows: up to two standard errors above 0.5 may be chance. The p-value of this AUC is {test.p_value:.2g}. The "
        "classifier also detects details such as rounding."
    )
    if found.n_context_columns:
        note += " It uses the context, too."
    if test.top_columns:
        columns = ", ".join(f"{escape(name)} (&minus;{loss:.2f})" for name, loss in test.top_columns)
        note += f" Most informative columns, with the change in AUC when they are shuffled: {columns}."
    return render_card("two-sample", "Two-sample test", gauge + render_note(note))


def render_memorization(found: Memorization | None) -> str:
    """Render the section; empty if the table has too few rows that the model was trained on, or too few others."""
    if found is None:
        return ""
    rows = [
        (name, f"{part.low:.3g}", f"{part.median:.3g}", f"{part.identical:.1%}")
        for name, part in (("samples", found.samples), ("held-out rows", found.holdout))
    ]
    table = render_table(("distance to the closest training row", "5% quantile", "median", "identical"), rows)
    note = (
        f"{format_count(found.n_samples, 'sample')}, {format_count(found.n_training, 'training row')} and "
        f"{format_count(found.n_holdout, 'held-out row')}. Training and held-out rows have the same distribution: "
        "unless the model memorizes, a sample is closest to a training row as often as there are more training rows. "
        "The estimate is the share of copies that explains the difference. In a distance, a number counts in standard "
        "deviations, a category or missing value that differs counts 1. Training rows score "
        f"{format_number(found.gap, found.gap_error, signed=True)} nats against held-out rows."
    )
    return render_card(
        "memorization", "Memorization", f"<p>{found.describe().replace('+-', '&plusmn;')}</p>{table}{render_note(note)}"
    )


def render_inverse(found: Findings) -> str:
    residual = found.inverse_residual
    gauge = ""
    if math.isfinite(residual):
        gauge = _render_gauge(max(residual, 1e-8), format_error(residual), (1e-8, 1.0), RESIDUAL_LIMITS, math.log10)
    note = (
        "Maximum of |f(f<sup>&minus;1</sup>(z)) &minus; z| / (1 + |z|) over the latent points z of "
        f"{format_count(found.n_inverted, 'row')}: the numerical error of sampling. Values below 0.001 are rounding "
        "errors."
    )
    return render_card("inverse", "Inverse residual", gauge + render_note(note))


def _render_gauge(
    value: float,
    shown: str,
    ends: tuple[float, float],
    limits: tuple[float, float],
    scale: Callable[[float], float],
) -> str:
    """Render a line in three colours with a needle."""

    def place(x: float) -> str:
        share = (scale(x) - scale(ends[0])) / (scale(ends[1]) - scale(ends[0]))
        return f"{100 * min(max(share, 0.0), 1.0):.1f}%"

    first, second = (place(limit) for limit in limits)
    zones = f"linear-gradient(90deg,var(--good) {first},var(--fair) {first},var(--fair) {second},var(--poor) {second})"
    ticks = "".join(f'<i style="--at:{place(x)}">{f"{x:g}".replace("e-0", "e-")}</i>' for x in (*ends, *limits))
    needle = f'<u style="--at:{place(value)}"></u><b style="--at:{place(value)}">{shown}</b>'
    return f'<div class="gauge" style="--zones:{zones}">{needle}{ticks}</div>'
