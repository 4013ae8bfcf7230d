"""Commands for images: `elflow fit-images`, `elflow score-images` and `elflow sample-images`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from elflow.cli import _options, _processes
from elflow.cli._images import (
    build_flow,
    check_images,
    check_samples_folder,
    choose_labels,
    choose_preset,
    count_classes,
    count_columns,
    iter_bits,
    make_fingerprint,
    make_recipe,
    make_sampler,
    make_table,
    print_round,
    sample_seeded,
    show_model,
    split_rows,
    write_arrays,
)
from elflow.cli._options import (
    Dequantization,
    Device,
    Devices,
    ImageData,
    ImageModel,
    LogDir,
    MaxSteps,
    ModelOutput,
    Nodes,
    Precision,
    Quiet,
    Resize,
    Resume,
    ScoreOutput,
    Seed,
    Split,
    Threads,
    TimeLimit,
)
from elflow.cli._terminal import Mean, is_terminal, note, show, show_progress

if TYPE_CHECKING:
    from elflow import ImageELF

    RoundEnd = Callable[[ImageELF, dict[str, float]], None]


def fit_images(
    data: ImageData,
    output: ModelOutput,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Architecture: mnist, mnist-small, cifar10, imagenet32, ... Default: digits for small images, mnist "
            "for grey images, cifar10 for others.",
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        Literal["cpu", "gpu", "paper"],
        typer.Option(help="Size of the model: for a CPU, for a GPU, or with the widths of the paper."),
    ] = "cpu",
    split: Split = None,
    resize: Resize = None,
    levels: Annotated[
        int | None,
        typer.Option(
            help="Number of pixel levels. Default: the preset's, or 256 if the data exceed it.",
            min=2,
            max=256,
            show_default=False,
        ),
    ] = None,
    classes: Annotated[bool, typer.Option("--classes", help="Condition on the labels of the data.")] = False,
    dequantization: Annotated[
        Dequantization | None,
        typer.Option(help="Dequantisation noise for pixels. Default: the preset's.", show_default=False),
    ] = None,
    attention: Annotated[
        int | None,
        typer.Option(
            help="Heads of self-attention on scales of at most 16x16 pixels. Default: no attention.",
            metavar="HEADS",
            min=1,
            show_default=False,
        ),
    ] = None,
    time_limit: TimeLimit = None,
    max_steps: MaxSteps = None,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Images to hold out for validation: a fraction below 1, or a number. Default: a tenth, at most 1000.",
            show_default=False,
        ),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="Folder for image grids of samples during training.", show_default=False)
    ] = None,
    samples_every: Annotated[int, typer.Option(help="Number of rounds between two image grids.", min=1)] = 1,
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
    """Fit a density to images.

    \b
    Examples:
      elflow fit-images images.npz -o model.elf --time-limit 10m
      elflow fit-images mnist -o mnist.elf --classes --samples grids
      elflow fit-images photos -o photos.elf --resize 32x32 --preset cifar10-small

    With --size cpu, training takes ten minutes unless --time-limit or
    --max-steps is given. Run the same command with --resume to continue after
    Ctrl-C or a crash. With --devices, several processes share every batch.
    """
    seconds = _options.parse_duration(time_limit)
    target = _options.parse_size(resize)
    _options.check_output(output, data)
    check_samples_folder(samples, data)
    checkpoint = _options.locate_checkpoint(output, resume)

    import elflow
    from elflow.io.images import read_images
    from elflow.training import fit

    with _options.rename_argument("path", "DATA"):
        images = read_images(data, split, target)
    fabric = _processes.make_fabric(device, precision, devices, nodes)
    quiet = _processes.is_quiet(fabric, quiet)
    name = preset or choose_preset(images.x)
    changes = {
        "levels": levels,
        "classes": count_classes(images, data) if classes else None,
        "dequantization": dequantization,
        "attention": attention,
    }
    with _options.rename_argument("attention", "--attention"):
        flow = build_flow(name, size, images, data, changes, seed)
    recipe = make_recipe(size, max_steps, seconds)
    rows, held_out = split_rows(images, flow.classes, validation, seed)
    callbacks: list[RoundEnd] = []
    if not is_terminal() and not quiet:
        callbacks.append(print_round)
    if samples is not None:
        callbacks.append(make_sampler(samples, samples_every, recipe.round_steps, flow, seed))

    def on_round_end(averaged: ImageELF, entry: dict[str, float]) -> None:
        for callback in callbacks:
            callback(averaged, entry)

    fingerprint = make_fingerprint(images, flow, recipe, len(held_out), seed)
    with _options.locking_output(output, fabric.is_global_zero):
        if _options.is_finished(output, checkpoint, fingerprint, seconds, resume, quiet):
            return
        if not quiet:
            show_model(flow, len(rows), len(held_out), f"{name}, {size} size")
        with _processes.start(fabric, checkpoint, threads):
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
                fabric=fabric,
            )
        if not fabric.is_global_zero:
            return
        mean = Mean("bits/dim")
        for bits in iter_bits(best, held_out.x, held_out.context, 1, seed):
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
        int | None, typer.Option(help="Score only the first N images.", metavar="N", min=1, show_default=False)
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Compute the bits per dimension of images.

    \b
    Examples:
      elflow score-images model.elf mnist --split test
      elflow score-images model.elf images.npz -o scores.parquet --n-draws 10

    Print the mean with its standard error; in expectation it is an upper
    bound. With -o, write the bits per dimension and the log-probability in
    nats of each image.
    """
    from elflow.io.images import read_images

    target = _options.parse_size(resize)
    _options.check_not_input(output, data, model)
    writer = None if output is None else _options.open_writer(output)
    flow = _options.load_image_flow(model, device)
    _options.set_threads(threads)
    with _options.rename_argument("path", "DATA"):
        images = read_images(data, split, target)
    context = check_images(flow, images, data)
    x = images.x[:limit]
    labels = None if images.labels is None else images.labels[:limit].numpy()
    mean = Mean("bits/dim")
    with writer or nullcontext(), show_progress("Scoring images", len(x)) as set_done:
        for bits in iter_bits(flow, x, None if context is None else context[:limit], n_draws, seed):
            if writer is not None:
                writer.write(make_table(mean.count, bits, labels, math.prod(flow.shape)))
            mean.add(bits)
            set_done(mean.count)
    summary = [("images", f"{len(x):,}"), ("mean", str(mean))]
    if writer is not None and str(output) != "-":
        summary.append(("scores", str(output)))
    show(summary, error=str(output) == "-")


