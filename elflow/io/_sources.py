"""Files of either sort, text or Parquet: their columns, and their values in blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elflow.io import _cast, _csv

KINDS = {".csv": "text", ".tsv": "text", ".csv.gz": "text", ".tsv.gz": "text", ".parquet": "parquet", ".pq": "parquet"}
INDEX = "__index_level_"
"""How the columns begin that pandas adds to a Parquet file for its index."""


class Source(ABC):
    """A file that holds a table."""

    text: bool
    names: list[str]
    missing: tuple[str, ...]
    """What stands for a missing value in text."""
    decimal = "."
    rows: int | None = None
    """How many there are, where the file says so."""
    total: int
    """Rows, or bytes where the rows are not known."""
    done = 0
    """How many bytes have been read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The columns, in blocks of any number of rows."""

    @abstractmethod
    def typed(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """All values of a column in the type that is theirs."""

    def checked(self, columns: Sequence[str]) -> list[str]:
        """The columns, if the file has them all."""
        absent = [name for name in columns if name not in self.names]
        if absent:
            raise ValueError(f"{self.path} must have the columns {listed(absent)}, got {listed(self.names)}")
        return list(columns)


class TextSource(Source):
    """Values with something between them."""

    text = True

    def __init__(self, path: Path, na_values: Sequence[str]) -> None:
        super().__init__(path)
        self.dialect = _csv.sniff(path)
        self.names, self.decimal = list(self.dialect.names), self.dialect.decimal
        self.missing = (*_cast.MISSING, *na_values)
        self.total = path.stat().st_size

    def blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        stream, file = _csv.open_bytes(self.path)
        with file, stream:
            for table in _csv.blocks(self.path, self.dialect, columns, stream):
                self.done = self.total if file.closed else file.tell()
                yield table

    def typed(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return _cast.inferred(_cast.trimmed(values, self.missing), self.decimal)


class ParquetSource(Source):
    """Columns that have their types already."""

    text = False

    def __init__(self, path: Path, na_values: Sequence[str]) -> None:
        super().__init__(path)
        with self._open() as file:
            self.names = [name for name in file.schema_arrow.names if not name.startswith(INDEX)]
            self.rows = self.total = file.metadata.num_rows
        if not self.total:
            raise ValueError(f"{path} has no rows")
        self.missing = tuple(na_values)

    def _open(self) -> Any:
        try:
            return pq.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False)  # or all of a row group is read
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{self.path} must be a Parquet file, got a damaged or foreign one: {error}") from None

    def blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        with self._open() as file:
            try:
                for batch in file.iter_batches(65_536, columns=list(columns)):
                    yield pa.Table.from_batches([batch]).select(list(columns)).replace_schema_metadata(None)
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(f"{self.path} is damaged: {error}") from None

    def typed(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        values = _cast.simplified(name, values)
        if self.missing and pa.types.is_dictionary(values.type):
            values = pc.cast(values, values.type.value_type)
        if self.missing and _cast.is_text(values.type):
            absent = pc.is_in(values, pa.array(self.missing, values.type))
            values = pc.if_else(absent, pa.scalar(None, values.type), values)
        return values


def open_source(path: Path, na_values: Sequence[str]) -> Source:
    """The file as a source, once it is known to hold a table."""
    if isinstance(na_values, str):
        raise TypeError(f"na_values must be a sequence of texts, got {na_values!r}")
    if path.is_dir():
        raise IsADirectoryError(f"{path} must be a file, got a folder")
    if not path.exists():
        raise FileNotFoundError(f"{path} must be a file, and there is none")
    kind = check_file_name(path)
    if path.is_file() and not path.stat().st_size:
        raise ValueError(f"{path} is empty: a table must have a line that names its columns, and rows")
    source = TextSource(path, na_values) if kind == "text" else ParquetSource(path, na_values)
    seen: set[str] = set()
    twice = [name for name in source.names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
    if twice:
        raise ValueError(f"{path} must name each column once, got {listed(twice)} several times")
    return source


def check_file_name(path: Path) -> str:
    """Which sort of file the name says it is."""
    for ending, kind in KINDS.items():
        if path.name.lower().endswith(ending):
            return kind
    raise ValueError(f"{path} must be a table that ends in one of {', '.join(KINDS)}")


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names for an error, not too many of them."""
    return ", ".join(map(repr, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")
