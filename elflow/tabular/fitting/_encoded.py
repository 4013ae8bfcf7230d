"""Encoded rows of a fit: in memory, or in a memory-mapped file for tables that are read from files."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from elflow._files import replacing
from elflow.flows.dequantization import Cells
from elflow.tabular._flow import encode_context, encode_rows, to_single
from elflow.tabular.fitting._blocks import Block, FrameBlocks, StreamBlocks
from elflow.tabular.fitting._row_hashes import HashCollector, RowHashes, hash_rows
from elflow.tabular.fitting._split import Split
from elflow.tabular.schema import Schema
from elflow.training import Rows

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = ["EncodedTable", "StoredTable", "count_training_rows", "encode_table", "read_encoded", "write_encoded"]

MAGIC = b"ELFROWS1"
"""Last bytes of a file of encoded rows."""
FIELDS = ("exact", "low", "width", "offset")
"""Names of the fields of `Cells` in a file."""


@dataclass
class EncodedTable:
    """All rows of a fit, encoded."""

    training: Rows
    """Training rows, in single precision."""
    validation: Rows
    """Validation rows that are scored, in double precision."""
    reference: Rows
    """Rows that anomalies are compared with, in double precision."""
    hashes: RowHashes


def count_training_rows(blocks: FrameBlocks | StreamBlocks, schema: Schema, split: Split) -> Schema:
    """The same schema with the frequencies of values in the training rows: those of validation rows do not count."""
    if not any(column.has_frequencies for column in schema.columns):
        return schema
    totals: list[Any] = []
    for start, block in _number(blocks.iter_blocks("counting values")):
        is_training = ~split.is_validation(start, start + len(block.frame))
        counts = schema.count(block.frame[is_training])
        totals = [a + b for a, b in zip(totals, counts, strict=True)] if totals else counts
    return schema.with_counts(totals)


def encode_table(
    blocks: FrameBlocks | StreamBlocks, schema: Schema, context_schema: Schema | None, split: Split
) -> EncodedTable:
    """Encode a table in memory."""
    training: list[Rows] = []
    selected = _Selected(split)
    for start, block in _number(blocks.iter_blocks("encoding rows")):
        rows = selected.add(start, block, schema, context_schema)
        training.append(rows)
    return selected.finish(training[0].concatenate(training[1:]))


class _Selected:
    """The encoded rows that stay in memory: validation and reference rows, and the hashes of all rows."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self._hashes = HashCollector(split.count)
        self._validation: list[Rows] = []
        self._reference: list[Rows] = []

    def add(self, start: int, block: Block, schema: Schema, context_schema: Schema | None) -> Rows:
        """Encode a block that begins at a row of the table, and return its training rows in single precision."""
        stop = start + len(block.frame)
        rows = encode_rows(schema, block.frame, encode_context(context_schema, block.context), block.weight)
        is_validation = self.split.is_validation(start, stop)
        self._hashes.add(hash_rows(schema, block.frame), is_validation)
        self._validation.append(rows.take(torch.from_numpy(self.split.is_scored(start, stop))))
        self._reference.append(rows.take(torch.from_numpy(self.split.is_reference(start, stop))))
        return to_single(rows.take(torch.from_numpy(~is_validation)))

    def finish(self, training: Rows) -> EncodedTable:
        """All rows, with the training rows in memory or in a file."""
        validation, reference = (part[0].concatenate(part[1:]) for part in (self._validation, self._reference))
        return EncodedTable(training, validation, reference, self._hashes.finish())


def _number(blocks: Iterator[Block]) -> Iterator[tuple[int, Block]]:
    """Blocks with the position of their first row."""
    start = 0
    for block in blocks:
        yield start, block
        start += len(block.frame)


# Files


def write_encoded(
    path: Path,
    blocks: StreamBlocks,
    schema: Schema,
    context_schema: Schema | None,
    split: Split,
    key: str | None,
    facts: dict[str, Any],
) -> None:
    """Encode a table into a file, which appears when it is complete.

    The file begins with one record per training row, so that a batch reads few pages. The other rows, the hashes, the
    schemas and `facts` follow as a safetensors file, then its length in 8 bytes, and `MAGIC`.

    Arguments:
        path: The file.
        blocks: The table.
        schema: Its columns, with the frequencies of the training rows.
        context_schema: The columns of the context.
        split: The split of its rows.
        key: Identifies table and settings: see `read_encoded`.
        facts: Anything else to store, as JSON.
    """
    selected, digest = _Selected(split), hashlib.sha256()
    with replacing(path) as temporary, temporary.open("wb") as file:
        for start, block in _number(blocks.iter_blocks("encoding rows")):
            rows = selected.add(start, block, schema, context_schema)
            if len(rows):
                rows.check("X")
                _write(file, _pack(rows).data, digest)
        encoded = selected.finish(Rows(torch.zeros(0, 0)))
        tensors = {"hashes": encoded.hashes.to_tensor()}
        for name, part in (("validation", encoded.validation), ("reference", encoded.reference)):
            fields = {**dict(zip(FIELDS, part.x, strict=True)), "context": part.context}
            tensors |= {f"{name}.{key}": tensor.contiguous() for key, tensor in fields.items() if tensor is not None}
        header = {
            "key": key,
            "schema": schema.to_dict(),
            "context_schema": None if context_schema is None else context_schema.to_dict(),
            "hash_limit": encoded.hashes.limit,
            "n_training": split.n_training,
            "digest": digest.hexdigest(),
            "facts": facts,
        }
        footer = save_tensors(tensors, {"header": json.dumps(header)})
        file.write(footer)
        file.write(len(footer).to_bytes(8, "little") + MAGIC)


