"""Densities of tables: `FlowDensity`, its schema and columns, and helpers for tables of any library."""

from elflow.tabular._clones import clone_density
from elflow.tabular._flow import SAMPLE_BLOCK
from elflow.tabular._random import RandomState, as_generator
from elflow.tabular.classifier import FlowClassifier
from elflow.tabular.columns import COLUMN_KINDS, Column
from elflow.tabular.columns._warnings import OutsideBoundsWarning
from elflow.tabular.drift import ColumnShares, Drift, DriftTest
from elflow.tabular.drift._queries import DriftMonitor
from elflow.tabular.estimator import N_DRAWS, FlowDensity
from elflow.tabular.fitting._defaults import default_recipe
from elflow.tabular.fitting._split import Split
from elflow.tabular.frames import (
    ContextTable,
    Table,
    as_frame,
    digest,
    fingerprint,
    from_frame,
    number_rows_from,
    table_kind,
)
from elflow.tabular.imputer import FlowImputer
from elflow.tabular.memorization import Memorization
from elflow.tabular.queries._anomaly import rank_log_density, summarize_log_density
from elflow.tabular.queries._conditional import Conditional
from elflow.tabular.queries._given import MISSING
from elflow.tabular.queries._given_checks import ExtrapolationWarning
from elflow.tabular.queries._imputation_queries import IMPUTATION_METHODS
from elflow.tabular.queries._info import Info, PoorSampleWarning, warn_if_poor
from elflow.tabular.queries._subset_queries import Marginal
from elflow.tabular.regressor import FlowRegressor
from elflow.tabular.schema import Schema

__all__ = [
    "COLUMN_KINDS",
    "IMPUTATION_METHODS",
    "MISSING",
    "N_DRAWS",
    "SAMPLE_BLOCK",
    "Column",
    "ColumnShares",
    "Conditional",
    "ContextTable",
    "Drift",
    "DriftMonitor",
    "DriftTest",
    "ExtrapolationWarning",
    "FlowClassifier",
    "FlowDensity",
    "FlowImputer",
    "FlowRegressor",
    "Info",
    "Marginal",
    "Memorization",
    "OutsideBoundsWarning",
    "PoorSampleWarning",
    "RandomState",
    "Schema",
    "Split",
    "Table",
    "as_frame",
    "as_generator",
    "clone_density",
    "default_recipe",
    "digest",
    "fingerprint",
    "from_frame",
    "number_rows_from",
    "rank_log_density",
    "summarize_log_density",
    "table_kind",
    "warn_if_poor",
]
