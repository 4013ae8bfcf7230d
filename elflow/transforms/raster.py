"""Autoregressive transforms of images, stored as vectors of pixels row by row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

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

__all__ = ["RasterTransform", "RowMaps"]


Compute = Callable[[Tensor, tuple[Tensor, ...], Tensor | None, int], tuple[Maps, Tensor]]
"""`RowMaps.compute`."""


class RowMaps(Protocol):
    """Increasing maps of images, computed row by row. States are tensors `(N, width, size)`."""

    def make_empty(self, n: int) -> tuple[Tensor, ...]:
        """State of the rows above the first row of n images."""

    def append(self, above: tuple[Tensor, ...], state: Tensor) -> tuple[Tensor, ...]:
        """State of the rows above the next row, from that above this row and the state of this row."""

    def prepare(self, i: int, above: tuple[Tensor, ...], context: Tensor | None) -> tuple[Tensor, ...]:
        """Results that all evaluations of row i share."""

    def compute(self, x: Tensor, ready: tuple[Tensor, ...], state: Tensor | None, start: int) -> tuple[Maps, Tensor]:
        """The maps of a row from pixel `start` on and the state of these pixels, from their x, the result of `prepare`
        and a state of the whole row that is right before `start`, or None if `start` is 0."""


class RasterTransform(AutoregressiveTransform):
    """Autoregressive transform of images whose inverse sweeps over one row of pixels at a time.

    The maps of a row depend on the rows above it through their states, such as the inputs that convolutions keep of the
    last row. So a sweep over a row costs only a fraction of the image, and no work is spent on rows whose turn has not
    come. All rows are swept at once on devices other than CPUs, which are faster on large batches of work, and for
    methods other than `"exact"`.

    Arguments:
        maps: Function that computes the increasing maps from x `(N, height * row)` and the context `(N, C)`.
        context: The context `(..., C)`, or None.
        height: The number of rows of pixels.
        row: The number of coordinates in a row.
        pixel: The number of coordinates of a pixel.
        row_maps: Function that returns the same maps row by row. It may copy the parameters of the maps.
        rows: Maximum number of images to compute at once if no gradients are needed; None for no limit.

    Example:
        >>> from torch.distributions import AffineTransform
        >>> def maps(x, context):  # each of two rows is shifted by the row above it
        ...     return AffineTransform(torch.cat([torch.zeros_like(x[:, :3]), x[:, :3]], dim=-1), 2.0)
        >>> class Rows:
        ...     def make_empty(self, n):
        ...         return (torch.zeros(n, 3, 1),)
        ...
        ...     def append(self, above, state):
        ...         return (state,)
        ...
        ...     def prepare(self, i, above, context):
        ...         return above
        ...
        ...     def compute(self, x, ready, state, start):
        ...         return AffineTransform(ready[0][:, start:, 0], 2.0), x[..., None]
        >>> t = RasterTransform(maps, None, height=2, row=3, pixel=1, row_maps=Rows)
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
        pixel: int,
        row_maps: Callable[[], RowMaps],
        rows: int | None = None,
    ) -> None:
        super().__init__(maps, context, sweeps=height * row, rows=rows)
        # A sweep holds one row of pixels of each image, so that `height` times as many images fit into the memory.
        self.rows_per_sweep = None if rows is None else rows * height
        self.height = height
        self.row = row
        self.pixel = pixel
        self.row_maps = row_maps

    def sweep_rows(
        self, y: Tensor, context: Tensor | None, step: Step, limit: int, tol: float, on_settled: OnSettled
    ) -> tuple[Tensor, InverseInfo]:
        """Invert images `(n, height * row)`, one row of pixels after the other. Calls are counted in whole images."""
        if step is not METHODS["exact"][0] or y.device.type != "cpu":
            return super().sweep_rows(y, context, step, limit, tol, on_settled)
        row_maps, solved, infos = self.row_maps(), [], []
        above = row_maps.make_empty(len(y))
        for i, target in enumerate(y.split(self.row, dim=-1)):
            compute = row_maps.compute
            x, state, info = self._solve_row(compute, target, row_maps.prepare(i, above, context), step, tol)
            above = row_maps.append(above, state)
            solved.append(x)
            infos.append(info)
        if on_settled is not None:
            on_settled(len(y))
        residual = max_or_nan([info.residual for info in infos])
        calls = math.ceil(sum([info.calls for info in infos]) / self.height)
        sweeps = max([info.sweeps for info in infos])
        return torch.cat(solved, dim=-1), InverseInfo((sweeps,), (calls,), residual, residual <= tol)

    def _solve_row(
        self, compute: Compute, y: Tensor, ready: tuple[Tensor, ...], step: Step, tol: float
    ) -> tuple[Tensor, Tensor, _RowInfo]:
        """Invert a row of images: x `(n, row)`, and its state.

        Values settle from left to right. A value that has settled, as all before it have, keeps its x. A sweep starts
        at the first pixel that has not settled in some image, so that the work shrinks from sweep to sweep.
        """
        rows = torch.arange(len(y))  # the images whose row has not settled
        result, residuals, states = y.clone(), torch.full_like(y, torch.inf), None
        x, residual, state = y, residuals, None
        start, sweeps, calls = 0, 0, 0.0
        while True:
            tail, target = x[:, start:], y[:, start:]
            maps, tail_state = compute(tail, ready, state, start // self.pixel)
            calls += 1 - start / self.row
            new, tail_residual = step(maps, tail, target, 0)
            if tail_residual is None:
                tail_residual = relative_size(maps(tail) - target, tail, target)
            residual = torch.cat([residual[:, :start], tail_residual], dim=-1) if start else tail_residual
            state = tail_state if state is None else torch.cat([state[:, : start // self.pixel], tail_state], dim=1)
            # The state was computed from x: the row below needs no further evaluation of this one.
            states = torch.empty_like(state) if states is None else states
            result[rows], residuals[rows], states[rows] = x, residual, state
            unsettled = ~(residual <= tol)  # not `residual > tol`, which is False for NaN
            active = unsettled.any(-1).nonzero().squeeze(-1)
            if not len(active) or sweeps == self.row:
                break
            is_final = unsettled.cumsum(-1)[:, start:] == 0
            x, sweeps = torch.cat([x[:, :start], torch.where(is_final, tail, new)], dim=-1), sweeps + 1
            if len(active) < len(rows):
                rows, x, y, residual, state, unsettled = (
                    part[active] for part in (rows, x, y, residual, state, unsettled)
                )
                ready = tuple([part[active] for part in ready])
            start = int(unsettled.int().argmax(-1).min()) // self.pixel * self.pixel
        worst = max_or_nan([0.0, *residuals.amax(-1).tolist()])
        return result, states, _RowInfo(sweeps, calls, worst)


class _RowInfo(NamedTuple):
    """Diagnostics of the inverse of one row."""

    sweeps: int
    calls: float
    """The number of evaluations of the row; an evaluation of a part of the row is a part."""
    residual: float
