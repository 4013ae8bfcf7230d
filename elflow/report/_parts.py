"""Parts of the page that several sections share: cards, tables, notes, and descriptions of rows."""

from __future__ import annotations

from collections.abc import Iterable

from elflow.report._format import format_count
from elflow.report.findings import Findings
from elflow.report.html import escape
from elflow.report.verdicts import LEVELS, Verdict

__all__ = [
    "KINDS",
    "describe_judged_rows",
    "describe_test_rows",
    "render_card",
    "render_note",
    "render_table",
    "render_tile",
    "render_two",
]

KINDS = {"category": "categorical"}
"""Adjectives for kinds of columns; the other kinds are adjectives already."""


def describe_test_rows(found: Findings, count: int) -> str:
    if not found.is_held_out:
        return format_count(count, "training row" if found.n_training_rows else "row")
    if found.n_validation_rows and found.n_new_rows:
        return f"{format_count(count, 'held-out row')} (validation rows and new rows)"
    return format_count(count, "validation row" if found.n_validation_rows else "new row")


def describe_judged_rows(found: Findings, count: int) -> str:
    if found.has_enough_test_rows or not found.n_training_rows:
        return describe_test_rows(found, count)
    return f"{format_count(count, 'row')} (including training rows, because there are few held-out rows)"


def render_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Render a table of cells that are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    table = f'<table class="figures"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'


def render_card(name: str, title: str, content: str) -> str:
    return f'<section class="card" id="{name}"><h2>{title}</h2>{content}</section>'


def render_two(left: str, right: str) -> str:
    return f'<div class="two">{left}{right}</div>'


def render_note(content: str) -> str:
    return f'<p class="note">{content}</p>'


def render_tile(verdict: Verdict) -> str:
    value, _, error = verdict.value.partition(" ± ")
    error = f" <small>± {error}</small>" if error else ""
    level = f'<span class="level">{LEVELS[verdict.level]}.</span> ' if verdict.level else ""
    return (
        f'<article class="tile {verdict.level}"><h3>{verdict.title}</h3><p class="value">{value}{error}</p>'
        f'<p class="unit">{verdict.unit}</p><p>{level}{escape(verdict.reading)}</p></article>'
    )
