"""`Sampler`: new rows in numbered blocks, which workers can draw in any order."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import torch

from elflow._checks import check_count
from elflow.batch.worker import Worker
from elflow.tabular import as_frame

__all__ = ["Sampler"]


class Sampler(Worker):
    """New rows in numbered blocks, for engines that apply a function to many batches.

    A batch is a table with a column `block` of numbers from 0 up to `n_blocks`; if the model has a context, it is a
    table of contexts with a column `block`. The rows of a block depend on the seed and its number only, not on the
    worker that draws it or on the other blocks: a block that is drawn twice, after a failure, is the same. They are
    other rows than those of `FlowDensity.sample`, which draws all rows from one stream of random numbers.

    - Ray Data: `ray.data.range(sampler.n_blocks).rename_columns(["block"]).map_batches(sampler, batch_size=1)`
    - Dask: `frame.map_partitions(sampler)`, for a frame with a column `block`

    Arguments:
        path: Model file, which every worker must be able to read.
        n: Number of rows; with a context, number of consecutive rows for each row of the context.
        seed: Seed.
        device: Device of the model: `"cpu"`, `"cuda"`, `"mps"` or `"auto"`.
        batch_rows: Number of rows of a block.
        threads: Number of CPU threads of a call; None leaves the number of the process.

    Example:
        >>> import tempfile
        >>> from elflow import FlowDensity
        >>> table = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "b"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FlowDensity(max_steps=20, random_state=0).fit(table).save(f"{folder}/model.elf")
        ...     sampler = Sampler(f"{folder}/model.elf", n=25, batch_rows=10)
        ...     rows = sampler({"block": np.array([0, 2])})
        >>> sampler.n_blocks, len(rows["a"])
        (3, 15)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        n: int = 1,
        seed: int = 0,
        *,
        device: str = "cpu",
        batch_rows: int = 65_536,
        threads: int | None = 1,
    ) -> None:
        super().__init__(path, device, threads)
        self.n = check_count("n", n)
        self.seed = check_count("seed", seed, least=0)
        self.batch_rows = check_count("batch_rows", batch_rows)

    @property
    def n_blocks(self) -> int:
        """Number of blocks of a model without context."""
        return -(-self.n // self.batch_rows)

    def compute(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Rows of the blocks of a frame, one block after the other."""
        if "block" not in rows.columns:
            raise ValueError(f"batch must have a column 'block', got {list(rows.columns)}")
        numbers = rows["block"].to_numpy()
        schema = self.density.context_schema_
        if schema is not None:
            parts = [self._draw(int(k), rows.loc[numbers == k, schema.names]) for k in pd.unique(numbers)]
        else:
            if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.n_blocks:
                raise ValueError(
                    f"block must hold numbers from 0 to {self.n_blocks - 1}, got {numbers.min()} to {numbers.max()}"
                )
            parts = [self._draw(int(k), None) for k in numbers]
        return pd.concat(parts, ignore_index=True)

    def _draw(self, block: int, context: pd.DataFrame | None) -> pd.DataFrame:
        density = self.density
        # NumPy's way to independent streams from a seed and a number.
        (seed,) = np.random.SeedSequence([self.seed, block]).generate_state(1, np.uint64).tolist()
        n = self.n if context is not None else min(self.batch_rows, self.n - block * self.batch_rows)
        drawn = density.sample(n, context=context, random_state=torch.Generator().manual_seed(seed))
        frame = as_frame(drawn, density.schema_.names)
        if context is None:
            return frame
        repeated = context.iloc[np.repeat(np.arange(len(context)), n)].reset_index(drop=True)
        return pd.concat([frame, repeated.drop(columns=frame.columns, errors="ignore")], axis=1)
