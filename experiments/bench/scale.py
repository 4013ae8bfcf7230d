"""Scale: `elflow score` on ten million rows, in rows per second and in memory.

python -m experiments.bench.scale

The table is a Parquet file made for the purpose, scored by the command in a process of its own. Linux only: the peak
is what the kernel says of that process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from experiments.bench._measure import RESULTS, machine, write
from elflow.tabular import FlowDensity

COLUMNS = 6
GROUP = 500_000
"""Rows of a row group."""
LIMIT = 1.5
"""GiB that scoring may take at its peak."""


def rows(count: int, rng: np.random.Generator) -> pa.Table:
    """Heavy tails, a curve, a bound, and columns that hang together."""
    z = rng.standard_normal((count, COLUMNS))
    z[:, 1] += z[:, 0] ** 2
    z[:, 2] = np.exp(z[:, 2] + 0.5 * z[:, 1].clip(-3, 3))
    z[:, 3] /= np.sqrt(rng.gamma(2.0, 0.5, count))
    z[:, 4] = 1 / (1 + np.exp(-z[:, 4] - z[:, 0]))
    return pa.table({f"x{i}": z[:, i] for i in range(COLUMNS)})


def make(path: Path, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    writer = None
    for first in range(0, count, GROUP):
        group = rows(min(GROUP, count - first), rng)
        writer = writer or pq.ParquetWriter(path, group.schema)
        writer.write_table(group)
    if writer:
        writer.close()


def peak(process: int) -> float:
    """The most memory the process has held so far, in GiB; nothing once it is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 2**20 for line in lines if line.startswith("VmHWM")), 0.0)


def score(model: Path, data: Path, output: Path, threads: int) -> tuple[float, float]:
    """Seconds and peak memory of the command."""
    command = [sys.executable, "-m", "elflow", "score", str(model), str(data), "-o", str(output)]
    command += ["--threads", str(threads)]
    start, most = time.perf_counter(), 0.0
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            most = max(most, peak(process.pid))
            time.sleep(0.05)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return time.perf_counter() - start, most


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    data, few, model, scores = (
        folder / name for name in ("data.parquet", "few.parquet", "model.elf", "scores.parquet")
    )
    make(data, options.rows, options.seed)
    make(few, 10, options.seed)
    sample = rows(options.sample, np.random.default_rng(options.seed + 1))
    est = FlowDensity(random_state=options.seed, max_steps=options.steps).fit(sample)
    est.save(model)
    startup, least = score(model, few, folder / "few-scores.parquet", options.threads)
    seconds, most = score(model, data, scores, options.threads)
    # The last row group again, here: the right scores in the right order.
    file, count = pq.ParquetFile(data), pq.ParquetFile(scores).metadata.num_rows
    last = file.read_row_group(file.num_row_groups - 1)
    ours, theirs = est.score_samples(last), pq.read_table(scores).column(0).to_numpy()[-len(last) :]
    return {
        "rows": count,
        "complete": count == options.rows,
        "largest_difference": float(np.abs(ours - theirs).max()),
        "bytes": data.stat().st_size,
        "seconds": seconds,
        "rows_per_second": options.rows / seconds,
        "startup_seconds": startup,
        "peak_gib": most,
        "startup_peak_gib": least,
        "parameters": est.n_parameters_,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for results (%(default)s)")
    parser.add_argument("--rows", type=int, default=10_000_000, help="to score (%(default)s)")
    parser.add_argument("--sample", type=int, default=20_000, help="rows to fit on (%(default)s)")
    parser.add_argument("--steps", type=int, default=500, help="training steps (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        result = measure(Path(name), options)
    speed, most = result["rows_per_second"], result["peak_gib"]
    print(f"{result['rows']:,} rows in {result['seconds']:.0f} s: {speed:,.0f} rows/s, peak {most:.2f} GiB", end="")
    print(f" ({result['startup_peak_gib']:.2f} GiB for ten rows); the limit is {LIMIT} GiB")
    write(
        options.output / "scale.json", {"machine": machine(), "threads": options.threads, "columns": COLUMNS, **result}
    )
    sys.exit(0 if result["complete"] and most < LIMIT else 1)


if __name__ == "__main__":
    main()
