"""Tables in files: reading, reading in blocks, and writing in blocks."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from elflow._checks import check_count, join_names
from elflow._files import replacing
from elflow.io import _cast
from elflow.io._cast import ColumnType
from elflow.io._compression import compress, find_codec
from elflow.io._open import detect_format, list_inputs, open_source
from elflow.io._sources import Source
from elflow.io._writers import open_block_writer

__all__ = [
    "ColumnType",
    "TableScan",
    "TableWriter",
    "TooLargeError",
    "list_inputs",
    "read_names",
    "read_table",
    "scan_table",
]

PathLike = str | os.PathLike[str]
Block = TypeVar("Block", pa.Table, pd.DataFrame)
MEMORY_SHARE = 4
"""A table is read if its values need at most one part in this number of the memory: the conversion needs as much again,
and so does the training."""
DEFAULT_MEMORY = 8 << 30
"""Size of the memory where the operating system does not tell it."""
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container."""
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""Characters at the beginning of a cell by which spreadsheets recognise formulas."""
TIME_FORMATS = ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S%z"]
"""Formats of days and of seconds in text. Finer times are formatted by pandas."""


class TooLargeError(ValueError):
    """Error of a table that needs more memory than is allowed."""


def read_table(
    path: PathLike,
    na_values: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    max_memory: int | None = None,
) -> pd.DataFrame:
    """Read a table from a file, or from several files.

    A text file must have a header. Its separator is detected (comma, semicolon, tab or vertical bar), and so are the
    types of its columns: integers, floats, booleans, ISO dates and times, and otherwise text. White space around values
    is ignored. Codes with leading zeros are text. Integers with missing values have the dtype `Int64`.

    Arguments:
        path: A file: `.csv`, `.tsv` or `.jsonl`, which may be compressed (`.gz`, `.bz2`, `.zst`, `.lz4`, `.xz`),
            `.parquet`, `.feather` or, with openpyxl, `.xlsx`; a folder or a pattern such as `data/*.parquet` of files
            with the same columns, where folders `name=value` are columns as well; or `-` for standard input.
        na_values: Strings to treat as missing, besides the empty string, `NA`, `NaN`, `null`, etc.
        columns: Names of the columns to read, in this order; by default all columns.
        drop: Names of columns not to read.
        max_memory: Maximum number of bytes of the values before their conversion to numbers; by default a quarter of
            the memory of the machine. A small compressed file may contain a very large table.

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
    dropped = source.check_columns(drop)
    names = source.names if columns is None else source.check_columns(columns)
    names = [name for name in names if name not in dropped]
    whole = _read_whole(source, names, max_memory)
    if not len(whole):
        raise ValueError(f"{path} has a header but no rows")
    source.settle_decimal(whole.columns)
    series: dict[str, pd.Series] = {}
    for name in names:  # one at a time, so that the text of each column is freed before the next is converted
        values = source.convert_column(name, whole.column(name))
        whole = whole.drop_columns([name])
        if name.startswith("Unnamed: ") and columns is None and values.null_count == len(values):
            continue  # every line ends in a separator
        series[name] = _cast.to_pandas(values)
    return pd.DataFrame(series)


def read_names(path: PathLike) -> list[str]:
    """Read the column names of a table in a file, as for `read_table`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "data.csv").write_text("day; size\\n2024-05-31; 1,5\\n")
        ...     read_names(f"{folder}/data.csv")
        ['day', 'size']
    """
    return list(open_source(Path(path), ()).names)


def _read_whole(source: Source, names: Sequence[str], max_memory: int | None) -> pa.Table:
    """All rows of a file, unless they need more memory than is allowed."""
    tables = list(_limit_memory(source.path, source.read_blocks(names), lambda table: table.nbytes, max_memory))
    return pa.concat_tables(tables) if tables else pa.table({})


def _limit_memory(
    path: Path, blocks: Iterable[Block], measure: Callable[[Block], int], max_memory: int | None
) -> Iterator[Block]:
    """The blocks of a table, until their sizes add up to more memory than is allowed: this raises an error."""
    limit = memory_size() // MEMORY_SHARE if max_memory is None else check_count("max_memory", max_memory)
    size, n_rows = 0, 0
    for block in blocks:
        size, n_rows = size + measure(block), n_rows + len(block)
        if size > limit:
            raise TooLargeError(
                f"max_memory must be at least the size of the values of {path}, got {limit:,} bytes, which its first "
                f"{n_rows:,} rows exceed: raise it, or read fewer columns"
            )
        yield block


def memory_size() -> int:
    """Memory of the machine or of the container in bytes.

    Example:
        >>> memory_size() > 2**20
        True
    """
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return DEFAULT_MEMORY
    for path in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no container, or "max"
            size = min(size, int(Path(path).read_text()))
    return size


