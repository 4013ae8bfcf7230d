"""The HTML of a report. All text from the table passes through `escape`."""

from __future__ import annotations

import math

from elflow.report import _plots, _sections
from elflow.report._format import format_count, format_number
from elflow.report._parts import (
    KINDS,
    describe_test_rows,
    render_card,
    render_note,
    render_table,
    render_tile,
    render_two,
)
from elflow.report._style import CSS
from elflow.report.findings import Findings, Score
from elflow.report.html import escape, render_document
from elflow.report.verdicts import judge

__all__ = ["render_page"]


def render_page(found: Findings, random_state: int, explore: str | None = None) -> str:
    """Render the whole page, with a link to the address of a running `elflow explore` if there is one."""
    sections = [
        render_two(_render_training(found), _render_likelihood(found)),
        _sections.render_marginals(found),
        _sections.render_pairs(found, random_state),
        _sections.render_pits(found),
        _sections.render_correlations(found),
        _sections.render_anomalies(found),
        _sections.render_memorization(found.memorization),
        render_two(_sections.render_two_sample(found), _sections.render_inverse(found)),
    ]
    body = f"""{_render_header(found, explore)}
<main>
{"".join(sections)}
</main>
<footer>Made by elflow. This file is self-contained. {_describe_rows_used(found)}</footer>"""
    news = _describe_news(found)
    return render_document(f"Density report{': ' if news else ''}{news} - elflow", body, CSS)


def _render_header(found: Findings, explore: str | None) -> str:
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
    tiles = "".join(render_tile(verdict) for verdict in judge(found))
    link = f'<p><a href="{escape(explore)}">Explore this model</a></p>' if explore else ""
    return (
        f'<header><h1>{title}</h1><p class="lead">{lead}</p><p class="lead">{_describe_origins(found)}</p>{link}'
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
    if found.is_held_out:
        text += " It is judged by rows that it was not trained on"
        few = "; calibration and the two-sample test also use training rows, as there are few others."
        text += "." if found.has_enough_test_rows else few
    return text


def _render_training(found: Findings) -> str:
    legend = '<p class="legend"><span class="real">training rows</span><span class="sampled">validation rows</span></p>'
    note = "The dot marks the best round, whose weights were kept. Low scores of the first rounds may be cut off."
    return render_card(
        "training", "Training", legend + _plots.draw_training(found.training.history) + render_note(note)
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
    note += f"All models are scored on the same {describe_test_rows(found, n_rows)}. "
    if found.n_training_rows and found.is_held_out:
        note += f"The baselines use {found.n_train:,} other rows, among them those that this model was trained on."
    else:
        note += f"The table was split in half: the baselines use the other {found.n_train:,} rows."
    if found.n_validation_rows and found.is_held_out:
        note += (
            " Validation rows decided when training stopped, which favours this model slightly, and column ranges "
            "and categories were taken from all fitted rows."
        )
    if found.n_context_columns:
        note += " The baselines do not use the context."
    note += (
        " Error bars show two standard errors. The gain is the mean log-density of a row under this model minus that "
        "under the other: positive if this model is better. The number of components and the bandwidth were chosen on "
        "a fifth of the baselines' rows."
    )
    table = render_table(("model", "nats per row", "gain of this model"), rows)
    plot = _plots.draw_likelihood(scores)
    return render_card("likelihood", "Held-out log-likelihood", plot + table + render_note(note))


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


def _describe_rows_used(found: Findings) -> str:
    if found.n_used_rows == found.n_table_rows:
        return f"It uses all {format_count(found.n_table_rows, 'row')} of the table."
    return f"It uses {found.n_used_rows:,} of the {found.n_table_rows:,} rows of the table, chosen at random."
