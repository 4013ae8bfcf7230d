"""Autoregressive transforms of images, stored as vectors of pixels row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

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
        row_maps: Function that computes the maps of row i from coordinate `start` on, and the memory that the row
            leaves, from `x[:, start:]`, the memory `(N, memory)` that the row above leaves, the context, i, the memory
            that row i has left with the same `x[:, :start]`, and `start`.
        memory: The size of the memory.
        pixel: The number of coordinates of a pixel; `start` is a multiple of it.
        freeze: Context manager for a block in which the parameters of the maps do not change, so that the maps may
            cache what they compute from these.
        rows: Maximum number of images to compute at once if no gradients are needed; None for no limit.

    Example:
        >>> from torch.distributions import AffineTransform
        >>> def maps(x, context):  # each of two rows is shifted by the row above it
        ...     return AffineTransform(torch.cat([torch.zeros_like(x[:, :3]), x[:, :3]], dim=-1), 2.0)
        >>> def row_maps(x, above, context, i, below, start):
        ...     return AffineTransform(above[:, start:], 2.0), torch.cat([below[:, :start], x], dim=-1)
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
        row_maps: Callable[[Tensor, Tensor, Tensor | None, int, Tensor, int], tuple[Maps, Tensor]],
        memory: int,
        pixel: int = 1,
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
        self.pixel = pixel
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
                x, above, info = self._solve_row(i, target, above, context, step, tol)
                solved.append(x)
                infos.append(info)
        if on_settled is not None:
            on_settled(len(y))
        residual = max_or_nan([info.residual for info in infos])
        calls = math.ceil(sum([info.calls for info in infos]) / self.height)
        sweeps = max([info.sweeps for info in infos])
        return torch.cat(solved, dim=-1), InverseInfo((sweeps,), (calls,), residual, residual <= tol)

    def _solve_row(
        self, i: int, y: Tensor, above: Tensor, context: Tensor | None, step: Step, tol: float
    ) -> tuple[Tensor, Tensor, _RowInfo]:
        """Invert row i of images, given the memory of the rows above: x `(n, row)`, and the memory for the row below.

        Values settle from left to right. A value that has settled, as all before it have, keeps its x. A sweep starts
        at the first pixel that has not settled in some image, so that the work shrinks from sweep to sweep.
        """
        result, memory, residuals = y.clone(), torch.zeros_like(above), torch.full_like(y, torch.inf)
        rows = torch.arange(len(y))  # the images whose row has not settled
        x, below, residual = y, memory, residuals
        start, calls = 0, 0.0
        for sweeps in range(self.row + 1):  # noqa: B007: the last round only computes the residual
            tail, target = x[:, start:], y[:, start:]
            maps, below = self.row_maps(tail, above, context, i, below, start)
            calls += 1 - start / self.row
            new, tail_residual = step(maps, tail, target, 0)
            if tail_residual is None:
                tail_residual = relative_size(maps(tail) - target, tail, target)
            residual = torch.cat([residual[:, :start], tail_residual], dim=-1)
            # The memory was computed from x: the row below needs no further evaluation of this one.
            result[rows], memory[rows], residuals[rows] = x, below, residual
            unsettled = ~(residual <= tol)  # not `residual > tol`, which is False for NaN
            active = unsettled.any(-1).nonzero().squeeze(-1)
            if not len(active):
                break
            is_final = ~unsettled[:, start:] & (unsettled.cumsum(-1)[:, start:] == 0)
            x = torch.cat([x[:, :start], torch.where(is_final, tail, new)], dim=-1)
            if len(active) < len(rows):
                rows, x, y, above, below = rows[active], x[active], y[active], above[active], below[active]
                residual, unsettled = residual[active], unsettled[active]
                context = None if context is None else context[active]
            start = int(unsettled.int().argmax(-1).min()) // self.pixel * self.pixel
        worst = max_or_nan([0.0, *residuals.amax(-1).tolist()])
        return result, memory, _RowInfo(sweeps, calls, worst)


class _RowInfo(NamedTuple):
    """Diagnostics of the inverse of one row."""

    sweeps: int
    calls: float
    """The number of evaluations of the row; an evaluation of a part of the row is a part."""
    residual: float
