"""Commands for tables: `elflow fit`, `elflow score` and `elflow sample`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elflow.cli import _options, _processes
from elflow.cli._options import (
    CsvSafe,
    Data,
    Dequantization,
    Device,
    Devices,
    LogDir,
    MaxMemory,
    MaxSteps,
    Model,
    ModelOutput,
    NaValues,
    Nodes,
    Precision,
    Quiet,
    Resume,
    ScoreOutput,
    Seed,
    Threads,
    TimeLimit,
)
from elflow.cli._terminal import Mean, describe_columns, is_terminal, show, show_columns, show_progress

if TYPE_CHECKING:
    import pandas as pd

    from elflow import FlowDensity
    from elflow.io.tables import TableScan

MAX_VALIDATION_ROWS = 10_000
"""Maximum number of validation rows that are scored after training."""
SCORE_BLOCK = 16_384
"""Number of rows that are scored at a time."""


def fit(
    data: Data,
    output: ModelOutput,
    flow: Annotated[str, typer.Option(help="elf, or the name of a zuko flow: nsf, maf, ...")] = "elf",
    context: Annotated[
        list[str] | None,
        typer.Option(help="Condition on these columns instead of modelling them. Repeatable.", metavar="COL,..."),
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="Ignore these columns. Repeatable.", metavar="COL,...")] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option(help="Bounds of a numeric column; either may be empty. Repeatable.", metavar="COL=LOW:HIGH"),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Kind of a column: continuous, integer, boolean, category or datetime. Repeatable.",
            metavar="COL=KIND",
        ),
    ] = None,
    missing: Annotated[Literal["error", "model"], typer.Option(help="Reject missing values, or model them.")] = "error",
    na: NaValues = None,
    max_memory: MaxMemory = None,
    dequantization: Annotated[
        Dequantization, typer.Option(help="Dequantisation noise for integers and categories.")
    ] = "uniform",
    time_limit: TimeLimit = None,
    max_steps: MaxSteps = None,
    validation: Annotated[float, typer.Option(help="Fraction of the rows to hold out for validation.")] = 0.1,
    seed: Seed = 0,
    device: Device = "auto",
    precision: Precision = "32",
    devices: Devices = None,
    nodes: Nodes = None,
    threads: Threads = None,
    resume: Resume = False,
    log_dir: LogDir = None,
    quiet: Quiet = False,
) -> None:
    """Fit a density to a table.

    \b
    Examples:
      elflow fit data.csv -o model.elf
      elflow fit adult.csv -o adult.elf --na '?' --missing model --time-limit 10m
      elflow fit prices.parquet -o prices.elf --context country --bounds price=0:

    Run the same command with --resume to continue after Ctrl-C or a crash.
    With --devices, several processes share every batch.
    """
    seconds = _options.parse_duration(time_limit)
    if not 0 < validation < 1:
        raise ValueError(f"--validation must be a fraction in (0, 1), got {validation:g}")
    _options.check_output(output, data)
    checkpoint = _options.checkpoint_path(output, resume)
    by_bounds, by_kind = _options.parse_bounds(bounds), _options.parse_kinds(kind)
    if both := [name for name in by_bounds if name in by_kind]:
        raise ValueError(f"column {both[0]!r} must have either --bounds or --kind, got both")
    rows, contexts = _read(data, na, drop, context, _options.parse_memory(max_memory))
    _options.check_names("--bounds", list(by_bounds), data, list(rows.columns))
    _options.check_names("--kind", list(by_kind), data, list(rows.columns))
    fabric = _processes.make_fabric(device, precision, devices, nodes)
    quiet = _processes.is_quiet(fabric, quiet)

    import elflow
    from elflow.flows.named import FLOW_NAMES

    if flow not in FLOW_NAMES:
        raise ValueError(f"--flow must be one of {FLOW_NAMES}, got {flow!r}")
    est = elflow.FlowDensity(
        flow=flow,
        columns={**by_bounds, **by_kind},
        missing=missing,
        dequantization=dequantization,
        max_steps=max_steps,
        validation=validation,
        time_limit=seconds,
        device=device,
        precision=precision,
        log_dir=log_dir,
        random_state=seed,
        verbose=is_terminal() and not quiet,
    )
    fingerprint = _make_fingerprint(est, rows, contexts)
    if _options.is_finished(output, checkpoint, fingerprint, seconds, resume, quiet):
        return
    est.fit_schema(rows, context=contexts)
    if not quiet:
        _show_schema(est, len(rows))
    with _processes.start(fabric, checkpoint, threads):
        est.fit(rows, context=contexts, checkpoint=checkpoint, fabric=fabric)
    if not fabric.is_global_zero:
        return
    elflow.save(est, output, notes={"fingerprint": fingerprint, "time_limit": seconds})
    checkpoint.unlink(missing_ok=True)
    if not quiet:
        mean = _score_validation_rows(est, rows, contexts)
        show(
            [
                ("held-out log-likelihood", f"{mean} per row, {mean.count + mean.zeros:,} rows"),
                ("training", est.training_.describe()),
                ("model", f"{output}, {est.n_parameters_:,} parameters"),
            ]
        )


def _read(
    data: Path, na: list[str] | None, drop: list[str] | None, context: list[str] | None, max_memory: int | None
) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """The rows to model, and their contexts or None."""
    from elflow.io.tables import read_names, read_table

    with _options.rename_argument("path", "DATA"), _options.rename_argument("max_memory", "--max-memory"):
        names = read_names(data)
        dropped = _options.parse_names("--drop", drop, data, names)
        given = _options.parse_names("--context", context, data, names)
        if both := [name for name in dropped if name in given]:
            raise ValueError(f"column {both[0]!r} must have either --drop or --context, got both")
        if not set(names) - set(dropped) - set(given):
            raise ValueError(f"{data} must have a column to model besides those of --drop and --context, got none")
        frame = read_table(data, na or [], drop=dropped, max_memory=max_memory)
    rows = frame.drop(columns=given)
    return rows, frame[given] if given else None


def _make_fingerprint(est: FlowDensity, rows: pd.DataFrame, contexts: pd.DataFrame | None) -> str:
    """Digest of the data and of all settings that decide about the model, but for the time limit."""
    from elflow.tabular import digest

    apart = ("verbose", "log_dir", "time_limit", "device")
    settings = {name: value for name, value in est.get_params().items() if name not in apart}
    return digest(rows, contexts, json.dumps(settings, default=str))


def _show_schema(est: FlowDensity, rows: int) -> None:
    columns, context = est.schema_.columns, est.context_schema_
    given = "" if context is None else f", and {len(context.columns)} of context"
    show([("rows", f"{rows:,}"), ("columns", f"{len(columns)}{given}")])
    show_columns(describe_columns(est.schema_, "modelled") + describe_columns(context, "context"))


def _score_validation_rows(est: FlowDensity, rows: pd.DataFrame, contexts: pd.DataFrame | None) -> Mean:
    import numpy as np

    mask = est.validation_mask(rows)
    assert mask is not None, "the rows are those that were fitted"
    indices = np.flatnonzero(mask)[:MAX_VALIDATION_ROWS]
    mean = Mean("nats")
    given = None if contexts is None else contexts.iloc[indices]
    mean.add(est.score_samples(rows.iloc[indices], context=given), indices)
    return mean


def score(
    model: Model,
    data: Data,
    output: ScoreOutput = None,
    anomaly: Annotated[
        bool, typer.Option("--anomaly", help="Also write anomaly scores: above 99 for the least likely 1%.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Also write the columns of the data.")] = False,
    csv_safe: CsvSafe = False,
    na: NaValues = None,
    threads: Threads = None,
) -> None:
    """Compute the log-density of rows, in nats; continuous columns contribute a density per unit.

    \b
    Examples:
      elflow score model.elf data.csv
      elflow score model.elf data.csv -o scores.parquet
      elflow score model.elf data.csv -o scores.csv --anomaly --append

    Print the mean with its standard error. Rows are read and written in
    blocks, so tables may be larger than memory.
    """
    from elflow.io.tables import scan_table

    _options.check_not_input(output, data, model)
    writer = None if output is None else _options.open_writer(output, csv_safe)
    est = _options.load_density(model)
    _options.set_threads(threads)
    with _options.rename_argument("path", "DATA"):
        scan = scan_table(data, _options.known_columns(est), SCORE_BLOCK, na or [], extra=append)
    mean = Mean("nats")
    with writer or nullcontext(), show_progress("Scoring rows", scan.total) as set_done:
        for block in scan:
            block.index += 1  # warnings count the rows of a file from 1, as all other messages do
            rows, context = _options.split_context(est, block)
            log_density = est.score_samples(rows, context=context)
            mean.add(log_density)
            if writer is not None:
                scores = {"log_density": log_density}
                if anomaly:
                    scores["anomaly_score"] = est.percentiles(log_density)
                writer.write(_add_columns(block if append else None, scores))
            set_done(scan.done)
    summary = [("rows", f"{mean.count + mean.zeros:,}"), ("mean log-density", str(mean))]
    if writer is not None and str(output) != "-":
        summary.append(("scores", str(output)))
    show(summary, error=str(output) == "-")


def _add_columns(block: pd.DataFrame | None, scores: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    if block is None:
        return pd.DataFrame(scores)
    if taken := [name for name in scores if name in block.columns]:
        raise ValueError(f"DATA must not have a column {taken[0]!r} for --append: rename it, or leave out --append")
    return block.assign(**scores)


def sample(
    model: Model,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Rows to write: .csv, .parquet, ...; - for standard output.", show_default=False
        ),
    ],
    number: Annotated[
        int, typer.Option("--number", "-n", help="Number of rows; with --context, per row of the context table.", min=1)
    ] = 1,
    seed: Seed = 0,
    context: Annotated[
        Path | None,
        typer.Option(
            help="Table of contexts; required if the model was fitted with --context.",
            metavar="DATA",
            show_default=False,
        ),
    ] = None,
    csv_safe: CsvSafe = False,
    threads: Threads = None,
) -> None:
    """Draw new rows.

    \b
    Examples:
      elflow sample model.elf -n 1000 -o new.csv
      elflow sample model.elf -n 1000000 -o new.parquet --seed 7
      elflow sample model.elf -n 10 -o new.csv --context contexts.csv

    The rows have the columns and types of the data. In Python,
    FlowDensity.sample(n, random_state=seed) draws the same rows. With
    --context, -n rows are drawn for each row of the table and written
    together, with the columns of the context last. Rows are written in
    blocks, so there may be more of them than fit into memory.
    """
    from elflow.io.tables import scan_table
    from elflow.tabular import SAMPLE_BLOCK

    _options.check_not_input(output, model, *([] if context is None else [context]))
    writer = _options.open_writer(output, csv_safe)
    est = _options.load_density(model)
    _options.set_threads(threads)
    schema = est.context_schema_
    if schema is not None and context is None:
        raise ValueError(f"--context must be a table of {schema.names}, the context of {model}, got none")
    if schema is None and context is not None:
        raise ValueError(f"--context must be left out, as {model} has no context")
    total: int | None = number
    scan = None
    if schema is not None and context is not None:
        with _options.rename_argument("path", "--context"):
            scan = scan_table(context, schema.columns, SAMPLE_BLOCK)
        total = None if scan.rows is None else scan.rows * number
    with writer, show_progress("Sampling rows", total) as set_done:
        for rows in _iter_rows(est, number, scan, seed):
            writer.write(rows)
            set_done(writer.rows)
    show([("rows", f"{writer.rows:,}"), ("written to", str(output))], error=str(output) == "-")


def _iter_rows(est: FlowDensity, number: int, scan: TableScan | None, seed: int) -> Iterator[pd.DataFrame]:
    """Blocks of new rows, beside the contexts that they were drawn for."""
    import numpy as np
    import pandas as pd

    from elflow.tabular import as_frame, as_generator

    generator = as_generator(seed)  # one for all contexts, as if they were sampled at once
    for contexts in [None] if scan is None else scan:
        done = 0
        for rows in est.iter_samples(number, context=contexts, random_state=generator):
            frame = as_frame(rows, est.schema_.names)
            if contexts is not None:
                repeated = contexts.iloc[np.arange(done, done + len(frame)) // number].reset_index(drop=True)
                frame = pd.concat([frame, repeated.drop(columns=frame.columns, errors="ignore")], axis=1)
                done += len(frame)
            yield frame
