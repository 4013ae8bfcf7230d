"""Writers of tables of Arrow into files of typed formats, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

MAX_EXCEL_ROWS = 2**20 - 1
"""Maximum number of rows of a sheet, without its header."""


class BlockWriter(Protocol):
    """Anything that takes tables one after the other."""

    def write_table(self, table: pa.Table) -> None: ...


@contextmanager
def open_block_writer(format_name: str, sink: IO[bytes], schema: pa.Schema) -> Iterator[BlockWriter]:
    """Writer of tables of one schema to a file; the file is complete when the block ends.

    Arguments:
        format_name: `"parquet"`, `"arrow"` or `"excel"`.
        sink: The file.
        schema: Names and types of the columns.
    """
    if format_name == "parquet":
        with pq.ParquetWriter(sink, schema) as parquet:
            yield parquet
    elif format_name == "arrow":
        # Feather files of version 2 are IPC files.
        with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as arrow:
            yield arrow
    else:
        excel = _ExcelWriter(schema)
        yield excel
        excel.save(sink)


class _ExcelWriter:
    """Writer of one sheet."""

    def __init__(self, schema: pa.Schema) -> None:
        try:
            from openpyxl import Workbook
        except ImportError:
            raise ValueError(".xlsx files cannot be written without openpyxl: pip install 'elflow[excel]'") from None
        self._book: Any = Workbook(write_only=True)
        self._sheet = self._book.create_sheet("table")
        self._sheet.append(schema.names)
        self._rows = 0

    def write_table(self, table: pa.Table) -> None:
        self._rows += len(table)
        if self._rows > MAX_EXCEL_ROWS:
            raise ValueError(f"an Excel sheet must have at most {MAX_EXCEL_ROWS:,} rows, got more: write .parquet")
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
            self._sheet.append([_strip_zone(value) for value in row])

    def save(self, sink: IO[bytes]) -> None:
        self._book.save(sink)


def _strip_zone(value: Any) -> Any:
    """The same value; Excel has no time zones, so that times become text with their offset from UTC."""
    return value.isoformat() if getattr(value, "tzinfo", None) is not None else value
