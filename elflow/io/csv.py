"""Tables in text files: detection of separator, header and decimal sign, and rows read in blocks."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from elflow.io._compression import open_stream

__all__ = ["Dialect", "read_blocks", "sniff"]

SEPARATORS = (",", ";", "\t", "|")
DECIMAL_PATTERNS = {sign: rf"\s*[+-]?\d*{re.escape(sign)}\d+([eE][+-]?\d+)?\s*" for sign in (".", ",")}
"""Regular expressions of numbers with decimals, by the decimal sign."""
N_SNIFFED_BYTES = 1 << 20
N_SNIFFED_ROWS = 200
END = "\x03end of file\x03"
"""Value in all columns of a row after the last one, which no table has."""
MAX_BLOCK_BYTES = 1 << 22
"""Bytes per block of Arrow's reader. A row must fit into one block, or into two if it begins in the first."""
MAX_BLOCK_ROWS = 1 << 14
"""Rows per block of Python's reader."""


@dataclass(frozen=True)
class Dialect:
    """Format of a text table.

    Example:
        >>> Dialect(("a", "b"), ";", ",", n_blank_lines=0, has_padded_quotes=False).separator
        ';'
    """

    names: tuple[str, ...]
    """Column names, from the header."""
    separator: str
    """The character between values."""
    decimal: str | None
    """The decimal sign, a point or a comma; None if no number of the first rows has one."""
    n_blank_lines: int
    """Number of empty lines before the header."""
    has_padded_quotes: bool
    """Whether there is white space before opening quotes. Arrow cannot parse that; Python's reader can."""


def sniff(path: Path) -> Dialect:
    """Detect the format of a text table from its first rows.

    Arguments:
        path: A text file in UTF-8, which may be compressed (`.gz`, `.bz2`, `.zst`, `.lz4`, `.xz`).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "data.csv")
        ...     _ = path.write_text("day; size\\n2024-05-31; 1,5\\n")
        ...     dialect = sniff(path)
        >>> dialect.names, dialect.separator, dialect.decimal
        (('day', 'size'), ';', ',')
    """
    text, is_whole = _read_beginning(path, N_SNIFFED_BYTES)
    if not is_whole and "\n" not in text.strip():  # the header and a part of the first row
        text, is_whole = _read_beginning(path, 2 * MAX_BLOCK_BYTES)
    lines = text.split("\n")
    n_blank = next((i for i, line in enumerate(lines) if line.strip()), None)
    if n_blank is None:
        if not is_whole:
            raise _long_row_error(path, "within its first rows")
        raise ValueError(f"{path} is empty: a table must have a header with column names, and rows")
    rows = {s: _split_rows(path, "\n".join(lines[n_blank:]), s, is_whole) for s in SEPARATORS}

    def rate(separator: str) -> tuple[bool, int]:
        widths = [len(row) for row in rows[separator]]
        return len(set(widths)) == 1 and widths[0] > 1, widths[0]

    separator = max(SEPARATORS, key=rate)
    if len(rows[separator][0]) == 1:  # a single column: its values may contain separators, but not all of them
        separator = next((s for s in SEPARATORS if s not in text), ",")
    header, body = rows[separator][0], rows[separator][1:]
    if not body:
        if not is_whole:
            raise _long_row_error(path, "in row 1")
        raise ValueError(f"{path} has a header but no rows")
    values = [value for row in body for value in row]
    has_comma = separator != "," and any(map(re.compile(DECIMAL_PATTERNS[","]).fullmatch, values))
    has_point = separator == "," or any(map(re.compile(DECIMAL_PATTERNS["."]).fullmatch, values))
    decimal = "." if has_point else "," if has_comma else None
    has_padded_quotes = separator != "\t" and re.search(rf'{re.escape(separator)}[ \t]+"', text) is not None
    return Dialect(_clean_names(path, header), separator, decimal, n_blank, has_padded_quotes)


