"""The Triton kernels: Lipschitz constants, the transformation and its inverse, and the gradients of all of them.

A program computes ROWS networks at a time, in tiles of ROWS x BLOCK registers, where BLOCK is the number of units
rounded up to a power of two. Parameters are read from memory again instead of being stored in temporary tensors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from elflow.kernels._triton_network import (
    bound_logarithm,
    evaluate,
    load_units,
    log_of_one_plus,
    place_units,
    respond,
    respond_at_place,
    shrink,
)
from elflow.kernels._triton_search import find_steepest, invert, measure_slope, split_place
from elflow.kernels._triton_words import divide, exponential, is_finite, sum_words, two_sum

__all__ = ["backward_kernel", "transform_kernel"]


@triton.jit
def number_units(units, BLOCK: tl.constexpr, BUMPS: tl.constexpr):
    """The unit of each column. The two units of a bump are neighbours, so that their gradients are easy to add."""
    column = tl.arange(0, BLOCK)[None, :]
    if BUMPS:
        pairs = (units + 1) // 2
        # A column without a unit must not repeat the unit of another column.
        unit = column // 2 + (column % 2) * pairs
        return tl.where(column // 2 < pairs, unit, units)
    else:
        return column


@triton.jit
def find_normalizer(lipschitz, shrinkage, BOUND: tl.constexpr):
    """s = c / max(c, Lip(g)) of the shrunken network, in two words. This takes a few float64 operations per network."""
    bound = tl.full(lipschitz.shape, BOUND, tl.float64)
    wide = shrinkage.to(tl.float64)
    s = bound / tl.maximum(lipschitz, bound) / (wide * wide)
    high = s.to(shrinkage.dtype)
    return high, (s - high.to(tl.float64)).to(shrinkage.dtype)


@triton.jit
def transform_kernel(
    given,
    w1,
    b1,
    w2,
    b2,
    result,
    log_slope,
    constants,
    places,
    w1_row,
    b1_row,
    w2_row,
    b2_row,
    count,
    points,
    units,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    KINKS: tl.constexpr,
    SEARCH: tl.constexpr,
    TRANSFORM: tl.constexpr,
    INVERSE: tl.constexpr,
    BUMPS: tl.constexpr,
    BOUND: tl.constexpr,
    POINTS: tl.constexpr,
    PIECES: tl.constexpr,
    ENDS: tl.constexpr,
):
    """Lipschitz constants (SEARCH), then y and log-slopes or, with INVERSE, x (TRANSFORM), of `count` points.

    Without SEARCH the constants are given, and `points` points in a row share a network.
    """
    number = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    stored = number < count
    number = tl.minimum(number, count - 1)
    row = number // points
    rows = row[:, None]
    unit = number_units(units, BLOCK, BUMPS)
    w, b, v = load_units(w1, b1, w2, rows, w1_row, b1_row, w2_row, unit, units, BUMPS)
    shrinkage = shrink(w, v)
    v = v * shrinkage[:, None] * shrinkage[:, None]
    if SEARCH:
        best, best_low, place = find_steepest(
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
            ROWS,
            BLOCK,
            BUMPS,
            POINTS,
            PIECES,
            ENDS,
            KINKS,
        )
        wide = shrinkage.to(tl.float64)
        lipschitz = (best.to(tl.float64) + best_low.to(tl.float64)) / (wide * wide)
        if TRANSFORM:
            shift = tl.load(b2 + row * b2_row)
            lipschitz = tl.where(is_finite(shift), lipschitz, float("nan"))
        tl.store(constants + row, lipschitz, stored)
        tl.store(places + row, place, stored)
    else:
        lipschitz = tl.load(constants + row)
    if TRANSFORM:
        s, s_low = find_normalizer(lipschitz, shrinkage, BOUND)
        x = tl.load(given + number)
        shift = tl.load(b2 + row * b2_row)
        if INVERSE:
            y, y_low = two_sum(x, -shift)
            solution = invert(w, b, v, s, s_low, y, y_low, BOUND, BLOCK, POINTS, PIECES, ENDS)
            tl.store(result + number, tl.where(is_finite(x), solution, x), stored)
        else:
            g, g_low, steep, steep_low, _, _, plain = evaluate(w, b, v, s, s_low, x, BLOCK, POINTS, PIECES, ENDS)
            total, low = two_sum(x, g)
            total, lower = two_sum(total, shift)
            y = total + (low + lower + g_low)
            tl.store(result + number, tl.where(is_finite(y), y, x + plain + shift), stored)
            tl.store(log_slope + number, log_of_one_plus(steep, steep_low), stored)


@triton.jit
def differentiate_steepest(
    w,
    b,
    v,
    owner_w,
    owner_b,
    unit,
    owner,
    point,
    side,
    steepens,
    BLOCK: tl.constexpr,
    POINTS: tl.constexpr,
    PIECES: tl.constexpr,
    ENDS: tl.constexpr,
):
    """The gradient of max |g'| times `steepens`: of |g'| at its place, directly and through the place."""
    LARGEST: tl.constexpr = 3e38 if w.dtype == tl.float32 else 1e308
    slope, _, bend = respond_at_place(w, b, owner_w, owner_b, unit, owner, point, side, POINTS, PIECES, ENDS)
    steep, _ = measure_slope(w, b, v, owner_w, owner_b, unit, owner, point, side, BLOCK, POINTS, PIECES, ENDS)
    into_slope = tl.where(steep < 0, -steepens, steepens)[:, None]
    divisor = tl.where(side == 0, owner_w, 1.0)
    x = divide(point - owner_b, divisor)
    x = tl.where(side == 0, tl.minimum(tl.maximum(x, -LARGEST), LARGEST), 0.0)[:, None]
    into_u = (into_slope * v) * w * bend
    # At its own breakpoint the owner's slope is constant, but its parameters move the place, which changes all others.
    moved = tl.where(bend != 0, divide(w, divisor[:, None] + tl.zeros_like(w)), 0.0)
    into_place, _ = sum_words(into_u * moved, tl.zeros_like(w), BLOCK)
    owned = tl.where((unit == owner[:, None]) & (side == 0)[:, None], -into_place[:, None], 0.0)
    into_b = into_u + owned
    into_w = into_u * x + owned * x + (into_slope * v) * slope
    return into_w, into_b, into_slope * w * slope


@triton.jit
def store_bumps(phi, grad, unit, units, into_w, into_b, into_v, mask, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the gradients of the bumps, given those of their units: see `load_units`."""
    pairs = (units + 1) // 2
    falls = unit >= pairs
    pair = tl.where(falls, unit - pairs, unit)
    log_k = tl.load(phi + unit, mask, 0.0)
    log_width = tl.load(phi + units + pairs + pair, mask, 0.0)
    k = exponential(bound_logarithm(log_k, 12.0))
    half = 0.5 * exponential(bound_logarithm(log_width, 12.0))
    half = tl.where(falls, half, -half)
    edge = tl.load(phi + units + pair, mask, 0.0) + half
    height = tl.load(phi + units + 2 * pairs + pair, mask, 0.0)
    height = tl.where(falls, -height, height)
    into_k = into_w - into_b * edge - into_v * divide(divide(height, k), k)
    tl.store(grad + unit, tl.where(tl.abs(log_k) <= 12.0, into_k * k, 0.0), mask)
    into_edge = tl.where(mask, -into_b * k, 0.0)
    into_height = tl.where(mask, divide(tl.where(falls, -into_v, into_v), k), 0.0)
    into_width = tl.where(tl.abs(log_width) <= 12.0, into_edge * half, 0.0)
    # The first unit of each pair writes the gradients of what both units share.
    rises = mask & (falls == 0)
    tl.store(grad + units + pair, add_neighbours(into_edge, ROWS, BLOCK), rises)
    tl.store(grad + units + pairs + pair, add_neighbours(into_width, ROWS, BLOCK), rises)
    tl.store(grad + units + 2 * pairs + pair, add_neighbours(into_height, ROWS, BLOCK), rises)


