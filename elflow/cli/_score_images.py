"""`elflow score-images`."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from elflow.cli import _images
from elflow.cli._images import ImageData, ImageModel, ImageSeed, Size, Split
from elflow.cli._models import use_threads
from elflow.cli._options import Threads
from elflow.cli._terminal import progress, show


def score_images(
    model: ImageModel,
    data: ImageData,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the scores go: .csv, .parquet, ...; - for the terminal."),
    ] = None,
    split: Split = None,
    size: Size = None,
    samples: Annotated[
        int, typer.Option(help="From how many points each image is scored: more are slower and closer.", min=1)
    ] = 1,
    limit: Annotated[
        int | None, typer.Option(help="Score only so many of the first images.", min=1, show_default=False)
    ] = None,
    seed: ImageSeed = 0,
    threads: Threads = None,
) -> None:
    """Scores images: the bits per dimension that each takes.

    \b
    elflow score-images model.elf mnist --split test
    elflow score-images model.elf images.npz -o scores.parquet --samples 10

    What is printed is their mean with its standard error, an upper bound. With -o, each image also has its
    log-probability in nats.
    """
    import numpy as np

    from elflow.io.images import read_images
    from elflow.io.tables import TableWriter

    if output is not None and output.exists() and data.exists() and output.samefile(data):
        raise ValueError(f"{output} must not be what is read: choose another name for -o")
    resized = _images.image_size(size)
    writer: Any = nullcontext() if output is None else TableWriter(output)
    flow = _images.load_image_flow(model)
    use_threads(threads)
    images = read_images(data, split, resized)
    given = _images.labels_for(flow, images, data)
    count = len(images.x) if limit is None else min(limit, len(images.x))
    x, given = images.x[:count], None if given is None else given[:count]
    labels = None if images.labels is None else images.labels[:count].numpy()
    done: list[Any] = []
    with writer, progress("scoring", count) as moved:
        for at in range(0, count, _images.BLOCK):
            bits = _images.block_bits(flow, x, given, at, samples, seed)
            done.append(bits)
            if output is not None:
                writer.write(_table(at, bits, labels, x[0].numel()))
            moved(at + len(bits))
    summary = [("images", f"{count:,}"), ("mean", _images.bits_in_words(*_images.mean_bits(np.concatenate(done))))]
    if output is not None and str(output) != "-":
        summary.append(("scores", str(output)))
    show(summary, error=str(output) == "-")


def _table(at: int, bits: Any, labels: Any, features: int) -> Any:
    """The scores of a block of images, one row for each."""
    import pandas as pd

    table = pd.DataFrame({"index": range(at, at + len(bits))})
    if labels is not None:
        table["label"] = labels[at : at + len(bits)]
    return table.assign(bits_per_dim=bits, log_prob=-bits * features * math.log(2))
