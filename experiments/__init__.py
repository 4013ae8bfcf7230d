"""The paper's experiments and the benchmarks of elflow, on one runner.

    python -m experiments list
    python -m experiments paper all --data FOLDER
    python -m experiments bench kernels flows

An experiment is a list of jobs, a function that runs one of them and returns a record, and a function that makes a
report of all records. The runner does everything else: processes, records on disk, resuming after a crash, JSON,
Markdown, the HTML page and the tables on the terminal.

To add a benchmark, write one file in `experiments/bench`, after the pattern of this complete example, and add its name
to `experiments/registry.py`:

    >>> import time
    >>> from experiments import Experiment, Job, Plan, Report, Table, run
    >>> def jobs(plan):  # settings as in JSON: a job runs again only if they change
    ...     return [Job(f"{n}-numbers", {"n": plan.scaled(n)}) for n in (1_000, 2_000)]
    >>> def work(plan, settings, folder):  # returns a record, as in JSON; may leave files in the folder
    ...     start = time.perf_counter()
    ...     return {"sum": sum(range(settings["n"])), "time": time.perf_counter() - start}
    >>> def report(plan, records, folder):  # may write figures into the folder
    ...     rows = [[key, str(record["sum"])] for key, record in records.items()]
    ...     return Report("Sums were computed.", [Table("Sums", ["job", "sum"], rows)])
    >>> EXPERIMENT = Experiment("sums", "Sums of numbers", jobs, work, report, exclusive=True)  # it measures times

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     reports = run(EXPERIMENT, Plan(), folder, log=lambda line: None)
    >>> reports["sums"].tables[0].rows
    [['1000-numbers', '499500'], ['2000-numbers', '1999000']]

`Experiment` documents the rest: `missing` says which data are needed, `options` are for `--set NAME=VALUE`.
"""

from __future__ import annotations

from experiments.framework.experiment import SCALES, Experiment, Group, Job, Option, Plan, Report, Table
from experiments.framework.runner import run
from experiments.registry import GROUPS, load

__all__ = ["GROUPS", "SCALES", "Experiment", "Group", "Job", "Option", "Plan", "Report", "Table", "load", "run"]
