"""Commands for images: `elflow fit-images`, `elflow score-images` and `elflow sample-images`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from elflow.cli import _options
from elflow.cli._options import (
    Dequantization,
    ImageData,
    ImageModel,
    LogDir,
    MaxSteps,
    ModelOutput,
    Quiet,
    Resize,
    Resume,
    ScoreOutput,
    Seed,
    Split,
    Threads,
    TimeLimit,
)
from elflow.cli._terminal import Mean, format_shape, is_terminal, note, show, show_progress

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray
    from torch import Tensor

    from elflow import ImageELF
    from elflow.io.images import Images
    from elflow.training import Recipe, Rows

    RoundEnd = Callable[[ImageELF, dict[str, float]], None]

MIN_IMAGES = 5
MAX_VALIDATION_IMAGES = 1_000
"""Maximum number of validation images, unless --validation is given."""
MIN_MNIST_SIDE = 16
"""Images with fewer pixels per side have the preset digits by default."""
SCORE_BLOCK = 256
"""Number of images that are scored at a time."""
GRID_IMAGES = 36
"""Number of samples in a picture during training, rounded up to whole rows."""
MAX_CLASS_COLUMNS = 20
"""Maximum number of classes that have a column each in a grid of samples."""


def fit_images(
    data: ImageData,
    output: ModelOutput,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Architecture: mnist, mnist-small, cifar10, imagenet32, ... By default digits for small images, mnist "
            "for grey images, cifar10 for others.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        Literal["cpu", "paper"], typer.Option(help="Size of the model: for a CPU, or as in the paper.")
    ] = "cpu",
    split: Split = None,
    resize: Resize = None,
    levels: Annotated[
        int | None,
        typer.Option(
            help="Number of values of a pixel; that of the preset by default.", min=2, max=256, show_default=False
        ),
    ] = None,
    classes: Annotated[bool, typer.Option("--classes", help="Condition on the labels of the data.")] = False,
    dequantization: Annotated[
        Dequantization | None,
        typer.Option(help="Noise that makes pixels continuous; that of the preset by default.", show_default=False),
    ] = None,
    time_limit: TimeLimit = None,
    max_steps: MaxSteps = None,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Images to hold out for validation: a share below 1, or a number. A tenth, and at most 1000, by "
            "default.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Folder for pictures of samples during training.", show_default=False)
    ] = None,
    samples_every: Annotated[int, typer.Option(help="Number of rounds between two pictures.", min=1)] = 1,
    seed: Seed = 0,
    threads: Threads = None,
    resume: Resume = False,
    log_dir: LogDir = None,
    quiet: Quiet = False,
) -> None:
    """Fit a density to images.

    \b
    elflow fit-images images.npz -o model.elf --time-limit 10m
    elflow fit-images mnist -o mnist.elf --classes --samples pictures
    elflow fit-images photos -o photos.elf --resize 32x32 --preset cifar10-small

    With --size cpu, training takes ten minutes unless --time-limit or
    --max-steps is given. Run the same command with --resume to continue after
    Ctrl-C or a crash.
    """
    seconds = _options.parse_duration(time_limit)
    target = _options.parse_size(resize)
    _options.check_output(output, data)
    _check_samples_folder(samples, data)
    checkpoint = _options.checkpoint_path(output, resume)

    import elflow
    from elflow.io.images import read_images
    from elflow.training import fit

    with _options.rename_argument("path", "DATA"):
        images = read_images(data, split, target)
    _options.set_threads(threads)
    name = preset or _choose_preset(images.x)
    changes = {"levels": levels, "classes": _count_classes(images, data) if classes else None}
    flow = _build_flow(name, size, images, data, changes | {"dequantization": dequantization}, seed)
    recipe = _make_recipe(size, max_steps, seconds)
    rows, held_out = _split_rows(images, flow.classes, validation, seed)
    callbacks: list[RoundEnd] = []
    if not is_terminal() and not quiet:
        callbacks.append(_print_round)
    if samples is not None:
        callbacks.append(_make_sampler(samples, samples_every, recipe.round_steps, flow, seed))

    def on_round_end(averaged: ImageELF, entry: dict[str, float]) -> None:
        for callback in callbacks:
            callback(averaged, entry)

    fingerprint = _make_fingerprint(images, flow, recipe, len(held_out), seed)
    if _options.is_finished(output, checkpoint, fingerprint, seconds, resume, quiet):
        return
    if not quiet:
        _show_model(flow, len(rows), len(held_out), f"{name}, {size} size")
    with _options.exit_when_interrupted(checkpoint):
        best, training = fit(
            flow,
            rows,
            held_out,
            recipe,
            seed=seed,
            checkpoint=checkpoint,
            fingerprint=fingerprint,
            log_dir=log_dir,
            verbose=is_terminal() and not quiet,
            on_round_end=on_round_end,
        )
    mean = Mean("bits/dim")
    for bits in _iter_bits(best, held_out.x, held_out.context, 1, seed):
        mean.add(bits)
    notes = {
        "fingerprint": fingerprint,
        "time_limit": seconds,
        "images": len(rows),
        "bits_per_dim": mean.mean,
        "standard_error": mean.standard_error,
    }
    elflow.save(best, output, training=training, notes=notes)
    checkpoint.unlink(missing_ok=True)
    if not quiet:
        show([("held-out bits/dim", str(mean)), ("training", training.describe()), ("model", str(output))])


def _check_samples_folder(samples: Path | None, data: Path) -> None:
    """Raises an error if pictures cannot be written to a folder, or would be read as data."""
    if samples is None:
        return
    if samples.exists() and not samples.is_dir():
        raise NotADirectoryError(f"--samples must be a folder, got the file {samples}")
    if data.is_dir() and samples.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--samples must not be a folder in {data}, which is read, got {samples}")


def _choose_preset(x: Tensor) -> str:
    channels, height, width = x.shape[1:]
    if min(height, width) < MIN_MNIST_SIDE:
        return "digits"
    return "mnist" if channels == 1 else "cifar10"


def _count_classes(images: Images, data: Path) -> int:
    """Number of classes, if the labels are classes."""
    if images.labels is None:
        raise ValueError(f"{data} must have labels for --classes, got none")
    low, high = int(images.labels.min()), int(images.labels.max())
    if low < 0 or high >= len(images.labels):  # labels above their number are something else, such as identifiers
        raise ValueError(f"{data} must have labels 0, 1, ... for --classes, got {low} to {high}")
    return high + 1


def _build_flow(name: str, size: str, images: Images, data: Path, changes: dict[str, Any], seed: int) -> ImageELF:
    """The untrained flow of a preset for some images; changes that are None are left out."""
    import torch

    from elflow.flows.presets import PRESETS, preset

    if name not in PRESETS:
        raise ValueError(f"--preset must be one of {PRESETS}, got {name!r}")
    architecture = preset(name, size)
    height, width = images.x.shape[2:]
    divisor = 2 ** (architecture.flow["scales"] - 1)
    if height % divisor or width % divisor:
        nearest = "x".join(str(max(1, round(side / divisor)) * divisor) for side in (height, width))
        raise ValueError(
            f"{data} must hold images whose height and width are divisible by {divisor} for the preset {name}, got "
            f"{height} x {width}: try --resize {nearest}"
        )
    given = {key: value for key, value in changes.items() if value is not None}
    largest = int(images.x.max())
    if "levels" not in given and largest >= architecture.flow["levels"]:
        given["levels"] = 256
    if largest >= given.get("levels", 256):
        raise ValueError(f"--levels must be above the largest pixel of {data}, {largest}, got {given['levels']}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return architecture.build(shape=tuple(images.x.shape[1:]), **given)


def _make_recipe(size: str, max_steps: int | None, time_limit: float | None) -> Recipe:
    from dataclasses import replace

    from elflow.training import image_recipe

    recipe = image_recipe(size)
    if max_steps is not None:  # and no time limit, unless one was given
        return replace(recipe, max_steps=max_steps, time_limit=time_limit)
    return recipe if time_limit is None else replace(recipe, time_limit=time_limit)


def _split_rows(images: Images, classes: int, validation: float | None, seed: int) -> tuple[Rows, Rows]:
    """Training and validation images, with their labels if there are classes."""
    import torch

    from elflow.training import Rows

    total = len(images.x)
    if total < MIN_IMAGES:
        raise ValueError(f"DATA must hold at least {MIN_IMAGES} images, got {total}")
    number = _count_validation_images(validation, total)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    rows = Rows(images.x, images.labels if classes else None)
    # Training images are shuffled as well: the first of them initialise ActNorm.
    return rows.take(order[number:]), rows.take(order[:number])


def _count_validation_images(validation: float | None, total: int) -> int:
    """
    Example:
        >>> _count_validation_images(None, 400), _count_validation_images(0.25, 400), _count_validation_images(30, 400)
        (40, 100, 30)
    """
    if validation is None:
        return min(MAX_VALIDATION_IMAGES, max(1, total // 10))
    if not validation > 0 or (validation >= 1 and validation != int(validation)):
        raise ValueError(f"--validation must be a share in (0, 1) or a number of images, got {validation:g}")
    number = max(1, round(validation * total)) if validation < 1 else int(validation)
    if number > total - 2:
        raise ValueError(f"--validation must leave at least two of {total} images to train on, got {validation:g}")
    return number


def _print_round(flow: ImageELF, entry: dict[str, float]) -> None:
    """One line per round, where there is no terminal for a progress bar."""
    from elflow.training import format_duration

    bits = -entry["validation"] / (math.prod(flow.shape) * math.log(2))
    note(f"step {int(entry['step']):,}, {format_duration(entry['seconds'])}: held-out {bits:.4f} bits/dim")


def _make_sampler(folder: Path, every: int, round_steps: int, flow: ImageELF, seed: int) -> RoundEnd:
    """A callback that writes pictures of samples, always from the same noise, so that they can be compared."""
    from elflow.io.grids import write_grid

    if flow.shape[0] not in (1, 3):
        raise ValueError(f"--samples must be left out for images of {flow.shape[0]} channels: a picture has 1 or 3")
    folder.mkdir(parents=True, exist_ok=True)
    columns = _count_columns(flow.classes, GRID_IMAGES)
    number = GRID_IMAGES if columns is None else math.ceil(GRID_IMAGES / columns) * columns
    labels = _cycle_classes(number, flow.classes)

    def write_samples(averaged: ImageELF, entry: dict[str, float]) -> None:
        step = int(entry["step"])
        if math.ceil(step / round_steps) % every == 0:  # counted from the first step, also after --resume
            images, _ = _sample(averaged, number, labels, "exact", seed)
            write_grid(images, folder / f"step-{step:06}.png", columns, flow.levels)

    return write_samples


def _make_fingerprint(images: Images, flow: ImageELF, recipe: Recipe, validation: int, seed: int) -> str:
    """Digest of the data and of all settings that decide about the model, but for the time limit."""
    from elflow.tabular import digest

    settings = {
        "flow": flow.config,
        "recipe": recipe.to_dict() | {"time_limit": None},
        "split": [seed, validation],
    }
    labels = images.labels.numpy() if flow.classes and images.labels is not None else None
    return digest(images.x.numpy(), labels, json.dumps(settings, default=str))


def _show_model(flow: ImageELF, training: int, validation: int, preset: str) -> None:
    parameters = sum(p.numel() for p in flow.parameters() if p.requires_grad)
    show(
        [
            ("images", f"{training + validation:,}, of which {validation:,} for validation"),
            ("shape", f"{format_shape(flow.shape)}, {flow.levels} levels"),
            *([("classes", str(flow.classes))] if flow.classes else []),
            ("preset", preset),
            ("parameters", f"{parameters:,}"),
        ]
    )


def score_images(
    model: ImageModel,
    data: ImageData,
    output: ScoreOutput = None,
    split: Split = None,
    resize: Resize = None,
    n_draws: Annotated[
        int, typer.Option(help="Number of noise draws per image; more make the bound tighter.", min=1)
    ] = 1,
    limit: Annotated[
        int | None, typer.Option(help="Score the first images only, up to this number.", min=1, show_default=False)
    ] = None,
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Compute the bits per dimension of images.

    \b
    elflow score-images model.elf mnist --split test
    elflow score-images model.elf images.npz -o scores.parquet --n-draws 10

    Prints the mean with its standard error; in expectation it is an upper
    bound. With -o, writes the bits per dimension and the log-probability in
    nats of each image.
    """
    from elflow.io.images import read_images
    from elflow.io.tables import TableWriter

    target = _options.parse_size(resize)
    _options.check_not_input(output, data, model)
    writer = None if output is None else TableWriter(output)
    flow = _options.load_image_flow(model)
    _options.set_threads(threads)
    with _options.rename_argument("path", "DATA"):
        images = read_images(data, split, target)
    context = _check_images(flow, images, data)
    x = images.x[:limit]
    labels = None if images.labels is None else images.labels[:limit].numpy()
    mean = Mean("bits/dim")
    with writer or nullcontext(), show_progress("Scoring images", len(x)) as set_done:
        for bits in _iter_bits(flow, x, None if context is None else context[:limit], n_draws, seed):
            if writer is not None:
                writer.write(_make_table(mean.count, bits, labels, math.prod(flow.shape)))
            mean.add(bits)
            set_done(mean.count)
    summary = [("images", f"{len(x):,}"), ("mean", str(mean))]
    if writer is not None and str(output) != "-":
        summary.append(("scores", str(output)))
    show(summary, error=str(output) == "-")


