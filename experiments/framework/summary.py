"""Durations of a whole run: jobs, CPU time and wall-clock time of each experiment in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.framework.files import read_json

__all__ = ["describe_summary", "merge_spans", "summarize"]

Summary = dict[str, Any]
"""The content of `summary.json`."""


def summarize(output: Path, names: Sequence[str]) -> Summary:
    """The jobs and durations of the experiments in the folder of a run, in seconds.

    A job ends when its record is written and has taken the seconds that the record states. The wall-clock time is the
    time in which at least one job ran: it does not include pauses between runs that resume.

    Arguments:
        output: The folder of the run.
        names: The names of the experiments, in order. Those without a readable result are left out.
    """
    experiments: dict[str, Any] = {}
    spans: list[tuple[float, float]] = []
    commits: set[str] = set()
    machine: dict[str, Any] = {}
    for name in names:
        result = read_json(output / name / "result.json")
        if not isinstance(result, dict) or not isinstance(result.get("records"), dict):
            continue
        records = result["records"]
        spans += _find_spans(output / name, records)
        commits |= {str(record["commit"]) for record in records.values() if record.get("commit")}
        machine = result.get("machine", {})
        experiments[name] = {
            "jobs": len(records),
            "seconds": round(sum(float(record["seconds"]) for record in records.values()), 1),
            "cpu": round(sum(float(record.get("cpu", record["seconds"])) for record in records.values()), 1),
            "skipped": [line.partition(":")[0] for line in result.get("skipped", [])],
            "failed": [line.partition(":")[0] for line in result.get("failed", [])],
        }
    totals = {key: round(sum(each[key] for each in experiments.values()), 1) for key in ("jobs", "seconds", "cpu")}
    return {
        "wall": round(merge_spans(spans), 1),
        **totals,
        "skipped": sum(len(each["skipped"]) for each in experiments.values()),
        "failed": sum(len(each["failed"]) for each in experiments.values()),
        "commits": sorted(commits),
        "machine": machine,
        "experiments": experiments,
    }


def _find_spans(folder: Path, records: dict[str, Any]) -> list[tuple[float, float]]:
    """The start and the end of each job of an experiment, by the times at which their records were written. Records
    that were copied from a stored result have none."""
    paths = {key: folder / "jobs" / key / "record.json" for key in records}
    own = {key: path for key, path in paths.items() if not (read_json(path) or {"restored": True}).get("restored")}
    ends = {key: path.stat().st_mtime for key, path in own.items()}
    return [(end - float(records[key]["seconds"]), end) for key, end in ends.items()]


def merge_spans(spans: Iterable[tuple[float, float]]) -> float:
    """The total length of intervals, with overlapping parts counted once.

    Example:
        >>> merge_spans([(0, 10), (5, 12), (20, 21)])
        13.0
    """
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def describe_summary(summary: Summary) -> str:
    """The totals in one line.

    Example:
        >>> describe_summary({"jobs": 12, "wall": 95.0, "cpu": 150.0, "skipped": 2, "failed": 0})
        '12 jobs in 1 min 35 s (2 min 30 s of CPU time), 2 skipped'
    """
    from elflow.training import format_duration  # slow to load, and no worker process needs it

    wall, cpu = format_duration(summary["wall"]), format_duration(summary["cpu"])
    parts = [f"{summary['jobs']:,} jobs in {wall} ({cpu} of CPU time)"]
    parts += [f"{summary[kind]} {kind}" for kind in ("skipped", "failed") if summary[kind]]
    return ", ".join(parts)
