"""Results of experiments as Markdown, and as one HTML page."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elflow.report.html import escape, render_document, to_data_uri
from experiments.framework._page_style import CSS
from experiments.framework.experiment import Group
from experiments.framework.files import write_text
from experiments.framework.summary import describe_summary, summarize

__all__ = ["has_words", "is_ours", "is_published", "render_markdown", "render_table", "write_page"]

DAMAGED = (AttributeError, KeyError, OSError, TypeError, ValueError)
"""Errors of a result file that is damaged or not a result."""
LINK = re.compile(r"\[([^\]]+)\]\((https?://[^)\s]+|#[\w-]+)\)")
BOLD = re.compile(r"\*\*(?=\S)(.+?)(?<=\S)\*\*")
EMPHASIS = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*]*[^\s*])\*(?![\w*])")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9*`\[])")
WORD = re.compile(r"[^\W\d_]{2,}")
MAX_WORDS = 2
"""Maximum number of words of a cell that counts as a number, such as one with a unit."""
NUMBER = re.compile(r"[\s*~<>=≤≥≈±+\-\N{MINUS SIGN}\N{EN DASH}\N{EM DASH}]*(\d|$)")

Result = dict[str, Any]
"""The content of an experiment's `result.json`."""


def render_markdown(result: Result, group: Group) -> str:
    """A section of Markdown about an experiment, for a file beside its figures."""
    parts = [f"## {result['title']}", result["text"].strip(), *map(render_table, result["tables"])]
    parts += [f"![{_join_lines(caption)}]({name})\n\n{caption}" for name, caption in result["pictures"].items()]
    for heading, lines in _list_gaps(result).items():
        parts.append("\n".join([f"{heading}:", "", *(f"- {_join_lines(line)}" for line in lines)]))
    parts.append(
        f"`{_format_command(result, group)}`: {_format_cpu_time(result)} of CPU time. {_describe_machine(result)}."
    )
    return "\n\n".join(parts) + "\n"


def render_table(table: dict[str, Any]) -> str:
    """A table of a result as Markdown, with its title and note.

    Example:
        >>> print(render_table({"title": "Times", "columns": ["model", "s"], "rows": [["ELF", "1"]], "note": ""}))
        ### Times
        <BLANKLINE>
        | model | s |
        | --- | ---: |
        | ELF | 1 |
    """
    sides = ["---" if wordy else "---:" for wordy in has_words(table["columns"], table["rows"])]
    lines = [table["columns"], sides, *table["rows"]]
    rows = "\n".join(f"|{'|'.join(_format_cell(cell) for cell in line)}|" for line in lines)
    return "\n\n".join([f"### {table['title']}", rows, *([table["note"]] if table["note"] else [])])


def write_page(output: Path, group: Group) -> None:
    """Write `index.html` about every experiment that has a result in the folder, in the order of the group.

    The page is one file without scripts and external resources. It names results that cannot be read. Durations are
    also written to `summary.json`.
    """
    others = sorted(path.parent.name for path in output.glob("*/result.json") if path.parent.name not in group.members)
    names = [name for name in group.members if (output / name / "result.json").exists()] + others
    entries = {name: _render_entry(name, output / name, group) for name in names}
    summary = summarize(output, names)
    write_text(output / "summary.json", json.dumps(summary, indent=1) + "\n")
    absent = [name for name in group.members if name not in entries]
    write_text(output / "index.html", _render_page(entries, absent, group, describe_summary(summary)))


def is_ours(row: Sequence[str]) -> bool:
    """Whether a row of a table is a measurement of ELF, not a published figure.

    Example:
        >>> is_ours(["**ELF**", "1.0"]), is_ours(["NSF", "2.0"]), is_ours(["ELF-AR", "157.8", "*published*"])
        (True, False, False)
    """
    return bool(row) and row[0].lstrip("* ").startswith("ELF") and not is_published(row)


