"""Fitting of tables larger than memory: time and memory of `elflow fit` as the number of rows grows.

The table is a folder of Parquet files, fitted by the command in its own process. Linux only: the kernel reports the
memory, and which part of it is the page cache.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import elflow
from elflow.serialization import read_training
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.measure import peak_memory
from experiments.framework.options import parse_count

__all__ = ["EXPERIMENT"]

N_ROWS = (1_000_000, 4_000_000, 16_000_000)
N_SMALL_ROWS = 1_000
FILE_ROWS = 1_000_000
"""Number of rows of a file, which is one row group."""
STEPS, N_VALIDATION_ROWS, N_THREADS = 120, 2_000, 1
TARGET_ROWS, MAX_MEMORY = 100_000_000, 1.5
"""Number of rows of the goal, and its maximum of resident memory beyond the page cache, in GiB."""


def jobs(plan: Plan) -> list[Job]:
    sizes = [N_SMALL_ROWS, *(max(2 * N_SMALL_ROWS, plan.scaled(rows)) for rows in N_ROWS)]
    if "rows" in plan.options:
        sizes = [plan.options["rows"]]
    shared = {"steps": plan.scaled(STEPS), "threads": N_THREADS, "seed": plan.seed}
    return [Job(f"{rows}-rows", shared | {"rows": rows}) for rows in sizes]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    rows = settings["rows"]
    with TemporaryDirectory() as name:
        data, model = Path(name, "data"), Path(name, "model.elf")
        data.mkdir()
        n_bytes = _write_rows(data, rows, settings["seed"])
        options = {
            "max-steps": settings["steps"],
            "threads": settings["threads"],
            "validation": min(0.5, N_VALIDATION_ROWS / rows),
            "seed": settings["seed"],
        }
        record = _run_fit(data, model, options)
        training = read_training(model)
        assert training is not None
        density = elflow.load(model)
        test = _make_rows(10_000, np.random.default_rng(settings["seed"] + 1))
        return record | {
            "rows": rows,
            "bytes": n_bytes,
            "steps": training.steps,
            "test_log_likelihood": float(density.score(test.to_pandas())),
            "n_rows_fitted": density.n_rows_,
        }


def _make_rows(count: int, rng: np.random.Generator) -> pa.Table:
    """Six dependent columns: heavy tails, a bound, a rounded one, counts and categories."""
    z = rng.standard_normal((count, 4))
    z[:, 1] += z[:, 0] ** 2
    z[:, 2] = np.exp(z[:, 2] + 0.5 * z[:, 1].clip(-3, 3))
    z[:, 3] = np.round(20 + 5 * z[:, 3] + z[:, 0], 1)
    kinds = pa.array(["north", "east", "south", "west"])
    return pa.table(
        {f"x{i}": z[:, i] for i in range(4)}
        | {
            "count": rng.poisson(np.exp(0.5 * z[:, 0]) + 2),
            "kind": kinds.take(pa.array(((z[:, 0] > 0) * 2 + (rng.random(count) < 0.3)).astype(np.int64))),
        }
    )


def _write_rows(folder: Path, count: int, seed: int) -> int:
    """Write files with this number of rows in total; return their size in bytes."""
    rng = np.random.default_rng(seed)
    for first in range(0, count, FILE_ROWS):
        table = _make_rows(min(FILE_ROWS, count - first), rng)
        pq.write_table(table, folder / f"part-{first // FILE_ROWS:04}.parquet", row_group_size=FILE_ROWS)
    return sum(file.stat().st_size for file in folder.iterdir())


def _run_fit(data: Path, model: Path, options: dict[str, float]) -> Record:
    """Time, CPU time and peak memory of the command."""
    command = [sys.executable, "-m", "elflow", "fit", str(data), "-o", str(model), "-q"]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    rows_file = model.with_name(model.name + ".rows")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start, peak, beyond, encoded, prepared = time.perf_counter(), 0.0, 0.0, 0, 0.0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            peak = max(peak, peak_memory(process.pid))
            beyond = max(beyond, _read_memory_beyond_cache(process.pid))
            if not encoded and rows_file.exists():  # it appears when it is complete, and training begins
                prepared, encoded = _read_cpu_seconds(process.pid), rows_file.stat().st_size
            time.sleep(0.02)
        error = process.stderr.read().decode() if process.stderr else ""
    if process.returncode:
        raise RuntimeError(f"elflow fit must end with exit code 0, got {process.returncode}: {error[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "seconds": time.perf_counter() - start,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "preparation_cpu_seconds": prepared,
        "peak_gib": peak,
        "beyond_cache_gib": beyond,
        "encoded_bytes": encoded,
    }


def _read_cpu_seconds(process: int) -> float:
    """CPU time of a process so far."""
    ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def _read_memory_beyond_cache(process: int) -> float:
    """Resident memory of a process in GiB that is not in the page cache: all but pages of files."""
    with suppress(OSError, KeyError):  # the process has ended
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        sizes = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Rss")}
        return (int(sizes["RssAnon"]) + int(sizes["RssShmem"])) / 2**20
    return 0.0


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    large = sorted((r for r in records.values() if r["encoded_bytes"]), key=lambda r: int(r["rows"]))
    every = sorted(records.values(), key=lambda r: int(r["rows"]))
    failures = [f"{r['n_rows_fitted']:,} of {r['rows']:,} rows were fitted" for r in every if _is_incomplete(r)]
    failures += [
        f"{r['beyond_cache_gib']:.2f} GiB beyond the page cache for {r['rows']:,} rows, the maximum is {MAX_MEMORY} GiB"
        for r in every
        if r["beyond_cache_gib"] > MAX_MEMORY
    ]
    text = "Time and memory of `elflow fit` on a folder of Parquet files."
    if len(large) > 1:
        first, last = large[0], large[-1]
        n_more = last["rows"] - first["rows"]
        memory = (last["beyond_cache_gib"] - first["beyond_cache_gib"]) / n_more
        seconds = (last["preparation_cpu_seconds"] - first["preparation_cpu_seconds"]) / n_more
        expected = last["beyond_cache_gib"] + memory * (TARGET_ROWS - last["rows"])
        text += (
            f" From {first['rows']:,} to {last['rows']:,} rows, memory beyond the page cache grows by "
            f"{memory * 2**30:.1f} bytes per row; the same growth up to {TARGET_ROWS:,} rows would give {expected:.2f} "
            f"GiB. Reading and encoding takes {1e6 * seconds:.1f} microseconds of CPU time per row."
        )
    rows = [
        [
            f"{r['rows']:,}",
            f"{r['bytes'] / 2**20:,.0f}",
            f"{r['encoded_bytes'] / 2**20:,.0f}",
            f"{r['preparation_cpu_seconds']:.0f}" if r["encoded_bytes"] else "",
            f"{1e3 * (r['cpu_seconds'] - r['preparation_cpu_seconds']) / r['steps']:.0f}" if r["encoded_bytes"] else "",
            f"{r['beyond_cache_gib']:.2f}",
            f"{r['peak_gib']:.2f}",
            f"{r['test_log_likelihood']:.3f}",
        ]
        for r in every
    ]
    headings = ["rows", "Parquet, MiB", "encoded, MiB", "CPU seconds before training", "CPU ms per step after"]
    headings += ["peak beyond page cache, GiB", "peak resident, GiB", "test log-likelihood"]
    note = f"Six columns, {every[0]['steps']} steps, one thread. Peak resident memory includes mapped pages of files."
    return Report(text, [Table("Tables larger than memory", headings, rows, note)], failures=failures)


def _is_incomplete(record: Record) -> bool:
    return bool(record["n_rows_fitted"] != record["rows"])


EXPERIMENT = Experiment(
    "larger-than-memory",
    "Tables larger than memory",
    jobs,
    work,
    report,
    options={"rows": Option(parse_count, "one number of rows instead of several")},
    exclusive=True,
)
