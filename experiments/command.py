"""The command line of the experiments: `python -m experiments`."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from experiments.framework.experiment import SCALES, Experiment, Group, Plan, Report, Table
from experiments.framework.files import read_json, write_text
from experiments.framework.page import has_words, is_ours, is_published, render_table
from experiments.framework.results import FOLDER as RESULTS
from experiments.framework.results import keep_result, keep_summary, read_result
from experiments.framework.runner import restore, run
from experiments.framework.summary import describe_summary
from experiments.registry import GROUPS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

__all__ = ["main"]

EVERY = "all"
DEFAULT_PROCESSES = min(2, os.cpu_count() or 1)
DEFAULT_OUTPUT = Path("runs")
UNNAMED = ""
"""The value of `--keep` without a name."""

Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"


class _Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def main(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code: 0, 1 after failed jobs, 2 for wrong arguments, 130 after Ctrl-C.

    Example:
        >>> main(["bench", "sines"])
        2
    """
    try:
        options = _build_parser().parse_args(arguments)
        code: int = options.function(options)
        return code
    except KeyboardInterrupt:
        _log("interrupted: run the same command again to resume")
        return 130
    except (ValueError, OSError, ImportError) as error:
        _log(f"error: {' '.join(str(error).split())}")
        return 2


def _build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m experiments", description="Run the paper's experiments and the benchmarks.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    for group in GROUPS.values():
        command = commands.add_parser(
            group.name,
            help=group.help or f"run {group.title}",
            description=f"{group.title}: {', '.join(group.members)}. Run the same command again to resume; "
            "failed jobs are retried.",
        )
        command.set_defaults(function=_run, group=group)
        command.add_argument("names", nargs="+", metavar="NAME", help=f"names of experiments, or {EVERY}")
        _add_plan_options(command)
        _add_output_options(command, group)
    _add_fault_commands(commands)
    _add_result_commands(commands)
    return parser


def _add_plan_options(command: argparse.ArgumentParser) -> None:
    """Options that the results depend on, and those of the jobs."""
    command.add_argument(
        "--data",
        type=Path,
        default=os.environ.get("ELFLOW_DATA"),
        metavar="FOLDER",
        help="folder with data sets (default: $ELFLOW_DATA)",
    )
    command.add_argument(
        "--scale",
        choices=SCALES,
        default="cpu",
        help="cpu: minutes on two cores; paper: the settings of the paper's appendix F (default: cpu)",
    )
    command.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    command.add_argument(
        "--effort",
        type=float,
        default=1.0,
        help="multiplier for training steps, sizes and timing (default: 1)",
    )
    command.add_argument(
        "--processes",
        type=int,
        default=DEFAULT_PROCESSES,
        help=f"number of jobs that run in parallel (default: {DEFAULT_PROCESSES}); timings always run alone",
    )
    command.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="CPU seconds of the jobs of each experiment together, after which the remaining jobs are skipped; inf "
        "for no limit (default: that of the experiment at --scale cpu)",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set an option of an experiment; `list` shows them",
    )


def _add_output_options(command: argparse.ArgumentParser, group: Group) -> None:
    """Options about the folder of results, and the stored results."""
    command.add_argument(
        "-o",
        "--output",
        type=Path,
        default=DEFAULT_OUTPUT / group.name,
        metavar="FOLDER",
        help=f"folder for results (default: {DEFAULT_OUTPUT / group.name})",
    )
    command.add_argument(
        "--keep",
        nargs="?",
        const=UNNAMED,
        metavar="NAME",
        help="copy the result and figures to experiments/results, for the documentation, unless jobs failed; "
        "with --set, NAME is required (default: the name of the experiment); with several experiments and NAME, "
        "copy only the durations of the run",
    )
    command.add_argument(
        "--extend",
        metavar="NAME",
        help="do not repeat the jobs of this stored result of the same settings; figures show new jobs only",
    )
    command.add_argument(
        "--force",
        action="store_true",
        help="allow --keep with an --effort other than 1 or with skipped jobs, which the result states",
    )


def _add_fault_commands(commands: Commands) -> None:
    faults = commands.add_parser(
        "faults",
        help="inject faults for some time and count the outcomes",
        description="Damage files, kill commands and fill disks, and count the outcomes. Run the same command again to "
        "resume. The exit code is 1 if there is a defect.",
    )
    faults.set_defaults(function=_inject_faults)
    faults.add_argument("--minutes", type=float, default=2.0, help="time of all runs together (default: 2)")
    faults.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    faults.add_argument("--case", metavar="KIND:NUMBER", help="repeat one case of the campaign in the folder")
    faults.add_argument("-o", "--output", type=Path, default=DEFAULT_OUTPUT / "faults", metavar="FOLDER")
    faults.add_argument("--keep", action="store_true", help="copy the counts to experiments/results/faults.json")
    soak = commands.add_parser(
        "soak",
        help="fit, score and sample in a loop, and measure memory and open files",
        description="Fit, score, sample, save and load in a loop. The exit code is 1 if memory or open files grow.",
    )
    soak.set_defaults(function=_run_soak)
    soak.add_argument("--minutes", type=float, default=10.0, help="time of the loop (default: 10)")
    soak.add_argument("-o", "--output", type=Path, default=DEFAULT_OUTPUT / "soak", metavar="FOLDER")
    soak.add_argument("--keep", action="store_true", help="copy the result to experiments/results/soak.json")


