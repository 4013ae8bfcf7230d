"""Rows of any kind of table, and columns as numbers that can be plotted and compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from elflow.tabular import ContextTable, Schema, as_frame

__all__ = ["Column", "pair_columns", "take_rows", "to_frame"]

LABEL_KINDS = ("category", "boolean")
"""Kinds of columns whose values are labels, without an order or a distance."""


@dataclass(frozen=True)
class Column:
    """One column of the real and of the sampled rows, as floats.

    Missing values are NaN, times are seconds, and labels are codes.
    """

    name: str
    kind: str
    real: NDArray[np.float64]
    """Values of the real rows, `(N,)`."""
    sampled: NDArray[np.float64]
    """Values of the sampled rows, `(M,)`."""
    labels: tuple[str, ...] = ()
    """The label of each code, sorted by number if all are numbers, else by frequency; empty for numbers and times."""

    @property
    def has_labels(self) -> bool:
        """Whether values are codes of labels."""
        return self.kind in LABEL_KINDS


def take_rows(table: Any, rows: NDArray[np.int64]) -> Any:
    """Select rows of a table, in this order, as the same kind of table; None for None."""
    return None if table is None else _safe_indexing(table, rows)


def to_frame(table: ContextTable, schema: Schema) -> pd.DataFrame:
    """Convert to a DataFrame with the columns of a schema, in its order."""
    return schema.align(as_frame(table, schema.names))


def pair_columns(schema: Schema, real: pd.DataFrame, sampled: pd.DataFrame) -> tuple[Column, ...]:
    """Pair the columns of real and of sampled rows, with the same codes for labels."""
    return tuple(_pair_column(c.name, c.kind, real[c.name], sampled[c.name]) for c in schema.columns)


def _pair_column(name: str, kind: str, real: pd.Series[Any], sampled: pd.Series[Any]) -> Column:
    if kind in LABEL_KINDS:
        real_texts, sampled_texts = _to_texts(real), _to_texts(sampled)
        labels = [*real_texts.dropna().value_counts().index]
        labels += sorted(set(sampled_texts.dropna()) - set(labels))
        if pd.to_numeric(pd.Series(labels, dtype=object), errors="coerce").notna().all():
            labels.sort(key=float)  # a few distinct numbers, which do have an order
        codes = {label: float(code) for code, label in enumerate(labels)}
        return Column(
            name, kind, _to_floats(real_texts.map(codes)), _to_floats(sampled_texts.map(codes)), tuple(labels)
        )
    if kind == "datetime":
        return Column(name, kind, _to_seconds(real), _to_seconds(sampled))
    return Column(name, kind, _to_floats(real), _to_floats(sampled))


def _to_texts(values: pd.Series[Any]) -> pd.Series[Any]:
    texts = [None if is_missing else str(value) for value, is_missing in zip(values, values.isna(), strict=True)]
    return pd.Series(texts, dtype=object)


def _to_floats(values: pd.Series[Any]) -> NDArray[np.float64]:
    numbers = pd.to_numeric(values, errors="coerce").astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _to_seconds(values: pd.Series[Any]) -> NDArray[np.float64]:
    """Seconds since 1970 in UTC."""
    times = pd.to_datetime(values, utc=True, errors="coerce")
    return ((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)).to_numpy(dtype=np.float64)
