"""The network in C++ for CPUs: exact Lipschitz constants in O(H log H), fused forward and backward, the inverse.

The operators are registered with torch under the name `elflow`, so that `torch.compile` and `torch.export` see
each of them as one node. All arithmetic is in double, whatever the dtype of the tensors. FELU only.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from elflow.activations import FELU, PiecewiseQuadratic
from elflow.kernels._contract import Backend, require_finite

try:
    from elflow.kernels import _native
except ImportError:
    _native = None

__all__ = ["BACKEND"]

extension: ModuleType | None = _native
"""The compiled module, or None where the package was installed without a compiler."""


def rows(t: Tensor) -> Tensor:
    return t if t.stride(-1) == 1 or t.shape[-1] == 1 else t.contiguous()


def like(*shape: int, of: Tensor) -> Tensor:
    return torch.empty(shape, dtype=of.dtype, device=of.device)


def steepness(w1: Tensor) -> tuple[Tensor, Tensor]:
    """Room for the Lipschitz constants, and for the numbers of the places where the slope takes them."""
    n = w1.shape[0]
    return w1.new_empty(n, dtype=torch.float64), w1.new_empty(n, dtype=torch.int32)


def check_parameters(constants: Tensor, **parameters: Tensor) -> None:
    """The kernel marks networks with parameters that are not finite by NaN."""
    if not constants.isfinite().all():
        require_finite(**parameters)
        raise ValueError("w1 * w2 must be finite, got a product beyond the largest float64")


# --- operators ---------------------------------------------------------------------------------------------------------


@torch.library.custom_op("elflow::lipschitz", mutates_args=(), device_types="cpu")
def lipschitz_op(w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    constants, places = steepness(w1)
    _native.lipschitz(rows(w1), rows(b1), rows(w2), constants, places, 0, torch.get_num_threads())
    check_parameters(constants, w1=w1, b1=b1, w2=w2)
    return constants, places


@lipschitz_op.register_fake
def _(w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    return steepness(w1)


@torch.library.custom_op("elflow::lipschitz_backward", mutates_args=(), device_types="cpu")
def lipschitz_backward_op(
    grad: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, places: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grads = [like(*w1.shape, of=w1) for _ in range(3)]
    _native.lipschitz_backward(
        grad.contiguous(), rows(w1), rows(b1), rows(w2), places, *grads, torch.get_num_threads()
    )
    return grads[0], grads[1], grads[2]


@lipschitz_backward_op.register_fake
def _(grad: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return like(*w1.shape, of=w1), like(*w1.shape, of=w1), like(*w1.shape, of=w1)


def lipschitz_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def lipschitz_grad(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    return lipschitz_backward_op(grad, *ctx.saved_tensors)


lipschitz_op.register_autograd(lipschitz_grad, setup_context=lipschitz_setup)


@torch.library.custom_op("elflow::elf", mutates_args=(), device_types="cpu")
def elf_op(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    y, log_slope, (constants, places) = like(*x.shape, of=x), like(*x.shape, of=x), steepness(w1)
    call_transform(x, w1, b1, w2, b2, bound, y, log_slope, constants, places)
    return y, log_slope, constants, places


@elf_op.register_fake
def _(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return like(*x.shape, of=x), like(*x.shape, of=x), *steepness(w1)


@torch.library.custom_op("elflow::elf_inverse", mutates_args=(), device_types="cpu")
def elf_inverse_op(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    x, (constants, places) = like(*y.shape, of=y), steepness(w1)
    call_transform(y, w1, b1, w2, b2, bound, x, None, constants, places)
    return x, constants, places


@elf_inverse_op.register_fake
def _(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    return like(*y.shape, of=y), *steepness(w1)


def call_transform(
    given: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    bound: float,
    result: Tensor,
    log_slope: Tensor | None,
    constants: Tensor,
    places: Tensor,
) -> None:
    require_finite(b2=b2)
    _native.transform(
        given.contiguous(), rows(w1), rows(b1), rows(w2), b2, bound, result, log_slope, constants, places,
        torch.get_num_threads(),
    )  # fmt: skip
    check_parameters(constants, w1=w1, b1=b1, w2=w2)


@torch.library.custom_op("elflow::elf_backward", mutates_args=(), device_types="cpu")
def elf_backward_op(
    grad: Tensor,
    grad_log_slope: Tensor | None,
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    bound: float,
    constants: Tensor,
    places: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, w1, b1, w2 and b2; of the inverse where there is no gradient of a log-slope."""
    grads = like(*x.shape, of=x), *(like(*w1.shape, of=w1) for _ in range(3)), like(w1.shape[0], of=w1)
    _native.transform_backward(
        grad.contiguous(), None if grad_log_slope is None else grad_log_slope.contiguous(), x.contiguous(),
        rows(w1), rows(b1), rows(w2), bound, constants, places, *grads, torch.get_num_threads(),
    )  # fmt: skip
    return grads


@elf_backward_op.register_fake
def _(
    grad: Tensor,
    grad_log_slope: Tensor | None,
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    bound: float,
    constants: Tensor,
    places: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return like(*x.shape, of=x), *(like(*w1.shape, of=w1) for _ in range(3)), like(w1.shape[0], of=w1)


def elf_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, w1, b1, w2, _, ctx.bound = inputs
    ctx.save_for_backward(x, w1, b1, w2, *output[2:])


def elf_grad(ctx: Any, grad_y: Tensor, grad_log_slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, w1, b1, w2, constants, places = ctx.saved_tensors
    return *elf_backward_op(grad_y, grad_log_slope, x, w1, b1, w2, ctx.bound, constants, places), None


def elf_inverse_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, w1, b1, w2, _, ctx.bound = inputs
    ctx.save_for_backward(output[0], w1, b1, w2, *output[1:])


def elf_inverse_grad(ctx: Any, grad_x: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, w1, b1, w2, constants, places = ctx.saved_tensors
    return *elf_backward_op(grad_x, None, x, w1, b1, w2, ctx.bound, constants, places), None


elf_op.register_autograd(elf_grad, setup_context=elf_setup)
elf_inverse_op.register_autograd(elf_inverse_grad, setup_context=elf_inverse_setup)


# --- the backend -------------------------------------------------------------------------------------------------------


def lipschitz(w1: Tensor, b1: Tensor, w2: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    return lipschitz_op(w1, b1, w2)[0].to(w1.dtype)


def elf(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> tuple[Tensor, Tensor]:
    y, log_slope, _, _ = elf_op(x, w1, b1, w2, b2, bound)
    return y, log_slope


def elf_inverse(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> Tensor:
    return elf_inverse_op(y, w1, b1, w2, b2, bound)[0]


def refuses(dtype: torch.dtype, device: torch.device, activation: PiecewiseQuadratic) -> str | None:
    if extension is None:
        return "it was not compiled: install a C++ compiler, then elflow again"
    if device.type != "cpu":
        return f"it runs on CPUs, not on {device.type}"
    if dtype not in (torch.float32, torch.float64):
        return f"it takes float32 and float64, not {dtype}"
    if activation != FELU:
        return f"it has FELU, not {activation.name}"
    return None


BACKEND = Backend("native", refuses, lipschitz, elf, elf_inverse)
