"""What a user sees: lines, tables and bars. Only results go to the standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

USER_ERRORS = (ValueError, TypeError, OSError, MemoryError, FloatingPointError)
"""What is raised for something that a user can set right."""


def note(text: str) -> None:
    """One line beside the results."""
    print(f"elflow: {_one_line(text)}", file=sys.stderr)


def error_line(error: Exception) -> tuple[str, int]:
    """What to say about an error, and the exit code."""
    text = str(error)
    if hasattr(error, "format_message"):  # typer's: the command line itself is wrong
        text = error.format_message()
    elif isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text:
        text = f"there is not enough memory: {text or 'take fewer rows or columns'}"
    elif isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    elif not isinstance(error, USER_ERRORS):
        text = f"something went wrong that should not, {type(error).__name__}: {text} (--debug shows where)"
        return f"elflow: error: {_one_line(text)}", 1
    text = text.replace("missing='model'", "--missing model")  # as it is said here
    return f"elflow: error: {_one_line(text) or type(error).__name__}", 2


def console(error: bool = False) -> Console:
    """Where tables go. It is made anew each time, because tests replace the streams."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else 120
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def show(rows: list[tuple[str, str]], error: bool = False) -> None:
    """Names and what is to be said about them, one under the other."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(_escaped(name), _escaped(text))
    console(error).print(table)


def show_columns(columns: list[dict[str, Any]]) -> None:
    """A table of columns: each with its `name`, `kind`, `dtype`, `values` and `role`."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    roles = len({column["role"] for column in columns}) > 1
    for heading in ["column", "kind", "dtype", "values", *(["role"] if roles else [])]:
        table.add_column(heading, overflow="fold", ratio=None)
    for column in columns:
        cells = [column["name"], column["kind"], column["dtype"], column["values"]]
        table.add_row(*map(_escaped, [*cells, *([column["role"]] if roles else [])]))
    console().print(table)


def is_terminal() -> bool:
    """Whether anyone would see a progress bar."""
    return sys.stderr.isatty()


@contextmanager
def progress(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on the standard error, if that is a terminal; gives the function that moves it to so many of the total."""
    if not is_terminal():
        yield lambda done: None
        return
    from rich.progress import Progress

    with Progress(console=console(error=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done: bar.update(task, completed=done)


def duration(seconds: float) -> str:
    """Seconds as one says them.

    Example:
        >>> duration(4.25), duration(95), duration(7260)
        ('4.2 s', '1 min 35 s', '2 h 1 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
