"""Base class of functions for workers: a model file that is read on first use, and batches of any library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from elflow._checks import check_count
from elflow.serialization import find_density, load
from elflow.tabular import FlowDensity, as_frame
from elflow.tabular.frames import from_frame, table_kind
from elflow.training import choose_device

__all__ = ["Worker"]


class Worker:
    """Function of batches that reads its model on the first call, so that only the path of the model is sent.

    Arguments:
        path: Model file, which every worker must be able to read.
        device: Device of the model: `"cpu"`, `"cuda"`, `"mps"` or `"auto"`.
        threads: Number of CPU threads of a call; None leaves the number of the process.
    """

    def __init__(self, path: str | os.PathLike[str], device: str = "cpu", threads: int | None = 1) -> None:
        self.path = os.fspath(path)
        self.device = device
        self.threads = threads if threads is None else check_count("threads", threads)
        choose_device(device)
        self._density: FlowDensity | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_density": None}

    @property
    def density(self) -> FlowDensity:
        """The model, read from its file on first use."""
        if self._density is None:
            model = load(self.path)
            if (density := find_density(model)) is None:
                raise TypeError(f"path must be a density of a table, got {self.path}, a {type(model).__name__}")
            density.model_.to(choose_device(self.device))
            self._density = density
        return self._density

    def __call__(self, batch: Any) -> Any:
        """Apply the function to one batch: a table of pandas, polars or pyarrow, or a dictionary of arrays.

        Returns:
            A table of the same kind.
        """
        with self.limit_threads():
            return from_rows(self.compute(as_rows(batch)), batch)

    def map(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Apply the function to each of several batches, as Spark's `mapInPandas` needs it."""
        for batch in batches:
            yield self(batch)

    def compute(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Result for a frame whose rows are numbered from 0."""
        raise TypeError(f"{type(self).__name__} must define compute")

    @contextmanager
    def limit_threads(self) -> Iterator[None]:
        """Context manager that sets the number of threads of torch."""
        before = torch.get_num_threads()
        torch.set_num_threads(before if self.threads is None else self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def as_rows(batch: Any) -> pd.DataFrame:
    """Convert a batch to a frame with rows numbered from 0."""
    if isinstance(batch, Mapping):
        return as_frame(pd.DataFrame({str(name): np.asarray(values) for name, values in batch.items()}))
    if isinstance(batch, pa.RecordBatch):
        return as_frame(pa.Table.from_batches([batch]))
    if table_kind(batch) == "numpy":
        raise TypeError(
            f"batch must be a table of pandas, polars or pyarrow, or a dictionary of arrays, got {type(batch).__name__}"
        )
    return as_frame(batch)


def from_rows(rows: pd.DataFrame, batch: Any) -> Any:
    """Convert a result to the kind of a batch; a pandas frame with as many rows keeps its index."""
    if isinstance(batch, pd.DataFrame):
        return rows if "row" in rows or len(rows) != len(batch) else rows.set_axis(batch.index)
    if isinstance(batch, Mapping):
        return {name: rows[name].to_numpy() for name in rows}
    table = from_frame(rows, table_kind(batch) if not isinstance(batch, pa.RecordBatch) else "pyarrow")
    if not isinstance(batch, pa.RecordBatch):
        return table
    merged = table.combine_chunks().to_batches()
    return merged[0] if merged else pa.RecordBatch.from_pylist([], schema=table.schema)
