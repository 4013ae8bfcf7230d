"""Drift: comparison of new rows with the held-out rows of a fit, by counts in bins that are stored with the model."""

from elflow.tabular.drift._result import ColumnShares, Drift, DriftTest

__all__ = ["ColumnShares", "Drift", "DriftTest"]