def _check_images(flow: ImageELF, images: Images, data: Path) -> Tensor | None:
    """Raises an error if a flow cannot score these images; returns the labels that it needs, or None."""
    shape, found = flow.shape, tuple(images.x.shape[1:])
    if found != shape:
        remedy = f": try --resize {shape[1]}x{shape[2]}" if found[0] == shape[0] else ""
        raise ValueError(
            f"{data} must hold images of {format_shape(shape)}, as in the model, got {format_shape(found)}{remedy}"
        )
    if (largest := int(images.x.max())) >= flow.levels:
        raise ValueError(f"{data} must hold pixels from 0 to {flow.levels - 1}, as in the model, got {largest}")
    if not flow.classes:
        return None
    if images.labels is None:
        raise ValueError(f"{data} must have labels, because the model is conditioned on classes, got none")
    low, high = int(images.labels.min()), int(images.labels.max())
    if low < 0 or high >= flow.classes:
        wrong = low if low < 0 else high
        raise ValueError(f"{data} must have labels from 0 to {flow.classes - 1}, as in the model, got {wrong}")
    return images.labels


def _iter_bits(
    flow: ImageELF, x: Tensor, context: Tensor | None, n_draws: int, seed: int
) -> Iterator[NDArray[np.float64]]:
    """Bits per dimension of images, in blocks. The noise of a block follows from the seed and its position."""
    import torch

    for at in range(0, len(x), SCORE_BLOCK):
        block = slice(at, at + SCORE_BLOCK)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 1_000_003 + at)
            bits = flow.bits_per_dim(x[block], None if context is None else context[block], n_draws)
        yield bits.double().numpy()


