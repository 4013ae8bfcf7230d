"""Rows of any kind of table, and its columns as numbers that can be drawn and compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils import _safe_indexing

from elflow.tabular import as_frame

__all__ = ["MINUS", "Column", "columns", "frame", "plain", "take"]

LABELLED = ("category", "boolean")
"""The kinds whose values are names: they have no order and no distance."""
MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Column:
    """One column of the real and of the sampled rows, as floats.

    NaN where a value is missing, seconds for times, codes for labels.
    """

    name: str
    kind: str
    real: NDArray[np.float64]
    sampled: NDArray[np.float64]
    labels: tuple[str, ...] = ()
    """What the codes stand for, the most frequent first unless they are numbers; empty for numbers and times."""

    @property
    def labelled(self) -> bool:
        return self.kind in LABELLED


def take(table: Any, rows: NDArray[np.int64]) -> Any:
    """These rows of a table, in this order, in the same kind of table; None for None."""
    return None if table is None else _safe_indexing(table, rows)


def frame(table: Any, schema: Any) -> pd.DataFrame:
    """The columns of a schema in its order, in a frame whose rows are counted from 0."""
    return schema.align(as_frame(table, schema.names))


def plain(words: Any) -> str:
    """What a user wrote, on one line and without what neither HTML nor UTF-8 can hold."""
    return "".join(letter if letter.isprintable() else " " for letter in str(words))


def columns(schema: Any, real: pd.DataFrame, sampled: pd.DataFrame) -> tuple[Column, ...]:
    """Every column of the schema, with the same codes for the labels of both tables."""
    return tuple(_column(c.name, c.kind, real[c.name], sampled[c.name]) for c in schema.columns)


def _column(name: str, kind: str, real: pd.Series[Any], sampled: pd.Series[Any]) -> Column:
    if kind in LABELLED:
        ours, theirs = _words(real), _words(sampled)
        labels = [*ours.dropna().value_counts().index]
        labels += sorted(set(theirs.dropna()) - set(labels))
        if pd.to_numeric(pd.Series(labels, dtype=object), errors="coerce").notna().all():
            labels.sort(key=float)  # a few numbers, which have an order after all
        codes = {label: float(code) for code, label in enumerate(labels)}
        return Column(name, kind, _floats(ours.map(codes)), _floats(theirs.map(codes)), tuple(labels))
    if kind == "datetime":
        return Column(name, kind, _seconds(real), _seconds(sampled))
    return Column(name, kind, _floats(real), _floats(sampled))


def _words(values: pd.Series[Any]) -> pd.Series[Any]:
    words = [None if missing else str(value) for value, missing in zip(values, values.isna(), strict=True)]
    return pd.Series(words, dtype=object)


def _floats(values: pd.Series[Any]) -> NDArray[np.float64]:
    numbers = pd.to_numeric(values, errors="coerce").astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _seconds(values: pd.Series[Any]) -> NDArray[np.float64]:
    """Seconds since 1970, in UTC."""
    times = pd.to_datetime(values, utc=True, errors="coerce")
    return ((times - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(seconds=1)).to_numpy(dtype=np.float64)
