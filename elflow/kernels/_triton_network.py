"""The one-dimensional network as functions of Triton tiles: one network per row, one unit per column.

All functions take the parameters of the units in registers and the activation as compile-time constants:

=========  ===========================================================================================================
POINTS     its breakpoints
PIECES     nine numbers for each piece between two breakpoints: the nearer end `near` to the point where the function is
           nearest to zero, the ends relative to it, then in two words each: the slope at `near`, half the second
           derivative, and the slope that the piece adds to the left slope at `near`
ENDS       the value at that point, the left slope and the right slope, in two words each; then a bound of
           |breakpoints|, and one of |second derivative|
=========  ===========================================================================================================

Numbers that may cancel are in two words: see `_triton_words.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from elflow.kernels._triton_words import (
    add_words,
    divide,
    divide_words,
    exponential,
    find_scale,
    is_finite,
    multiply_words,
    normalize,
    sum_words,
    two_product,
    two_sum,
)

__all__ = [
    "bound_arguments",
    "bound_logarithm",
    "evaluate",
    "load_ramp",
    "load_units",
    "log_of_one_plus",
    "place_units",
    "respond",
    "respond_at_place",
    "shrink",
]


# --- parameters -------------------------------------------------------------------------------------------------------


@triton.jit
def bound_logarithm(x, LARGEST: tl.constexpr):
    """Clamp to +-LARGEST. Comparisons preserve NaN, which minimum and maximum would lose."""
    x = tl.where(x > LARGEST, LARGEST, x)
    return tl.where(x < -LARGEST, -LARGEST, x)


@triton.jit
def load_units(w1, b1, w2, rows, w1_row, b1_row, w2_row, unit, units, BUMPS: tl.constexpr):
    """w1, b1 and w2 of units, zero beyond the last one. With BUMPS they are computed from the rows of phi in `w1`."""
    mask = unit < units
    if BUMPS:  # 12 is elflow.kernels.contract.MAX_LOG
        pairs = (units + 1) // 2
        falls = unit >= pairs
        pair = tl.where(falls, unit - pairs, unit)
        row = w1 + rows * w1_row
        k = exponential(bound_logarithm(tl.load(row + unit, mask, 0.0), 12.0))
        width = exponential(bound_logarithm(tl.load(row + units + pairs + pair, mask, 0.0), 12.0))
        half = 0.5 * width
        edge = tl.load(row + units + pair, mask, 0.0) + tl.where(falls, half, -half)
        height = tl.load(row + units + 2 * pairs + pair, mask, 0.0)
        b = -0.5 - k * edge
        v = divide(tl.where(falls, -height, height), k)
        return tl.where(mask, k, 0.0), tl.where(mask, b, 0.0), tl.where(mask, v, 0.0)
    else:
        w = tl.load(w1 + rows * w1_row + unit, mask, 0.0)
        b = tl.load(b1 + rows * b1_row + unit, mask, 0.0)
        return w, b, tl.load(w2 + rows * w2_row + unit, mask, 0.0)


@triton.jit
def load_ramp(w1, b1, w2, rows, w1_row, b1_row, w2_row, unit, units, shrinkage, BUMPS: tl.constexpr):
    """w1, b1 and w1 w2 of one unit per row, for the search only: faster than `load_units`, and rounded differently."""
    if BUMPS:
        pairs = (units + 1) // 2
        falls = unit >= pairs
        pair = tl.where(falls, unit - pairs, unit)
        row = w1 + rows * w1_row
        k = tl.exp(tl.minimum(tl.maximum(tl.load(row + unit), -12.0), 12.0))
        half = 0.5 * tl.exp(tl.minimum(tl.maximum(tl.load(row + units + pairs + pair), -12.0), 12.0))
        edge = tl.load(row + units + pair) + tl.where(falls, half, -half)
        height = tl.load(row + units + 2 * pairs + pair)
        return k, -0.5 - k * edge, tl.where(falls, -height, height)
    else:
        w = tl.load(w1 + rows * w1_row + unit)
        v = tl.load(w2 + rows * w2_row + unit)
        return w, tl.load(b1 + rows * b1_row + unit), w * ((v * shrinkage) * shrinkage)


@triton.jit
def bound_arguments(w1, rows, w1_row, unit, units, w, b, BUMPS: tl.constexpr):
    """A bound of |b1|, and of all numbers that `load_ramp` computes it from."""
    if BUMPS:
        pairs = (units + 1) // 2
        mask = unit < units
        pair = tl.where(unit >= pairs, unit - pairs, unit)
        row = w1 + rows * w1_row
        width = tl.exp(tl.minimum(tl.maximum(tl.load(row + units + pairs + pair, mask, 0.0), -12.0), 12.0))
        return tl.abs(b) + w * (tl.abs(tl.load(row + units + pair, mask, 0.0)) + width)
    else:
        return tl.abs(b)


@triton.jit
def shrink(w, v):
    """A power of two per row: w2 times its square keeps the products w1 w2 of float32 networks below 2^92.

    Products beyond the largest float32 are allowed, because the network is normalised by them.
    """
    if w.dtype == tl.float64:
        return tl.max(w, axis=1) * 0.0 + 1.0
    else:
        exponents = ((w.to(tl.int32, bitcast=True) >> 23) & 255) + ((v.to(tl.int32, bitcast=True) >> 23) & 255)
        excess = tl.maximum(tl.max(exponents, axis=1) - 343, 0) // 2
        return ((127 - excess) << 23).to(tl.float32, bitcast=True)


# --- the activation ---------------------------------------------------------------------------------------------------


@triton.jit
def respond(u, u_low, POINTS: tl.constexpr, PIECES: tl.constexpr, ENDS: tl.constexpr):
    """The activation without its linear ends, and its slope, in two words each; its second derivative."""
    value = tl.zeros_like(u) + ENDS[0]
    value_low = tl.zeros_like(u) + ENDS[1]
    slope = tl.zeros_like(u) + ENDS[2]
    slope_low = tl.zeros_like(u) + ENDS[3]
    bend = tl.zeros_like(u)
    for k in tl.static_range(len(POINTS) - 1):
        NEAR: tl.constexpr = PIECES[9 * k]
        LEFT: tl.constexpr = PIECES[9 * k + 1]
        RIGHT: tl.constexpr = PIECES[9 * k + 2]
        t, t_low = u, u_low
        if NEAR != 0:
            t, t_low = add_words(u, u_low, -NEAR, 0.0)
        below = (t < LEFT) | ((t == LEFT) & (t_low <= 0))
        above = (t > RIGHT) | ((t == RIGHT) & (t_low >= 0))
        t = tl.where(below, LEFT, tl.where(above, RIGHT, t))
        t_low = tl.where(below | above, 0.0, t_low)
        # (slope at near + c2 t) t, and the slope 2 c2 (t - LEFT) that this piece adds
        rise, rise_low = multiply_words(t, t_low, PIECES[9 * k + 5] + tl.zeros_like(t), PIECES[9 * k + 6])
        part, part_low = add_words(rise, rise_low, PIECES[9 * k + 3], PIECES[9 * k + 4])
        part, part_low = multiply_words(part, part_low, t, t_low)
        value, value_low = add_words(value, value_low, part, part_low)
        slope, slope_low = add_words(slope, slope_low, PIECES[9 * k + 7], PIECES[9 * k + 8])
        slope, slope_low = add_words(slope, slope_low, 2 * rise, 2 * rise_low)
        bend = tl.where(below | above, bend, 2 * PIECES[9 * k + 5])
    return value, value_low, slope, slope_low, bend


@triton.jit
def place_units(w, b, x):
    """The arguments w1 x + b1, in two words; infinite if they overflow."""
    x = tl.where((w == 0) & (tl.abs(x) == float("inf")), 0.0, x)  # columns without a unit have w1 = 0
    product, low = two_product(w, x)
    u, u_low = two_sum(product, b)
    u, u_low = normalize(u, u_low + low)
    return tl.where(is_finite(u), u, product + b), tl.where(is_finite(u), u_low, 0.0)


@triton.jit
def evaluate(w, b, v, s, s_low, x, BLOCK: tl.constexpr, POINTS: tl.constexpr, PIECES: tl.constexpr, ENDS: tl.constexpr):
    """s g and s g' in two words at one point per row; s g'', the number of breakpoints to the left, s g in one word."""
    v, v_low = multiply_words(v, 0.0, s[:, None], s_low[:, None])
    a, a_low = multiply_words(v, v_low, w, 0.0)
    x = x[:, None]
    u, u_low = place_units(w, b, x)
    value, value_low, slope, slope_low, bend = respond(u, u_low, POINTS, PIECES, ENDS)
    g, g_low = multiply_words(value, value_low, v, v_low)
    plain = g
    passed = tl.zeros_like(u).to(tl.int32)
    for k in tl.static_range(len(POINTS)):
        passed += (u > POINTS[k]).to(tl.int32)
    for side in tl.static_range(2):
        # The linear ends as slope * (w2 w1 x + w2 (b1 - point)): u itself overflows for steep units far away.
        if ENDS[2 + 2 * side] != 0:
            POINT: tl.constexpr = POINTS[0] if side == 0 else POINTS[len(POINTS) - 1]
            beyond = (u < POINT) if side == 0 else (u > POINT)
            shift, shift_low = two_sum(b, tl.zeros_like(b) - POINT)
            line, line_low = multiply_words(v, v_low, shift, shift_low)
            far, far_low = multiply_words(a, a_low, x, 0.0)
            line, line_low = add_words(line, line_low, far, far_low)
            if ENDS[2 + 2 * side] != 1:
                line, line_low = multiply_words(
                    line, line_low, ENDS[2 + 2 * side] + tl.zeros_like(x), ENDS[3 + 2 * side]
                )
            line = tl.where(is_finite(x), line, v * u)
            plain += tl.where(beyond, line, 0.0)
            g, g_low = add_words(g, g_low, tl.where(beyond, line, 0.0), tl.where(beyond, line_low, 0.0))
    slope, slope_low = multiply_words(slope, slope_low, a, a_low)
    bend = bend * a * w
    total, total_low = sum_words(g, g_low, BLOCK)
    steep, steep_low = sum_words(slope, slope_low, BLOCK)
    curvature, _ = sum_words(bend, tl.zeros_like(bend), BLOCK)
    piece = tl.sum(tl.where(w > 0, passed, -passed), axis=1)
    return total, total_low, steep, steep_low, curvature, piece, tl.sum(plain, axis=1)


