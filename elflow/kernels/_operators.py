"""The native kernels as operators of torch, under the name `elflow`, with their gradients.

So `torch.compile` and `torch.export` see each of them as one node.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from elflow.kernels.contract import LARGEST_LOG, require_finite

extension: Any = None
"""The compiled module, or None where there is none."""
why_not: str | None = None
"""Why there is none."""
try:
    extension = import_module("elflow.kernels._native")
except ModuleNotFoundError:
    why_not = "it was not compiled: install a C++ compiler, then elflow again (pip install -v tells more)"
except ImportError as error:
    why_not = f"it was compiled but does not load: {error}"

ALGORITHMS = "sweep", "direct"
"""Ways to find the Lipschitz constant, in the order of the C++ enumeration. The sweep is ahead at every size."""


# --- operators --------------------------------------------------------------------------------------------------------
# They take N networks of H units with M points each, as in the contract. Next to its results a forward operator returns
# the Lipschitz constants in float64 and the numbers of the places where the slope takes them, which is all that the
# backward operators need to know of the search.


def lipschitz_kernel(w1: Tensor, b1: Tensor, w2: Tensor) -> tuple[Tensor, Tensor]:
    return steepest(w1, b1, w2, "sweep")


def lipschitz_backward_kernel(
    grad: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, places: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    w1, b1, w2, grad = rows(w1), rows(b1), rows(w2), grad.contiguous()
    grads = lipschitz_backward_shape(grad, w1)
    extension.lipschitz_backward(networks(w1, b1, w2), *pointers(places, grad, *grads), torch.get_num_threads())
    return grads


def elf_kernel(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = elf_shape(x, w1)
    transform(x, w1, b1, w2, b2, bound, *results)
    return results


def elf_inverse_kernel(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float
) -> tuple[Tensor, Tensor, Tensor]:
    results = elf_inverse_shape(y, w1)
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
    """Gradients of x, w1, b1, w2 and b2; of the inverse where there is no gradient of a log-slope."""
    grads = elf_backward_shape(grad, grad_log_slope, x, w1)
    w1, b1, w2, x, grad = rows(w1), rows(b1), rows(w2), x.contiguous(), grad.contiguous()
    grad_log_slope = None if grad_log_slope is None else grad_log_slope.contiguous()
    addresses = pointers(constants, places, x, grad, grad_log_slope, *grads)
    extension.transform_backward(networks(w1, b1, w2), x.shape[1], bound, *addresses, torch.get_num_threads())
    return grads


def elf_bumps_kernel(x: Tensor, phi: Tensor, units: int, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    results = elf_bumps_shape(x, phi, units, bound)
    y, log_slope, constants, places, weights = results
    w1, b1, w2, b2 = unpacked(phi, units, weights)
    transform(x, w1, b1, w2, b2, bound, y, log_slope, constants, places, phi)
    return results


def elf_bumps_inverse_kernel(y: Tensor, phi: Tensor, units: int, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = elf_bumps_inverse_shape(y, phi, units, bound)
    x, constants, places, weights = results
    w1, b1, w2, b2 = unpacked(phi, units, weights)
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
    """Gradients of x and phi; of the inverse where there is no gradient of a log-slope."""
    w1, b1, w2 = weights
    grad_x, *grads, grad_b2 = elf_backward_kernel(grad, grad_log_slope, x, w1, b1, w2, bound, constants, places)
    phi, grad_phi = rows(phi), phi.new_empty(phi.shape)
    grad_phi[:, -1] = grad_b2
    bumps(phi, w1.shape[1], grads, grad_phi)
    return grad_x, grad_phi


def unpacked(phi: Tensor, units: int, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """w1, b1 and w2, which are written into the weights `(3, N, units)`, and b2."""
    phi = rows(phi)
    w1, b1, w2 = weights
    bumps(phi, units, [w1, b1, w2], None)
    return w1, b1, w2, phi[:, -1]


def bumps(phi: Tensor, units: int, weights: list[Tensor], grad: Tensor | None) -> None:
    """Writes the weights or, given their gradients, that of phi where there is room for it."""
    memory = phi.data_ptr(), phi.stride(0), *pointers(*weights, grad), phi.shape[1]
    extension.bumps(phi.dtype == torch.float64, len(phi), units, LARGEST_LOG, *memory, torch.get_num_threads())


def steepest(w1: Tensor, b1: Tensor, w2: Tensor, algorithm: str) -> tuple[Tensor, Tensor]:
    """The Lipschitz constants by one of `ALGORITHMS`, and where the slope takes them."""
    w1, b1, w2 = rows(w1), rows(b1), rows(w2)
    constants, places = steepness(w1)
    code = ALGORITHMS.index(algorithm)
    if not extension.lipschitz(networks(w1, b1, w2), *pointers(constants, places), code, torch.get_num_threads()):
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
    w1, b1, w2, given = rows(w1), rows(b1), rows(w2), given.contiguous()
    addresses = pointers(given, result, log_slope, constants, places)
    if not extension.transform(networks(w1, b1, w2, b2), given.shape[1], bound, *addresses, torch.get_num_threads()):
        require_finite(w1=w1, b1=b1, w2=w2, b2=b2, phi=phi)


def networks(*parameters: Tensor) -> Any:
    """What the extension is told of the networks: their sizes, and each parameter's address and distance of rows."""
    w1 = parameters[0]
    memory = [number for p in parameters for number in (p.data_ptr(), p.stride(0))]
    return extension.Networks(w1.dtype == torch.float64, *w1.shape, *memory)


