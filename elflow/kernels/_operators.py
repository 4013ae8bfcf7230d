"""The native kernels as torch operators `torch.ops.elflow.*`, with their gradients.

`torch.compile` and `torch.export` see each operator as one node.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from elflow.kernels.contract import MAX_LOG, require_finite

extension: Any = None
"""The compiled module, or None if it cannot be imported."""
import_error: str | None = None
"""The reason why the compiled module cannot be imported, or None."""
try:
    extension = import_module("elflow.kernels._native")
except ModuleNotFoundError:
    import_error = "it was not compiled: install a C++ compiler, then reinstall elflow (pip install -v shows why)"
except ImportError as error:
    import_error = f"it was compiled but does not load: {error}"

ALGORITHMS = "sweep", "direct"
"""Algorithms for the Lipschitz constant, in the order of the C++ enumeration. The sweep is faster at every size."""


# --- operators --------------------------------------------------------------------------------------------------------
# Arguments have the shapes of the contract: N networks of H units, M points each. In addition to its results a forward
# operator returns the Lipschitz constants in float64 and the numbers of the places where |g'| has its maximum, so that
# the backward operators need not search again.


def lipschitz_kernel(w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    return find_steepest(w1, b1, w2, "sweep")


def lipschitz_backward_kernel(
    grad: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, places: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    w1, b1, w2, grad = pack_units(w1), pack_units(b1), pack_units(w2), grad.contiguous()
    grads = allocate_lipschitz_backward(grad, w1)
    networks, addresses = describe_networks(w1, b1, w2), get_addresses(places, grad, *grads)
    extension.lipschitz_backward(networks, *addresses, torch.get_num_threads())
    return grads


def elf_kernel(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = allocate_elf(x, w1)
    transform(x, w1, b1, w2, b2, bound, *results)
    return results


def elf_inverse_kernel(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    results = allocate_elf_inverse(y, w1)
    x, constants, places = results
    transform(y, w1, b1, w2, b2, bound, x, None, constants, places)
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, w1, b1, w2 and b2: those of the forward or, without `grad_log_slope`, of the inverse."""
    grads = allocate_elf_backward(grad, grad_log_slope, x, w1)
    w1, b1, w2, x, grad = pack_units(w1), pack_units(b1), pack_units(w2), x.contiguous(), grad.contiguous()
    grad_log_slope = None if grad_log_slope is None else grad_log_slope.contiguous()
    addresses = get_addresses(constants, places, x, grad, grad_log_slope, *grads)
    extension.transform_backward(describe_networks(w1, b1, w2), x.shape[1], bound, *addresses, torch.get_num_threads())
    return grads


