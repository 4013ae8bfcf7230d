"""Files in pieces: workers read, score, fill or sample and write one piece at a time, in any order, also repeatedly.

Each piece has its own output file, which appears when it is complete. So a piece that is computed again, after a worker
has failed, replaces its file by the same one, and nothing is written twice.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from elflow.batch.imputer import Imputer
from elflow.batch.sampler import Sampler
from elflow.batch.scorer import Scorer
from elflow.io.tables import TableWriter, scan_table
from elflow.tabular import FlowDensity

__all__ = ["PIECE_ROWS", "Piece", "PieceImputer", "PieceSampler", "PieceScorer", "list_pieces", "part_name"]

PIECE_ROWS = 2**18
"""Number of rows of a piece, unless a row group is larger."""
PIECES_PER_WORKER = 4
"""Minimum number of pieces of each worker, if the row groups are small enough: workers end at about the same time."""
BLOCK_ROWS = 2**14
"""Number of rows of a piece that are in memory at a time."""
MAX_BLOCKS = 2**20
"""Maximum number of blocks of a piece, so that the number of a block is unique among all pieces."""


@dataclass(frozen=True)
class Piece:
    """A part of the work of one worker: a part of a file or, without a path, a numbered block of new rows."""

    number: int
    path: str | None = None
    row_groups: tuple[int, ...] | None = None
    """Row groups of a Parquet file; None for the whole file."""

    def to_json(self) -> str:
        """Text for a table of pieces."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Piece:
        """Piece from the output of `to_json`."""
        fields = json.loads(text)
        groups = fields["row_groups"]
        return cls(fields["number"], fields["path"], None if groups is None else tuple(groups))


