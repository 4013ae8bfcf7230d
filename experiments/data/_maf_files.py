"""Files of the MAF archive: arrays of NumPy, and text tables of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elflow._checks import join_names
from elflow.io import csv
from elflow.io.archives import reading

__all__ = ["PARTS", "check_shape", "iter_arrays", "map_array", "read_columns"]

PARTS = ("train", "val", "test")
"""Names of the parts of a data set."""


def map_array(path: Path, width: int) -> np.ndarray:
    """A memory-mapped array `(N, width)`."""
    with reading(path):
        data = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(data, np.ndarray):
            raise ValueError("it holds several arrays")
    check_shape(str(path), data, width)
    return data


def iter_arrays(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """The three arrays of an .npz file, read one at a time."""
    with path.open("rb") as stream:  # NumPy leaves a damaged file open
        with reading(path):
            file = np.load(stream, allow_pickle=False)
            names = getattr(file, "files", [])
            if any(part not in names for part in PARTS):
                raise ValueError(f"it must have the arrays {join_names(PARTS)}, got {join_names(names)}")
        for part in PARTS:
            with reading(path):
                x = file[part]
            yield part, x


def read_columns(path: Path, select: Callable[[pa.Table], pa.Table] = lambda table: table) -> dict[str, np.ndarray]:
    """Columns of a text table in float64, with a function applied to each block of rows."""
    dialect = csv.sniff(path)
    with path.open(encoding="utf-8-sig") as lines:
        header = next(line for line in lines if line.strip())
        extra = next(lines).count(dialect.separator) - header.count(dialect.separator)
    names = list(
        dialect.names[: len(dialect.names) + min(extra, 0)]
    )  # a header may have more or fewer names than there are columns
    dialect = replace(dialect, names=(*names, *(f"Unnamed: {len(names) + i}" for i in range(extra))))
    parts: list[list[np.ndarray]] = []
    for block in csv.read_blocks(path, dialect, names):
        with reading(path):
            table = select(block)
            parts.append([pc.cast(column, pa.float64()).to_numpy() for column in table.columns])
            names = table.column_names
    return {name: np.concatenate([part.pop(0) for part in parts]) for name in names}


def check_shape(name: str, a: Any, width: int) -> None:
    """Check that an array or a data set holds numbers, `(N, width)`."""
    if len(a.shape) != 2 or a.shape[1] != width or a.dtype.kind not in "fiu":
        raise ValueError(f"{name} must hold numbers of shape (N, {width}), got {a.dtype} of shape {a.shape}")
