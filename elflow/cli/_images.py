"""Images and models of them: options, files that fit each other, and scores."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

ImageModel = Annotated[
    Path, typer.Argument(help="A model that `elflow fit-images` made.", metavar="MODEL", show_default=False)
]
ImageData = Annotated[
    Path,
    typer.Argument(
        help="The images: .npz, .npy, the files of MNIST or CIFAR-10, or a folder of pictures.",
        metavar="DATA",
        show_default=False,
    ),
]
Split = Annotated[
    Literal["train", "test"] | None,
    typer.Option(help="Which part of data that has both; train by default.", show_default=False),
]
Size = Annotated[
    str | None, typer.Option(help="A height and width to resize images to.", metavar="HxW", show_default=False)
]
ImageSeed = Annotated[int, typer.Option(help="The same seed gives the same result.", min=0, max=2**32 - 1)]

BLOCK = 256
"""How many images are scored at a time."""
MOST_COLUMNS = 20
"""Up to how many classes have a column each in a grid."""


def image_size(text: str | None) -> tuple[int, int] | None:
    """A height and width such as 32x32.

    Example:
        >>> image_size("28x32")
        (28, 32)
    """
    if text is None:
        return None
    if not (found := re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text.strip().lower())):
        raise ValueError(f"--size must be a height and width such as 32x32, got {text!r}")
    return int(found[1]), int(found[2])


def by(*sizes: int) -> str:
    """Sizes as one writes them.

    Example:
        >>> by(1, 28, 28)
        '1 x 28 x 28'
    """
    return " x ".join(map(str, sizes))


def load_image_flow(path: Path) -> Any:
    """The `ImageELF` in a file."""
    import elflow

    model = elflow.load(path)
    if not isinstance(model, elflow.ImageELF):
        got = "one of a table" if hasattr(model, "schema_") else "another flow"
        raise ValueError(f"{path} must be a model of images, as `elflow fit-images` makes them, got {got}")
    if model.context:
        raise ValueError(
            f"{path} must be a model without a context, got one of {model.context} numbers: use it from Python, with "
            "elflow.load"
        )
    return model


def labels_for(flow: Any, images: Any, data: Path) -> Any:
    """The labels that a flow is to be given with images, or None, if it can be given these images at all."""
    shape, found = flow.shape, tuple(images.x.shape[1:])
    if found != shape:
        size = f": try --size {shape[1]}x{shape[2]}" if found[0] == shape[0] else ""
        raise ValueError(f"{data} must hold images of {by(*shape)}, as the model's, got {by(*found)}{size}")
    if (most := int(images.x.max())) >= flow.levels:
        raise ValueError(f"{data} must hold pixels from 0 to {flow.levels - 1}, as the model's, got {most}")
    if not flow.classes:
        return None
    if images.labels is None:
        raise ValueError(f"{data} must have labels, as the model is one of images given their class, got none")
    low, high = int(images.labels.min()), int(images.labels.max())
    if low < 0 or high >= flow.classes:
        wrong = low if low < 0 else high
        raise ValueError(f"{data} must have labels from 0 to {flow.classes - 1}, as the model's, got {wrong}")
    return images.labels


def block_bits(flow: Any, x: Any, labels: Any, at: int, samples: int, seed: int) -> Any:
    """The bits per dimension of the block of images that begins at some index. Its noise follows from that index."""
    import torch

    part = slice(at, at + BLOCK)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed * 1_000_003 + at)
        bits = flow.bits_per_dim(x[part], None if labels is None else labels[part], samples)
    return bits.double().numpy()


def mean_bits(bits: Any) -> tuple[float, float | None]:
    """The mean over images and its standard error, if there are several.

    Example:
        >>> import numpy as np
        >>> bits_in_words(*mean_bits(np.array([1.0, 2.0, 3.0, 4.0])))
        '2.5000 +- 0.6455 bits/dim'
    """
    error = float(bits.std(ddof=1)) / math.sqrt(len(bits)) if len(bits) > 1 else None
    return float(bits.mean()), error


def bits_in_words(mean: float, error: float | None) -> str:
    return f"{mean:.4f} bits/dim" if error is None else f"{mean:.4f} +- {error:.4f} bits/dim"


def in_turn(number: int, classes: int) -> Any:
    """One class after the other, so many times; None for a flow without classes."""
    import torch

    return torch.arange(number) % classes if classes else None


def class_columns(classes: int, number: int) -> int | None:
    """How many columns a grid of so many images, all classes in turn, has, so that each has one class.

    Example:
        >>> class_columns(10, 100), class_columns(3, 64), class_columns(1000, 64)
        (10, 9, None)
    """
    if not 0 < classes <= MOST_COLUMNS:
        return None
    return classes * max(1, math.ceil(math.isqrt(number) / classes))