def _make_table(start: int, bits: NDArray[np.float64], labels: Any, features: int) -> pd.DataFrame:
    """Scores of the images from an index on, one row for each."""
    import pandas as pd

    table = pd.DataFrame({"index": range(start, start + len(bits))})
    if labels is not None:
        table["label"] = labels[start : start + len(bits)]
    return table.assign(bits_per_dim=bits, log_prob=-bits * features * math.log(2))


def sample_images(
    model: ImageModel,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Images to write: .png for a picture, .npz for arrays.", show_default=False
        ),
    ],
    number: Annotated[int, typer.Option("--number", "-n", help="Number of images.", min=1)] = 64,
    label: Annotated[
        int | None,
        typer.Option("--class", help="Class of all images; all classes in turn by default.", min=0, show_default=False),
    ] = None,
    columns: Annotated[
        int | None, typer.Option(help="Number of images in a row of the picture.", min=1, show_default=False)
    ] = None,
    method: Annotated[
        Literal["exact", "fixed-point", "sequential"], typer.Option(help="Method that inverts the layers.")
    ] = "exact",
    seed: Seed = 0,
    threads: Threads = None,
) -> None:
    """Draw new images.

    \b
    elflow sample-images model.elf -o grid.png
    elflow sample-images model.elf -o sevens.png -n 100 --class 7
    elflow sample-images model.elf -o new.npz -n 1000

    A .png file shows the images in a grid, with one class per column if the
    model has a few classes. An .npz file holds the pixels as x, of shape
    (N, C, H, W), and the classes as y; score-images and numpy.load read it.
    """
    from elflow.training import format_duration

    suffix = output.suffix.lower()
    if suffix not in (".png", ".npz"):
        raise ValueError(f"--output must end in .png, for a picture, or .npz, for arrays, got {output}")
    if columns is not None and suffix != ".png":
        raise ValueError(f"--columns must be left out unless --output ends in .png, got {output}")
    _options.check_output(output, model)
    flow = _options.load_image_flow(model)
    if suffix == ".png" and flow.shape[0] not in (1, 3):
        raise ValueError(f"--output must end in .npz for images of {flow.shape[0]} channels: a picture has 1 or 3")
    labels = _choose_labels(flow, model, label, number)
    _options.set_threads(threads)
    start = time.monotonic()
    images, info = _sample(flow, number, labels, method, seed, verbose=is_terminal())
    seconds = time.monotonic() - start
    if not info.converged:
        note(f"the images may be inexact: the inverse has a residual of {info.residual:.2g}; use --method exact")
    if suffix == ".png":
        from elflow.io.grids import write_grid

        by_class = None if labels is None or label is not None else _count_columns(flow.classes, number)
        write_grid(images, output, columns or by_class, flow.levels)
    else:
        _write_arrays(output, images, labels)
    show(
        [
            ("images", f"{number:,}"),
            ("network calls", f"{sum(info.calls):,} per image, in {len(info.calls)} layers"),
            ("residual", f"{info.residual:.2g}"),
            ("time", format_duration(seconds)),
            ("written to", str(output)),
        ]
    )


