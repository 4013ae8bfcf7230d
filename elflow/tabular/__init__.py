"""Densities of tables: `FlowDensity`, and the columns and schema it is made of."""

from elflow.tabular.columns import Column
from elflow.tabular.estimator import FlowDensity
from elflow.tabular.schema import Schema

__all__ = ["Column", "FlowDensity", "Schema"]
