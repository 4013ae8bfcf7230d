"""Double-word arithmetic for Triton: numbers as unevaluated sums of two floats, `high + low`.

The same code gives 2^-46 relative accuracy for float32 and 2^-100 for float64. So float32 networks, whose slopes may
cancel to a thousandth of their parts, need no float64, which many GPUs compute at 1/64 of the rate of float32.

The kernels must be compiled with `enable_fp_fusion=False`: the error of a sum is wrong if the compiler contracts the
sum with a product. Products are split with bit masks, because Triton's interpreter rounds `tl.fma` twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "add_words",
    "divide",
    "divide_words",
    "exponential",
    "find_scale",
    "is_finite",
    "multiply_words",
    "normalize",
    "sum_words",
    "two_product",
    "two_sum",
]


@triton.jit
def two_sum(a, b):
    """a + b exactly, as two words."""
    total = a + b
    kept = total - a
    return total, (a - (total - kept)) + (b - kept)


@triton.jit
def normalize(high, low):
    """Two words whose high word is their rounded sum, if |high| >= |low|."""
    total = high + low
    return total, low - (total - high)


@triton.jit
def round_down_half(a):
    """`a` without the lower half of its significand, so that products of halves are exact."""
    if a.dtype == tl.float64:
        return (a.to(tl.int64, bitcast=True) & -134217728).to(tl.float64, bitcast=True)
    else:
        return (a.to(tl.int32, bitcast=True) & -4096).to(tl.float32, bitcast=True)


@triton.jit
def two_product(a, b):
    """a * b as two words, exact unless the product overflows or its low word underflows."""
    product = a * b
    a_high = round_down_half(a)
    b_high = round_down_half(b)
    a_low = a - a_high
    b_low = b - b_high
    return product, a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


@triton.jit
def add_words(a, a_low, b, b_low):
    total, low = two_sum(a, b)
    return normalize(total, low + (a_low + b_low))


@triton.jit
def multiply_words(a, a_low, b, b_low):
    product, low = two_product(a, b)
    return normalize(product, low + (a * b_low + a_low * b))


@triton.jit
def divide(a, b):
    """a / b, correctly rounded: the operator `/` is an approximation for float32."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:
        return a / b


@triton.jit
def divide_words(a, a_low, b):
    """(a + a_low) / b as two words."""
    quotient = divide(a, b)
    product, low = two_product(quotient, b)
    rest = divide(((a - product) - low) + a_low, b)
    return quotient, tl.where(is_finite(quotient) & is_finite(product), rest, 0.0)


@triton.jit
def is_finite(a):
    return a - a == 0


@triton.jit
def find_scale(a):
    """A power of two that scales |a| into [1, 2), as far as the range of the dtype permits."""
    if a.dtype == tl.float64:
        exponent = a.to(tl.int64, bitcast=True) & 0x7FF0000000000000
        return tl.maximum(0x7FE0000000000000 - exponent, 1 << 52).to(tl.int64).to(tl.float64, bitcast=True)
    else:
        exponent = a.to(tl.int32, bitcast=True) & 0x7F800000
        return tl.maximum(0x7F000000 - exponent, 1 << 23).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def sum_words(high, low, COUNT: tl.constexpr):
    """The sums of the rows of a tile of COUNT columns, as two words, in any order of summation.

    The leading digits of all terms are cut off at one place, so that their sum is exact. Only the rest is rounded.
    """
    largest = tl.max(tl.where(high == high, tl.abs(high), 0.0), axis=1)
    # 1.5 times the power of two above the sum of all terms: adding it cuts off the digits below its last place.
    cut = (3.0 * COUNT / find_scale(largest))[:, None]
    leading = (high + cut) - cut
    return normalize(tl.sum(leading, axis=1), tl.sum((high - leading) + low, axis=1))


@triton.jit
def exponential(x):
    """exp(x) for |x| <= 80, to about one unit in the last place: `tl.exp` is an approximation for float32."""
    if x.dtype == tl.float64:
        return tl.exp(x)
    else:
        count = tl.floor(x * 1.4426950408889634 + 0.5)
        r = (x - count * 0.693359375) - count * -2.12194440054690583e-4
        p = r * (1.0 / 5040) + 1.0 / 720
        p = p * r + 1.0 / 120
        p = p * r + 1.0 / 24
        p = p * r + 1.0 / 6
        p = p * r + 0.5
        p = (p * r) * r + r + 1.0
        power = ((count.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)
        return p * power
