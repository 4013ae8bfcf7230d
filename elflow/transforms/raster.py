"""Images as vectors, one row of pixels after the other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elflow.transforms.autoregressive import (
    METHODS,
    AutoregressiveTransform,
    InverseInfo,
    Settled,
    Step,
    largest,
    relative,
)

__all__ = ["RasterTransform"]


class RasterTransform(AutoregressiveTransform):
    """An autoregressive transform of images, whose inverse sweeps over one row of pixels at a time.

    The maps of a row need little of the rows above it: what each convolution has seen of the last one. So a sweep over
    a row costs no more than its share of the image, and no work is spent on what lies below before its time has come.
    Other devices than CPUs like large work better: there, and for other methods than `"exact"`, all is swept.

    Arguments:
        maps: The increasing maps of x `(N, height * row)` and the context `(N, C)`.
        context: The context `(..., C)`, or None.
        height: The number of rows of pixels.
        row: The number of coordinates in a row.
        row_maps: The maps of row i from its x `(N, row)`, what the row above leaves `(N, memory)`, the context and i;
            and what it leaves itself.
        memory: How many numbers a row leaves.
        fixed: What makes the blocks inside of which maps are of the same parameters, and may prepare for that.
        rows: How many images to take at a time where no gradients are needed.
    """

    def __init__(
        self,
        maps: Callable[[Tensor, Tensor | None], Any],
        context: Tensor | None,
        height: int,
        row: int,
        row_maps: Callable[[Tensor, Tensor, Tensor | None, int], tuple[Any, Tensor]],
        memory: int,
        fixed: Callable[[], AbstractContextManager[None]] = nullcontext,
        rows: int | None = None,
    ) -> None:
        super().__init__(maps, context, sweeps=height * row, rows=rows)
        self.rows_swept = None if rows is None else rows * height  # images, of each of which there is one row at a time
        self.height = height
        self.row = row
        self.row_maps = row_maps
        self.memory = memory
        self.fixed = fixed

    def sweep_rows(
        self, y: Tensor, context: Tensor | None, step: Step, limit: int, tol: float, settled: Settled
    ) -> tuple[Tensor, InverseInfo]:
        """As of any autoregressive transform. Evaluations of rows are counted in whole images."""
        if step is not METHODS["exact"][0] or y.device.type != "cpu":
            return super().sweep_rows(y, context, step, limit, tol, settled)
        above, found, infos = y.new_zeros(len(y), self.memory), [], []
        with self.fixed():
            for i, target in enumerate(y.split(self.row, dim=-1)):
                both = above if context is None else torch.cat([above, context], dim=-1)
                one = AutoregressiveTransform(partial(self._maps_of_row, i), None, sweeps=self.row)
                x, info = one.sweep_rows(target, both, step, self.row, tol, None)
                _, above = self.row_maps(x, above, context, i)
                found.append(x)
                infos.append(info)
        x = torch.cat(found, dim=-1)
        residual = self._residual(x, y, context)
        if settled is not None:
            settled(len(y))
        calls = sum([info.calls[0] + 1 for info in infos])
        sweeps = max([info.sweeps for info in infos])
        return x, InverseInfo(sweeps, (1 - (-calls // self.height),), residual, residual <= tol)

    def _residual(self, x: Tensor, y: Tensor, context: Tensor | None) -> float:
        """The greatest of any image, seen as a whole."""
        size = self.rows or max(1, len(x))
        contexts = [None] * len(x.split(size)) if context is None else context.split(size)
        parts = zip(x.split(size), y.split(size), contexts, strict=True)
        worst = [relative(self.maps(a, c)(a) - b, a, b).amax(-1) for a, b, c in parts]
        return largest([0.0, *torch.cat(worst).tolist()])

    def _maps_of_row(self, i: int, x: Tensor, both: Tensor) -> Any:
        context = both[:, self.memory :] if both.shape[-1] > self.memory else None
        return self.row_maps(x, both[:, : self.memory], context, i)[0]
