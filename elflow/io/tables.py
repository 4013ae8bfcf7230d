"""Tables in files: read whole, read block by block, and written block by block."""

from __future__ import annotations

import gzip
import io
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from elflow._checks import check_count
from elflow._files import replacing
from elflow.io import _cast
from elflow.io._sources import check_file_name, listed, open_source

__all__ = ["TableScan", "TableWriter", "read_table", "scan_table"]

PathLike = str | os.PathLike[str]
TIMES = ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S%z"]
"""How days and seconds are written; what is finer is left to pandas."""


def read_table(path: PathLike, na_values: Sequence[str] = (), columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Reads a table from a file.

    A text file must have a header. What separates its values is found out (a comma, semicolon, tab or bar), and so are
    the types of its columns: integers, other numbers, booleans, ISO dates and times, and text for the rest. Blanks
    around values are skipped. Codes with leading zeros are text. Integers of which some are missing are `Int64`.

    Arguments:
        path: A `.csv`, `.tsv`, `.csv.gz`, `.tsv.gz` or `.parquet` file.
        na_values: What stands for a missing value, besides an empty value, `NA`, `NaN`, `null` and the like.
        columns: The columns to read, in this order; all by default.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "data.csv").write_text("day; size; n\\n2024-05-31; 1,5; 3\\n2024-06-01; 2,25; ?\\n")
        ...     read_table(f"{folder}/data.csv", na_values=["?"])
                 day  size     n
        0 2024-05-31  1.50     3
        1 2024-06-01  2.25  <NA>
    """
    source = open_source(Path(path), na_values)
    names = source.names if columns is None else source.checked(columns)
    tables = list(source.blocks(names))
    if not sum(len(table) for table in tables):
        raise ValueError(f"{path} has a header and no rows")
    whole = pa.concat_tables(tables)
    del tables
    series: dict[str, pd.Series] = {}
    for name in names:  # one after the other, so that the text of a column is gone before that of the next is read
        values = source.typed(name, whole.column(name))
        whole = whole.drop_columns([name])
        if name.startswith("Unnamed: ") and columns is None and values.null_count == len(values):
            continue  # lines that end in a separator
        series[name] = _cast.in_pandas(values)
    return pd.DataFrame(series)


def scan_table(
    path: PathLike,
    like: Sequence[Any],
    batch_rows: int = 65_536,
    na_values: Sequence[str] = (),
    extra: bool = False,
) -> TableScan:
    """Reads a table block by block, with the columns and dtypes that a model knows, in memory that does not grow.

    Arguments:
        path: A file as for `read_table`.
        like: The columns of the model: each has a `name`, a `dtype` and a `kind`.
        batch_rows: How many rows a block has, but for the last.
        na_values: As for `read_table`.
        extra: Whether to keep the columns that the model does not know, after the others. Those of a text file are
            text. Without it they are left out, with a warning.

    Example:
        >>> import tempfile
        >>> from types import SimpleNamespace
        >>> like = [SimpleNamespace(name="b", dtype="float64", kind="continuous")]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "data.csv").write_text("b\\n1\\n2\\n3\\n")
        ...     for block in scan_table(f"{folder}/data.csv", like, batch_rows=2):
        ...         print(block["b"].to_list())
        [1.0, 2.0]
        [3.0]
    """
    return TableScan(path, like, batch_rows, na_values, extra)


class TableScan:
    """A table that is read while it is iterated over. See `scan_table`."""

    rows: int | None
    """How many rows there are, where the file says so."""
    total: int
    """What `done` is in the end: rows, or bytes of the file where the number of rows is not known."""
    done: int
    """How much has been read."""

    def __init__(
        self, path: PathLike, like: Sequence[Any], batch_rows: int, na_values: Sequence[str], extra: bool
    ) -> None:
        self.path, self.like, self.batch_rows = Path(path), list(like), check_count("batch_rows", batch_rows)
        self._source = open_source(self.path, na_values)
        known = [str(column.name) for column in self.like]
        self._source.checked(known)
        others = [name for name in self._source.names if name not in known]
        if others and not extra:
            count = "1 column" if len(others) == 1 else f"{len(others)} columns"
            warnings.warn(f"{path} has {count} that the model does not know: {listed(others)}", stacklevel=3)
        self._extra = others if extra else []
        self.rows, self.total, self.done = self._source.rows, self._source.total, 0

    def __iter__(self) -> Iterator[pd.DataFrame]:
        self.done, row = 0, 0
        for table in _in_batches(self._source.blocks([*(c.name for c in self.like), *self._extra]), self.batch_rows):
            yield self._frame(table, row)
            row += len(table)
            self.done = self._source.done if self.rows is None else row
        if not row:
            raise ValueError(f"{self.path} has a header and no rows")

    def _frame(self, table: pa.Table, row: int) -> pd.DataFrame:
        source = self._source
        series = {
            column.name: _cast.converted(table.column(column.name), column, row, source.missing, source.decimal)
            for column in self.like
        }
        for name in self._extra:
            values = table.column(name)
            if source.text:
                values = _cast.trimmed(values, source.missing)
            series[name] = _cast.in_pandas(values)
        return pd.DataFrame(series)


class TableWriter:
    """Writes a table block by block, to a file that is there whole or not at all.

    Arguments:
        path: A `.csv`, `.tsv`, `.csv.gz`, `.tsv.gz` or `.parquet` file, which is replaced; `-` is the standard output,
            as CSV.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with TableWriter(f"{folder}/new.csv") as writer:
        ...         writer.write(pd.DataFrame({"a": [1, 2]}))
        ...         writer.write(pd.DataFrame({"a": [3]}))
        ...     Path(folder, "new.csv").read_text().split()
        ['a', '1', '2', '3']
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self.rows = 0
        self._text = str(path) == "-" or check_file_name(self.path) == "text"
        self._separator = "\t" if ".tsv" in self.path.suffixes[-2:] else ","
        if self.path.is_dir():
            raise IsADirectoryError(f"{path} must be a file, got a folder")
        if str(path) != "-" and not self.path.parent.is_dir():
            raise FileNotFoundError(f"{path} must be in a folder that exists")
        self._stack = ExitStack()
        self._sink: Any = None
        self._parquet: Any = None
        self._exact: dict[str, int] = {}

    def __enter__(self) -> TableWriter:
        with ExitStack() as stack:
            if str(self.path) == "-":
                self._sink = sys.stdout
                stack.callback(sys.stdout.flush)
            else:
                target = self.path
                if not target.exists() or target.is_file():  # a pipe or a device is written to, not replaced
                    target = stack.enter_context(replacing(target.resolve()))
                raw: Any = stack.enter_context(target.open("wb"))
                if self._text and self.path.suffix == ".gz":
                    raw = stack.enter_context(gzip.GzipFile("", "wb", 6, raw, mtime=0))
                self._sink = (
                    stack.enter_context(io.TextIOWrapper(raw, "utf-8", newline="", write_through=True))
                    if self._text
                    else raw
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self.rows:
            nothing = ValueError(f"{self.path} must have rows, and none was written")
            self._stack.__exit__(ValueError, nothing, None)
            raise nothing
        self._stack.__exit__(kind, error, trace)

    def write(self, frame: pd.DataFrame) -> None:
        """Adds rows. The columns are those of the first block."""
        if self._text:
            self._dated(frame).to_csv(self._sink, sep=self._separator, index=False, header=not self.rows)
        else:
            if self._parquet is None:
                self._parquet = self._stack.enter_context(pq.ParquetWriter(self._sink, _schema(frame)))
            table = pa.Table.from_pandas(frame, schema=self._parquet.schema, preserve_index=False)
            self._parquet.write_table(table)
        self.rows += len(frame)

    def _dated(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Times as text, as exact as any before them: else a block of whole days would look unlike the others."""
        for name in frame.select_dtypes(["datetime", "datetimetz"]):
            values = frame[name].dropna()
            exact = 0 if (values == values.dt.normalize()).all() else 1 if (values == values.dt.floor("s")).all() else 2
            self._exact[name] = exact = max(exact, self._exact.get(name, 0))
            if exact < len(TIMES):
                frame = frame.assign(**{name: frame[name].dt.strftime(TIMES[exact])})
        return frame


def _in_batches(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Tables of so many rows each, but for the last."""
    waiting: list[pa.Table] = []
    count = 0
    for table in tables:
        waiting.append(table)
        count += len(table)
        while count >= rows:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, rows)
            waiting, count = [whole.slice(rows)], count - rows
    if count:
        yield pa.concat_tables(waiting)


def _schema(frame: pd.DataFrame) -> pa.Schema:
    """Arrow's schema. A column whose first values are all missing is text."""
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    fields = [pa.field(f.name, pa.string()) if pa.types.is_null(f.type) else f for f in schema]
    return pa.schema(fields, metadata=schema.metadata)
