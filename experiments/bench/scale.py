"""Scoring of large files: `elflow score` on ten million rows, in rows per second and in memory.

The table is a Parquet file, scored by the command in its own process. Linux only: the kernel reports the
peak memory.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elflow.tabular import FlowDensity
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import peak_memory

__all__ = ["EXPERIMENT"]

N_ROWS, N_TRAINING_ROWS, STEPS, N_THREADS = 10_000_000, 20_000, 500, 2
N_COLUMNS = 6
GROUP_ROWS = 500_000
"""Number of rows of a row group."""
MAX_MEMORY = 1.5
"""Maximum peak memory of scoring, in GiB."""


def jobs(plan: Plan) -> list[Job]:
    sizes = {"rows": plan.scaled(N_ROWS), "training_rows": max(500, plan.scaled(N_TRAINING_ROWS))}
    return [Job("score", sizes | {"steps": plan.scaled(STEPS), "threads": N_THREADS, "seed": plan.seed})]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    seed, threads = settings["seed"], settings["threads"]
    est = FlowDensity(random_state=seed, max_steps=settings["steps"])
    est.fit(_make_rows(settings["training_rows"], np.random.default_rng(seed + 1)))
    with TemporaryDirectory() as name:
        place = Path(name)
        data, model, scores = place / "data.parquet", place / "model.elf", place / "scores.parquet"
        _write_rows(data, settings["rows"], seed)
        _write_rows(place / "few.parquet", 10, seed)
        est.save(model)
        startup_seconds, startup_memory = _time_scoring(model, place / "few.parquet", place / "few.csv", threads)
        seconds, memory = _time_scoring(model, data, scores, threads)
        # The last row group is scored again here, to check the values and their order.
        file, count = pq.ParquetFile(data), pq.ParquetFile(scores).metadata.num_rows
        last = file.read_row_group(file.num_row_groups - 1)
        ours, theirs = est.score_samples(last), pq.read_table(scores).column(0).to_numpy()[-len(last) :]
        return {
            "rows": settings["rows"],
            "scored_rows": count,
            "largest_difference": float(np.abs(ours - theirs).max()),
            "bytes": data.stat().st_size,
            "score_seconds": seconds,
            "rows_per_second": settings["rows"] / seconds,
            "startup_seconds": startup_seconds,
            "peak_gib": memory,
            "startup_peak_gib": startup_memory,
            "threads": threads,
            "parameters": est.n_parameters_,
        }


def _make_rows(count: int, rng: np.random.Generator) -> pa.Table:
    """Dependent columns with heavy tails, a curve and a bound."""
    z = rng.standard_normal((count, N_COLUMNS))
    z[:, 1] += z[:, 0] ** 2
    z[:, 2] = np.exp(z[:, 2] + 0.5 * z[:, 1].clip(-3, 3))
    z[:, 3] /= np.sqrt(rng.gamma(2.0, 0.5, count))
    z[:, 4] = 1 / (1 + np.exp(-z[:, 4] - z[:, 0]))
    return pa.table({f"x{i}": z[:, i] for i in range(N_COLUMNS)})


def _write_rows(path: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schema = _make_rows(1, np.random.default_rng(0)).schema
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, count, GROUP_ROWS):
            writer.write_table(_make_rows(min(GROUP_ROWS, count - first), rng))


def _time_scoring(model: Path, data: Path, output: Path, threads: int) -> tuple[float, float]:
    """Seconds and peak memory of the command, in GiB."""
    command = [sys.executable, "-m", "elflow", "score", str(model), str(data), "-o", str(output)]
    command += ["--threads", str(threads)]
    start, memory = time.perf_counter(), 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            memory = max(memory, peak_memory(process.pid))
            time.sleep(0.05)
        error = process.stderr.read().decode() if process.stderr else ""
    if process.returncode:
        raise RuntimeError(f"elflow score must end with exit code 0, got {process.returncode}: {error[-2000:]}")
    return time.perf_counter() - start, memory


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    (record,) = records.values()
    text = (
        f"`elflow score` scores {record['rows_per_second']:,.0f} rows per second, with a peak of "
        f"{record['peak_gib']:.2f} GiB of memory."
    )
    rows = [
        ["rows", f"{record['rows']:,}", "10"],
        ["seconds", f"{record['score_seconds']:.0f}", f"{record['startup_seconds']:.1f}"],
        ["peak memory, GiB", f"{record['peak_gib']:.2f}", f"{record['startup_peak_gib']:.2f}"],
    ]
    note = f"{N_COLUMNS} columns, {record['bytes']:,} bytes of Parquet, {record['threads']} threads."
    failures = []
    if record["scored_rows"] != record["rows"]:
        failures.append(f"{record['scored_rows']:,} of {record['rows']:,} rows were scored")
    if record["peak_gib"] >= MAX_MEMORY:
        failures.append(f"peak memory is {record['peak_gib']:.2f} GiB, the maximum is {MAX_MEMORY} GiB")
    return Report(text, [Table("Scoring", ["", "large file", "ten rows"], rows, note)], failures=failures)


EXPERIMENT = Experiment("scale", "Scoring of large files", jobs, work, report, exclusive=True)
