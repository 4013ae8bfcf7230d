"""The native kernels as functions of tensors: see `_operators.py` for how torch calls them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from elflow.kernels._operators import (
    allocate_constants,
    allocate_elf,
    allocate_elf_backward,
    allocate_elf_bumps,
    allocate_elf_bumps_inverse,
    allocate_elf_inverse,
    allocate_lipschitz_backward,
    pack_units,
    register_kernels,
)
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


def lipschitz_kernel(w1: Tensor, b1: Tensor, w2: Tensor, activation: None = None) -> tuple[Tensor, Tensor]:
    return find_steepest(w1, b1, w2, "sweep")


def lipschitz_backward_kernel(
    grad: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, places: Tensor, activation: None = None
) -> tuple[Tensor, Tensor, Tensor]:
    w1, b1, w2, grad = pack_units(w1), pack_units(b1), pack_units(w2), grad.contiguous()
    grads = allocate_lipschitz_backward(grad, w1)
    networks, addresses = describe_networks(w1, b1, w2), get_addresses(places, grad, *grads)
    extension.lipschitz_backward(networks, *addresses, torch.get_num_threads())
    return grads


def elf_kernel(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = allocate_elf(x, w1)
    transform(x, w1, b1, w2, b2, bound, *results)
    return results


def elf_inverse_kernel(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: None = None
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
    activation: None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, w1, b1, w2 and b2: those of the forward or, without `grad_log_slope`, of the inverse."""
    grads = allocate_elf_backward(grad, grad_log_slope, x, w1)
    w1, b1, w2, x, grad = pack_units(w1), pack_units(b1), pack_units(w2), x.contiguous(), grad.contiguous()
    grad_log_slope = None if grad_log_slope is None else grad_log_slope.contiguous()
    addresses = get_addresses(constants, places, x, grad, grad_log_slope, *grads)
    extension.transform_backward(describe_networks(w1, b1, w2), x.shape[1], bound, *addresses, torch.get_num_threads())
    return grads


def elf_bumps_kernel(
    x: Tensor, phi: Tensor, units: int, bound: float, activation: None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    results = allocate_elf_bumps(x, phi, units, bound)
    y, log_slope, constants, places, weights = results
    w1, b1, w2, b2 = unpack_bumps(phi, units, weights)
    transform(x, w1, b1, w2, b2, bound, y, log_slope, constants, places, phi)
    return results


def elf_bumps_inverse_kernel(
    y: Tensor, phi: Tensor, units: int, bound: float, activation: None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
    activation: None = None,
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


register_kernels(
    "elflow",
    "CPU",
    {
        "lipschitz": lipschitz_kernel,
        "lipschitz_backward": lipschitz_backward_kernel,
        "elf": elf_kernel,
        "elf_inverse": elf_inverse_kernel,
        "elf_backward": elf_backward_kernel,
        "elf_bumps": elf_bumps_kernel,
        "elf_bumps_inverse": elf_bumps_inverse_kernel,
        "elf_bumps_backward": elf_bumps_backward_kernel,
    },
)
