"""The service under load: requests a second beside calls in the same process, and a siege with hostile requests.

Clients and workers share the machine, over the loopback address.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

import numpy as np
import pandas as pd
import torch

import elflow
from elflow.datasets import example
from experiments.bench._serve_clients import load, siege
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.measure import median_times

__all__ = ["EXPERIMENT"]

CONNECTIONS, ROWS = (1, 8, 64), (1, 1_000)
N_WORKERS = 2
START_SECONDS = 120.0
"""Maximum time for the service to start and to end."""
SECONDS, SIEGE_SECONDS = 8.0, 600.0
MIN_RATE, MAX_P99 = 500.0, 0.05
"""Requests a second, and seconds, for single rows over eight connections."""
MAX_GROWTH = 0.05
PARTS = ("both", "load", "siege")


def jobs(plan: Plan) -> list[Job]:
    shared = {"workers": N_WORKERS, "max_steps": plan.options.get("max_steps"), "seed": plan.seed}
    shared["model"] = plan.options.get("model")
    seconds = plan.options.get("seconds", plan.seconds(SECONDS))
    under_load = {"kind": "load", "seconds": seconds, "connections": list(CONNECTIONS), "rows": list(ROWS)}
    duration = plan.options.get("siege", plan.seconds(SIEGE_SECONDS))
    both = [Job("load", shared | under_load), Job("siege", shared | {"kind": "siege", "seconds": duration})]
    part = plan.options.get("part", "both")
    if part not in PARTS:
        raise ValueError(f"part must be one of {PARTS}, got {part!r}")
    return [job for job in both if part in ("both", job.key)]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.set_num_threads(1)
    table = example.cells()
    with TemporaryDirectory() as name:
        path = settings["model"] or Path(name, "model.elf")
        if settings["model"] is None:
            density = elflow.FlowDensity(random_state=settings["seed"], max_steps=settings["max_steps"])
            density.fit(table).save(path)
        density = elflow.load(path)
        with Server(path, settings["workers"]) as server:
            if settings["kind"] == "load":
                return measure_load(server, density, table, settings)
            return measure_siege(server, density, table, settings)


class Server:
    """`elflow serve` in a process of its own.

    Arguments:
        path: The model.
        workers: Number of workers.
    """

    def __init__(self, path: str | Path, workers: int) -> None:
        self._command = [sys.executable, "-m", "elflow", "serve", str(path), "--port", "0", "--workers", str(workers)]

    def __enter__(self) -> Server:
        # A file, not a pipe: nobody would read the log of thousands of hostile requests, and the service would wait.
        self._log = TemporaryFile("a+")  # appended to, wherever this process reads
        self._process = subprocess.Popen(self._command, stderr=self._log)
        end = time.monotonic() + START_SECONDS
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", self._read_log())):
            if self._process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"elflow serve must say where it listens, got {self._read_log()!r}")
            time.sleep(0.1)
        self.port = int(found[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=START_SECONDS)
        self._log.close()

    def _read_log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    @property
    def workers(self) -> list[int]:
        """Processes of the workers."""
        text = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [int(process) for process in text.split()]

    @property
    def memory(self) -> float:
        """Memory of all workers in MiB, shared pages counted once."""
        total = 0
        for process in [self._process.pid, *self.workers]:
            try:
                lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            except OSError:  # it has just ended
                continue
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024

    @property
    def cpu_seconds(self) -> float:
        """CPU time of all workers so far."""
        ticks = 0
        for process in self.workers:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])  # of the process, and of the kernel for it
        return ticks / os.sysconf("SC_CLK_TCK")

    def kill_worker(self) -> None:
        """Kill one worker, as the kernel does when memory is exhausted."""
        os.kill(self.workers[0], signal.SIGKILL)


def measure_load(server: Server, density: elflow.FlowDensity, table: pd.DataFrame, settings: Record) -> Record:
    """Requests a second and times of answers, for each number of connections and of rows."""
    record: Record = {"settings": settings, "cases": [], "load_average": [os.getloadavg()[0]]}
    for n_rows in settings["rows"]:
        rows = table.iloc[np.arange(n_rows) % len(table)].reset_index(drop=True)
        expected = density.score_samples(rows)
        score = partial(density.score_samples, rows)
        alone = {"in_process": median_times({"score": score}, settings["seconds"] / 8)["score"]}
        alone["in_process_cpu"] = measure_cpu(score, settings["seconds"] / 8)
        for connections in settings["connections"]:
            before = server.cpu_seconds
            found = load(server.port, rows, expected, connections, settings["seconds"])
            cpu = (server.cpu_seconds - before) / (found["answered"] + connections)  # each warms up by one request
            facts = {"rows": n_rows, "connections": connections, "cpu_per_request": cpu}
            record["cases"].append(facts | alone | found)
    record["load_average"].append(os.getloadavg()[0])
    return record


def measure_cpu(work: Callable[[], object], seconds: float) -> float:
    """CPU seconds of one call, on average over calls for some time: other processes of the machine count less."""
    end, count, start = time.monotonic() + seconds, 0, time.process_time()
    while not count or time.monotonic() < end:
        work()
        count += 1
    return (time.process_time() - start) / count


def measure_siege(server: Server, density: elflow.FlowDensity, table: pd.DataFrame, settings: Record) -> Record:
    """Mixed requests for minutes, and one worker killed in the middle."""
    start, memory, kills = time.monotonic(), [], 0

    def watch() -> None:
        nonlocal kills
        elapsed = time.monotonic() - start
        memory.append((elapsed, server.memory))
        if not kills and elapsed > settings["seconds"] / 2:
            server.kill_worker()
            kills += 1

    outcomes, rates = siege(server.port, density, table, settings["seconds"], settings["seed"], watch)
    sizes = np.array([size for _, size in memory])
    # Caches fill at first. The worker that replaces the killed one begins with less memory of its own.
    quarter = max(1, len(sizes) // 4)
    return {
        "settings": settings,
        "outcomes": {str(key): count for key, count in sorted(outcomes.items())},
        "requests_per_second": rates,
        "memory_mib": {"second_quarter": float(np.median(sizes[quarter : 2 * quarter])),
                       "last_quarter": float(np.median(sizes[-quarter:])), "peak": float(sizes.max())},
        "workers_at_the_end": len(server.workers),
        "killed": kills,
    }  # fmt: skip


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    parts = []
    if "load" in records:
        parts.append(_report_load(records["load"]))
    if "siege" in records:
        parts.append(_report_siege(records["siege"]))
    return Report(
        "\n\n".join(part.text for part in parts if part.text),
        [table for part in parts for table in part.tables],
        failures=[failure for part in parts for failure in part.failures],
    )


def _report_load(record: Record) -> Report:
    """Rates and times of answers under load."""
    rows, text, failures = [], [], []
    for case in record["cases"]:
        rate, p99 = case["requests_per_second"], case["p99"]
        rows.append(
            [
                f"{case['rows']:,}",
                str(case["connections"]),
                f"{rate:,.0f}",
                f"{rate * case['rows']:,.0f}",
                f"{1e3 * case['p50']:.1f}",
                f"{1e3 * p99:.1f}",
                f"{1e3 * case['cpu_per_request']:.2f}",
                f"{1e3 * case['in_process_cpu']:.2f}",
                f"{1e3 * case['in_process']:.1f}",
                str(case["refused"]),
                str(case["wrong"]),
            ]
        )
        if case["wrong"]:
            failures.append(f"{case['wrong']} wrong answers over {case['connections']} connections")
        if case["rows"] == 1 and case["connections"] == 8:
            text.append(f"Single rows over 8 connections: {rate:,.0f} requests a second, p99 {1e3 * p99:.0f} ms.")
            if rate < MIN_RATE or p99 > MAX_P99:
                goal = f"{MIN_RATE:.0f} a second and p99 below {1e3 * MAX_P99:.0f} ms"
                failures.append(f"single rows over 8 connections: the goal is {goal}")
    headings = ["rows", "connections", "requests/s", "rows/s", "p50, ms", "p99, ms"]
    headings += ["CPU of the service, ms/request", "CPU of one call in-process, ms", "one call in-process, ms"]
    before, after = record["load_average"]
    note = (
        f"{N_WORKERS} workers with one thread each; the clients are on the same machine, whose load average was "
        f"{before:.1f} before the measurement, and {after:.1f} after it, with service and clients."
    )
    table = Table("POST /score under load", [*headings, "refused", "wrong"], rows, note)
    return Report("\n\n".join(text), [table], failures=failures)


def _report_siege(record: Record) -> Report:
    """Outcomes of good, bad and hostile requests, and the growth of memory."""
    memory = record["memory_mib"]
    growth = memory["last_quarter"] / memory["second_quarter"] - 1
    outcomes: Counter[str] = Counter(record["outcomes"])
    text = (
        f"{record['settings']['seconds']:.0f} seconds of mixed requests, {record['requests_per_second']:.0f} a "
        f"second; memory of all workers {memory['second_quarter']:.0f} MiB in the second quarter and "
        f"{memory['last_quarter']:.0f} MiB in the last ({100 * growth:+.1f} %)."
    )
    wrong = sum(count for key, count in outcomes.items() if key.split(": ")[1] not in ("right", "refused", "lost"))
    failures = [f"{wrong} requests of the siege had a wrong answer"] if wrong else []
    failures += [f"memory grew by {100 * growth:.1f} %"] if growth > MAX_GROWTH else []
    if record["workers_at_the_end"] != record["settings"]["workers"]:
        failures.append(f"{record['workers_at_the_end']} workers were left at the end")
    note = "One worker was killed in the middle; `lost` requests were under way in it, or their connection was reset."
    rows = [[key, f"{count:,}"] for key, count in outcomes.items()]
    return Report(text, [Table("Outcomes of a siege", ["request: outcome", "number"], rows, note)], failures=failures)


EXPERIMENT = Experiment(
    "serve",
    "The service under load and under siege",
    jobs,
    work,
    report,
    exclusive=True,
    options={
        "seconds": Option(float, f"seconds of each measurement under load (default: {SECONDS:g} times the effort)"),
        "part": Option(str, "load or siege, to run one of them (default: both)"),
        "siege": Option(float, f"seconds of the siege (default: {SIEGE_SECONDS:g} times the effort)"),
        "model": Option(str, "a model of the example's cells, such as demo/model.elf (default: a new one)"),
        "max_steps": Option(int, "training steps of the model (default: those of the demo)"),
    },
)
