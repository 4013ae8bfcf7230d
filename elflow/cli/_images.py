"""Steps of the commands for images: presets, splits, labels, scores and image grids."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elflow.cli._terminal import format_shape, note, show

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
"""Number of samples in an image grid during training, rounded up to whole rows."""
MAX_CLASS_COLUMNS = 20
"""Maximum number of classes that have a column each in a grid of samples."""


def check_samples_folder(samples: Path | None, data: Path) -> None:
    """Raise an error if image grids cannot be written to a folder, or would be read as data."""
    if samples is None:
        return
    if samples.exists() and not samples.is_dir():
        raise NotADirectoryError(f"--samples must be a folder, got the file {samples}")
    if data.is_dir() and samples.resolve().is_relative_to(data.resolve()):
        raise ValueError(f"--samples must not be a folder in {data}, which is read, got {samples}")


def choose_preset(x: Tensor) -> str:
    channels, height, width = x.shape[1:]
    if min(height, width) < MIN_MNIST_SIDE:
        return "digits"
    return "mnist" if channels == 1 else "cifar10"


def count_classes(images: Images, data: Path) -> int:
    """Number of classes, if the labels are classes."""
    if images.labels is None:
        raise ValueError(f"{data} must have labels for --classes, got none")
    low, high = int(images.labels.min()), int(images.labels.max())
    if low < 0 or high >= len(images.labels):  # labels above their number are something else, such as identifiers
        raise ValueError(f"{data} must have labels 0, 1, ... for --classes, got {low} to {high}")
    return high + 1


def build_flow(name: str, size: str, images: Images, data: Path, changes: dict[str, Any], seed: int) -> ImageELF:
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


def make_recipe(size: str, max_steps: int | None, time_limit: float | None) -> Recipe:
    from dataclasses import replace

    from elflow.training import image_recipe

    recipe = image_recipe(size)
    if max_steps is not None:  # and no time limit, unless one was given
        return replace(recipe, max_steps=max_steps, time_limit=time_limit)
    return recipe if time_limit is None else replace(recipe, time_limit=time_limit)


def split_rows(images: Images, classes: int, validation: float | None, seed: int) -> tuple[Rows, Rows]:
    """Training and validation images, with their labels if there are classes."""
    import torch

    from elflow.training import Rows

    total = len(images.x)
    if total < MIN_IMAGES:
        raise ValueError(f"DATA must hold at least {MIN_IMAGES} images, got {total}")
    number = count_validation_images(validation, total)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    rows = Rows(images.x, images.labels if classes else None)
    # Training images are shuffled as well: the first of them initialise ActNorm.
    return rows.take(order[number:]), rows.take(order[:number])


def count_validation_images(validation: float | None, total: int) -> int:
    """Number of images to hold out, from a fraction or a number; by default a tenth.

    Example:
        >>> count_validation_images(None, 400), count_validation_images(0.25, 400), count_validation_images(30, 400)
        (40, 100, 30)
    """
    if validation is None:
        return min(MAX_VALIDATION_IMAGES, max(1, total // 10))
    if not validation > 0 or (validation >= 1 and validation != int(validation)):
        raise ValueError(f"--validation must be a fraction in (0, 1) or a number of images, got {validation:g}")
    number = max(1, round(validation * total)) if validation < 1 else int(validation)
    if number > total - 2:
        raise ValueError(f"--validation must leave at least two of {total} images to train on, got {validation:g}")
    return number


def print_round(flow: ImageELF, entry: dict[str, float]) -> None:
    """One line per round, where there is no terminal for a progress bar."""
    from elflow.training import format_duration

    bits = -entry["validation"] / (math.prod(flow.shape) * math.log(2))
    note(f"step {int(entry['step']):,}, {format_duration(entry['seconds'])}: held-out {bits:.4f} bits/dim")


def make_sampler(folder: Path, every: int, round_steps: int, flow: ImageELF, seed: int) -> RoundEnd:
    """A callback that writes image grids of samples, always from the same noise, so that they can be compared."""
    from elflow.io.grids import write_grid

    if flow.shape[0] not in (1, 3):
        raise ValueError(f"--samples must be left out for images of {flow.shape[0]} channels: a .png file has 1 or 3")
    folder.mkdir(parents=True, exist_ok=True)
    columns = count_columns(flow.classes, GRID_IMAGES)
    number = GRID_IMAGES if columns is None else math.ceil(GRID_IMAGES / columns) * columns
    labels = cycle_classes(number, flow.classes)

    def write_samples(averaged: ImageELF, entry: dict[str, float]) -> None:
        step = int(entry["step"])
        if math.ceil(step / round_steps) % every == 0:  # counted from the first step, also after --resume
            images, _ = sample_seeded(averaged, number, labels, "exact", seed)
            write_grid(images, folder / f"step-{step:06}.png", columns, flow.levels)

    return write_samples


def make_fingerprint(images: Images, flow: ImageELF, recipe: Recipe, validation: int, seed: int) -> str:
    """Digest of the data and of all settings that decide about the model, but for the time limit."""
    from elflow.tabular import digest

    settings = {
        "flow": flow.config,
        "recipe": recipe.to_dict() | {"time_limit": None},
        "split": [seed, validation],
    }
    labels = images.labels.numpy() if flow.classes and images.labels is not None else None
    return digest(images.x.numpy(), labels, json.dumps(settings, default=str))


def show_model(flow: ImageELF, training: int, validation: int, preset: str) -> None:
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


def check_images(flow: ImageELF, images: Images, data: Path) -> Tensor | None:
    """Raise an error if a flow cannot score these images; return the labels that it needs, or None."""
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


def iter_bits(
    flow: ImageELF, x: Tensor, context: Tensor | None, n_draws: int, seed: int
) -> Iterator[NDArray[np.float64]]:
    """Bits per dimension of images, in blocks. The noise of a block follows from the seed and its position."""
    import torch

    for at in range(0, len(x), SCORE_BLOCK):
        block = slice(at, at + SCORE_BLOCK)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 1_000_003 + at)
            bits = flow.bits_per_dim(x[block], None if context is None else context[block], n_draws)
        yield bits.cpu().double().numpy()


def make_table(start: int, bits: NDArray[np.float64], labels: NDArray[Any] | None, features: int) -> pd.DataFrame:
    """Scores of the images from an index on, one row for each."""
    import pandas as pd

    table = pd.DataFrame({"index": range(start, start + len(bits))})
    if labels is not None:
        table["label"] = labels[start : start + len(bits)]
    return table.assign(bits_per_dim=bits, log_prob=-bits * features * math.log(2))


def sample_seeded(
    flow: ImageELF, number: int, labels: Tensor | None, method: str, seed: int, verbose: bool = False
) -> tuple[Tensor, Any]:
    """Images that follow from the seed, and the `info` of their inverse."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        images, info = flow.sample(number, labels, method=method, verbose=verbose, return_info=True)
    return images.cpu(), info


