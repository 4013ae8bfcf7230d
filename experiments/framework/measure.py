"""Measurements: interleaved timings, standard errors, parameter counts, and a description of the machine."""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elflow import __version__
from elflow.kernels import native

__all__ = [
    "count_parameters",
    "describe_machine",
    "find_commit",
    "fit_line",
    "mean_and_error",
    "median_times",
    "peak_memory",
    "sample_mean_and_error",
    "time_calls",
]


def time_calls(functions: Mapping[str, Callable[[], object]], seconds: float, least: int = 5) -> dict[str, list[float]]:
    """Seconds of each call of each function, after one call to warm up.

    The functions are called in turn for about `seconds`, because machines are noisy and only ratios of neighbouring
    calls are not.
    """
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


def median_times(functions: Mapping[str, Callable[[], object]], seconds: float, least: int = 5) -> dict[str, float]:
    """Median seconds of a call of each function, as measured by `time_calls`."""
    return {name: statistics.median(times) for name, times in time_calls(functions, seconds, least).items()}


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean of a few values, such as one for each seed, and its standard error: 0 for a single value.

    Example:
        >>> mean_and_error([1.0, 3.0])
        (2.0, 1.0)
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return statistics.mean(values), error


def sample_mean_and_error(values: Tensor) -> tuple[float, float]:
    """The mean of many values, such as the log-densities of test rows `(N,)`, and its standard error.

    Example:
        >>> sample_mean_and_error(torch.tensor([1.0, 3.0]))
        (2.0, 1.0)
    """
    values = values.double()
    error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return float(values.mean()), error


def count_parameters(model: nn.Module) -> int:
    """The number of trainable parameters, including those that a mask multiplies by zero.

    Example:
        >>> count_parameters(nn.Linear(2, 3))
        9
    """
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def peak_memory(process: int | str = "self") -> float:
    """The peak memory of a process so far, in GiB; 0 once it has ended. Linux only.

    Example:
        >>> 0 < peak_memory() < 100
        True
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmHWM")), 0.0)


def describe_machine() -> dict[str, Any]:
    """The processor and the versions that results were measured with."""
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


@cache
def find_commit() -> str | None:
    """The commit of the repository, with a plus sign if files have changed since; None without a repository."""
    folder = Path(__file__).parent
    try:
        describe = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
        return subprocess.run(describe, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def fit_line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float]:
    """Least-squares line through points: its intercept, its slope, and R^2.

    Example:
        >>> fit_line([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
        (1.0, 2.0, 1.0)
    """
    from scipy.stats import linregress  # slow to load, and no worker process needs it

    line = linregress(x, y)
    return float(line.intercept), float(line.slope), float(line.rvalue**2)
