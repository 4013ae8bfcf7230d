"""Autoregressive transforms of images, stored as vectors of pixels row by row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from elflow.transforms.autoregressive import (
    METHODS,
    AutoregressiveTransform,
    InverseInfo,
    Maps,
    OnSettled,
    Step,
    max_or_nan,
)

__all__ = ["RasterTransform"]


class RasterTransform(AutoregressiveTransform):
    """Autoregressive transform of images whose inverse sweeps over one row of pixels at a time.

    The maps of a row depend on the rows above it through a memory of fixed size: the inputs that the convolutions keep
    of the last rows. So a sweep over a row costs only a fraction of the image, and no work is spent on rows whose turn
    has not come. All rows are swept at once on devices other than CPUs, which are faster on large batches of work, and
    for methods other than `"exact"`.

    Arguments:
        maps: Function that computes the increasing maps from x `(N, height * row)` and the context `(N, C)`.
        context: The context `(..., C)`, or None.
        height: The number of rows of pixels.
        row: The number of coordinates in a row.
        row_maps: Function that computes the maps of row i from its x `(N, row)`, the memory `(N, memory)` that the row
            above leaves, the context and i. It returns them and the memory that row i leaves.
        memory: The size of the memory.
        freeze: Context manager for a block in which the parameters of the maps do not change, so that the maps may
            cache what they compute from these.
        rows: Maximum number of images to compute at once if no gradients are needed; None for no limit.

    Example:
        >>> from torch.distributions import AffineTransform
        >>> def maps(x, context):  # each of two rows is shifted by the row above it
        ...     return AffineTransform(torch.cat([torch.zeros_like(x[:, :3]), x[:, :3]], dim=-1), 2.0)
        >>> def row_maps(x, above, context, i):
        ...     return AffineTransform(above, 2.0), x
        >>> t = RasterTransform(maps, None, height=2, row=3, row_maps=row_maps, memory=3)
        >>> x = torch.randn(5, 6)
        >>> torch.allclose(t.inv(t(x)), x, atol=1e-6)
        True
    """

    def __init__(
        self,
        maps: Callable[[Tensor, Tensor | None], Maps],
        context: Tensor | None,
        height: int,
        row: int,
        row_maps: Callable[[Tensor, Tensor, Tensor | None, int], tuple[Maps, Tensor]],
        memory: int,
        freeze: Callable[[], AbstractContextManager[None]] = nullcontext,
        rows: int | None = None,
    ) -> None:
        super().__init__(maps, context, sweeps=height * row, rows=rows)
        # A sweep holds one row of pixels of each image, so that `height` times as many images fit into the memory.
        self.rows_per_sweep = None if rows is None else rows * height
        self.height = height
        self.row = row
        self.row_maps = row_maps
        self.memory = memory
        self.freeze = freeze

    def sweep_rows(
        self, y: Tensor, context: Tensor | None, step: Step, limit: int, tol: float, on_settled: OnSettled
    ) -> tuple[Tensor, InverseInfo]:
        """Invert images `(n, height * row)`, one row of pixels after the other. Calls are counted in whole images."""
        if step is not METHODS["exact"][0] or y.device.type != "cpu":
            return super().sweep_rows(y, context, step, limit, tol, on_settled)
        above, solved, infos = y.new_zeros(len(y), self.memory), [], []
        with self.freeze():
            for i, target in enumerate(y.split(self.row, dim=-1)):
                # The memory is passed as context, so that both lose the rows of images that have settled.
                memory_and_context = above if context is None else torch.cat([above, context], dim=-1)
                one = _RowTransform(self, i, torch.empty_like(above))
                x, info = one.sweep_rows(target, memory_and_context, step, self.row, tol, None)
                above = one.below
                solved.append(x)
                infos.append(info)
        if on_settled is not None:
            on_settled(len(y))
        residual = max_or_nan([info.residual for info in infos])
        calls = sum([info.calls[0] for info in infos])
        sweeps = max([info.sweeps for info in infos])
        images = -(-calls // self.height)  # the calls of rows, rounded up
        return torch.cat(solved, dim=-1), InverseInfo(sweeps, (images,), residual, residual <= tol)


class _RowTransform(AutoregressiveTransform):
    """Transform of one row of pixels, given the memory of the rows above as the first part of the context.

    A row settles at the x of its last evaluation, which also leaves the memory for the row below: no further evaluation
    is needed.

    Arguments:
        image: The transform of whole images.
        i: The index of the row.
        below: The memory that the row leaves, `(N, memory)`, which the sweeps set.
    """

    n_inputs = None  # the memory depends on the last coordinate

    def __init__(self, image: RasterTransform, i: int, below: Tensor) -> None:
        super().__init__(image.maps, None, sweeps=image.row)
        self.row_maps = image.row_maps
        self.i = i
        self.below = below

    def _compute_maps(self, x: Tensor, context: Tensor | None, rows: Tensor) -> Maps:
        assert context is not None
        above, context = context.tensor_split([self.below.shape[-1]], dim=-1)
        maps, self.below[rows] = self.row_maps(x, above, context if context.shape[-1] else None, self.i)
        return maps
