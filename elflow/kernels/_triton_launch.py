"""The Triton kernels as functions of tensors: see `_operators.py` for how torch calls them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor

from elflow._checks import are_finite_checks_deferred
from elflow.activations import FELU, PiecewiseQuadratic
from elflow.kernels import reference
from elflow.kernels._operators import (
    Activation,
    allocate_elf,
    allocate_elf_backward,
    allocate_elf_bumps,
    allocate_elf_bumps_backward,
    allocate_elf_bumps_inverse,
    allocate_elf_inverse,
    allocate_lipschitz,
    allocate_lipschitz_backward,
    pack_units,
)
from elflow.kernels._triton_kernels import backward_kernel, transform_kernel
from elflow.kernels.contract import NonFiniteError, require_finite

__all__ = ["KERNELS", "choose_options", "choose_tile", "make_constants"]

INTERPRETED: bool = triton.knobs.runtime.interpret
"""Whether Triton's interpreter runs the kernels, with numpy, on CPU tensors."""

PER_THREAD = 8
"""Units per thread of a tile. With fewer, kernels take more instructions, because every thread reads every unit."""

PER_THREAD_BACKWARD = 4
"""The same for the gradients, which need more registers."""

MAX_PROGRAMS = 256
"""The points of a network are split among programs only up to this number of programs."""


# --- compile-time constants -------------------------------------------------------------------------------------------


