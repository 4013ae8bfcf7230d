"""`elflow sample`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from elflow.cli._models import load_density, use_threads
from elflow.cli._options import Model, Seed, Threads
from elflow.cli._terminal import progress, show

BLOCK = 10_000
"""How many rows are drawn at a time."""


def sample(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Where the rows go: .csv, .parquet, ...; - for the terminal.", show_default=False
        ),
    ],
    number: Annotated[int, typer.Option("--number", "-n", help="How many rows, for each context if any.", min=1)] = 1,
    seed: Seed = 0,
    context: Annotated[
        Path | None,
        typer.Option(help="A table of the context columns of the model.", metavar="DATA", show_default=False),
    ] = None,
    threads: Threads = None,
) -> None:
    """Draws new rows.

    \b
    elflow sample model.elf -n 1000 -o new.csv
    elflow sample model.elf -n 1000000 -o new.parquet --seed 7
    elflow sample model.elf -n 10 -o new.csv --context contexts.csv

    Memory does not grow with the number of rows. Columns and types are those of the data. With a context, each of its
    rows has -n new ones, which stand together, and its columns come after theirs.
    """
    import numpy as np

    from elflow.io.tables import TableWriter

    writer = TableWriter(output)
    est = load_density(model)
    use_threads(threads)
    random = np.random.RandomState(seed)  # so that the first block is what est.sample(..., random_state=seed) gives
    total, blocks = _contexts(est, model, context, number)
    with writer, progress("sampling", total) as done:
        for conditions, size in blocks:
            writer.write(_rows(est, size, conditions, random))
            done(writer.rows)
    show([("rows", f"{writer.rows:,}"), ("written to", str(output))], error=str(output) == "-")


def _contexts(est: Any, model: Path, context: Path | None, number: int) -> tuple[int | None, Iterator[tuple[Any, int]]]:
    """How many rows there will be, if known; and for each block its contexts, with how many rows to draw of each."""
    names = [] if est.context_schema_ is None else [column.name for column in est.context_schema_.columns]
    if names and context is None:
        raise ValueError(f"{model} has a context: --context must be a table of the columns {names}")
    if not names and context is not None:
        raise ValueError(f"{model} has no context: leave out --context")
    sizes = [min(BLOCK, number - at) for at in range(0, number, BLOCK)]
    if context is None:
        return number, ((None, size) for size in sizes)
    from elflow.io.tables import scan_table

    scan = scan_table(context, est.context_schema_.columns, max(1, BLOCK // number))
    total = None if scan.rows is None else scan.rows * number
    return total, ((conditions, size) for conditions in scan for size in sizes)


def _rows(est: Any, size: int, conditions: Any, random: Any) -> Any:
    from elflow.tabular import as_frame

    rows = as_frame(est.sample(size, context=conditions, random_state=random), est.schema_.names)
    if conditions is None:
        return rows
    beside = conditions.loc[conditions.index.repeat(size)].reset_index(drop=True)
    return rows.assign(**{name: beside[name] for name in beside.columns if name not in rows.columns})
