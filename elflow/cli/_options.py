"""Options and arguments that commands share, their parsing, and the files that they name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elflow.cli._terminal import note

if TYPE_CHECKING:
    import pandas as pd

    from elflow import FlowDensity, ImageELF
    from elflow.io.tables import TableWriter
    from elflow.tabular import Column

Model = Annotated[Path, typer.Argument(help="Model written by `elflow fit`.", metavar="MODEL", show_default=False)]
Data = Annotated[
    Path,
    typer.Argument(
        help="Table: .csv, .tsv, .jsonl, also compressed (.gz, ...), .parquet, .feather, .xlsx; a folder; a pattern "
        "such as 'data/*.parquet'; - for standard input.",
        metavar="DATA",
        show_default=False,
    ),
]
ImageModel = Annotated[
    Path, typer.Argument(help="Model written by `elflow fit-images`.", metavar="MODEL", show_default=False)
]
ImageData = Annotated[
    Path,
    typer.Argument(
        help="Images: .npz, .npy, the files of MNIST or CIFAR-10, or a folder of image files.",
        metavar="DATA",
        show_default=False,
    ),
]
ModelOutput = Annotated[Path, typer.Option("--output", "-o", help="Model file to write.", show_default=False)]
ScoreOutput = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Scores to write: .csv, .parquet, ...; - for standard output.", show_default=False
    ),
]
NaValues = Annotated[
    list[str] | None,
    typer.Option(
        "--na", help="Additional text to treat as missing, besides NA, NaN, null, etc. Repeatable.", metavar="TEXT"
    ),
]
MaxMemory = Annotated[
    str | None,
    typer.Option(
        help="Maximum memory for the values of DATA, such as 500MB or 8GB; a quarter of the machine's by default.",
        show_default=False,
    ),
]
CsvSafe = Annotated[
    bool,
    typer.Option("--csv-safe", help="Put an apostrophe before text that a spreadsheet would run as a formula."),
]
Split = Annotated[
    Literal["train", "test"] | None,
    typer.Option(help="Part of the data to read, if the data have both; train by default.", show_default=False),
]
Resize = Annotated[
    str | None, typer.Option(help="Resize the images to this height and width.", metavar="HxW", show_default=False)
]
Dequantization = Literal["uniform", "variational"]
TableDequantization = Literal["auto", "uniform", "gaussian", "variational"]
TimeLimit = Annotated[
    str | None, typer.Option(help="Maximum training time, such as 90s, 10m or 1h30m.", show_default=False)
]
MaxSteps = Annotated[int | None, typer.Option(help="Maximum number of training steps.", min=1, show_default=False)]
Seed = Annotated[int, typer.Option(help="Random seed.", min=0, max=2**32 - 1)]
Threads = Annotated[int | None, typer.Option(help="Number of CPU threads.", min=1, show_default=False)]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run from its checkpoint.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"],
    typer.Option(help="Device; auto is a CUDA device if there is one, and the CPU otherwise."),
]
Precision = Annotated[
    Literal["32", "bf16-mixed"],
    typer.Option(help="Precision of training; with bf16-mixed, hypernetworks multiply matrices in bfloat16."),
]
Devices = Annotated[
    int | None,
    typer.Option(help="Number of processes on each machine, one per device. Default: 1.", min=1, show_default=False),
]
Nodes = Annotated[int | None, typer.Option(help="Number of machines. Default: 1.", min=1, show_default=False)]
LogDir = Annotated[
    Path | None, typer.Option(help="Folder for training logs, as CSV and for TensorBoard.", show_default=False)
]


def _hide_warnings(quiet: bool) -> bool:
    """Hide warnings until `main` restores them."""
    if quiet:
        warnings.simplefilter("ignore")
    return quiet


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", callback=_hide_warnings)]

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""Seconds in each unit of a duration."""


# Parsing


def parse_duration(text: str | None) -> float | None:
    """Seconds of a duration such as 90, 90s, 10m or 1h30m.

    Example:
        >>> parse_duration("1h30m"), parse_duration("2.5m"), parse_duration("45"), parse_duration(None)
        (5400.0, 150.0, 45.0, None)
    """
    if text is None:
        return None
    number = r"\d+(?:\.\d+)?"
    clean = text.strip().lower()
    if re.fullmatch(number, clean):
        clean += "s"
    total = sum(float(part[:-1]) * UNITS[part[-1]] for part in re.findall(f"{number}[smhd]", clean))
    if not re.fullmatch(f"(?:{number}[smhd])+", clean) or not total:
        raise ValueError(f"--time-limit must be a duration such as 90s, 10m or 1h30m, got {text!r}")
    return total


