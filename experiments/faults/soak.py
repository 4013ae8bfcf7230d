"""Soak test: fit, save, load, score and sample in a loop, while memory and open files are measured."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import elflow
from elflow.io import TableWriter, scan_table
from experiments.faults.victims import SMALL, make_table
from experiments.framework.files import write_text
from experiments.framework.measure import describe_machine, find_commit

__all__ = ["run_soak"]

RESULT = "soak.json"
WARM_UP = 0.25
"""Fraction of the rounds whose memory does not count: caches of torch and of the allocator fill first."""
MAX_GROWTH = 0.05
"""Maximum growth of the memory after the warm-up, as a fraction."""


def run_soak(folder: Path, seconds: float, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Repeat the work of a service for some time, and write memory, open files and threads after each round.

    Arguments:
        folder: Folder for the result.
        seconds: Duration.
        log: Receives lines about the progress.
    """
    torch.set_num_threads(1)
    table = make_table()
    rounds: list[dict[str, Any]] = []
    start, scores = time.monotonic(), None
    while time.monotonic() - start < seconds or len(rounds) < 4:
        found = _work_once(table)
        if scores is not None and not np.array_equal(scores, found):
            raise RuntimeError("scores must be the same in each round, got others")
        scores = found
        gc.collect()
        rounds.append({"seconds": round(time.monotonic() - start, 1), **measure_process()})
        if len(rounds) % 20 == 0:
            log(f"round {len(rounds)}: {rounds[-1]}")
    settled = rounds[int(WARM_UP * len(rounds)) :]
    failures = [
        f"{name} grew from {settled[0][name]} to {settled[-1][name]}"
        for name in ("open_files", "threads")
        if settled[-1][name] > settled[0][name]
    ]
    # The mean of a half is less noisy than single rounds.
    half = len(settled) // 2
    first, last = (np.mean([entry["memory_mb"] for entry in part]) for part in (settled[:half], settled[half:]))
    growth = float(last / first - 1)
    if growth > MAX_GROWTH:
        failures.append(f"memory grew by {growth:.1%}")
    result = {
        "rounds": len(rounds),
        "seconds": rounds[-1]["seconds"],
        "growth": growth,
        "first": settled[0],
        "last": settled[-1],
        "failures": failures,
        "machine": describe_machine(),
        "commit": find_commit(),
    }
    write_text(
        folder / RESULT, json.dumps(result | {"history": rounds[:: max(1, len(rounds) // 100)]}, indent=1) + "\n"
    )
    log(f"{len(rounds)} rounds: memory {growth:+.1%} after the warm-up; {'; '.join(failures) or 'flat'}")
    return result


def _work_once(table: Any) -> Any:
    """Fit, save, load, score in blocks to a file, and sample; return the scores."""
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        density = elflow.FlowDensity(max_steps=30, random_state=0, flow_options=SMALL)
        density.fit(table, checkpoint=folder / "fit.checkpoint").save(folder / "model.elf")
        loaded = elflow.load(folder / "model.elf")
        table.to_csv(folder / "data.csv", index=False)
        with TableWriter(folder / "scores.parquet") as writer:
            for block in scan_table(folder / "data.csv", loaded.schema_.columns, 50):
                writer.write(block.assign(log_density=loaded.score_samples(block)))
        loaded.sample(200, random_state=0)
        return loaded.score_samples(table)


def measure_process() -> dict[str, Any]:
    """Memory, open files and threads of this process."""
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "memory_mb": round(memory / 2**20, 1),
        "open_files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }
