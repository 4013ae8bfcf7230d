"""Text tables as they come: what separates their values, where their header is, and their rows, block by block."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

SEPARATORS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a bar"}
SAMPLE = 1 << 20
"""How many bytes are looked at to find out how a file is written."""
BLOCK = 1 << 22
"""How many bytes are read at a time; no row may be longer."""


@dataclass(frozen=True)
class Dialect:
    """How a text table is written."""

    names: tuple[str, ...]
    separator: str
    decimal: str
    blank: int
    """Empty lines before the header."""
    quoted: bool
    """Whether quotes come after blanks, which only Python's own reader understands."""


def sniff(path: Path) -> Dialect:
    """How a file is written, from its beginning."""
    text = _beginning(path)
    lines = text.split("\n")
    blank = next((i for i, line in enumerate(lines) if line.strip()), None)
    if blank is None:
        raise ValueError(f"{path} is empty: a table must have a line that names its columns, and rows")
    rows = {separator: _rows(path, "\n".join(lines[blank:]), separator) for separator in SEPARATORS}

    def fitness(separator: str) -> tuple[bool, int]:
        widths = [len(row) for row in rows[separator]]
        return len(set(widths)) == 1 and widths[0] > 1, widths[0]

    separator = max(SEPARATORS, key=fitness)
    if len(rows[separator][0]) == 1:  # one column, whose values may hold all but one of the separators
        separator = next((s for s in SEPARATORS if s not in text), ",")
    header, body = rows[separator][0], rows[separator][1:]
    if not body:
        raise ValueError(f"{path} has a header and no rows")
    values = [value for row in body for value in row]
    comma = separator != "," and any(map(re.compile(r"[+-]?\d*,\d+").fullmatch, values))
    point = any(map(re.compile(r"[+-]?\d*\.\d+").fullmatch, values))
    quoted = re.search(rf'{re.escape(separator)}[ \t]+"', text) is not None and separator != "\t"
    return Dialect(_names(path, header), separator, "," if comma and not point else ".", blank, quoted)


def open_bytes(path: Path) -> tuple[Any, Any]:
    """A stream of the file's text, and the file itself, whose position says how much has been read."""
    file = pa.OSFile(str(path), "rb")
    return (pa.CompressedInputStream(file, "gzip") if path.suffix == ".gz" else file), file


def blocks(path: Path, dialect: Dialect, columns: Sequence[str], stream: Any) -> Iterator[pa.Table]:
    """The columns as text, as it stands in the file, in blocks of any number of rows."""
    if dialect.quoted:
        yield from _plain_blocks(path, dialect, columns, stream)
        return
    wrong: list[Any] = []

    def remember(row: Any) -> str:
        wrong.append(row)
        return "error"

    rows = 0
    try:
        reader = pyarrow.csv.open_csv(
            stream,
            pyarrow.csv.ReadOptions(
                block_size=BLOCK,
                column_names=list(dialect.names),
                skip_rows=dialect.blank,
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
            rows += len(batch)
    except pa.ArrowInvalid as error:
        if wrong:
            raise _ragged(path, wrong[0].number - 1, wrong[0].actual_columns, len(dialect.names)) from None
        if "UTF8" in str(error):
            raise _undecodable(path, f"after row {rows}") from None
        raise ValueError(f"{path} cannot be read as a table: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _plain_blocks(path: Path, dialect: Dialect, columns: Sequence[str], stream: Any) -> Iterator[pa.Table]:
    text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
    for _ in range(dialect.blank):
        text.readline()
    reader = csv.reader(text, delimiter=dialect.separator, skipinitialspace=True)
    width, places = len(dialect.names), [dialect.names.index(name) for name in columns]
    done = 0
    try:
        next(reader)
        while rows := list(islice((row for row in reader if row), 1 << 14)):
            short = next((i for i, row in enumerate(rows) if len(row) != width), None)
            if short is not None:
                raise _ragged(path, done + short + 1, len(rows[short]), width)
            values = list(zip(*rows, strict=True))
            yield pa.table([pa.array(values[place], pa.string()) for place in places], names=list(columns))
            done += len(rows)
    except UnicodeDecodeError:
        raise _undecodable(path, f"after row {done}") from None
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from None
    except OSError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _beginning(path: Path) -> str:
    """The first lines. The last of them is whole."""
    stream, file = open_bytes(path)
    with file, stream:
        try:
            sample = stream.read(SAMPLE)
        except OSError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
    if sample.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in sample:
        raise _undecodable(path, "in its first lines")
    whole = len(sample) < SAMPLE
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(sample, final=whole)
    except UnicodeDecodeError:
        raise _undecodable(path, "in its first lines") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not whole and "\n" in text:
        text = text[: text.rindex("\n")]
    return text


def _rows(path: Path, text: str, separator: str) -> list[list[str]]:
    """The header and the first rows. The last may be cut short when a quoted value goes over its line."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, skipinitialspace=True)
    try:
        return list(islice((row for row in reader if row), 200))
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from None


def _names(path: Path, header: list[str]) -> tuple[str, ...]:
    names = [name.strip() for name in header]
    if all(map(_is_number, names)) and names not in (
        [str(i) for i in range(len(names))],
        [str(i + 1) for i in range(len(names))],
    ):
        raise ValueError(f"{path} must begin with a line that names its columns, got {','.join(names)[:60]!r}")
    return tuple(name or f"Unnamed: {i}" for i, name in enumerate(names))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _ragged(path: Path, row: int, got: int, expected: int) -> ValueError:
    return ValueError(f"{path} must have {expected} values in each row, as in its header, got {got} in row {row}")


def _undecodable(path: Path, where: str) -> ValueError:
    return ValueError(f"{path} must be text in UTF-8, got other bytes {where}: convert it, with iconv for example")
