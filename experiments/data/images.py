"""The images of the experiments: what a data folder may hold, and what of it is whole."""

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
from experiments.framework.experiment import Plan

__all__ = ["DATASETS", "MODEL", "DataSet", "absent", "find", "given", "images", "is_whole", "spread"]

HERE = "."
"""Stands for the data folder itself, which may hold the idx files of MNIST."""
MODEL = "mnist.elf"
"""A trained model of MNIST that a data folder may hold."""
MNIST_SHAPE = (1, 28, 28)


@dataclass(frozen=True)
class DataSet:
    """A data set of images.

    Arguments:
        title: What tables call it.
        files: How it may be named in a data folder, the first that is there is taken; none for what needs no file.
        parts: How a part of it may be named, which is good enough at the scale of CPUs.
        whole: How many images it has for training and test when it is whole.
        wanted: How to name it, in words.
    """

    title: str
    files: tuple[str, ...]
    parts: tuple[str, ...]
    whole: tuple[int, int]
    wanted: str = ""


DATASETS = {
    "digits": DataSet("Digits", (), (), (1_497, 300)),
    "mnist": DataSet(
        "MNIST",
        ("mnist.npz", "mnist", "MNIST/raw"),
        (),
        (60_000, 10_000),
        "mnist.npz, or its idx files, there or in a folder mnist",
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
        "a folder imagenet32 with pictures in train and test, or imagenet32.npz with x_train and x_test",
    ),
    "imagenet64": DataSet(
        "ImageNet 64x64",
        ("imagenet64", "imagenet64.npz"),
        (),
        (1_281_149, 49_999),
        "a folder imagenet64 with pictures in train and test, or imagenet64.npz with x_train and x_test",
    ),
}
"""By name, in the order of tables. What ImageNet calls validation is its test here, as in the papers."""


def find(plan: Plan, name: str) -> str | None:
    """The file or folder of a data set within the plan's data, or None.

    Example:
        >>> find(Plan(), "mnist") is None
        True
    """
    check_choice("name", name, list(DATASETS))
    each = DATASETS[name]
    for file in each.files + (each.parts if plan.scale == "cpu" else ()):
        if plan.file(file) is not None:
            return file
    loose = name == "mnist" and plan.data is not None and is_idx(plan.data)
    return HERE if loose else None


def absent(plan: Plan, names: list[str]) -> list[str]:
    """A line for each of these data sets that the plan's data do not have, and how to name it."""
    return [
        f"{DATASETS[name].title} is not there: put {DATASETS[name].wanted}, into the folder of --data"
        for name in names
        if DATASETS[name].files and find(plan, name) is None
    ]


def images(plan: Plan, name: str, file: str | None) -> tuple[Tensor, Tensor]:
    """The images of a data set for training and for test, uint8 `(N, C, H, W)`.

    Example:
        >>> train, test = images(Plan(), "digits", None)
        >>> train.shape, test.shape
        (torch.Size([1497, 1, 8, 8]), torch.Size([300, 1, 8, 8]))
    """
    if name == "digits":
        found = digits()
        return torch.from_numpy(found["x_train"]), torch.from_numpy(found["x_test"])
    path = None if file is None else plan.file(file)
    if path is None:
        raise FileNotFoundError(f"{DATASETS[name].title} must be in the data folder, and there is no {file}")
    return read_images(path, "train").x, read_images(path, "test").x


def is_whole(name: str, train: int, test: int) -> bool:
    """Whether so many images are the whole data set: only then is a figure one to hold against published ones."""
    least = DATASETS[name].whole
    return train >= least[0] and test >= least[1]


def spread(x: Tensor, count: int | None) -> Tensor:
    """So many of the images, from all over them; all for None.

    Example:
        >>> spread(torch.arange(10), 3)
        tensor([0, 3, 6])
    """
    return x if count is None or count >= len(x) else x[torch.arange(count) * len(x) // count]


def given(plan: Plan) -> Path | None:
    """The trained model of MNIST among the plan's data, if there is one."""
    return plan.file(MODEL)


def load_given(plan: Plan) -> tuple[Any, Tensor | None]:
    """That model, and the classes to draw images of in turn, or None if it has none."""
    path = given(plan)
    if path is None:
        raise FileNotFoundError(f"there must be {MODEL} in the data folder, got none")
    model = elflow.load(path)
    if not isinstance(model, elflow.ImageELF) or model.context or model.shape != MNIST_SHAPE:
        got = f"{type(model).__name__} of {getattr(model, 'shape', 'no shape')}"
        raise ValueError(f"{path} must be a model of images of {MNIST_SHAPE} without a context, got {got}")
    return model, torch.arange(model.classes) if model.classes else None
