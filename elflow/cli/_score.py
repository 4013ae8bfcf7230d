"""`elflow score`."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from elflow.cli._mean import Mean
from elflow.cli._models import known_columns, load_density, split, use_threads
from elflow.cli._options import Data, Missing, Model, Threads
from elflow.cli._terminal import progress, show

BLOCK = 16_384
"""How many rows are scored at a time."""


def score(
    model: Model,
    data: Data,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the scores go: .csv, .parquet, ...; - for the terminal."),
    ] = None,
    anomaly: Annotated[
        bool, typer.Option("--anomaly", help="Also how anomalous a row is: its percentile among the training rows.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Keep the columns of the data beside the scores.")] = False,
    na: Missing = None,
    threads: Threads = None,
) -> None:
    """Scores rows: their log-density in nats, in the data's own units.

    \b
    elflow score model.elf data.csv
    elflow score model.elf data.csv -o scores.parquet
    elflow score model.elf data.csv -o scores.csv --anomaly --append

    Memory does not grow with the number of rows. The mean is printed with its standard error.
    """
    from elflow.io.tables import TableWriter, scan_table

    if output is not None and output.exists() and data.exists() and output.samefile(data):
        raise ValueError(f"{output} must not be what is read: choose another name for -o")
    writer: Any = nullcontext() if output is None else TableWriter(output)
    est = load_density(model)
    use_threads(threads)
    scan = scan_table(data, known_columns(est), BLOCK, na or [], extra=append)
    mean = Mean()
    with writer, progress("scoring", scan.total) as done:
        for block in scan:
            rows, context = split(est, block)
            log_density = est.score_samples(rows, context=context)
            mean.add(log_density)
            if output is not None:
                scores = {"log_density": log_density}
                if anomaly:
                    scores["anomaly_score"] = est.percentiles(log_density)
                writer.write(_beside(block if append else None, scores))
            done(scan.done)
    summary = [("rows", f"{mean.count:,}"), ("mean log-density", str(mean))]
    if output is not None and str(output) != "-":
        summary.append(("scores", str(output)))
    show(summary, error=str(output) == "-")


def _beside(block: Any, scores: dict[str, Any]) -> Any:
    import pandas as pd

    if block is None:
        return pd.DataFrame(scores)
    if taken := [name for name in scores if name in block.columns]:
        raise ValueError(f"the data must not have a column {taken[0]!r} already: leave out --append or rename it")
    return block.assign(**scores)
