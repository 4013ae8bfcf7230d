"""Files with one table each, text or Parquet: column names, and values in blocks."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elflow._checks import join_names
from elflow.io import _cast, csv

INDEX_PREFIX = "__index_level_"
"""Prefix of the columns that pandas adds to a Parquet file for its index."""
BLOCK_ROWS = 65_536
"""Rows per block of a Parquet file."""


class Source(ABC):
    """A file that holds a table."""

    is_text: bool
    """Whether values are text that is still to be parsed."""
    names: list[str]
    """Column names."""
    missing: tuple[str, ...]
    """Texts that stand for a missing value."""
    decimal: str | None = "."
    """The decimal sign of numbers in text; None as long as no number has had one."""
    rows: int | None = None
    """Number of rows, if the file states it."""
    total: int
    """Number of rows, or the size of the file in bytes if the number of rows is unknown."""
    done = 0
    """Number of bytes read so far."""
    row_groups: list[int] | None = None
    """Row groups of a Parquet file to read; None for all."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def n_bytes(self) -> int:
        """Size of all files."""
        return sum(size for _, size, _ in self.list_stamps())

    def list_stamps(self) -> list[tuple[str, int, int]]:
        """Name, size and time of the last change of each file: other content has another stamp."""
        status = self.path.stat()
        return [(str(self.path), status.st_size, status.st_mtime_ns)]

    def list_types(self) -> dict[str, pa.DataType]:
        """Type of each column as the file stores it."""
        return dict.fromkeys(self.names, pa.string())

    @abstractmethod
    def read_blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Read columns in blocks of varying numbers of rows."""

    @abstractmethod
    def convert_column(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Convert all values of a column to the type inferred from them or stored in the file."""

    def settle_decimal(self, columns: Iterable[pa.ChunkedArray]) -> str:
        """The decimal sign of numbers in text, detected in these columns if no number before has had one."""
        if self.is_text and self.decimal is None:
            columns = list(columns)
            found = [sign for sign, pattern in csv.DECIMAL_PATTERNS.items() if _has_match(columns, sign, pattern)]
            self.decimal = found[0] if found else None
        return self.decimal or "."

    def check_columns(self, columns: Sequence[str]) -> list[str]:
        """The columns as a list, once it is certain that the file has all of them."""
        absent = [name for name in columns if name not in self.names]
        if absent:
            raise ValueError(f"{self.path} must have the columns {join_names(absent)}, got {join_names(self.names)}")
        return list(columns)


class TextSource(Source):
    """A text file with separated values."""

    is_text = True

    def __init__(self, path: Path, na_values: Sequence[str]) -> None:
        super().__init__(path)
        self.dialect = csv.sniff(path)
        self.names, self.decimal = list(self.dialect.names), self.dialect.decimal
        self.missing = (*_cast.MISSING, *na_values)
        self.total = path.stat().st_size

    def read_blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        def set_done(position: int) -> None:
            self.done = position

        return csv.read_blocks(self.path, self.dialect, columns, on_read=set_done)

    def convert_column(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        text = _cast.trim_text(values, self.missing)
        result = _cast.infer_type(text, self.decimal or ".")
        if self.dialect.separator != "," and _cast.is_text(result.type) and _cast.holds_decimal_commas(text):
            warnings.warn(
                f"column {name!r} of {self.path} is read as text: its numbers have decimal commas, those of other "
                "columns decimal points",
                stacklevel=2,
            )
        return result


class TypedSource(Source):
    """A file whose columns have types."""

    is_text = False
    _types: dict[str, pa.DataType]

    def __init__(self, path: Path, na_values: Sequence[str]) -> None:
        super().__init__(path)
        self.missing = tuple(na_values)

    def list_types(self) -> dict[str, pa.DataType]:
        return {name: self._types[name] for name in self.names}

    def convert_column(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        return convert_typed(name, values, self.missing)


class ParquetSource(TypedSource):
    """A Parquet file."""

    def __init__(self, path: Path, na_values: Sequence[str]) -> None:
        super().__init__(path, na_values)
        with self._open() as file:
            self._types = dict(zip(file.schema_arrow.names, file.schema_arrow.types, strict=True))
            self.names = [name for name in file.schema_arrow.names if not name.startswith(INDEX_PREFIX)]
            self.rows = self.total = file.metadata.num_rows
        if not self.total:
            raise ValueError(f"{path} has no rows")

    def _open(self) -> Any:
        try:
            # Buffered and without pre-buffering: otherwise whole row groups are held in memory.
            return pq.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{self.path} is damaged or not a Parquet file: {error}") from None

    def read_blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        with self._open() as file:
            try:
                for batch in file.iter_batches(BLOCK_ROWS, row_groups=self.row_groups, columns=list(columns)):
                    yield pa.Table.from_batches([batch]).select(list(columns)).replace_schema_metadata(None)
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(f"{self.path} is damaged: {error}") from None


def convert_typed(name: str, values: pa.ChunkedArray, missing: Sequence[str]) -> pa.ChunkedArray:
    """Values with types, reduced to those that a table may have, and null where they are in `missing`."""
    values = _cast.simplify_type(name, values)
    if missing and pa.types.is_dictionary(values.type):
        values = pc.cast(values, values.type.value_type)
    if missing and _cast.is_text(values.type):
        absent = pc.is_in(values, pa.array(missing, values.type))
        values = pc.if_else(absent, pa.scalar(None, values.type), values)
    return values


def _has_match(columns: Iterable[pa.ChunkedArray], sign: str, pattern: str) -> bool:
    """Whether a value of columns of text matches a regular expression; `sign` is in all that do."""
    return any(
        pc.any(pc.match_substring_regex(values, f"^({pattern})$")).as_py()
        for values in columns
        if pc.any(pc.match_substring(values, sign)).as_py()  # ten times as fast
    )
