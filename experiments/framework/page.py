"""What the experiments found, as Markdown for each of them and as one page of HTML for all."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elflow._files import replacing
from elflow.report.html import escape as _text
from elflow.report.html import render_document, to_data_uri
from experiments.framework.page_style import CSS

__all__ = ["is_ours", "is_published", "markdown", "words", "write_page"]

PAPER = "ELF: Exact-Lipschitz Based Universal Density Approximator Flow"
DAMAGED = (AttributeError, KeyError, OSError, TypeError, ValueError)
"""What goes wrong with a result that is not one, or not whole."""
LINK = re.compile(r"\[([^\]]+)\]\((https?://[^)\s]+|#[\w-]+)\)")
BOLD = re.compile(r"\*\*(?=\S)(.+?)(?<=\S)\*\*")
EMPHASIS = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*]*[^\s*])\*(?![\w*])")
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9*`\[])")
NUMBER = re.compile(r"[\s*~<>=≤≥≈±+\-\N{MINUS SIGN}\N{EN DASH}\N{EM DASH}]*(\d|$)")

Result = dict[str, Any]
"""What `result.json` of an experiment holds."""


def markdown(result: Result) -> str:
    """A section of Markdown about an experiment, which lies beside its pictures."""
    parts = [f"## {result['title']}", result["text"].strip()]
    for table in result["tables"]:
        parts.append(f"### {table['title']}")
        sides = [" --- " if wordy else " ---: " for wordy in words(table["columns"], table["rows"])]
        lines = [table["columns"], sides, *table["rows"]]
        parts.append("\n".join(f"|{'|'.join(_piped(cell) for cell in line)}|" for line in lines))
        parts += [table["note"]] if table["note"] else []
    parts += [f"![{_one_line(caption)}]({name})\n\n{caption}" for name, caption in result["pictures"].items()]
    for heading, lines in _gaps(result).items():
        parts.append("\n".join([f"{heading}:", "", *(f"- {_one_line(line)}" for line in lines)]))
    parts.append(f"`{_command(result)}`: {_time(_seconds(result))} of CPU time. {_machine(result)}.")
    return "\n\n".join(parts) + "\n"


def write_page(output: Path) -> None:
    """Writes `index.html` about every experiment that has a result in the folder.

    The page is one file that needs nothing else: no network, no script. It is written whole or not at all. Results that
    cannot be read are said to be so on it.
    """
    from experiments import EXPERIMENTS

    output.mkdir(parents=True, exist_ok=True)
    others = sorted(path.parent.name for path in output.glob("*/result.json") if path.parent.name not in EXPERIMENTS)
    names = [name for name in EXPERIMENTS if (output / name / "result.json").exists()] + others
    there = {name: _entry(name, output / name) for name in names}
    absent = [name for name in EXPERIMENTS if name not in there]
    content = _page(there, absent)
    with replacing(output / "index.html") as temporary:
        temporary.write_text(content, encoding="utf-8")


def is_ours(row: Sequence[str]) -> bool:
    """Whether a row of a table is about ELF, and was measured here.

    Example:
        >>> is_ours(["**ELF**", "1.0"]), is_ours(["NSF", "2.0"]), is_ours(["ELF-AR", "157.8", "*published*"])
        (True, False, False)
    """
    return bool(row) and row[0].lstrip("* ").startswith("ELF") and not is_published(row)


def is_published(row: Sequence[str]) -> bool:
    """Whether a row of a table is what others have published: one of its cells says `*published*`.

    Example:
        >>> is_published(["NSF", "157.31", "*published*: Durkan et al. 2019"]), is_published(["NSF", "156.0", ""])
        (True, False)
    """
    return any("*published*" in cell for cell in row)


def words(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Which columns of a table hold words rather than numbers: the first, and those that mostly do.

    Example:
        >>> words(["model", "nats", "from"], [["NSF", "-1.2 ± 0.1", "zuko"], ["ELF", "**2**", "elflow"]])
        [True, False, True]
    """
    cells = [[row[k] for row in rows if row[k].strip()] for k in range(len(columns))]
    return [
        k == 0 or 2 * sum(NUMBER.match(cell) is None for cell in column) > len(column) for k, column in enumerate(cells)
    ]


def _page(there: dict[str, tuple[str, str]], absent: list[str]) -> str:
    links = "".join(f'<a href="#{name}">{name}</a>' for name in there)
    lines = "".join(line for line, _ in there.values())
    sections = "".join(section for _, section in there.values())
    summary = f'<ul class="card summary">{lines}</ul>' if there else '<p class="card">Nothing has been run yet.</p>'
    rest = f'<p class="note">Not in this folder: {", ".join(absent)}.</p>' if absent else ""
    body = f"""<header><h1>The paper's experiments with elflow</h1>
<p class="lead">Tables and figures of <i>{PAPER}</i> (Gopal, 2021), run again, beside the systems that it compares
with. Rows about ELF are set off; rows in grey are published figures, which were not measured here.</p></header>
<nav aria-label="Experiments"><div>{links}</div></nav>
<main>
{summary}{rest}
{sections}
</main>
<footer>Made by elflow. Everything on this page is inside this file.</footer>"""
    return render_document("The paper's experiments with elflow", body, CSS)


def _entry(name: str, folder: Path) -> tuple[str, str]:
    """An experiment's line of the summary and its section."""
    try:
        result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        return _line(name, result), _section(name, result, folder)
    except DAMAGED as error:
        why = f"<code>{name}/result.json</code> is damaged: run <code>elflow reproduce {name}</code> again."
        title = f'<a href="#{name}">{name}</a>'
        line = f'<li>{title}<p class="flag">The result cannot be read.</p><span class="time"></span></li>'
        section = f'<section class="card experiment damaged" id="{name}"><h2>{name}</h2><p>{why}</p>'
        return line, f'{section}<p class="note">{_text(type(error).__name__)}: {_text(error)}</p></section>'


