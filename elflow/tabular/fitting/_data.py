"""Data of a fit: the columns of a table in memory or in files, and its encoded rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from sklearn.utils.validation import _check_sample_weight

from elflow._checks import join_names, record_warnings, warn_user
from elflow.io import TableStream
from elflow.tabular._inputs import TableEstimator
from elflow.tabular.columns._kinds import Declaration
from elflow.tabular.columns._survey import MAX_COUNTED, Survey
from elflow.tabular.fitting._blocks import FrameBlocks, StreamBlocks
from elflow.tabular.fitting._encoded import EncodedTable, count_training_rows, encode_table, read_encoded, write_encoded
from elflow.tabular.fitting._split import Split
from elflow.tabular.frames import ContextTable, Table, digest, table_kind
from elflow.tabular.hints._hints import warn_about_columns
from elflow.tabular.schema import Schema

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["FittedTables", "choose_rows_file"]

MIN_ROWS = 5
"""Minimum number of rows in fit."""


class FittedTables(TableEstimator):
    """Estimator that infers the columns of a table, and encodes its rows for training."""

    columns: Mapping[Any, Declaration] | None
    validation: float
    n_rows_: int
    warnings_: list[str]

    def _encode_table(
        self, X: Table, context: ContextTable | None, sample_weight: ArrayLike | None, seed: int
    ) -> tuple[EncodedTable, tuple[object, ...]]:
        """Infer the columns of a table in memory, and encode its rows; also return all that these depend on."""
        frame = self._as_frame(X, fitting=True)
        context_frame = self._as_context(context, len(frame), fitting=True)
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, frame, ensure_non_negative=True)
        if weight is not None:  # rows of weight zero have no effect at all, not even on the schema
            is_used, weight = weight > 0, weight[weight > 0]
            frame = frame[is_used].reset_index(drop=True)
            context_frame = None if context_frame is None else context_frame[is_used].reset_index(drop=True)
        _check_n_rows(len(frame))
        # A fit that fails or is interrupted leaves no fitted density, instead of new columns with an old flow.
        self.__dict__.pop("model_", None)
        key = self.__dict__.pop("_schema_key", None)  # left by fit_schema
        if key is None or key != self._digest_schema_input(X, frame, context_frame):
            self._infer_schemas(Survey.of_frame(frame), _survey_context(context_frame), X)
        blocks, split = FrameBlocks(frame, context_frame, weight), Split(len(frame), self.validation, seed)
        self.n_rows_ = len(frame)
        # Validation rows are to score as new rows do: the widths of cells do not depend on them either.
        self.schema_ = count_training_rows(blocks, self.schema_, split)
        return encode_table(blocks, self.schema_, self.context_schema_, split), (frame, context_frame, weight)

    def _encode_stream(
        self, blocks: StreamBlocks, path: Path, is_shared: bool, seed: int, fabric: Fabric
    ) -> EncodedTable:
        """Infer the columns of a table in files, and encode its rows into a file, unless it has them already.

        Several processes share a file that is not temporary: the first one of each machine writes it.
        """
        self.__dict__.pop("model_", None)
        surveyed = self.__dict__.pop("_schema_key", None)  # left by fit_schema
        schema_key = self._make_schema_key(blocks)
        key = self._make_schema_key(blocks, self.validation, seed)
        stored = None if key is None else read_encoded(path, key)
        # All processes decide alike, before the first one writes the file.
        if not fabric.broadcast(stored is not None):
            if surveyed is None or surveyed != schema_key:
                self._survey(blocks)
            _check_n_rows(blocks.n_rows)
            if fabric.local_rank == 0 or not is_shared:
                split = Split(blocks.n_rows, self.validation, seed)
                schema = count_training_rows(blocks, self.schema_, split)
                facts = {"n_rows": blocks.n_rows, "warnings": self.warnings_, "names": blocks.names}
                write_encoded(path, blocks, schema, self.context_schema_, split, key, facts)
            fabric.barrier()
            stored = read_encoded(path, key)
        else:
            for message in stored.facts["warnings"] if stored else ():
                warn_user(message)
        assert stored is not None
        self.schema_, self.context_schema_ = stored.schema, stored.context_schema
        self.n_rows_, self.warnings_ = stored.facts["n_rows"], stored.facts["warnings"]
        self._set_names(stored.facts["names"])
        return stored.table

    def _as_blocks(self, stream: TableStream, context: object, verbose: bool) -> StreamBlocks:
        """Blocks of a table in files, of which some columns are the context."""
        names = [context] if isinstance(context, str) else [] if context is None else context
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise TypeError(f"context must be a list of column names if X is in files, got {type(context).__name__}")
        return StreamBlocks(stream, names, verbose)

    def _infer_frame_schemas(self, X: Table, frame: pd.DataFrame, context: pd.DataFrame | None) -> str:
        """Set the schemas of a table in memory, and return a digest of all that they depend on."""
        self._infer_schemas(Survey.of_frame(frame), _survey_context(context), X)
        return self._digest_schema_input(X, frame, context)

    def _infer_stream_schemas(self, blocks: StreamBlocks) -> str | None:
        """Set the schemas of a table in files, and return a digest of all that they depend on."""
        key = self._make_schema_key(blocks)
        self._survey(blocks)
        return key

    def _make_schema_key(self, blocks: StreamBlocks, *settings: object) -> str | None:
        declared = {str(name): kind for name, kind in (self.columns or {}).items()}
        return blocks.make_key(declared, self.missing, *settings)

    def _survey(self, blocks: StreamBlocks) -> None:
        """Set the schemas of a table in files."""
        survey, context_survey = blocks.survey(self.columns)
        self._set_names(blocks.names)
        self._infer_schemas(survey, context_survey, survey.frame)

    def _set_names(self, names: Sequence[str]) -> None:
        self.feature_names_in_ = np.array(names, dtype=object)
        self.n_features_in_ = len(names)

    def _infer_schemas(self, survey: Survey, context: Survey | None, X: Table) -> None:
        """Set the schemas of the table and of its context, and the warnings about their columns."""
        with record_warnings() as messages:
            declared = {str(name) for name in self.columns or {}}
            survey = _leave_out_identifiers(survey, declared)
            self.schema_ = Schema.fit(survey.frame, self.columns, self.missing, survey=survey).with_labels_of(X)
            if survey.too_many:
                self.schema_ = replace(self.schema_, ignored=(*self.schema_.ignored, *survey.too_many))
            warn_about_columns(self.schema_, survey.frame, declared, survey.row_numbers)
            self.context_schema_ = None
            if context is not None:
                context = _leave_out_identifiers(context, ())
                self.context_schema_ = Schema.fit(context.frame, None, self.missing, infer_bounds=False, survey=context)
        self.warnings_ = messages

    def _digest_schema_input(self, X: Table, frame: pd.DataFrame, context: pd.DataFrame | None) -> str:
        """Digest of everything that the schemas depend on."""
        labels = list(X.columns) if isinstance(X, pd.DataFrame) else None
        return digest(table_kind(X), labels, frame, context, self.columns, self.missing)


def _check_n_rows(count: int) -> None:
    if count < MIN_ROWS:
        # scikit-learn's contract asks for the words in brackets
        raise ValueError(f"X must have at least {MIN_ROWS} rows of positive weight, got {count} (n_samples={count})")


def _survey_context(frame: pd.DataFrame | None) -> Survey | None:
    return None if frame is None else Survey.of_frame(frame)


def _leave_out_identifiers(survey: Survey, declared: Collection[str]) -> Survey:
    """The same survey without columns that have too many categories."""
    if not survey.too_many:
        return survey
    if both := [name for name in survey.too_many if name in declared]:
        raise ValueError(f"columns {both} must have at most {MAX_COUNTED:,} categories in files, got more")
    warn_user(
        f"columns {join_names(survey.too_many)} are left out, since they have more than {MAX_COUNTED:,} different texts"
    )
    kept = [name for name in survey.frame.columns if name not in survey.too_many]
    return replace(survey.select(kept), too_many=survey.too_many)


@contextmanager
def choose_rows_file(path: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The file for encoded rows: the given one, or a temporary one that is deleted at the end."""
    if path is not None:
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="elflow-") as folder:
        yield Path(folder, "rows")