@triton.jit
def log_of_one_plus(a, a_low):
    """log(1 + a), accurate for small a and for a near -1."""
    total, low = two_sum(tl.zeros_like(a) + 1.0, a)
    total, low = normalize(total, low + a_low)
    return tl.log(total) + divide(low, total)


# --- slopes at breakpoints --------------------------------------------------------------------------------------------


@triton.jit
def respond_at_place(
    w, b, owner_w, owner_b, unit, owner, point, side, POINTS: tl.constexpr, PIECES: tl.constexpr, ENDS: tl.constexpr
):
    """The slope of each activation in two words and its second derivative, at a breakpoint or at an end of the line.

    Arguments:
        w, b: w1 and b1 of all units, a row per network.
        owner_w, owner_b: Those of the unit that the breakpoint belongs to, one per row.
        unit, owner: The number of each unit, and of the owner.
        point: The breakpoint of the activation.
        side: -1 or 1 for an end of the line, 0 for a breakpoint.
    """
    # The argument of a unit at the breakpoint x = (p - b_j) / w_j of unit j, as ((b w_j - w b_j) + p w) / w_j: this is
    # exactly p for units that share the breakpoint, however steep they are. Powers of two keep the products in range.
    scale = find_scale(tl.maximum(tl.abs(owner_w), tl.abs(owner_b)))
    TINY: tl.constexpr = 1e-30 if w.dtype == tl.float32 else 1e-290
    scale = tl.where(tl.abs(owner_w) < TINY, tl.maximum(scale, 1.0), scale)  # must not vanish
    scaled_w = (owner_w * scale)[:, None]
    scaled_b = (owner_b * scale)[:, None]
    first, first_low = two_product(b, scaled_w)
    second, second_low = two_product(w, scaled_b)
    third, third_low = two_product(w, (point * scale)[:, None])
    total, low = two_sum(first, -second)
    total, lower = two_sum(total, third)
    total, low = normalize(total, low + lower + ((first_low - second_low) + third_low))
    divisor = tl.where(scaled_w == 0, 1.0, scaled_w)
    u, u_low = divide_words(total, low, divisor)
    x = divide(point - owner_b, tl.where(owner_w == 0, 1.0, owner_w))
    plain = w * x[:, None] + b
    # If a product overflowed, or the quotient is 0/0 because products of denormal numbers vanished.
    usable = is_finite(total) & (u == u)
    u = tl.where(usable, u, plain)
    u_low = tl.where(usable, u_low, 0.0)
    is_owner = unit == owner[:, None]
    u = tl.where(is_owner, point[:, None], u)
    u_low = tl.where(is_owner, 0.0, u_low)
    _, _, slope, slope_low, bend = respond(u, u_low, POINTS, PIECES, ENDS)
    bend = tl.where(is_owner, 0.0, bend)

    heading = side[:, None] * w
    is_end = side[:, None] != 0
    zero = tl.zeros_like(w)  # two constants would make a float32 tile
    end = tl.where(heading > 0, zero + ENDS[4], tl.where(heading < 0, zero + ENDS[2], zero))
    end_low = tl.where(heading > 0, zero + ENDS[5], tl.where(heading < 0, zero + ENDS[3], zero))
    slope = tl.where(is_end, end, slope)
    slope_low = tl.where(is_end, end_low, slope_low)
    return slope, slope_low, tl.where(is_end, 0.0, bend)