def parse_memory(text: str | None) -> int | None:
    """Bytes of a size such as 500MB or 8GB.

    Example:
        >>> parse_memory("500MB"), parse_memory("1.5 GiB"), parse_memory(None)
        (500000000, 1610612736, None)
    """
    if text is None:
        return None
    size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    number = 0 if size is None else int(float(size[1]) * (1024 if size[3] else 1000) ** " kmgt".index(size[2] or " "))
    if number < 1:
        raise ValueError(f"--max-memory must be a size such as 500MB or 8GB, got {text!r}")
    return number


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Height and width of a size such as 32x32.

    Example:
        >>> parse_size("28x32")
        (28, 32)
    """
    if text is None:
        return None
    if not (sizes := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text.strip().lower())):
        raise ValueError(f"--resize must be a height and width such as 32x32, got {text!r}")
    return int(sizes[1]), int(sizes[2])


def parse_names(option: str, texts: list[str] | None, data: Path, columns: list[str]) -> list[str]:
    """Column names of an option that may be repeated, each a column or several separated by commas.

    Example:
        >>> parse_names("--drop", ["a,b", "c,d"], Path("data.csv"), ["a", "b", "c,d", "e"])
        ['a', 'b', 'c,d']
    """
    names = [
        name
        for text in texts or []
        for name in ([text] if text in columns else [part.strip() for part in text.split(",")])
    ]
    check_names(option, names, data, columns)
    return list(dict.fromkeys(names))


def check_names(option: str, names: list[str], data: Path, columns: list[str]) -> None:
    """Raise an error if a name is not one of a table's columns."""
    if unknown := [name for name in names if name not in columns]:
        raise ValueError(f"{option} must name a column of {data}, got {unknown[0]!r}; columns: {columns}")


def parse_bounds(texts: list[str] | None) -> dict[str, tuple[float | None, float | None]]:
    """Bounds by column, from `COL=LOW:HIGH`.

    Example:
        >>> parse_bounds(["price=0:", "share=0:1"])
        {'price': (0.0, None), 'share': (0.0, 1.0)}
    """
    bounds = {}
    for text in texts or []:
        name, _, ends = text.rpartition("=")
        first, colon, last = ends.partition(":")
        if not name or not colon:
            raise ValueError(f"--bounds must be COL=LOW:HIGH, of which LOW or HIGH may be empty, got {text!r}")
        low, high = _parse_bound(first, text), _parse_bound(last, text)
        if low is None and high is None:
            raise ValueError(f"--bounds must have at least one bound, got {text!r}")
        if low is not None and high is not None and not low < high:
            raise ValueError(f"--bounds must have LOW below HIGH, got {text!r}")
        bounds[name] = (low, high)
    return bounds


def _parse_bound(number: str, text: str) -> float | None:
    if not number.strip():
        return None
    try:
        return float(number)
    except ValueError:
        raise ValueError(f"--bounds must be COL=LOW:HIGH with numbers, got {text!r}") from None


def parse_kinds(texts: list[str] | None) -> dict[str, str]:
    """Kinds by column, from `COL=KIND`.

    Example:
        >>> parse_kinds(["age=integer"])
        {'age': 'integer'}
    """
    from elflow.tabular import COLUMN_KINDS

    kinds = {}
    for text in texts or []:
        name, _, kind = text.rpartition("=")
        if not name or kind not in COLUMN_KINDS:
            raise ValueError(f"--kind must be COL=KIND, with a kind of {COLUMN_KINDS}, got {text!r}")
        kinds[name] = kind
    return kinds


# Files


def check_not_input(output: Path | None, *inputs: Path) -> None:
    """Raise an error if writing a file would overwrite one that is read."""
    from elflow.io.tables import list_inputs

    if output is None or not output.exists():
        return
    if any(output.samefile(file) for path in inputs for file in list_inputs(path)):
        raise ValueError(f"--output must not be one of the input files, got {output}")


def check_output(output: Path, *inputs: Path) -> None:
    """Raise an error if a file cannot be written, before hours are spent on its content."""
    if output.is_dir():
        raise IsADirectoryError(f"--output must be a file, got the folder {output}")
    if output.exists() and not output.is_file():
        raise ValueError(f"--output must be a regular file, got {output}")
    if not output.parent.is_dir():
        raise FileNotFoundError(f"--output must be in an existing folder, got {output}")
    check_not_input(output, *inputs)