def read_blocks(
    path: Path, dialect: Dialect, columns: Sequence[str], on_read: Callable[[int], object] = lambda position: None
) -> Iterator[pa.Table]:
    """Read columns as unparsed text, in blocks of varying numbers of rows.

    Arguments:
        path: A text file, as for `sniff`.
        dialect: The format of the file.
        columns: Names of the columns to read, in this order.
        on_read: Called for every block with the number of bytes of the file that have been read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "data.csv")
        ...     _ = path.write_text("a,b\\n1,x\\n2,y\\n")
        ...     [block.to_pydict() for block in read_blocks(path, sniff(path), ["b"])]
        [{'b': ['x', 'y']}]
    """
    read = _read_with_python if dialect.has_padded_quotes else _read_with_arrow
    stream, file = open_stream(path)
    n_rows = 0
    with file, stream:
        ended = _EndedStream(stream, (dialect.separator.join([END] * len(dialect.names))).encode())
        for table in _remove_end(path, read(path, dialect, columns, pa.PythonFile(ended, "r"))):
            _check_text(path, table, n_rows)
            on_read(path.stat().st_size if file.closed else file.tell())  # the readers close it at its end
            yield table
            n_rows += len(table)


class _EndedStream(io.RawIOBase):
    """A stream of bytes, followed by one more line.

    A quotation mark that is not closed swallows all rows after it, and parsers do not mind. It swallows this line, too.
    """

    def __init__(self, stream: IO[bytes], line: bytes) -> None:
        self._stream, self._rest = stream, b"\n" + line + b"\n"

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self._stream.read(len(view))
        if not data:
            data, self._rest = self._rest[: len(view)], self._rest[len(view) :]
        view[: len(data)] = data
        return len(data)


