"""The HTML of a report. Whatever comes from the table goes through `text`."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pandas as pd

from elflow.report import _plots
from elflow.report._compare import Marginal
from elflow.report._measure import Findings
from elflow.report._style import CSS
from elflow.report._tables import plain
from elflow.report._verdicts import AUC_LIMITS, RESIDUAL_LIMITS, Verdict, decimals, tiny, verdicts

__all__ = ["page"]

MOST_MARGINALS = 16
MOST_VALUES = 20
"""Columns in the table of anomalous rows."""
LEVELS = {"good": "Good.", "fair": "Fair.", "look": "Look here.", "": ""}
STOPPED = {
    "patience": "Training ended when held-out rows no longer gained.",
    "max_steps": "Training ended after the number of steps that it was given.",
    "time_limit": "Training ended when its time was up; it may get better with more.",
}
REAL_AND_SAMPLED = '<p class="legend"><span class="real">real rows</span><span class="sampled">sampled rows</span></p>'
CONTENT = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""What a browser may load for the page: nothing. Neither may it run anything."""


def page(found: Findings, random_state: int) -> str:
    """The whole page."""
    sections = [
        _two(_training(found), _likelihood(found)),
        _marginals(found),
        _pairs(found, random_state),
        _pits(found),
        _correlations(found),
        _anomalies(found),
        _two(_two_sample(found), _inverse(found)),
    ]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{CONTENT}">
