"""`Imputer`: missing cells of the rows of batches, filled in by workers."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from elflow._checks import check_choice, check_count
from elflow.batch.worker import Worker
from elflow.tabular import IMPUTATION_METHODS, FlowDensity, as_frame

__all__ = ["Imputer", "fill_rows"]


def fill_rows(
    density: FlowDensity, rows: pd.DataFrame, method: str, n_draws: int, generator: torch.Generator
) -> pd.DataFrame:
    """Fill the missing cells of rows that may have more columns than the density, which are kept.

    Returns:
        The rows; with several draws all of them one after the other, and a column `draw` of their numbers.
    """
    schema = density.context_schema_
    needed = [*density.schema_.names, *(() if schema is None else schema.names)]
    if missing := [name for name in needed if name not in rows.columns]:
        raise ValueError(f"rows must have the columns {needed}, got none named {missing[0]!r}")
    if n_draws > 1 and "draw" in rows.columns:
        raise ValueError(f"rows must not have a column 'draw' with several draws (got {n_draws}): rename it")
    described = rows[density.schema_.names]
    context = None if schema is None else rows[schema.names]
    answer = density.impute(described, n_draws=n_draws, method=method, context=context, random_state=generator)
    others = rows.drop(columns=described.columns).reset_index(drop=True)
    tables = [
        pd.concat([as_frame(table, density.schema_.names), others], axis=1)[list(rows.columns)]
        for table in (answer if n_draws > 1 else [answer])
    ]
    if n_draws == 1:
        return tables[0]
    return pd.concat([table.assign(draw=number) for number, table in enumerate(tables)], ignore_index=True)


class Imputer(Worker):
    """Rows of batches with their missing cells filled in, for engines that apply a function to many batches.

    Columns that the model does not have are kept. The random numbers of a batch depend on the seed and on its values: a
    batch that is filled twice, after a failure, is the same, and so are two batches with the same values. If batches
    may be equal, give them a column that differs, such as a row number. Engines cut a table into batches of their own,
    so that draws depend on the engine.

    - Ray Data: `dataset.map_batches(Imputer, fn_constructor_args=["model.elf"], compute=ActorPoolStrategy(size=8))`
    - Spark: `frame.mapInPandas(imputer.map, frame.schema)`, with one draw

    Arguments:
        path: Model file, which every worker must be able to read.
        method: `"sample"` to draw values, or the summary that fills a cell: see `FlowDensity.impute`.
        n_draws: Number of times to draw, one after the other, with a column `draw` if it is above 1.
        seed: Seed.
        device: Device of the model: `"cpu"`, `"cuda"`, `"mps"` or `"auto"`.
        batch_rows: Maximum number of rows that are filled at a time, which bounds the memory.
        threads: Number of CPU threads of a call; None leaves the number of the process.

    Example:
        >>> import tempfile
        >>> table = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "b"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FlowDensity(max_steps=20, random_state=0).fit(table).save(f"{folder}/model.elf")
        ...     filled = Imputer(f"{folder}/model.elf")({"a": np.array([np.nan, 0.5]), "b": np.zeros(2)})
        >>> bool(np.isfinite(filled["a"][0])), filled["a"][1], filled["b"].tolist()
        (True, np.float64(0.5), [0.0, 0.0])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        method: str = "sample",
        n_draws: int = 1,
        seed: int = 0,
        *,
        device: str = "cpu",
        batch_rows: int = 4_096,
        threads: int | None = 1,
    ) -> None:
        super().__init__(path, device, threads)
        check_choice("method", method, IMPUTATION_METHODS)
        self.method = method
        self.n_draws = check_count("n_draws", n_draws)
        if method != "sample" and n_draws > 1:
            raise ValueError(f"n_draws must be 1 with method={method!r}, got {n_draws}")
        self.seed = check_count("seed", seed, least=0)
        self.batch_rows = check_count("batch_rows", batch_rows)

    def compute(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of a frame, filled."""
        # Texts, because hashes of other objects may differ from one process to the next.
        values = pd.util.hash_pandas_object(rows.astype(str), index=False).to_numpy()
        return self.fill(rows, values.tolist())

    def fill(self, rows: pd.DataFrame, key: Sequence[int]) -> pd.DataFrame:
        """The rows of a frame, filled by random numbers that depend on the seed and a key."""
        parts = [rows.iloc[k : k + self.batch_rows] for k in range(0, max(1, len(rows)), self.batch_rows)]
        filled = [self._fill_block(part.reset_index(drop=True), [*key, k]) for k, part in enumerate(parts)]
        return pd.concat(filled, ignore_index=True)

    def _fill_block(self, rows: pd.DataFrame, key: Sequence[int]) -> pd.DataFrame:
        (seed,) = np.random.SeedSequence([self.seed, *key]).generate_state(1, np.uint64).tolist()
        generator = torch.Generator().manual_seed(seed)
        return fill_rows(self.density, rows, self.method, self.n_draws, generator)
