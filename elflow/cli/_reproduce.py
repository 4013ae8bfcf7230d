"""`elflow reproduce`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elflow.cli._options import Seed
from elflow.cli._terminal import console, note

if TYPE_CHECKING:
    from elflow.reproduce import Report, Table

EVERY = "all"
PROCESSES = min(2, os.cpu_count() or 1)


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(help="Which experiments, or all.", metavar="NAME", show_default=False),
    ],
    scale: Annotated[
        Literal["cpu", "paper"], typer.Option(help="Minutes on two cores, or the paper's own settings.")
    ] = "cpu",
    data: Annotated[
        Path | None,
        typer.Option(help="A folder with data sets.", envvar="ELFLOW_DATA", metavar="FOLDER", show_default=False),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for what is found.", metavar="FOLDER")
    ] = Path("reproduced"),
    seed: Seed = 0,
    effort: Annotated[float, typer.Option(help="How many times as many training steps as the scale has.")] = 1.0,
    processes: Annotated[int, typer.Option(help="How many jobs run side by side.", min=1)] = PROCESSES,
) -> None:
    """Runs the paper's experiments, beside the systems that it compares with.

    \b
    elflow reproduce networks
    elflow reproduce checkerboard eight-gaussians -o toys
    elflow reproduce all --data datasets

    NAME is all, or any of networks, absolute-value, relu-flow, runtime, eight-gaussians, checkerboard, tabular, images,
    parameter-efficiency, sampling, samples. What needs data that are not there is said and left out.

    Tables are printed; a page of all that is found, index.html, is in the folder, and JSON, Markdown and pictures of
    each experiment. After a crash or Ctrl-C, the same command goes on where it was; jobs that failed are tried again.
    """
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output must be a folder, got the file {output}")

    from elflow.reproduce import EXPERIMENTS, Plan, experiment, run

    if wrong := [name for name in names if name not in [EVERY, *EXPERIMENTS]]:
        raise ValueError(f"NAME must be {EVERY} or one of {', '.join(EXPERIMENTS)}, got {wrong[0]!r}")
    chosen = EXPERIMENTS if EVERY in names else names
    plan = Plan(scale=scale, data=data, seed=seed, effort=effort)
    try:
        reports = run(chosen, plan, output, processes, note)
    except (KeyboardInterrupt, SystemExit):  # Lightning makes the one of the other
        note("interrupted; the same command goes on where it was")
        raise typer.Exit(130) from None
    if not reports:
        raise ValueError(f"nothing could be done of {', '.join(chosen)}: the lines above say what is missing")
    for name, report in reports.items():
        _show(experiment(name).title, report)
    print(f"page: {output / 'index.html'}")
    failed = [f"{name}: {line}" for name in reports for line in _failed(output / name)]
    for line in failed:
        note(f"failed: {line}")
    if failed:
        raise typer.Exit(1)


def _failed(folder: Path) -> list[str]:
    """The jobs that failed, each with why."""
    failed: list[str] = json.loads((folder / "result.json").read_text(encoding="utf-8"))["failed"]
    return failed


def _show(title: str, report: Report) -> None:
    from rich.text import Text

    screen = console()
    screen.print(Text(f"\n{title}", style="bold underline"))
    for table in report.tables:
        screen.print(Text(f"\n{_plain(table.title)}", style="bold"))
        screen.print(_drawn(table))
        if table.note:
            screen.print(Text(_plain(table.note), style="dim"))
    if not report.tables:
        screen.print(Text(_plain(report.text)))


def _drawn(table: Table) -> object:
    from rich import box
    from rich.table import Table as Drawn
    from rich.text import Text

    from elflow.reproduce._page import is_ours, is_published, words

    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, wordy in zip(table.columns, words(table.columns, table.rows), strict=True):
        drawn.add_column(Text(_plain(heading)), justify="left" if wordy else "right", overflow="fold")
    for row in table.rows:
        style = "bold" if is_ours(row) else "dim" if is_published(row) else ""
        drawn.add_row(*(Text(_plain(cell)) for cell in row), style=style)
    return drawn


def _plain(markdown: str) -> str:
    """Markdown as text: without the marks of bold and code. Those of emphasis stay, since it may tell figures apart.

    Example:
        >>> _plain("**ELF** has `bound` *0.99*")
        'ELF has bound *0.99*'
    """
    return " ".join(re.sub(r"\*\*|`", "", markdown).split())
