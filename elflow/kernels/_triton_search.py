"""Searches in Triton: the place of the maximum slope, and the inverse.

The maximum of |g'| over all breakpoints takes O(H^2) per network, in plain arithmetic and with a bound on its error. It
only ranks the breakpoints: those that could be the maximum within this error are evaluated again, in two words.
"""

from __future__ import annotations

import triton
import triton.language as tl

from elflow.kernels._triton_network import (
    bound_arguments,
    evaluate,
    load_ramp,
    load_units,
    respond_at_place,
)
from elflow.kernels._triton_words import divide, is_finite, multiply_words, sum_words, two_sum

__all__ = ["find_steepest", "invert", "measure_slope", "split_place"]


@triton.jit
def rank_breakpoints(
    w1,
    b1,
    w2,
    rows,
    w1_row,
    b1_row,
    w2_row,
    units,
    shrinkage,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BUMPS: tl.constexpr,
    POINTS: tl.constexpr,
    PIECES: tl.constexpr,
    ENDS: tl.constexpr,
    KINKS: tl.constexpr,
):
    """|g'| at all breakpoints, up to rounding, a row per network; -1 where there is none. Whether any is too far.

    Column BLOCK * k + j is breakpoint k of unit j. The breakpoints stay in registers; the units, one at a time, come
    from memory, where they are in the cache.
    """
    column = tl.arange(0, KINKS * BLOCK)[None, :]
    kink = column // BLOCK
    w, b, _ = load_units(w1, b1, w2, rows, w1_row, b1_row, w2_row, column % BLOCK, units, BUMPS)
    FARTHEST: tl.constexpr = 1e30 if w.dtype == tl.float32 else 1e290
    point = tl.zeros_like(w) + POINTS[0]
    for k in tl.static_range(1, len(POINTS)):
        point = tl.where(kink == k, POINTS[k], point)
    exists = (w != 0) & (kink < len(POINTS))
    gap = point - b
    far = exists & (tl.abs(gap) > FARTHEST * tl.abs(w))
    x = divide(gap, tl.where(exists, w, 1.0))
    x = tl.minimum(tl.maximum(x, -FARTHEST), FARTHEST)
    slope = tl.zeros_like(x)
    first = tl.zeros([1, 1], tl.int32)
    for i in range(units):
        wi, bi, a = load_ramp(w1, b1, w2, rows, w1_row, b1_row, w2_row, i + first, units, shrinkage, BUMPS)
        if ENDS[2] != 0:
            slope += a * ENDS[2]
        for k in tl.static_range(len(POINTS) - 1):
            # A clamp to [0, 1] is part of the multiplication on NVIDIA's GPUs.
            START: tl.constexpr = PIECES[9 * k] + PIECES[9 * k + 1]
            WIDTH: tl.constexpr = PIECES[9 * k + 2] - PIECES[9 * k + 1]
            ramp = tl.fma(wi * (1 / WIDTH) + tl.zeros_like(x), x, (bi - START) * (1 / WIDTH) + tl.zeros_like(x))
            ramp = tl.minimum(tl.maximum(ramp, 0.0), 1.0)
            slope = tl.fma(a * (2 * PIECES[9 * k + 5] * WIDTH) + tl.zeros_like(x), ramp, slope)
    return tl.where(exists, tl.abs(slope), -1.0), tl.max(far.to(tl.int32), axis=1)


@triton.jit
def measure_slope(
    w,
    b,
    v,
    owner_w,
    owner_b,
    unit,
    owner,
    point,
    side,
    BLOCK: tl.constexpr,
    POINTS: tl.constexpr,
    PIECES: tl.constexpr,
    ENDS: tl.constexpr,
):
    """g' at a breakpoint or an end of the line, one per row, in two words: see `respond_at_place`."""
    slope, slope_low, _ = respond_at_place(w, b, owner_w, owner_b, unit, owner, point, side, POINTS, PIECES, ENDS)
    a, a_low = multiply_words(v, 0.0, w, 0.0)
    slope, slope_low = multiply_words(slope, slope_low, a, a_low)
    return sum_words(slope, slope_low, BLOCK)


