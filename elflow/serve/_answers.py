"""Answers to questions about rows: what the methods of `FlowDensity` return, in blocks with a deadline between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from elflow._checks import record_warnings
from elflow.batch.conditionals import condition_on, condition_rows
from elflow.serve._requests import (
    ConditionalRequest,
    ExplainRequest,
    ImputeRequest,
    SampleRequest,
    parse_given,
)
from elflow.serve._tables import frame_from_json, to_arrow, to_rows
from elflow.serve.limits import Deadline, Limits, Refusal
from elflow.serve.models import ServedModel
from elflow.tabular import as_generator, warn_if_poor

__all__ = [
    "Answer",
    "ScoreItem",
    "answer_conditional",
    "answer_explain",
    "answer_impute",
    "answer_sample",
    "score_items",
]

BLOCK_ROWS = 1_024
"""Number of rows that are answered between two looks at the deadline, unless they are only scored."""
BLOCK_POINTS = 2**16
"""Number of points over which columns are integrated out between two looks at the deadline, over all quantiles."""
SCORE_BLOCK_ROWS = 16_384
"""Number of rows that are scored between two looks at the deadline."""


@dataclass(frozen=True)
class Answer:
    """A table, as JSON or as Arrow.

    Arguments:
        table: The table, or its columns by name, since a table of pandas takes longer than to score a row.
        key: Key of its rows in JSON; None if JSON has its columns instead.
        warnings: Warnings of the density about these rows.
    """

    table: pd.DataFrame | dict[str, np.ndarray]
    key: str | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def frame(self) -> pd.DataFrame:
        """The table."""
        return pd.DataFrame(self.table)

    @property
    def n_rows(self) -> int:
        """Number of rows of the table."""
        return len(next(iter(self.table.values()))) if isinstance(self.table, dict) else len(self.table)

    def to_json(self) -> dict[str, Any]:
        """Content for JSON."""
        content: dict[str, Any]
        if self.key is None:
            content = {str(name): values.tolist() for name, values in self.table.items()}
        else:
            content = {self.key: to_rows(self.frame)}
        return content | ({"warnings": self.warnings} if self.warnings else {})

    def to_arrow(self) -> pa.Table:
        """Content as Arrow, with warnings in the metadata."""
        frame = self.frame
        if self.key == "cells":  # values of several kinds share a column
            frame = frame.assign(**{name: frame[name].astype(str) for name in ("value", "low", "high")})
        table = to_arrow(frame)
        return table.replace_schema_metadata({**(table.schema.metadata or {}), "warnings": "\n".join(self.warnings)})


class Parts(NamedTuple):
    """Rows of a request: columns of the density, and of its context."""

    rows: pd.DataFrame
    context: pd.DataFrame | None

    def iter_blocks(self, size: int, deadline: Deadline) -> Iterator[tuple[int, pd.DataFrame, pd.DataFrame | None]]:
        """Number of the first row, rows and context of each block."""
        if len(self.rows) <= size:
            deadline.check()
            yield 0, self.rows, self.context
            return
        for start in range(0, len(self.rows), size):
            deadline.check()
            part = slice(start, start + size)
            context = None if self.context is None else self.context.iloc[part].reset_index(drop=True)
            yield start, self.rows.iloc[part].reset_index(drop=True), context


def split_rows(model: ServedModel, frame: pd.DataFrame, partial: bool = False) -> Parts:
    """The columns of the density and of its context; only columns whose missing values are modelled may be absent.

    Arguments:
        model: The model.
        frame: The rows.
        partial: Whether any column of the density may be absent.
    """
    if not len(frame):
        raise Refusal(422, "rows must have at least one row, got none")
    optional = {column.name for column in model.schema.columns if partial or column.missing}
    names = model.schema.names
    needed = [*(name for name in names if name not in optional), *(column.name for column in model.context_columns)]
    if absent := [name for name in needed if name not in frame]:
        raise Refusal(422, f"rows must have values of {absent[0]!r:.200}, got none")
    context = frame[[column.name for column in model.context_columns]] if model.context_columns else None
    return Parts(frame if list(frame.columns) == names else frame.reindex(columns=names), context)


def read_context(model: ServedModel, context: list[Any] | None, limits: Limits) -> pd.DataFrame | None:
    """Context of a request without rows."""
    columns = model.context_columns
    if context is None:
        if columns:
            raise Refusal(422, f"context must have rows of {[column.name for column in columns]}, got none")
        return None
    if not columns:
        raise Refusal(422, "context must be left out, because the model was fitted without one")
    frame = frame_from_json(context, columns, limits, "context")
    if not len(frame):
        raise Refusal(422, "context must have at least one row, got none")
    if absent := [column.name for column in columns if column.name not in frame]:
        raise Refusal(422, f"context must have values of {absent[0]!r:.200}, got none")
    return frame


class ScoreItem(NamedTuple):
    """Rows of one request, as JSON or as a table, to score alone or with others."""

    rows: list[Any] | pd.DataFrame
    anomaly: bool


def score_items(
    model: ServedModel, limits: Limits, items: Sequence[ScoreItem], deadline: Deadline | None = None
) -> list[Answer | Exception]:
    """Score several requests at once, each as if it were alone; the errors of some do not concern the others."""
    try:
        if len(items) > 1 and not all(len(item.rows) for item in items):
            raise ValueError("rows must not be empty: a request without rows is refused")
        frames = _read_items(model, limits, items)
        parts = split_rows(model, frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True))
        with record_warnings() as messages:
            blocks = parts.iter_blocks(SCORE_BLOCK_ROWS, deadline or Deadline(limits))
            scores = np.concatenate([model.density.score_samples(rows, context=c) for _, rows, c in blocks])
        if messages and len(items) > 1:
            raise ValueError("warnings name rows: they must be those of one request")
    except Exception as error:
        if len(items) == 1:
            return [error]
        return [score_items(model, limits, [item], deadline)[0] for item in items]
    answers: list[Answer | Exception] = []
    start = 0
    for item in items:
        part = scores[start : start + len(item.rows)]
        start += len(part)
        columns = {"log_density": part}
        if item.anomaly:
            columns["anomaly_score"] = model.density.percentiles(part)
        answers.append(Answer(columns, None, list(messages)))
    return answers


def _read_items(model: ServedModel, limits: Limits, items: Sequence[ScoreItem]) -> list[pd.DataFrame]:
    """Tables of the rows of several requests, in order; neighbouring rows in JSON become one table."""
    frames: list[pd.DataFrame] = []
    pending: list[Any] = []
    for item in items:
        if isinstance(item.rows, list):
            pending += item.rows
            continue
        if pending:
            frames.append(frame_from_json(pending, model.columns, limits))
            pending = []
        frames.append(item.rows)
    if pending or not frames:
        frames.append(frame_from_json(pending, model.columns, limits))
    return frames


def answer_sample(model: ServedModel, limits: Limits, request: SampleRequest, deadline: Deadline) -> Answer:
    """New rows."""
    context = read_context(model, request.context, limits)
    limits.check_rows("n", request.n * (1 if context is None else len(context)))
    density, blocks = model.density, []
    with record_warnings() as messages:
        if request.given is None:
            for table in density.iter_samples(request.n, context, request.seed):
                blocks.append(model.to_frame(table))
                deadline.check()
        else:
            given = parse_given(request.given, model.schema.columns)
            for frame, info in density.iter_given_samples(request.n, given, context, request.seed):
                warn_if_poor(info)
                blocks.append(frame)
                deadline.check()
    return Answer(pd.concat(blocks, ignore_index=True), "rows", messages)


def answer_impute(model: ServedModel, frame: pd.DataFrame, request: ImputeRequest, deadline: Deadline) -> Answer:
    """Rows without missing cells."""
    generator = as_generator(request.seed)
    parts = split_rows(model, frame, partial=True)
    blocks = []
    with record_warnings() as messages:
        for _, rows, context in parts.iter_blocks(BLOCK_ROWS, deadline):
            filled = model.density.impute(rows, method=request.method, context=context, random_state=generator)
            blocks.append(model.to_frame(filled))
    return Answer(pd.concat(blocks, ignore_index=True), "rows", messages)


def answer_explain(model: ServedModel, frame: pd.DataFrame, request: ExplainRequest, deadline: Deadline) -> Answer:
    """How surprising each cell is."""
    parts = split_rows(model, frame)
    blocks = []
    with record_warnings() as messages:
        for start, rows, context in parts.iter_blocks(BLOCK_ROWS, deadline):
            reasons = model.density.explain(rows, request.columns, request.level, context=context)
            blocks.append(reasons.assign(row=reasons["row"] + start))
    return Answer(pd.concat(blocks, ignore_index=True), "cells", messages)


def answer_conditional(
    model: ServedModel,
    limits: Limits,
    frame: pd.DataFrame | None,
    request: ConditionalRequest,
    deadline: Deadline,
) -> Answer:
    """Distribution of a column in each row, or given conditions."""
    if not (request.quantiles or request.cdf or request.proba):
        raise Refusal(422, "quantiles, cdf or proba must say what to compute, got none of them")
    if request.column not in model.schema.names:
        raise Refusal(422, f"column must be one of {model.schema.names}, got {request.column!r:.200}")
    if (frame is None) == (request.given is None):
        raise Refusal(422, "the request must have either rows or given, got both or none of them")
    density, column, levels, n_points = model.density, request.column, request.quantiles, request.n_points
    size = _count_block_rows(model, request)
    n_rows = len(request.context or [None]) if frame is None else len(frame)
    limits.check_rows("rows x quantiles", n_rows * len(levels))
    blocks = []
    with record_warnings() as messages:
        if frame is None:
            if request.cdf:
                raise Refusal(422, "cdf must be false without rows, which have the values of the column")
            given = parse_given(request.given or {}, model.schema.columns)
            contexts = _iter_contexts(read_context(model, request.context, limits), size, deadline)
            blocks = [
                condition_on(density, None, column, levels, False, request.proba, given, context, n_points)
                for context in contexts
            ]
        else:
            for _, rows, context in split_rows(model, frame, partial=True).iter_blocks(size, deadline):
                whole = rows if context is None else pd.concat([rows, context], axis=1)
                blocks.append(
                    condition_rows(density, whole, column, levels, request.cdf, request.proba, n_points=n_points)
                )
    return Answer(pd.concat(blocks, ignore_index=True), "rows", messages)


def _count_block_rows(model: ServedModel, request: ConditionalRequest) -> int:
    """Number of rows of a block: each has its points for each quantile, and for each category."""
    categories = model.schema.column(request.column).levels if request.proba else None
    n_values = len(request.quantiles) + request.cdf + len(categories or ())
    return min(BLOCK_ROWS, max(1, BLOCK_POINTS // (request.n_points * max(1, n_values))))


def _iter_contexts(context: pd.DataFrame | None, size: int, deadline: Deadline) -> Iterator[pd.DataFrame | None]:
    """Blocks of a context; one that is None if there is no context."""
    for start in range(0, 1 if context is None else len(context), size):
        deadline.check()
        yield None if context is None else context.iloc[start : start + size].reset_index(drop=True)
