"""What an experiment is made of: jobs, what they find out, and a report of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from elflow._checks import check_choice, check_count, check_positive

__all__ = ["SCALES", "Experiment", "Job", "Plan", "Record", "Report", "Table"]

SCALES = ["cpu", "paper"]

Record = dict[str, Any]
"""What a job found out: numbers, strings and lists of them, as JSON has them."""


@dataclass(frozen=True)
class Plan:
    """How experiments are run.

    Arguments:
        scale: `"cpu"` for two cores and minutes, `"paper"` for the paper's own settings.
        data: A folder with data sets; None if there is none.
        seed: Where random numbers start.
        effort: How many times as many training steps as the scale has.

    Example:
        >>> Plan(effort=0.5).steps(1000)
        500
    """

    scale: str = "cpu"
    data: Path | None = None
    seed: int = 0
    effort: float = 1.0

    def __post_init__(self) -> None:
        check_choice("scale", self.scale, SCALES)
        check_positive("effort", self.effort)
        check_count("seed", self.seed, least=0)
        if self.data is not None:
            object.__setattr__(self, "data", Path(self.data))
            if not self.data.is_dir():
                raise FileNotFoundError(f"data must be a folder, got {self.data}")

    @property
    def device(self) -> str:
        """Where trainings run: on a GPU at the scale of the paper, if there is one."""
        return "cuda" if self.scale == "paper" and torch.cuda.is_available() else "cpu"

    def seeds(self, count: int) -> range:
        """So many seeds, which no other seed of a plan shares.

        Example:
            >>> list(Plan(seed=1).seeds(3))
            [3, 4, 5]
        """
        return range(self.seed * count, (self.seed + 1) * count)

    def steps(self, count: int) -> int:
        """So many training steps, times the effort."""
        return max(1, round(self.effort * count))

    def stamp(self, *names: str) -> list[list[Any]]:
        """What tells data from others of the same names: their sizes, and when they were written."""
        found = [(name, path.stat()) for name in names if (path := self.file(name)) is not None]
        return [[name, status.st_size, status.st_mtime_ns] for name, status in found]

    def file(self, name: str) -> Path | None:
        """A file or folder of the data, if it is there."""
        path = None if self.data is None else self.data / name
        return path if path is not None and path.exists() else None


@dataclass(frozen=True)
class Job:
    """A piece of an experiment that runs on its own, on one thread.

    Arguments:
        key: Its name within the experiment, and that of its files.
        settings: All that its record follows from, but the data themselves; as JSON has it. A job whose record is there
            with the same settings is not run again.
    """

    key: str
    settings: Record


@dataclass(frozen=True)
class Table:
    """A table of a report; cells are as they are to be read."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Report:
    """What an experiment shows.

    Arguments:
        text: What was found, in paragraphs of Markdown.
        tables: Its tables.
        pictures: Captions of its pictures by the names of their files, which are in the experiment's folder.
    """

    text: str
    tables: Sequence[Table] = ()
    pictures: dict[str, str] = field(default_factory=dict)


def _nothing_missing(plan: Plan) -> list[str]:
    return []


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Arguments:
        name: What it is called on the command line.
        title: What it is called on the page.
        jobs: What there is to do, for a plan. Without its data an experiment has no jobs.
        work: Does a job: of the plan, the job's settings and a folder of its own, its record. What takes long keeps a
            `checkpoint` in that folder and goes on from there; files that the report needs are left there, too.
        report: Of the plan, the records by the keys of their jobs, and the experiment's folder, the report. Pictures
            are written into that folder. The files of a job are in `folder / "jobs" / key`. Jobs that failed are not
            among the records.
        missing: What cannot be done with this plan and why, a line each.
    """

    name: str
    title: str
    jobs: Callable[[Plan], list[Job]]
    work: Callable[[Plan, Record, Path], Record]
    report: Callable[[Plan, dict[str, Record], Path], Report]
    missing: Callable[[Plan], list[str]] = _nothing_missing
