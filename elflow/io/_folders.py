"""Tables in several files: folders, patterns, Hive partitions, and datasets of pyarrow."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from elflow._checks import join_names
from elflow.io._sources import BLOCK_ROWS, Source, TypedSource, convert_typed
from elflow.io._types import TypeInference

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Name of the folder of rows whose value of the partition's column is missing."""


def is_pattern(path: Path) -> bool:
    """Whether a path is a pattern such as `data/*.parquet`, and not the name of an existing file."""
    return glob.has_magic(str(path)) and not path.exists()


def list_files(path: Path, is_supported: Callable[[Path], bool]) -> tuple[Path, list[Path]]:
    """The folder that the names of partitions are relative to, and all files, sorted by name.

    Arguments:
        path: A folder, all of whose files are taken that have a supported format and are not hidden; or a pattern.
        is_supported: Function that tells whether a file has a supported format.
    """
    if path.is_dir():
        root, found = path, [Path(name) for name in glob.glob(f"{glob.escape(str(path))}/**", recursive=True)]
        files = [file for file in found if file.is_file() and not _is_hidden(file.relative_to(root))]
        files = [file for file in files if is_supported(file)]
    else:
        fixed = list(path.parts)
        first = next(i for i, part in enumerate(fixed) if glob.has_magic(part))
        root = Path(*fixed[:first]) if first else Path()
        files = [Path(name) for name in glob.glob(str(path), recursive=True) if os.path.isfile(name)]
    if not files:
        kind = "a folder with tables" if path.is_dir() else "a pattern that matches files"
        raise FileNotFoundError(f"path must be {kind}, got {path}, which has none")
    return root, sorted(files)


def _is_hidden(path: Path) -> bool:
    """Whether a file or one of its folders is not a part of the table, such as `_SUCCESS` and `.crc` files."""
    return any(part.startswith((".", "_")) for part in path.parts)


def parse_partitions(root: Path, file: Path) -> dict[str, str | None]:
    """Names and values of the Hive partitions of a file, from the folders `name=value` between it and the root.

    Example:
        >>> parse_partitions(Path("data"), Path("data/year=2024/place=New%20York/part-0.parquet"))
        {'year': '2024', 'place': 'New York'}
    """
    folders = [part.partition("=") for part in file.relative_to(root).parts[:-1] if "=" in part]
    return {unquote(name): None if value == NULL_PARTITION else unquote(value) for name, _, value in folders}


