"""Data of `elflow fit`: small tables in memory, and large ones that are read block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elflow.cli import _options
from elflow.cli._terminal import Mean

if TYPE_CHECKING:
    import pandas as pd

    from elflow import FlowDensity
    from elflow.io import TableStream

MAX_LOADED_BYTES = 2**24
"""Size of all files up to which a table is read into memory."""
MAX_LOADED_MEMORY = 2**28
"""Size of the values in memory up to which it is: a small compressed file may contain a very large table."""
MAX_VALIDATION_ROWS = 10_000
"""Maximum number of validation rows that are scored after training."""


@dataclass
class FitData:
    """The rows to fit, and their contexts: frames, or a stream and the names of its columns of the context."""

    rows: pd.DataFrame | TableStream
    contexts: pd.DataFrame | list[str] | None
    names: list[str]
    """Names of the columns to model."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        from elflow.io import TableStream

        return self.rows.n_rows if isinstance(self.rows, TableStream) else len(self.rows)

    @property
    def stream(self) -> TableStream | None:
        """The stream of a table that is not in memory."""
        from elflow.io import TableStream

        return self.rows if isinstance(self.rows, TableStream) else None

    def digest(self) -> str:
        """Digest of the values, or of names, sizes and times of the files of a stream."""
        from elflow.tabular import digest

        if (stream := self.stream) is not None:
            return digest(stream.stamps, stream.missing, stream.names, self.contexts)
        return digest(self.rows, self.contexts)

    def score_validation_rows(self, est: FlowDensity) -> Mean:
        """Mean log-density of the first validation rows."""
        import numpy as np

        from elflow.tabular import Split

        mean = Mean("nats")
        split = Split(est.n_rows_, est.validation, est.seed_)
        start = 0
        for rows, contexts in self._iter_blocks():
            stop = start + len(rows)
            left = MAX_VALIDATION_ROWS - mean.count - mean.zeros
            indices = np.flatnonzero(split.is_validation(start, stop))[:left]
            if len(indices):
                given = None if contexts is None else contexts.iloc[indices]
                mean.add(est.score_samples(rows.iloc[indices], context=given), indices + start)
            if len(indices) == left:
                break
            start = stop
        return mean

    def _iter_blocks(self) -> Iterator[tuple[pd.DataFrame, pd.DataFrame | None]]:
        """Rows and their contexts."""
        if (stream := self.stream) is None:
            yield self.rows, self.contexts
            return
        for block in stream:
            yield block[self.names], None if self.contexts is None else block[list(self.contexts)]


def _load(data: Path, na: Sequence[str], dropped: Sequence[str]) -> pd.DataFrame | None:
    """The whole table without some columns, or None if it is too large."""
    from elflow.io.tables import TooLargeError, read_table

    try:
        return read_table(data, na, drop=dropped, max_memory=MAX_LOADED_MEMORY)
    except TooLargeError:
        return None


def open_data(
    data: Path, na: Sequence[str] | None, drop: list[str] | None, context: list[str] | None, n_processes: int
) -> FitData:
    """The table of `elflow fit`, without the columns of `--drop`, and with those of `--context` apart."""
    from elflow.io import open_stream

    if str(data) == "-" and n_processes > 1:
        raise ValueError(f"DATA must be a file for several processes, got - (standard input) for {n_processes}")
    with _options.rename_argument("path", "DATA"):
        stream = open_stream(data, na or [])
        columns = stream.names
        dropped = _options.parse_names("--drop", drop, data, columns)
        given = _options.parse_names("--context", context, data, columns)
        if both := [name for name in dropped if name in given]:
            raise ValueError(f"column {both[0]!r} must have either --drop or --context, got both")
        frame = None if stream.n_bytes > MAX_LOADED_BYTES else _load(data, na or [], dropped)
    if frame is not None:
        columns = list(frame.columns)
    names = [name for name in columns if name not in (*dropped, *given)]
    if not names:
        raise ValueError(f"{data} must have a column to model besides those of --drop and --context, got none")
    if frame is None:
        return FitData(stream.select([name for name in columns if name not in dropped]), given or None, names)
    return FitData(frame[names], frame[given] if given else None, names)