def elf_bumps_kernel(x: Tensor, phi: Tensor, units: int, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    results = allocate_elf_bumps(x, phi, units, bound)
    y, log_slope, constants, places, weights = results
    w1, b1, w2, b2 = unpack_bumps(phi, units, weights)
    transform(x, w1, b1, w2, b2, bound, y, log_slope, constants, places, phi)
    return results


def elf_bumps_inverse_kernel(y: Tensor, phi: Tensor, units: int, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = allocate_elf_bumps_inverse(y, phi, units, bound)
    x, constants, places, weights = results
    w1, b1, w2, b2 = unpack_bumps(phi, units, weights)
    transform(y, w1, b1, w2, b2, bound, x, None, constants, places, phi)
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
) -> tuple[Tensor, Tensor]:
    """Gradients of x and phi: those of the forward or, without `grad_log_slope`, of the inverse."""
    w1, b1, w2 = weights
    grad_x, *grads, grad_b2 = elf_backward_kernel(grad, grad_log_slope, x, w1, b1, w2, bound, constants, places)
    phi, grad_phi = pack_units(phi), phi.new_empty(phi.shape)
    grad_phi[:, -1] = grad_b2
    run_bumps(phi, w1.shape[1], grads, grad_phi)
    return grad_x, grad_phi


def unpack_bumps(phi: Tensor, units: int, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Write w1, b1 and w2 into `weights` `(3, N, units)`; return them and b2."""
    phi = pack_units(phi)
    w1, b1, w2 = weights
    run_bumps(phi, units, [w1, b1, w2], None)
    return w1, b1, w2, phi[:, -1]


def run_bumps(phi: Tensor, units: int, weights: list[Tensor], grad: Tensor | None) -> None:
    """Write the weights or, if `grad` is given, read the gradients of the weights and write that of phi into it."""
    memory = phi.data_ptr(), phi.stride(0), *get_addresses(*weights, grad), phi.shape[1]
    extension.bumps(phi.dtype == torch.float64, len(phi), units, MAX_LOG, *memory, torch.get_num_threads())


def find_steepest(w1: Tensor, b1: Tensor, w2: Tensor, algorithm: str) -> tuple[Tensor, Tensor]:
    """The Lipschitz constants `(N,)` by one of `ALGORITHMS`, and the places `(N,)` where |g'| has them."""
    w1, b1, w2 = pack_units(w1), pack_units(b1), pack_units(w2)
    constants, places = allocate_constants(w1)
    code = ALGORITHMS.index(algorithm)
    networks, addresses = describe_networks(w1, b1, w2), get_addresses(constants, places)
    if not extension.lipschitz(networks, *addresses, code, torch.get_num_threads()):
        require_finite(w1=w1, b1=b1, w2=w2)
    return constants, places


def transform(
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
    phi: Tensor | None = None,
) -> None:
    """Write the forward transformation or, without a tensor for the log-slope, the inverse into `result`."""
    w1, b1, w2, given = pack_units(w1), pack_units(b1), pack_units(w2), given.contiguous()
    networks = describe_networks(w1, b1, w2, b2)
    addresses = get_addresses(given, result, log_slope, constants, places)
    if not extension.transform(networks, given.shape[1], bound, *addresses, torch.get_num_threads()):
        require_finite(w1=w1, b1=b1, w2=w2, b2=b2, phi=phi)


def describe_networks(*parameters: Tensor) -> Any:
    """The networks as the extension takes them: their sizes, and the address and row stride of each parameter."""
    w1 = parameters[0]
    memory = [number for p in parameters for number in (p.data_ptr(), p.stride(0))]
    return extension.Networks(w1.dtype == torch.float64, *w1.shape, *memory)


def get_addresses(*tensors: Tensor | None) -> list[int]:
    """The memory address of each tensor, or 0 for None."""
    return [0 if t is None else t.data_ptr() for t in tensors]


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


def allocate_elf_bumps(
    x: Tensor, phi: Tensor, units: int, bound: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return *allocate_elf(x, phi), phi.new_empty(3, phi.shape[0], units)


def allocate_elf_bumps_inverse(
    y: Tensor, phi: Tensor, units: int, bound: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *allocate_elf_inverse(y, phi), phi.new_empty(3, phi.shape[0], units)


def allocate_elf_bumps_backward(
    grad: Tensor, grad_log_slope: Tensor | None, x: Tensor, phi: Tensor, *_: object
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), phi.new_empty(phi.shape)


# --- gradients --------------------------------------------------------------------------------------------------------


def lipschitz_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[1])


def lipschitz_grad(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, ...]:
    grads: tuple[Tensor, ...] = torch.ops.elflow.lipschitz_backward.default(grad, *ctx.saved_tensors)
    return grads


def elf_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, w1, b1, w2, _, ctx.bound = inputs
    ctx.save_for_backward(x, w1, b1, w2, *output[2:])


def elf_grad(ctx: Any, grad_y: Tensor, grad_log_slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, w1, b1, w2, constants, places = ctx.saved_tensors
    backward = torch.ops.elflow.elf_backward.default
    return *backward(grad_y, grad_log_slope, x, w1, b1, w2, ctx.bound, constants, places), None


def elf_inverse_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, w1, b1, w2, _, ctx.bound = inputs
    ctx.save_for_backward(output[0], w1, b1, w2, *output[1:])


def elf_inverse_grad(ctx: Any, grad_x: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, w1, b1, w2, constants, places = ctx.saved_tensors
    backward = torch.ops.elflow.elf_backward.default
    return *backward(grad_x, None, x, w1, b1, w2, ctx.bound, constants, places), None


def elf_bumps_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, phi, _, ctx.bound = inputs
    _, _, constants, places, weights = output
    ctx.save_for_backward(x, phi, weights, constants, places)


def elf_bumps_grad(ctx: Any, grad_y: Tensor, grad_log_slope: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, phi, weights, constants, places = ctx.saved_tensors
    backward = torch.ops.elflow.elf_bumps_backward.default
    return *backward(grad_y, grad_log_slope, x, phi, weights, ctx.bound, constants, places), None, None


def elf_bumps_inverse_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, phi, _, ctx.bound = inputs
    x, constants, places, weights = output
    ctx.save_for_backward(x, phi, weights, constants, places)


def elf_bumps_inverse_grad(ctx: Any, grad_x: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    x, phi, weights, constants, places = ctx.saved_tensors
    backward = torch.ops.elflow.elf_bumps_backward.default
    return *backward(grad_x, None, x, phi, weights, ctx.bound, constants, places), None, None


def save_nothing(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pass


def refuse_second_derivative(ctx: Any, *_: Tensor) -> None:
    raise RuntimeError(
        "the native backend of elflow has no second derivatives: compute them under elflow.kernels.backend('reference')"
    )


WEIGHTS = "Tensor w1, Tensor b1, Tensor w2"
Tensors = tuple[Tensor, ...]
OPERATORS: dict[str, tuple[str, Callable[..., Tensors], Callable[..., Tensors]]] = {
    "lipschitz": (f"({WEIGHTS}) -> (Tensor, Tensor)", lipschitz_kernel, allocate_lipschitz),
    "lipschitz_backward": (
        f"(Tensor grad, {WEIGHTS}, Tensor places) -> (Tensor, Tensor, Tensor)",
        lipschitz_backward_kernel,
        allocate_lipschitz_backward,
    ),
    "elf": (
        f"(Tensor x, {WEIGHTS}, Tensor b2, float bound) -> (Tensor, Tensor, Tensor, Tensor)",
        elf_kernel,
        allocate_elf,
    ),
    "elf_inverse": (
        f"(Tensor y, {WEIGHTS}, Tensor b2, float bound) -> (Tensor, Tensor, Tensor)",
        elf_inverse_kernel,
        allocate_elf_inverse,
    ),
    "elf_backward": (
        f"(Tensor grad, Tensor? grad_log_slope, Tensor x, {WEIGHTS}, float bound, Tensor constants, Tensor places)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        elf_backward_kernel,
        allocate_elf_backward,
    ),
    "elf_bumps": (
        "(Tensor x, Tensor phi, int units, float bound) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        elf_bumps_kernel,
        allocate_elf_bumps,
    ),
    "elf_bumps_inverse": (
        "(Tensor y, Tensor phi, int units, float bound) -> (Tensor, Tensor, Tensor, Tensor)",
        elf_bumps_inverse_kernel,
        allocate_elf_bumps_inverse,
    ),
    "elf_bumps_backward": (
        "(Tensor grad, Tensor? grad_log_slope, Tensor x, Tensor phi, Tensor weights, float bound, Tensor constants,"
        " Tensor places) -> (Tensor, Tensor)",
        elf_bumps_backward_kernel,
        allocate_elf_bumps_backward,
    ),
}
# `torch.library.custom_op` would be shorter, but its wrapper costs 25 microseconds per call.
for _name, (_schema, _kernel, _allocate) in OPERATORS.items():
    torch.library.define(f"elflow::{_name}", _schema)
    torch.library.impl(f"elflow::{_name}", "CPU", _kernel)
    torch.library.register_fake(f"elflow::{_name}", _allocate)
torch.library.register_autograd("elflow::lipschitz", lipschitz_grad, setup_context=lipschitz_setup)
torch.library.register_autograd("elflow::elf", elf_grad, setup_context=elf_setup)
torch.library.register_autograd("elflow::elf_inverse", elf_inverse_grad, setup_context=elf_inverse_setup)
torch.library.register_autograd("elflow::elf_bumps", elf_bumps_grad, setup_context=elf_bumps_setup)
torch.library.register_autograd(
    "elflow::elf_bumps_inverse", elf_bumps_inverse_grad, setup_context=elf_bumps_inverse_setup
)
for _name in ("lipschitz_backward", "elf_backward", "elf_bumps_backward"):
    torch.library.register_autograd(f"elflow::{_name}", refuse_second_derivative, setup_context=save_nothing)
