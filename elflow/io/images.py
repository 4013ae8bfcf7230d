"""Images in files: MNIST and CIFAR-10 as published, NumPy arrays, and folders of image files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from elflow._checks import check_choice, check_counts
from elflow.io.archives import (
    Arrays,
    check_no_split,
    has_batches,
    is_idx,
    read_batches,
    read_idx,
    read_numpy,
    reading,
)

__all__ = ["Images", "read_images"]

SPLITS = ("train", "test")
PARTS = (*SPLITS, "val", "valid", "validation")
"""Names of folders that hold a split, and not a class."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
"""The formats that Pillow may detect, whatever the suffix; some others would call external programs."""
SUPPORTED = (
    "idx files (train-images-idx3-ubyte, also .gz), .npz, .npy, CIFAR-10 (a .tar.gz file or its folder), and folders "
    f"of image files ({', '.join(SUFFIXES)}), optionally with one folder per class"
)


class Images(NamedTuple):
    """Images, with labels if there are any.

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
    """Read images, and their labels if there are any, from a file or folder in one of these formats:

    * **idx**, the format of MNIST: a file `train-images-idx3-ubyte`, or `.gz`, with labels in the file beside it; or a
      folder of these files.
    * **NumPy**: an `.npy` file; or an `.npz` file with images named `x`, `X`, `images` or `data` and labels named `y`,
      `Y`, `labels` or `targets`. Those of a split are named like `x_train`, `train_x` or, for images, `train`; a single
      array may have any name. Images are integers from 0 to 255 of shape `(N, H, W)`, `(N, H, W, C)`, `(N, C, H, W)`,
      with 1, 3 or 4 channels, or `(N, pixels)`. The last is for square images, grey or in red, green and blue planes,
      like the downsampled ImageNet.
    * **CIFAR-10**: `cifar-10-python.tar.gz`, `cifar-10-binary.tar.gz`, or the folder in either. No code in the pickles
      is run.
    * **Image files**: a folder of `.png`, `.jpg`, `.jpeg`, `.bmp`, `.gif` and `.webp` files, sorted by name; or one
      folder per class, with labels 0, 1, ... sorted by name. Images with a palette become RGB, and so do all GIFs, even
      grey ones. Transparency is dropped. Of 16 bits the upper 8 are kept, and of an animation the first frame.

    Labels are not changed: those of the downsampled ImageNet start at 1.

    Arguments:
        path: A file or a folder.
        split: `"train"` or `"test"` (`t10k` in MNIST), for data that is split. A folder of image files is split if it
            has folders `train` and `test`. By default the training images, or all images if there are no splits.
        size: Height and width to resize the images to; proportions may change. By default images are not resized, and
            image files must all have the same size.

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
        raise ValueError(f"{path} must have one label per image, got {len(x)} images and {len(labels)} labels")
    if size is not None and list(x.shape[2:]) != size:
        x = _resize_arrays(x, size)
    x = np.require(x, np.uint8, ["C", "W"])  # torch warns about read-only memory
    return Images(torch.from_numpy(x), None if labels is None else torch.from_numpy(labels.astype(np.int64)))


def _read(path: Path, split: str | None, size: Sequence[int] | None) -> Arrays:
    if path.is_dir():
        if is_idx(path):
            return read_idx(path, split)
        return read_batches(path, split) if has_batches(path) else _read_image_files(path, split, size)
    if not path.exists():
        raise FileNotFoundError(f"path must be a file or a folder that exists, got {path}")
    name = path.name.lower()
    if name.endswith((".npz", ".npy")):
        return read_numpy(path, split)
    if name.endswith((".tar.gz", ".tgz", ".tar")):
        return read_batches(path, split)
    if is_idx(path):
        return read_idx(path, split)
    raise ValueError(f"{path} has an unsupported format; supported: {SUPPORTED}")


def _read_image_files(folder: Path, split: str | None, size: Sequence[int] | None) -> Arrays:
    if all((folder / part).is_dir() for part in SPLITS):
        folder = folder / (split or "train")
    else:
        if part := next((folder / name for name in PARTS if (folder / name).is_dir()), None):
            raise ValueError(f"{folder} must have folders train and test if it has {part.name}: pass {part} to read it")
        check_no_split(folder, split)
    files = _list_image_files(folder)
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not files and not classes:
        raise ValueError(f"{folder} holds no images in a supported format; supported: {SUPPORTED}")
    if files:
        both = next((entry for entry in classes if _list_image_files(entry)), None)
        if both is not None:
            raise ValueError(
                f"{folder} must hold either image files or one folder per class, got {files[0].name} and {both.name}"
            )
        return _stack_image_files(files, size), None
    labels = []
    for label, entry in enumerate(classes):
        found = _list_image_files(entry)
        if not found:
            raise ValueError(f"{entry} must hold the image files of a class ({', '.join(SUFFIXES)}), got none")
        files += found
        labels += [label] * len(found)
    return _stack_image_files(files, size), np.array(labels)


def _list_image_files(folder: Path) -> list[Path]:
    return sorted(
        file
        for file in folder.iterdir()
        if file.suffix.lower() in SUFFIXES and not file.name.startswith(".") and file.is_file()
    )


def _stack_image_files(files: Sequence[Path], size: Sequence[int] | None) -> np.ndarray:
    """Read files into one array `(N, C, H, W)`."""
    channels, height, width = shape = _read_image_file(files[0], size).shape
    x = np.empty((len(files), *shape), np.uint8)
    for i, file in enumerate(files):
        one = _read_image_file(file, size)
        c, h, w = one.shape
        if (h, w) != (height, width):
            raise ValueError(
                f"{file} must be {height} pixels high and {width} wide, like {files[0]}, got {h} and {w}: pass size, "
                "the height and width to resize all images to"
            )
        if c != channels:
            mode, got = ("L", "RGB") if channels == 1 else ("RGB", "L")
            raise ValueError(
                f"{file} must have the mode {mode}, like {files[0]}, got {got}: convert one with Pillow's .convert()"
            )
        x[i] = one
    return x


def _read_image_file(file: Path, size: Sequence[int] | None) -> np.ndarray:
    """Read a file into an array `(C, H, W)`."""
    with reading(file), Image.open(file, formats=FORMATS) as opened:
        ImageOps.exif_transpose(opened, in_place=True)  # cameras store the orientation in the metadata
        image = _convert_mode(opened)
        a = np.asarray(image if size is None else _resize_image(image, size))
    return a[None] if a.ndim == 2 else np.moveaxis(a, 2, 0)


def _convert_mode(image: Image.Image) -> Image.Image:
    """Convert to mode L or RGB. GIFs always become RGB: whether Pillow detects grey depends on the palette."""
    if image.mode == "RGB" or (image.mode == "L" and image.format != "GIF"):
        return image
    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip at 255
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")  # otherwise Pillow warns about palettes with transparency
    return image.convert("L" if image.mode in ("1", "LA") else "RGB")


def _resize_image(image: Image.Image, size: Sequence[int]) -> Image.Image:
    return image.resize((size[1], size[0]), Image.Resampling.BILINEAR)  # does not overshoot


def _resize_arrays(x: np.ndarray, size: Sequence[int]) -> np.ndarray:
    resized = np.empty((*x.shape[:2], *size), np.uint8)
    for i in np.ndindex(*x.shape[:2]):
        resized[i] = _resize_image(Image.fromarray(x[i]), size)
    return resized
