"""How times are measured: side by side in one run, because machines are noisy and ratios are not."""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from elflow import __version__
from elflow.kernels import native

__all__ = ["interleaved", "machine", "mean_and_error", "timings"]


def timings(functions: dict[str, Callable[[], object]], seconds: float, least: int = 5) -> dict[str, list[float]]:
    """The seconds of every call of each function, all called in turn for about that long, after one to warm up."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    end = time.perf_counter() + seconds
    while len(next(iter(times.values()))) < least or time.perf_counter() < end:
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return times


def interleaved(functions: dict[str, Callable[[], object]], seconds: float, least: int = 5) -> dict[str, float]:
    """The median seconds of each function."""
    return {name: statistics.median(taken) for name, taken in timings(functions, seconds, least).items()}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean over seeds and its standard error, which of one value alone is not known: 0.

    Example:
        >>> mean_and_error([1.0, 3.0])
        (2.0, 1.0)
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.mean(values), error


def machine() -> dict[str, Any]:
    """What figures were measured on."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "instruction_set": native.extension.instruction_set() if native.extension else "plain torch",
        "elflow": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
