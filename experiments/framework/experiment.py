"""Experiments, their jobs, records and reports."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from elflow._checks import check_choice, check_count, check_positive

__all__ = ["SCALES", "Experiment", "Group", "Job", "Option", "Plan", "Record", "Report", "Table", "group_records"]

SCALES = ["cpu", "paper"]

Record = dict[str, Any]
"""Result of a job: numbers, strings and lists of them, as in JSON."""


def _digest_data(path: Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files of a folder."""
    if path.is_file():
        return _digest_file(path, path.stat().st_mtime_ns)
    files = sorted(part for part in path.rglob("*") if part.is_file())
    parts = [f"{part.relative_to(path).as_posix()}\0{_digest_file(part, part.stat().st_mtime_ns)}" for part in files]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _digest_file(path: Path, modified: int) -> str:
    """SHA-256 of a file, computed once for each time of its last change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Plan:
    """Settings of a run.

    Arguments:
        scale: `"cpu"` for minutes on two cores, `"paper"` for the settings of the paper.
        data: The folder with data sets; None if there is none.
        seed: The random seed.
        effort: A multiplier for training steps, sizes and timing.
        options: Settings of single experiments by name: strings as on the command line. `for_experiment` parses them.

    Example:
        >>> Plan(effort=0.5).scaled(1000)
        500
    """

    scale: str = "cpu"
    data: Path | None = None
    seed: int = 0
    effort: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

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
        """The device for training: a GPU at the scale of the paper, if there is one."""
        return "cuda" if self.scale == "paper" and torch.cuda.is_available() else "cpu"

    def seeds(self, count: int) -> range:
        """Seeds for repetitions. Plans with different seeds share none of them.

        Example:
            >>> list(Plan(seed=1).seeds(3))
            [3, 4, 5]
        """
        return range(self.seed * count, (self.seed + 1) * count)

    def scaled(self, count: int) -> int:
        """A count, such as a number of training steps, times the effort."""
        return max(1, round(self.effort * count))

    def seconds(self, value: float) -> float:
        """A duration times the effort."""
        return self.effort * value

    def file(self, name: str) -> Path | None:
        """The path of a file or folder in the data folder, or None if it does not exist."""
        path = None if self.data is None else self.data / name
        return path if path is not None and path.exists() else None

    def stamp(self, *names: str) -> list[list[Any]]:
        """Digests of data files and folders: a run resumes with a copy of the same data."""
        paths = [(name, path) for name in names if (path := self.file(name)) is not None]
        return [[name, _digest_data(path)] for name, path in paths]

    def for_experiment(self, experiment: Experiment) -> Plan:
        """The plan with the options of one experiment only, parsed.

        Example:
            >>> each = Experiment("a", "A", list, dict, Report, options={"rows": Option(int, "number of rows")})
            >>> Plan(options={"rows": "100", "models": "elf"}).for_experiment(each).options
            {'rows': 100}
        """
        parsed = {}
        for name, value in self.options.items():
            if name in experiment.options:
                try:
                    parsed[name] = experiment.options[name].parse(value)
                except ValueError as error:
                    raise ValueError(f"option {name} of {experiment.name}: {error}") from None
        return replace(self, options=parsed)

    def describe(self) -> dict[str, Any]:
        """The settings that results depend on, apart from the data, as in JSON."""
        return {"scale": self.scale, "seed": self.seed, "effort": self.effort, "options": dict(self.options)}


@dataclass(frozen=True)
class Job:
    """A unit of work of an experiment, which runs on one thread.

    Arguments:
        key: Its name within the experiment, and that of its folder.
        settings: Everything that its record depends on, apart from the data, as in JSON. A job that has a record with
            the same settings is not run again.
        exclusive: Whether no other job may run at the same time, because it measures times.
    """

    key: str
    settings: Record
    exclusive: bool = False


@dataclass(frozen=True)
class Table:
    """A table of a report, with cells formatted for reading. Cells may contain Markdown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


