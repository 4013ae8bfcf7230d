"""The page of `elflow drift`: whether new rows have the distribution of held-out rows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import numpy as np

from elflow._files import replacing
from elflow.report import _plots
from elflow.report._format import format_count, format_number
from elflow.report._parts import KINDS, render_card, render_note, render_table, render_tile
from elflow.report._sections import render_bars
from elflow.report._style import CSS
from elflow.report.html import escape, render_document
from elflow.report.verdicts import Verdict
from elflow.tabular import ColumnShares, Drift, DriftTest

__all__ = ["write_drift"]

MAX_COLUMNS = 24
"""Maximum number of columns that are plotted: those with the smallest p-values."""
MAX_PAIRS = 15
"""Maximum number of pairs in the table: those with the smallest p-values."""
MAX_BINS, N_MERGED_BINS = 12, 8
"""Number of bins of a column up to which they are plotted as they are, and about how many others are merged into."""
MAX_LABELS = 12
"""Maximum number of categories that are plotted."""
LEGEND = '<p class="legend"><span class="real">held-out rows</span><span class="sampled">new rows</span></p>'


def write_drift(found: Drift, path: str | os.PathLike[str]) -> None:
    """Write the result of a comparison as an HTML page: a single file that needs neither network nor scripts.

    Arguments:
        found: The result of `FlowDensity.compare`.
        path: The file to write, which is overwritten.

    Example:
        >>> import tempfile
        >>> from elflow import FlowDensity
        >>> table = np.random.default_rng(0).normal(size=(1000, 2))
        >>> density = FlowDensity(max_steps=20, random_state=0).fit(table[:500])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_drift(density.compare(table[500:]), f"{folder}/drift.html")
        ...     "No drift" in Path(folder, "drift.html").read_text(encoding="utf-8")
        True
    """
    content = render_drift(found)
    with replacing(Path(path)) as temporary:
        temporary.write_text(content, encoding="utf-8")


def render_drift(found: Drift) -> str:
    """Render the whole page."""
    title = "The new rows have drifted" if found.has_drift else "No drift"
    left_out = f", without {format_count(found.n_fitted, 'row')} that the model was fitted to" if found.n_fitted else ""
    lead = (
        f"{format_count(found.n_rows, 'new row')}{left_out}, compared with "
        f"{format_count(found.n_reference, 'held-out row')}. {found.describe()}"
    )
    tiles = "".join(render_tile(verdict) for verdict in _judge(found))
    body = f"""<header><h1>{title}</h1><p class="lead">{escape(lead)}</p>
