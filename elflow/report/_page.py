"""The HTML of a report. All text from the table passes through `escape`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from elflow.report import _plots
from elflow.report._compare import Marginal
from elflow.report._format import format_count, format_error, format_number
from elflow.report._style import CSS
from elflow.report.findings import Findings, Score
from elflow.report.html import escape, render_document
from elflow.report.verdicts import RESIDUAL_LIMITS, Verdict, auc_limits, judge

__all__ = ["render_page"]

MAX_MARGINALS = 16
MAX_ANOMALY_COLUMNS = 20
"""Number of columns in the table of anomalous rows."""
N_LARGEST_DIFFERENCES = 5
LEVELS = {"good": "Good.", "fair": "Fair.", "poor": "Poor.", "": ""}
KINDS = {"category": "categorical"}
"""Adjectives for kinds of columns; the other kinds are adjectives already."""
REAL_AND_SAMPLED = '<p class="legend"><span class="real">real rows</span><span class="sampled">sampled rows</span></p>'


def render_page(found: Findings, random_state: int) -> str:
    """Render the whole page."""
    sections = [
        _render_two(_render_training(found), _render_likelihood(found)),
        _render_marginals(found),
        _render_pairs(found, random_state),
        _render_pits(found),
        _render_correlations(found),
        _render_anomalies(found),
        _render_two(_render_two_sample(found), _render_inverse(found)),
    ]
    body = f"""{_render_header(found)}
