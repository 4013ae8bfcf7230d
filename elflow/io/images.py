"""Images in files: MNIST's and CIFAR-10's as they are published, NumPy's arrays, and folders of pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from elflow._checks import check_choice, check_counts
from elflow.io.archives import (
    Arrays,
    check_undivided,
    has_batches,
    is_idx,
    read_batches,
    read_idx,
    read_numpy,
    readable,
)

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Images", "read_images"]

SPLITS = ("train", "test")
PARTS = (*SPLITS, "val", "valid", "validation")
"""Folders that hold a part of the data, and are not classes."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
"""What Pillow may take a file for, whatever its name: no formats that call other programs."""
KINDS = (
    "idx files (train-images-idx3-ubyte, also .gz), .npz, .npy, CIFAR-10 (its .tar.gz files or their folders), or a "
    f"folder of pictures ({', '.join(SUFFIXES)}), which may be in one folder for each class"
)


class Images(NamedTuple):
    """Images, and what is on them where that is known.

    Example:
        >>> images = Images(torch.zeros(10, 1, 28, 28, dtype=torch.uint8), torch.arange(10))
        >>> images.x.shape, images.labels.dtype
        (torch.Size([10, 1, 28, 28]), torch.int64)
    """

    x: Tensor
    """Pixels from 0 to 255, `torch.uint8` of shape `(N, C, H, W)`."""
    labels: Tensor | None
    """The class of each image, `torch.int64` of shape `(N,)`, or None."""


def read_images(path: str | os.PathLike[str], split: str | None = None, size: Sequence[int] | None = None) -> Images:
    """Reads images, and their labels where there are any, from what is at a path:

    * **idx**, as MNIST has it: a file `train-images-idx3-ubyte`, or `.gz`, with the labels in the file beside it; or
      the folder of these files.
    * **NumPy**: an `.npy` file; or an `.npz` file with images named `x`, `X`, `images` or `data` and labels named `y`,
      `Y`, `labels` or `targets`. Those of a split are named like `x_train`, `train_x` or, for images, `train`; an array
      that is alone may have any name. Images are integers from 0 to 255 of shape `(N, H, W)`, `(N, H, W, C)`,
      `(N, C, H, W)`, with 1, 3 or 4 channels, or `(N, pixels)`. The last are of square images, grey or in the planes
      red, green and blue, as the downsampled ImageNet has them.
    * **CIFAR-10**: `cifar-10-python.tar.gz`, `cifar-10-binary.tar.gz`, or the folder in either. Nothing in the pickles
      is run.
    * **Pictures**: a folder of `.png`, `.jpg`, `.jpeg`, `.bmp`, `.gif` and `.webp` files, in the order of their names;
      or of one folder for each class, whose labels are 0, 1, ... in the order of their names. Palettes become RGB,
      also those of grey GIFs; transparency is dropped; of 16 bits the upper 8 are kept, and of an animation the first
      picture.

    Labels are as they are in the file: those of the downsampled ImageNet count from 1.

    Arguments:
        path: A file or a folder.
        split: `"train"` or `"test"`, for what has both (MNIST calls it `t10k`); a folder of pictures does if it has
            folders `train` and `test`. By default images for training, or all where there is no such choice.
        size: The height and width to resize the images to, whatever their proportions. By default they stay as they
            are, and pictures must all have the same size.

    Returns:
        The images and their labels.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/data.npz", x_test=np.full((5, 8, 8, 3), 255, "uint8"), y_test=np.arange(5))
        ...     images = read_images(f"{folder}/data.npz", split="test")
        >>> images.x.shape, images.labels
        (torch.Size([5, 3, 8, 8]), tensor([0, 1, 2, 3, 4]))
    """
    path = Path(path)
    if split is not None:
        check_choice("split", split, SPLITS)
    if size is not None:
        size = check_counts("size", size)
        if len(size) != 2:
            raise ValueError(f"size must be the height and the width, got {size}")
    x, labels = _read(path, split, size)
    if not x.size:
        raise ValueError(f"{path} must hold images with at least one pixel, got the shape {x.shape}")
    if labels is not None and len(labels) != len(x):
        raise ValueError(f"{path} must have one label for each image, got {len(x)} images and {len(labels)} labels")
    if size is not None and list(x.shape[2:]) != size:
        x = _resized(x, size)
    x = np.require(x, np.uint8, ["C", "W"])  # torch wants to write to what it holds
    return Images(torch.from_numpy(x), None if labels is None else torch.from_numpy(labels.astype(np.int64)))


