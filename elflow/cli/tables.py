"""Commands for tables: `elflow fit`, `elflow score` and `elflow sample`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elflow.cli import _options, _processes
from elflow.cli._data import FitData, open_data
from elflow.cli._given import parse_given
from elflow.cli._options import (
    CsvSafe,
    Data,
    Device,
    Devices,
    LogDir,
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
    TableDequantization,
    Threads,
    TimeLimit,
)
from elflow.cli._ray import Address, Engine, Workers, sample_with_ray, score_with_ray
from elflow.cli._terminal import Mean, describe_columns, is_terminal, show, show_columns, show_progress

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from elflow import FlowDensity
    from elflow.io.tables import TableScan

SCORE_BLOCK = 32_768
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
    dequantization: Annotated[
        TableDequantization, typer.Option(help="Dequantisation noise for integers, categories and missing values.")
    ] = "auto",
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
      elflow fit "data/*.parquet" -o model.elf

    Tables larger than 16 MiB are read block by block, and may be larger than
    memory: their rows are encoded into the file MODEL.rows, which is deleted
    at the end.

    Run the same command with --resume to continue after Ctrl-C or a crash.
    With --devices, several processes share every batch.
    """
    seconds = _options.parse_duration(time_limit)
    if not 0 < validation < 1:
        raise ValueError(f"--validation must be a fraction in (0, 1), got {validation:g}")
    _options.check_output(output, data)
    checkpoint = _options.locate_checkpoint(output, resume)
    by_bounds, by_kind = _options.parse_bounds(bounds), _options.parse_kinds(kind)
    if both := [name for name in by_bounds if name in by_kind]:
        raise ValueError(f"column {both[0]!r} must have either --bounds or --kind, got both")
    table = open_data(data, na, drop, context, (devices or 1) * (nodes or 1))
    _options.check_names("--bounds", list(by_bounds), data, table.names)
    _options.check_names("--kind", list(by_kind), data, table.names)
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
    with _options.locking_output(output, fabric.is_global_zero):
        fingerprint = _make_fingerprint(est, table)
        rows_file = None if table.stream is None else output.with_name(output.name + ".rows")
        if _options.is_finished(output, checkpoint, fingerprint, seconds, resume, quiet):
            return
        if rows_file is None or not rows_file.exists():  # otherwise the columns are known from an interrupted run
            est.fit_schema(table.rows, context=table.contexts)
            if not quiet:
                _show_schema(est, table.n_rows)
        with _processes.start(fabric, checkpoint, threads):
            est.fit(table.rows, context=table.contexts, checkpoint=checkpoint, rows_file=rows_file, fabric=fabric)
        if not fabric.is_global_zero:
            return
        elflow.save(est, output, notes={"fingerprint": fingerprint, "time_limit": seconds})
        checkpoint.unlink(missing_ok=True)
        if rows_file is not None:
            rows_file.unlink(missing_ok=True)
        if not quiet:
            mean = table.score_validation_rows(est)
            show(
                [
                    ("held-out log-likelihood", f"{mean} per row, {mean.count + mean.zeros:,} rows"),
                    ("training", est.training_.describe()),
                    ("model", f"{output}, {est.n_parameters_:,} parameters"),
                ]
            )


def _make_fingerprint(est: FlowDensity, table: FitData) -> str:
    """Digest of the data and of all settings that decide about the model, but for the time limit."""
    from elflow.tabular import digest

    apart = ("verbose", "log_dir", "time_limit", "device")
    settings = {name: value for name, value in est.get_params().items() if name not in apart}
    return digest(table.digest(), json.dumps(settings, default=str))


def _show_schema(est: FlowDensity, rows: int) -> None:
    columns, context = est.schema_.columns, est.context_schema_
    given = "" if context is None else f", and {len(context.columns)} of context"
    show([("rows", f"{rows:,}"), ("columns", f"{len(columns)}{given}")])
    show_columns(describe_columns(est.schema_, "modelled") + describe_columns(context, "context"))


def score(
    model: Model,
    data: Data,
    output: ScoreOutput = None,
    anomaly: Annotated[
        bool, typer.Option("--anomaly", help="Also write anomaly scores: above 99 for the least likely 1%.")
    ] = False,
    append: Annotated[bool, typer.Option("--append", help="Also write the columns of the data.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also write each row's most surprising value, and ordinary ones.")
    ] = False,
    csv_safe: CsvSafe = False,
    na: NaValues = None,
    threads: Threads = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
) -> None:
    """Compute the log-density of rows, in nats; continuous columns contribute a density per unit.

    \b
    Examples:
      elflow score model.elf data.csv
      elflow score model.elf data.csv -o scores.parquet
      elflow score model.elf data.csv -o scores.csv --anomaly --append
      elflow score model.elf data.parquet -o scores --engine ray --address auto
      elflow score model.elf data.csv -o scores.csv --explain

    Print the mean with its standard error. Rows are read and written in
    blocks, so tables may be larger than memory.
    """
    if engine == "ray":
        if csv_safe:
            raise ValueError("--csv-safe must be left out with --engine ray, which writes Parquet files")
        if explain:
            raise ValueError("--explain must be left out with --engine ray: elflow.batch.Scorer has output='explain'")
        score_with_ray(model, data, output, anomaly, append, na, threads, address, workers)
        return
    from elflow.io.tables import scan_table
    from elflow.tabular import number_rows_from

    _options.check_not_input(output, data, model)
    if explain and output is None:
        raise ValueError("--explain must have a file to write to, got no --output")
    writer = None if output is None else _options.open_writer(output, csv_safe)
    est = _options.load_density(model)
    _options.set_threads(threads)
    with _options.rename_argument("path", "DATA"):
        scan = scan_table(data, _options.list_known_columns(est), SCORE_BLOCK, na or [], extra=append)
    mean = Mean("nats")
    with writer or nullcontext(), show_progress("Scoring rows", scan.total) as set_done:
        for block in scan:
            rows, context = _options.split_context(est, block)
            with number_rows_from(1 + mean.count + mean.zeros):  # as in all other messages
                log_density = est.score_samples(rows, context=context)
            mean.add(log_density)
            if writer is not None:
                scores = {"log_density": log_density}
                if anomaly:
                    scores["anomaly_score"] = est.percentiles(log_density)
                if explain:
                    scores |= _find_reasons(est, rows, context)
                writer.write(_add_columns(block if append else None, scores))
            set_done(scan.done)
    summary = [("rows", f"{mean.count + mean.zeros:,}"), ("mean log-density", str(mean))]
    if writer is not None and str(output) != "-":
        summary.append(("scores", str(output)))
    show(summary, error=str(output) == "-")


