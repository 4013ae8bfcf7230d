"""The Triton backend: CUDA and ROCm devices, all functions fused, one network per row of a tile of registers.

With the environment variable `TRITON_INTERPRET=1` Triton's interpreter runs it on CPU tensors: slowly, for trying it
out and for tests.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from elflow._checks import is_under_transform
from elflow.activations import PiecewiseQuadratic
from elflow.kernels import reference
from elflow.kernels._operators import define_operators, encode_activation, register_kernels
from elflow.kernels.contract import Backend

__all__ = ["BACKEND", "interpreted"]

MAX_UNITS = 2048
"""Networks with more units are left to the reference: their breakpoints would not fit into registers."""

MAX_BREAKPOINTS = 8
"""Activations with more breakpoints are left to the reference, for the same reason."""

OLDEST = 3, 7
"""The oldest version of Triton that the kernels are tested with."""

interpreted = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether the kernels run in Triton's interpreter, on CPU tensors."""


def find_import_error() -> str | None:
    """The reason why this build of torch and of Triton cannot run the kernels, or None."""
    if not (interpreted or torch.version.cuda or torch.version.hip):
        return "this build of torch is for CPUs only; set TRITON_INTERPRET=1 to use Triton's interpreter"
    try:
        version = import_module("triton").__version__
    except ImportError as error:
        return f"Triton cannot be imported (pip install 'elflow[gpu]'): {error}"
    if tuple(int(number) for number in version.split(".")[:2]) < OLDEST:
        return f"Triton must be {'.'.join(map(str, OLDEST))} or newer, got {version}"
    return None


import_error = find_import_error()
"""The reason why Triton cannot be used, or None."""
if import_error is None:
    kernels = import_module("elflow.kernels._triton_launch").KERNELS
    if interpreted:
        define_operators("elflow_interpreted")
        register_kernels("elflow_interpreted", "CPU", kernels)
    else:
        register_kernels("elflow", "CUDA", kernels)


def get_operators() -> Any:
    return torch.ops.elflow_interpreted if interpreted else torch.ops.elflow


def lipschitz(w1: Tensor, b1: Tensor, w2: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    if w1.shape[1] > MAX_UNITS:
        return reference.BACKEND.lipschitz(w1, b1, w2, activation)
    constants: Tensor = get_operators().lipschitz.default(w1, b1, w2, encode_activation(activation))[0]
    return constants.to(w1.dtype)


def elf(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> tuple[Tensor, Tensor]:
    if w1.shape[1] > MAX_UNITS:
        return reference.BACKEND.elf(x, w1, b1, w2, b2, bound, activation)
    y, log_slope, _, _ = get_operators().elf.default(x, w1, b1, w2, b2, bound, encode_activation(activation))
    return y, log_slope


def elf_inverse(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> Tensor:
    if w1.shape[1] > MAX_UNITS:
        return reference.BACKEND.elf_inverse(y, w1, b1, w2, b2, bound, activation)
    code = encode_activation(activation)
    x: Tensor = get_operators().elf_inverse.default(y, w1, b1, w2, b2, bound, code)[0]
    return x


def elf_bumps(
    x: Tensor, phi: Tensor, units: int, bound: float, activation: PiecewiseQuadratic
) -> tuple[Tensor, Tensor]:
    if units > MAX_UNITS:
        return reference.BACKEND.elf_bumps(x, phi, units, bound, activation)
    y, log_slope, *_ = get_operators().elf_bumps.default(x, phi, units, bound, encode_activation(activation))
    return y, log_slope


def elf_bumps_inverse(y: Tensor, phi: Tensor, units: int, bound: float, activation: PiecewiseQuadratic) -> Tensor:
    if units > MAX_UNITS:
        return reference.BACKEND.elf_bumps_inverse(y, phi, units, bound, activation)
    code = encode_activation(activation)
    x: Tensor = get_operators().elf_bumps_inverse.default(y, phi, units, bound, code)[0]
    return x


def unsupported_reason(dtype: torch.dtype, device: torch.device, activation: PiecewiseQuadratic) -> str | None:
    if import_error:
        return import_error
    if device.type != ("cpu" if interpreted else "cuda"):
        where = "in Triton's interpreter, which takes CPU tensors," if interpreted else "on CUDA and ROCm devices,"
        return f"it runs {where} not on {device.type}"
    if dtype not in (torch.float32, torch.float64):
        return f"it supports float32 and float64, not {dtype}"
    if not activation.smooth or len(activation.breakpoints) > MAX_BREAKPOINTS:
        return f"it supports smooth activations with up to {MAX_BREAKPOINTS} breakpoints, not {activation.name}"
    if dtype == torch.float32 and any(point * 2**16 % 1 for point in activation.breakpoints):
        return f"it supports breakpoints that are multiples of 2^-16 in float32, not those of {activation.name}"
    if is_under_transform():
        return "it does not support torch.func and forward-mode differentiation"
    return None


BACKEND = Backend("triton", unsupported_reason, lipschitz, elf, elf_inverse, elf_bumps, elf_bumps_inverse)
