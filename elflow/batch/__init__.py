"""Scoring and sampling in batches, by Ray Data, Dask, Spark, Polars or any other engine that applies a function."""

from elflow.batch.sampler import Sampler
from elflow.batch.scorer import Scorer

__all__ = ["Sampler", "Scorer"]
