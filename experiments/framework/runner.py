"""Running experiments: jobs in parallel, a record for each finished job, reports, and one page."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from elflow import __version__
from elflow._checks import check_count
from experiments.framework.experiment import Experiment, Group, Job, Plan, Record, Report
from experiments.framework.files import read_json, write_text
from experiments.framework.measure import describe_machine, find_commit
from experiments.framework.page import render_markdown, write_page
from experiments.framework.workers import run_in_pool

__all__ = ["restore", "run"]

CHECKPOINT = "checkpoint"
"""File name for a job's checkpoint, which is removed when the job is done."""
OWN = Group("", "Experiments", "")
"""The group of experiments that are not registered."""
Task = tuple[Experiment, Plan, Job]


class Skipped(str):
    """The reason why a job was not run, although nothing failed."""


Outcome = Record | str
"""The record of a job, or the reason why it failed or was skipped."""
Log = Callable[[str], None]


def run(
    experiments: Experiment | Sequence[Experiment],
    plan: Plan,
    output: str | os.PathLike[str],
    processes: int = 1,
    log: Log = print,
    group: Group = OWN,
    budget: float | None = None,
) -> dict[str, Report]:
    """Run experiments and write JSON, figures and Markdown for each, and one page for all of them.

    An interrupted run resumes when it is started again with the same plan and folder.

    Arguments:
        experiments: The experiments.
        plan: The settings of the run.
        output: The folder for results. Results in it must be of the same plan.
        processes: The number of jobs that run in parallel, on one thread each. With 1 they run in this process.
        log: Receives lines about the progress.
        group: The group of the experiments, for the page.
        budget: The time budget of each experiment, in CPU seconds of its jobs together, those of earlier runs in the
            same folder included. Jobs that would start later are skipped, and reported; they run if the command is
            repeated with a larger budget. None for the experiments' own budgets.

    Returns:
        The reports by the names of the experiments. Experiments without jobs have none.

    Example:
        >>> import tempfile
        >>> from experiments import load
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     reports = run(load("paper", "networks"), Plan(), folder, log=lambda line: None)
        ...     sorted(path.name for path in Path(folder, "networks").iterdir() if path.is_file())
        ['networks.png', 'plan.json', 'result.json', 'section.md']
    """
    check_count("processes", processes)
    output = Path(output)
    chosen = [experiments] if isinstance(experiments, Experiment) else list(experiments)
    plans = {each.name: plan.for_experiment(each) for each in chosen}
    if unknown := [name for name in plan.options if not any(name in each.options for each in chosen)]:
        allowed = sorted({name for each in chosen for name in each.options})
        raise ValueError(f"options must be among {allowed} for these experiments, got {unknown[0]!r}")
    for name in plans:
        _check_plan(output / name, plans[name])
    outcomes: dict[str, dict[str, Outcome]] = {}
    tasks: list[Task] = []
    for each in chosen:
        own = plans[each.name]
        for line in each.missing(own):
            log(f"{each.name}: {line}")
        jobs = each.jobs(own)
        kept = {job.key: _read_record(_locate_job(output / each.name, job), _make_stamp(own, job)) for job in jobs}
        outcomes[each.name] = {key: record or "it has not been run" for key, record in kept.items()}  # in job order
        tasks += [(each, own, job) for job in jobs if kept[job.key] is None]
    total = sum(map(len, outcomes.values()))
    if len(tasks) < total:
        log(f"{total - len(tasks)} of {total} jobs were already done")
    start = time.perf_counter()
    budgets = {each.name: each.find_budget(plans[each.name]) if budget is None else budget for each in chosen}
    with closing(_run_tasks(tasks, output, processes, budgets)) as done:
        for count, ((each, _, job), outcome) in enumerate(done, start=1):
            outcomes[each.name][job.key] = outcome
            at = f"[{count}/{len(tasks)}, {time.perf_counter() - start:.0f} s] {each.name}: {job.key}"
            log(f"{at}{_describe(outcome)}")
    if total:
        log("writing the reports")
    reports = {
        each.name: _finish(each, plans[each.name], outcomes[each.name], output / each.name, log, group)
        for each in chosen
        if outcomes[each.name]
    }
    if reports:
        write_page(output, group)
    return reports