class FilesSource(Source):
    """Several files of the same format and with the same columns, as one table.

    Arguments:
        path: The folder or pattern, for errors.
        sources: The files.
        partitions: Values of each file's partitions.
    """

    def __init__(self, path: Path, sources: Sequence[Source], partitions: Sequence[Mapping[str, str | None]]) -> None:
        super().__init__(path)
        first = sources[0]
        self.sources, self.is_text, self.missing = list(sources), first.is_text, first.missing
        signs = [source.decimal for source in sources if source.decimal is not None]
        self.decimal = "," if "," in signs else signs[0] if signs else None
        keys = [name for name in partitions[0] if name not in first.names]
        for source, values in zip(sources, partitions, strict=True):
            if source.is_text != self.is_text:
                raise ValueError(f"{path} must have files of one format, got {first.path} and {source.path}")
            if different := set(source.names) ^ set(first.names):
                raise ValueError(
                    f"{path} must have files with the same columns, got {join_names(sorted(different))} only in some: "
                    f"{first.path} and {source.path} differ"
                )
            if [name for name in values if name not in source.names] != keys:
                raise ValueError(f"{path} must have files in the same partitions, got {first.path} and {source.path}")
        self.names = [*first.names, *keys]
        self._partitions = self._convert_partitions(keys, partitions)
        self._types = self._merge_types() | {name: values.type for name, values in self._partitions.items()}
        counts = [source.rows for source in sources]
        self.rows = None if None in counts else sum(count or 0 for count in counts)
        self.total = self.n_bytes if self.rows is None else self.rows

    def _convert_partitions(
        self, keys: Sequence[str], partitions: Sequence[Mapping[str, str | None]]
    ) -> dict[str, pa.ChunkedArray]:
        """Values of each partition, one per file: text in text files, otherwise of the type that all have."""
        result = {}
        for name in keys:
            text = pa.chunked_array([pa.array([values[name] for values in partitions], pa.string())])
            inference = TypeInference()
            inference.add(text)
            result[name] = text if self.is_text else inference.convert(text)
        return result

    def _merge_types(self) -> dict[str, pa.DataType]:
        """Types that the values of all files can be converted to."""
        merged = self.sources[0].list_types()
        for source in self.sources[1:]:
            for name, dtype in source.list_types().items():
                if dtype != merged[name]:
                    merged[name] = self._merge(name, merged[name], dtype, source.path)
        return merged

    def _merge(self, name: str, first: pa.DataType, second: pa.DataType, path: Path) -> pa.DataType:
        plain = [dtype.value_type if pa.types.is_dictionary(dtype) else dtype for dtype in (first, second)]
        schemas = [pa.schema([(name, dtype)]) for dtype in plain]
        try:
            return pa.unify_schemas(schemas, promote_options="permissive").field(name).type
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise ValueError(
                f"{self.path} must have files with the same types, got {first} and {second} for column {name!r}, "
                f"the latter in {path}"
            ) from None

    def list_types(self) -> dict[str, pa.DataType]:
        return dict(self._types)

    def list_stamps(self) -> list[tuple[str, int, int]]:
        return [stamp for source in self.sources for stamp in source.list_stamps()]

    def read_blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        schema = pa.schema([(name, self._types[name]) for name in columns])
        before = 0
        for i, source in enumerate(self.sources):
            # A file without any of the columns still has rows.
            own = [name for name in columns if name in source.names] or source.names[:1]
            for table in source.read_blocks(own):
                arrays = [
                    pa.repeat(self._partitions[name][i], len(table))
                    if name in self._partitions
                    else _cast_to(table.column(name), schema.field(name).type)
                    for name in columns
                ]
                self.done = before + source.done
                yield pa.table(arrays, schema=schema) if arrays else table.select([])
            before += sum(size for _, size, _ in source.list_stamps())
        self.done = before

    def settle_decimal(self, columns: Iterable[pa.ChunkedArray]) -> str:
        decimal = super().settle_decimal(columns)
        for source in self.sources:
            source.decimal = self.decimal
        return decimal

    def convert_column(self, name: str, values: pa.ChunkedArray) -> pa.ChunkedArray:
        if self.is_text or name not in self._partitions:
            return self.sources[0].convert_column(name, values)
        return convert_typed(name, values, self.missing)


def _cast_to(values: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    return values if values.type == dtype else pc.cast(values, dtype)


class DatasetSource(TypedSource):
    """A dataset of pyarrow, of any file system and format."""

    def __init__(self, dataset: ds.Dataset, na_values: Sequence[str] = ()) -> None:
        super().__init__(Path("the dataset"), na_values)
        self.dataset = dataset
        self._types = dict(zip(dataset.schema.names, dataset.schema.types, strict=True))
        self.names = [name for name in self._types if not name.startswith("__index_level_")]
        self.rows = self.total = dataset.count_rows()
        if not self.rows:
            raise ValueError("the dataset has no rows")

    def list_stamps(self) -> list[tuple[str, int, int]]:
        stamps = []
        for fragment in self.dataset.get_fragments():
            name = getattr(fragment, "path", "")
            if not name:  # in memory
                continue
            info = fragment.filesystem.get_file_info(name)
            stamps.append((name, info.size or 0, info.mtime_ns or 0))
        return stamps

    def read_blocks(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        # Without read-ahead: it would hold many row groups in memory, and several files.
        scanner = self.dataset.scanner(
            columns=list(columns),
            batch_size=BLOCK_ROWS,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
            fragment_scan_options=_scan_options(self.dataset),
        )
        try:
            for batch in scanner.to_batches():
                if len(batch):
                    yield pa.Table.from_batches([batch]).replace_schema_metadata(None)
        except (pa.ArrowInvalid, OSError) as error:
            raise ValueError(f"the dataset is damaged: {error}") from None


def _scan_options(dataset: ds.Dataset) -> Any:
    """Options that keep the memory of a scan small, for Parquet files."""
    is_parquet = isinstance(getattr(dataset, "format", None), ds.ParquetFileFormat)
    return ds.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False) if is_parquet else None
