"""Terminal output: notes, tables, progress bars and means. Only results go to standard output."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from elflow.tabular import Schema

USER_ERRORS = (ValueError, TypeError, OSError, MemoryError, FloatingPointError)
"""Errors that a user can correct; all others are bugs."""


def note(text: str) -> None:
    """Print one line on standard error."""
    print(f"elflow: {_join_lines(text)}", file=sys.stderr)


def format_error(error: Exception) -> tuple[str, int]:
    """The line to print for an error, and the exit code."""
    text = str(error)
    if hasattr(error, "format_message"):  # typer's: the command line itself is wrong
        text = error.format_message()
    elif isinstance(error, MemoryError) or "allocate memory" in text or "out of memory" in text:
        text = f"not enough memory: {text or 'use fewer rows or columns'}"
    elif isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    elif not isinstance(error, USER_ERRORS):
        text = f"internal error; please report it, with the output of --debug: {type(error).__name__}: {text}"
        return f"elflow: error: {_join_lines(text)}", 1
    return f"elflow: error: {_join_lines(text) or type(error).__name__}", 2


def _join_lines(text: str) -> str:
    return " ".join(text.split())


# Tables


def make_console(error: bool = False) -> Console:
    """A console on standard output or standard error; a new one each time, because tests replace the streams."""
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else 120
    return Console(file=stream, width=width, highlight=False, soft_wrap=False)


def show(rows: list[tuple[str, str]], error: bool = False) -> None:
    """Print names and values, one pair per line."""
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(escape(name), escape(text))
    make_console(error).print(table)


def show_columns(columns: list[dict[str, Any]]) -> None:
    """Print a table of columns, as `describe_columns` returns them."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    headings = {"name": "column", "kind": "kind", "dtype": "dtype", "values": "values"}
    if len({column["role"] for column in columns}) > 1:
        headings["role"] = "role"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings.values():
        table.add_column(heading, overflow="fold", ratio=None)
    for column in columns:
        table.add_row(*(escape(column[key]) for key in headings))
    make_console().print(table)


def describe_columns(schema: Schema | None, role: str) -> list[dict[str, Any]]:
    """The columns of a schema in words, each with its `name`, `kind`, `dtype`, `values`, `missing` and `role`."""
    return [] if schema is None else [{**column, "role": role} for column in schema.describe()]


# Progress


def is_terminal() -> bool:
    """Whether standard error is a terminal, which can show a progress bar."""
    return sys.stderr.isatty()


@contextmanager
def show_progress(text: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error, if that is a terminal; yield a function that sets the progress."""
    if not is_terminal():
        yield lambda done: None
        return
    from rich.progress import Progress

    with Progress(console=make_console(error=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda done: bar.update(task, completed=done)


# Numbers


def format_shape(shape: Sequence[int]) -> str:
    """Format the shape of an image.

    Example:
        >>> format_shape((1, 28, 28))
        '1 x 28 x 28'
    """
    return " x ".join(map(str, shape))


def format_mean(mean: float, standard_error: float | None, unit: str) -> str:
    """Format a mean with its standard error and unit.

    Example:
        >>> format_mean(-2.5, 0.25, "nats")
        '-2.5000 +- 0.2500 nats'
    """
    return f"{mean:.4f}" + (f" +- {standard_error:.4f}" if standard_error is not None else "") + f" {unit}"


class Mean:
    """Running mean of scores with its standard error.

    Rows of density zero, whose log-density is minus infinity, are counted apart.

    Example:
        >>> import numpy as np
        >>> mean = Mean("nats")
        >>> mean.add(np.array([-1.0, -2.0]))
        >>> mean.add(np.array([-3.0, -4.0]))
        >>> str(mean)
        '-2.5000 +- 0.6455 nats'
        >>> mean.add(np.array([-2.5, -np.inf]))
        >>> str(mean)
        '-inf nats: 1 of 6 rows has density zero, the first is row 6; mean of the others: -2.5000 +- 0.5000 nats'
    """

    def __init__(self, unit: str) -> None:
        self.unit = unit
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.zeros, self.first_zero = 0, 0

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean, if there are several values."""
        return math.sqrt(self.squares / (self.count - 1) / self.count) if self.count > 1 else None

    def add(self, values: NDArray[np.float64], rows: NDArray[np.int64] | None = None) -> None:
        """Add a block of values, of the rows with these indices; by default the rows after those before."""
        zeros = (values == -math.inf).nonzero()[0]
        if len(zeros) and not self.zeros:
            self.first_zero = 1 + (self.count + int(zeros[0]) if rows is None else int(rows[zeros[0]]))
        self.zeros += len(zeros)
        values = values[values != -math.inf]
        if not len(values):
            return
        mean = float(values.mean())
        self.merge(len(values), mean, float(((values - mean) ** 2).sum()))

    def merge(self, count: int, mean: float, squares: float) -> None:
        """Add `count` values, none of them minus infinity, with this mean and sum of squared differences from it."""
        if not count:
            return
        total, difference = self.count + count, mean - self.mean
        # Chan's update of a sum of squares: a sum of x^2 would lose all digits to a mean far from zero.
        self.squares += squares + difference**2 * self.count * count / total
        self.mean += difference * count / total
        self.count = total

    def __str__(self) -> str:
        mean = format_mean(self.mean, self.standard_error, self.unit)
        if not self.zeros:
            return mean
        have = "has" if self.zeros == 1 else "have"
        return (
            f"-inf {self.unit}: {self.zeros:,} of {self.zeros + self.count:,} rows {have} density zero, the first is "
            f"row {self.first_zero:,}" + (f"; mean of the others: {mean}" if self.count else "")
        )