@dataclass(frozen=True)
class Report:
    """Results of an experiment for reading.

    Arguments:
        text: The findings, in paragraphs of Markdown.
        tables: The tables.
        pictures: Captions by the names of figure files in the experiment's folder.
        failures: Requirements that the results do not meet. A run with any of them ends with exit code 1.
    """

    text: str
    tables: Sequence[Table] = ()
    pictures: dict[str, str] = field(default_factory=dict)
    failures: Sequence[str] = ()


@dataclass(frozen=True)
class Option:
    """A setting of an experiment that the command line sets by `--set NAME=VALUE`.

    Arguments:
        parse: Converts the string, or raises a ValueError that says what it must be.
        help: A description for `python -m experiments list`.
    """

    parse: Callable[[str], Any]
    help: str


def _nothing_missing(plan: Plan) -> list[str]:
    return []


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper, or a benchmark.

    Arguments:
        name: Its name on the command line.
        title: Its heading on the page.
        jobs: Lists the jobs of a plan. An experiment whose data are missing has no jobs.
        work: Runs a job: takes the plan, the job's settings and the job's folder, and returns the record. A long job
            keeps a file `checkpoint` in its folder and resumes from it; files for the report stay there, too.
        report: Takes the plan, the records by job key and the experiment's folder, and returns the report. It writes
            figures into that folder; the files of a job are in `folder / "jobs" / key`. Failed jobs have no record.
        missing: Lists what cannot be run with this plan and why, one line each.
        options: Settings for `--set`, by name.
        exclusive: Whether its jobs run one at a time and beside no other job, because they measure times.
        budget: Time budget at the scale of CPUs and an effort of 1, in CPU seconds of its jobs together; None for none.
            Jobs that would start after it are skipped, so the most important ones come first. Exclusive jobs are not.
    """

    name: str
    title: str
    jobs: Callable[[Plan], list[Job]]
    work: Callable[[Plan, Record, Path], Record]
    report: Callable[[Plan, dict[str, Record], Path], Report]
    missing: Callable[[Plan], list[str]] = _nothing_missing
    options: Mapping[str, Option] = field(default_factory=dict)
    exclusive: bool = False
    budget: float | None = None

    def find_budget(self, plan: Plan) -> float:
        """The time budget for a plan, in CPU seconds: none for the settings of the paper or chosen options.

        Example:
            >>> each = Experiment("a", "A", list, dict, Report, budget=60)
            >>> each.find_budget(Plan()), each.find_budget(Plan(effort=2)), each.find_budget(Plan("paper"))
            (60.0, 120.0, inf)
            >>> each.find_budget(Plan(effort=0.01))  # not less: loading data takes as long as ever
            60.0
        """
        if self.budget is None or plan.scale != "cpu" or plan.options:
            return math.inf
        return float(self.budget) * max(1.0, plan.effort)


def group_records(records: Mapping[str, Record], names: Iterable[str]) -> dict[str, list[Record]]:
    """Records by the name that the keys of their jobs start with, such as those of a model over its seeds.

    Example:
        >>> group_records({"elf-0": {"gap": 1}, "elf-1": {"gap": 2}, "nsf-0": {"gap": 3}}, ["elf", "maf"])
        {'elf': [{'gap': 1}, {'gap': 2}]}
    """
    groups = {name: [record for key, record in records.items() if key.startswith(name)] for name in names}
    return {name: group for name, group in groups.items() if group}


@dataclass(frozen=True)
class Group:
    """Experiments that share a command and a page.

    Arguments:
        name: Its name on the command line.
        title: The heading of its page.
        lead: The introduction of its page.
        members: The experiments in order: for each name the `module:attribute` that holds it.
        help: The help text of its command.
        budgets: Time budgets of its experiments in CPU seconds, by name: see `Experiment.budget`.
    """

    name: str
    title: str
    lead: str
    members: Mapping[str, str] = field(default_factory=dict)
    help: str = ""
    budgets: Mapping[str, float] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that runs its experiments."""
        return f"python -m experiments {self.name}"

    def load(self, name: str) -> Experiment:
        """Import an experiment by its name."""
        check_choice("NAME", name, self.members)
        module, _, attribute = self.members[name].partition(":")
        experiment: Experiment = getattr(import_module(module), attribute)
        return replace(experiment, budget=self.budgets.get(name))
