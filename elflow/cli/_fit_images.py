"""`elflow fit-images`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from elflow.cli import _images
from elflow.cli._images import ImageData, ImageSeed, Size, Split, by
from elflow.cli._interrupted import checkpoint_of, keeping
from elflow.cli._models import check_output, use_threads
from elflow.cli._options import Log, MaxSteps, Quiet, Resume, Threads, TimeLimit, seconds
from elflow.cli._sample_images import drawn
from elflow.cli._terminal import duration, is_terminal, note, show
from elflow.cli._trained import Trained, load_trained, save_trained

LEAST_IMAGES = 5
MOST_HELD_OUT = 1_000
"""How many images are held out, unless more are asked for."""
SMALL = 16
"""Images of fewer pixels a side are like scikit-learn's digits."""
SHOWN = 36
"""How many samples a grid has, about."""


def fit_images(
    data: ImageData,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the model goes.", show_default=False)],
    preset: Annotated[
        str | None,
        typer.Option(
            help="An architecture and how to train it: mnist, mnist-small, cifar10, imagenet32, ... By default digits "
            "for small images, mnist for grey ones, cifar10 for others.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        Literal["cpu", "paper"], typer.Option(help="As large as in the paper, or what a CPU can train.")
    ] = "cpu",
    split: Split = None,
    size: Size = None,
    levels: Annotated[
        int | None,
        typer.Option(
            help="How many values a pixel can have; as the preset has it by default.",
            min=2,
            max=256,
            show_default=False,
        ),
    ] = None,
    classes: Annotated[bool, typer.Option("--classes", help="Condition on the labels of the data.")] = False,
    dequantization: Annotated[
        Literal["uniform", "variational"] | None,
        typer.Option(help="How pixels become continuous; as the preset has it by default.", show_default=False),
    ] = None,
    time_limit: TimeLimit = None,
    max_steps: MaxSteps = None,
    held_out: Annotated[
        int | None,
        typer.Option(
            help="How many images are held out: a tenth, and 1000 at most, by default.", min=1, show_default=False
        ),
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="A folder for pictures of samples during training.", show_default=False)
    ] = None,
    samples_every: Annotated[int, typer.Option(help="After how many rounds each is drawn.", min=1)] = 1,
    seed: ImageSeed = 0,
    threads: Threads = None,
    resume: Resume = False,
    log: Log = None,
    quiet: Quiet = False,
) -> None:
    """Fits a density to images.

    \b
    elflow fit-images images.npz -o model.elf --time-limit 10m
    elflow fit-images mnist -o mnist.elf --classes --samples pictures
    elflow fit-images photos -o photos.elf --size 32x32 --preset cifar10-small

    At the scale of CPUs it trains for ten minutes, unless --time-limit or --max-steps says otherwise. After a crash or
    Ctrl-C, the same command with --resume goes on from the last round of steps that was complete.
    """
    limit = None if time_limit is None else seconds(time_limit)
    resized = _images.image_size(size)
    check_output(output, data)
    _check_folder(samples, data)
    checkpoint = checkpoint_of(output, resume)

    from dataclasses import replace

    from elflow.io.images import read_images
    from elflow.training import fit

    images = read_images(data, split, resized)
    use_threads(threads)
    name = preset or _usual_preset(images.x)
    changes = {"levels": levels, "classes": _classes(images, data) if classes else None}
    flow, recipe = _built(name, scale, images, data, changes | {"dequantization": dequantization}, seed)
    if max_steps is not None and limit is None:
        recipe = replace(recipe, time_limit=None)  # who counts steps does not mean the preset's minutes
    recipe = _changed(recipe, max_steps=max_steps, time_limit=limit)
    rows, kept = _parts(images, flow.classes, held_out, seed)
    draw = None if samples is None else _pictures(samples, samples_every, recipe.round_steps, flow, seed)
    telling = not is_terminal() and not quiet

    def after_round(averaged: Any, entry: dict[str, float]) -> None:
        if telling:
            _tell(flow, entry)
        if draw is not None:
            draw(averaged, entry)

    fingerprint = _fingerprint(images, flow, recipe, kept.length, seed)
    if resume and not checkpoint.exists():
        if _is_complete(output, fingerprint, limit):
            note(f"{output} is complete: there is nothing to go on with")
            return
        note(f"there is no {checkpoint} to go on from: the training begins anew")
    if not quiet:
        _show_found(flow, rows.length, kept.length, f"{name}, {scale} scale")
    with keeping(checkpoint):
        best, training = fit(
            flow,
            rows,
            kept,
            recipe,
            seed=seed,
            checkpoint=checkpoint,
            fingerprint=fingerprint,
            log=log,
            progress=is_terminal() and not quiet,
            after_round=after_round,
        )
    mean, error = _images.mean_bits(_held_out(best, kept, seed))
    steps = int(training.history[-1]["step"])
    facts = Trained(fingerprint, rows.length, steps, training.seconds, training.stopped, limit, mean, error)
    save_trained(best, output, facts)
    checkpoint.unlink(missing_ok=True)
    if not quiet:
        show([("held out", facts.held_out), ("trained", facts.how), ("model", str(output))])


def _check_folder(samples: Path | None, data: Path) -> None:
    """That pictures can be written to a folder, and will not be among those that are read."""
    if samples is None:
        return
    if samples.exists() and not samples.is_dir():
        raise NotADirectoryError(f"--samples must be a folder, got the file {samples}")
    if data.is_dir() and samples.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--samples must not be a folder in {data}, which is read, got {samples}")


def _usual_preset(x: Any) -> str:
    channels, height, width = x.shape[1:]
    if min(height, width) < SMALL:
        return "digits"
    return "mnist" if channels == 1 else "cifar10"


