"""Tables in text files: detection of separator, header and decimal sign, and rows read in blocks."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from elflow.io._compression import open_stream

__all__ = ["Dialect", "read_blocks", "sniff"]

SEPARATORS = (",", ";", "\t", "|")
N_SNIFFED_BYTES = 1 << 20
N_SNIFFED_ROWS = 200
MAX_BLOCK_BYTES = 1 << 22
"""Bytes per block of Arrow's reader. A row must fit into one block."""
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
    decimal: str
    """The decimal sign, a point or a comma."""
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
    text = _read_beginning(path)
    lines = text.split("\n")
    n_blank = next((i for i, line in enumerate(lines) if line.strip()), None)
    if n_blank is None:
        raise ValueError(f"{path} is empty: a table must have a header with column names, and rows")
    rows = {separator: _split_rows(path, "\n".join(lines[n_blank:]), separator) for separator in SEPARATORS}

    def rate(separator: str) -> tuple[bool, int]:
        widths = [len(row) for row in rows[separator]]
        return len(set(widths)) == 1 and widths[0] > 1, widths[0]

    separator = max(SEPARATORS, key=rate)
    if len(rows[separator][0]) == 1:  # a single column: its values may contain separators, but not all of them
        separator = next((s for s in SEPARATORS if s not in text), ",")
    header, body = rows[separator][0], rows[separator][1:]
    if not body:
        raise ValueError(f"{path} has a header but no rows")
    values = [value for row in body for value in row]
    has_comma = separator != "," and any(map(re.compile(r"[+-]?\d*,\d+").fullmatch, values))
    has_point = any(map(re.compile(r"[+-]?\d*\.\d+").fullmatch, values))
    decimal = "," if has_comma and not has_point else "."
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
    with file, stream:
        for table in read(path, dialect, columns, stream):
            on_read(path.stat().st_size if file.closed else file.tell())  # the readers close it at its end
            yield table


def _read_with_arrow(path: Path, dialect: Dialect, columns: Sequence[str], stream: Any) -> Iterator[pa.Table]:
    invalid: list[Any] = []

    def remember(row: Any) -> str:
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
                include_columns=list(columns), column_types=dict.fromkeys(columns, pa.string()), null_values=[]
            ),
        )
        for batch in reader:
            yield pa.Table.from_batches([batch])
            n_rows += len(batch)
    except pa.ArrowInvalid as error:
        if invalid:
            raise _ragged_error(path, invalid[0].number - 1, invalid[0].actual_columns, len(dialect.names)) from None
        if "UTF8" in str(error):
            raise _encoding_error(path, f"after row {n_rows}") from None
        raise ValueError(f"{path} cannot be parsed as a table: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _read_with_python(path: Path, dialect: Dialect, columns: Sequence[str], stream: Any) -> Iterator[pa.Table]:
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    for _ in range(dialect.n_blank_lines):
        text.readline()
    reader = csv.reader(text, delimiter=dialect.separator, skipinitialspace=True)
    width, places = len(dialect.names), [dialect.names.index(name) for name in columns]
    n_rows = 0
    try:
        next(reader)
        while rows := list(islice((row for row in reader if row), MAX_BLOCK_ROWS)):
            ragged = next((i for i, row in enumerate(rows) if len(row) != width), None)
            if ragged is not None:
                raise _ragged_error(path, n_rows + ragged + 1, len(rows[ragged]), width)
            values = list(zip(*rows, strict=True))
            yield pa.table([pa.array(values[place], pa.string()) for place in places], names=list(columns))
            n_rows += len(rows)
    except UnicodeDecodeError:
        raise _encoding_error(path, f"after row {n_rows}") from None
    except csv.Error as error:
        raise ValueError(f"{path} cannot be parsed as a table: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _read_beginning(path: Path) -> str:
    """The first lines as text, without an incomplete last line."""
    stream, file = open_stream(path)
    with file, stream:
        try:
            sample = stream.read(N_SNIFFED_BYTES)
        except OSError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in sample:
        raise _encoding_error(path, "in its first lines")
    is_whole = len(sample) < N_SNIFFED_BYTES
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(sample, final=is_whole)
    except UnicodeDecodeError:
        raise _encoding_error(path, "in its first lines") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not is_whole and "\n" in text:
        text = text[: text.rindex("\n")]
    return text


def _split_rows(path: Path, text: str, separator: str) -> list[list[str]]:
    """The header and the first rows. The last one may be incomplete if a quoted value spans several lines."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    try:
        return list(islice((row for row in reader if row), N_SNIFFED_ROWS))
    except csv.Error as error:
        raise ValueError(f"{path} cannot be parsed as a table: {error}") from None


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


def _encoding_error(path: Path, where: str) -> ValueError:
    return ValueError(
        f"{path} must be text in UTF-8, got invalid bytes {where}: convert the file, for example with iconv"
    )