@triton.jit
def add_neighbours(a, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of columns 2 i and 2 i + 1, in both of them."""
    pairs = tl.sum(tl.reshape(a, [ROWS, BLOCK // 2, 2]), axis=2)
    return tl.reshape(tl.broadcast_to(pairs[:, :, None], [ROWS, BLOCK // 2, 2]), [ROWS, BLOCK])


@triton.jit
def accumulate(total, low, term):
    """Add a term to a sum in two words, which many points need not round."""
    total, rest = two_sum(total, term)
    return total, low + rest


@triton.jit
def backward_kernel(
    grad,
    grad_log_slope,
    x,
    w1,
    b1,
    w2,
    constants,
    places,
    grad_x,
    grad_w1,
    grad_b1,
    grad_w2,
    grad_b2,
    grad_log_s,
    out_w1,
    out_b1,
    out_w2,
    out_b2,
    w1_row,
    b1_row,
    w2_row,
    grad_row,
    count,
    points,
    splits,
    units,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    POINTWISE: tl.constexpr,
    FINISH: tl.constexpr,
    LIPSCHITZ: tl.constexpr,
    INVERSE: tl.constexpr,
    BUMPS: tl.constexpr,
    BOUND: tl.constexpr,
    POINTS: tl.constexpr,
    PIECES: tl.constexpr,
    ENDS: tl.constexpr,
):
    """Gradients of the transformation or, with INVERSE, of its inverse, of `count` networks with `points` points each.

    POINTWISE is the part through the points: program (p, q) adds the points of split q. FINISH is the part through the
    Lipschitz constant, which writes the gradients of the parameters to the `out` tensors. Without FINISH, the sums of
    each split are written to the `grad` tensors; without POINTWISE they are read from there. With LIPSCHITZ there are
    no points, and `grad` is the gradient of the Lipschitz constants.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    stored = row < count
    row = tl.minimum(row, count - 1)
    rows = row[:, None]
    unit = number_units(units, BLOCK, BUMPS)
    mask = stored[:, None] & (unit < units)
    w, b, v = load_units(w1, b1, w2, rows, w1_row, b1_row, w2_row, unit, units, BUMPS)
    shrinkage = shrink(w, v)
    v = v * shrinkage[:, None] * shrinkage[:, None]
    lipschitz = tl.load(constants + row)
    s, s_low = find_normalizer(lipschitz, shrinkage, BOUND)

    into_w, into_w_low = tl.zeros_like(w), tl.zeros_like(w)
    into_b, into_b_low = tl.zeros_like(w), tl.zeros_like(w)
    into_v, into_v_low = tl.zeros_like(w), tl.zeros_like(w)
    into_shift, into_shift_low = tl.zeros_like(s), tl.zeros_like(s)
    into_log_s, into_log_s_low = tl.zeros_like(s), tl.zeros_like(s)
    if POINTWISE:
        share = (points + splits - 1) // splits
        start = tl.program_id(1) * share
        for m in range(start, tl.minimum(start + share, points)):
            at = tl.load(x + row * points + m)
            given = tl.load(grad + row * points + m)
            g, _, steep, steep_low, curvature, _, _ = evaluate(w, b, v, s, s_low, at, BLOCK, POINTS, PIECES, ENDS)
            derivative, low = two_sum(tl.zeros_like(at) + 1.0, steep)
            derivative = derivative + (low + steep_low)
            if INVERSE:
                # Implicit differentiation of f(x) = y: dx = (dy - df) / f'(x).
                given = divide(given, derivative)
                tl.store(grad_x + row * points + m, given, stored)
                into_y = -given
                into_log = tl.zeros_like(given)
            else:
                into_y = given
                into_log = divide(tl.load(grad_log_slope + row * points + m), derivative)
                tl.store(grad_x + row * points + m, into_y * derivative + into_log * curvature, stored)
            u, u_low = place_units(w, b, at[:, None])
            value, _, slope, _, bend = respond(u, u_low, POINTS, PIECES, ENDS)
            FIRST: tl.constexpr = POINTS[0]
            LAST: tl.constexpr = POINTS[len(POINTS) - 1]
            if ENDS[2] != 0:
                value += ENDS[2] * tl.minimum(u - FIRST, 0.0)
            if ENDS[4] != 0:
                value += ENDS[4] * tl.maximum(u - LAST, 0.0)
            into_g = (into_y * s)[:, None]
            into_slope = (into_log * s)[:, None]
            through_v = into_g * v
            through_slope = into_slope * v
            into_u = through_v * slope + through_slope * w * bend
            into_b, into_b_low = accumulate(into_b, into_b_low, into_u)
            into_w, into_w_low = accumulate(into_w, into_w_low, into_u * at[:, None] + through_slope * slope)
            into_v, into_v_low = accumulate(into_v, into_v_low, into_g * value + into_slope * w * slope)
            into_shift, into_shift_low = accumulate(into_shift, into_shift_low, into_y)
            into_log_s, into_log_s_low = accumulate(into_log_s, into_log_s_low, into_y * g + into_log * steep)
    else:
        for q in range(splits):
            part = (q * count + row)[:, None] * units + unit
            into_w, into_w_low = accumulate(into_w, into_w_low, tl.load(grad_w1 + part, mask, 0.0))
            into_b, into_b_low = accumulate(into_b, into_b_low, tl.load(grad_b1 + part, mask, 0.0))
            into_v, into_v_low = accumulate(into_v, into_v_low, tl.load(grad_w2 + part, mask, 0.0))
            into_shift, into_shift_low = accumulate(into_shift, into_shift_low, tl.load(grad_b2 + q * count + row))
            into_log_s, into_log_s_low = accumulate(into_log_s, into_log_s_low, tl.load(grad_log_s + q * count + row))
    into_w += into_w_low
    into_b += into_b_low
    into_v += into_v_low
    into_shift += into_shift_low
    into_log_s += into_log_s_low

    if FINISH:
        if LIPSCHITZ:
            steepens = divide(tl.load(grad + row).to(s.dtype), shrinkage * shrinkage)
        else:  # through s = c / Lip(g), if the network is steeper than the bound
            wide = shrinkage.to(tl.float64)
            steepens = tl.where(lipschitz > BOUND, divide(-into_log_s, (lipschitz * wide * wide).to(s.dtype)), 0.0)
        place = tl.load(places + row)
        owner, point, side = split_place(place, units, s, POINTS)
        owner_w, owner_b, _ = load_units(w1, b1, w2, rows, w1_row, b1_row, w2_row, owner[:, None], units, BUMPS)
        owner_w = tl.sum(owner_w, axis=1)
        owner_b = tl.sum(owner_b, axis=1)
        through_w, through_b, through_v = differentiate_steepest(
            w, b, v, owner_w, owner_b, unit, owner, point, side, steepens, BLOCK, POINTS, PIECES, ENDS
        )
        into_w += through_w
        into_b += through_b
        into_v = (into_v + through_v) * shrinkage[:, None] * shrinkage[:, None]
        if BUMPS:
            store_bumps(
                w1 + rows * w1_row, out_w1 + rows * grad_row, unit, units, into_w, into_b, into_v, mask, ROWS, BLOCK
            )
            tl.store(out_w1 + row * grad_row + grad_row - 1, into_shift, stored)
        else:
            tl.store(out_w1 + rows * grad_row + unit, into_w, mask)
            tl.store(out_b1 + rows * grad_row + unit, into_b, mask)
            tl.store(out_w2 + rows * grad_row + unit, into_v, mask)
            if not LIPSCHITZ:
                tl.store(out_b2 + row, into_shift, stored)
    else:
        part = (tl.program_id(1) * count + row)[:, None] * units + unit
        tl.store(grad_w1 + part, into_w, mask)
        tl.store(grad_b1 + part, into_b, mask)
        tl.store(grad_w2 + part, into_v, mask)
        tl.store(grad_b2 + tl.program_id(1) * count + row, into_shift, stored)
        tl.store(grad_log_s + tl.program_id(1) * count + row, into_log_s, stored)