@contextmanager
def rename_argument(argument: str, option: str) -> Iterator[None]:
    """Make errors name an option instead of the Python argument that it is passed to.

    Example:
        >>> with rename_argument("path", "DATA"):
        ...     raise ValueError("path must be a file, got the folder data")
        Traceback (most recent call last):
        ValueError: DATA must be a file, got the folder data
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if not str(error).startswith(f"{argument} must"):
            raise
        raise type(error)(option + str(error).removeprefix(argument)) from error


def open_writer(output: Path, csv_safe: bool = False) -> TableWriter:
    """Writer of the table that `--output` names."""
    from elflow.io.tables import TableWriter

    with rename_argument("path", "--output"), rename_argument("csv_safe", "--csv-safe"):
        return TableWriter(output, csv_safe)


def load_model(path: Path, device: str = "cpu") -> Any:
    """The model in a file, of any kind."""
    import elflow

    with rename_argument("path", "MODEL"), rename_argument("device", "--device"):
        return elflow.load(path, device)


def load_density(path: Path) -> FlowDensity:
    """The density of a table in a file, or that of an imputer."""
    import elflow
    from elflow.serialization import find_density

    model = load_model(path)
    if isinstance(model, elflow.ImageELF):
        raise ValueError(
            f"MODEL must be a model of a table, got the model of images {path}: use `elflow score-images` or "
            "`elflow sample-images`"
        )
    if (density := find_density(model)) is None:
        kind = "a flow without columns" if isinstance(model, elflow.ELF) else f"a {type(model).__name__}"
        raise ValueError(
            f"MODEL must be a model written by `elflow fit`, got {path}, {kind}: load it in Python with elflow.load"
        )
    return density


def load_image_flow(path: Path, device: str) -> ImageELF:
    """The model of images in a file."""
    import elflow

    model = load_model(path, device)
    if not isinstance(model, elflow.ImageELF):
        kind = "another flow" if isinstance(model, elflow.ELF) else "a model of a table"
        raise ValueError(f"MODEL must be a model written by `elflow fit-images`, got {path}, {kind}")
    if model.context:
        raise ValueError(
            f"MODEL must be a model without context, got {path} with a context of {model.context} numbers: load it in "
            "Python with elflow.load"
        )
    return model


def list_known_columns(est: FlowDensity) -> list[Column]:
    """The columns that a table must have for a model, those of its context included."""
    context = est.context_schema_
    return [*est.schema_.columns, *(() if context is None else context.columns)]


def split_context(est: FlowDensity, frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame | None]:
    """The columns that a model describes, and those of its context or None."""
    context = est.context_schema_
    return frame[est.schema_.names], None if context is None else frame[context.names]


def set_threads(threads: int | None) -> None:
    """Set the number of threads of torch."""
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


# Interrupted runs


def locking_output(output: Path, is_writer: bool) -> AbstractContextManager[None]:
    """Hold a lock on the model that a command writes, if this process is the one that writes it."""
    from elflow._files import locking

    return locking(output) if is_writer else nullcontext()


def locate_checkpoint(output: Path, resume: bool) -> Path:
    """Path of a model's checkpoint; raise an error if starting again would lose it."""
    checkpoint = output.with_name(output.name + ".checkpoint")
    if checkpoint.exists() and not resume:
        raise ValueError(f"{checkpoint} is left from an interrupted run: add --resume to continue, or delete it")
    return checkpoint


def describe_checkpoint(checkpoint: Path) -> str:
    """How to continue an interrupted run."""
    return f"continue from {checkpoint} with --resume" if checkpoint.exists() else "there is no checkpoint yet"


def is_finished(
    output: Path, checkpoint: Path, fingerprint: str, time_limit: float | None, resume: bool, quiet: bool
) -> bool:
    """Whether `--resume` has nothing to do, because the model of the same run is complete already."""
    if not resume or checkpoint.exists():
        return False
    finished = _is_model_of(output, fingerprint, time_limit)
    if not quiet:
        note(
            f"{output} is complete: nothing to resume"
            if finished
            else f"no checkpoint {checkpoint} to resume from: starting a new run"
        )
    return finished


def _is_model_of(path: Path, fingerprint: str, time_limit: float | None) -> bool:
    """Whether a file holds a model that was trained with the same data and settings."""
    from elflow.serialization import read_notes, read_training

    try:
        training, notes = read_training(path), read_notes(path)
    except (OSError, ValueError):  # no model at all
        return False
    if training is None or notes.get("fingerprint") != fingerprint:
        return False
    return training.stopped != "time_limit" or notes.get("time_limit") == time_limit