def choose_tile(units: int, count: int, dtype: torch.dtype, is_backward: bool = False) -> dict[str, int]:
    """The number of networks and of columns of a tile, and the number of warps of a program."""
    block = max(2, triton.next_power_of_2(units))
    rows = max(1, 32 // block)
    if INTERPRETED:  # each operation of a program costs the same for any tile, so that few programs are best
        rows = min(triton.next_power_of_2(count), max(1, 2**15 // block))
    per_thread = PER_THREAD_BACKWARD if is_backward else PER_THREAD
    if dtype == torch.float64:  # a number takes two registers
        per_thread //= 2
    warps = max(1, block // (32 * per_thread))  # a single warp needs no shared memory
    return {"ROWS": rows, "BLOCK": block, "num_warps": warps}


def choose_options(is_hip: bool) -> dict[str, int]:
    """Options of the compiler. Without `maxnreg` it spills registers to let more programs run at a time."""
    return {"enable_fp_fusion": False} | ({} if is_hip else {"maxnreg": 255})


@lru_cache
def make_constants(activation: tuple[float, ...] | None, dtype: torch.dtype) -> dict[str, Any]:
    """The activation as the compile-time constants of `_triton_network.py`; `activation` as of `encode_activation`."""
    function = FELU
    if activation is not None:
        count = (len(activation) - 3) // 4
        function = PiecewiseQuadratic(activation[:count], np.reshape(activation[count:], (-1, 3)).tolist())
    points, pieces = function.breakpoints, function.pieces
    heights = [abs(c0 + c1 * p + c2 * p * p) for p, (c0, c1, c2) in zip(points, pieces, strict=False)]
    home = heights.index(min(heights))
    numbers: list[float] = []
    for k, (left, right) in enumerate(pairwise(points), start=1):
        near = right if k <= home else left
        _, c1, c2 = pieces[k]
        numbers += [near, left - near, right - near, *_split(c1 + 2 * c2 * near, dtype), *_split(c2, dtype)]
        numbers += _split(2 * c2 * (near - left), dtype)
    c0, c1, c2 = pieces[home]
    ends = c0 + c1 * points[home] + c2 * points[home] ** 2, function.left_slope, function.right_slope
    bounds = 2 * max(abs(p) for p in points) + 1, max(1, *(abs(2 * c2) for _, _, c2 in pieces))
    return {
        "POINTS": tuple(points),
        "PIECES": tuple(numbers),
        "ENDS": (*(word for end in ends for word in _split(end, dtype)), *map(float, bounds)),
    }


def _split(number: float, dtype: torch.dtype) -> tuple[float, float]:
    """A number in two words of the dtype."""
    high = float(torch.tensor(number, dtype=torch.float64).to(dtype))
    return high, number - high


# --- launches ---------------------------------------------------------------------------------------------------------


@contextmanager
def _prepare(tensor: Tensor) -> Iterator[None]:
    """Launch on the device of a tensor. In the interpreter overflow is as quiet as on a GPU."""
    with torch.cuda.device_of(tensor), np.errstate(all="ignore"):
        yield


def _describe(weights: Sequence[Tensor]) -> tuple[list[Tensor], list[int]]:
    """w1, b1 and w2, or three times phi, with the strides of their rows."""
    packed = [pack_units(w) for w in weights] if len(weights) == 3 else [pack_units(weights[0])] * 3
    return packed, [w.stride(0) for w in packed]


def run_transform(
    given: Tensor | None,
    weights: Sequence[Tensor],
    b2: Tensor | None,
    units: int,
    bound: float,
    activation: Activation,
    result: Tensor | None,
    log_slope: Tensor | None,
    constants: Tensor,
    places: Tensor,
) -> None:
    """Write Lipschitz constants and, if points are given, their transformation or, without `log_slope`, the inverse."""
    first = weights[0]
    points = 1 if given is None else given.shape[1]
    packed, strides = _describe(weights)
    fixed = make_constants(None if activation is None else tuple(activation), first.dtype)
    kinks = triton.next_power_of_2(len(fixed["POINTS"]))

    def launch(count: int, points: int, search: bool, transform: bool) -> None:
        if count == 0:
            return
        tile = choose_tile(units, count, first.dtype)
        transform_kernel[(triton.cdiv(count, tile["ROWS"]),)](
            constants if given is None else given.contiguous(),
            *packed,
            constants if b2 is None else b2,
            constants if result is None else result,
            constants if log_slope is None else log_slope,
            constants,
            places,
            *strides,
            0 if b2 is None else b2.stride(0),
            count,
            points,
            units,
            KINKS=kinks,
            SEARCH=search,
            TRANSFORM=transform,
            INVERSE=log_slope is None,
            BUMPS=len(weights) == 1,
            BOUND=bound,
            **tile,
            **choose_options(bool(torch.version.hip)),
            **fixed,
        )

    with _prepare(first):
        if points == 1:
            launch(len(first), 1, True, given is not None)
        else:
            launch(len(first), 1, True, False)
            launch(len(first) * points, points, False, True)
    _check(constants, weights, b2, units)


def _check(constants: Tensor, weights: Sequence[Tensor], b2: Tensor | None, units: int) -> None:
    """Raise an error if a constant is not finite.

    This waits for the GPU, except while it records a graph and inside `defer_finite_checks`.
    """
    if are_finite_checks_deferred() or (constants.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    wrong = ~constants.isfinite()
    if b2 is not None:
        wrong = wrong | ~b2.isfinite()
    if not wrong.any():
        return
    if len(weights) == 1:
        phi = weights[0]
        w1, b1, w2, b2 = reference.bumps(phi.double(), units)
        require_finite(w1=w1, b1=b1, w2=w2, b2=b2, phi=phi)
    else:
        w1, b1, w2 = weights
        require_finite(w1=w1, b1=b1, w2=w2, **({} if b2 is None else {"b2": b2}))
    raise NonFiniteError(
        f"w1 * w2 must be finite, got {int(wrong.sum())} of {len(wrong)} networks whose slope exceeds the range of the "
        f"kernel for {weights[0].dtype}"
    )


def run_backward(
    grad: Tensor,
    grad_log_slope: Tensor | None,
    x: Tensor | None,
    weights: Sequence[Tensor],
    units: int,
    bound: float,
    activation: Activation,
    constants: Tensor,
    places: Tensor,
    grad_x: Tensor | None,
    outputs: Sequence[Tensor],
) -> None:
    """Write the gradients of x and of the parameters; without x, those of the Lipschitz constants."""
    first = weights[0]
    count = len(first)
    if count == 0:
        return
    packed, strides = _describe(weights)
    points = 0 if x is None else x.shape[1]
    tile = choose_tile(units, count, first.dtype, is_backward=True)
    programs = triton.cdiv(count, tile["ROWS"])
    splits = 0 if x is None else max(1, min(triton.cdiv(points, 16), MAX_PROGRAMS // programs))
    # Sums of each split; their number of elements is limited by MAX_PROGRAMS.
    partial = [first.new_empty(splits * count * n if splits > 1 else 1) for n in (units, units, units, 1, 1)]
    tensors = [grad.contiguous(), grad_log_slope, x, *packed, constants, places, grad_x, *partial, *outputs]
    tensors += [outputs[0]] * (18 - len(tensors))
    arguments = [constants if t is None else t.contiguous() if i < 3 else t for i, t in enumerate(tensors)]

    def launch(pointwise: bool, finish: bool, programs_of_points: int) -> None:
        backward_kernel[(programs, programs_of_points)](
            *arguments,
            *strides,
            outputs[0].stride(0),
            count,
            points,
            splits,
            units,
            POINTWISE=pointwise,
            FINISH=finish,
            LIPSCHITZ=x is None,
            INVERSE=grad_log_slope is None,
            BUMPS=len(weights) == 1,
            BOUND=bound,
            **tile,
            **choose_options(bool(torch.version.hip)),
            **make_constants(None if activation is None else tuple(activation), first.dtype),
        )

    with _prepare(first):
        if x is None:
            launch(False, True, 1)
        elif splits == 1:
            launch(True, True, 1)
        else:
            launch(True, False, splits)
            launch(False, True, 1)


# --- kernels of the operators -----------------------------------------------------------------------------------------


def lipschitz_kernel(w1: Tensor, b1: Tensor, w2: Tensor, activation: Activation = None) -> tuple[Tensor, Tensor]:
    constants, places = allocate_lipschitz(w1)
    run_transform(None, (w1, b1, w2), None, w1.shape[1], 0.5, activation, None, None, constants, places)
    return constants, places


def lipschitz_backward_kernel(
    grad: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, places: Tensor, activation: Activation = None
) -> tuple[Tensor, Tensor, Tensor]:
    grads = allocate_lipschitz_backward(grad, w1)
    run_backward(grad, None, None, (w1, b1, w2), w1.shape[1], 0.5, activation, grad, places, None, grads)
    return grads


def elf_kernel(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: Activation = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = allocate_elf(x, w1)
    run_transform(x, (w1, b1, w2), b2, w1.shape[1], bound, activation, *results)
    return results


def elf_inverse_kernel(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: Activation = None
) -> tuple[Tensor, Tensor, Tensor]:
    x, constants, places = results = allocate_elf_inverse(y, w1)
    run_transform(y, (w1, b1, w2), b2, w1.shape[1], bound, activation, x, None, constants, places)
    return results


def elf_backward_kernel(
    grad: Tensor,
    grad_log_slope: Tensor | None,
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    bound: float,
    constants: Tensor,
    places: Tensor,
    activation: Activation = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    grads = allocate_elf_backward(grad, grad_log_slope, x, w1)
    weights, units = (w1, b1, w2), w1.shape[1]
    run_backward(grad, grad_log_slope, x, weights, units, bound, activation, constants, places, grads[0], grads[1:])
    return grads


def elf_bumps_kernel(
    x: Tensor, phi: Tensor, units: int, bound: float, activation: Activation = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    results = allocate_elf_bumps(x, phi, units)
    results[4].zero_()  # not used: empty on a GPU
    run_transform(x, (phi,), phi[:, -1], units, bound, activation, *results[:4])
    return results


def elf_bumps_inverse_kernel(
    y: Tensor, phi: Tensor, units: int, bound: float, activation: Activation = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, constants, places, weights = results = allocate_elf_bumps_inverse(y, phi, units)
    weights.zero_()  # not used: empty on a GPU
    run_transform(y, (phi,), phi[:, -1], units, bound, activation, x, None, constants, places)
    return results


def elf_bumps_backward_kernel(
    grad: Tensor,
    grad_log_slope: Tensor | None,
    x: Tensor,
    phi: Tensor,
    weights: Tensor,
    bound: float,
    constants: Tensor,
    places: Tensor,
    activation: Activation = None,
) -> tuple[Tensor, Tensor]:
    grad_x, grad_phi = grads = allocate_elf_bumps_backward(grad, grad_log_slope, x, phi)
    units = weights.shape[2]
    given = grad, grad_log_slope, x, (phi,), units, bound, activation, constants, places
    run_backward(*given, grad_x, (grad_phi,))
    return grads


KERNELS = {
    "lipschitz": lipschitz_kernel,
    "lipschitz_backward": lipschitz_backward_kernel,
    "elf": elf_kernel,
    "elf_inverse": elf_inverse_kernel,
    "elf_backward": elf_backward_kernel,
    "elf_bumps": elf_bumps_kernel,
    "elf_bumps_inverse": elf_bumps_inverse_kernel,
    "elf_bumps_backward": elf_bumps_backward_kernel,
}
"""The kernel of each operator."""
