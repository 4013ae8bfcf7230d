"""Tables in files: reading, and reading in blocks; `table_writer.py` writes them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from elflow._checks import check_count, join_names
from elflow.io import _cast
from elflow.io._cast import ColumnType
from elflow.io._open import list_inputs, open_source
from elflow.io._sources import Source
from elflow.io.table_writer import TableWriter

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
