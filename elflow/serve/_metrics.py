"""Counts of requests in memory that all workers share, in the text format of Prometheus."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

import numpy as np

__all__ = ["ENDPOINTS", "Metrics"]

ENDPOINTS = ("score", "sample", "impute", "explain", "conditional", "density", "model", "other")
"""Endpoints whose requests are counted; `other` for all others."""
STATUSES = (200, 400, 401, 404, 405, 406, 408, 413, 415, 421, 422, 429, 500, 503, 0)
"""HTTP statuses of answers; 0 for all others."""
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, float("inf"))
"""Upper ends of the buckets of seconds."""


class Metrics:
    """Counts of each worker, of which only the worker itself changes its own.

    The memory is shared by processes that are forked later, so that any worker can answer for all of them. A worker
    that replaces another one continues its counts.

    Arguments:
        workers: Number of workers.

    Example:
        >>> metrics = Metrics(1)
        >>> metrics.count("score", 200, seconds=0.02, rows=3)
        >>> [line for line in metrics.format().splitlines() if line.startswith("elflow_rows_total")][0]
        'elflow_rows_total{endpoint="score"} 3'
    """

    def __init__(self, workers: int = 1) -> None:
        self._workers = workers
        self._fields = {
            "requests": (len(ENDPOINTS), len(STATUSES)),
            "seconds": (len(ENDPOINTS), len(BUCKETS)),
            "sum": (len(ENDPOINTS),),
            "rows": (len(ENDPOINTS),),
            "batches": (2,),
            "under_way": (1,),
        }
        size = sum(int(np.prod(shape)) for shape in self._fields.values())
        memory = mmap.mmap(-1, workers * size * 8)
        self._all = np.frombuffer(memory, np.float64).reshape(workers, size)
        self.choose_worker(0)

    def choose_worker(self, number: int) -> None:
        """Count for this worker, in its own process; requests of one that it replaces are no longer under way."""
        self._own = self._split(self._all[number])
        self._own["under_way"][:] = 0

    def _split(self, counts: np.ndarray) -> dict[str, np.ndarray]:
        parts, start = {}, 0
        for name, shape in self._fields.items():
            size = int(np.prod(shape))
            parts[name] = counts[start : start + size].reshape(shape)
            start += size
        return parts

    @property
    def under_way(self) -> int:
        """Number of requests of this worker that are under way."""
        return int(self._own["under_way"][0])

    def begin(self) -> None:
        """Count a request that is under way."""
        self._own["under_way"][0] += 1

    def end(self) -> None:
        """Count a request that is no longer under way."""
        self._own["under_way"][0] -= 1

    def count(self, endpoint: str, status: int, seconds: float, rows: int = 0) -> None:
        """Count an answer."""
        i = ENDPOINTS.index(endpoint)
        self._own["requests"][i, STATUSES.index(status if status in STATUSES else 0)] += 1
        self._own["seconds"][i, np.searchsorted(BUCKETS, seconds)] += 1
        self._own["sum"][i] += seconds
        self._own["rows"][i] += rows

    def count_batch(self, requests: int) -> None:
        """Count a batch of requests that are scored together."""
        self._own["batches"] += (1, requests)

    def format(self) -> str:
        """Counts of all workers, in the text format of Prometheus."""
        return "\n".join(self._iter_lines()) + "\n"

    def _iter_lines(self) -> Iterator[str]:
        total = self._split(self._all.sum(0))
        yield from _describe("elflow_workers", "gauge", "Number of workers.")
        yield f"elflow_workers {self._workers}"
        yield from _describe("elflow_requests_under_way", "gauge", "Requests that have no answer yet.")
        yield f"elflow_requests_under_way {total['under_way'][0]:.0f}"
        yield from _describe("elflow_requests_total", "counter", "Answers by endpoint and HTTP status.")
        for i, endpoint in enumerate(ENDPOINTS):
            for j, status in enumerate(STATUSES):
                if total["requests"][i, j]:
                    labels = f'endpoint="{endpoint}",status="{status or "other"}"'
                    yield f"elflow_requests_total{{{labels}}} {total['requests'][i, j]:.0f}"
        yield from _describe("elflow_rows_total", "counter", "Rows of answers by endpoint.")
        for i, endpoint in enumerate(ENDPOINTS):
            yield f'elflow_rows_total{{endpoint="{endpoint}"}} {total["rows"][i]:.0f}'
        yield from _describe("elflow_request_seconds", "histogram", "Time to an answer by endpoint.")
        for i, endpoint in enumerate(ENDPOINTS):
            for bucket, number in zip(BUCKETS, np.cumsum(total["seconds"][i]), strict=True):
                end = "+Inf" if np.isinf(bucket) else f"{bucket:g}"
                yield f'elflow_request_seconds_bucket{{endpoint="{endpoint}",le="{end}"}} {number:.0f}'
            yield f'elflow_request_seconds_sum{{endpoint="{endpoint}"}} {total["sum"][i]:.6f}'
            yield f'elflow_request_seconds_count{{endpoint="{endpoint}"}} {total["seconds"][i].sum():.0f}'
        yield from _describe("elflow_score_batches_total", "counter", "Batches of small requests scored together.")
        yield f"elflow_score_batches_total {total['batches'][0]:.0f}"
        yield from _describe("elflow_batched_requests_total", "counter", "Small requests in these batches.")
        yield f"elflow_batched_requests_total {total['batches'][1]:.0f}"


def _describe(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"