def sample_images(
    model: ImageModel,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Images to write: .png for an image grid, .npz for arrays.", show_default=False
        ),
    ],
    number: Annotated[int, typer.Option("--number", "-n", help="Number of images.", min=1)] = 64,
    label: Annotated[
        int | None,
        typer.Option("--class", help="Class to sample. Default: cycle through all classes.", min=0, show_default=False),
    ] = None,
    columns: Annotated[
        int | None, typer.Option(help="Number of images per row of the image grid.", min=1, show_default=False)
    ] = None,
    method: Annotated[
        Literal["exact", "fixed-point", "sequential"], typer.Option(help="How to invert the layers.")
    ] = "exact",
    seed: Seed = 0,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Draw new images.

    \b
    Examples:
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
        raise ValueError(f"--output must end in .png, for an image grid, or .npz, for arrays, got {output}")
    if columns is not None and suffix != ".png":
        raise ValueError(f"--columns must be left out unless --output ends in .png, got {output}")
    _options.check_output(output, model)
    flow = _options.load_image_flow(model, device)
    if suffix == ".png" and flow.shape[0] not in (1, 3):
        raise ValueError(f"--output must end in .npz for images of {flow.shape[0]} channels: a .png file has 1 or 3")
    labels = choose_labels(flow, model, label, number)
    _options.set_threads(threads)
    start = time.monotonic()
    images, info = sample_seeded(flow, number, labels, method, seed, verbose=is_terminal())
    seconds = time.monotonic() - start
    if not info.converged:
        note(f"the images may be inexact: the inverse has a residual of {info.residual:.2g}; use --method exact")
    if suffix == ".png":
        from elflow.io.grids import write_grid

        by_class = None if labels is None or label is not None else count_columns(flow.classes, number)
        write_grid(images, output, columns or by_class, flow.levels)
    else:
        write_arrays(output, images, labels)
    show(
        [
            ("images", f"{number:,}"),
            ("network evaluations", f"{sum(info.calls):,} per image, in {len(info.calls)} layers"),
            ("residual", f"{info.residual:.2g}"),
            ("time", format_duration(seconds)),
            ("written to", str(output)),
        ]
    )