<title>How good is this density? elflow report</title>
<style>{CSS}</style>
</head>
<body>
{_head(found)}
<main>
{"".join(sections)}
</main>
<footer>Made by elflow. Everything on this page is inside this file. {_looked_at(found)}</footer>
</body>
</html>
"""


def text(words: Any) -> str:
    """What a user wrote, as HTML that shows it and does nothing else."""
    return html.escape(plain(words))


def _head(found: Findings) -> str:
    kinds = ", ".join(f"{found.kinds.count(kind)} {kind}" for kind in dict.fromkeys(found.kinds))
    context = f" given {_count(found.n_context, 'column')} of context" if found.n_context else ""
    lead = (
        f"A flow of the kind <b>{text(found.flow)}</b> with {_count(found.n_parameters, 'parameter')} for "
        f"{_count(len(found.kinds), 'column')} ({kinds}){context}, fitted to {_count(found.n_rows, 'row')} in "
        f"{_duration(found.seconds)}. {STOPPED.get(found.stopped, f'Training ended: {text(found.stopped)}.')}"
    )
    tiles = "".join(_tile(verdict) for verdict in verdicts(found))
    return (
        f'<header><h1>How good is this density?</h1><p class="lead">{lead}</p>'
        f'<section class="tiles" aria-label="Verdicts">{tiles}</section></header>'
    )


def _tile(verdict: Verdict) -> str:
    value, _, error = verdict.value.partition(" ± ")
    error = f" <small>± {error}</small>" if error else ""
    level = f'<span class="level">{LEVELS[verdict.level]}</span> ' if verdict.level else ""
    return (
        f'<article class="tile {verdict.level}"><h3>{verdict.title}</h3><p class="value">{value}{error}</p>'
        f'<p class="unit">{verdict.unit}</p><p>{level}{text(verdict.reading)}</p></article>'
    )


def _training(found: Findings) -> str:
    if not found.history:
        return _card("training", "Training", "<p>This model has no record of its training.</p>")
    legend = '<p class="legend"><span class="real">training rows</span><span class="sampled">held-out rows</span></p>'
    note = "The dot is the best round, whose weights were kept. Earlier rounds may lie below the picture."
    return _card("training", "Training", legend + _plots.training(found.history) + _note(note))


def _likelihood(found: Findings) -> str:
    rows = [
        (
            f"{score.name}<small>{text(score.detail)}</small>",
            decimals(score.mean, score.error),
            "" if score is found.scores[0] else decimals(score.gain, score.gain_error, signed=True),
        )
        for score in found.scores
    ]
    if found.held_out:
        how = (
            f"All are scored on {_count(found.n_test, 'row')} that no model was fitted to. They did choose when the "
            "training of this one stopped, which flatters it slightly; and the columns' ranges, categories and "
            f"frequencies are those of all rows. The baselines were fitted to {found.n_train:,} others."
        )
    else:
        how = (
            "This is not the table that the model was fitted to, so it was split in halves: the baselines were fitted "
            f"to {found.n_train:,} rows, and all are scored on the {found.n_test:,} others."
        )
    if found.n_context:
        how += " The baselines do not see the context."
    how += (
        " Bars are two standard errors either way; gains are of this model, row by row. Components and bandwidth were "
        "chosen on a fifth of the baselines' rows."
    )
    table = _table(("", "nats per row", "gain"), rows)
    return _card("likelihood", "Held-out likelihood", _plots.likelihood(found.scores) + table + _note(how))


def _marginals(found: Findings) -> str:
    shown = found.marginals[:MOST_MARGINALS]
    figures = [_marginal(marginal, f"marginal-{k}") for k, marginal in enumerate(shown)]
    kinds = [  # pictures and lists apart: they differ in height
        "".join(figure for figure, marginal in zip(figures, shown, strict=True) if bool(marginal.labels) == labelled)
        for labelled in (False, True)
    ]
    grids = "".join(f'<div class="small">{kind}</div>' for kind in kinds if kind)
    rest = len(found.marginals) - len(shown)
    note = "The difference is the greatest between the two distribution functions, or half the sum over categories; "
    note += f"{rest} other columns differ less." if rest else "the column that differs most comes first."
    note += " Pictures leave out the outermost half per cent on either side."
    return _card("marginals", "Each column", REAL_AND_SAMPLED + grids + _note(note))


def _marginal(marginal: Marginal, name: str) -> str:
    caption = f"{marginal.kind} · differs by {marginal.distance:.1%}"
    if any(marginal.missing):
        caption += " · missing {:.1%} / {:.1%}".format(*marginal.missing)
    picture = _bars(marginal) if marginal.labels else _plots.histogram(marginal, name)
    return f"<figure><figcaption><b>{text(marginal.name)}</b>{caption}</figcaption>{picture}</figure>"


def _bars(marginal: Marginal) -> str:
    """A list with two bars for each label, which is text and not part of a picture."""
    most = max(marginal.real.max(), marginal.sampled.max(), 1e-9)
    items = []
    for label, real, sampled in zip(marginal.labels, marginal.real, marginal.sampled, strict=True):
        shares = f"{real:.1%} of real, {sampled:.1%} of sampled rows"
        bars = "".join(
            f'<i class="{which}" style="--w:{share / most:.3f}"></i>'
            for which, share in (("real", real), ("sampled", sampled))
        )
        items.append(
            f'<li title="{text(label)}: {shares}"><span>{text(label) or "&nbsp;"}</span><div>{bars}</div></li>'
        )
    if marginal.others:
        items.append(f'<li class="others">and {_count(marginal.others, "other")}</li>')
    return f'<ul class="bars">{"".join(items)}</ul>'


def _pairs(found: Findings, random_state: int) -> str:
    chosen = [found.columns[k] for k in found.paired]
    if len(chosen) < 2:
        return ""
    cells, k = [], 0
    for i, up in enumerate(chosen):
        cells.append(f'<div class="self" style="--r:{i + 1};--c:{i + 1}"><b>{text(up.name)}</b></div>')
        for j, across in enumerate(chosen[:i]):
            axes = f"{text(across.name)} across, {text(up.name)} up"
            cells.append(f'<div class="both" style="--k:{k}">{axes}</div>')
            for which, row, column in (("real", i, j), ("sampled", j, i)):
                k += 1
                source = _plots.scatter(across, up, which, random_state)
                place = f"--r:{row + 1};--c:{column + 1};--k:{k}"
                image = f'<img src="{source}" alt="{which} rows: {axes}">'
                cells.append(f'<figure style="{place}" title="{which}: {axes}">{image}</figure>')
            k += 1
    how = "Real rows below the diagonal, sampled ones above; a picture has the same axes as its mirror image."
    if len(found.columns) > len(chosen):
        how += f" These are the {len(chosen)} of {len(found.columns)} columns that depend on each other most."
    grid = f'<div class="pairs" style="--n:{len(chosen)}">{"".join(cells)}</div>'
    return _card("pairs", "Pairs of columns", REAL_AND_SAMPLED + grid + _note(how))


def _pits(found: Findings) -> str:
    if not found.pits:
        return ""
    figures = "".join(
        f"<figure><figcaption><b>{text(one.name)}</b>{_uniform(one.p_value)}</figcaption>"
        f"{_plots.pit(one, f'pit-{k}')}</figure>"
        for k, one in enumerate(found.pits)
    )
    legend = (
        '<p class="legend"><span class="sampled">real values</span>'
        '<span class="band">where 95 % of uniform bins lie</span></p>'
    )
    how = (
        f"Where {_rows_judged(found, len(found.pits[0].values))} lie in the model's distribution of one column given "
        "the others, from 0 (lower than all) to 1. If the model is right, the histogram is flat; a hump in the middle "
        "means distributions that are too wide, peaks at the ends too narrow, a slope too low or too high."
    )
    return _card("pit", "Calibration", legend + f'<div class="small">{figures}</div>' + _note(how))


def _uniform(p_value: float) -> str:
    if p_value < 0.001:
        return f'<span class="look"><span class="level">not uniform</span></span> (p = {p_value:.0e})'
    return f"{'doubtful' if p_value < 0.05 else 'uniform'} (p = {p_value:.2g})"


def _correlations(found: Findings) -> str:
    both = found.correlations
    if len(both.names) < 2:
        return ""
    difference = both.sampled - both.real
    limit = max(0.1, float(np.abs(difference).max()))
    maps = "".join(
        f"<figure><figcaption><b>{title}</b>from &minus;{most:.2g} to {most:.2g}</figcaption>"
        f"{_plots.heat(values, both.names, most, f'heat-{k}', f'{title}: rank correlations')}</figure>"
        for k, (title, values, most) in enumerate(
            [("Real", both.real, 1.0), ("Sampled", both.sampled, 1.0), ("Difference", difference, limit)]
        )
    )
    legend = '<p class="legend"><span class="positive">positive</span><span class="negative">negative</span></p>'
    rows = [
        (f"{text(a)} &times; {text(b)}", decimals(real), decimals(sampled), decimals(sampled - real, signed=True))
        for a, b, real, sampled in both.largest_differences(5)
    ]
    table = _table(("largest differences", "real", "sampled", "difference"), rows)
    note = "Spearman's rank correlations; categories count by their frequency."
    if len(found.columns) > len(both.names):
        note += f" The first {len(both.names)} of {len(found.columns)} columns."
    content = legend + f'<div class="heats">{maps}</div>' + table + _note(note)
    return _card("correlations", "Correlations", content)


def _anomalies(found: Findings) -> str:
    marks = np.array([anomaly.extreme for anomaly in found.anomalies]).sum(0)
    shown = sorted(np.argsort(-marks, kind="stable")[:MOST_VALUES].tolist())
    head = ["row", "log-density", "percentile", *(text(found.columns[k].name) for k in shown)]
    body = "".join(
        f"<tr><td>{one.row:,}</td><td>{decimals(one.log_density)}</td><td>{one.percentile:.2f}</td>"
        + "".join(_cell(one.values[k], one.extreme[k]) for k in shown)
        + "</tr>"
        for one in found.anomalies
    )
    table = (
        f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in head)}</tr></thead><tbody>{body}</tbody></table>"
    )
    note = (
        f"The {len(found.anomalies)} least likely of {_count(found.looked_at, 'row')}, counted from 0; the "
        "percentile is among the training rows. Values in red are far out in their own column already; in a row "
        "without any, it is the combination that is unlikely."
    )
    if len(shown) < len(found.columns):
        note += f" {len(found.columns) - len(shown)} columns are not shown."
    return _card("anomalies", "Most anomalous rows", f'<div class="scroll" tabindex="0">{table}</div>' + _note(note))


def _cell(value: Any, extreme: bool) -> str:
    if pd.isna(value):
        words = "&ndash;"
    elif isinstance(value, float | np.floating):
        number = float(value)
        words = f"{number:,.0f}" if 1e5 <= abs(number) < 1e15 else f"{number:.5g}"
        words = words.replace("-", "&minus;")
    else:
        words = text(value)
    return f'<td title="{text(value)}"{" class=extreme" if extreme else ""}>{words}</td>'


def _two_sample(found: Findings) -> str:
    test = found.two_sample
    if test is None:
        return _card("two-sample", "Two-sample test", "<p>There are too few rows to train a classifier on.</p>")
    gauge = _gauge(test.auc, decimals(test.auc, test.error), (0.5, 1.0), AUC_LIMITS, float)
    how = (
        f"A gradient-boosting classifier tries to tell {_rows_judged(found, test.rows)} from as many samples, in "
        "five-fold cross-validation. At 0.5 it can only guess; at 1 it is always right. It also notices details such "
        "as rounding."
    )
    if found.n_context:
        how += " It sees the context."
    if test.telling:
        how += " What it goes by most: " + ", ".join(f"{text(name)} (&minus;{drop:.2f})" for name, drop in test.telling)
        how += "; in brackets, what of the AUC is lost without."
    return _card("two-sample", "Two-sample test", gauge + _note(how))


def _inverse(found: Findings) -> str:
    residual = found.inverse_residual
    gauge = ""
    if math.isfinite(residual):
        gauge = _gauge(max(residual, 1e-8), tiny(residual), (1e-8, 1.0), RESIDUAL_LIMITS, math.log10)
    how = (
        "How far f(f<sup>&minus;1</sup>(z)) is from z at most, relative to 1 + |z|, over the latent points z of "
        f"{_count(found.n_inverted, 'row')}: how far a sample is from what it was drawn from. Below 0.001 it is "
        "rounding."
    )
    return _card("inverse", "Inverse residual", gauge + _note(how))


def _gauge(
    value: float,
    shown: str,
    ends: tuple[float, float],
    limits: tuple[float, float],
    scale: Callable[[float], float],
) -> str:
    """A line in three colours with a needle."""

    def at(x: float) -> str:
        share = (scale(x) - scale(ends[0])) / (scale(ends[1]) - scale(ends[0]))
        return f"{100 * min(max(share, 0.0), 1.0):.1f}%"

    first, second = (at(limit) for limit in limits)
    zones = f"linear-gradient(90deg,var(--good) {first},var(--fair) {first},var(--fair) {second},var(--look) {second})"
    ticks = "".join(f'<i style="--at:{at(x)}">{f"{x:g}".replace("e-0", "e-")}</i>' for x in (*ends, *limits))
    needle = f'<u style="--at:{at(value)}"></u><b style="--at:{at(value)}">{shown}</b>'
    return f'<div class="gauge" style="--zones:{zones}">{needle}{ticks}</div>'


def _rows_judged(found: Findings, count: int) -> str:
    if not found.judged_held_out:
        return (
            f"{_count(count, 'row')} (training rows among them, since few are held out)"
            if found.held_out
            else (f"{_count(count, 'row')} of this table")
        )
    return f"{_count(count, 'held-out row')}" if found.held_out else f"{_count(count, 'row')} of this table"


def _looked_at(found: Findings) -> str:
    if found.looked_at == found.table_rows:
        return f"It looks at all {_count(found.table_rows, 'row')} of the table."
    return f"It looks at {found.looked_at:,} of the {found.table_rows:,} rows of the table, drawn at random."


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Of HTML that is safe already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    table = f'<table class="figures"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def _card(name: str, title: str, content: str) -> str:
    return f'<section class="card" id="{name}"><h2>{title}</h2>{content}</section>'


def _two(left: str, right: str) -> str:
    return f'<div class="two">{left}{right}</div>'


def _note(words: str) -> str:
    return f'<p class="note">{words}</p>'


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} seconds"
    return f"{seconds / 60:.3g} minutes" if seconds < 7200 else f"{seconds / 3600:.3g} hours"