<main>
{"".join(sections)}
</main>
<footer>Made by elflow. This file is self-contained. {_describe_rows_used(found)}</footer>"""
    news = _describe_news(found)
    return render_document(f"Density report{': ' if news else ''}{news} - elflow", body, CSS)


def _render_header(found: Findings) -> str:
    kinds = ", ".join(f"{found.kinds.count(kind)} {KINDS.get(kind, kind)}" for kind in dict.fromkeys(found.kinds))
    context = f", given {format_count(found.n_context_columns, 'context column')}" if found.n_context_columns else ""
    lead = (
        f"Flow <b>{escape(found.flow)}</b> with {format_count(found.n_parameters, 'parameter')}, fitted to "
        f"{format_count(found.n_fitted_rows, 'row')} of {format_count(len(found.kinds), 'column')} ({kinds}){context}. "
        f"Training: {found.training.describe()}."
    )
    if found.training.stopped == "time_limit":
        lead += " More time may improve the fit."
    news = _describe_news(found)
    title = "How good is this density?" + (f" ({news})" if news else "")
    tiles = "".join(_render_tile(verdict) for verdict in judge(found))
    return (
        f'<header><h1>{title}</h1><p class="lead">{lead}</p><p class="lead">{_describe_origins(found)}</p>'
        f'<section class="tiles" aria-label="Verdicts">{tiles}</section>{_render_warnings(found)}</header>'
    )


def _render_warnings(found: Findings) -> str:
    if not found.warnings:
        return ""
    items = "".join(f"<li>{escape(message)}</li>" for message in found.warnings)
    return f'<section class="card warnings" id="warnings"><h2>Warnings of the fit</h2><ul>{items}</ul></section>'


def _describe_news(found: Findings) -> str:
    """What the title of the page says about the rows of the table; empty if some were held out and some were not."""
    if found.is_new:
        return "all rows are new"
    if found.is_held_out:
        return ""
    return "all rows are training rows" if found.n_training_rows else "training rows are unknown"


def _describe_origins(found: Findings) -> str:
    """Describe how many rows of the table the model has seen."""
    total = format_count(found.n_table_rows, "row")
    if found.is_new:
        return f"<b>All {total} of this table are new</b>: the model saw none of them, and is judged by them."
    if not found.is_held_out and not found.n_training_rows:
        return f"The model may have been trained on the {total} of this table: its file has no hashes of rows."
    text = f"Of the {total} of this table, the model was trained on {found.n_training_rows:,}"
    if found.n_validation_rows:
        text += f" and validated on {found.n_validation_rows:,}"
    text += f"; {found.n_new_rows:,} {'is' if found.n_new_rows == 1 else 'are'} new."
    return text + (" It is judged by rows that it was not trained on." if found.is_held_out else "")


def _render_tile(verdict: Verdict) -> str:
    value, _, error = verdict.value.partition(" ± ")
    error = f" <small>± {error}</small>" if error else ""
    level = f'<span class="level">{LEVELS[verdict.level]}</span> ' if verdict.level else ""
    return (
        f'<article class="tile {verdict.level}"><h3>{verdict.title}</h3><p class="value">{value}{error}</p>'
        f'<p class="unit">{verdict.unit}</p><p>{level}{escape(verdict.reading)}</p></article>'
    )


def _render_training(found: Findings) -> str:
    legend = '<p class="legend"><span class="real">training rows</span><span class="sampled">validation rows</span></p>'
    note = "The dot marks the best round, whose weights were kept. Low scores of the first rounds may be cut off."
    return _render_card(
        "training", "Training", legend + _plots.draw_training(found.training.history) + _render_note(note)
    )


def _render_likelihood(found: Findings) -> str:
    scores = (found.compared, *found.scores[1:])
    rows = [
        (
            f"{score.name}<small>{escape(score.detail)}</small>",
            format_number(score.mean, score.error),
            "" if score is found.compared else f"{_format_gain(score)}<small>{_describe_gain(score)}</small>",
        )
        for score in scores
    ]
    note = _describe_atoms(found)
    n_rows = found.n_test if found.best_baseline is None else found.n_compared
    note += f"All models are scored on the same {_describe_test_rows(found, n_rows)}. "
    if found.n_training_rows and found.is_held_out:
        note += f"The baselines use {found.n_train:,} other rows, among them those that this model was trained on."
    else:
        note += f"The table was split in half: the baselines use the other {found.n_train:,} rows."
    if found.n_validation_rows and found.is_held_out:
        note += (
            " Validation rows decided when training stopped, which favours this model slightly, and column ranges, "
            "categories and frequencies were taken from all fitted rows."
        )
    if found.n_context_columns:
        note += " The baselines do not use the context."
    note += (
        " Error bars show two standard errors. The gain is the mean log-density of a row under this model minus that "
        "under the other: positive if this model is better. The number of components and the bandwidth were chosen on "
        "a fifth of the baselines' rows."
    )
    table = _render_table(("model", "nats per row", "gain of this model"), rows)
    plot = _plots.draw_likelihood(scores)
    return _render_card("likelihood", "Held-out log-likelihood", plot + table + _render_note(note))


def _format_gain(score: Score) -> str:
    return format_number(score.gain, score.gain_error, signed=True)


def _describe_gain(score: Score) -> str:
    """Describe the direction of a gain in words."""
    if not math.isfinite(score.gain):
        return "undefined" if math.isnan(score.gain) else f"this model is {'better' if score.gain > 0 else 'worse'}"
    if math.isfinite(score.gain_error) and abs(score.gain) <= 2 * score.gain_error:
        return "no clear difference"
    return f"this model is {'better' if score.gain > 0 else 'worse'}"


def _describe_atoms(found: Findings) -> str:
    """Explain why some rows are not compared with the baselines; empty if all are."""
    if not found.atomic:
        return ""
    columns = ", ".join(escape(name) for name in found.atomic)
    noun = "Column" if len(found.atomic) == 1 else "Columns"
    text = f"{noun} with values so frequent that they have a probability rather than a density: {columns}. "
    if found.best_baseline is None:
        return text + "Nearly all rows have such values, so there are no baselines to compare with. "
    n_left_out = found.n_test - found.n_compared
    return text + (
        f"{format_count(n_left_out, 'test row')} with such values {'is' if n_left_out == 1 else 'are'} left out of "
        "this comparison on both sides, and the baselines model the other rows, times their share. "
    )


def _render_marginals(found: Findings) -> str:
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
    return _render_card("marginals", "Marginal distributions", REAL_AND_SAMPLED + grids + _render_note(note))


def _render_marginal(marginal: Marginal, name: str) -> str:
    chance = " (may be chance)" if marginal.distance <= marginal.limit else ""
    caption = f"{KINDS.get(marginal.kind, marginal.kind)} · difference {marginal.distance:.1%}{chance}"
    if any(marginal.missing):
        caption += " · missing {:.1%} (sampled {:.1%})".format(*marginal.missing)
    plot = _render_bars(marginal) if marginal.labels else _plots.draw_histogram(marginal, name)
    return f"<figure><figcaption><b>{escape(marginal.name)}</b>{caption}</figcaption>{plot}</figure>"


def _render_bars(marginal: Marginal) -> str:
    """Render a list with two bars per label, in which labels are text."""
    largest = max(marginal.real.max(), marginal.sampled.max(), 1e-9)
    items = []
    for label, real, sampled in zip(marginal.labels, marginal.real, marginal.sampled, strict=True):
        shares = f"{real:.1%} of real rows, {sampled:.1%} of sampled rows"
        bars = "".join(
            f'<i class="{which}" style="--w:{share / largest:.3f}"></i>'
            for which, share in (("real", real), ("sampled", sampled))
        )
        items.append(
            f'<li title="{escape(label)}: {shares}"><span>{escape(label) or "&nbsp;"}</span><div>{bars}</div></li>'
        )
    if marginal.n_others:
        items.append(f'<li class="others">and {format_count(marginal.n_others, "other")}</li>')
    return f'<ul class="bars">{"".join(items)}</ul>'


def _render_pairs(found: Findings, random_state: int) -> str:
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
    return _render_card("pairs", "Pairs of columns", REAL_AND_SAMPLED + grid + _render_note(note))


def _render_pits(found: Findings) -> str:
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
    rows = _describe_judged_rows(found, len(found.pits[0].values))
    note = (
        f"Probability integral transform (PIT) of {rows}: the value of the conditional distribution function of a "
        "column, given all other columns. If the model is calibrated, the histogram is flat. A hump in the middle "
        "means that the conditional distributions are too wide, peaks at both ends that they are too narrow, and a "
        "slope that they are too low or too high."
    )
    return _render_card("pit", "Calibration", legend + f'<div class="small">{figures}</div>' + _render_note(note))


def _describe_p_value(p_value: float) -> str:
    if p_value < 0.001:
        return f'<span class="poor"><span class="level">not uniform</span></span> (p = {p_value:.0e})'
    return f"{'possibly not uniform' if p_value < 0.05 else 'uniform'} (p = {p_value:.2g})"


def _render_correlations(found: Findings) -> str:
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
            f"{escape(a)} &times; {escape(b)}",
            format_number(real),
            format_number(sampled),
            format_number(sampled - real, signed=True),
        )
        for a, b, real, sampled in both.largest_differences(N_LARGEST_DIFFERENCES)
    ]
    table = _render_table(("largest differences", "real", "sampled", "difference"), rows)
    note = "Spearman rank correlations. Categories are ranked by frequency, or by value if they are numbers."
    if len(found.columns) > len(both.names):
        note += f" Shown are the first {len(both.names)} of {len(found.columns)} columns."
    content = legend + f'<div class="heats">{maps}</div>' + table + _render_note(note)
    return _render_card("correlations", "Correlations", content)


def _render_anomalies(found: Findings) -> str:
    n_extremes = np.array([anomaly.is_extreme for anomaly in found.anomalies]).sum(0)
    shown = sorted(np.argsort(-n_extremes, kind="stable")[:MAX_ANOMALY_COLUMNS].tolist())
    head = ["row", "log-density", "anomaly score", *(escape(found.columns[k].name) for k in shown)]
    body = "".join(
        f"<tr><td>{one.row:,}</td><td>{format_number(one.log_density)}</td><td>{_format_anomaly_score(one.anomaly_score)}</td>"
        + "".join(_render_cell(one.values[k], one.is_extreme[k]) for k in shown)
        + "</tr>"
        for one in found.anomalies
    )
    table = (
        f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>{body}</tbody></table>"
    )
    note = (
        f"The {len(found.anomalies)} least likely of {format_count(found.n_used_rows, 'row')}, numbered from 0. The "
        "anomaly score is the percentage of reference rows that are more likely; each point above 100 stands for rows "
        "that are ten times as rare. Values in red are extreme within their "
        "column; in a row without any, the combination of values is unlikely."
    )
    n_hidden = len(found.columns) - len(shown)
    if n_hidden:
        note += f" {format_count(n_hidden, 'column')} {'is' if n_hidden == 1 else 'are'} not shown."
    scrollable = f'<div class="scroll" tabindex="0">{table}</div>'
    return _render_card("anomalies", "Most anomalous rows", scrollable + _render_note(note))


def _format_anomaly_score(score: float) -> str:
    return f"{score:,.2f}" if score < 1e6 else "density 0" if score >= 1e300 else f"{score:.1e}"


def _render_cell(value: Any, is_extreme: bool) -> str:
    if pd.isna(value):
        content = "&ndash;"
    elif isinstance(value, float | np.floating):
        number = float(value)
        content = f"{number:,.0f}" if 1e5 <= abs(number) < 1e15 else f"{number:.5g}"
        content = content.replace("-", "&minus;")
    else:
        content = escape(value)
    return f'<td title="{escape(value)}"{" class=extreme" if is_extreme else ""}>{content}</td>'


def _render_two_sample(found: Findings) -> str:
    test = found.two_sample
    if test is None:
        return _render_card("two-sample", "Two-sample test", "<p>There are too few rows to train a classifier.</p>")
    gauge = _render_gauge(test.auc, format_number(test.auc, test.error), (0.5, 1.0), auc_limits(test.error), float)
    note = (
        "Area under the ROC curve (AUC) of a gradient-boosting classifier that distinguishes "
        f"{_describe_judged_rows(found, test.n_rows)} from as many sampled rows, in five-fold cross-validation. At 0.5 "
        "the classifier guesses, at 1 it is always right. The limits depend on the number of rows: up to two standard "
        "errors above 0.5 may be chance. It also detects details such as rounding."
    )
    if found.n_context_columns:
        note += " It uses the context, too."
    if test.top_columns:
        columns = ", ".join(f"{escape(name)} (&minus;{loss:.2f})" for name, loss in test.top_columns)
        note += f" Most informative columns, with the change in AUC when they are shuffled: {columns}."
    return _render_card("two-sample", "Two-sample test", gauge + _render_note(note))


def _render_inverse(found: Findings) -> str:
    residual = found.inverse_residual
    gauge = ""
    if math.isfinite(residual):
        gauge = _render_gauge(max(residual, 1e-8), format_error(residual), (1e-8, 1.0), RESIDUAL_LIMITS, math.log10)
    note = (
        "Maximum of |f(f<sup>&minus;1</sup>(z)) &minus; z| / (1 + |z|) over the latent points z of "
        f"{format_count(found.n_inverted, 'row')}: the numerical error of sampling. Values below 0.001 are rounding "
        "errors."
    )
    return _render_card("inverse", "Inverse residual", gauge + _render_note(note))


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


def _describe_test_rows(found: Findings, count: int) -> str:
    if not found.is_held_out:
        return format_count(count, "training row" if found.n_training_rows else "row")
    if found.n_validation_rows and found.n_new_rows:
        return f"{format_count(count, 'held-out row')} (validation rows and new rows)"
    return format_count(count, "validation row" if found.n_validation_rows else "new row")


def _describe_judged_rows(found: Findings, count: int) -> str:
    if found.has_enough_test_rows or not found.n_training_rows:
        return _describe_test_rows(found, count)
    return f"{format_count(count, 'row')} (including training rows, because there are few held-out rows)"


def _describe_rows_used(found: Findings) -> str:
    if found.n_used_rows == found.n_table_rows:
        return f"It uses all {format_count(found.n_table_rows, 'row')} of the table."
    return f"It uses {found.n_used_rows:,} of the {found.n_table_rows:,} rows of the table, chosen at random."


def _render_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Render a table of cells that are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    table = f'<table class="figures"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _render_card(name: str, title: str, content: str) -> str:
    return f'<section class="card" id="{name}"><h2>{title}</h2>{content}</section>'


def _render_two(left: str, right: str) -> str:
    return f'<div class="two">{left}{right}</div>'


def _render_note(content: str) -> str:
    return f'<p class="note">{content}</p>'
