"""Scoring, imputation and sampling in batches, by Ray Data, Dask, Spark, Polars or any other engine."""

from elflow.batch.imputer import Imputer
from elflow.batch.sampler import Sampler
from elflow.batch.scorer import Scorer

__all__ = ["Imputer", "Sampler", "Scorer"]
