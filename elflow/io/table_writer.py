"""Tables in files: writing in blocks."""

from __future__ import annotations

import io
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import pandas as pd
import pyarrow as pa

from elflow._files import replacing
from elflow.io._compression import compress, find_codec
from elflow.io._open import detect_format
from elflow.io._writers import open_block_writer

__all__ = ["TableWriter"]

PathLike = str | os.PathLike[str]
FORMULA_SIGNS = ("=", "+", "-", "@", "\t", "\r")
"""Characters at the beginning of a cell by which spreadsheets recognise formulas."""
TIME_FORMATS = ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S%z"]
"""Formats of days and of seconds in text. Finer times are formatted by pandas."""


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
            # Local times, since those of the hour in which clocks go back cannot be rounded with their zone.
            values = times[name].dropna().dt.tz_localize(None)
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


def _infer_schema(frame: pd.DataFrame) -> pa.Schema:
    """Arrow's schema for a block. A column without any values in it is text."""
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    fields = [pa.field(f.name, pa.string()) if pa.types.is_null(f.type) else f for f in schema]
    return pa.schema(fields, metadata=schema.metadata)