@triton.jit
def split_place(place, units, like, POINTS: tl.constexpr):
    """The unit, the breakpoint of the activation, and the side (-1, 1, or 0 for a breakpoint) of a numbered place.

    Place j + units * k is breakpoint k of unit j; the left and the right end of the line follow.
    """
    last = units * len(POINTS)
    kink = place // units
    point = tl.zeros_like(like) + POINTS[0]
    for k in tl.static_range(1, len(POINTS)):
        point = tl.where(kink == k, POINTS[k], point)
    side = tl.where(place < last, 0.0, tl.where(place == last, -1.0, 1.0)).to(like.dtype)
    return tl.where(place < last, place - units * kink, 0), point, side


@triton.jit
def find_steepest(
    w1,
    b1,
    w2,
    rows,
    w1_row,
    b1_row,
    w2_row,
    units,
    w,
    b,
    v,
    unit,
    shrinkage,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BUMPS: tl.constexpr,
    POINTS: tl.constexpr,
    PIECES: tl.constexpr,
    ENDS: tl.constexpr,
    KINKS: tl.constexpr,
):
    """The maximum of |g'| in two words, one per row, and the number of its place."""
    EPSILON: tl.constexpr = 2.0**-24 if w.dtype == tl.float32 else 2.0**-53
    SLACK: tl.constexpr = 1 + (4e-6 if w.dtype == tl.float32 else 1e-14)
    LEAST: tl.constexpr = 1e-37 if w.dtype == tl.float32 else 1e-307
    rough, far = rank_breakpoints(
        w1,
        b1,
        w2,
        rows,
        w1_row,
        b1_row,
        w2_row,
        units,
        shrinkage[:, None],
        ROWS,
        BLOCK,
        BUMPS,
        POINTS,
        PIECES,
        ENDS,
        KINKS,
    )
    # On a ramp |w1 x| <= |b1| + |point|, so that rounding moves an argument by a few units in the last place of b1. No
    # error exceeds the height of all ramps. Each step of the sum over the units rounds once.
    size = tl.abs(w * v)
    arguments = bound_arguments(w1, rows, w1_row, unit, units, w, b, BUMPS)
    moved = tl.minimum(16 * EPSILON * ENDS[7] * (arguments + ENDS[6]), 2.0)
    error = tl.sum(size * (moved + (2.0 * units + 8) * EPSILON) + tl.where(size > 0, LEAST, 0.0), axis=1)
    sound = is_finite(tl.sum(w * 0 + b * 0 + v * 0, axis=1))
    error = tl.where(far > 0, float("inf"), error)
    rough = tl.where(sound[:, None], rough, -1.0)

    nobody = tl.zeros([ROWS], tl.int32) - 1
    zero = tl.zeros_like(error)
    best, best_low = measure_slope(w, b, v, zero, zero, unit, nobody, zero, zero - 1.0, BLOCK, POINTS, PIECES, ENDS)
    right, right_low = measure_slope(w, b, v, zero, zero, unit, nobody, zero, zero + 1.0, BLOCK, POINTS, PIECES, ENDS)
    best, best_low = tl.abs(best), tl.where(best < 0, -best_low, best_low)
    right, right_low = tl.abs(right), tl.where(right < 0, -right_low, right_low)
    place = tl.where(right > best, units * len(POINTS) + 1, units * len(POINTS))
    best_low = tl.where(right > best, right_low, best_low)
    best = tl.maximum(best, right)

    column = tl.arange(0, KINKS * BLOCK)[None, :]
    top = tl.max(rough, axis=1)
    contends = (top >= 0) & (top + error > best * SLACK)
    while tl.max(contends.to(tl.int32), axis=0) > 0:
        found = tl.argmax(rough, axis=1)
        number = units * (found // BLOCK) + found % BLOCK
        owner, point, side = split_place(number, units, zero, POINTS)
        owner_w, owner_b, _ = load_units(w1, b1, w2, rows, w1_row, b1_row, w2_row, owner[:, None], units, BUMPS)
        owner_w = tl.sum(owner_w, axis=1)
        owner_b = tl.sum(owner_b, axis=1)
        slope, slope_low = measure_slope(
            w, b, v, owner_w, owner_b, unit, owner, point, side, BLOCK, POINTS, PIECES, ENDS
        )
        slope, slope_low = tl.abs(slope), tl.where(slope < 0, -slope_low, slope_low)
        better = contends & ((slope > best) | ((slope == best) & (slope_low > best_low)))
        place = tl.where(better, number, place)
        best = tl.where(better, slope, best)
        best_low = tl.where(better, slope_low, best_low)
        rough = tl.where(column == found[:, None], -1.0, rough)
        top = tl.max(rough, axis=1)
        contends = contends & (top >= 0) & (top + error > best * SLACK)
    best = tl.where(sound, best, float("nan"))
    return best, best_low, place


@triton.jit
def order(x):
    """An integer for each float, in the order of the floats."""
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        return tl.where(bits < 0, -9223372036854775808 - bits, bits)
    else:
        bits = x.to(tl.int32, bitcast=True)
        return tl.where(bits < 0, -2147483648 - bits, bits)


@triton.jit
def find_middle(a, b):
    """The midpoint in the order of all floats, so that as many bisections as a float has bits reduce any bracket."""
    first = order(a)
    second = order(b)
    middle = (first & second) + ((first ^ second) >> 1)
    if a.dtype == tl.float64:
        return tl.where(middle < 0, -9223372036854775808 - middle, middle).to(tl.float64, bitcast=True)
    else:
        return tl.where(middle < 0, -2147483648 - middle, middle).to(tl.float32, bitcast=True)


@triton.jit
def invert(
    w,
    b,
    v,
    s,
    s_low,
    y,
    y_low,
    BOUND: tl.constexpr,
    BLOCK: tl.constexpr,
    POINTS: tl.constexpr,
    PIECES: tl.constexpr,
    ENDS: tl.constexpr,
):
    """The x with x + s g(x) = y, one per row.

    On each piece the solution is the root of a quadratic, so that only the piece has to be found: solve on the current
    piece, and stop if the root lies on the same piece. The bound gives a bracket from the first evaluation on, and
    occasional bisection limits the number of steps.
    """
    LARGEST: tl.constexpr = 3.4028234663852886e38 if y.dtype == tl.float32 else 1.7976931348623157e308
    TOLERANCE: tl.constexpr = 2.0**-22 if y.dtype == tl.float32 else 2.0**-51
    x = y
    low = tl.zeros_like(y) - LARGEST
    high = tl.zeros_like(y) + LARGEST
    piece = tl.zeros_like(y).to(tl.int32)
    solved = piece > 0
    searches = is_finite(y)
    step = 0
    while (tl.max(searches.to(tl.int32), axis=0) > 0) & (step < 160):
        g, g_low, steep, steep_low, curvature, now, _ = evaluate(w, b, v, s, s_low, x, BLOCK, POINTS, PIECES, ENDS)
        residual, rest = two_sum(y, -x)
        residual, lower = two_sum(residual, -g)
        residual = residual + (rest + lower + (y_low - g_low))
        slope, slope_low = two_sum(tl.zeros_like(x) + 1.0, steep)
        slope = slope + (slope_low + steep_low)
        usable = is_finite(residual)
        discriminant = slope * slope + 2 * curvature * residual
        root = slope + tl.sqrt(tl.maximum(discriminant, 0.0))
        following = x + divide(2 * residual, root)
        reach = x + divide(residual, tl.zeros_like(x) + (1 - BOUND)) * 1.000001
        rises = residual > 0
        low = tl.where(searches & usable, tl.where(rises, x, tl.maximum(reach, low)), low)
        high = tl.where(searches & usable, tl.where(rises, tl.minimum(reach, high), x), high)
        near = tl.abs(residual) <= TOLERANCE * (1 + tl.abs(x) + tl.abs(y))
        done = (solved & (now == piece)) | near
        solves = (discriminant > 0) & (following > low) & (following < high) & ((step < 8) | (step % 2 == 1))
        final = tl.minimum(tl.maximum(following, low), high)
        moved = tl.where(done, final, tl.where(solves, following, find_middle(low, high)))
        # An x at which the network overflows is left as it is.
        x = tl.where(searches, tl.where(usable, moved, y), x)
        searches = searches & usable & (done == 0)
        solved = solves
        piece = now
        step += 1
    return x
