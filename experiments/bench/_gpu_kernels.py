"""Triton kernels to compare with: the paper's direct evaluation, and a sweep over sorted breakpoints."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["PAPER_TILE", "find_papers_constants", "paper_kernel", "sweep_kernel"]

PAPER_TILE = 32
"""Points per program, as in the paper's launch for networks with more points than features."""


@triton.jit
def paper_kernel(w1, w2, points, tops, feet, slopes, count, units, TILE: tl.constexpr):
    """g' at `count` points of each network, by the formula of the paper's appendix I, one point per thread.

    `tops` and `feet` are the breakpoints -b1/w1 and -(b1 + 1)/w1, which the paper computes before.
    """
    network = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * TILE + tl.arange(0, TILE)
    x = tl.load(points + network * count + place, place < count, 0.0)
    slope = tl.zeros_like(x)
    for h in range(units):
        top = tl.load(tops + network * units + h)
        foot = tl.load(feet + network * units + h)
        w = tl.load(w1 + network * units + h)
        a = w * tl.load(w2 + network * units + h)
        right_of_top = (x > top).to(tl.float32)
        right_of_foot = (x > foot).to(tl.float32)
        rising = (w > 0).to(tl.float32)
        width = tl.where(foot == top, 1.0, foot - top)
        on_ramp = right_of_top * (1 - right_of_foot) - (1 - right_of_top) * right_of_foot
        saturated = right_of_top * right_of_foot * rising
        saturated += (1 - right_of_top) * (1 - right_of_foot) * (1 - rising)
        slope += a * (saturated + on_ramp * (2 * rising - 1) * (x - foot) / width)
    tl.store(slopes + network * count + place, slope, place < count)


def find_papers_constants(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """Lipschitz constants `(N,)` as the paper has them: breakpoints in torch, slopes in its kernel, maximum in torch.

    The temporaries have 9 N H elements. The last point lies to the right of all breakpoints.
    """
    tops, feet = -b1 / w1, -(b1 + 1) / w1
    points = torch.cat([tops, feet], -1)
    points = torch.cat([points, points.amax(-1, keepdim=True) + 1], -1)
    slopes = torch.empty_like(points)
    networks, count = points.shape
    grid = networks, triton.cdiv(count, PAPER_TILE)
    paper_kernel[grid](w1, w2, points, tops, feet, slopes, count, w1.shape[1], PAPER_TILE, num_warps=1)
    return slopes.abs().amax(-1)


@triton.jit
def sweep_kernel(w1, b1, w2, constants, units, BLOCK: tl.constexpr):
    """Lipschitz constants by a sort and two running sums, without any care for rounding: a lower bound of its cost."""
    network = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, 2 * BLOCK)
    unit = column % BLOCK
    is_unit = unit < units
    w = tl.load(w1 + network * units + unit, is_unit, 1.0)
    b = tl.load(b1 + network * units + unit, is_unit, 0.0)
    a = w * tl.load(w2 + network * units + unit, is_unit, 0.0)
    is_foot = column >= BLOCK
    x = -(b + is_foot.to(tl.float32)) / w
    jump = tl.where(is_foot, a * tl.abs(w), -a * tl.abs(w))
    # tl.sort returns no indices: the number of the breakpoint is in the low half of an integer in the order of floats.
    bits = x.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, -2147483648 - bits, bits).to(tl.int64)
    keys = tl.sort((ordered << 32) | column.to(tl.int64))
    index = (keys & 0xFFFFFFFF).to(tl.int32)
    x = tl.gather(x, index, 0)
    before = tl.gather(x, tl.maximum(column - 1, 0), 0)
    curvature = tl.cumsum(tl.gather(jump, index, 0), 0)
    rises = tl.gather(curvature, tl.maximum(column - 1, 0), 0) * (x - before)
    left = tl.sum(tl.where((w < 0) & is_foot, a, 0.0), 0)
    slope = left + tl.cumsum(tl.where(column > 0, rises, 0.0), 0)
    tl.store(constants + network, tl.maximum(tl.max(tl.abs(slope), 0), tl.abs(left)))
