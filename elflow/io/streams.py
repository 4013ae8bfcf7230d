"""Tables that are read block by block, as often as needed: files, folders, patterns and datasets of pyarrow."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as pa

from elflow.io import _cast
from elflow.io._folders import DatasetSource
from elflow.io._open import open_source
from elflow.io._sources import Source
from elflow.io._types import TypeInference

if TYPE_CHECKING:
    import pyarrow.dataset as ds

__all__ = ["OnProgress", "TableStream", "open_stream"]

MAX_STREAM_ROWS = 65_536
"""Maximum number of rows of a block."""

OnProgress = Callable[[float], object]
"""Function that is called with the finished fraction of a pass over a table, from 0 to 1."""


def open_stream(
    table: str | os.PathLike[str] | ds.Dataset, na_values: Sequence[str] = (), columns: Sequence[str] | None = None
) -> TableStream:
    """Open a table that may be larger than memory, for `FlowDensity.fit`.

    Arguments:
        table: A file, as for `read_table`; a folder of files, which may be partitioned like those of Hive; a pattern
            such as `data/*.parquet`; `-` for standard input; or a `pyarrow.dataset.Dataset`.
        na_values: As for `read_table`.
        columns: Names of the columns to read, in this order; by default all columns.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for year in (2023, 2024):
        ...         Path(folder, f"year={year}").mkdir()
        ...         pd.DataFrame({"a": [1, 2]}).to_parquet(f"{folder}/year={year}/data.parquet")
        ...     stream = open_stream(folder)
        ...     stream.prepare()
        ...     stream.names, stream.n_rows, [frame["year"].to_list() for frame in stream]
        (['a', 'year'], 4, [[2023, 2023], [2024, 2024]])
    """
    if hasattr(table, "get_fragments"):
        source: Source = DatasetSource(table, na_values)
    else:
        source = open_source(Path(table), na_values)
    return TableStream(source, source.names if columns is None else source.check_columns(columns))


class TableStream:
    """Table that is read block by block: iterable over frames, with the dtypes of `read_table`.

    Integers and booleans have a nullable dtype in those blocks in which some are missing. Files must not change while
    the stream is in use: a pass over changed files raises an error.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "data.csv").write_text("a,b\\n1,x\\n2,y\\n")
        ...     stream = open_stream(f"{folder}/data.csv").select(["a"])
        ...     stream.prepare()
        ...     stream.n_rows, next(iter(stream))["a"].to_list()
        (2, [1, 2])
    """

    def __init__(self, source: Source, names: Sequence[str]) -> None:
        self._source = source
        self.names = list(names)
        self._stamps = source.list_stamps()
        self._types: dict[str, TypeInference] | None = None if source.is_text else {}
        self._n_rows = source.rows

    def __repr__(self) -> str:
        return f"TableStream({self.path}, columns={self.names})"

    @property
    def path(self) -> Path:
        """The file, folder or pattern, for messages."""
        return self._source.path

    @property
    def n_bytes(self) -> int:
        """Size of all files; 0 for a dataset in memory."""
        return sum(size for _, size, _ in self._stamps)

    @property
    def stamps(self) -> list[tuple[str, int, int]]:
        """Name, size in bytes and time of the last change of each file, none for a dataset in memory."""
        return self._stamps

    @property
    def missing(self) -> tuple[str, ...]:
        """Texts that stand for a missing value."""
        return self._source.missing

    @property
    def is_prepared(self) -> bool:
        """Whether types and number of rows are known: see `prepare`."""
        return self._types is not None

    @property
    def n_rows(self) -> int:
        """Number of rows; of text files it is known after `prepare`."""
        if self._n_rows is None:
            raise ValueError(f"the number of rows of {self.path} is not known before prepare()")
        return self._n_rows

    def select(self, columns: Sequence[str]) -> TableStream:
        """The same table with some of its columns, in this order."""
        stream = TableStream(self._source, self._source.check_columns(columns))
        stream._types, stream._n_rows, stream._stamps = self._types, self._n_rows, self._stamps
        return stream

    def prepare(self, on_progress: OnProgress = lambda share: None) -> None:
        """Infer the types of the columns of text files, and count their rows, in one pass over the files.

        Nothing is read if this has been done before, or if the files store both.
        """
        if self._types is not None:
            return
        source = self._source
        types = {name: TypeInference() for name in self.names}
        n_rows = 0
        for table in self._iter_checked(self.names):
            decimal = source.settle_decimal(table.columns)
            for name, inference in types.items():
                inference.decimal = decimal
                inference.add(_cast.trim_text(table.column(name), source.missing))
            n_rows += len(table)
            on_progress(source.done / max(1, source.total))
        if not n_rows:
            raise ValueError(f"{self.path} has a header but no rows")
        self._types, self._n_rows = types, n_rows
        # Every line ends in a separator.
        self.names = [name for name in self.names if not (name.startswith("Unnamed: ") and types[name].is_empty)]

    def iter_tables(self, on_progress: OnProgress = lambda share: None) -> Iterator[pa.Table]:
        """Blocks as tables of Arrow, with values instead of text."""
        self.prepare()
        n_rows = 0
        for block in self._iter_checked(self.names):
            for start in range(0, len(block), MAX_STREAM_ROWS):
                part = block.slice(start, MAX_STREAM_ROWS)
                yield pa.table({name: self._convert(name, part.column(name)) for name in self.names})
                n_rows += len(part)
                on_progress(n_rows / self.n_rows)
        if n_rows != self.n_rows:
            raise ValueError(f"{self.path} must have {self.n_rows:,} rows, as before, got {n_rows:,}")

    def __iter__(self) -> Iterator[pd.DataFrame]:
        for table in self.iter_tables():
            yield self.to_frame(table)

    @staticmethod
    def to_frame(table: pa.Table) -> pd.DataFrame:
        """Convert a block, or several, to pandas."""
        return pd.DataFrame({name: _cast.to_pandas(table.column(name)) for name in table.column_names})

    def _convert(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        source = self._source
        if not source.is_text:
            return source.convert_column(name, values)
        assert self._types is not None
        return self._types[name].convert(_cast.trim_text(values, source.missing))

    def _iter_checked(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Blocks of the files, after a check that they are unchanged, and before another one."""
        self.check_unchanged()
        yield from self._source.read_blocks(columns)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise an error if a file has been changed or deleted since the stream was opened."""
        try:
            now = self._source.list_stamps()
        except FileNotFoundError as error:
            raise ValueError(f"{self.path} must not change while it is read, got no file {error.filename}") from None
        for before, after in zip(self._stamps, now, strict=True):
            if before != after:
                raise ValueError(
                    f"{self.path} must not change while it is read, got a change of {before[0]} from {before[1]:,} to "
                    f"{after[1]:,} bytes"
                )
