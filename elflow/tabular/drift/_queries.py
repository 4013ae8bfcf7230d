"""Comparison of new rows with the held-out rows of a fit: `FlowDensity.compare` and `FlowDensity.monitor`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from elflow._json_types import check_json
from elflow.flows.dequantization import Dequantized
from elflow.tabular._arrays import BoolArray, FloatArray, IntArray
from elflow.tabular._flow import N_DRAWS, score_rows
from elflow.tabular._inputs import TableEstimator
from elflow.tabular.drift._bins import BINS_VERSION
from elflow.tabular.drift._counts import CountedTable, Counter, StoredCounts, choose_pairs, choose_score_edges
from elflow.tabular.drift._result import Drift
from elflow.tabular.drift._tests import LeftOut, judge_drift
from elflow.tabular.fitting._encoded import EncodedTable
from elflow.tabular.fitting._row_hashes import NEW, TRAINING, UNKNOWN, OriginFinder, RowHashes, hash_rows
from elflow.tabular.frames import ContextTable, Table
from elflow.tabular.schema import Schema
from elflow.training import Rows

__all__ = ["DriftMonitor", "DriftQueries", "check_held_out", "count_held_out"]

MIN_ROWS = 20
"""Minimum number of held-out rows, and of new rows."""
MAX_HELD_OUT = 2**14
"""Maximum number of validation rows that are counted at the end of a fit."""
MAX_REPEATED = 0.5
"""Share of fitted rows that are equal to others above which rows of another table are equal to them by chance."""


class _Counted(NamedTuple):
    """Counts of new rows."""

    table: CountedTable
    n_impossible: int

    def merge(self, other: _Counted | None) -> _Counted:
        """Counts of the rows of both."""
        if other is None:
            return self
        return _Counted(self.table + other.table, self.n_impossible + other.n_impossible)


class _Block(NamedTuple):
    """Encoded rows of a table."""

    rows: Rows
    origins: NDArray[np.str_]
    """Origin of each row, `(N,)`, which holds if the finder of origins recognises rows."""
    n_missing: IntArray
    """Number of values that are missing in each column that was fitted without missing values."""
    n_incomplete: int
    """Number of other rows, which have such values, and no density."""


class DriftMonitor:
    """Counts new rows block by block, and compares them with held-out rows: see `FlowDensity.monitor`.

    Arguments:
        counter: The bins.
        reference: Counts of the held-out rows.
        iter_rows: Function that encodes a table and its context, and tells which rows are new: see
            `DriftQueries._iter_rows`.
        score: Function that computes the log-density of encoded rows.
        finder: Tells which rows the density was fitted to; None if this is unknown.
    """

    def __init__(
        self,
        counter: Counter,
        reference: CountedTable,
        iter_rows: Callable[[Table, ContextTable | None, OriginFinder | None], Iterator[_Block]],
        score: Callable[[Rows], FloatArray],
        finder: OriginFinder | None,
    ) -> None:
        self._counter = counter
        self._reference = reference
        self._iter_rows = iter_rows
        self._score = score
        self._finder = finder
        # Whether rows are equal to fitted ones by chance is known after the last row: both kinds are counted.
        self._new: _Counted | None = None
        self._fitted: _Counted | None = None
        self._n_missing = np.zeros(len(counter.columns), np.int64)
        self._n_incomplete = 0

    @property
    def n_rows(self) -> int:
        """Number of new rows so far."""
        counted, _ = self._choose_counts()
        return self._n_incomplete + (0 if counted is None else counted.table.n_rows)

    def add(self, X: Table, context: ContextTable | None = None) -> None:
        """Count the rows of a table, `(N, columns)`, and its context."""
        for rows, origins, n_missing, n_incomplete in self._iter_rows(X, context, self._finder):
            self._n_missing += n_missing
            self._n_incomplete += n_incomplete
            is_new = origins == NEW
            if is_new.any():
                self._new = self._count(rows, is_new).merge(self._new)
            if not is_new.all():
                self._fitted = self._count(rows, ~is_new).merge(self._fitted)

    def _count(self, rows: Rows, is_counted: BoolArray) -> _Counted:
        part = rows.take(torch.from_numpy(is_counted))
        log_density = self._score(part)
        return _Counted(self._counter.count(part, log_density), int(np.isneginf(log_density).sum()))

    def _choose_counts(self) -> tuple[_Counted | None, int]:
        """Counts of the new rows, and the number of rows that are left out."""
        if self._fitted is None:
            return self._new, 0
        if self._finder is not None and self._finder.is_recognized:
            return self._new, self._fitted.table.n_rows
        return self._fitted.merge(self._new), 0

    def compare(self, level: float = 0.05) -> Drift:
        """Compare all rows so far with the held-out rows."""
        if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
            raise ValueError(f"level must be a probability in (0, 1), got {level!r}")
        counted, n_fitted = self._choose_counts()
        if self.n_rows < MIN_ROWS:
            others = f" besides {n_fitted:,} rows that the density was fitted to" if n_fitted else ""
            raise ValueError(f"X must have at least {MIN_ROWS} new rows, got {self.n_rows:,}{others}")
        table, n_impossible = (self._reference.make_empty(), 0) if counted is None else counted
        left_out = LeftOut(n_fitted, n_impossible, self._n_incomplete, self._n_missing)
        return judge_drift(self._counter, self._reference, table, level, left_out)


class DriftQueries(TableEstimator):
    """Methods of a fitted density that compare new rows with held-out ones."""

    held_out_: StoredCounts | None
    row_hashes_: RowHashes | None

    def compare(
        self,
        X: Table,
        context: ContextTable | None = None,
        reference: Table | None = None,
        reference_context: ContextTable | None = None,
        level: float = 0.05,
    ) -> Drift:
        """Test whether new rows have the distribution of the held-out rows of the fit.

        New rows are compared with held-out rows, and not with the density itself, which is never perfect: with many
        rows, a test against the density would find its errors. All tests hold their level together: without drift,
        `has_drift` is true with at most the probability `level`.

        Arguments:
            X: The new rows, `(N, columns)`, which must be independent of each other. Rows that the density was fitted
                to are left out, unless rows are often equal by chance. If there are such rows, and the density was
                fitted to more than two million, rows of unknown origin are left out, too: see `row_origin`.
            context: Context of the rows, a table of N rows, if the density was fitted with one. Its columns are
                compared, too.
            reference: Rows to compare with, instead of the validation rows of the fit, whose counts in bins are stored
                with the density. The density must not have been trained on them: rows that it was are left out.
            reference_context: Context of these rows.
            level: Probability of a false alarm.

        Returns:
            The result: whether there is drift, and tests of all columns together, of each column and of each pair.

        Example:
            >>> import pandas as pd
            >>> from elflow import FlowDensity
            >>> rng = np.random.default_rng(0)
            >>> table = pd.DataFrame({"a": rng.normal(size=2000), "b": rng.choice(["x", "y"], 2000)})
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(table[:1000])
            >>> density.compare(table[1000:]).has_drift
            False
            >>> found = density.compare(table[1000:].assign(a=table["a"] + 0.5))
            >>> [test.name for test in found.drifted if test.group == "column"]
            ['a']
        """
        monitor = self.monitor(reference, reference_context)
        monitor.add(X, context)
        return monitor.compare(level)

    def monitor(self, reference: Table | None = None, reference_context: ContextTable | None = None) -> DriftMonitor:
        """Compare rows that arrive block by block: see `compare`. The rows are counted, and not kept.

        Arguments:
            reference: Rows to compare with, instead of the validation rows of the fit.
            reference_context: Context of these rows.

        Example:
            >>> from elflow import FlowDensity
            >>> rng = np.random.default_rng(0)
            >>> density = FlowDensity(max_steps=20, random_state=0).fit(rng.normal(size=(1000, 2)))
            >>> monitor = density.monitor()
            >>> for _ in range(3):
            ...     monitor.add(rng.normal(size=(100, 2)))
            >>> monitor.n_rows, monitor.compare().has_drift
            (300, False)
        """
        check_is_fitted(self, "model_")
        stored = self._read_held_out()
        if reference is None:
            if reference_context is not None:
                raise ValueError("reference_context must be None without reference, got a table")
            if stored is None or stored[1].n_rows < MIN_ROWS:
                got = "none" if stored is None else f"{stored[1].n_rows:,}"
                raise ValueError(
                    f"the density must have counts of at least {MIN_ROWS} validation rows to compare with, got {got}: "
                    "pass reference=, rows that it was not trained on (--reference)"
                )
            return DriftMonitor(*stored, self._iter_rows, self._score_rows, self._make_finder())
        rows = self._read_untrained(reference, reference_context)
        log_density = [self._score_rows(part) for part in rows]
        if (n_rows := sum(map(len, rows))) < MIN_ROWS:
            raise ValueError(
                f"reference must have at least {MIN_ROWS} rows that the density was not trained on, got {n_rows:,}"
            )
        if stored is None:
            pairs = choose_pairs(self.schema_, self.context_schema_)
        else:
            pairs = [(pair.first, pair.second) for pair in stored[0].pairs]
        edges = choose_score_edges(np.concatenate(log_density))
        counter = Counter(self.schema_, self.context_schema_, edges, pairs)
        counted = [counter.count(part, scores) for part, scores in zip(rows, log_density, strict=True)]
        total = sum(counted[1:], counted[0])
        return DriftMonitor(counter, total, self._iter_rows, self._score_rows, self._make_finder())

    def _read_held_out(self) -> tuple[Counter, CountedTable] | None:
        """The stored counts of held-out rows; None if there are none."""
        if self.held_out_ is None:
            return None
        return CountedTable.from_dict(self.held_out_, self.schema_, self.context_schema_)

    def _score_rows(self, rows: Rows) -> FloatArray:
        return score_rows(self.model_, rows, N_DRAWS)

    def _make_finder(self) -> OriginFinder | None:
        """Finder of fitted rows; None if many of them are equal: rows are then equal to them by chance."""
        hashes = self.row_hashes_
        return None if hashes is None or hashes.share_repeated > MAX_REPEATED else OriginFinder(hashes)

    def _iter_rows(self, X: Table, context: ContextTable | None, finder: OriginFinder | None) -> Iterator[_Block]:
        """Encoded rows of a table block by block, without rows that have no density because of missing values."""
        for frame, context_frame in self._iter_blocks(X, context):
            is_missing = _find_missing(self.schema_, frame)
            if self.context_schema_ is not None and context_frame is not None:
                is_missing = np.hstack([is_missing, _find_missing(self.context_schema_, context_frame)])
            is_complete = ~is_missing.any(1)
            if not is_complete.all():
                frame = frame[is_complete]
                context_frame = None if context_frame is None else context_frame[is_complete]
            is_new = np.full(len(frame), NEW, dtype="<U10")
            origins = is_new if finder is None else finder.find(hash_rows(self.schema_, frame))
            rows = self._encode(frame, context_frame)
            yield _Block(rows, origins, is_missing.sum(0), int((~is_complete).sum()))

    def _read_untrained(self, X: Table, context: ContextTable | None) -> list[Rows]:
        """Encoded rows of a table without training rows, nor rows that may be such."""
        finder = self._make_finder()
        blocks = list(self._iter_rows(X, context, finder))
        if n_incomplete := sum(block.n_incomplete for block in blocks):
            raise ValueError(
                "reference must not have missing values in columns that were fitted without them, got some in "
                f"{n_incomplete:,} rows"
            )
        if finder is None or not finder.is_recognized:
            return [block.rows for block in blocks]
        kept = [~np.isin(block.origins, (TRAINING, UNKNOWN)) for block in blocks]
        return [block.rows.take(torch.from_numpy(mask)) for block, mask in zip(blocks, kept, strict=True)]


def _find_missing(schema: Schema, frame: pd.DataFrame) -> BoolArray:
    """Whether values are missing in columns that were fitted without missing values, `(N, columns)`."""
    result = np.zeros((len(frame), len(schema.columns)), bool)
    for k, column in enumerate(schema.columns):
        if not column.missing and column.name in frame.columns:  # encoding complains about absent columns
            result[:, k] = frame[column.name].isna()
    return result


def count_held_out(
    model: Dequantized, schema: Schema, context_schema: Schema | None, table: EncodedTable
) -> StoredCounts:
    """Count the validation rows of a fit: the counts are stored with the density, and contain no rows."""
    rows = table.validation.take(slice(0, MAX_HELD_OUT))
    log_density = score_rows(model, rows, N_DRAWS)
    pairs = choose_pairs(schema, context_schema, table.training)
    counter = Counter(schema, context_schema, choose_score_edges(log_density), pairs)
    return counter.count(rows, log_density).to_dict(counter)


def check_held_out(state: dict[str, Any] | None, schema: Schema, context_schema: Schema | None) -> StoredCounts | None:
    """Counts from a file; raise an error if they do not fit to the columns. Those of other versions are not used."""
    if state is None or state.get("version") != BINS_VERSION:
        return None
    check_json(state, StoredCounts, "held_out")
    counts = cast(StoredCounts, state)
    CountedTable.from_dict(counts, schema, context_schema)
    return counts