def _read(path: Path, split: str | None, size: Sequence[int] | None) -> Arrays:
    if path.is_dir():
        if is_idx(path):
            return read_idx(path, split)
        return read_batches(path, split) if has_batches(path) else _read_pictures(path, split, size)
    if not path.exists():
        raise FileNotFoundError(f"path must be a file or a folder, and there is none: {path}")
    name = path.name.lower()
    if name.endswith((".npz", ".npy")):
        return read_numpy(path, split)
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        return read_batches(path, split)
    if is_idx(path):
        return read_idx(path, split)
    raise ValueError(f"{path} is none of what can be read: {KINDS}")


def _read_pictures(folder: Path, split: str | None, size: Sequence[int] | None) -> Arrays:
    if all((folder / part).is_dir() for part in SPLITS):
        folder = folder / (split or "train")
    else:
        if part := next((folder / name for name in PARTS if (folder / name).is_dir()), None):
            raise ValueError(f"{folder} must have folders train and test if it has {part.name}: pass {part} to read it")
        check_undivided(folder, split)
    files = _pictures(folder)
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not files and not classes:
        raise ValueError(f"{folder} holds nothing that can be read: {KINDS}")
    if files:
        both = next((entry for entry in classes if _pictures(entry)), None)
        if both is not None:
            raise ValueError(
                f"{folder} must hold pictures or folders of them, got both {files[0].name} and {both.name}"
            )
        return _stacked(files, size), None
    labels = []
    for label, entry in enumerate(classes):
        found = _pictures(entry)
        if not found:
            raise ValueError(f"{entry} must hold pictures of its class ({', '.join(SUFFIXES)}), and has none")
        files += found
        labels += [label] * len(found)
    return _stacked(files, size), np.array(labels)


def _pictures(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _stacked(files: Sequence[Path], size: Sequence[int] | None) -> np.ndarray:
    """All pictures, `(N, C, H, W)`."""
    channels, height, width = shape = _picture(files[0], size).shape
    x = np.empty((len(files), *shape), np.uint8)
    for i, file in enumerate(files):
        one = _picture(file, size)
        c, h, w = one.shape
        if (h, w) != (height, width):
            raise ValueError(
                f"{file} must be {height} pixels high and {width} wide, as {files[0]} is, got {h} and {w}: pass size, "
                "the height and width to resize all pictures to"
            )
        if c != channels:
            mode, got = ("L", "RGB") if channels == 1 else ("RGB", "L")
            raise ValueError(
                f"{file} must be of mode {mode}, as {files[0]} is, got {got}: convert either with Pillow's .convert()"
            )
        x[i] = one
    return x


def _picture(file: Path, size: Sequence[int] | None) -> np.ndarray:
    """One picture, `(C, H, W)`."""
    from PIL import Image
    from PIL.ImageOps import exif_transpose  # cameras turn pictures by a note in the file

    with readable(file), Image.open(file, formats=FORMATS) as opened:
        exif_transpose(opened, in_place=True)
        picture = _plain(opened)
        a = np.asarray(picture if size is None else _fitted(picture, size))
    return a[None] if a.ndim == 2 else np.moveaxis(a, 2, 0)


def _plain(picture: Image) -> Image:
    """A picture in mode L or RGB. A GIF is always RGB: whether Pillow takes it for grey depends on its palette."""
    from PIL import Image

    if picture.mode == "RGB" or (picture.mode == "L" and picture.format != "GIF"):
        return picture
    if picture.mode.startswith("I"):  # a PNG of 16 bits, which Pillow would clip at 255
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode == "P":
        picture = picture.convert("RGBA")  # or Pillow warns of palettes with transparency
    return picture.convert("L" if picture.mode in ("1", "LA") else "RGB")


def _fitted(picture: Image, size: Sequence[int]) -> Image:
    from PIL.Image import Resampling

    return picture.resize((size[1], size[0]), Resampling.BILINEAR)  # which leaves no value above the greatest


def _resized(x: np.ndarray, size: Sequence[int]) -> np.ndarray:
    from PIL import Image

    resized = np.empty((*x.shape[:2], *size), np.uint8)
    for i in np.ndindex(*x.shape[:2]):
        resized[i] = _fitted(Image.fromarray(x[i]), size)
    return resized
