"""The command line `elflow`, for tables (`fit`, `score`, `sample`, `report`) and images (`fit-images`, ...).

Its modules import torch, pandas and other slow packages inside the commands, so that `elflow --help` is quick.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import typer

from elflow._files import remove_temporaries
from elflow._interrupts import Interrupted, raising_interrupts
from elflow.cli import drift, images, inspect, questions, service, tables
from elflow.cli._terminal import format_error, note

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(tables.fit)
app.command()(tables.score)
app.command()(tables.sample)
app.command()(questions.impute)
app.command()(questions.conditional)
app.command()(drift.drift)
app.command()(inspect.report)
app.command()(inspect.info)
app.command()(inspect.verify)
app.command()(service.serve)
app.command()(service.explore)
app.command()(images.fit_images)
app.command()(images.score_images)
app.command()(images.sample_images)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and print errors on one line.

    Arguments:
        arguments: Arguments after `elflow`; those of the process by default.

    Returns:
        The exit code: 0 for success, 1 for a bug, 2 for an error that the user can correct, 3 if `elflow drift` finds
        drift, 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP, 141 if the output was closed.

    Example:
        >>> main(["--version"])
        elflow 0.1.0
        0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or os.environ.get("ELFLOW_DEBUG", "0") not in ("", "0")
    given = [argument for argument in given if argument != "--debug"] or ["--help"]
    shown: set[str] = set()

    def show_once(message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            note(str(message))

    with warnings.catch_warnings(), _end_cleanly():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=UserWarning, module="elflow")
        warnings.filterwarnings("always", category=RuntimeWarning, module="elflow.training")
        warnings.showwarning = show_once
        try:
            code = app(given, prog_name="elflow", standalone_mode=False)
            sys.stdout.flush()
        except (BrokenPipeError, SystemExit) as error:  # typer turns the former into the latter
            if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
                raise
            _discard_output()
            return 141
        except typer.Abort:  # Ctrl-C before signals are handled, in some versions of typer
            return 130
        except Interrupted as error:
            note(str(error))
            return 128 + error.signum
        except Exception as error:
            if debug:
                raise
            line, code = format_error(error)
            print(line, file=sys.stderr)
    return int(code or 0)


@contextmanager
def _end_cleanly() -> Iterator[None]:
    """Turn signals into exceptions inside the block, and remove temporary files at its end, however it ends."""
    try:
        with raising_interrupts():
            yield
    finally:
        remove_temporaries()


def _show_version(version: bool) -> None:
    if version:
        from elflow import __version__

        typer.echo(f"elflow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error. Also set by ELFLOW_DEBUG=1.")
    ] = False,
) -> None:
    """Fit, evaluate and sample density models of tables and images.

    \b
    Examples for tables:
      elflow fit data.csv -o model.elf
      elflow score model.elf data.csv -o scores.parquet
      elflow sample model.elf -n 1000 -o new.csv
      elflow report model.elf data.csv -o report.html
      elflow drift model.elf new.csv -o drift.html
      elflow explore model.elf

    \b
    Examples for images:
      elflow fit-images images.npz -o model.elf
      elflow score-images model.elf images.npz
      elflow sample-images model.elf -o grid.png

    """


def _discard_output() -> None:
    """Redirect standard output to nowhere, so that Python does not complain about a closed pipe at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