def _add_result_commands(commands: Commands) -> None:
    """Commands that list experiments and print stored results."""
    claims = commands.add_parser(
        "claims",
        help="print the paper's claims with verdicts from the stored results",
        description="Print the paper's claims as a Markdown table: the paper's figure, ours, and a verdict, computed "
        "from experiments/results/paper.",
    )
    claims.set_defaults(function=_print_claims)
    claims.add_argument("--write", type=Path, metavar="FILE", help="update the table in a page, such as docs/paper.md")
    listing = commands.add_parser("list", help="list the experiments and their options")
    listing.set_defaults(function=_list)
    table = commands.add_parser("table", help="print the Markdown tables of a stored result")
    table.set_defaults(function=_print_tables)
    table.add_argument("group", choices=list(GROUPS))
    table.add_argument("name", metavar="NAME")


def _run(options: argparse.Namespace) -> int:
    group: Group = options.group
    names = _check_run(options)
    plan = Plan(options.scale, options.data, options.seed, options.effort, _parse_settings(options.set))
    if options.keep is not None:
        _check_keep(options, names)
    chosen = [group.load(name) for name in names]
    if options.budget is not None and not options.budget > 0:
        raise ValueError(f"--budget must be a positive number of seconds, or inf, got {options.budget:g}")
    if options.extend is not None:
        _extend(options, chosen, plan)
    reports = run(chosen, plan, options.output, options.processes, _log, group, options.budget)
    if not reports:
        raise ValueError(f"nothing to run for {', '.join(names)}: the lines above say what is missing")
    for each in chosen:
        if each.name in reports:
            _print_report(each, reports[each.name])
    print(f"page: {options.output / 'index.html'}: {describe_summary(read_json(options.output / 'summary.json'))}")
    results = {name: read_json(options.output / name / "result.json") for name in reports}
    for name, result in results.items():
        _log_gaps(name, result)
        if options.keep is not None and not _keeps_summary(options, names):
            _store_result(options, name, result)
    if _keeps_summary(options, names):
        print(f"stored: {keep_summary(group, options.output, options.keep)}")
    return 1 if any(result["failed"] or result["unmet"] for result in results.values()) else 0


def _check_run(options: argparse.Namespace) -> list[str]:
    """The names of the experiments to run, each once."""
    members = options.group.members
    if options.output.exists() and not options.output.is_dir():
        raise ValueError(f"--output must be a folder, got the file {options.output}")
    if unknown := [name for name in options.names if name not in [EVERY, *members]]:
        raise ValueError(f"NAME must be {EVERY} or one of {', '.join(members)}, got {unknown[0]!r}")
    return list(members) if EVERY in options.names else list(dict.fromkeys(options.names))


def _log_gaps(name: str, result: dict[str, Any]) -> None:
    """Log failures, requirements that are not met, and skipped jobs."""
    for kind, title in (("failed", "failed"), ("unmet", "not met")):
        for line in result[kind]:
            _log(f"{title}: {name}: {line}")
    if result["skipped"]:
        _log(f"skipped: {name}: {len(result['skipped'])} jobs, because the time budget is used up")


def _store_result(options: argparse.Namespace, name: str, result: dict[str, Any]) -> None:
    """Copy a complete result for the documentation."""
    if result["failed"]:
        _log(f"not stored: {name}, because of its failures")
    elif result["skipped"] and not options.force:
        _log(f"not stored: {name}, because jobs were skipped: give a larger --budget, or --force")
    else:
        print(f"stored: {keep_result(options.group, options.output / name, options.keep or name)}")


def _extend(options: argparse.Namespace, chosen: Sequence[Experiment], plan: Plan) -> None:
    """Copy the records of a stored result to the folder of the run."""
    if len(chosen) > 1:
        raise ValueError(f"--extend must have one experiment, got {len(chosen)}")
    result = read_result(options.group.name, options.extend)
    count = restore(chosen[0], plan, options.output, result)
    _log(f"{count} records copied from the stored result {options.extend}")


def _keeps_summary(options: argparse.Namespace, names: Sequence[str]) -> bool:
    """Whether `--keep NAME` is about the durations of a run of several experiments, not about their results."""
    return bool(options.keep) and len(names) > 1


