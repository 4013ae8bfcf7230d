"""`elflow sample-images`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from elflow.cli._images import ImageModel, ImageSeed, class_columns, in_turn, load_image_flow
from elflow.cli._models import check_output, use_threads
from elflow.cli._options import Threads
from elflow.cli._terminal import duration, is_terminal, note, show


def sample_images(
    model: ImageModel,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Where the images go: .png for one picture, .npz for arrays.", show_default=False
        ),
    ],
    number: Annotated[int, typer.Option("--number", "-n", help="How many images.", min=1)] = 64,
    label: Annotated[
        int | None,
        typer.Option("--class", help="The class of all images; by default all in turn.", min=0, show_default=False),
    ] = None,
    columns: Annotated[
        int | None, typer.Option(help="How many images a row of the picture has.", min=1, show_default=False)
    ] = None,
    method: Annotated[
        Literal["exact", "fixed-point", "sequential"], typer.Option(help="How layers are inverted.")
    ] = "exact",
    seed: ImageSeed = 0,
    threads: Threads = None,
) -> None:
    """Draws new images.

    \b
    elflow sample-images model.elf -o grid.png
    elflow sample-images model.elf -o sevens.png -n 100 --class 7
    elflow sample-images model.elf -o new.npz -n 1000

    A picture shows them side by side; of a model given classes, each column is one class if there are few. An .npz file
    has the pixels as x, (N, C, H, W), and the classes as y. Both are read by the other commands and by NumPy.
    """
    ending = output.suffix.lower()
    if ending not in (".png", ".npz"):
        raise ValueError(f"{output} must end in .png, for one picture, or .npz, for arrays")
    if columns is not None and ending != ".png":
        raise ValueError(f"--columns is for a picture: leave it out, or let {output} end in .png")
    check_output(output, model)
    flow = load_image_flow(model)
    if ending == ".png" and flow.shape[0] not in (1, 3):
        raise ValueError(f"{output} must end in .npz: images of {flow.shape[0]} channels cannot be in a picture")
    labels = _labels(flow, model, label, number)
    use_threads(threads)
    start = time.monotonic()
    images, info = drawn(flow, number, labels, method, seed, is_terminal())
    seconds = time.monotonic() - start
    if not info.converged:
        note(f"the images may be off: their residual is {info.residual:.2g}; --method exact makes it small")
    if ending == ".png":
        from elflow.io.grids import write_grid

        in_classes = None if labels is None or label is not None else class_columns(flow.classes, number)
        write_grid(images, output, columns or in_classes, flow.levels)
    else:
        _write_arrays(output, images, labels)
    show(
        [
            ("images", f"{number:,}"),
            ("network calls", f"{sum(info.calls):,} for each image, in {len(info.calls)} layers"),
            ("residual", f"{info.residual:.2g}"),
            ("time", duration(seconds)),
            ("written to", str(output)),
        ]
    )


def drawn(flow: Any, number: int, labels: Any, method: str, seed: int, progress: bool = False) -> tuple[Any, Any]:
    """Images that follow from the seed, and how their inverse went."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return flow.sample(number, labels, method=method, verbose=progress, return_info=True)


def _labels(flow: Any, model: Path, label: int | None, number: int) -> Any:
    """The class of each image, or None."""
    if label is None:
        return in_turn(number, flow.classes)
    if not flow.classes:
        raise ValueError(f"{model} has no classes: leave out --class")
    if label >= flow.classes:
        raise ValueError(f"--class must be from 0 to {flow.classes - 1}, as in {model}, got {label}")
    import torch

    return torch.full((number,), label)


def _write_arrays(output: Path, images: Any, labels: Any) -> None:
    import numpy as np

    from elflow._files import replacing

    arrays = {"x": images.numpy()} | ({} if labels is None else {"y": labels.numpy()})
    with replacing(output.resolve()) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
