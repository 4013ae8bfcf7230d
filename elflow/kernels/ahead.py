"""Ahead-of-time compilation of the Triton kernels, which needs no GPU: for benchmarks and to read the assembly."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from elflow.kernels._triton_kernels import backward_kernel, transform_kernel
from elflow.kernels._triton_launch import choose_options, choose_tile, make_constants

__all__ = ["KERNELS", "TARGETS", "compile_kernel", "compile_source"]

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
"""The architectures to compile for: NVIDIA A100, NVIDIA H100 and AMD MI300."""

KERNELS = "lipschitz", "elf", "elf_inverse", "elf_backward", "elf_bumps", "elf_bumps_inverse", "elf_bumps_backward"
"""The operators whose kernels can be compiled, for one point per network."""

POINTERS = {
    transform_kernel: ("given", "w1", "b1", "w2", "b2", "result", "log_slope"),
    backward_kernel: (
        *("grad", "grad_log_slope", "x", "w1", "b1", "w2", "grad_x", "grad_w1", "grad_b1", "grad_w2", "grad_b2"),
        *("grad_log_s", "out_w1", "out_b1", "out_w2", "out_b2"),
    ),
}
SIZES = "w1_row", "b1_row", "w2_row", "b2_row", "grad_row", "count", "points", "splits", "units"


def compile_kernel(name: str, units: int, dtype: torch.dtype, target: str) -> Any:
    """Compile the kernel of an operator, as for a batch of networks with `units` units and one point each.

    Arguments:
        name: One of `KERNELS`.
        units: The number of units H.
        dtype: float32 or float64.
        target: One of `TARGETS`.

    Returns:
        The compiled kernel of Triton: `.asm` holds its assembly, `.metadata` its resources.
    """
    is_backward = name.endswith("backward")
    kernel = backward_kernel if is_backward else transform_kernel
    constants: dict[str, Any] = {
        "INVERSE": "inverse" in name,
        "BUMPS": "bumps" in name,
        "BOUND": 0.99,
        **make_constants(None, dtype),
    }
    if is_backward:
        constants |= {"POINTWISE": True, "FINISH": True, "LIPSCHITZ": False}
    else:
        constants |= {"KINKS": 2, "SEARCH": True, "TRANSFORM": name != "lipschitz"}
    tile = choose_tile(units, 2**20, dtype, is_backward)
    options = {"num_warps": tile.pop("num_warps"), **choose_options(TARGETS[target].backend == "hip")}
    pointer = "*fp32" if dtype == torch.float32 else "*fp64"
    signature = {"constants": "*fp64", "places": "*i32", **dict.fromkeys(POINTERS[kernel], pointer)}
    return compile_source(kernel, signature, constants | tile, options, target)


def compile_source(
    kernel: Any, signature: dict[str, str], constants: dict[str, Any], options: dict[str, Any], target: str
) -> Any:
    """Compile any Triton kernel for one of `TARGETS`.

    Arguments:
        kernel: A function decorated with `triton.jit`.
        signature: The types of its pointers, such as `*fp32`. Its other arguments are integers or in `constants`.
        constants: Its compile-time constants.
        options: Options of the compiler.
        target: One of `TARGETS`.
    """
    types = {name: "constexpr" if name in constants else signature.get(name, "i32") for name in kernel.arg_names}
    # Pointers are aligned to 16 bytes, and row strides are divisible by 16, as in a launch.
    attributes = {
        (i,): [["tt.divisibility", 16]] for i, (name, kind) in enumerate(types.items()) if kind.startswith("*")
    }
    source = ASTSource(kernel, types, {(kernel.arg_names.index(n),): v for n, v in constants.items()}, attributes)
    return triton.compile(source, target=TARGETS[target], options=options)
