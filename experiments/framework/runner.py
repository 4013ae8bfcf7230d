"""Experiments from the first job to the page: jobs side by side, each record kept as soon as it is there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import Any

import torch

from elflow import __version__
from elflow._checks import check_count
from elflow._files import replacing
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report
from experiments.framework.measure import machine
from experiments.framework.page import markdown, write_page

__all__ = ["run"]

CHECKPOINT = "checkpoint"
"""What a job may call the file that it goes on from; it is removed when the job is done."""
Task = tuple[Experiment, Job]
Outcome = Record | str
"""The record of a job, or what went wrong."""
Tell = Callable[[str], None]


def run(
    names: str | Experiment | Sequence[str | Experiment],
    plan: Plan,
    output: str | os.PathLike[str],
    processes: int = 1,
    tell: Tell = print,
) -> dict[str, Report]:
    """Runs experiments, and writes for each its JSON, pictures and Markdown, and one page for all in the folder.

    A run that was interrupted goes on where it was when it is started again with the same plan and folder.

    Arguments:
        names: Which experiments, of `EXPERIMENTS`, or experiments of your own.
        plan: How to run them.
        output: The folder for what they find. What is there must be of the same plan.
        processes: How many jobs run side by side, on one thread each. With one they run in this process.
        tell: Told of each step in a line.

    Returns:
        The reports by the names of the experiments.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     reports = run(["networks"], Plan(), Path(folder), tell=lambda line: None)
        ...     sorted(path.name for path in Path(folder, "networks").iterdir() if path.is_file())
        ['networks.png', 'plan.json', 'result.json', 'section.md']
    """
    from experiments import experiment

    check_count("processes", processes)
    output = Path(output)
    asked = [names] if isinstance(names, str | Experiment) else names
    found = [each if isinstance(each, Experiment) else experiment(each) for each in asked]
    chosen = {each.name: each for each in found}
    for name in chosen:
        _claim(output / name, plan)
    outcomes: dict[str, dict[str, Outcome]] = {}
    tasks: list[Task] = []
    for name, each in chosen.items():
        for line in each.missing(plan):
            tell(f"{name}: {line}")
        jobs = each.jobs(plan)
        kept = {job.key: _read(_folder(output, name, job), _stamp(plan, job)) for job in jobs}
        outcomes[name] = {key: record or "it has not been run" for key, record in kept.items()}  # in their order
        tasks += [(each, job) for job in jobs if kept[job.key] is None]
    total = sum(map(len, outcomes.values()))
    if len(tasks) < total:
        tell(f"{total - len(tasks)} of {total} jobs were done before")
    start = time.perf_counter()
    with closing(_work_off(tasks, plan, output, processes)) as done:
        for count, ((each, job), outcome) in enumerate(done, start=1):
            outcomes[each.name][job.key] = outcome
            at = f"[{count}/{len(tasks)}, {time.perf_counter() - start:.0f} s] {each.name}: {job.key}"
            tell(f"{at} failed: {outcome}" if isinstance(outcome, str) else f"{at}, {outcome['seconds']:.0f} s")
    if total:
        tell("writing the reports")
    reports = {
        name: _finish(each, plan, outcomes[name], output / name, tell)
        for name, each in chosen.items()
        if outcomes[name]
    }
    if reports:
        write_page(output)
    return reports


def _claim(folder: Path, plan: Plan) -> None:
    """Makes a folder that of a plan: what another plan has found there would be lost."""
    wanted = {"scale": plan.scale, "seed": plan.seed, "effort": plan.effort}
    there = _json(folder / "plan.json")
    if there is None:
        _write(folder / "plan.json", json.dumps(wanted) + "\n")
    elif there != wanted:
        options = " ".join(f"--{name} {value}" for name, value in there.items())
        raise ValueError(f"output must be another folder than that of {options}, got {folder.parent}: choose one by -o")


def _finish(each: Experiment, plan: Plan, outcomes: dict[str, Outcome], folder: Path, tell: Tell) -> Report:
    records = {key: outcome for key, outcome in outcomes.items() if not isinstance(outcome, str)}
    failed = [f"{key}: {outcome}" for key, outcome in outcomes.items() if isinstance(outcome, str)]
    report = Report("None of its jobs came to an end.")
    if records:
        try:
            report = each.report(plan, records, folder)
        except Exception as error:  # the other experiments have a report to come, too
            report = Report("Its jobs came to their ends, but the report about them failed.")
            failed.append(f"the report: {_failure(folder, error)}")
            tell(f"{each.name}: {failed[-1]}")
    result = {
        "name": each.name,
        "title": each.title,
        "plan": {"scale": plan.scale, "seed": plan.seed, "effort": plan.effort, "data": plan.data is not None},
        "machine": machine(),
        "missing": each.missing(plan),
        "failed": failed,
        "text": _proviso(plan) + report.text,
        "tables": [vars(table) for table in report.tables],
        "pictures": report.pictures,
        "records": records,
    }
    _write(folder / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    _write(folder / "section.md", markdown(result))
    return report


def _proviso(plan: Plan) -> str:
    return "" if plan.effort == 1 else f"*With {plan.effort:g} times the training steps of the scale.* "


def _work_off(
    tasks: list[Task], plan: Plan, output: Path, processes: int
) -> Generator[tuple[Task, Outcome], None, None]:
    """Each task with its outcome, as they come to their ends."""
    if processes == 1 or len(tasks) < 2:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for each, job in tasks:
                yield (each, job), _guarded(each.work, plan, job, _folder(output, each.name, job))
        finally:
            torch.set_num_threads(threads)
        return
    lost: list[Task] = []
    with closing(_in_pool(tasks, plan, output, processes)) as done:
        for task, outcome in done:
            if outcome is None:
                lost.append(task)
            else:
                yield task, outcome
    # A process that dies takes its pool with it. One at a time, it is seen which job it was.
    for task in lost:
        ((_, outcome),) = _in_pool([task], plan, output, 1)
        yield task, outcome or "its process ended before it, for want of memory perhaps"


def _in_pool(
    tasks: list[Task], plan: Plan, output: Path, processes: int
) -> Generator[tuple[Task, Outcome | None], None, None]:
    """Each task with its outcome as they come to their ends, or with None if the pool broke before."""
    others = active_children()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_as_worker) as pool:
        futures: dict[Future[Outcome], Task] = {}
        try:
            with _uninterrupted():
                for each, job in tasks:
                    future = pool.submit(_guarded, each.work, plan, job, _folder(output, each.name, job))
                    futures[future] = each, job
            for future in as_completed(futures):
                try:
                    outcome: Outcome | None = future.result()
                except BrokenProcessPool:
                    outcome = None
                yield futures[future], outcome
        except BaseException:  # Ctrl-C, mostly: what has begun is not waited for
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                if child not in others:
                    child.terminate()
            raise


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes that are started meanwhile leave Ctrl-C to this one, which ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _as_worker() -> None:
    """One thread for torch; and a process that nobody waits for any more, because its parent was killed, ends."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _guarded(work: Callable[[Plan, Record, Path], Record], plan: Plan, job: Job, folder: Path) -> Outcome:
    """Does a job and keeps its record. One that fails must not take the others with it: what went wrong is returned."""
    stamp = _stamp(plan, job)
    start, start_cpu = time.perf_counter(), time.process_time()
    try:
        _begin(folder, stamp)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            record = work(plan, job.settings, folder)
        record = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - start_cpu} | record
        kept = {"settings": stamp, "record": record, "files": _files(folder)}
        _write(folder / "record.json", json.dumps(kept, allow_nan=False) + "\n")
        (folder / CHECKPOINT).unlink(missing_ok=True)
    except Exception as error:
        return _failure(folder, error)
    (folder / "error.txt").unlink(missing_ok=True)
    return record


