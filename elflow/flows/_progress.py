"""A progress bar for what settles bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def settling(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the standard error; gives the function that moves it on by so many."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=total)
        yield lambda count: bar.advance(task, count)
