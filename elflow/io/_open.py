"""Tables by their names: files of all formats, folders, patterns and standard input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from elflow._checks import join_names
from elflow.io._compression import CODECS, find_codec
from elflow.io._folders import FilesSource, is_pattern, list_files, parse_partitions
from elflow.io._other_sources import ArrowSource, ExcelSource, JsonSource
from elflow.io._sources import ParquetSource, Source, TextSource
from elflow.io._stdin import spool_stdin

FORMATS = {
    **dict.fromkeys([".csv", ".tsv"], "text"),
    **dict.fromkeys([".parquet", ".pq"], "parquet"),
    **dict.fromkeys([".jsonl", ".ndjson"], "json"),
    **dict.fromkeys([".feather", ".arrow"], "arrow"),
    ".xlsx": "excel",
}
"""Format by file name suffix. Text and JSON may be compressed: another suffix follows."""
SOURCES: dict[str, Callable[[Path, Sequence[str]], Source]] = {
    "text": TextSource,
    "parquet": ParquetSource,
    "json": JsonSource,
    "arrow": ArrowSource,
    "excel": ExcelSource,
}
SUPPORTED = f"{', '.join(FORMATS)}, and .csv, .tsv, .jsonl with {', '.join(CODECS)}"
"""The supported formats in words."""


def open_source(path: Path, na_values: Sequence[str]) -> Source:
    """Open a file by the format that its name implies, a folder, a pattern or `-`, and check that it holds a table."""
    if isinstance(na_values, str):
        raise TypeError(f"na_values must be a sequence of strings, got {na_values!r}")
    if str(path) == "-":
        path = spool_stdin()
    if not path.is_dir() and not is_pattern(path):
        return _open_file(path, na_values)
    root, files = list_files(path, is_supported)
    sources = [_open_file(file, na_values) for file in files]
    partitions = [parse_partitions(root, file) for file in files]
    if len(sources) == 1 and not partitions[0]:
        return sources[0]
    return FilesSource(path, sources, partitions)


def list_inputs(path: Path) -> list[Path]:
    """All existing files that a path names: itself, the tables of a folder, or files that match a pattern."""
    try:
        files = list_files(path, is_supported)[1] if path.is_dir() or is_pattern(path) else []
    except FileNotFoundError:  # the reader explains it, unless it reads images
        files = []
    return [path, *files] if path.exists() else files


def _open_file(path: Path, na_values: Sequence[str]) -> Source:
    if not path.exists():
        raise FileNotFoundError(f"path must be an existing file, got {path}")
    format_name = detect_format(path)
    if path.is_file() and not path.stat().st_size:
        raise ValueError(f"{path} is empty: a table must have a header with column names, and rows")
    source = SOURCES[format_name](path, na_values)
    duplicates = [name for name, count in Counter(source.names).items() if count > 1]
    if duplicates:
        raise ValueError(f"{path} must name each column once, got {join_names(duplicates)} several times")
    return source


def detect_format(path: Path) -> str:
    """Name of the format of a file, by its suffixes."""
    format_name = _find_format(path)
    if format_name is None:
        raise ValueError(f"{path} has an unsupported format; supported: {SUPPORTED}")
    return format_name


def is_supported(path: Path) -> bool:
    """Whether a file has a supported format, by its suffixes."""
    return _find_format(path) is not None


def _find_format(path: Path) -> str | None:
    codec = find_codec(path)
    name = path.name.lower() if codec is None else path.stem.lower()
    format_name = next((found for suffix, found in FORMATS.items() if name.endswith(suffix)), None)
    return format_name if codec is None or format_name in ("text", "json") else None