def is_published(row: Sequence[str]) -> bool:
    """Whether a row of a table is a published figure: one of its cells contains `*published*`.

    Example:
        >>> is_published(["NSF", "157.31", "*published*: Durkan et al. 2019"]), is_published(["NSF", "156.0", ""])
        (True, False)
    """
    return any("*published*" in cell for cell in row)


def has_words(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Whether each column of a table has words rather than numbers: the first one does.

    Example:
        >>> has_words(["model", "nats", "from"], [["NSF", "-1.2 ± 0.1", "zuko"], ["ELF", "**2**", "elflow"]])
        [True, False, True]
        >>> has_words(["claim", "here"], [["exact", "9 of 9 networks: a grid is below"]])
        [True, True]
    """
    cells = [[row[k] for row in rows if row[k].strip()] for k in range(len(columns))]
    return [k == 0 or 2 * sum(map(_is_wordy, column)) > len(column) for k, column in enumerate(cells)]


def _is_wordy(cell: str) -> bool:
    return NUMBER.match(cell) is None or len(WORD.findall(cell)) > MAX_WORDS


def _render_page(entries: dict[str, tuple[str, str]], absent: list[str], group: Group, total: str) -> str:
    links = "".join(f'<a href="#{name}">{name}</a>' for name in entries)
    lines = "".join(line for line, _ in entries.values())
    sections = "".join(section for _, section in entries.values())
    rest = f'<p class="note">Not in this folder: {", ".join(absent)}.</p>' if absent else ""
    body = f"""<header><h1>{escape(group.title)}</h1>
<p class="lead">{_render_inline(group.lead)}</p></header>
<nav aria-label="Experiments"><div>{links}</div></nav>
<main>
<ul class="card summary">{lines}</ul>
<p class="note">{escape(total)}.</p>{rest}
{sections}
</main>
<footer>Made by elflow. This file contains the whole page.</footer>"""
    return render_document(group.title, body, CSS)


def _render_entry(name: str, folder: Path, group: Group) -> tuple[str, str]:
    """An experiment's line of the summary and its section."""
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        return _render_line(name, result), _render_section(name, result, folder, group)
    except DAMAGED as error:
        why = f"<code>{name}/result.json</code> is damaged: run <code>{group.command} {name}</code> again."
        title = f'<a href="#{name}">{name}</a>'
        line = f'<li>{title}<p class="flag">The result cannot be read.</p><span class="time"></span></li>'
        section = f'<section class="card experiment damaged" id="{name}"><h2>{name}</h2><p>{why}</p>'
        return line, f'{section}<p class="note">{escape(type(error).__name__)}: {escape(error)}</p></section>'


def _render_line(name: str, result: Result) -> str:
    finding = SENTENCE.split(result["text"].strip().split("\n\n")[0], maxsplit=1)[0]
    flag = "".join(
        f' <span class="flag">{heading}: {len(lines)}.</span>' for heading, lines in _list_gaps(result).items()
    )
    return (
        f'<li><a href="#{name}">{escape(result["title"])}</a><p>{_render_inline(finding)}{flag}</p>'
        f'<span class="time">{_format_cpu_time(result)}</span></li>'
    )


def _render_section(name: str, result: Result, folder: Path, group: Group) -> str:
    tables = "".join(_render_html_table(table) for table in result["tables"])
    pictures = "".join(
        _render_picture(folder / Path(file).name, caption) for file, caption in result["pictures"].items()
    )
    absent = "".join(
        f'<div class="absent"><b>{heading}</b><ul>{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ul></div>'
        for heading, lines in _list_gaps(result).items()
    )
    how = (
        f'<div class="how"><p><code>{escape(_format_command(result, group))}</code></p>'
        f"<p>{_format_cpu_time(result)} of CPU time. {escape(_describe_machine(result))}.</p></div>"
    )
    return (
        f'<section class="card experiment" id="{name}"><h2>{escape(result["title"])}</h2>'
        f"{_render_paragraphs(result['text'])}{tables}{pictures}{absent}{how}</section>"
    )


def _render_paragraphs(text: str) -> str:
    """Paragraphs and lists of Markdown as HTML."""
    parts = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if all(line.startswith("- ") for line in lines):
            parts.append("<ul>" + "".join(f"<li>{_render_inline(line[2:])}</li>" for line in lines) + "</ul>")
        else:
            parts.append(f"<p>{_render_inline(block)}</p>")
    return "".join(parts)


def _render_inline(text: str) -> str:
    """Code, links, bold and emphasis of Markdown as HTML; everything else is escaped."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:  # the last mark has no partner
        pieces[-2:] = ["`".join(pieces[-2:])]
    for k, piece in enumerate(pieces):
        if k % 2:
            pieces[k] = f"<code>{piece}</code>"
        else:
            piece = LINK.sub(r'<a href="\2">\1</a>', piece)
            pieces[k] = EMPHASIS.sub(r"<em>\1</em>", BOLD.sub(r"<b>\1</b>", piece))
    return "".join(pieces)


def _render_html_table(table: dict[str, Any]) -> str:
    sides = [' class="words"' if wordy else "" for wordy in has_words(table["columns"], table["rows"])]
    head = "".join(f"<th{side}>{_render_inline(cell)}</th>" for cell, side in zip(table["columns"], sides, strict=True))
    body = ""
    for row in table["rows"]:
        kind = " class=ours" if is_ours(row) else " class=published" if is_published(row) else ""
        cells = "".join(f"<td{side}>{_render_inline(cell)}</td>" for cell, side in zip(row, sides, strict=True))
        body += f"<tr{kind}>{cells}</tr>"
    note = f'<p class="note">{_render_inline(table["note"])}</p>' if table["note"] else ""
    return (
        f'<h3>{_render_inline(table["title"])}</h3><div class="scroll" tabindex="0"><table class="results">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def _render_picture(path: Path, caption: str) -> str:
    try:
        data = path.read_bytes()
    except OSError:
        file = f"<code>{escape(path.name)}</code>"
        return f'<div class="absent">The figure {file} is missing: {_render_inline(caption)}</div>'
    kind = "jpeg" if path.suffix in (".jpg", ".jpeg") else "png"
    width, height = (int.from_bytes(data[k : k + 4], "big") for k in (16, 20))  # the places of the size in a PNG file
    wide = " wide" if kind == "png" and width > 1.6 * height else ""
    image = f'<img src="{to_data_uri(data, f"image/{kind}")}" alt="{escape(caption)}">'
    return f'<figure><div class="scroll{wide}">{image}</div><figcaption>{_render_inline(caption)}</figcaption></figure>'


def _list_gaps(result: Result) -> dict[str, list[str]]:
    """Missing data, failures, skipped jobs, and requirements that are not met, if there are any."""
    names = {"missing": "Missing", "failed": "Failed", "skipped": "Skipped", "unmet": "Not met"}
    return {title: result[name] for name, title in names.items() if result.get(name)}


def _format_command(result: Result, group: Group) -> str:
    """The command that gives this result."""
    plan = result["plan"]
    parts = [group.command, result["name"], f"--scale {plan['scale']} --seed {plan['seed']}"]
    parts += ["--data FOLDER"] if plan.get("data") else []
    parts += [f"--effort {plan['effort']:g}"] if plan["effort"] != 1 else []
    parts += [f"--set {name}={_format_value(value)}" for name, value in plan.get("options", {}).items()]
    return " ".join(parts)


def _format_value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _describe_machine(result: Result) -> str:
    """The machine and the versions on one line."""
    machine = result["machine"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['instruction_set']}; elflow {machine['elflow']}, "
        f"torch {machine['torch']}, Python {machine['python']}; {machine['when'][:10]}"
    )


def _format_cpu_time(result: Result) -> str:
    from elflow.training import format_duration  # slow to load, and no worker process needs it

    seconds = (record.get("cpu", record["seconds"]) for record in result["records"].values())
    return format_duration(float(sum(seconds)))


def _join_lines(text: str) -> str:
    return " ".join(text.split())


def _format_cell(cell: str) -> str:
    """A cell of a Markdown table."""
    return f" {_join_lines(cell)} ".replace("|", r"\|")
