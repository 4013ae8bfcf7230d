"""Rows of a fit, block by block: all at once from a table in memory, or read from files as often as needed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.progress import Progress

from elflow.io import TableStream, open_stream
from elflow.tabular._arrays import FloatArray
from elflow.tabular.columns._survey import Survey, survey_stream

__all__ = ["Block", "FrameBlocks", "StreamBlocks", "as_stream"]


class Block(NamedTuple):
    """Consecutive rows of a table."""

    frame: pd.DataFrame
    context: pd.DataFrame | None
    weight: FloatArray | None
    """Weights of the rows, of mean 1 over the table."""


@dataclass
class FrameBlocks:
    """A table in memory, as one block."""

    frame: pd.DataFrame
    context: pd.DataFrame | None = None
    weight: FloatArray | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.frame)

    def iter_blocks(self, text: str) -> Iterator[Block]:
        """The rows."""
        yield Block(self.frame, self.context, None if self.weight is None else self.weight / self.weight.mean())


class StreamBlocks:
    """A table that is read from files, with the names of those of its columns that are the context.

    Arguments:
        stream: The table.
        context: Names of the columns of the context.
        verbose: Whether to show progress.
    """

    def __init__(self, stream: TableStream, context: Sequence[str] = (), verbose: bool = False) -> None:
        self.stream, self.verbose = stream, verbose
        self.context_names = [str(name) for name in context]
        if absent := [name for name in self.context_names if name not in stream.names]:
            raise ValueError(f"context must be names of columns of {stream.path}, got {absent}")
        self.names = [name for name in stream.names if name not in self.context_names]
        if not self.names:
            raise ValueError(f"{stream.path} must have a column to model besides the context, got none")

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.stream.n_rows

    def make_key(self, *settings: object) -> str | None:
        """Digest of names, sizes and times of all files, and of settings; None for a dataset in memory."""
        if not self.stream.stamps:
            return None
        parts = [self.stream.stamps, self.stream.missing, self.names, self.context_names, *settings]
        return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()

    def survey(self, declared: Mapping[Any, Any] | None) -> tuple[Survey, Survey | None]:
        """Survey of the columns, and of those of the context."""
        with _show_progress("reading columns", self.verbose) as on_progress:
            survey = survey_stream(self.stream, declared, on_progress)
        # Text files may turn out to have empty columns.
        self.names = [name for name in self.names if name in survey.frame.columns]
        return survey.select(self.names), survey.select(self.context_names) if self.context_names else None

    def iter_blocks(self, text: str) -> Iterator[Block]:
        """The rows; `text` describes the pass over them that is shown."""
        with _show_progress(text, self.verbose) as on_progress:
            for table in self.stream.iter_tables(on_progress):
                frame = self.stream.to_frame(table)
                context = frame[self.context_names] if self.context_names else None
                yield Block(frame[self.names], context, None)


def as_stream(table: object) -> TableStream | None:
    """The stream of a table in files: a stream, a dataset of pyarrow, or a path; None for a table in memory."""
    if isinstance(table, TableStream):
        return table
    if isinstance(table, str | os.PathLike):
        return open_stream(table)
    if type(table).__module__.split(".")[0] == "pyarrow" and hasattr(table, "get_fragments"):
        return open_stream(table)
    return None


@contextmanager
def _show_progress(text: str, verbose: bool) -> Iterator[Callable[[float], object]]:
    """Show a progress bar; yield a function that sets the finished fraction."""
    with Progress(console=Console(stderr=True), transient=True, disable=not verbose) as bar:
        task = bar.add_task(text, total=1.0)
        yield lambda share: bar.update(task, completed=share)
