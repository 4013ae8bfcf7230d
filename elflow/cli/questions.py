"""Commands for questions about some columns given others: `elflow impute` and `elflow conditional`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from elflow.cli import _options
from elflow.cli._options import Data, Model, NaValues, Seed, Threads
from elflow.cli._ray import Address, Engine, Workers, impute_with_ray
from elflow.cli._terminal import show, show_progress

BLOCK_ROWS = 4_096
"""Number of rows that are answered at a time."""
TableOutput = Annotated[
    Path,
    typer.Option(
        "--output", "-o", help="Table to write: .csv, .parquet, ...; - for standard output.", show_default=False
    ),
]


def impute(
    model: Model,
    data: Data,
    output: TableOutput,
    method: Annotated[
        Literal["sample", "median", "mean", "mode"],
        typer.Option(help="Draw values, or fill in a summary of the distribution of each cell."),
    ] = "sample",
    draws: Annotated[
        int, typer.Option(help="Number of times to draw, written one after the other, with a column `draw`.", min=1)
    ] = 1,
    seed: Seed = 0,
    na: NaValues = None,
    threads: Threads = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
) -> None:
    """Fill missing cells from their distribution given the observed cells of the row.

    \b
    Examples:
      elflow impute model.elf holes.csv -o full.csv
      elflow impute model.elf holes.csv -o full.csv --method median
      elflow impute model.elf holes.parquet -o draws.parquet --draws 5
      elflow impute model.elf holes.parquet -o full --engine ray --address auto

    All missing cells of a row are drawn together. Columns that the model does
    not have are kept. Rows are read and written in blocks, so tables may be
    larger than memory. With --engine ray the draws are others.
    """
    from elflow.batch.imputer import fill_rows
    from elflow.io.tables import scan_table
    from elflow.tabular import as_generator

    if method != "sample" and draws > 1:
        raise ValueError(f"--draws must be 1 with --method {method}, got {draws}")
    if engine == "ray":
        impute_with_ray(model, data, output, method, draws, seed, na, threads, address, workers)
        return
    _options.check_not_input(output, data, model)
    writer = _options.open_writer(output)
    est = _options.load_density(model)
    _options.set_threads(threads)
    with _options.rename_argument("path", "DATA"):
        scan = scan_table(data, _options.list_known_columns(est), BLOCK_ROWS, na or [], extra=True)
    generator = as_generator(seed)
    n_rows = n_filled = 0
    with writer, show_progress("Imputing rows", scan.total) as set_done:
        for block in scan:
            writer.write(fill_rows(est, block, method, draws, generator))
            n_rows += len(block)
            n_filled += int(block[est.schema_.names].isna().to_numpy().sum())
            set_done(scan.done)
    summary = [("rows", f"{n_rows:,}"), ("cells filled", f"{n_filled:,}"), ("written to", str(output))]
    show(summary, error=str(output) == "-")


def conditional(
    model: Model,
    data: Data,
    output: TableOutput,
    column: Annotated[str, typer.Option(help="Column whose distribution is asked for.", show_default=False)],
    quantiles: Annotated[
        str | None, typer.Option(help="Probabilities of quantiles, such as 0.05,0.5,0.95.", metavar="Q,...")
    ] = None,
    cdf: Annotated[bool, typer.Option("--cdf", help="Also write P(column <= its value).")] = False,
    proba: Annotated[bool, typer.Option("--proba", help="Write the probabilities of categories.")] = False,
    given: Annotated[
        list[str] | None,
        typer.Option(help="Condition on these columns only; others are integrated out. Repeatable.", metavar="COL,..."),
    ] = None,
    append: Annotated[bool, typer.Option("--append", help="Also write the columns of the data.")] = False,
    na: NaValues = None,
    threads: Threads = None,
) -> None:
    """Compute the distribution of a column given other columns, in each row.

    \b
    Examples:
      elflow conditional model.elf rows.csv --column area --quantiles 0.05,0.5,0.95 -o q.csv
      elflow conditional model.elf rows.csv --column area --cdf -o p.csv --append
      elflow conditional model.elf rows.csv --column segment --proba --given age,income -o p.csv

    Missing cells of other columns are integrated out, unless the model
    describes missing values. Rows are read and written in blocks.
    """
    from elflow.batch.conditionals import condition_rows
    from elflow.io.tables import scan_table

    levels = _parse_levels(quantiles)
    if not levels and not cdf and not proba:
        raise ValueError("--quantiles, --cdf or --proba must say what to compute, got none of them")
    _options.check_not_input(output, data, model)
    writer = _options.open_writer(output)
    est = _options.load_density(model)
    _options.set_threads(threads)
    names = est.schema_.names
    if column not in names:
        raise ValueError(f"--column must be one of {names}, got {column!r}")
    conditions = [name for text in given or [] for name in text.split(",")]
    if unknown := [name for name in conditions if name not in names or name == column]:
        raise ValueError(f"--given must have other columns of {names}, got {unknown[0]!r}")
    used = conditions or [name for name in names if name != column]
    context = [] if est.context_schema_ is None else est.context_schema_.names
    needed = [*used, *context, *([column] if cdf else [])]
    like = [known for known in _options.list_known_columns(est) if known.name in needed]
    with _options.rename_argument("path", "DATA"):
        scan = scan_table(data, like, BLOCK_ROWS, na or [], extra=True)
    n_rows = 0
    with writer, show_progress("Conditioning rows", scan.total) as set_done:
        for block in scan:
            answer = condition_rows(est, block, column, levels, cdf, proba, conditions or None)
            if append:
                if taken := [name for name in answer if name in block.columns]:
                    raise ValueError(f"DATA must not have a column {taken[0]!r} for --append: rename it")
                answer = block.reset_index(drop=True).join(answer)
            writer.write(answer)
            n_rows += len(block)
            set_done(scan.done)
    show([("rows", f"{n_rows:,}"), ("written to", str(output))], error=str(output) == "-")


def _parse_levels(text: str | None) -> list[float]:
    """Probabilities from text."""
    try:
        levels = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        levels = [-1.0]
    if not all(0 < level < 1 for level in levels):
        raise ValueError(f"--quantiles must be probabilities in (0, 1) with commas between them, got {text!r}")
    if len(set(levels)) < len(levels):
        raise ValueError(f"--quantiles must be different, got {text!r}")
    return levels