<section class="tiles" aria-label="Verdicts">{tiles}</section></header>
<main>
{_render_findings(found)}{_render_columns(found)}{_render_pairs(found)}{_render_method(found)}
</main>
<footer>Made by elflow. This file is self-contained.</footer>"""
    return render_document(f"{title} - elflow", body, CSS)


def _judge(found: Drift) -> list[Verdict]:
    """One verdict for each test of all columns together, and for columns and pairs."""
    verdicts = []
    titles = {"log-density": "Log-density", "PIT": "PIT of the log-density", "two-sample": "Two-sample test"}
    units = {"log-density": "change of the mean, nats", "PIT": "distance from held-out rows", "two-sample": "p-value"}
    for test in (test for test in found.tests if test.group == "overall"):
        value = {
            "log-density": "none"
            if np.isnan(test.effect)
            else format_number(test.effect, float(np.hypot(*found.log_density_errors)), signed=True),
            "PIT": f"{test.effect:.1%}",
            "two-sample": _format_p(test.p_value),
        }[test.aspect]
        reading = f"{_name_p(test.p_value)}, adjusted {_format_p(test.adjusted_p_value)}."
        if np.isnan(test.effect):
            reading = f"{test.change[0].upper()}{test.change[1:]}: {reading}"
        level: Literal["poor", "good"] = "poor" if test.has_drifted else "good"
        verdicts.append(Verdict(titles[test.aspect], value, units[test.aspect], level, reading))
    names = {
        group: list(dict.fromkeys(test.name for test in found.drifted if test.group == group))
        for group in ("column", "pair")
    }
    totals = {group: len({test.name for test in found.tests if test.group == group}) for group in names}
    both = [*names["column"], *names["pair"]]
    verdicts.append(
        Verdict(
            "Drifted columns and pairs",
            f"{len(names['column'])} and {len(names['pair'])}",
            f"of {format_count(totals['column'], 'column')} and {format_count(totals['pair'], 'pair')}",
            "poor" if both else "good",
            f"{', '.join(both[:3])}{', ...' if len(both) > 3 else ''}." if both else "No difference found.",
        )
    )
    if found.n_impossible:
        reading = "They lie outside the bounds of the columns, where the density is zero."
        verdicts.append(Verdict("Impossible rows", f"{found.n_impossible:,}", "density zero", "poor", reading))
    if found.n_incomplete:
        reading = "Values are missing in columns that were fitted without missing values: only this is tested of them."
        verdicts.append(Verdict("Incomplete rows", f"{found.n_incomplete:,}", "no density", "poor", reading))
    return verdicts


def _format_p(p_value: float) -> str:
    return "&lt; 1e-16" if p_value < 1e-16 else f"{p_value:.2g}" if p_value >= 1e-4 else f"{p_value:.0e}"


def _name_p(p_value: float) -> str:
    return f"p = {_format_p(p_value)}".replace("= &lt;", "&lt;")


def _render_findings(found: Drift) -> str:
    """The tests that find drift."""
    if not found.has_drift:
        return ""
    table = render_table(("difference", "change", "p-value", "adjusted"), [_make_row(test) for test in found.drifted])
    return render_card("findings", "What has drifted", table)


def _make_row(test: DriftTest) -> tuple[str, str, str, str]:
    aspect = "" if test.group == "overall" else f"<small>{escape(test.aspect)}</small>"
    p_values = (_format_p(test.p_value), _format_p(test.adjusted_p_value)) if test.is_judged else ("not judged", "")
    return (f"{escape(test.name)}{aspect}", _render_change(test), *p_values)


def _render_change(test: DriftTest) -> str:
    return escape(test.change).replace("-&gt;", "&rarr;").replace("+-", "&plusmn;")


def _render_columns(found: Drift) -> str:
    by_name: dict[str, list[DriftTest]] = {}
    for test in found.tests:
        if test.group == "column":
            by_name.setdefault(test.name, []).append(test)
    shares = [part for part in found.shares if part.name in by_name]
    shares.sort(key=lambda part: min(test.p_value for test in by_name[part.name]))
    shown = shares[:MAX_COLUMNS]
    figures = [_render_column(part, by_name[part.name], f"column-{k}") for k, part in enumerate(shown)]
    groups = [  # plots and lists differ in height, so each group has its own grid
        "".join(figure for figure, part in zip(figures, shown, strict=True) if part.is_ordered == is_ordered)
        for is_ordered in (True, False)
    ]
    grids = "".join(f'<div class="small">{group}</div>' for group in groups if group)
    note = (
        "Share of the rows in each bin; the smallest p-value comes first. The bins of numbers and times have about "
        "equal shares of the fitted rows, so that held-out rows are about flat; their scale is not linear."
    )
    if len(shares) > len(shown):
        note += f" {format_count(len(shares) - len(shown), 'other column')} with larger p-values are not shown."
    return render_card("columns", "Columns", LEGEND + grids + render_note(note)) if shown else ""


def _render_column(part: ColumnShares, tests: list[DriftTest], name: str) -> str:
    caption = KINDS.get(part.kind, part.kind) + (", context" if part.is_context else "")
    for test in tests:
        text = f"{_render_change(test)} ({_name_p(test.p_value)})"
        mark = f'<span class="poor"><span class="level">{text}</span></span>' if test.has_drifted else text
        caption += f" · {mark}"
    if part.is_ordered:
        plot = _plots.draw_bins(*_merge_bins(part), name)
    else:
        largest = np.maximum(part.reference, part.new)
        top = np.sort(np.argsort(-largest, kind="stable")[: min(MAX_LABELS, int((largest > 0).sum()))])
        labels = tuple(part.labels[k] for k in top)
        real, new = (np.array(shares)[top] for shares in (part.reference, part.new))
        n_others = int((np.array(part.reference) + np.array(part.new) > 0).sum() - (real + new > 0).sum())
        plot = render_bars(labels, real, new, max(n_others, 0), ("held-out rows", "new rows"))
    return f"<figure><figcaption><b>{escape(part.name)}</b>{caption}</figcaption>{plot}</figure>"


def _merge_bins(part: ColumnShares) -> tuple[list[float], list[float], list[str]]:
    """Shares of held-out rows and of new rows, and labels, of neighbouring bins together: single ones are noisy."""
    n_bins = len(part.labels)
    groups = np.arange(n_bins) // (1 if n_bins <= MAX_BINS else -(-n_bins // N_MERGED_BINS))
    middle = [int(np.median(np.flatnonzero(groups == k))) for k in range(groups[-1] + 1)]
    shares = [np.bincount(groups, values).tolist() for values in (part.reference, part.new)]
    return shares[0], shares[1], [part.labels[k] for k in middle]


def _render_pairs(found: Drift) -> str:
    tests = sorted(
        (test for test in found.tests if test.group == "pair"), key=lambda test: (not test.is_judged, test.p_value)
    )
    if not tests:
        return ""
    rows = [_make_row(test) for test in tests[:MAX_PAIRS]]
    table = render_table(("pair", "change", "p-value", "adjusted"), rows)
    note = (
        "Correlations of ranks; of a category, correlations of the indicator that changes most. A drift of one column "
        "changes the correlations of its pairs, too, so pairs of columns that have drifted are not judged."
    )
    if len(tests) > len(rows):
        note += f" {format_count(len(tests) - len(rows), 'other pair')} with larger p-values are not shown."
    return render_card("pairs", "Pairs of columns", table + render_note(note))


def _render_method(found: Drift) -> str:
    note = (
        "New rows are compared with held-out rows of the fit, and not with the model, whose own errors would be found "
        f"with enough rows. All tests together find drift with a probability of at most {found.level:.3g} if there is "
        "none, and if the rows are independent of each other. Adjusted p-values are those for the number of "
        "tests, by Holm's method; all columns together, single columns and pairs have equal parts of the level. With "
        "many rows, small differences are found, too: the sizes of changes tell whether they matter."
    )
    return render_card("method", "How to read this page", f"<p>{note}</p>")
