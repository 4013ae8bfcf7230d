"""Scoring of large files: `elflow score` in rows per second, per CPU second, and in memory.

One table has ten million rows of floats, the other one columns of every kind. They are Parquet files, scored by the
command in its own process. Linux only: the kernel reports the peak memory and the CPU time. The native kernel for
mixtures of flows is compared with the path through torch on a part of the rows, one after the other on one thread.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from elflow.tabular import FlowDensity
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import peak_memory, time_calls

__all__ = ["EXPERIMENT"]

N_ROWS = {"floats": 10_000_000, "mixed": 200_000}
N_TRAINING_ROWS, STEPS, N_THREADS = 20_000, 500, 2
N_COLUMNS = 6
GROUP_ROWS = 500_000
"""Number of rows of a row group."""
N_COMPARED_ROWS = {"floats": 4096, "mixed": 512}
"""Number of rows that are scored with and without the native kernel."""
MAX_MEMORY = 0.7
"""Maximum peak memory of scoring, in GiB."""


def jobs(plan: Plan) -> list[Job]:
    training = {"training_rows": max(500, plan.scaled(N_TRAINING_ROWS)), "steps": plan.scaled(STEPS)}
    shared = training | {"threads": N_THREADS, "seed": plan.seed}
    return [Job(table, {"table": table, "rows": plan.scaled(rows)} | shared) for table, rows in N_ROWS.items()]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    seed, threads = settings["seed"], settings["threads"]
    make_rows = TABLES[settings["table"]]
    est = FlowDensity(random_state=seed, max_steps=settings["steps"])
    est.fit(make_rows(settings["training_rows"], np.random.default_rng(seed + 1)))
    with TemporaryDirectory() as name:
        place = Path(name)
        data, model, scores = place / "data.parquet", place / "model.elf", place / "scores.parquet"
        _write_rows(data, make_rows, settings["rows"], seed)
        _write_rows(place / "few.parquet", make_rows, 10, seed)
        est.save(model)
        startup_seconds, startup_cpu, startup_memory = _time_scoring(
            model, place / "few.parquet", place / "few.csv", threads
        )
        seconds, cpu_seconds, memory = _time_scoring(model, data, scores, threads)
        # The last rows are scored again here, to check the values and their order.
        file, count = pq.ParquetFile(data), pq.ParquetFile(scores).metadata.num_rows
        last = file.read_row_group(file.num_row_groups - 1)[-10_000:]
        ours, theirs = est.score_samples(last), pq.read_table(scores).column(0).to_numpy()[-len(last) :]
        return {
            "rows": settings["rows"],
            "scored_rows": count,
            "largest_difference": float(np.abs(ours - theirs).max()),
            "bytes": data.stat().st_size,
            "score_seconds": seconds,
            "rows_per_second": settings["rows"] / seconds,
            "cpu_seconds": cpu_seconds,
            "rows_per_cpu_second": settings["rows"] / (cpu_seconds - startup_cpu),
            "startup_seconds": startup_seconds,
            "startup_cpu_seconds": startup_cpu,
            "peak_gib": memory,
            "startup_peak_gib": startup_memory,
            "threads": threads,
            "parameters": est.n_parameters_,
            "members": est.members_,
            **_compare_paths(est, make_rows(N_COMPARED_ROWS[settings["table"]], np.random.default_rng(seed + 2))),
        }


def _compare_paths(est: FlowDensity, rows: pa.Table) -> Record:
    """Speed of the native kernel over that of the path through torch, on one thread, and their largest difference."""

    def score_by_torch() -> np.ndarray:
        with patch("elflow.tabular._flow.compile_density", return_value=None):
            return est.score_samples(rows)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        difference = np.abs(score_by_torch() - est.score_samples(rows)).max()
        times = time_calls({"kernel": lambda: est.score_samples(rows), "torch": score_by_torch}, seconds=0)
    finally:
        torch.set_num_threads(threads)
    ratios = [slow / fast for slow, fast in zip(times["torch"], times["kernel"], strict=True)]
    return {"speed_up": statistics.median(ratios), "kernel_difference": float(difference)}


def _make_floats(count: int, rng: np.random.Generator) -> pa.Table:
    """Dependent columns with heavy tails, a curve and a bound."""
    z = rng.standard_normal((count, N_COLUMNS))
    z[:, 1] += z[:, 0] ** 2
    z[:, 2] = np.exp(z[:, 2] + 0.5 * z[:, 1].clip(-3, 3))
    z[:, 3] /= np.sqrt(rng.gamma(2.0, 0.5, count))
    z[:, 4] = 1 / (1 + np.exp(-z[:, 4] - z[:, 0]))
    return pa.table({f"x{i}": z[:, i] for i in range(N_COLUMNS)})


def _make_mixed(count: int, rng: np.random.Generator) -> pa.Table:
    """Columns of every kind: two floats, rounded amounts, counts, a boolean, two categories and days."""
    z = rng.standard_normal((count, 3))
    kind = rng.choice(5, count, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    frame = {
        "amount": np.round(np.exp(z[:, 0] + 0.3 * kind), 2),
        "x": z[:, 1] + z[:, 0] ** 2,
        "y": z[:, 2] * (1 + kind),
        "count": rng.poisson(np.exp(0.5 * z[:, 1] + 1)),
        "flag": rng.random(count) < 1 / (1 + np.exp(-z[:, 2])),
        "kind": np.array(list("abcde"))[kind],
        "shop": np.char.add("s", rng.geometric(0.12, count).clip(max=30).astype(str)),
        "day": np.datetime64("2024-01-01", "ns") + (365 * rng.beta(2, 2 + kind)).astype("timedelta64[D]"),
    }
    return pa.Table.from_pandas(pd.DataFrame(frame), preserve_index=False)


TABLES: dict[str, Callable[[int, np.random.Generator], pa.Table]] = {"floats": _make_floats, "mixed": _make_mixed}


def _write_rows(path: Path, make_rows: Callable[[int, np.random.Generator], pa.Table], count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    schema = make_rows(1, np.random.default_rng(0)).schema
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, count, GROUP_ROWS):
            writer.write_table(make_rows(min(GROUP_ROWS, count - first), rng))


def _time_scoring(model: Path, data: Path, output: Path, threads: int) -> tuple[float, float, float]:
    """Seconds, CPU seconds and peak memory of the command, in GiB."""
    command = [sys.executable, "-m", "elflow", "score", str(model), str(data), "-o", str(output)]
    command += ["--threads", str(threads)]
    start, memory, before = time.perf_counter(), 0.0, resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            memory = max(memory, peak_memory(process.pid))
            time.sleep(0.05)
        error = process.stderr.read().decode() if process.stderr else ""
    if process.returncode:
        raise RuntimeError(f"elflow score must end with exit code 0, got {process.returncode}: {error[-2000:]}")
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, memory


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    named = [(TITLES[name], record) for name, record in records.items()]
    text = "\n\n".join(
        f"{title}: `elflow score` scores {r['rows_per_second']:,.0f} rows per second on {r['threads']} threads, "
        f"{r['rows_per_cpu_second']:,.0f} per CPU second, with a peak of {r['peak_gib']:.2f} GiB of memory. The native "
        f"kernel is {r['speed_up']:.1f} times as fast as the path through torch."
        for title, r in named
    )
    numbers = [
        ("rows", ",d"),
        ("score_seconds", ".0f"),
        ("rows_per_second", ",.0f"),
        ("rows_per_cpu_second", ",.0f"),
        ("peak_gib", ".2f"),
        ("startup_seconds", ".1f"),
        ("speed_up", ".1f"),
    ]
    rows = [[title, *(format(record[name], style) for name, style in numbers)] for title, record in named]
    columns = ["table", "rows", "seconds", "rows per second", "rows per CPU second", "peak memory, GiB"]
    columns += ["seconds for ten rows", "kernel over torch"]
    failures = []
    for title, record in named:
        if record["scored_rows"] != record["rows"]:
            failures.append(f"{title}: {record['scored_rows']:,} of {record['rows']:,} rows were scored")
        if record["largest_difference"] > 0:
            failures.append(f"{title}: scores differ by {record['largest_difference']:g} from those in one batch")
        if record["peak_gib"] >= MAX_MEMORY:
            failures.append(f"{title}: peak memory is {record['peak_gib']:.2f} GiB, the maximum is {MAX_MEMORY} GiB")
    return Report(text, [Table("Scoring", columns, rows)], failures=failures)


TITLES = {"floats": "six columns of floats", "mixed": "eight columns of every kind"}

EXPERIMENT = Experiment("scale", "Scoring of large files", jobs, work, report, exclusive=True)