def _classes(images: Any, data: Path) -> int:
    """How many classes the labels are of."""
    if images.labels is None:
        raise ValueError(f"{data} must have labels for --classes, got none")
    low, high = int(images.labels.min()), int(images.labels.max())
    if low < 0 or high >= len(images.labels):  # what is greater than their number can only be something else
        raise ValueError(f"{data} must have labels that count classes, from 0 on, for --classes, got {low} to {high}")
    return high + 1


def _built(name: str, scale: str, images: Any, data: Path, changes: dict[str, Any], seed: int) -> tuple[Any, Any]:
    """A preset's flow for these images, with fresh weights, and its recipe."""
    import torch

    from elflow.flows.presets import PRESETS, preset
    from elflow.training import image_recipe

    if name not in PRESETS:
        raise ValueError(f"--preset must be one of {PRESETS}, got {name!r}")
    found = preset(name, scale)
    height, width = images.x.shape[2:]
    step = 2 ** (found.flow["scales"] - 1)
    if height % step or width % step:
        fitting = "x".join(str(max(1, round(side / step)) * step) for side in (height, width))
        raise ValueError(
            f"{data} must hold images whose height and width {step} divides for the preset {name}, got "
            f"{by(height, width)}: try --size {fitting}"
        )
    given = {key: value for key, value in changes.items() if value is not None}
    most = int(images.x.max())
    if "levels" not in given and most >= found.flow["levels"]:
        given["levels"] = 256
    if most >= given.get("levels", 256):
        raise ValueError(f"--levels must be more than the greatest pixel of {data}, {most}, got {given['levels']}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return found.build(shape=tuple(images.x.shape[1:]), **given), image_recipe(scale)


def _changed(recipe: Any, **changes: Any) -> Any:
    from dataclasses import replace

    return replace(recipe, **{key: value for key, value in changes.items() if value is not None})


def _parts(images: Any, classes: int, held_out: int | None, seed: int) -> tuple[Any, Any]:
    """The images to train on and those that are held out, with their labels if there are classes."""
    import torch

    from elflow.training import Rows

    total = len(images.x)
    if total < LEAST_IMAGES:
        raise ValueError(f"there must be at least {LEAST_IMAGES} images, got {total}")
    number = held_out or min(MOST_HELD_OUT, max(1, total // 10))
    if number > total - 2:
        raise ValueError(f"--held-out must leave two of {total} images to train on, got {number}")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    rows = Rows(images.x, images.labels if classes else None)
    return rows.take(order[number:]), rows.take(order[:number])  # mixed: the first of them set the ActNorms


def _pictures(
    folder: Path, every: int, round_steps: int, flow: Any, seed: int
) -> Callable[[Any, dict[str, float]], None]:
    """What draws samples, the same noise each time, so that they are seen to become better."""
    from elflow.io.grids import write_grid

    if flow.shape[0] not in (1, 3):
        raise ValueError(f"--samples must be left out: images of {flow.shape[0]} channels cannot be in a picture")
    folder.mkdir(parents=True, exist_ok=True)
    columns = _images.class_columns(flow.classes, SHOWN)
    number = SHOWN if columns is None else -(-SHOWN // columns) * columns
    labels = _images.in_turn(number, flow.classes)

    def draw(averaged: Any, entry: dict[str, float]) -> None:
        if -(-int(entry["step"]) // round_steps) % every == 0:  # by steps, as a training may go on from any round
            images, _ = drawn(averaged, number, labels, "exact", seed)
            write_grid(images, folder / f"step-{int(entry['step']):06}.png", columns, flow.levels)

    return draw


def _tell(flow: Any, entry: dict[str, float]) -> None:
    """Where there is no progress bar, a line for each round."""
    bits = -entry["validation"] / (math.prod(flow.shape) * math.log(2))
    note(f"step {int(entry['step']):,}, {duration(entry['seconds'])}: {bits:.4f} bits/dim held out")


def _fingerprint(images: Any, flow: Any, recipe: Any, held_out: int, seed: int) -> str:
    """What a checkpoint is of."""
    from elflow.tabular import digest

    settings = {
        "flow": flow.config,
        "recipe": recipe.to_dict() | {"time_limit": None},  # more time may be given for the rest of the way
        "split": [seed, held_out],
    }
    labels = images.labels.numpy() if flow.classes else None
    return digest(images.x.numpy(), labels, json.dumps(settings, default=str))


def _is_complete(output: Path, fingerprint: str, time_limit: float | None) -> bool:
    """Whether the model that is there came of the same data and settings. It could be of an earlier training."""
    there = load_trained(output)
    if there is None or there.fingerprint != fingerprint:
        return False
    return there.stopped != "time_limit" or there.time_limit == time_limit


def _held_out(flow: Any, rows: Any, seed: int) -> Any:
    """The bits per dimension of the images that were held out."""
    import numpy as np

    blocks = range(0, rows.length, _images.BLOCK)
    return np.concatenate([_images.block_bits(flow, rows.x, rows.context, at, 1, seed) for at in blocks])


def _show_found(flow: Any, trained_on: int, held_out: int, preset: str) -> None:
    parameters = sum(p.numel() for p in flow.parameters() if p.requires_grad)
    show(
        [
            ("images", f"{trained_on + held_out:,}, {held_out:,} of them held out"),
            ("shape", f"{by(*flow.shape)}, {flow.levels} levels"),
            *([("classes", str(flow.classes))] if flow.classes else []),
            ("preset", preset),
            ("parameters", f"{parameters:,}"),
        ]
    )
