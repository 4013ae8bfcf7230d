"""Autoregressive transforms of images, stored as vectors of pixels row by row."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

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
    relative_size,
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
                one = AutoregressiveTransform(partial(self._compute_row_maps, i), None, sweeps=self.row)
                x, info = one.sweep_rows(target, memory_and_context, step, self.row, tol, None)
                _, above = self.row_maps(x, above, context, i)
                solved.append(x)
                infos.append(info)
        x = torch.cat(solved, dim=-1)
        residual = self._max_residual(x, y, context)
        if on_settled is not None:
            on_settled(len(y))
        calls = sum([info.calls[0] + 1 for info in infos])  # one more for the memory of each row
        sweeps = max([info.sweeps for info in infos])
        images = 1 - (-calls // self.height)  # one for the residual, plus the calls of rows, rounded up
        return x, InverseInfo(sweeps, (images,), residual, residual <= tol)

    def _max_residual(self, x: Tensor, y: Tensor, context: Tensor | None) -> float:
        """The maximum residual of all images, from the maps of whole images."""
        size = self.rows or max(1, len(x))
        contexts = [None] * len(x.split(size)) if context is None else context.split(size)
        blocks = zip(x.split(size), y.split(size), contexts, strict=True)
        residuals = [relative_size(self.maps(a, c)(a) - b, a, b).amax(-1) for a, b, c in blocks]
        return max_or_nan([0.0, *torch.cat(residuals).tolist()])

    def _compute_row_maps(self, i: int, x: Tensor, memory_and_context: Tensor | None) -> Maps:
        assert memory_and_context is not None
        above, context = memory_and_context[:, : self.memory], memory_and_context[:, self.memory :]
        return self.row_maps(x, above, context if context.shape[-1] else None, i)[0]