def _sample(
    flow: ImageELF, number: int, labels: Tensor | None, method: str, seed: int, verbose: bool = False
) -> tuple[Tensor, Any]:
    """Images that follow from the seed, and the `info` of their inverse."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        images, info = flow.sample(number, labels, method=method, verbose=verbose, return_info=True)
    return images, info


def _choose_labels(flow: ImageELF, model: Path, label: int | None, number: int) -> Tensor | None:
    """The class of each image, or None for a flow without classes."""
    import torch

    if label is None:
        return _cycle_classes(number, flow.classes)
    if not flow.classes:
        raise ValueError(f"--class must be left out, as {model} has no classes")
    if label >= flow.classes:
        raise ValueError(f"--class must be from 0 to {flow.classes - 1}, as in {model}, got {label}")
    return torch.full((number,), label)


def _cycle_classes(number: int, classes: int) -> Tensor | None:
    """Classes 0, 1, ... in turn; None for a flow without classes."""
    import torch

    return torch.arange(number) % classes if classes else None


def _count_columns(classes: int, number: int) -> int | None:
    """Number of columns of a grid, so that each column has one class; None if there are too many classes.

    Example:
        >>> _count_columns(10, 100), _count_columns(3, 64), _count_columns(1000, 64)
        (10, 9, None)
    """
    if not 0 < classes <= MAX_CLASS_COLUMNS:
        return None
    return classes * max(1, math.ceil(math.isqrt(number) / classes))


def _write_arrays(output: Path, images: Tensor, labels: Tensor | None) -> None:
    import numpy as np

    from elflow._files import replacing

    arrays: dict[str, Any] = {"x": images.numpy()} | ({} if labels is None else {"y": labels.numpy()})
    with replacing(output.resolve()) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
