"""The operators `torch.ops.elflow.*`: schemas, empty results for tracing, and gradients, for all kernels.

`torch.compile` and `torch.export` see each operator as one node. The native kernels are registered for CPUs, the Triton
kernels for GPUs. In Triton's interpreter these take CPU tensors, under the names `torch.ops.elflow_interpreted.*`.

Arguments have the shapes of the contract: N networks of H units, M points each. In addition to its results a forward
operator returns the Lipschitz constants in float64 and the numbers of the places where |g'| has its maximum, so that
backward operators need not search again. `activation` is None for FELU, or the numbers of `encode_activation`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from elflow.activations import FELU, PiecewiseQuadratic

Activation = list[float] | None


def encode_activation(activation: PiecewiseQuadratic) -> Activation:
    """The breakpoints, then the coefficients of all pieces; None for FELU."""
    if activation == FELU:
        return None
    return [*activation.breakpoints, *[c for piece in activation.pieces for c in piece]]


def pack_units(t: Tensor) -> Tensor:
    """A copy if the units of a network are not next to each other in memory. Rows may have any stride, even 0."""
    return t if t.stride(1) == 1 or t.shape[1] == 1 else t.contiguous()


# --- empty results, also for tracing ----------------------------------------------------------------------------------


def allocate_constants(w1: Tensor) -> tuple[Tensor, Tensor]:
    """Lipschitz constants and the places where |g'| has them."""
    return w1.new_empty(w1.shape[0], dtype=torch.float64), w1.new_empty(w1.shape[0], dtype=torch.int32)


