"""Served models by name, and their descriptions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from elflow.flows.compiled import compile_density
from elflow.serialization import find_density, load
from elflow.serve._tables import to_rows
from elflow.tabular import Column, FlowDensity, Schema, as_frame

__all__ = ["ServedModel", "load_models"]

N_POOL = 2_000
"""Number of samples from which the ranges of columns are taken."""
RANGE = (0.005, 0.995)
"""Probabilities of the ends of the range that the page shows of a column."""
MAX_LEVELS = 1_000
"""Maximum number of categories that are listed."""


class ServedModel:
    """A density with a name.

    Arguments:
        name: The name, by which requests refer to it.
        density: The fitted density, which is only read.

    Example:
        >>> table = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 2)), columns=["a", "b"])
        >>> model = ServedModel("normal", FlowDensity(max_steps=20, random_state=0).fit(table))
        >>> [column["name"] for column in model.describe()["columns"]]
        ['a', 'b']
    """

    def __init__(self, name: str, density: FlowDensity) -> None:
        self.name = name
        self.density = density

    @property
    def schema(self) -> Schema:
        """Columns of the density."""
        return self.density.schema_

    @property
    def context_columns(self) -> tuple[Column, ...]:
        """Columns of its context."""
        context = self.density.context_schema_
        return () if context is None else context.columns

    @property
    def columns(self) -> list[Column]:
        """Columns that rows have: those of the density, and those of its context."""
        return [*self.schema.columns, *self.context_columns]

    @property
    def is_batch_invariant(self) -> bool:
        """Whether the score of a row has the same bits in every batch: the native kernel scores row by row.

        The matrix products of torch may add in another order in a batch of another size.
        """
        return compile_density(self.density.model_.flow) is not None

    def to_frame(self, table: Any) -> pd.DataFrame:
        """A table of the library of the fitted table as a pandas table, with the names of the schema."""
        return as_frame(table, self.schema.names)

    @cached_property
    def usual_context(self) -> pd.DataFrame | None:
        """A context of typical values, one row; None without a context."""
        if not self.context_columns:
            return None
        return pd.concat([column.decode(np.zeros(1)) for column in self.context_columns], axis=1)

    @cached_property
    def pool(self) -> pd.DataFrame:
        """Samples of the density, of which the page shows ranges."""
        return self.to_frame(self.density.sample(N_POOL, context=self.usual_context, random_state=0))

    def warm_up(self) -> None:
        """Compute what all requests need, before the first one and before processes are forked."""
        self.describe()
        rows = self.pool.head(1).dropna()
        if len(rows):
            self.density.score_samples(rows, context=self.usual_context)

    @cached_property
    def _description(self) -> dict[str, Any]:
        density, training = self.density, self.density.training_
        return {
            "name": self.name,
            "columns": [describe_column(column, self.pool[column.name]) for column in self.schema.columns],
            "context": [describe_column(column, None) for column in self.context_columns],
            "flow": density.flow,
            "parameters": density.n_parameters_,
            "rows": density.n_rows_,
            "training": training.describe(),
            "members": [{"name": name, "weight": weight} for name, weight in density.members_],
            "warnings": list(density.warnings_),
        }

    def describe(self) -> dict[str, Any]:
        """Columns, kinds, ranges and facts about the training, for JSON."""
        return self._description


def describe_column(column: Column, samples: pd.Series | None) -> dict[str, Any]:
    """Description of a column for JSON: in words, its categories, and the range of usual values.

    Arguments:
        column: The column.
        samples: Samples of the column, of which the range has all but one percent; by default a range about the
            typical value.
    """
    facts: dict[str, Any] = {**column.describe(), "ordered": column.has_order, "step": None}
    facts |= {"levels": None, "low": None, "high": None, "typical": None, "atoms": list(column.atoms)}
    if column.levels is not None:
        facts["levels"] = list(column.levels[:MAX_LEVELS])
        facts["typical"] = facts["levels"][0]
        return facts
    if column.kind == "integer":
        facts["step"] = column.step or 1.0
    elif column.kind == "continuous":
        facts["step"] = column.step
    if samples is None or samples.isna().all():
        samples = column.decode(np.linspace(-2.5, 2.5, 101))
    ordered = samples.dropna().sort_values(ignore_index=True)
    ends = [ordered.iloc[round(q * (len(ordered) - 1))] for q in (RANGE[0], 0.5, RANGE[1])]
    row = to_rows(pd.DataFrame({"value": pd.Series(ends, dtype=ordered.dtype)}))
    facts["low"], facts["typical"], facts["high"] = (entry["value"] for entry in row)
    return facts


def load_models(files: Sequence[str | os.PathLike[str]]) -> list[ServedModel]:
    """Load densities of tables; each is named after its file, or `NAME=FILE` names it.

    Example:
        >>> load_models([])
        Traceback (most recent call last):
        ...
        ValueError: models must be at least one file, got none
    """
    if not files:
        raise ValueError("models must be at least one file, got none")
    models: dict[str, ServedModel] = {}
    for file in files:
        text = os.fspath(file)
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = Path(text).stem, text
        if name in models:
            raise ValueError(f"models must have different names, got {name!r} twice: name one of them, as NAME={path}")
        model = load(path)
        if (density := find_density(model)) is None:
            raise ValueError(f"models must be densities of tables, got {path}, a {type(model).__name__}")
        models[name] = ServedModel(name, density)
    return list(models.values())
