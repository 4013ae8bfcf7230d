"""Hashes of rows, by which a fitted density recognises its training and validation rows in any table."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from elflow._checks import check_count
from elflow.tabular._arrays import BoolArray
from elflow.tabular.columns import Column
from elflow.tabular.schema import Schema

__all__ = ["NEW", "TRAINING", "UNKNOWN", "VALIDATION", "HashCollector", "OriginFinder", "RowHashes", "hash_rows"]

NEW, TRAINING, VALIDATION, UNKNOWN = "new", "training", "validation", "unknown"
"""Origins of rows: see `FlowDensity.row_origin`."""

N_HASHES = 2**31
"""Number of different hashes: 31 bits, so that a hash and the kind of its row fit into 32."""
MAX_HASHES = 2**21
"""Number of fitted rows above which only rows with small hashes are stored; at most twice as many are."""
N_ERRORS = 3.0
"""Number of standard errors by which more rows must be recognised than repeat others by chance."""

Codes = NDArray[np.uint32]


@dataclass(frozen=True)
class RowHashes:
    """Hashes of the rows that a density was fitted to, of 4 bytes each.

    Rows are compared by the values of the fitted columns: neither other columns nor the order of columns and rows, the
    dtypes or the library of the table matter. Numbers are compared in single precision.

    Of a very large table only the rows whose hash is below `limit` are stored; those of another table are then
    recognised among the rows with such hashes.

    Example:
        >>> frame = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})
        >>> schema = Schema.fit(frame)
        >>> hashes = RowHashes.fit(schema, frame, np.array([False, False, True]))
        >>> hashes.find_origins(hash_rows(schema, pd.DataFrame({"b": ["z", "x", "x"], "a": [3.0, 1.0, 2.0]}))).tolist()
        ['validation', 'training', 'new']
    """

    codes: Codes
    """For each stored row in the order of the table, twice its hash, plus 1 for a validation row, `(rows,)`."""
    limit: int = N_HASHES
    """Hashes from which on rows are not stored."""

    @classmethod
    def fit(cls, schema: Schema, frame: pd.DataFrame, is_validation: BoolArray) -> RowHashes:
        """Hash the rows of a fitted table, `(N, columns)`, with a mask of its validation rows, `(N,)`."""
        collector = HashCollector(len(frame))
        collector.add(hash_rows(schema, frame), is_validation)
        return collector.finish()

    @property
    def _fitted(self) -> Codes:
        """Hashes of the stored rows, `(rows,)`."""
        return (self.codes >> 1).astype(np.uint32)

    def to_tensor(self) -> Tensor:
        """The hashes as a tensor for a file."""
        return torch.from_numpy(self.codes.view(np.int32))

    @classmethod
    def from_tensor(cls, codes: Tensor, limit: int) -> RowHashes:
        """Build the hashes from the result of `to_tensor` and their limit."""
        if codes.dtype != torch.int32 or codes.ndim != 1:
            raise ValueError(f"hashes of rows must be int32 in one dimension, got {codes.dtype} in {codes.ndim}")
        return cls(codes.numpy().view(np.uint32), check_count("hash_limit", limit))

    def find_origins(self, hashes: Codes) -> NDArray[np.str_]:
        """Origin of rows with these hashes, `(N,)`: new, training, validation, or unknown.

        The second of equal rows is the second of the equal fitted rows, and so on: a table that repeats a fitted row
        more often than the fitted table has new rows. Rows of few discrete columns are often equal by chance. If no
        more rows are recognised than by chance, all rows are new.
        """
        finder = OriginFinder(self)
        origins = finder.find(hashes)
        return origins if finder.is_recognized else np.full(len(hashes), NEW, dtype=origins.dtype)

    @property
    def share_repeated(self) -> float:
        """Share of the fitted rows that are equal to another fitted row."""
        _, inverse, counts = np.unique(self._fitted, return_inverse=True, return_counts=True)
        return float((counts[inverse] > 1).mean()) if len(counts) else 0.0


class OriginFinder:
    """Origins of the rows of a table that is read block by block: the same as those of the whole table.

    Arguments:
        hashes: Hashes of the fitted rows.
    """

    def __init__(self, hashes: RowHashes) -> None:
        self._hashes = hashes
        fitted = (hashes.codes >> 1).astype(np.uint32)
        keys = _number_repeats(fitted)
        order = np.argsort(keys)
        self._keys, self._is_validation = keys[order], hashes.codes[order] % 2 > 0
        self._distinct = np.unique(fitted)
        self._n_used = np.zeros(len(self._distinct), np.uint64)
        self._n_known = self._n_found = self._n_repeated = 0

    def find(self, hashes: Codes) -> NDArray[np.str_]:
        """Origins of the next rows, `(N,)`, which hold if `is_recognized` is true after the last row."""
        origins = np.full(len(hashes), UNKNOWN, dtype="<U10")
        is_known = hashes < self._hashes.limit
        known = hashes[is_known]
        if not len(known) or not len(self._keys):
            origins[is_known] = NEW
            return origins
        places = np.searchsorted(self._distinct, known).clip(max=len(self._distinct) - 1)
        is_repeated = self._distinct[places] == known
        # Rows before this block have used the first of equal fitted rows.
        keys = _number_repeats(known) + np.where(is_repeated, self._n_used[places], np.uint64(0))
        np.add.at(self._n_used, places[is_repeated], np.uint64(1))
        rows = np.searchsorted(self._keys, keys).clip(max=len(self._keys) - 1)
        is_found = self._keys[rows] == keys
        self._n_known += len(known)
        self._n_found += int(is_found.sum())
        self._n_repeated += int(is_repeated.sum())
        origins[is_known] = np.where(is_found, np.where(self._is_validation[rows], VALIDATION, TRAINING), NEW)
        return origins

    @property
    def is_recognized(self) -> bool:
        """Whether more of the rows so far repeat a fitted row than fitted rows repeat each other by chance."""
        n_known, n_fitted = self._n_known, len(self._keys)
        if not n_known or not n_fitted:
            return False
        if self._n_found in (n_known, n_fitted):  # one table is a part of the other
            return True
        chance = min(1.0, self._hashes.share_repeated + n_fitted / self._hashes.limit)
        error = np.sqrt(chance * (1 - chance) * (1 / n_fitted + 1 / n_known))
        return bool(self._n_repeated / n_known > chance + N_ERRORS * error)


class HashCollector:
    """Hashes of the rows of a table that is read block by block.

    Arguments:
        n_rows: Number of rows of the table.
    """

    def __init__(self, n_rows: int) -> None:
        self.limit = N_HASHES if n_rows <= MAX_HASHES else N_HASHES * MAX_HASHES // n_rows
        self._blocks: list[Codes] = []
        self._size = 0

    def add(self, hashes: Codes, is_validation: BoolArray) -> None:
        """Add the hashes of a block of rows, `(N,)`, with a mask of its validation rows, `(N,)`."""
        is_stored = hashes < self.limit
        self._blocks.append(2 * hashes[is_stored] + is_validation[is_stored].astype(np.uint32))
        self._size += len(self._blocks[-1])
        while self._size > 2 * MAX_HASHES:  # a frequent row has one of the small hashes
            self.limit //= 2
            self._blocks = [codes[codes >> 1 < self.limit] for codes in self._blocks]
            self._size = sum(map(len, self._blocks))

    def finish(self) -> RowHashes:
        """The hashes of all rows that were added."""
        return RowHashes(np.concatenate(self._blocks), self.limit)


def hash_rows(schema: Schema, frame: pd.DataFrame) -> Codes:
    """Hash the values of the columns of a schema, `(N,)`, each below `N_HASHES`.

    Example:
        >>> frame = pd.DataFrame({"a": [1, 2], "b": ["x", "y"]})
        >>> other = pd.DataFrame({"b": pd.Categorical(["x", "y"]), "c": 0, "a": [1.0, 2.0]})
        >>> schema = Schema.fit(frame)
        >>> bool((hash_rows(schema, frame) == hash_rows(schema, other)).all())
        True
    """
    frame = schema.align(frame)
    values = pd.DataFrame({str(i): _normalize(column, frame[column.name]) for i, column in enumerate(schema.columns)})
    return (pd.util.hash_pandas_object(values, index=False).to_numpy() >> 33).astype(np.uint32)


def _normalize(column: Column, values: pd.Series) -> NDArray[np.generic]:
    """Values that do not depend on the dtype of the column: text, seconds, or numbers in single precision."""
    if column.kind == "datetime":
        times = pd.to_datetime(values, utc=True, errors="coerce").dt.tz_localize(None)
        return times.to_numpy().astype("datetime64[us]").astype(np.int64)
    if column.levels is not None and not all(isinstance(level, Real | np.bool_) for level in column.levels):
        codes, distinct = pd.factorize(values.astype(object))  # the text of each distinct value is made once
        return np.array([*map(str, distinct), ""], dtype=object)[codes]
    numbers = pd.to_numeric(values.astype(object), errors="coerce") if values.dtype == "category" else values
    numbers = pd.to_numeric(numbers, errors="coerce")
    with np.errstate(over="ignore"):  # numbers above 3e38 become infinite, which does no harm here
        x = numbers.astype("Float64").to_numpy(np.float64, na_value=np.nan).astype(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), x + np.float32(0))  # one NaN, and no negative zero


def _number_repeats(hashes: Codes) -> NDArray[np.uint64]:
    """Unique numbers of rows: the hash, and how many rows before have the same."""
    order = np.argsort(hashes, kind="stable")
    _, starts, counts = np.unique(hashes[order], return_index=True, return_counts=True)
    repeats = np.empty(len(hashes), np.uint64)
    repeats[order] = np.arange(len(hashes)) - np.repeat(starts, counts)
    return (hashes.astype(np.uint64) << np.uint64(32)) | repeats