def _write(file: IO[bytes], data: bytes | memoryview, digest: _Hash) -> None:
    digest.update(data)
    file.write(data)


@dataclass
class StoredTable:
    """A table that was encoded into a file."""

    table: EncodedTable
    schema: Schema
    context_schema: Schema | None
    facts: dict[str, Any]


def read_encoded(path: Path, key: str | None) -> StoredTable | None:
    """Open a file of `write_encoded`; None if there is none, or if it is of another table or of other settings.

    Training rows are mapped into memory: pages are read when a batch needs them, and the operating system drops them
    when memory is short.
    """
    content = _read_footer(path)
    if content is None:
        return None
    header, tensors = content
    if header["key"] != key:
        return None
    schema = Schema.from_dict(header["schema"])
    context_schema = None if header["context_schema"] is None else Schema.from_dict(header["context_schema"])
    validation, reference = (
        Rows(Cells(*(tensors[f"{name}.{field}"] for field in FIELDS)), tensors.get(f"{name}.context"))
        for name in ("validation", "reference")
    )
    n_context = 0 if context_schema is None else context_schema.context_features
    training = MappedRows.open(path, header["n_training"], len(schema.exact), len(schema.cells), n_context)
    training.digest = header["digest"]
    hashes = RowHashes.from_tensor(tensors["hashes"], header["hash_limit"])
    return StoredTable(EncodedTable(training, validation, reference, hashes), schema, context_schema, header["facts"])


def _read_footer(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Header and tensors at the end of a file; None if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(-16, os.SEEK_END)
            end = file.read(16)
            if end[8:] != MAGIC:
                raise ValueError("other last bytes")
            file.seek(-16 - int.from_bytes(end[:8], "little"), os.SEEK_END)
            footer = file.read(int.from_bytes(end[:8], "little"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise ValueError(f"rows_file must be a file of encoded rows, got {path}, which is none: delete it") from None
    length = int.from_bytes(footer[:8], "little")
    header = json.loads(json.loads(footer[8 : 8 + length])["__metadata__"]["header"])
    return header, load_tensors(footer)


class MappedRows(Rows):
    """Training rows in a file, mapped into memory. Their values were checked when they were written."""

    digest = ""

    @classmethod
    def open(cls, path: Path, n_rows: int, n_exact: int, n_cells: int, n_context: int) -> MappedRows:
        """Map the records of a file: see `_pack`."""
        size = _record_size(n_exact, n_cells, n_context)
        # Shared and writable, though nothing is written: a private mapping would count as memory in use, and torch
        # warns about arrays that are not writable.
        records = np.memmap(path, np.uint8, "r+", shape=(n_rows, size))
        if hasattr(mmap, "MADV_RANDOM"):  # no read-ahead, since batches are random: not on Windows
            records._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
        doubles = torch.from_numpy(records).view(torch.float64)
        singles = torch.from_numpy(records).view(torch.float32)[:, 4 * n_cells :]
        exact, offset, context = singles.split([n_exact, 1, singles.shape[1] - n_exact - 1], 1)
        cells = Cells(exact, doubles[:, :n_cells], doubles[:, n_cells : 2 * n_cells], offset[:, 0])
        return cls(cells, context[:, :n_context] if n_context else None)

    def check(self, name: str) -> None:
        """Nothing: all values were checked when they were written."""

    def update_digest(self, digest: _Hash) -> None:
        """Add the digest of all values, which was computed when they were written, to a digest of hashlib."""
        digest.update(self.digest.encode())


def _record_size(n_exact: int, n_cells: int, n_context: int) -> int:
    """Number of bytes of one row: two doubles per cell, and one single-precision number for all others."""
    return 16 * n_cells + 8 * -(-(n_exact + 1 + n_context) // 2)


def _pack(rows: Rows) -> NDArray[np.uint8]:
    """Records of rows, `(N, bytes)`: ends and widths of cells, exact numbers, offset, context, padding."""
    x = rows.x
    singles = [x.exact, x.offset[:, None], *([] if rows.context is None else [rows.context])]
    n_singles = sum(part.shape[1] for part in singles)
    singles.append(torch.zeros(len(rows), n_singles % 2))
    parts = [torch.cat([x.low, x.width], 1).double(), torch.cat(singles, 1).float()]
    arrays = [part.contiguous().numpy() for part in parts]
    return np.concatenate([array.view(np.uint8).reshape(len(rows), -1) for array in arrays], 1)