def choose_labels(flow: ImageELF, model: Path, label: int | None, number: int) -> Tensor | None:
    """The class of each image, or None for a flow without classes."""
    import torch

    if label is None:
        return cycle_classes(number, flow.classes)
    if not flow.classes:
        raise ValueError(f"--class must be left out, as {model} has no classes")
    if label >= flow.classes:
        raise ValueError(f"--class must be from 0 to {flow.classes - 1}, as in {model}, got {label}")
    return torch.full((number,), label)


def cycle_classes(number: int, classes: int) -> Tensor | None:
    """Classes 0, 1, ... in turn; None for a flow without classes."""
    import torch

    return torch.arange(number) % classes if classes else None


def count_columns(classes: int, number: int) -> int | None:
    """Number of columns of a grid, so that each column has one class; None if there are too many classes.

    Example:
        >>> count_columns(10, 100), count_columns(3, 64), count_columns(1000, 64)
        (10, 9, None)
    """
    if not 0 < classes <= MAX_CLASS_COLUMNS:
        return None
    return classes * max(1, math.ceil(math.isqrt(number) / classes))


def write_arrays(output: Path, images: Tensor, labels: Tensor | None) -> None:
    import numpy as np

    from elflow._files import replacing

    arrays: dict[str, Any] = {"x": images.numpy()} | ({} if labels is None else {"y": labels.numpy()})
    with replacing(output.resolve()) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
