"""Densities of tables: `FlowDensity`, its schema and columns, and helpers for tables of any library."""

from elflow.tabular.columns import COLUMN_KINDS, Column
from elflow.tabular.conditional import Conditional
from elflow.tabular.estimator import N_DRAWS, FlowDensity
from elflow.tabular.frames import ContextTable, Table, as_frame, digest, fingerprint, from_frame, table_kind
from elflow.tabular.schema import Schema

__all__ = [
    "COLUMN_KINDS",
    "N_DRAWS",
    "Column",
    "Conditional",
    "ContextTable",
    "FlowDensity",
    "Schema",
    "Table",
    "as_frame",
    "digest",
    "fingerprint",
    "from_frame",
    "table_kind",
]
