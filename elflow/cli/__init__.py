"""The command line: `elflow fit`, `score`, `sample`, `report` and `info`; `fit-images` and others.

Modules here are quick to import: what takes long (torch, pandas) is imported by the command that needs it.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from elflow.cli import _fit, _fit_images, _inspect, _sample, _sample_images, _score, _score_images
from elflow.cli._terminal import error_line, note

__all__ = ["app", "main"]

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(_fit.fit)
app.command()(_score.score)
app.command()(_sample.sample)
app.command()(_inspect.report)
app.command()(_inspect.info)
app.command()(_fit_images.fit_images)
app.command()(_score_images.score_images)
app.command()(_sample_images.sample_images)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line, and says on one line what a user did wrong.

    Arguments:
        arguments: What comes after `elflow`; by default what the process was started with.

    Returns:
        0 if all went well, 2 if something is wrong with what was asked for, 130 after Ctrl-C, 141 when nobody reads the
        output any more, 1 for a bug.

    Example:
        >>> main(["--version"])
        elflow 0.1.0
        0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or os.environ.get("ELFLOW_DEBUG", "0") not in ("", "0")
    given = [argument for argument in given if argument != "--debug"] or ["--help"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", category=UserWarning, module="elflow")
        warnings.filterwarnings("always", category=RuntimeWarning, module="elflow.training")
        warnings.showwarning = lambda message, *_, **__: note(str(message))
        try:
            code = app(given, prog_name="elflow", standalone_mode=False)
            sys.stdout.flush()
        except (BrokenPipeError, SystemExit) as error:  # typer makes the one of the other
            if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
                raise
            _close_output()
            return 141
        except typer.Abort:  # Ctrl-C, in some versions of typer
            return 130
        except Exception as error:
            if debug:
                raise
            line, code = error_line(error)
            print(line, file=sys.stderr)
    return int(code or 0)


def _version(wanted: bool) -> None:
    if wanted:
        from elflow import __version__

        typer.echo(f"elflow {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error, as does ELFLOW_DEBUG=1.")
    ] = False,
) -> None:
    """Densities of tables and images: fit one to your data, score it, draw new data, see how good it is.

    \b
    elflow fit data.csv -o model.elf
    elflow score model.elf data.csv -o scores.parquet
    elflow sample model.elf -n 1000 -o new.csv
    elflow report model.elf data.csv -o report.html

    \b
    elflow fit-images images.npz -o model.elf
    elflow score-images model.elf images.npz
    elflow sample-images model.elf -o grid.png

    """


def _close_output() -> None:
    """Sends what is left to nowhere, so that Python does not complain about the pipe when it ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
