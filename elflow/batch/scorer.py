"""`Scorer`: scores of the rows of batches."""

from __future__ import annotations

import os
from collections.abc import Callable

import pandas as pd

from elflow._checks import check_choice, check_count
from elflow.batch.worker import Worker
from elflow.tabular import FlowDensity

__all__ = ["OUTPUTS", "Scorer"]


def score_log_density(density: FlowDensity, rows: pd.DataFrame, context: pd.DataFrame | None) -> pd.DataFrame:
    """The column `log_density`, in nats."""
    return pd.DataFrame({"log_density": density.score_samples(rows, context=context)})


def score_anomaly(density: FlowDensity, rows: pd.DataFrame, context: pd.DataFrame | None) -> pd.DataFrame:
    """The columns `log_density` and `anomaly_score`: see `FlowDensity.anomaly_score`."""
    scores = score_log_density(density, rows, context)
    return scores.assign(anomaly_score=density.percentiles(scores["log_density"]))


def explain(density: FlowDensity, rows: pd.DataFrame, context: pd.DataFrame | None) -> pd.DataFrame:
    """One row for each value: see `FlowDensity.explain`. Values of several kinds share a column, and become text."""
    reasons = density.explain(rows, context=context)
    texts = {name: reasons[name].astype(str) for name in ("value", "low", "high")}
    return reasons.assign(row=reasons["row"] + (rows.index[0] if len(rows) else 0), **texts)


OUTPUTS: dict[str, Callable[[FlowDensity, pd.DataFrame, pd.DataFrame | None], pd.DataFrame]] = {
    "log_density": score_log_density,
    "anomaly": score_anomaly,
    "explain": explain,
}
"""Functions that compute the columns of each output from a density, rows and their context.

The index of the rows holds their numbers in the batch, for outputs with several rows, or none, for some row.
"""


DTYPES = {
    "log_density": {"log_density": "float64"},
    "anomaly": {"log_density": "float64", "anomaly_score": "float64"},
    "explain": {
        "row": "int64",
        "column": "str",
        "value": "str",
        "tail_probability": "float64",
        "surprise": "float64",
        "low": "str",
        "high": "str",
    },
}
"""Columns of each output, with their dtypes."""


class Scorer(Worker):
    """Scores of the rows of batches, for engines that apply a function to many batches.

    A scorer is small when it is pickled: workers read the model on their first batch. The score of a row does not
    depend on the batch that it is in. Batches are tables of pandas, polars or pyarrow, or dictionaries of arrays, with
    the columns of the model by name, and those of its context if it has one. The result is of the same kind.

    - Ray Data: `dataset.map_batches(Scorer, fn_constructor_args=["model.elf"], compute=ActorPoolStrategy(size=8))`
    - Dask: `frame.map_partitions(scorer, meta=scorer.meta)`
    - Spark: `frame.mapInPandas(scorer.map, "log_density double")`
    - Polars: `frame.map_batches(scorer)`

    Arguments:
        path: Model file, which every worker must be able to read.
        output: `"log_density"`; `"anomaly"` for `log_density` and `anomaly_score`; or `"explain"` for the table of
            `FlowDensity.explain`, which has one row for each value. Its `row` is the number of the row in the batch.
        append: Whether results also have the columns of the batch, unless `output` is `"explain"`.
        device: Device of the model: `"cpu"`, `"cuda"`, `"mps"` or `"auto"`.
        batch_rows: Maximum number of rows that are scored at a time, which bounds the memory.
        threads: Number of CPU threads of a call; None leaves the number of the process.

    Example:
        >>> import numpy as np, pickle, tempfile
        >>> table = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "b"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     FlowDensity(max_steps=20, random_state=0).fit(table).save(f"{folder}/model.elf")
        ...     scorer = pickle.loads(pickle.dumps(Scorer(f"{folder}/model.elf", output="anomaly")))
        ...     scores = scorer({"a": np.zeros(3), "b": np.ones(3)})
        >>> {name: values.shape for name, values in scores.items()}
        {'log_density': (3,), 'anomaly_score': (3,)}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        output: str = "log_density",
        *,
        append: bool = False,
        device: str = "cpu",
        batch_rows: int = 65_536,
        threads: int | None = 1,
    ) -> None:
        check_choice("output", output, list(OUTPUTS))
        if append and output == "explain":
            raise ValueError("append must be False with output='explain', got True")
        super().__init__(path, device, threads)
        self.output = output
        self.append = append
        self.batch_rows = check_count("batch_rows", batch_rows)

    @property
    def meta(self) -> pd.DataFrame:
        """Empty result without the columns of a batch, as Dask needs it."""
        return pd.DataFrame({name: pd.Series(dtype=dtype) for name, dtype in DTYPES[self.output].items()})

    def compute(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Scores of the rows of a frame."""
        density, score = self.density, OUTPUTS[self.output]
        context = None if density.context_schema_ is None else rows[density.context_schema_.names]
        blocks = []
        for start in range(0, max(1, len(rows)), self.batch_rows):
            part = slice(start, start + self.batch_rows)
            blocks.append(score(density, rows.iloc[part], None if context is None else context.iloc[part]))
        scores = pd.concat(blocks, ignore_index=True)
        if not self.append:
            return scores
        if taken := [name for name in scores if name in rows.columns]:
            raise ValueError(f"batch must not have a column {taken[0]!r} with append=True: rename it")
        return pd.concat([rows, scores], axis=1)
