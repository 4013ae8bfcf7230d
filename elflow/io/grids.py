"""Image grids: several images side by side in one."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from elflow._checks import check_count
from elflow._files import replacing

__all__ = ["make_grid", "write_grid"]

MIN_SIDE, ENLARGED_SIDE = 20, 32
"""Images with fewer pixels per side than the first are enlarged, to at least the second."""
WHITE = 255


def make_grid(images: Tensor | np.ndarray, columns: int | None = None, levels: int = 256, gap: int = 2) -> np.ndarray:
    """Arrange images in a grid, row by row, on a white background.

    Images with fewer than 20 pixels per side are enlarged by a whole factor, so that single pixels are visible.

    Arguments:
        images: Integers from 0 to `levels - 1`, `(N, C, H, W)` with one channel or three.
        columns: Number of images per row. By default the grid is nearly square.
        levels: Number of values of a pixel: `levels - 1` is white.
        gap: Number of pixels between images.

    Returns:
        The grid, uint8 of shape `(height, width)`, or `(height, width, 3)` for three channels.

    Example:
        >>> make_grid(np.ones((10, 1, 28, 28), "uint8")).shape
        (88, 118)
        >>> make_grid(np.ones((1, 3, 1, 1), "uint8"), levels=3)[0, 0]
        array([128, 128, 128], dtype=uint8)
    """
    x = _check_images(images, check_count("levels", levels, least=2))
    gap = check_count("gap", gap, least=0)
    n, channels, height, width = x.shape
    if columns is None:
        columns = math.ceil(math.sqrt(n * height / width))
    columns = min(check_count("columns", columns), n)
    x = ((x.astype(np.int64) * WHITE + (levels - 1) // 2) // (levels - 1)).astype(np.uint8)
    if max(height, width) < MIN_SIDE:
        factor = math.ceil(ENLARGED_SIDE / max(height, width))
        x = x.repeat(factor, axis=2).repeat(factor, axis=3)
    rows, (height, width) = math.ceil(n / columns), x.shape[2:]
    cells = np.full((rows * columns, channels, height + gap, width + gap), WHITE, np.uint8)
    cells[:n, :, :height, :width] = x
    cells = cells.reshape(rows, columns, *cells.shape[1:]).transpose(0, 3, 1, 4, 2)
    whole = cells.reshape(rows * (height + gap), columns * (width + gap), channels)
    whole = whole[: whole.shape[0] - gap, : whole.shape[1] - gap]
    return np.ascontiguousarray(whole[..., 0] if channels == 1 else whole)


def write_grid(
    images: Tensor | np.ndarray, path: str | os.PathLike[str], columns: int | None = None, levels: int = 256
) -> None:
    """Write a grid of images to a PNG file, which appears only when it is complete.

    Arguments:
        images: As for `make_grid`.
        path: A `.png` file, which is overwritten.
        columns: As for `make_grid`.
        levels: As for `make_grid`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_grid(np.zeros((10, 1, 28, 28), "uint8"), f"{folder}/samples.png")
        ...     print(*os.listdir(folder))
        samples.png
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"path must end in .png, got {path}")
    if path.is_dir():
        raise IsADirectoryError(f"path must be a file, got the folder {path}")
    grid = Image.fromarray(make_grid(images, columns, levels))
    with replacing(path.resolve()) as temporary:
        grid.save(temporary, format="PNG")


def _check_images(images: Tensor | np.ndarray, levels: int) -> np.ndarray:
    if not isinstance(images, Tensor | np.ndarray):
        raise TypeError(f"images must be a torch.Tensor or a NumPy array, got {type(images).__name__}")
    x = images.detach().cpu().numpy() if isinstance(images, Tensor) else images
    if x.dtype.kind not in "bui":
        raise TypeError(f"images must be integers from 0 to {levels - 1}, got {images.dtype}")
    if x.ndim != 4 or x.shape[1] not in (1, 3) or not x.size:
        raise ValueError(f"images must have the shape (N, 1, H, W) or (N, 3, H, W) and not be empty, got {x.shape}")
    if not (x.min() >= 0 and x.max() < levels):
        raise ValueError(
            f"images must be integers from 0 to levels - 1 = {levels - 1}, got values from {x.min()} to {x.max()}"
        )
    return x