def _remove_end(path: Path, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Remove the last row, that of `_EndedStream`; raise an error if a quotation mark has swallowed it."""
    n_rows, has_end = 0, False
    for table in tables:
        has_end = len(table) > 0 and all(column[-1].as_py() == END for column in table.columns)
        table = table.slice(0, len(table) - has_end)
        n_rows += len(table)
        if len(table):
            yield table
    if not has_end:
        raise ValueError(f"{path} must close every quotation mark, got an open one in row {n_rows}, its last")


def _read_with_arrow(path: Path, dialect: Dialect, columns: Sequence[str], stream: pa.NativeFile) -> Iterator[pa.Table]:
    invalid: list[pyarrow.csv.InvalidRow] = []

    def remember(row: pyarrow.csv.InvalidRow) -> str:
        invalid.append(row)
        return "error"

    n_rows = 0
    try:
        reader = pyarrow.csv.open_csv(
            stream,
            pyarrow.csv.ReadOptions(
                block_size=MAX_BLOCK_BYTES,
                column_names=list(dialect.names),
                skip_rows=dialect.n_blank_lines,
                skip_rows_after_names=1,
            ),
            pyarrow.csv.ParseOptions(
                delimiter=dialect.separator, newlines_in_values=True, invalid_row_handler=remember
            ),
            pyarrow.csv.ConvertOptions(
                check_utf8=False,  # `_check_text` does, and knows the row
                include_columns=list(columns),
                column_types=dict.fromkeys(columns, pa.string()),
                null_values=[],
            ),
        )
        for batch in reader:
            yield pa.Table.from_batches([batch])
            n_rows += len(batch)
    except pa.ArrowInvalid as error:
        if invalid:
            raise _ragged_error(path, invalid[0].number - 1, invalid[0].actual_columns, len(dialect.names)) from None
        if "straddl" in str(error):
            raise _long_row_error(path, f"after row {n_rows}") from None
        raise ValueError(f"{path} cannot be parsed as a table: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _read_with_python(
    path: Path, dialect: Dialect, columns: Sequence[str], stream: pa.NativeFile
) -> Iterator[pa.Table]:
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    for _ in range(dialect.n_blank_lines):
        text.readline()
    reader = csv.reader(text, delimiter=dialect.separator, skipinitialspace=True)
    width, places = len(dialect.names), [dialect.names.index(name) for name in columns]
    n_rows = 0
    try:
        next(reader)
        while rows := _take_rows(reader):
            ragged = next((i for i, row in enumerate(rows) if len(row) != width), None)
            if ragged is not None:
                raise _ragged_error(path, n_rows + ragged + 1, len(rows[ragged]), width)
            values = list(zip(*rows, strict=True))
            yield pa.table([pa.array(values[place], pa.string()) for place in places], names=list(columns))
            n_rows += len(rows)
    except UnicodeDecodeError:
        raise _encoding_error(path, f"after row {n_rows}") from None
    except csv.Error as error:
        if "field limit" in str(error):
            raise _long_row_error(path, f"after row {n_rows}") from None
        raise ValueError(f"{path} cannot be parsed as a table: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _take_rows(reader: Iterator[list[str]]) -> list[list[str]]:
    """The next rows: at most `MAX_BLOCK_ROWS`, and about `MAX_BLOCK_BYTES` characters."""
    rows, size = [], 0
    with _long_fields():
        for row in reader:
            if row:  # not a blank line
                rows.append(row)
                size += sum(map(len, row))
            if len(rows) == MAX_BLOCK_ROWS or size > MAX_BLOCK_BYTES:
                break
    return rows


def _check_text(path: Path, table: pa.Table, n_rows: int) -> None:
    """Raise an error if text is not UTF-8, or has NUL bytes.

    Arguments:
        path: The file.
        table: A block of text.
        n_rows: Number of rows before the block.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        row = n_rows
        for chunk in column.chunks:
            try:
                chunk.validate(full=True)
            except pa.ArrowInvalid as error:
                index = re.search(r"UTF8 sequence at string index (\d+)", str(error))
                where = f"after row {row}" if index is None else f"in row {row + int(index[1]) + 1}"
                raise _encoding_error(path, f"{where}, column {name!r}") from None
            _, offsets, text = chunk.buffers()
            if text is None:  # nothing but empty strings
                continue
            ends = np.frombuffer(offsets, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
            zeros = np.flatnonzero(np.frombuffer(text, np.uint8)[ends[0] : ends[-1]] == 0)
            if len(zeros):
                index = np.searchsorted(ends, ends[0] + zeros[0], side="right")
                raise _encoding_error(path, f"in row {row + index}, column {name!r}", "a NUL byte")
            row += len(chunk)


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let Python's reader accept values as long as a block, which is longer than its limit for the process."""
    limit = csv.field_size_limit(max(csv.field_size_limit(), 2 * MAX_BLOCK_BYTES))
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _read_beginning(path: Path, size: int) -> tuple[str, bool]:
    """The first lines as text, without an incomplete last line, and whether they are the whole file."""
    stream, file = open_stream(path)
    with file, stream:
        try:
            sample = stream.read(size)
        except OSError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise _encoding_error(path, "in its first lines", "UTF-16")
    if b"\0" in sample:
        raise _encoding_error(path, "in its first lines", "NUL bytes")
    is_whole = len(sample) < size
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(sample, final=is_whole)
    except UnicodeDecodeError:
        raise _encoding_error(path, "in its first lines") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not is_whole:
        text = text[: text.rfind("\n") + 1]
    return text, is_whole


def _split_rows(path: Path, text: str, separator: str, is_whole: bool) -> list[list[str]]:
    """The header and the first rows."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    try:
        with _long_fields():
            rows = list(islice((row for row in reader if row), N_SNIFFED_ROWS))
    except csv.Error as error:
        raise ValueError(f"{path} cannot be parsed as a table: {error}") from None
    # The last one is incomplete if a quoted value continues on lines that were not read.
    return rows[:-1] if not is_whole and 2 < len(rows) < N_SNIFFED_ROWS else rows


def _clean_names(path: Path, header: list[str]) -> tuple[str, ...]:
    names = [name.strip() for name in header]
    # Column numbers are a header, as pandas writes them; any other numbers are a row of data.
    if all(map(_is_number, names)) and names not in (
        [str(i) for i in range(len(names))],
        [str(i + 1) for i in range(len(names))],
    ):
        raise ValueError(f"{path} must begin with a header of column names, got {','.join(names)[:60]!r}")
    return tuple(name or f"Unnamed: {i}" for i, name in enumerate(names))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _ragged_error(path: Path, row: int, got: int, expected: int) -> ValueError:
    return ValueError(f"{path} must have {expected} values in each row, as in its header, got {got} in row {row}")


def _long_row_error(path: Path, where: str) -> ValueError:
    return ValueError(
        f"{path} must have at most {MAX_BLOCK_BYTES:,} bytes in a row, got more {where}: a quotation mark may not be "
        "closed"
    )


def _encoding_error(path: Path, where: str, got: str = "invalid bytes") -> ValueError:
    return ValueError(f"{path} must be text in UTF-8, got {got} {where}: convert the file, for example with iconv")