def _begin(folder: Path, stamp: Record) -> None:
    """Makes the folder of a job. What is there of other settings is removed: a checkpoint of them leads nowhere."""
    settings = folder / "settings.json"
    if _json(settings) != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        _write(settings, json.dumps(stamp, indent=1) + "\n")


def _failure(folder: Path, error: Exception) -> str:
    """What went wrong in one line; where, is written beside."""
    _write(folder / "error.txt", "".join(traceback.format_exception(error)))
    return " ".join(f"{type(error).__name__}: {error}".split())


def _read(folder: Path, stamp: Record) -> Record | None:
    """The record of a job that was done before, if it was done with these very settings."""
    kept = _json(folder / "record.json")
    if not isinstance(kept, dict) or kept.get("settings") != stamp or not isinstance(kept.get("record"), dict):
        return None
    return kept["record"] if kept.get("files", {}).items() <= _files(folder).items() else None


def _files(folder: Path) -> dict[str, int]:
    """What a job leaves for its report, with sizes, by which it is seen whether it is still whole."""
    ours = {"record.json", "settings.json", "error.txt", CHECKPOINT}
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file() and path.name not in ours}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _stamp(plan: Plan, job: Job) -> Record:
    """All that a record follows from, as JSON has it, but the data."""
    stamp = {"elflow": __version__, "scale": plan.scale, "seed": plan.seed, "effort": plan.effort, "job": job.settings}
    return json.loads(json.dumps(stamp))


def _folder(output: Path, name: str, job: Job) -> Path:
    return output / name / "jobs" / job.key


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