def allocate_lipschitz(w1: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return allocate_constants(w1)


def allocate_lipschitz_backward(grad: Tensor, w1: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return w1.new_empty(w1.shape), w1.new_empty(w1.shape), w1.new_empty(w1.shape)


def allocate_elf(x: Tensor, w1: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape), *allocate_constants(w1)


def allocate_elf_inverse(y: Tensor, w1: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return y.new_empty(y.shape), *allocate_constants(w1)


def allocate_elf_backward(
    grad: Tensor, grad_log_slope: Tensor | None, x: Tensor, w1: Tensor, *_: object
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), *allocate_lipschitz_backward(grad, w1), w1.new_empty(w1.shape[0])


def allocate_weights(phi: Tensor, units: int) -> Tensor:
    """w1, b1 and w2, which the native kernels store. On GPUs the Triton kernels compute them again instead."""
    return phi.new_empty(3, phi.shape[0] if phi.device.type == "cpu" else 0, units)


def allocate_elf_bumps(x: Tensor, phi: Tensor, units: int, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return *allocate_elf(x, phi), allocate_weights(phi, units)


def allocate_elf_bumps_inverse(y: Tensor, phi: Tensor, units: int, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *allocate_elf_inverse(y, phi), allocate_weights(phi, units)


def allocate_elf_bumps_backward(
    grad: Tensor, grad_log_slope: Tensor | None, x: Tensor, phi: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), phi.new_empty(phi.shape)


# --- gradients --------------------------------------------------------------------------------------------------------


def lipschitz_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *weights, ctx.activation = inputs
    ctx.save_for_backward(*weights, output[1])


def elf_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, w1, b1, w2, _, ctx.bound, ctx.activation = inputs
    ctx.save_for_backward(x, w1, b1, w2, *output[2:])


def elf_inverse_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, w1, b1, w2, _, ctx.bound, ctx.activation = inputs
    ctx.save_for_backward(output[0], w1, b1, w2, *output[1:])


def elf_bumps_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, phi, _, ctx.bound, ctx.activation = inputs
    _, _, constants, places, weights = output
    ctx.save_for_backward(x, phi, weights, constants, places)


def elf_bumps_inverse_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, phi, _, ctx.bound, ctx.activation = inputs
    x, constants, places, weights = output
    ctx.save_for_backward(x, phi, weights, constants, places)


def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pass


def refuse_second_derivative(ctx: Any, *_: Tensor) -> None:
    raise RuntimeError(
        "the kernels of elflow have no second derivatives: compute them under elflow.kernels.backend('reference')"
    )


def register_gradients(namespace: str) -> None:
    operators = getattr(torch.ops, namespace)

    def lipschitz_grad(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        w1, b1, w2, places = ctx.saved_tensors
        return *operators.lipschitz_backward.default(grad, w1, b1, w2, places, ctx.activation), None

    def elf_grad(ctx: Any, grad_y: Tensor, grad_log_slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, b1, w2, *found = ctx.saved_tensors
        given = grad_y, grad_log_slope, x, w1, b1, w2, ctx.bound, *found, ctx.activation
        return *operators.elf_backward.default(*given), None, None

    def elf_inverse_grad(ctx: Any, grad_x: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, b1, w2, *found = ctx.saved_tensors
        given = grad_x, None, x, w1, b1, w2, ctx.bound, *found, ctx.activation
        return *operators.elf_backward.default(*given), None, None

    def elf_bumps_grad(ctx: Any, grad_y: Tensor, grad_log_slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, phi, weights, *found = ctx.saved_tensors
        given = grad_y, grad_log_slope, x, phi, weights, ctx.bound, *found, ctx.activation
        return *operators.elf_bumps_backward.default(*given), None, None, None

    def elf_bumps_inverse_grad(ctx: Any, grad_x: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, phi, weights, *found = ctx.saved_tensors
        given = grad_x, None, x, phi, weights, ctx.bound, *found, ctx.activation
        return *operators.elf_bumps_backward.default(*given), None, None, None

    for name, gradient, setup in (
        ("lipschitz", lipschitz_grad, lipschitz_setup),
        ("elf", elf_grad, elf_setup),
        ("elf_inverse", elf_inverse_grad, elf_inverse_setup),
        ("elf_bumps", elf_bumps_grad, elf_bumps_setup),
        ("elf_bumps_inverse", elf_bumps_inverse_grad, elf_bumps_inverse_setup),
        ("lipschitz_backward", refuse_second_derivative, save_nothing),
        ("elf_backward", refuse_second_derivative, save_nothing),
        ("elf_bumps_backward", refuse_second_derivative, save_nothing),
    ):
        torch.library.register_autograd(f"{namespace}::{name}", gradient, setup_context=setup)


# --- registration -----------------------------------------------------------------------------------------------------

WEIGHTS = "Tensor w1, Tensor b1, Tensor w2"
LAST = "float[]? activation=None"
FOUND = f"float bound, Tensor constants, Tensor places, {LAST}"
Kernel = Callable[..., tuple[Tensor, ...]]
OPERATORS: dict[str, tuple[str, Kernel]] = {
    "lipschitz": (f"({WEIGHTS}, {LAST}) -> (Tensor, Tensor)", allocate_lipschitz),
    "lipschitz_backward": (
        f"(Tensor grad, {WEIGHTS}, Tensor places, {LAST}) -> (Tensor, Tensor, Tensor)",
        allocate_lipschitz_backward,
    ),
    "elf": (f"(Tensor x, {WEIGHTS}, Tensor b2, float bound, {LAST}) -> (Tensor, Tensor, Tensor, Tensor)", allocate_elf),
    "elf_inverse": (
        f"(Tensor y, {WEIGHTS}, Tensor b2, float bound, {LAST}) -> (Tensor, Tensor, Tensor)",
        allocate_elf_inverse,
    ),
    "elf_backward": (
        f"(Tensor grad, Tensor? grad_log_slope, Tensor x, {WEIGHTS}, {FOUND})"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        allocate_elf_backward,
    ),
    "elf_bumps": (
        f"(Tensor x, Tensor phi, int units, float bound, {LAST}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        allocate_elf_bumps,
    ),
    "elf_bumps_inverse": (
        f"(Tensor y, Tensor phi, int units, float bound, {LAST}) -> (Tensor, Tensor, Tensor, Tensor)",
        allocate_elf_bumps_inverse,
    ),
    "elf_bumps_backward": (
        f"(Tensor grad, Tensor? grad_log_slope, Tensor x, Tensor phi, Tensor weights, {FOUND}) -> (Tensor, Tensor)",
        allocate_elf_bumps_backward,
    ),
}


def define_operators(namespace: str) -> None:
    """Define all operators in a namespace of `torch.ops`, with everything but their kernels."""
    # `torch.library.custom_op` would be shorter, but its wrapper costs 25 microseconds per call.
    for name, (schema, allocate) in OPERATORS.items():
        torch.library.define(f"{namespace}::{name}", schema)
        torch.library.register_fake(f"{namespace}::{name}", allocate)
    register_gradients(namespace)


def register_kernels(namespace: str, dispatch_key: str, kernels: Mapping[str, Kernel]) -> None:
    """Register the kernel of each operator for `"CPU"` or `"CUDA"`, which is the key of ROCm too."""
    for name in OPERATORS:
        torch.library.impl(f"{namespace}::{name}", dispatch_key, kernels[name])


define_operators("elflow")
