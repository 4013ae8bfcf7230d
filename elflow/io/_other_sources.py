"""Files with one table each, in other formats: JSON Lines, Feather and Excel."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.json

from elflow.io._cast import is_text
from elflow.io._compression import open_stream
from elflow.io._sources import INDEX_PREFIX, TypedSource, convert_typed
from elflow.io._types import TIME_TYPES, TypeInference

MAX_JSON_BYTES = 1 << 22
"""Bytes per block of a JSON file; longer lines are read as a whole."""


class JsonSource(TypedSource):
    """A file of JSON Lines: one object per line, with the same names in each. Lines may leave out names.

    Types are those of JSON, the same in the whole file. Strings become times if all of a column are in ISO format.
    """

    def __init__(self, path: Path, na_values: Sequence[str]) -> None:
        super().__init__(path, na_values)
        self._types = {}
        self._inferences: dict[str, TypeInference] = {}
        self.rows = 0
        for lines in self._iter_lines():  # the types of a column are known after its last line
            table = self._parse(lines)
            self.rows += len(table)
            for field in table.schema:
                dtype = pa.string() if pa.types.is_timestamp(field.type) else field.type
                known = self._types.setdefault(field.name, dtype)
                self._types[field.name] = self._merge_types(field.name, known, dtype)
        self._types = {name: pa.float64() if pa.types.is_null(dtype) else dtype for name, dtype in self._types.items()}
        self.names, self.total = list(self._types), self.rows
        if not self.rows:
            raise ValueError(f"{path} has no rows")
        times = [name for name, dtype in self._types.items() if is_text(dtype)]
        for table in self.read_blocks(times) if times else ():
            for name in times:
                inference = self._inferences.setdefault(name, TypeInference(candidates=TIME_TYPES))
                inference.add(convert_typed(name, table.column(name), self.missing))
        self.done = 0

    def _merge_types(self, name: str, first: pa.DataType, second: pa.DataType) -> pa.DataType:
        if first == second or pa.types.is_null(second):
            return first
        if pa.types.is_null(first):
            return second
        if {str(first), str(second)} == {"int64", "double"}:
            return pa.float64()
        raise ValueError(f"{self.path} must have values of one type in column {name!r}, got {first} and {second}")

    def _iter_lines(self) -> Iterator[bytes]:
        stream, file = open_stream(self.path)
        with file, stream:
            rest = b""
            while True:
                try:
                    block = stream.read(MAX_JSON_BYTES)
                except (OSError, EOFError) as error:
                    raise ValueError(f"{self.path} is damaged: {error}") from None
                if not block:
                    break
                self.done = 0 if file.closed else file.tell()
                lines, newline, rest = (rest + block).rpartition(b"\n")
                if newline:
                    yield lines
            if rest.strip():
                yield rest

    def _parse(self, lines: bytes, columns: Sequence[str] | None = None) -> pa.Table:
        if not lines.strip():
            return pa.table({})
        schema = None if columns is None else pa.schema([(name, self._types[name]) for name in columns])
        try:
            return pyarrow.json.read_json(
                io.BytesIO(lines),
                pyarrow.json.ReadOptions(use_threads=False, block_size=max(MAX_JSON_BYTES, len(lines) + 1)),
                pyarrow.json.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "ignore"
                ),
            )
        except pa.ArrowInvalid as error:
            raise ValueError(f"{self.path} cannot be parsed as JSON Lines: {error}") from None

    def read_blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for lines in self._iter_lines():
            if lines.strip():
                yield self._parse(lines, columns).select(list(columns))

    def convert_column(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        values = convert_typed(name, values, self.missing)
        return self._inferences[name].convert(values) if name in self._inferences else values


class ArrowSource(TypedSource):
    """A Feather file, which is an IPC file of Arrow."""

    def __init__(self, path: Path, na_values: Sequence[str]) -> None:
        super().__init__(path, na_values)
        self.rows = 0
        with pa.OSFile(str(path)) as file:
            reader = self._open(file)
            self._types = dict(zip(reader.schema.names, reader.schema.types, strict=True))
            for i in range(reader.num_record_batches):
                self.rows += reader.get_batch(i).num_rows
        self.names = [name for name in self._types if not name.startswith(INDEX_PREFIX)]
        self.total = self.rows
        if not self.rows:
            raise ValueError(f"{path} has no rows")

    def _open(self, file: pa.NativeFile) -> pa.ipc.RecordBatchFileReader:
        try:
            return pa.ipc.open_file(file)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"{self.path} is damaged or not a Feather file of version 2: {error}") from None

    def read_blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        with pa.OSFile(str(self.path)) as file:
            reader = self._open(file)
            try:
                for i in range(reader.num_record_batches):
                    table = pa.Table.from_batches([reader.get_batch(i)])
                    yield table.select(list(columns)).replace_schema_metadata(None)
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(f"{self.path} is damaged: {error}") from None


class ExcelSource(TypedSource):
    """The first sheet of an Excel workbook, with a header in its first row. It is in memory as a whole."""

    def __init__(self, path: Path, na_values: Sequence[str]) -> None:
        super().__init__(path, na_values)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # openpyxl's, about styles and other features without values
                frame = pd.read_excel(path, engine="openpyxl", na_values=list(na_values))
        except ImportError:
            raise ValueError(f"{path} cannot be read without openpyxl: pip install 'elflow[excel]'") from None
        except Exception as error:  # openpyxl raises errors of many kinds for damaged files
            raise ValueError(f"{path} is damaged or not an Excel workbook (.xlsx): {error}") from None
        frame.columns = [str(name).strip() for name in frame.columns]
        frame = frame.dropna(how="all")  # empty rows below the table
        if frame.shape[1] == 0 or not len(frame):
            raise ValueError(f"{path} has {'no columns' if frame.shape[1] == 0 else 'a header but no rows'}")
        self._table = pa.table({name: self._to_arrow(name, frame[name]) for name in frame.columns})
        self._types = dict(zip(self._table.schema.names, self._table.schema.types, strict=True))
        self.names, self.rows, self.total = list(self._types), len(frame), len(frame)

    def _to_arrow(self, name: str, values: pd.Series) -> pa.Array:
        values = values.infer_objects()
        try:
            return pa.Array.from_pandas(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            found = pd.api.types.infer_dtype(values, skipna=True)
            raise ValueError(f"{self.path} must have values of one type in column {name!r}, got {found}") from None

    def read_blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        yield self._table.select(list(columns))