def scan_table(
    path: PathLike,
    like: Sequence[ColumnType],
    batch_rows: int = 65_536,
    na_values: Sequence[str] = (),
    extra: bool = False,
    row_groups: Sequence[int] | None = None,
) -> TableScan:
    """Read a table in blocks, with the columns and dtypes of a model, in a bounded amount of memory.

    Arguments:
        path: A file, as for `read_table`.
        like: The columns of the model. Each has a `name`, a `dtype` and a `kind`.
        batch_rows: Number of rows per block; the last block may be shorter.
        na_values: As for `read_table`.
        extra: Whether to keep columns that the model does not have, after the others. Those of a text file are read as
            text. By default they are dropped, with a warning.
        row_groups: Row groups of a Parquet file to read; by default all of them.

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
    scan = TableScan(path, like, batch_rows, na_values, extra)
    if row_groups is not None:
        scan.select_row_groups(row_groups)
    return scan


class TableScan:
    """Iterable over the blocks of a table, made by `scan_table`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pd.DataFrame({"a": [1, 2, 3]}).to_parquet(f"{folder}/data.parquet")
        ...     scan = scan_table(f"{folder}/data.parquet", like=[], extra=True)
        ...     scan.rows, [len(block) for block in scan], scan.done
        (3, [3], 3)
    """

    rows: int | None
    """Number of rows, if the file states it."""
    total: int
    """Final value of `done`: the number of rows, or the size of the file in bytes if that number is unknown."""
    done: int
    """Progress: the number of rows or bytes read so far."""

    def __init__(
        self, path: PathLike, like: Sequence[ColumnType], batch_rows: int, na_values: Sequence[str], extra: bool
    ) -> None:
        self.path, self.like, self.batch_rows = Path(path), list(like), check_count("batch_rows", batch_rows)
        self._source = open_source(self.path, na_values)
        known = [str(column.name) for column in self.like]
        self._source.check_columns(known)
        others = [name for name in self._source.names if name not in known]
        if others and not extra:
            count, verb = ("1 column", "that is") if len(others) == 1 else (f"{len(others)} columns", "that are")
            warnings.warn(f"ignoring {count} of {path} {verb} not in the model: {join_names(others)}", stacklevel=3)
        self._extra = others if extra else []
        self.rows, self.total, self.done = self._source.rows, self._source.total, 0

    def select_row_groups(self, row_groups: Sequence[int]) -> None:
        """Read these row groups of a Parquet file only."""
        metadata = pq.ParquetFile(self.path).metadata
        self._source.row_groups = list(row_groups)
        self.rows = self.total = sum(metadata.row_group(group).num_rows for group in row_groups)

    def __iter__(self) -> Iterator[pd.DataFrame]:
        self.done, row = 0, 0
        for table in _rebatch(self._source.read_blocks([*(c.name for c in self.like), *self._extra]), self.batch_rows):
            yield self._to_frame(table, row)
            row += len(table)
            self.done = self._source.done if self.rows is None else row
        if not row:
            raise ValueError(f"{self.path} has a header but no rows")

    def read(self, max_memory: int | None = None) -> pd.DataFrame:
        """Read all blocks into one table, of at most `max_memory` bytes as for `read_table`.

        Example:
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     pd.DataFrame({"a": [1, 2, 3]}).to_parquet(f"{folder}/data.parquet")
            ...     len(scan_table(f"{folder}/data.parquet", like=[], extra=True).read())
            3
        """
        blocks = _limit_memory(self.path, self, lambda block: int(block.memory_usage(deep=True).sum()), max_memory)
        return pd.concat(blocks, ignore_index=True)

    def _to_frame(self, table: pa.Table, row: int) -> pd.DataFrame:
        source = self._source
        decimal = source.settle_decimal(table.select([column.name for column in self.like]).columns)
        series = {
            column.name: _cast.convert_column(table.column(column.name), column, row, source.missing, decimal)
            for column in self.like
        }
        for name in self._extra:
            values = table.column(name)
            if source.is_text:
                values = _cast.trim_text(values, source.missing)
            series[name] = _cast.to_pandas(values)
        return pd.DataFrame(series)


class TableWriter:
    """Writer of a table in blocks. The file appears only when it is complete.

    Arguments:
        path: A file, which is overwritten, in a format of `read_table` by its suffix; `-` writes CSV to the standard
            output.
        csv_safe: Whether to put an apostrophe before text that a spreadsheet would run as a formula, in values and in
            column names: text that begins with `=`, `+`, `-`, `@`, a tab or a carriage return. For text files only.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with TableWriter(f"{folder}/new.csv") as writer:
        ...         writer.write(pd.DataFrame({"a": [1, 2]}))
        ...         writer.write(pd.DataFrame({"a": [3]}))
        ...     Path(folder, "new.csv").read_text().split()
        ['a', '1', '2', '3']
    """

    def __init__(self, path: PathLike, csv_safe: bool = False) -> None:
        self.path, self.csv_safe = Path(path), csv_safe
        self.rows = 0
        self._format = "text" if str(path) == "-" else detect_format(self.path)
        self._is_text = self._format == "text"
        if csv_safe and not self._is_text:
            raise ValueError(f"csv_safe must be False unless a text file is written, got True for {path}")
        self._separator = "\t" if ".tsv" in self.path.suffixes[-2:] else ","
        if self.path.is_dir():
            raise IsADirectoryError(f"path must be a file, got the folder {path}")
        if str(path) != "-" and not self.path.parent.is_dir():
            raise FileNotFoundError(f"path must be in an existing folder, got {path}")
        self._stack = ExitStack()
        self._sink: Any = None
        self._blocks: Any = None
        self._arrow_schema: pa.Schema | None = None
        self._resolution: dict[str, int] = {}
        """By column: 0 if all times so far are whole days, 1 if they are whole seconds, else 2."""

    def __enter__(self) -> TableWriter:
        with ExitStack() as stack:
            if str(self.path) == "-":
                self._sink = sys.stdout
                stack.callback(sys.stdout.flush)
            else:
                target = self.path
                if not target.exists() or target.is_file():  # pipes and devices are written to, not replaced
                    target = stack.enter_context(replacing(target.resolve()))
                raw: Any = stack.enter_context(target.open("wb"))
                if codec := find_codec(self.path):
                    raw = stack.enter_context(compress(raw, codec))
                self._sink = (
                    stack.enter_context(io.TextIOWrapper(raw, "utf-8", newline="", write_through=True))
                    if self._format in ("text", "json")
                    else raw
                )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self.rows:
            empty = ValueError(f"{self.path} must have rows, but none were written")
            self._stack.__exit__(ValueError, empty, None)
            raise empty
        self._stack.__exit__(kind, error, trace)

    def write(self, frame: pd.DataFrame) -> None:
        """Append rows, which must have the columns of the first block."""
        if self._is_text:
            text = self._format_times(frame)
            text = _disarm_formulas(text) if self.csv_safe else text
            text.to_csv(self._sink, sep=self._separator, index=False, header=not self.rows)
        elif self._format == "json":
            self._format_times(frame).to_json(self._sink, orient="records", lines=True, date_format="iso")
        else:
            if self._arrow_schema is None:
                self._arrow_schema = _infer_schema(frame)
                writer = open_block_writer(self._format, self._sink, self._arrow_schema)
                self._blocks = self._stack.enter_context(writer)
            self._blocks.write_table(pa.Table.from_pandas(frame, schema=self._arrow_schema, preserve_index=False))
        self.rows += len(frame)

    def _format_times(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Format times as text. The resolution never decreases, lest a block of whole days differ from the others."""
        times = frame.select_dtypes(["datetime", "datetimetz"])
        frame = frame.copy(deep=False)
        for name in times:
            values = times[name].dropna()
            is_days, is_seconds = (values == values.dt.normalize()).all(), (values == values.dt.floor("s")).all()
            resolution = max(0 if is_days else 1 if is_seconds else 2, self._resolution.get(name, 0))
            self._resolution[name] = resolution
            if resolution < len(TIME_FORMATS):
                frame[name] = times[name].dt.strftime(TIME_FORMATS[resolution])
        return frame


