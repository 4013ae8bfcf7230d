"""`elflow fit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from elflow.cli._interrupted import checkpoint_of, keeping
from elflow.cli._mean import Mean
from elflow.cli._models import check_output, described, use_threads, why_stopped
from elflow.cli._options import (
    Data,
    Log,
    MaxSteps,
    Missing,
    Quiet,
    Resume,
    Seed,
    Threads,
    TimeLimit,
    column_options,
    seconds,
)
from elflow.cli._terminal import duration, is_terminal, note, show, show_columns

MOST_HELD_OUT = 10_000
"""How many held-out rows are scored in the end."""


def fit(
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the model goes.", show_default=False)],
    flow: Annotated[str, typer.Option(help="elf, or a flow of zuko by name: nsf, maf, ...")] = "elf",
    context: Annotated[
        list[str] | None,
        typer.Option(help="A column to condition on, not to model. Can be repeated.", metavar="COL"),
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="A column to leave out. Can be repeated.", metavar="COL")
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(help="Bounds of a continuous column. Can be repeated.", metavar="COL=LOW:HIGH"),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="What a column is: continuous, integer, boolean, category or datetime. Can be repeated.",
            metavar="COL=KIND",
        ),
    ] = None,
    missing: Annotated[
        Literal["error", "model"],
        typer.Option(help="Missing values: refuse them, or make them values of their own."),
    ] = "error",
    na: Missing = None,
    dequantization: Annotated[
        Literal["uniform", "variational"], typer.Option(help="How integers and categories become continuous.")
    ] = "uniform",
    time_limit: TimeLimit = None,
    max_steps: MaxSteps = None,
    validation: Annotated[float, typer.Option(help="The share of rows that is held out.")] = 0.1,
    seed: Seed = 0,
    threads: Threads = None,
    resume: Resume = False,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Fits a density to a table.

    \b
    elflow fit data.csv -o model.elf
    elflow fit adult.csv -o adult.elf --na '?' --missing model --time-limit 10m
    elflow fit prices.parquet -o prices.elf --context country --bounds price=0:

    After a crash or Ctrl-C, the same command with --resume goes on where it was.
    """
    limit = None if time_limit is None else seconds(time_limit)
    columns = column_options(bounds or [], kind or [])
    check_output(output, data)
    checkpoint = checkpoint_of(output, resume)
    rows, conditions = _tables(data, na or [], drop or [], context or [])

    from elflow.tabular import FlowDensity

    use_threads(threads)
    est = FlowDensity(
        flow=flow,
        columns=columns,
        missing=missing,
        dequantization=dequantization,
        max_steps=max_steps,
        validation=validation,
        time_limit=limit,
        logger=None if log is None else str(log),
        random_state=seed,
        verbose=is_terminal() and not quiet,
    )
    if resume and not checkpoint.exists():
        if _is_complete(output, est, rows, conditions):
            note(f"{output} is complete: there is nothing to go on with")
            return
        note(f"there is no {checkpoint} to go on from: the training begins anew")
    if not quiet:
        _show_found(rows, conditions, columns, missing)
    with keeping(checkpoint):
        est.fit(rows, context=conditions, checkpoint=checkpoint)
    est.save(output)
    checkpoint.unlink(missing_ok=True)
    if not quiet:
        show(
            [
                ("held-out likelihood", _held_out(est, rows, conditions)),
                ("time", f"{duration(est.seconds_)}, until {why_stopped(est.stopped_)}"),
                ("model", f"{output}, {est.n_parameters_:,} parameters"),
            ]
        )


def _tables(data: Path, na: list[str], drop: list[str], context: list[str]) -> tuple[Any, Any]:
    """The rows to model and the table of their context, or None."""
    from elflow.io.tables import read_table

    frame = read_table(data, na)
    for option, names in [("--drop", drop), ("--context", context)]:
        if absent := [name for name in names if name not in frame.columns]:
            raise ValueError(f"{option} must name a column of {data}, {list(frame.columns)}, got {absent[0]!r}")
    if both := set(drop) & set(context):
        raise ValueError(f"{min(both)!r} must be either dropped or the context")
    frame = frame.drop(columns=drop)
    rows = frame.drop(columns=context)
    if rows.shape[1] == 0:
        raise ValueError(f"{data} must have a column to model, got none besides those of --drop and --context")
    for name in rows.columns:
        values = rows[name]
        if len(values) > 2 and str(values.dtype) == "int64" and (values.diff().iloc[1:] == 1).all():
            note(f"column {name!r} counts the rows: leave it out with --drop {name!r} if it says nothing else")
    return rows, frame[context] if context else None


def _is_complete(output: Path, est: Any, rows: Any, conditions: Any) -> bool:
    """Whether the model that is there came of the same data and settings. It could be of an earlier training."""
    from sklearn.utils import check_random_state

    from elflow.cli._models import load_density

    try:
        there = load_density(output)
    except (ValueError, OSError):
        return False
    apart = {"verbose", "logger", "random_state"} | ({"time_limit"} if there.stopped_ != "time_limit" else set())
    asked, had = (json.dumps({k: v for k, v in e.get_params().items() if k not in apart}) for e in (est, there))
    contexts = [] if there.context_schema_ is None else there.context_schema_.names
    return (
        asked == had
        and contexts == ([] if conditions is None else list(conditions))
        and there.seed_ == check_random_state(est.random_state).randint(2**31 - 1)
        and there.validation_mask(rows) is not None
    )


def _held_out(est: Any, rows: Any, conditions: Any) -> str:
    """The mean log-density of the rows that were held out, as `elflow score` would have it."""
    import numpy as np

    some = np.flatnonzero(est.validation_mask(rows))[:MOST_HELD_OUT]
    mean = Mean()
    mean.add(est.score_samples(rows.iloc[some], context=None if conditions is None else conditions.iloc[some]))
    return f"{mean} per row, of {mean.count:,} rows"


def _show_found(rows: Any, conditions: Any, columns: dict[str, Any], missing: str) -> None:
    from elflow.tabular import Schema

    schema = Schema.fit(rows, columns, missing)
    context = None if conditions is None else Schema.fit(conditions, None, missing)
    beside = "" if context is None else f", given {len(context.columns)}"
    show([("rows", f"{len(rows):,}"), ("columns", f"{rows.shape[1]}{beside}")])
    show_columns(described(schema, "modelled") + described(context, "context"))
