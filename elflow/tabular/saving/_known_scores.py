"""Fixed rows of a fitted density: their scores for its file, and checks of its columns when the file is read."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from elflow._checks import check_count
from elflow.flows.known_scores import as_known_scores, spread_points
from elflow.kernels import NonFiniteError
from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import encode_context, encode_rows, score_rows
from elflow.tabular.fitting._row_hashes import hash_rows
from elflow.tabular.schema import Schema

if TYPE_CHECKING:
    from elflow.tabular.estimator import FlowDensity

__all__ = ["check_reference_scores", "check_schemas", "score_fixed_rows"]

N_ROWS = 8
"""Number of rows."""
N_DRAWS = 16
"""Number of points of each cell."""


def score_fixed_rows(density: FlowDensity) -> list[float | None]:
    """Log-densities of a few rows that follow from the columns alone: they contain no data."""
    frame, context = _decode_fixed_rows(density.schema_), None
    if density.context_schema_ is not None:
        given = _decode_fixed_rows(density.context_schema_, start=density.schema_.features)
        context = encode_context(density.context_schema_, given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a row may be outside of declared bounds
        rows = encode_rows(density.schema_, frame, context)
    try:
        return as_known_scores(score_rows(density.model_, rows, N_DRAWS).tolist())
    except NonFiniteError:
        return [None] * N_ROWS


def check_schemas(density: FlowDensity) -> None:
    """Raise an error if the columns of a density from a file cannot decode and encode rows, or be described."""
    for schema in (density.schema_, density.context_schema_):
        if schema is None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frame = _decode_fixed_rows(schema)
            cells = schema.encode(frame)
            schema.encode_context(frame)
            hash_rows(schema, frame)
        if any(np.isnan(part).any() for part in cells):
            raise ValueError("columns must encode their own values as numbers, got NaN")
        repr(schema)
    check_reference_scores(density.reference_scores_, "reference_scores")
    for name in ("n_rows_", "n_parameters_", "seed_"):
        check_count(name, getattr(density, name), least=0)


def check_reference_scores(scores: FloatArray, name: str) -> None:
    """Raise an error unless log-densities are such as `summarize_log_density` returns."""
    if not len(scores) or not np.isfinite(scores).all() or (np.diff(scores) < 0).any():
        raise ValueError(f"{name} must be finite and increasing")


def _decode_fixed_rows(schema: Schema, start: int = 0) -> pd.DataFrame:
    """Rows of fixed quantiles of each column, as a pandas table with the names of the columns."""
    plain = replace(schema, table="pandas", labels=None)
    frame: pd.DataFrame = plain.decode(spread_points(N_ROWS, schema.features, start).numpy())
    return frame