def _disarm_formulas(frame: pd.DataFrame) -> pd.DataFrame:
    """Put an apostrophe before all text that a spreadsheet would run as a formula.

    Example:
        >>> _disarm_formulas(pd.DataFrame({"=a": ["=1+1", "x", "-2"], "n": [-1, 2, 3]})).to_csv(index=False).split()
        ["'=a,n", "'=1+1,-1", 'x,2', "'-2,3"]
    """

    def disarm(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA_SIGNS) else value

    def holds_text(dtype: Any) -> bool:
        return isinstance(dtype, pd.CategoricalDtype) or pd.api.types.is_string_dtype(dtype)

    series = [values.astype(object).map(disarm) if holds_text(values.dtype) else values for _, values in frame.items()]
    return pd.concat(series, axis=1).set_axis([disarm(str(name)) for name in frame.columns], axis=1)


def _rebatch(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Regroup tables so that each has `rows` rows; the last may have fewer."""
    pending: list[pa.Table] = []
    count = 0
    for table in tables:
        pending.append(table)
        count += len(table)
        while count >= rows:
            whole = pa.concat_tables(pending)
            yield whole.slice(0, rows)
            pending, count = [whole.slice(rows)], count - rows
    if count:
        yield pa.concat_tables(pending)


def _infer_schema(frame: pd.DataFrame) -> pa.Schema:
    """Arrow's schema for a block. A column without any values in it is text."""
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    fields = [pa.field(f.name, pa.string()) if pa.types.is_null(f.type) else f for f in schema]
    return pa.schema(fields, metadata=schema.metadata)
