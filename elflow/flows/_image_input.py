"""Checks of images, contexts and shapes for image flows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from elflow._checks import check_counts, check_rows, has_values

Images = Tensor | np.ndarray[Any, Any]
"""Images of integers, `(N, channels, height, width)`."""
ImageContext = Tensor | np.ndarray[Any, Any] | Sequence[int] | int | None
"""Classes, vectors, one of either for all images, or None."""


def check_shape(shape: Sequence[int], scales: int, channels: int) -> tuple[int, int, int]:
    """Check channels, height and width; raise an error if the number of scales or channels does not suit them."""
    sizes = check_counts("shape", shape)
    if len(sizes) != 3:
        raise ValueError(f"shape must be (channels, height, width), got {tuple(sizes)}")
    depth, height, width = sizes
    if width in (1, 3) and depth > 4 and height > 4:
        raise ValueError(
            f"shape must be (channels, height, width), got {tuple(sizes)}: write {(width, depth, height)}, and move "
            "the channels of the images to the front with x.permute(0, 3, 1, 2)"
        )
    step = 2 ** (scales - 1)
    if height % step or width % step:
        max_scales = max(s for s in range(1, scales) if height % 2 ** (s - 1) == 0 and width % 2 ** (s - 1) == 0)
        raise ValueError(
            f"shape must have a height and width divisible by {step} for {scales} scales, got {height} x {width}: use "
            f"scales={max_scales}, or pad or crop the images"
        )
    deepest = depth * step
    if channels < deepest:
        raise ValueError(
            f"channels must be at least {deepest}, the number of image channels on the last of {scales} scales, got "
            f"{channels}"
        )
    return depth, height, width


def check_images(x: Images, shape: tuple[int, int, int], levels: int, device: torch.device) -> Tensor:
    """Images as vectors of levels, int64 `(N, features)`, ordered by row, column and channel."""
    x = _as_tensor(x)
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor or an array of integers, got {type(x).__name__}")
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        scaled = f"(x * {levels - 1}).round().to(torch.uint8) if its values are in [0, 1]"
        remedy = "x.to(torch.uint8)" if x.dtype == torch.bool else scaled
        raise TypeError(f"x must hold integers from 0 to {levels - 1}, got {x.dtype}: convert it with {remedy}")
    if x.ndim != 4 or tuple(x.shape[1:]) != shape:
        raise ValueError(
            f"x must have the shape (N, {', '.join(map(str, shape))}), that is (N, channels, height, width), got "
            f"{tuple(x.shape)}{_suggest_remedy(tuple(x.shape), shape)}"
        )
    if x.numel() and has_values(x):
        low, high = int(x.min()), int(x.max())
        if low < 0 or high >= levels:
            raise ValueError(
                f"x must hold integers from 0 to {levels - 1}, got {low} to {high}: build the flow with the number of "
                "levels of the images, or rescale the pixel values"
            )
    return x.to(device).permute(0, 2, 3, 1).flatten(1).long()


def _as_tensor(x: Any) -> Any:
    """Arrays of numbers as tensors; all other values unchanged.

    Unsigned integers become signed, because torch cannot compare the larger unsigned types. Values beyond 2**31 - 1 are
    clamped: they are out of range in any case.
    """
    if isinstance(x, np.ndarray) and x.dtype.kind in "iubf":
        if x.dtype.kind == "u":
            x = np.minimum(x.astype(np.uint64), np.uint64(2**31 - 1)).astype(np.int64)
        return torch.from_numpy(np.array(x, dtype=x.dtype.newbyteorder("=")))
    if isinstance(x, Tensor) and x.dtype in (torch.uint16, torch.uint32, torch.uint64):
        signed = x.long()
        return torch.where(signed < 0, 2**31 - 1, signed)
    return x


def _suggest_remedy(actual: tuple[int, ...], shape: tuple[int, int, int]) -> str:
    """End of an error message for images of a wrong shape."""
    depth, height, width = shape
    if actual == shape or (depth == 1 and actual == (height, width)):
        return ": make one image a batch of one with x.reshape(1, ...)"
    if depth == 1 and actual[1:] == (height, width):
        return ": add the channel with x[:, None]"
    if actual[1:] == (height, width, depth):
        return ": move the channels to the front with x.permute(0, 3, 1, 2)"
    return ""


def encode_context(
    c: ImageContext, n: int, classes: int, context: int, dtype: torch.dtype, device: torch.device
) -> Tensor | None:
    """The context of n images as vectors `(n, classes or context)`, with one-hot classes; None without context."""
    if not classes and not context:
        if c is not None:
            raise ValueError(f"c must be None for a flow without classes and without context, got {type(c).__name__}")
        return None
    if classes:
        return one_hot(_check_labels(c, n, classes).to(device), classes).to(dtype)
    if c is None:
        raise ValueError(f"c must be a context of {context} features, got None")
    vectors = torch.as_tensor(_as_tensor(c))
    check_rows("c", vectors, context, "context feature")
    return _expand_to_images(vectors, n, 1).to(dtype=dtype, device=device)


def _check_labels(c: ImageContext, n: int, classes: int) -> Tensor:
    """Classes of n images, int64 `(n,)`."""
    if c is None:
        raise ValueError(f"c must be classes from 0 to {classes - 1}, got None")
    labels = torch.as_tensor(_as_tensor(c))
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"c must be classes, integers from 0 to {classes - 1}, got {labels.dtype}")
    if labels.ndim > 1:
        raise ValueError(f"c must be one class or one for each of {n} images, got the shape {tuple(labels.shape)}")
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        wrong = int(labels[(labels < 0) | (labels >= classes)][0]) if labels.ndim else int(labels)
        raise ValueError(f"c must be classes from 0 to {classes - 1}, got {wrong}")
    return _expand_to_images(labels.long(), n, 0)


def _expand_to_images(c: Tensor, n: int, dims: int) -> Tensor:
    """Contexts of n images, from one of `dims` dimensions for all or from one for each."""
    if c.ndim == dims:
        return c.expand(n, *c.shape)
    if c.ndim != dims + 1 or len(c) != n:
        raise ValueError(f"c must be one context or one for each of {n} images, got the shape {tuple(c.shape)}")
    return c
