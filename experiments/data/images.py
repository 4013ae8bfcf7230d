"""Image data sets of the experiments: their files in a data folder, and whether they are complete."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import elflow
from elflow._checks import check_choice
from elflow.datasets.example import digits
from elflow.io.archives import is_idx
from elflow.io.images import read_images
from experiments.data import describe_missing
from experiments.framework.experiment import Plan

__all__ = [
    "DATASETS",
    "MODEL",
    "DataSet",
    "find_images",
    "find_model",
    "is_complete",
    "list_missing",
    "load_images",
    "load_model",
    "spread",
]

HERE = "."
"""The data folder itself, which may contain the idx files of MNIST."""
MODEL = "mnist.elf"
"""File name of a trained model of MNIST in a data folder."""
MNIST_SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class DataSet:
    """An image data set.

    Arguments:
        title: Its name in tables.
        files: Possible names in a data folder, in order of preference; empty for a data set without files.
        parts: Possible names of a part of it, which suffices at the scale of CPUs.
        sizes: The numbers of training and test images of the complete data set.
        wanted: The possible names in words.
    """

    title: str
    files: tuple[str, ...]
    parts: tuple[str, ...]
    sizes: tuple[int, int]
    wanted: str = ""


DATASETS = {
    "digits": DataSet("Digits", (), (), (1_497, 300)),
    "mnist": DataSet(
        "MNIST",
        ("mnist.npz", "mnist", "MNIST/raw"),
        (),
        (60_000, 10_000),
        "mnist.npz, or its idx files, directly or in a folder mnist",
    ),
    "cifar10": DataSet(
        "CIFAR-10",
        ("cifar10", "cifar-10-batches-py", "cifar-10-python.tar.gz", "cifar10.npz"),
        ("cifar10_10k.npz",),
        (50_000, 10_000),
        "cifar-10-python.tar.gz, its folder cifar-10-batches-py, or cifar10.npz with x_train and x_test",
    ),
    "imagenet32": DataSet(
        "ImageNet 32x32",
        ("imagenet32", "imagenet32.npz"),
        (),
        (1_281_149, 49_999),
        "a folder imagenet32 with images in train and test, or imagenet32.npz with x_train and x_test",
    ),
    "imagenet64": DataSet(
        "ImageNet 64x64",
        ("imagenet64", "imagenet64.npz"),
        (),
        (1_281_149, 49_999),
        "a folder imagenet64 with images in train and test, or imagenet64.npz with x_train and x_test",
    ),
}
"""Data sets by name, in the order of tables. Test images of ImageNet are its validation images, as in the papers."""


def find_images(plan: Plan, name: str) -> str | None:
    """The file or folder of a data set within the plan's data folder, or None.

    Example:
        >>> find_images(Plan(), "mnist") is None
        True
    """
    check_choice("name", name, list(DATASETS))
    dataset = DATASETS[name]
    for file in dataset.files + (dataset.parts if plan.scale == "cpu" else ()):
        if plan.file(file) is not None:
            return file
    has_loose_files = name == "mnist" and plan.data is not None and is_idx(plan.data)
    return HERE if has_loose_files else None


def list_missing(plan: Plan, names: list[str]) -> list[str]:
    """A line for each of these data sets that is not in the data folder."""
    datasets = [DATASETS[name] for name in names if DATASETS[name].files and find_images(plan, name) is None]
    return [describe_missing(dataset.title, dataset.wanted) for dataset in datasets]


def load_images(plan: Plan, name: str, file: str | None) -> tuple[Tensor, Tensor]:
    """Training and test images of a data set, uint8 `(N, C, H, W)`.

    Example:
        >>> train, test = load_images(Plan(), "digits", None)
        >>> train.shape, test.shape
        (torch.Size([1497, 1, 8, 8]), torch.Size([300, 1, 8, 8]))
    """
    if name == "digits":
        arrays = digits()
        return torch.from_numpy(arrays["x_train"]), torch.from_numpy(arrays["x_test"])
    path = None if file is None else plan.file(file)
    if path is None:
        raise FileNotFoundError(f"{describe_missing(DATASETS[name].title, DATASETS[name].wanted)}, got no {file}")
    return read_images(path, "train").x, read_images(path, "test").x


def is_complete(name: str, train: int, test: int) -> bool:
    """Whether these numbers of images are the complete data set, so that published figures are comparable."""
    sizes = DATASETS[name].sizes
    return train >= sizes[0] and test >= sizes[1]


def spread(x: Tensor, count: int | None) -> Tensor:
    """`count` evenly spaced images; all of them for None.

    Example:
        >>> spread(torch.arange(10), 3)
        tensor([0, 3, 6])
    """
    return x if count is None or count >= len(x) else x[torch.arange(count) * len(x) // count]


def find_model(plan: Plan) -> Path | None:
    """The trained model of MNIST in the data folder, or None."""
    return plan.file(MODEL)


def load_model(plan: Plan) -> tuple[Any, Tensor | None]:
    """The trained model of MNIST, and the classes to draw images of, or None for a model without classes."""
    path = find_model(plan)
    if path is None:
        raise FileNotFoundError(describe_missing("A model of MNIST", MODEL))
    model = elflow.load(path)
    if not isinstance(model, elflow.ImageELF) or model.context or model.shape != MNIST_SHAPE:
        kind = f"{type(model).__name__} of {getattr(model, 'shape', 'no shape')}"
        raise ValueError(f"{path} must be a model of images of {MNIST_SHAPE} without a context, got {kind}")
    return model, torch.arange(model.classes) if model.classes else None