def _find_reasons(est: FlowDensity, rows: pd.DataFrame, context: pd.DataFrame | None) -> dict[str, Any]:
    """The most surprising value of each row: its column, tail probability, surprise, and ordinary values."""
    reasons = est.explain(rows, context=context).drop_duplicates("row").set_index("row").reindex(range(len(rows)))
    names = {"column": "odd_column", "tail_probability": "odd_tail_probability", "surprise": "odd_surprise"}
    answer: dict[str, Any] = {new: reasons[name].to_numpy() for name, new in names.items()}
    # Columns of text, because ordinary values may be numbers in one row and categories in another.
    return answer | {f"odd_{end}": reasons[end].map(_as_text).to_numpy() for end in ("low", "high")}


def _as_text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


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
    given: Annotated[
        list[str] | None,
        typer.Option(
            help="Condition on a column: a value, a range LOW..HIGH, a set A,B, or nothing for a missing value. "
            "Repeatable.",
            metavar="COL=CONDITION",
        ),
    ] = None,
    csv_safe: CsvSafe = False,
    threads: Threads = None,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
) -> None:
    """Draw new rows.

    \b
    Examples:
      elflow sample model.elf -n 1000 -o new.csv
      elflow sample model.elf -n 1000000 -o new.parquet --seed 7
      elflow sample model.elf -n 10 -o new.csv --context contexts.csv
      elflow sample model.elf -n 100 -o new.csv --given "segment=retail" --given "age=30..40"

    The rows have the columns and types of the data. In Python,
    FlowDensity.sample(n, random_state=seed) draws the same rows. With
    --context, -n rows are drawn for each row of the table and written
    together, with the columns of the context last. Rows are written in
    blocks, so there may be more of them than fit into memory. With
    --engine ray the rows depend on the seed, not on the workers, but
    are others than without it.
    """
    from elflow.io.tables import scan_table
    from elflow.tabular import SAMPLE_BLOCK

    _options.check_not_input(output, model, *([] if context is None else [context]))
    if csv_safe and engine == "ray":
        raise ValueError("--csv-safe must be left out with --engine ray, which writes Parquet files")
    if given and engine == "ray":
        raise ValueError("--given must be left out with --engine ray, which draws from the joint distribution")
    writer = None if engine == "ray" else _options.open_writer(output, csv_safe)
    est = _options.load_density(model)
    _options.set_threads(threads)
    schema = est.context_schema_
    if schema is not None and context is None:
        raise ValueError(f"--context must be a table of {schema.names}, the context of {model}, got none")
    if schema is None and context is not None:
        raise ValueError(f"--context must be left out, as {model} has no context")
    if writer is None:
        sample_with_ray(model, output, number, seed, context, threads, address, workers)
        return
    total: int | None = number
    scan = None
    if schema is not None and context is not None:
        with _options.rename_argument("path", "--context"):
            scan = scan_table(context, schema.columns, SAMPLE_BLOCK)
        total = None if scan.rows is None else scan.rows * number
    conditions = parse_given(given, est)
    with (
        writer,
        show_progress("Sampling rows", total) as set_done,
        _options.rename_argument("given", "--given"),
    ):
        for rows in _iter_rows(est, number, scan, seed, conditions):
            writer.write(rows)
            set_done(writer.rows)
    show([("rows", f"{writer.rows:,}"), ("written to", str(output))], error=str(output) == "-")


def _iter_rows(
    est: FlowDensity, number: int, scan: TableScan | None, seed: int, given: dict[str, Any]
) -> Iterator[pd.DataFrame]:
    """Blocks of new rows, beside the contexts that they were drawn for."""
    import numpy as np
    import pandas as pd

    from elflow.tabular import as_frame, as_generator

    generator = as_generator(seed)  # one for all contexts, as if they were sampled at once
    for contexts in [None] if scan is None else scan:
        done = 0
        for rows in _iter_blocks(est, number, contexts, generator, given):
            frame = as_frame(rows, est.schema_.names)
            if contexts is not None:
                repeated = contexts.iloc[np.arange(done, done + len(frame)) // number].reset_index(drop=True)
                frame = pd.concat([frame, repeated.drop(columns=frame.columns, errors="ignore")], axis=1)
                done += len(frame)
            yield frame


def _iter_blocks(
    est: FlowDensity, number: int, contexts: pd.DataFrame | None, generator: torch.Generator, given: dict[str, Any]
) -> Iterator[Any]:
    """Blocks of samples, given conditions or not."""
    from elflow.tabular import warn_if_poor

    if not given:
        yield from est.iter_samples(number, context=contexts, random_state=generator)
        return
    for rows, info in est.iter_given_samples(number, given, context=contexts, random_state=generator):
        warn_if_poor(info)
        yield rows