def _check_keep(options: argparse.Namespace, names: Sequence[str]) -> None:
    """Refuse `--keep`, before anything runs, if the copy would replace results of other settings or experiments."""
    if options.effort != 1 and not options.force:
        raise ValueError(f"--effort must be 1 with --keep, got {options.effort:g}: add --force to store it anyway")
    if options.keep == UNNAMED:
        if options.set:
            raise ValueError(f"--keep must have a NAME with --set, got none: for example --keep {names[0]}-small")
        return
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", options.keep):
        raise ValueError(f"--keep must be lower-case words joined by hyphens, got {options.keep!r}")
    if options.keep in options.group.members and names != [options.keep]:
        raise ValueError(f"--keep must not be the name of another experiment, got {options.keep!r}")


def _parse_settings(settings: Sequence[str]) -> dict[str, str]:
    """The pairs of `--set NAME=VALUE`."""
    for setting in settings:
        if "=" not in setting:
            raise ValueError(f"--set must be NAME=VALUE, got {setting!r}")
    return {name: value for name, _, value in (setting.partition("=") for setting in settings)}


def _list(options: argparse.Namespace) -> int:
    for group in GROUPS.values():
        print(f"{group.name}:")
        for name in group.members:
            each = group.load(name)
            print(f"  {name:22}{each.title}")
            for option, about in each.options.items():
                print(f"  {'':22}  --set {option}=...: {about.help}")
    return 0


def _print_tables(options: argparse.Namespace) -> int:
    print("\n\n".join(render_table(table) for table in read_result(options.group, options.name)["tables"]))
    return 0


def _print_claims(options: argparse.Namespace) -> int:
    from experiments.paper.claims import render, update_page  # not for other commands: it imports torch

    if options.write is None:
        print(render())
    else:
        print(f"{options.write}: {'updated' if update_page(options.write) else 'up to date'}")
    return 0


def _inject_faults(options: argparse.Namespace) -> int:
    from experiments.faults.campaign import STATE, run_campaign, run_case
    from experiments.faults.outcomes import OUTCOMES

    if options.case is not None:
        kind, _, number = options.case.partition(":")
        for case in run_case(options.output, kind, int(number), options.seed):
            print(f"{case.outcome}: {case.fault}: {case.detail}")
        return 0
    tally = run_campaign(options.output, 60 * options.minutes, options.seed, log=_log)
    title = f"{tally.tried:,} faults in {tally.seconds / 60:.0f} minutes"
    _make_console().print(_draw_table(Table(title, ["fault", "tried", *OUTCOMES], tally.render())))
    for finding in tally.findings:
        _log(f"{finding['outcome']}: {finding['case']}: {finding['fault']}: {finding['detail']}")
    if options.keep:
        _keep(options.output / STATE, "faults.json")
    return 1 if tally.findings else 0


def _run_soak(options: argparse.Namespace) -> int:
    from experiments.faults.soak import RESULT, run_soak

    found = run_soak(options.output, 60 * options.minutes, _log)
    if options.keep:
        _keep(options.output / RESULT, "soak.json")
    return 1 if found["failures"] else 0


def _keep(path: Path, name: str) -> None:
    """Copy a result for the documentation."""
    write_text(RESULTS / name, path.read_text(encoding="utf-8"))
    print(f"stored: {RESULTS / name}")


def _log(line: str) -> None:
    print(f"experiments: {line}", file=sys.stderr, flush=True)


def _print_report(each: Experiment, report: Report) -> None:
    from rich.text import Text

    screen = _make_console()
    screen.print(Text(f"\n{each.title}", style="bold underline"))
    for table in report.tables:
        screen.print(Text(f"\n{_strip_marks(table.title)}", style="bold"))
        screen.print(_draw_table(table))
        if table.note:
            screen.print(Text(_strip_marks(table.note), style="dim"))
    if not report.tables:
        screen.print(Text(_strip_marks(report.text)))


def _make_console() -> Console:
    """A console that does not wrap tables when the output is not a terminal."""
    from rich.console import Console

    screen = Console(highlight=False, soft_wrap=False)
    return screen if screen.is_terminal else Console(highlight=False, width=200)


def _draw_table(table: Table) -> RichTable:
    from rich import box
    from rich.table import Table as Drawing
    from rich.text import Text

    drawing = Drawing(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, wordy in zip(table.columns, has_words(table.columns, table.rows), strict=True):
        drawing.add_column(Text(_strip_marks(heading)), justify="left" if wordy else "right", overflow="fold")
    for row in table.rows:
        style = "bold" if is_ours(row) else "dim" if is_published(row) else ""
        drawing.add_row(*(Text(_strip_marks(cell)) for cell in row), style=style)
    return drawing


def _strip_marks(markdown: str) -> str:
    """Markdown as text without the marks of bold and code. Those of emphasis stay: they mark published figures.

    Example:
        >>> _strip_marks("**ELF** has `bound` *0.99*")
        'ELF has bound *0.99*'
    """
    return " ".join(re.sub(r"\*\*|`", "", markdown).split())
