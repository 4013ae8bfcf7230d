"""Scoring, imputation and sampling on a Ray cluster: `--engine ray`."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elflow.cli import _options
from elflow.cli._terminal import Mean, show, show_progress

if TYPE_CHECKING:
    from elflow.batch.pieces import Piece, PieceImputer, PieceSampler, PieceScorer
    from elflow.tabular import FlowDensity

Engine = Annotated[
    Literal["local", "ray"],
    typer.Option(help="local: this process. ray: a Ray cluster; the output is a folder of Parquet files."),
]
Address = Annotated[
    str | None,
    typer.Option(help="Ray cluster, such as auto. Default: a new one on this machine.", show_default=False),
]
Workers = Annotated[
    int | None,
    typer.Option(help="Number of workers with --engine ray. Default: one per CPU.", min=1, show_default=False),
]


def score_with_ray(
    model: Path,
    data: Path,
    output: Path | None,
    anomaly: bool,
    append: bool,
    na: list[str] | None,
    threads: int | None,
    address: str | None,
    workers: int | None,
) -> None:
    """Score a table on a Ray cluster, and print the mean."""
    from elflow.batch import Scorer
    from elflow.batch.pieces import PieceScorer

    if output is None:
        raise ValueError("--output must be a folder with --engine ray, got none")
    pieces = _divide(data, _options.load_density(model), na or [], append, workers)
    scorer = Scorer(model.resolve(), "anomaly" if anomaly else "log_density", append=append, threads=threads or 1)
    with _creating_folder(output) as folder:
        worker = PieceScorer(scorer, str(folder), na or [])
        results = _run("Scoring pieces", pieces, worker, address, workers, threads or 1)
        _check_parts(folder, pieces, results)
    mean, rows = Mean("nats"), 0
    for result in results:
        if result["zeros"] and not mean.zeros:
            mean.first_zero = 1 + rows + result["first_zero"]
        mean.zeros += result["zeros"]
        mean.merge(result["rows"] - result["zeros"], result["mean"], result["squares"])
        rows += result["rows"]
    show([("rows", f"{rows:,}"), ("mean log-density", str(mean)), ("scores", str(output))])


def impute_with_ray(
    model: Path,
    data: Path,
    output: Path,
    method: str,
    draws: int,
    seed: int,
    na: list[str] | None,
    threads: int | None,
    address: str | None,
    workers: int | None,
) -> None:
    """Fill the missing cells of a table on a Ray cluster."""
    from elflow.batch import Imputer
    from elflow.batch.pieces import PieceImputer

    pieces = _divide(data, _options.load_density(model), na or [], True, workers)
    imputer = Imputer(model.resolve(), method, draws, seed, threads=threads or 1)
    with _creating_folder(output) as folder:
        worker = PieceImputer(imputer, str(folder), na or [])
        results = _run("Imputing pieces", pieces, worker, address, workers, threads or 1)
        _check_parts(folder, pieces, results)
    rows, cells = (f"{sum(result[name] for result in results):,}" for name in ("rows", "cells"))
    show([("rows", rows), ("cells filled", cells), ("written to", str(output))])


def sample_with_ray(
    model: Path,
    output: Path,
    number: int,
    seed: int,
    context: Path | None,
    threads: int | None,
    address: str | None,
    workers: int | None,
) -> None:
    """Draw rows on a Ray cluster."""
    from elflow.batch import Sampler
    from elflow.batch.pieces import Piece, PieceSampler, list_pieces

    sampler = Sampler(model.resolve(), number, seed, threads=threads or 1)
    blocks = [Piece(number) for number in range(sampler.n_blocks)]
    pieces = blocks if context is None else list_pieces(_list_files(context), workers or os.cpu_count() or 1)
    with _creating_folder(output) as folder:
        results = _run("Sampling", pieces, PieceSampler(sampler, str(folder)), address, workers, threads or 1)
        _check_parts(folder, pieces, results)
    show([("rows", f"{sum(result['rows'] for result in results):,}"), ("written to", str(output))])


def _divide(data: Path, est: FlowDensity, na: list[str], extra: bool, workers: int | None) -> list[Piece]:
    """Pieces of the tables, all of which have the columns of the model."""
    from elflow.batch.pieces import list_pieces
    from elflow.io.tables import scan_table

    files = _list_files(data)
    with _options.rename_argument("path", "DATA"):
        for file in files:  # an error in one of them should not appear after hours
            scan_table(file, _options.list_known_columns(est), na_values=na, extra=extra)
    return list_pieces(files, workers or os.cpu_count() or 1)


def _list_files(data: Path) -> list[Path]:
    """The file, all tables in a folder, or those that match a pattern, in the order of their names."""
    from elflow.io.tables import list_inputs

    files = [path for path in list_inputs(data) if path.is_file()]
    if not files:
        raise FileNotFoundError(f"DATA must be an existing table, a folder or a pattern of tables, got {data}")
    return files


@contextmanager
def _creating_folder(output: Path) -> Iterator[Path]:
    """Folder that appears as `output` when the block has succeeded, and is deleted otherwise."""
    if output.exists():
        raise FileExistsError(f"--output must be a new folder with --engine ray, got {output}, which exists")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"--output must be in an existing folder, got {output}")
    parent = output.parent.resolve()
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=f".{output.name}."))
    try:
        folder.chmod(0o777 & ~_read_umask())  # workers may belong to other users
        yield folder
        folder.rename(parent / output.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _read_umask() -> int:
    mask = os.umask(0)  # the only way to read the mask is to set it
    os.umask(mask)
    return mask


def _run(
    text: str,
    pieces: Sequence[Piece],
    worker: PieceScorer | PieceImputer | PieceSampler,
    address: str | None,
    workers: int | None,
    threads: int,
) -> list[dict[str, Any]]:
    """The results of all pieces, in the order of the pieces."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        message = "--engine ray must have Ray Data, which is not installed: pip install 'elflow[ray]'"
        raise ValueError(f"{message} ({error})") from None
    options: dict[str, Any] = {"address": address}
    if address is None:
        # One logical CPU more than the workers use, for the tasks of Ray Data itself.
        workers = workers or max(1, (os.cpu_count() or 1) // threads)
        options = {"num_cpus": workers * threads + 1, "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray warns that its progress bars are disabled, which this command replaces by its own.
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.init(**options, logging_level=logging.ERROR, log_to_driver=False)
    try:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = context.print_on_execution_start = False
        workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        table = ray.data.from_items([{"piece": piece.to_json()} for piece in pieces], override_num_blocks=len(pieces))
        dataset = table.map_batches(
            type(worker),
            fn_constructor_args=list(worker.__dict__.values()),
            batch_size=1,
            num_cpus=threads,
            compute=ray.data.ActorPoolStrategy(size=min(workers, len(pieces))),
        )
        results = []
        with show_progress(text, len(pieces)) as set_done:
            for result in dataset.iter_rows():
                results.append({name: getattr(value, "item", lambda v=value: v)() for name, value in result.items()})
                set_done(len(results))
    except ray.exceptions.RayTaskError as error:
        raise ValueError(f"a worker failed: {_find_cause(error)}") from None
    finally:
        ray.shutdown()
    return sorted(results, key=lambda result: result["piece"])


def _find_cause(error: BaseException) -> str:
    """The last line of an error of a worker, which is its own message."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _check_parts(folder: Path, pieces: Sequence[Piece], results: Sequence[dict[str, Any]]) -> None:
    """Remove what killed workers left unfinished, and raise an error unless each piece was written once."""
    from elflow.batch.pieces import part_name

    for unfinished in folder.glob(".*"):
        unfinished.unlink()

    numbers = [piece.number for piece in pieces]
    written = sorted(path.name for path in folder.iterdir())
    if [result["piece"] for result in results] != numbers or written != [part_name(number) for number in numbers]:
        raise RuntimeError(f"each of {len(numbers)} pieces must be written once, got {len(written)} files")
