"""Speed of this version of elflow beside another one, which is installed in an environment of its own.

    python -m experiments bench versions --set python=OTHER/.venv/bin/python --keep versions

Both run in processes of their own, one thread each, in turn. Without `python` the version is compared with itself,
which shows the noise of the machine.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table

__all__ = ["EXPERIMENT"]

ROUNDS = 25
TOLERANCE = 0.02
"""Share by which the median may be slower."""


def jobs(plan: Plan) -> list[Job]:
    other = plan.options.get("python", sys.executable)
    return [Job("operations", {"python": other, "rounds": max(3, plan.scaled(ROUNDS)), "seconds": plan.seconds(0.2)})]


class Worker:
    """A process with one of the versions."""

    def __init__(self, python: str, seconds: float, stack: ExitStack) -> None:
        script, pipe = Path(__file__).with_name("_version_worker.py"), subprocess.PIPE
        # Neither version may import from the folder of the script or of the other one.
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        process = subprocess.Popen(
            [python, "-P", script, str(seconds)], stdin=pipe, stdout=pipe, text=True, env=environment
        )
        self.process = stack.enter_context(process)
        self.place = _read(self.process.stdout)
        self.operations = _read(self.process.stdout).split("\t")

    def measure(self, operation: str) -> float:
        """CPU seconds of a call."""
        assert self.process.stdin is not None
        print(operation, file=self.process.stdin, flush=True)
        return float(_read(self.process.stdout))


def _read(stream: IO[str] | None) -> str:
    assert stream is not None
    line = stream.readline().rstrip("\n")
    if not line:
        raise RuntimeError("the process of a version must answer, but it has ended: see its error above")
    return line


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Times of both versions, in rounds that take turns, and the ratios of neighbours."""
    with ExitStack() as stack:
        this, other = (Worker(python, settings["seconds"], stack) for python in (sys.executable, settings["python"]))
        if settings["python"] != sys.executable and this.place == other.place:
            raise ValueError(f"python must have another version of elflow, got {this.place} in both")
        ratios: dict[str, list[float]] = {name: [] for name in this.operations}
        times: dict[str, list[float]] = {name: [] for name in this.operations}
        for i in range(settings["rounds"]):
            for name in this.operations:
                both = [(worker, worker.measure(name)) for worker in ((this, other) if i % 2 else (other, this))]
                seconds = dict(both)
                times[name].append(seconds[this])
                ratios[name].append(seconds[this] / seconds[other])
    return {"ratios": ratios, "microseconds": {name: 1e6 * statistics.median(times[name]) for name in times}}


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    record = records["operations"]
    rows, failures = [], []
    for name, ratios in record["ratios"].items():
        low, middle, high = statistics.quantiles(ratios, n=4)
        rows.append([name, f"{record['microseconds'][name]:,.0f}", f"{middle:.3f}", f"{low:.3f} to {high:.3f}"])
        if middle > 1 + TOLERANCE:
            failures.append(f"{name}: takes {middle:.3f} times as long as the other version")
    text = f"{len(failures)} of {len(rows)} operations are more than {TOLERANCE:.0%} slower than in the other version."
    columns = ["operation", "CPU time, µs", "time over that of the other version", "middle half"]
    return Report(text, [Table("One thread, in turn", columns, rows)], failures=failures)


EXPERIMENT = Experiment(
    "versions",
    "Speed beside another version",
    jobs,
    work,
    report,
    options={"python": Option(str, "Python of an environment with another version (default: this one)")},
    exclusive=True,
)
