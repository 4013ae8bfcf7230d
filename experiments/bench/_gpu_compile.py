"""Compile the Triton kernels for a GPU and print their resources as JSON: `python -m experiments.bench._gpu_compile`.

A process of its own, because Triton's interpreter cannot be switched off once it is on.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import triton

from elflow.kernels import ahead
from experiments.bench._gpu_kernels import PAPER_TILE, paper_kernel, sweep_kernel

__all__ = ["describe_kernel", "find_loops"]

Resources = dict[str, float]
FLOPS = {"FFMA": 2, "FADD": 1, "FMUL": 1, "DFMA": 2, "DADD": 1, "DMUL": 1}


def describe_kernel(name: str, units: int, target: str) -> Resources:
    """Registers, spilled bytes, shared memory and instructions of a kernel, compiled for float32.

    `instructions` counts those of a warp for each network, if the code outside of the search runs once; `search` is the
    part of the search. They are left out for AMD's GPUs, whose loops are not analysed.
    """
    compiled, rows, pairs = _compile(name, units, target)
    warps = compiled.metadata.num_warps
    found: Resources = {"warps": warps, "rows": rows, "shared": compiled.metadata.shared}
    if "amdgcn" in compiled.asm:
        text = compiled.asm["amdgcn"]
        for key, label in (("registers", ".vgpr_count"), ("spilled registers", ".vgpr_spill_count")):
            found[key] = _find_number(rf"\{label}:\s+", text)
        found["stack"] = _find_number("ScratchSize: ", text)
        return found
    usage, assembly = _disassemble(compiled.asm["cubin"])
    found["registers"] = _find_number("REG:", usage)
    found["stack"] = _find_number("STACK:", usage)
    found["spilled registers"] = len(re.findall(r"\bSTL", assembly))
    return found | _count_work(assembly, pairs, warps / rows)


def _find_number(label: str, text: str) -> int:
    return int(re.findall(label + r"(\d+)", text)[0])


def _compile(name: str, units: int, target: str) -> tuple[Any, float, float]:
    """The kernel, its networks per program, and its pairs of a breakpoint and a unit per thread."""
    block = max(2, triton.next_power_of_2(units))
    if name == "paper":
        signature = dict.fromkeys(("w1", "w2", "points", "tops", "feet", "slopes"), "*fp32")
        kernel = ahead.compile_source(paper_kernel, signature, {"TILE": PAPER_TILE}, {"num_warps": 1}, target)
        return kernel, 1 / triton.cdiv(2 * units + 1, PAPER_TILE), units
    if name == "sweep":
        signature = dict.fromkeys(("w1", "b1", "w2", "constants"), "*fp32")
        return ahead.compile_source(sweep_kernel, signature, {"BLOCK": block}, {"num_warps": 1}, target), 1, 0
    kernel = ahead.compile_kernel(name, units, torch.float32, target)
    rows = max(1, 32 // block)
    if "backward" in name:  # no search, and one point
        return kernel, rows, 0
    return kernel, rows, rows * 2 * block * units / (32 * kernel.metadata.num_warps)


def _disassemble(cubin: bytes) -> tuple[str, str]:
    tool = triton.knobs.nvidia.cuobjdump.path
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        outputs = [
            subprocess.run([tool, option, file.name], capture_output=True, text=True, check=True).stdout
            for option in ("-res-usage", "-sass")
        ]
    return outputs[0], outputs[1]


def find_loops(instructions: Mapping[int, str]) -> list[tuple[int, int]]:
    """First and last address of each loop: where a branch goes backwards.

    Example:
        >>> find_loops({0: "MOV", 16: "FADD", 32: "@P0 BRA 0x10", 48: "BRA 0x30"})
        [(16, 32)]
    """
    loops = []
    for address, text in instructions.items():
        branch = re.search(r"BRA(?:\.\w+)* .*?0x([0-9a-f]+)", text)
        if branch and int(branch[1], 16) < address:
            loops.append((int(branch[1], 16), address))
    return loops


def _count_work(assembly: str, pairs: float, warps_per_network: float) -> Resources:
    """Instructions of a warp and floating-point operations of all threads for each network."""
    instructions = {int(m[1], 16): m[2] for m in re.finditer(r"/\*([0-9a-f]{4,5})\*/\s+([^;]*);", assembly)}
    trips = dict.fromkeys(instructions, 1.0)
    # The search is the loop with most saturating products or, in the paper's kernel, reciprocals: one for each pair of
    # a breakpoint and a unit. What is left over by unrolling runs in a second, shorter loop.
    pattern = "FFMA.SAT" if "FFMA.SAT" in assembly else "MUFU.RCP"
    searches = [
        (sum(pattern in text for at, text in instructions.items() if start <= at <= end), start, end)
        for start, end in find_loops(instructions)
    ]
    if pairs and (searches := [s for s in searches if s[0]]):
        _, start, end = longest = max(searches, key=lambda s: (s[0], s[1]))
        for at in instructions:
            if start <= at <= end:
                trips[at] = pairs / longest[0]
    flops = {
        at: FLOPS.get(re.sub(r"^@!?U?P\d+ ", "", text).split(".")[0].split(" ")[0], 0)
        for at, text in instructions.items()
    }
    return {
        "code": len(instructions),
        "instructions": warps_per_network * sum(trips.values()),
        "search": warps_per_network * sum(n for n in trips.values() if n != 1),
        "flops": 32 * warps_per_network * sum(trips[at] * n for at, n in flops.items()),
        "arithmetic": warps_per_network * sum(trips[at] for at, n in flops.items() if n),
    }


if __name__ == "__main__":
    request = json.loads(sys.argv[1])
    print(
        json.dumps(
            {
                f"{name} {units}": describe_kernel(name, units, request["target"])
                for name in request["kernels"]
                for units in request["units"]
            }
        )
    )