def list_pieces(paths: Sequence[Path], workers: int = 1, piece_rows: int = PIECE_ROWS) -> list[Piece]:
    """Divide files into pieces: Parquet files by row groups, whereas any other file is one piece.

    Arguments:
        paths: The files.
        workers: Number of workers, each of which should get several pieces.
        piece_rows: Number of rows at which a piece is complete at the latest.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "data.parquet")
        ...     pd.DataFrame({"a": range(25)}).to_parquet(path, row_group_size=10)
        ...     [piece.row_groups for piece in list_pieces([path])]
        [(0,), (1,), (2,)]
    """
    pieces: list[Piece] = []
    parquet = {path: pq.ParquetFile(path).metadata for path in paths if path.suffix.lower() in (".parquet", ".pq")}
    n_rows = sum(metadata.num_rows for metadata in parquet.values())
    piece_rows = min(piece_rows, -(-n_rows // (PIECES_PER_WORKER * workers)))
    for path in paths:
        name = os.fspath(path.resolve())
        if path not in parquet:
            pieces.append(Piece(len(pieces), name))
            continue
        metadata = parquet[path]
        groups, rows = [], 0
        for group in range(metadata.num_row_groups):
            groups.append(group)
            rows += metadata.row_group(group).num_rows
            if rows >= piece_rows or group + 1 == metadata.num_row_groups:
                pieces.append(Piece(len(pieces), name, tuple(groups)))
                groups, rows = [], 0
    return pieces


def part_name(number: int) -> str:
    """Name of the output file of a piece; names sort as the pieces."""
    return f"part-{number:07d}.parquet"


class PieceScorer:
    """Score pieces of files, and write the scores of each to a file of its own.

    Arguments:
        scorer: The scorer of blocks of rows.
        folder: Folder of the output files, which every worker must be able to write.
        na_values: Strings to treat as missing: see `elflow.io.read_table`.
    """

    def __init__(self, scorer: Scorer, folder: str, na_values: Sequence[str] = ()) -> None:
        self.scorer, self.folder, self.na_values = scorer, folder, list(na_values)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Score the pieces in the column `piece`, each as JSON, and return the statistics of their scores."""
        return collect([self.score(Piece.from_json(text)) for text in batch["piece"]])

    def score(self, piece: Piece) -> dict[str, float]:
        """Score a piece: numbers of rows and of rows of density zero, and moments of the others."""
        scores = []
        with TableWriter(Path(self.folder, part_name(piece.number))) as writer:
            for block in iter_blocks(self.scorer.density, piece, self.na_values, self.scorer.append):
                result = self.scorer(block)
                scores.append(result["log_density"].to_numpy())
                writer.write(result)
        values = np.concatenate(scores)
        is_zero = np.isneginf(values)
        finite = values[~is_zero]
        mean = float(finite.mean()) if len(finite) else 0.0
        return {
            "piece": piece.number,
            "rows": len(values),
            "zeros": int(is_zero.sum()),
            "first_zero": int(is_zero.argmax()),
            "mean": mean,
            "squares": float(((finite - mean) ** 2).sum()),
        }


class PieceImputer:
    """Fill the missing cells of pieces of files, and write the rows of each to a file of its own.

    Arguments:
        imputer: The imputer of blocks of rows.
        folder: Folder of the output files, which every worker must be able to write.
        na_values: Strings to treat as missing: see `elflow.io.read_table`.
    """

    def __init__(self, imputer: Imputer, folder: str, na_values: Sequence[str] = ()) -> None:
        self.imputer, self.folder, self.na_values = imputer, folder, list(na_values)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Fill the pieces in the column `piece`, and return their numbers of rows and of filled cells."""
        return collect([self.fill(Piece.from_json(text)) for text in batch["piece"]])

    def fill(self, piece: Piece) -> dict[str, float]:
        """Fill a piece: numbers of rows and of filled cells."""
        density = self.imputer.density
        rows = cells = 0
        with TableWriter(Path(self.folder, part_name(piece.number))) as writer:
            for number, block in enumerate(iter_blocks(density, piece, self.na_values, True, self.imputer.batch_rows)):
                with self.imputer.limit_threads():
                    writer.write(self.imputer.fill(block.reset_index(drop=True), [piece.number, number]))
                rows += len(block)
                cells += int(block[density.schema_.names].isna().to_numpy().sum())
        return {"piece": piece.number, "rows": rows, "cells": cells}


class PieceSampler:
    """Draw numbered blocks of rows, or rows for pieces of a table of contexts, and write each to a file of its own.

    Arguments:
        sampler: The sampler of blocks.
        folder: Folder of the output files, which every worker must be able to write.
    """

    def __init__(self, sampler: Sampler, folder: str) -> None:
        self.sampler, self.folder = sampler, folder

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Draw the rows of the pieces in the column `piece`, and return their number."""
        return collect([self.draw(Piece.from_json(text)) for text in batch["piece"]])

    def draw(self, piece: Piece) -> dict[str, float]:
        """Draw the rows of a block without context, or for the contexts of a piece."""
        with TableWriter(Path(self.folder, part_name(piece.number))) as writer:
            for block in self._iter_inputs(piece):
                writer.write(self.sampler(block))
        return {"piece": piece.number, "rows": writer.rows}

    def _iter_inputs(self, piece: Piece) -> Iterator[pd.DataFrame]:
        if piece.path is None:
            yield pd.DataFrame({"block": [piece.number]})
            return
        size = max(1, BLOCK_ROWS // self.sampler.n)
        for i, block in enumerate(iter_blocks(self.sampler.density, piece, (), False, size, contexts_only=True)):
            yield block.assign(block=piece.number * MAX_BLOCKS + i)


def collect(records: list[dict[str, float]]) -> dict[str, Any]:
    """Records as columns."""
    return {name: np.array([record[name] for record in records]) for name in records[0]}


def iter_blocks(
    density: FlowDensity,
    piece: Piece,
    na_values: Sequence[str],
    extra: bool,
    rows: int = BLOCK_ROWS,
    contexts_only: bool = False,
) -> Iterator[pd.DataFrame]:
    """Rows of a piece in blocks, with the columns of a model."""
    assert piece.path is not None
    context = density.context_schema_
    columns = [*(() if contexts_only else density.schema_.columns), *(() if context is None else context.columns)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of ignored columns: whoever lists the pieces warns once
        scan = scan_table(piece.path, columns, rows, na_values, extra, piece.row_groups)
    yield from scan