def restore(experiment: Experiment, plan: Plan, output: Path, result: Record) -> int:
    """Copy the records of a stored result to the folder of a run, which does not repeat their jobs then.

    Files that jobs leave for figures are not stored: figures do not show these jobs.

    Arguments:
        experiment: The experiment.
        plan: The settings of the run, which must be those of the result.
        output: The folder of the run. Records that it has are not replaced.
        result: The stored result.

    Returns:
        The number of copied records.
    """
    own = plan.for_experiment(experiment)
    expected = {"name": experiment.name, **own.describe()}
    found = {"name": result["name"], **{key: result["plan"].get(key) for key in own.describe()}}
    if found != expected:
        raise ValueError(f"the stored result must have the settings {expected}, got {found}")
    _claim(output / experiment.name, own)
    count = 0
    for job in experiment.jobs(own):
        folder, stamp = _locate_job(output / experiment.name, job), _make_stamp(own, job)
        if job.key in result["records"] and _read_record(folder, stamp) is None:
            _prepare_folder(folder, stamp)
            kept = {"settings": stamp, "record": result["records"][job.key], "files": {}, "restored": True}
            write_text(folder / "record.json", json.dumps(kept, allow_nan=False) + "\n")
            count += 1
    return count


def _describe(outcome: Outcome) -> str:
    """The end of a line about a job."""
    if isinstance(outcome, Skipped):
        return f" skipped: {outcome}"
    return f" failed: {outcome}" if isinstance(outcome, str) else f", {outcome['seconds']:.0f} s"


def _check_plan(folder: Path, plan: Plan) -> None:
    """Raise an error if the folder of an experiment has records of another plan."""
    # Records first, then the plan: a process of the same run may write both in between.
    if not any(folder.glob("jobs/*/record.json")):
        return
    existing = read_json(folder / "plan.json")
    if existing is not None and existing != plan.describe():
        given = [f"--{name} {existing[name]}" for name in ("scale", "seed", "effort")]
        given += [f"--set {name}={value}" for name, value in existing["options"].items()]
        raise ValueError(
            f"output must be a folder without results of other settings, got {folder.parent}, which has results of "
            f"{' '.join(given)}: choose another one by -o"
        )


def _claim(folder: Path, plan: Plan) -> None:
    """Reserve the folder of an experiment for a plan, so that its records are not overwritten by another plan."""
    _check_plan(folder, plan)
    if read_json(folder / "plan.json") != plan.describe():
        write_text(folder / "plan.json", json.dumps(plan.describe()) + "\n")


