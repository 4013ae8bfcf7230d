"""The native backend: C++ for CPUs, with Lipschitz constants in O(H log^2 H), fused forward, backward and inverse.

It supports FELU only, and computes in double precision whatever the dtype of the tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from elflow._checks import is_under_transform
from elflow.activations import FELU, PiecewiseQuadratic
from elflow.kernels._native_kernels import (
    elf_bumps_backward_kernel,
    elf_bumps_kernel,
    extension,
    find_steepest,
    import_error,
)
from elflow.kernels._operators import elf_bumps_setup
from elflow.kernels.contract import Backend

__all__ = ["BACKEND", "extension", "find_steepest", "import_error"]


def lipschitz(w1: Tensor, b1: Tensor, w2: Tensor, activation: PiecewiseQuadratic) -> Tensor:
    constants: Tensor = torch.ops.elflow.lipschitz.default(w1, b1, w2)[0]
    return constants.to(w1.dtype)


def elf(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> tuple[Tensor, Tensor]:
    y, log_slope, _, _ = torch.ops.elflow.elf.default(x, w1, b1, w2, b2, bound)
    return y, log_slope


def elf_inverse(
    y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float, activation: PiecewiseQuadratic
) -> Tensor:
    x: Tensor = torch.ops.elflow.elf_inverse.default(y, w1, b1, w2, b2, bound)[0]
    return x


class ElfBumps(torch.autograd.Function):
    """The registered operator of the same name, called directly: torch's dispatcher costs as much as a small batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, phi: Tensor, units: int, bound: float) -> tuple[Tensor, Tensor]:
        outputs = elf_bumps_kernel(x, phi, units, bound)
        elf_bumps_setup(ctx, (x, phi, units, bound, None), outputs)
        return outputs[0], outputs[1]

    @staticmethod
    def backward(ctx: Any, grad_y: Tensor, grad_log_slope: Tensor) -> tuple[Tensor | None, ...]:
        x, phi, weights, constants, places = ctx.saved_tensors
        # With create_graph the backward is differentiated too: the registered operator raises an error then.
        registered = torch.ops.elflow.elf_bumps_backward.default
        backward = registered if torch.is_grad_enabled() else elf_bumps_backward_kernel
        return *backward(grad_y, grad_log_slope, x, phi, weights, ctx.bound, constants, places), None, None


def elf_bumps(
    x: Tensor, phi: Tensor, units: int, bound: float, activation: PiecewiseQuadratic
) -> tuple[Tensor, Tensor]:
    # Tensors without values, while compiling or fake ones, need the operator, which knows the shapes of its results.
    if not torch.compiler.is_compiling() and not isinstance(phi, FakeTensor):
        y, log_slope = ElfBumps.apply(x, phi, units, bound)
        return y, log_slope
    y, log_slope, _, _, _ = torch.ops.elflow.elf_bumps.default(x, phi, units, bound)
    return y, log_slope


def elf_bumps_inverse(y: Tensor, phi: Tensor, units: int, bound: float, activation: PiecewiseQuadratic) -> Tensor:
    x: Tensor = torch.ops.elflow.elf_bumps_inverse.default(y, phi, units, bound)[0]
    return x


def unsupported_reason(dtype: torch.dtype, device: torch.device, activation: PiecewiseQuadratic) -> str | None:
    if import_error:
        return import_error
    if device.type != "cpu":
        return f"it runs on CPUs, not on {device.type}"
    if dtype not in (torch.float32, torch.float64):
        return f"it supports float32 and float64, not {dtype}"
    if activation != FELU:
        return f"it supports FELU, not {activation.name}"
    if is_under_transform():
        return "it does not support torch.func and forward-mode differentiation"
    return None


BACKEND = Backend("native", unsupported_reason, lipschitz, elf, elf_inverse, elf_bumps, elf_bumps_inverse)