def _line(name: str, result: Result) -> str:
    finding = SENTENCE.split(result["text"].strip().split("\n\n")[0], maxsplit=1)[0]
    flag = "".join(f' <span class="flag">{heading}: {len(lines)}.</span>' for heading, lines in _gaps(result).items())
    return (
        f'<li><a href="#{name}">{_text(result["title"])}</a><p>{_inline(finding)}{flag}</p>'
        f'<span class="time">{_time(_seconds(result))}</span></li>'
    )


def _section(name: str, result: Result, folder: Path) -> str:
    tables = "".join(_table(table) for table in result["tables"])
    pictures = "".join(_picture(folder / Path(file).name, caption) for file, caption in result["pictures"].items())
    absent = "".join(
        f'<div class="absent"><b>{heading}</b><ul>{"".join(f"<li>{_text(line)}</li>" for line in lines)}</ul></div>'
        for heading, lines in _gaps(result).items()
    )
    how = (
        f'<div class="how"><p><code>{_text(_command(result))}</code></p>'
        f"<p>{_time(_seconds(result))} of CPU time. {_text(_machine(result))}.</p></div>"
    )
    return (
        f'<section class="card experiment" id="{name}"><h2>{_text(result["title"])}</h2>'
        f"{_paragraphs(result['text'])}{tables}{pictures}{absent}{how}</section>"
    )


def _paragraphs(words: str) -> str:
    """Paragraphs and lists of Markdown."""
    parts = []
    for block in re.split(r"\n\s*\n", words.strip()):
        lines = block.splitlines()
        if all(line.startswith("- ") for line in lines):
            parts.append("<ul>" + "".join(f"<li>{_inline(line[2:])}</li>" for line in lines) + "</ul>")
        else:
            parts.append(f"<p>{_inline(block)}</p>")
    return "".join(parts)


def _inline(words: str) -> str:
    """Code, links, bold and emphasis of Markdown; all else is shown as it is."""
    pieces = _text(words).split("`")
    if len(pieces) % 2 == 0:  # one of the marks has no partner
        pieces[-2:] = ["`".join(pieces[-2:])]
    for k, piece in enumerate(pieces):
        if k % 2:
            pieces[k] = f"<code>{piece}</code>"
        else:
            piece = LINK.sub(r'<a href="\2">\1</a>', piece)
            pieces[k] = EMPHASIS.sub(r"<em>\1</em>", BOLD.sub(r"<b>\1</b>", piece))
    return "".join(pieces)


def _table(table: dict[str, Any]) -> str:
    sides = [' class="words"' if wordy else "" for wordy in words(table["columns"], table["rows"])]
    head = "".join(f"<th{side}>{_inline(cell)}</th>" for cell, side in zip(table["columns"], sides, strict=True))
    body = ""
    for row in table["rows"]:
        kind = " class=ours" if is_ours(row) else " class=published" if is_published(row) else ""
        cells = "".join(f"<td{side}>{_inline(cell)}</td>" for cell, side in zip(row, sides, strict=True))
        body += f"<tr{kind}>{cells}</tr>"
    note = f'<p class="note">{_inline(table["note"])}</p>' if table["note"] else ""
    return (
        f'<h3>{_inline(table["title"])}</h3><div class="scroll" tabindex="0"><table class="results">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{note}"
    )


def _picture(path: Path, caption: str) -> str:
    try:
        data = path.read_bytes()
    except OSError:
        return f'<div class="absent">The picture <code>{_text(path.name)}</code> is missing: {_inline(caption)}</div>'
    kind = "jpeg" if path.suffix in (".jpg", ".jpeg") else "png"
    width, height = (int.from_bytes(data[k : k + 4], "big") for k in (16, 20))  # where a PNG has them
    wide = " wide" if kind == "png" and width > 1.6 * height else ""
    image = f'<img src="{to_data_uri(data, f"image/{kind}")}" alt="{_text(caption)}">'
    return f'<figure><div class="scroll{wide}">{image}</div><figcaption>{_inline(caption)}</figcaption></figure>'


def _gaps(result: Result) -> dict[str, list[str]]:
    """What is missing and what failed, where there is any."""
    return {name.capitalize(): result[name] for name in ("missing", "failed") if result[name]}


def _command(result: Result) -> str:
    plan = result["plan"]
    options = ["--data FOLDER"] if plan.get("data") else []
    options += [f"--effort {plan['effort']:g}"] if plan["effort"] != 1 else []
    return " ".join(["elflow reproduce", result["name"], f"--scale {plan['scale']} --seed {plan['seed']}", *options])


def _machine(result: Result) -> str:
    """What it ran on, in one line."""
    on = result["machine"]
    return (
        f"{on['processor']}, {on['cores']} cores, {on['instruction_set']}; elflow {on['elflow']}, torch {on['torch']}, "
        f"Python {on['python']}; {on['when'][:10]}"
    )


def _seconds(result: Result) -> float:
    return float(sum(record.get("cpu", record["seconds"]) for record in result["records"].values()))


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds / 60:.1f} min"


def _one_line(words: str) -> str:
    return " ".join(words.split())


def _piped(cell: str) -> str:
    """A cell of a table of Markdown."""
    return f" {_one_line(cell)} ".replace("|", r"\|")