def pointers(*tensors: Tensor | None) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in tensors]


def rows(t: Tensor) -> Tensor:
    return t if t.stride(1) == 1 or t.shape[1] == 1 else t.contiguous()


# --- what the operators return, for tracing ---------------------------------------------------------------------------


def steepness(w1: Tensor) -> tuple[Tensor, Tensor]:
    return w1.new_empty(w1.shape[0], dtype=torch.float64), w1.new_empty(w1.shape[0], dtype=torch.int32)


def lipschitz_shape(w1: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return steepness(w1)


def lipschitz_backward_shape(grad: Tensor, w1: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return w1.new_empty(w1.shape), w1.new_empty(w1.shape), w1.new_empty(w1.shape)


def elf_shape(x: Tensor, w1: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape), *steepness(w1)


def elf_inverse_shape(y: Tensor, w1: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return y.new_empty(y.shape), *steepness(w1)


def elf_backward_shape(
    grad: Tensor, grad_log_slope: Tensor | None, x: Tensor, w1: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), *lipschitz_backward_shape(grad, w1), w1.new_empty(w1.shape[0])


def elf_bumps_shape(x: Tensor, phi: Tensor, units: int, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return *elf_shape(x, phi), phi.new_empty(3, phi.shape[0], units)


def elf_bumps_inverse_shape(y: Tensor, phi: Tensor, units: int, bound: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *elf_inverse_shape(y, phi), phi.new_empty(3, phi.shape[0], units)


def elf_bumps_backward_shape(
    grad: Tensor, grad_log_slope: Tensor | None, x: Tensor, phi: Tensor, *_: Any
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


def no_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    pass


def no_second_derivative(ctx: Any, *_: Tensor) -> None:
    raise RuntimeError(
        "the native backend of elflow has no second derivatives: compute them under elflow.kernels.backend('reference')"
    )


WEIGHTS = "Tensor w1, Tensor b1, Tensor w2"
OPERATORS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any]]] = {
    "lipschitz": (f"({WEIGHTS}) -> (Tensor, Tensor)", lipschitz_kernel, lipschitz_shape),
    "lipschitz_backward": (
        f"(Tensor grad, {WEIGHTS}, Tensor places) -> (Tensor, Tensor, Tensor)",
        lipschitz_backward_kernel,
        lipschitz_backward_shape,
    ),
    "elf": (
        f"(Tensor x, {WEIGHTS}, Tensor b2, float bound) -> (Tensor, Tensor, Tensor, Tensor)",
        elf_kernel,
        elf_shape,
    ),
    "elf_inverse": (
        f"(Tensor y, {WEIGHTS}, Tensor b2, float bound) -> (Tensor, Tensor, Tensor)",
        elf_inverse_kernel,
        elf_inverse_shape,
    ),
    "elf_backward": (
        f"(Tensor grad, Tensor? grad_log_slope, Tensor x, {WEIGHTS}, float bound, Tensor constants, Tensor places)"
        " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        elf_backward_kernel,
        elf_backward_shape,
    ),
    "elf_bumps": (
        "(Tensor x, Tensor phi, int units, float bound) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
        elf_bumps_kernel,
        elf_bumps_shape,
    ),
    "elf_bumps_inverse": (
        "(Tensor y, Tensor phi, int units, float bound) -> (Tensor, Tensor, Tensor, Tensor)",
        elf_bumps_inverse_kernel,
        elf_bumps_inverse_shape,
    ),
    "elf_bumps_backward": (
        "(Tensor grad, Tensor? grad_log_slope, Tensor x, Tensor phi, Tensor weights, float bound, Tensor constants,"
        " Tensor places) -> (Tensor, Tensor)",
        elf_bumps_backward_kernel,
        elf_bumps_backward_shape,
    ),
}
# `torch.library.custom_op` would say this more briefly, but costs 25 microseconds a call.
for _name, (_schema, _kernel, _shape) in OPERATORS.items():
    torch.library.define(f"elflow::{_name}", _schema)
    torch.library.impl(f"elflow::{_name}", "CPU", _kernel)
    torch.library.register_fake(f"elflow::{_name}", _shape)
torch.library.register_autograd("elflow::lipschitz", lipschitz_grad, setup_context=lipschitz_setup)
torch.library.register_autograd("elflow::elf", elf_grad, setup_context=elf_setup)
torch.library.register_autograd("elflow::elf_inverse", elf_inverse_grad, setup_context=elf_inverse_setup)
torch.library.register_autograd("elflow::elf_bumps", elf_bumps_grad, setup_context=elf_bumps_setup)
torch.library.register_autograd(
    "elflow::elf_bumps_inverse", elf_bumps_inverse_grad, setup_context=elf_bumps_inverse_setup
)
for _name in ("lipschitz_backward", "elf_backward", "elf_bumps_backward"):
    torch.library.register_autograd(f"elflow::{_name}", no_second_derivative, setup_context=no_setup)
