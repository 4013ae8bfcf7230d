"""Commands for questions about some columns given others: `elflow impute` and `elflow conditional`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elflow.cli import _options
from elflow.cli._options import Data, Model, NaValues, Seed, Threads
from elflow.cli._terminal import show, show_progress

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from elflow import FlowDensity

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
) -> None:
    """Fill missing cells from their distribution given the observed cells of the row.

    \b
    Examples:
      elflow impute model.elf holes.csv -o full.csv
      elflow impute model.elf holes.csv -o full.csv --method median
      elflow impute model.elf holes.parquet -o draws.parquet --draws 5

    All missing cells of a row are drawn together. Columns that the model does
    not have are kept. Rows are read and written in blocks, so tables may be
    larger than memory.
    """
    import pandas as pd

    from elflow.io.tables import scan_table
    from elflow.tabular import as_frame, as_generator

    if method != "sample" and draws > 1:
        raise ValueError(f"--draws must be 1 with --method {method}, got {draws}")
    _options.check_not_input(output, data, model)
    writer = _options.open_writer(output)
    est = _options.load_density(model)
    _options.set_threads(threads)
    with _options.rename_argument("path", "DATA"):
        scan = scan_table(data, _options.known_columns(est), BLOCK_ROWS, na or [], extra=True)
    generator = as_generator(seed)
    n_rows = n_filled = 0
    with writer, show_progress("Imputing rows", scan.total) as set_done:
        for block in scan:
            rows, context = _options.split_context(est, block)
            answer = est.impute(rows, n_draws=draws, method=method, context=context, random_state=generator)
            others = block.drop(columns=rows.columns).reset_index(drop=True)
            for number, table in enumerate(answer if draws > 1 else [answer]):
                frame = pd.concat([as_frame(table, est.schema_.names), others], axis=1)
                writer.write(frame.assign(draw=number) if draws > 1 else frame)
            n_rows += len(rows)
            n_filled += int(rows.isna().to_numpy().sum())
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
    like = [known for known in _options.known_columns(est) if known.name in needed]
    with _options.rename_argument("path", "DATA"):
        scan = scan_table(data, like, BLOCK_ROWS, na or [], extra=True)
    n_rows = 0
    with writer, show_progress("Conditioning rows", scan.total) as set_done:
        for block in scan:
            answer = _answer(est, block, column, levels, cdf, proba, conditions or None)
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
    return levels


def _answer(
    est: FlowDensity,
    block: pd.DataFrame,
    column: str,
    levels: list[float],
    cdf: bool,
    proba: bool,
    given: list[str] | None,
) -> pd.DataFrame:
    """Quantiles, distribution function and probabilities of a block of rows, in this order."""
    import numpy as np
    import pandas as pd

    others = [name for name in est.schema_.names if name != column]
    rows = block.reindex(columns=[*others, column]).reset_index(drop=True)
    context = None if est.context_schema_ is None else block[est.context_schema_.names].reset_index(drop=True)
    plain = [name for name in others if not est.schema_.column(name).missing]
    has_holes = rows[plain].isna().any(axis=1).to_numpy() if given is None else np.zeros(len(rows), bool)
    parts = []
    for is_part, conditions in ((~has_holes, given), (has_holes, others)):
        if not is_part.any() and len(rows):
            continue
        part, c = rows[is_part], None if context is None else context[is_part]
        table = _answer_rows(est, part, column, levels, cdf, proba, conditions, c)
        parts.append(table.set_index(np.flatnonzero(is_part)))
        if not len(rows):
            break
    return pd.concat(parts).sort_index()


def _answer_rows(
    est: FlowDensity,
    rows: pd.DataFrame,
    column: str,
    levels: list[float],
    cdf: bool,
    proba: bool,
    given: list[str] | None,
    context: pd.DataFrame | None,
) -> pd.DataFrame:
    """Answers for rows with the same conditions."""
    import pandas as pd

    columns: dict[str, np.ndarray] = {}
    if levels:
        values = est.conditional_quantile(rows, column, levels, context=context, given=given)
        columns |= {f"q{level:g}": values[:, k] for k, level in enumerate(levels)}
    if cdf:
        columns["cdf"] = est.conditional_cdf(rows, column, context=context, given=given)
    if proba:
        table = est.conditional_proba(rows, column, context=context, given=given)
        columns |= {f"p_{level}": table[level].to_numpy() for level in table}
    return pd.DataFrame(columns)
