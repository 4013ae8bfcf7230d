"""Command `elflow drift`: whether new rows have the distribution of the held-out rows of a fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elflow.cli import _options
from elflow.cli._options import Data, Model, NaValues, Threads
from elflow.cli._terminal import show, show_progress

if TYPE_CHECKING:
    from elflow import FlowDensity
    from elflow.tabular import Drift

BLOCK_ROWS = 16_384
"""Number of rows that are read at a time."""
DRIFT_CODE = 3
"""Exit code if there is drift: errors have 1 and 2."""
MAX_SHOWN = 10
"""Maximum number of tests of columns and pairs that are printed."""


def drift(
    model: Model,
    data: Data,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Result to write: .html or .json; - for JSON on standard output.", show_default=False
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            help="Table to compare with, instead of the validation rows of the fit.", metavar="DATA", show_default=False
        ),
    ] = None,
    level: Annotated[float, typer.Option(help="Probability of a false alarm.")] = 0.05,
    na: NaValues = None,
    threads: Threads = None,
) -> None:
    """Test whether new rows have the distribution of the held-out rows of a fit.

    \b
    Examples:
      elflow drift model.elf new.csv
      elflow drift model.elf new.csv -o drift.html
      elflow drift model.elf new.csv -o drift.json --level 0.01
      elflow drift model.elf new.csv --reference last-month.csv

    The exit code is 0 without drift and 3 with drift; 2 is an error. Rows
    are read in blocks, so tables may be larger than memory. Rows that the
    model was fitted to are left out.
    """
    if not 0 < level < 1:
        raise ValueError(f"--level must be a probability in (0, 1), got {level:g}")
    inputs = [data, model, *([] if reference is None else [reference])]
    if output is not None and str(output) != "-":
        if output.suffix.lower() not in (".html", ".json"):
            raise ValueError(f"--output must end with .html or .json, got {output}")
        _options.check_output(output, *inputs)
    est = _options.load_density(model)
    _options.set_threads(threads)
    found = _compare(est, data, reference, level, na or [])
    if output is not None:
        _write(found, output)
    _show(found, output)
    if found.has_drift:
        raise typer.Exit(DRIFT_CODE)


def _compare(est: FlowDensity, data: Path, reference: Path | None, level: float, na: list[str]) -> Drift:
    """Read the new rows block by block, and compare them."""
    from elflow.io.tables import scan_table
    from elflow.tabular import number_rows_from

    columns = _options.list_known_columns(est)
    monitor = None
    if reference is not None:
        with _options.rename_argument("path", "--reference"):
            frame = scan_table(reference, columns, na_values=na).read()
        with _options.rename_argument("reference", "--reference"):
            monitor = est.monitor(*_options.split_context(est, frame))
    monitor = est.monitor() if monitor is None else monitor
    with _options.rename_argument("path", "DATA"):
        scan = scan_table(data, columns, BLOCK_ROWS, na)
    n_rows = 0
    with show_progress("Comparing rows", scan.total) as set_done:
        for block in scan:
            rows, context = _options.split_context(est, block)
            with number_rows_from(1 + n_rows):
                monitor.add(rows, context)
            n_rows += len(rows)
            set_done(scan.done)
    with _options.rename_argument("X", "DATA"):
        return monitor.compare(level)


def _write(found: Drift, output: Path) -> None:
    if str(output) == "-":
        typer.echo(json.dumps(found.to_dict(), indent=2))
    elif output.suffix.lower() == ".json":
        from elflow._files import replacing

        with replacing(output) as temporary:
            temporary.write_text(json.dumps(found.to_dict(), indent=2) + "\n", encoding="utf-8")
    else:
        from elflow.report import write_drift

        write_drift(found, output)


def _show(found: Drift, output: Path | None) -> None:
    """Print the verdict, the tests of all columns together, and those that find drift."""
    lines = [
        ("verdict", found.describe()),
        ("rows", f"{found.n_rows:,} new, {found.n_reference:,} held out, {found.n_fitted:,} fitted and left out"),
    ]
    if found.n_incomplete:
        lines.append(
            ("incomplete", f"{found.n_incomplete:,} other new rows: values that were never missing in the fit")
        )
    drifted = [test for test in found.drifted if test.group != "overall"]
    lines += [
        (test.name, f"p = {test.p_value:.2g}, adjusted {test.adjusted_p_value:.2g}: {test.change}")
        for test in [*(test for test in found.tests if test.group == "overall"), *drifted[:MAX_SHOWN]]
    ]
    if len(drifted) > MAX_SHOWN:
        lines.append(("", f"and {len(drifted) - MAX_SHOWN} more"))
    if output is not None and str(output) != "-":
        lines.append(("written to", str(output)))
    show(lines, error=str(output) == "-")