def _finish(each: Experiment, plan: Plan, outcomes: dict[str, Outcome], folder: Path, log: Log, group: Group) -> Report:
    """Write the report of an experiment."""
    records = {key: outcome for key, outcome in outcomes.items() if not isinstance(outcome, str)}
    skipped = [f"{key}: {outcome}" for key, outcome in outcomes.items() if isinstance(outcome, Skipped)]
    failed = [
        f"{key}: {outcome}"
        for key, outcome in outcomes.items()
        if isinstance(outcome, str) and not isinstance(outcome, Skipped)
    ]
    report = Report("All jobs failed." if failed else "All jobs were skipped.")
    if records:
        try:
            report = each.report(plan, records, folder)
        except Exception as error:  # the reports of the other experiments must still be written
            report = Report("The jobs succeeded, but writing the report failed.")
            failed.append(f"report: {_describe_failure(folder, error)}")
            log(f"{each.name}: {failed[-1]}")
    result = {
        "group": group.name,
        "name": each.name,
        "title": each.title,
        "plan": plan.describe() | {"data": plan.data is not None},
        "machine": describe_machine(),
        "missing": each.missing(plan),
        "failed": failed,
        "skipped": skipped,
        "unmet": list(report.failures),
        "text": _describe_effort(plan) + report.text,
        "tables": [vars(table) for table in report.tables],
        "pictures": report.pictures,
        "records": records,
    }
    write_text(folder / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    write_text(folder / "section.md", render_markdown(result, group))
    return report


def _describe_effort(plan: Plan) -> str:
    return "" if plan.effort == 1 else f"*Run with {plan.effort:g} times the default effort.* "


def _run_tasks(
    tasks: list[Task], output: Path, processes: int, budgets: dict[str, float]
) -> Generator[tuple[Task, Outcome], None, None]:
    """Run tasks and yield each with its outcome when it ends: exclusive tasks alone, after the others."""
    shared = [task for task in tasks if not (task[0].exclusive or task[2].exclusive)]
    alone = [task for task in tasks if task[0].exclusive or task[2].exclusive]
    if processes == 1 or len(tasks) < 2:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for each, plan, job in shared + alone:
                yield (each, plan, job), _run_job(each.work, plan, job, output / each.name, budgets[each.name])
        finally:
            torch.set_num_threads(threads)
        return
    for some, count in ((shared, processes), (alone, 1)):
        calls = [(_run_job, each.work, plan, job, output / each.name, budgets[each.name]) for each, plan, job in some]
        with closing(run_in_pool(calls, count)) as done:
            for at, outcome in done:
                yield some[at], outcome or "its process was killed, perhaps because memory ran out"


def _run_job(
    work: Callable[[Plan, Record, Path], Record], plan: Plan, job: Job, experiment_folder: Path, budget: float
) -> Outcome:
    """Run a job and write its record. Return the reason if it fails or is skipped: the other jobs continue."""
    folder = _locate_job(experiment_folder, job)
    # Records of other processes of this run count, too: the folder is all that processes share.
    # Timings, which run last, are short, and parts of reports depend on them: they are not skipped.
    if not job.exclusive and math.isfinite(budget) and (used := _sum_cpu_time(experiment_folder)) >= budget:
        return Skipped(f"the jobs before took {used:.0f} of {budget:.0f} CPU seconds; a larger --budget runs it")
    stamp = _make_stamp(plan, job)
    start, start_cpu = time.perf_counter(), time.process_time()
    try:
        _prepare_folder(folder, stamp)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            record = work(plan, job.settings, folder)
        measured = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - start_cpu}
        record = measured | {"commit": find_commit()} | record
        kept = {"settings": stamp, "record": record, "files": _list_files(folder)}
        _claim(experiment_folder, plan)
        write_text(folder / "record.json", json.dumps(kept, allow_nan=False) + "\n")
        (folder / CHECKPOINT).unlink(missing_ok=True)
    except Exception as error:
        return _describe_failure(folder, error)
    (folder / "error.txt").unlink(missing_ok=True)
    return record


def _prepare_folder(folder: Path, stamp: Record) -> None:
    """Create the folder of a job. Files of other settings are removed: no job can resume from their checkpoint."""
    settings = folder / "settings.json"
    if read_json(settings) != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        write_text(settings, json.dumps(stamp, indent=1) + "\n")


def _describe_failure(folder: Path, error: Exception) -> str:
    """The error on one line. The traceback is written to `error.txt`."""
    write_text(folder / "error.txt", "".join(traceback.format_exception(error)))
    return " ".join(f"{type(error).__name__}: {error}".split())


def _sum_cpu_time(experiment_folder: Path) -> float:
    """CPU time of the finished jobs of an experiment, in seconds: unlike wall-clock time, it hardly depends on what
    else the machine does, so the same jobs fit into a budget in every run."""
    kept = [read_json(path) for path in experiment_folder.glob("jobs/*/record.json")]
    records = [each["record"] for each in kept if isinstance(each, dict)]
    return sum(float(record.get("cpu", record.get("seconds", 0.0))) for record in records)  # old records have no cpu


def _read_record(folder: Path, stamp: Record) -> Record | None:
    """The record of a finished job with the same settings, or None."""
    kept = read_json(folder / "record.json")
    if not isinstance(kept, dict) or kept.get("settings") != stamp or not isinstance(kept.get("record"), dict):
        return None
    return kept["record"] if kept.get("files", {}).items() <= _list_files(folder).items() else None


def _list_files(folder: Path) -> dict[str, int]:
    """Files that a job leaves for its report, with their sizes, which show whether they are complete."""
    own = {"record.json", "settings.json", "error.txt", CHECKPOINT}
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file() and path.name not in own}


def _make_stamp(plan: Plan, job: Job) -> Record:
    """Everything that a record depends on, apart from the data, as in JSON."""
    stamp: dict[str, Any] = {"elflow": __version__, "scale": plan.scale, "seed": plan.seed, "effort": plan.effort}
    return json.loads(json.dumps(stamp | {"job": job.settings}))


def _locate_job(experiment_folder: Path, job: Job) -> Path:
    return experiment_folder / "jobs" / job.key
