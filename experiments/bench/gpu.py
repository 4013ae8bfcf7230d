"""The Triton kernels: what they take when compiled for GPUs or, on a machine with a GPU, their speed.

Without a GPU the kernels are compiled ahead of time, and their results are checked in Triton's interpreter. The times
are then estimates from instructions and bytes, which only a GPU can confirm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import zuko
from torch import Tensor

from elflow import functional, kernels, testing
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import median_times

__all__ = ["EXPERIMENT"]

UNITS = [8, 16, 32, 64, 128, 256]
MAX_UNITS_WITHOUT_SPILLS = 128
KERNELS = ["elf_bumps", "elf_bumps_inverse", "elf_bumps_backward", "elf", "elf_inverse", "elf_backward", "lipschitz"]
COMPARED = ["paper", "sweep"]
N_EXACT = 10_000
EXACT_UNITS = [1, 2, 3, 5, 8, 16, 33]
PROMISED = {"float32": (2e-5, 1e-5), "float64": (1e-12, 1e-11)}
"""Maximum errors of constants and of the inverse that the documentation promises."""
HYPERNETWORK = 1024, 6, (192,) * 5
"""Batch, features and hidden layers of the hypernetwork to compare with, as in `bench kernels`."""
N_NETWORKS = [6_144, 50_176, 401_408]
"""Numbers of networks on a GPU: the batch of HYPERNETWORK, that of 64 images of 28 x 28, and eight times as many."""
SECONDS = 1.0


@dataclass(frozen=True)
class Device:
    """Published figures of a GPU, for the estimates.

    Arguments:
        name: The product.
        bandwidth: Bytes per second.
        flops: Operations per second in float32, without tensor cores.
        issues: Instructions of a warp per second, over the whole GPU.
        registers: Registers per thread at which a multiprocessor holds a single warp per scheduler, and its rounding.
        warps: Maximum number of warps per scheduler, and schedulers per multiprocessor.
        programs: Maximum number of programs per multiprocessor.
    """

    name: str
    bandwidth: float
    flops: float
    issues: float
    registers: tuple[int, int]
    warps: tuple[int, int]
    programs: int


DEVICES = {
    "sm_80": Device("NVIDIA A100 40GB", 1.555e12, 19.5e12, 108 * 4 * 1.41e9, (512, 8), (16, 4), 32),
    "sm_90": Device("NVIDIA H100 SXM", 3.35e12, 67e12, 132 * 4 * 1.98e9, (512, 8), (16, 4), 32),
    "gfx942": Device("AMD MI300X", 5.3e12, 81.7e12, 0.0, (512, 8), (8, 4), 32),
}


def jobs(plan: Plan) -> list[Job]:
    if torch.cuda.is_available():
        seconds = plan.seconds(SECONDS)
        return [Job(f"measured-{n}", {"networks": n, "seconds": seconds}, exclusive=True) for n in N_NETWORKS]
    units = UNITS if plan.effort >= 0.5 else UNITS[:1]
    names = KERNELS if plan.effort >= 0.5 else KERNELS[:1]
    compiled = [Job(target, {"target": target, "units": units, "kernels": names + COMPARED}) for target in DEVICES]
    return [*compiled, Job("exactness", {"exactness": plan.scaled(N_EXACT), "units": EXACT_UNITS, "seed": plan.seed})]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    if "networks" in settings:
        return measure(settings["networks"], UNITS, settings["seconds"], torch.device("cuda"))
    # Triton decides when it is imported whether it compiles or interprets.
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    if "exactness" in settings:
        return {"errors": _run(_EXACTNESS, environment | {"TRITON_INTERPRET": "1"}, settings)}
    request = json.dumps(settings)
    return {"kernels": _run(["-m", "experiments.bench._gpu_compile", request], environment)}


def _run(arguments: list[str] | str, environment: dict[str, str], settings: Record | None = None) -> Record:
    if isinstance(arguments, str):
        arguments = ["-c", arguments, json.dumps(settings)]
    done = subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    record: Record = json.loads(done.stdout)
    return record


_EXACTNESS = """
import json, sys
from experiments.bench.gpu import find_largest_errors
settings = json.loads(sys.argv[1])
print(json.dumps(find_largest_errors(settings["exactness"], settings["units"], settings["seed"])))
"""


def find_largest_errors(count: int, units: list[int], seed: int, device: str | torch.device = "cpu") -> Record:
    """The largest errors over hostile networks of all kinds, by dtype; on CPUs in Triton's interpreter."""
    generator = torch.Generator().manual_seed(seed)
    record: Record = {}
    for name in PROMISED:
        dtype, total, constants, inverses = getattr(torch, name), 0, [], []
        for h in units:
            share = max(1, -(-count // len(units) // len(testing.NETWORK_KINDS)))
            parts = [testing.make_networks(kind, share, h, dtype, generator) for kind in testing.NETWORK_KINDS]
            w1, b1, w2 = (torch.cat(w) for w in zip(*parts, strict=True))
            y, b2 = torch.randn(2, len(w1), dtype=dtype, generator=generator)
            y = (y * 10.0 ** torch.randint(-3, 9, (len(w1),), generator=generator)).to(dtype)
            y, w1, b1, w2, b2 = (t.to(device) for t in (y, w1, b1, w2, b2))
            with kernels.backend("triton"):
                found = functional.lipschitz(w1, b1, w2)
                inverses.append(testing.inverse_error(y, w1, b1, w2, b2, 0.9999).cpu())
            constants.append(testing.lipschitz_error(found.cpu(), w1.cpu(), b1.cpu(), w2.cpu()))
            total += len(w1)
        errors = [torch.cat(e).nan_to_num(nan=1e9).max().item() for e in (constants, inverses)]
        record[name] = {"networks": total, "constants": errors[0], "inverse": errors[1]}
    return record


# --- estimates --------------------------------------------------------------------------------------------------------


def count_bytes(kernel: str, units: int) -> int:
    """Bytes that a kernel reads and writes for each network with one point, in float32.

    Example:
        >>> count_bytes("elf", 32)
        412
    """
    if kernel in ("lipschitz", "sweep"):
        return 4 * 3 * units + 12
    if kernel == "paper":  # breakpoints and slopes are tensors of their own
        return 4 * (4 * units + 2 * (2 * units + 1))
    size = functional.bump_size(units) if "bumps" in kernel else 3 * units + 1
    if "backward" in kernel:
        return 4 * (2 * size + 4) + 12
    return 4 * (size + (2 if "inverse" in kernel else 3)) + 12


def estimate_occupancy(device: Device, registers: int, warps: int) -> float:
    """The fraction of a multiprocessor's warps that its registers and its number of programs permit.

    Example:
        >>> estimate_occupancy(DEVICES["sm_80"], 128, 1)
        0.25
    """
    total, step = device.registers
    each = -(-registers // step) * step
    most, schedulers = device.warps
    resident = min(most, total // each, max(1, device.programs * warps // schedulers))
    return resident / most


def estimate_time(device: Device, kernel: str, units: int, resources: Record) -> tuple[float, float]:
    """Seconds for each network that memory and instructions take at least."""
    memory = count_bytes(kernel, units) / device.bandwidth
    if "instructions" not in resources:
        return memory, 0.0
    return memory, max(resources["instructions"] / device.issues, resources["flops"] / device.flops)


def estimate_hypernetwork(device: Device, units: int) -> float:
    """Seconds of the hypernetwork's forward pass for each network, at the GPU's full rate without tensor cores."""
    _, features, hidden = HYPERNETWORK
    size = functional.bump_size(units)
    layers = [features, *hidden]
    flops = 2 * (sum(a * b for a, b in zip(layers, hidden, strict=False)) / features + hidden[-1] * size)
    return max(flops / device.flops, 4 * size / device.bandwidth)


# --- measurements on a GPU --------------------------------------------------------------------------------------------


def _run_reference(compiled: Callable[..., Tensor], weights: list[Tensor]) -> Tensor:
    with kernels.backend("reference"):
        return compiled(*weights)


def measure(count: int, units: list[int], seconds: float, device: torch.device) -> Record:
    """Seconds of each function for `count` networks, by units."""
    from experiments.bench._gpu_kernels import find_papers_constants

    generator = torch.Generator().manual_seed(0)
    record: Record = {"device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu", "times": {}}
    for h in units:
        made = testing.make_networks("ordinary", count, h, torch.float32, generator)
        w1, b1, w2 = weights = [w.to(device) for w in made]
        phi = torch.randn(count, functional.bump_size(h), generator=generator).to(device).requires_grad_()
        x = torch.randn(count, generator=generator).to(device)
        y, log_slope = functional.elf_bumps(x, phi, h)
        functions: dict[str, Callable[[], object]] = {
            "lipschitz": partial(functional.lipschitz, w1, b1, w2),
            "paper": partial(find_papers_constants, w1, b1, w2),
            "elf_bumps": partial(functional.elf_bumps, x, phi.detach(), h),
            "elf_bumps_inverse": partial(functional.elf_bumps_inverse, x, phi.detach(), h),
            "elf_bumps_backward": partial(torch.autograd.grad, (y, log_slope), phi, (x, x), retain_graph=True),
            **_make_steps(count, h, device),
        }
        if count * h * h <= 2**28:  # its temporaries have 2 N H^2 elements
            functions["torch.compile"] = partial(_run_reference, torch.compile(functional.lipschitz), weights)
        record["times"][str(h)] = median_times(
            {name: partial(_synchronize, function, device) for name, function in functions.items()}, seconds
        )
    return record


def _make_steps(count: int, units: int, device: torch.device) -> dict[str, Callable[[], object]]:
    """Forward and backward of a masked hypernetwork, without and with the transformation."""
    torch.manual_seed(0)
    _, features, hidden = HYPERNETWORK
    batch, total = max(1, count // features), functional.bump_size(units)
    adjacency = torch.ones(features, features).tril(-1).bool().repeat_interleave(total, 0)
    network = zuko.nn.MaskedMLP(adjacency, hidden, activation=torch.nn.ELU).to(device)
    x = torch.randn(batch, features, device=device)
    grad = torch.randn(batch, features, total, device=device) / batch

    def run_hypernetwork() -> Tensor:
        network.zero_grad()
        return network(x).unflatten(-1, (features, total))

    def run_both() -> None:
        y, log_slope = functional.elf_bumps(x, run_hypernetwork(), units)
        torch.autograd.backward((y, log_slope), (x / batch, x / batch))

    return {"hypernetwork": lambda: torch.autograd.backward(run_hypernetwork(), grad), "training step": run_both}


def _synchronize(function: Callable[[], object], device: torch.device) -> None:
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# --- the report -------------------------------------------------------------------------------------------------------


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    tables, failures, sentences = [], [], []
    for target, device in DEVICES.items():
        if target in records:
            tables += [_tabulate_resources(target, device, records[target])]
            for name, found in records[target]["kernels"].items():
                kernel, units = name.split()
                spills = found["spilled registers"]
                if kernel in KERNELS and spills and int(units) <= MAX_UNITS_WITHOUT_SPILLS:
                    failures.append(f"{target}: {kernel} with {units} units spills {spills} registers")
    if any(target in records for target in DEVICES):
        sentences.append("The kernels were compiled, not run on hardware: all times are estimates.")
    if exactness := records.get("exactness"):
        rows = []
        for dtype, found in exactness["errors"].items():
            limits = PROMISED[dtype]
            errors = found["constants"], found["inverse"]
            rows.append([dtype, f"{found['networks']:,}", *(f"{e:.1e}" for e in errors), *(f"{e:.0e}" for e in limits)])
            failures += [f"{dtype}: error {e:.1e}" for e, limit in zip(errors, limits, strict=True) if not e <= limit]
        columns = ["dtype", "networks", "constants", "inverse", "constants, promised", "inverse, promised"]
        tables.append(Table("Largest errors in Triton's interpreter", columns, rows, "Networks of all hostile kinds."))
    measured = [record for key, record in records.items() if key.startswith("measured")]
    tables += [_tabulate_times(record, count) for record, count in zip(measured, N_NETWORKS, strict=False)]
    return Report(" ".join(sentences), tables, failures=failures)


def _tabulate_resources(target: str, device: Device, record: Record) -> Table:
    rows = []
    for name, found in record["kernels"].items():
        kernel, units = name.split()[0], int(name.split()[1])
        memory, instructions = estimate_time(device, kernel, units, found)
        occupancy = estimate_occupancy(device, int(found["registers"]), int(found["warps"]))
        spills = f"{found['spilled registers']:.0f}"
        counted = "instructions" in found
        rows.append(
            [
                {"paper": "the paper's, Lipschitz constants", "sweep": "sorted sweep, Lipschitz constants"}.get(
                    kernel, kernel
                ),
                str(units),
                f"{found['registers']:.0f}",
                spills,
                f"{found['shared']:.0f}",
                f"{100 * occupancy:.0f} %",
                str(count_bytes(kernel, units)),
                f"{found['flops']:,.0f}" if counted else "",
                f"{found['instructions']:,.0f}" if counted else "",
                f"{1e9 * memory:.2f}",
                f"{1e9 * instructions:.2f}" if counted else "",
                f"{1e9 * estimate_hypernetwork(device, units):.2f}",
            ]
        )
    columns = [
        *("kernel", "units", "registers", "spills", "shared bytes", "occupancy", "bytes", "flops", "warp instructions"),
        *("memory, ns", "instructions, ns", "hypernetwork, ns"),
    ]
    note = (
        "Float32, one point per network; compiled, not run on hardware. Bytes, flops, instructions and estimated times "
        f"are for each network, with the published peak rates of {device.name}. Code outside of the search counts "
        "once: each further candidate, and each further step of an inverse, adds to it. The hypernetwork is the "
        "forward pass of 5 x 192 hidden units for 6 features. The sorted sweep takes no care of rounding."
    )
    return Table(f"{target} ({device.name})", columns, rows, note)


def _tabulate_times(record: Record, count: int) -> Table:
    rows = []
    bandwidth = next((d.bandwidth for d in DEVICES.values() if d.name.split()[1] in record["device"]), None)
    for units, times in record["times"].items():
        share = count * count_bytes("elf_bumps", int(units)) / times["elf_bumps"]
        rows.append(
            [
                units,
                *(f"{1e9 * times[name] / count:.2f}" if name in times else "" for name in TIMED),
                f"{share / bandwidth:.0%}" if bandwidth else f"{share / 1e9:.0f} GB/s",
                f"{times['training step'] / times['hypernetwork']:.2f}",
            ]
        )
    columns = ["units", *(f"{name}, ns" for name in TIMED), "bandwidth of elf_bumps", "step over hypernetwork"]
    return Table(f"{count:,} networks on {record['device']}", columns, rows, "Medians, for each network, float32.")


TIMED = ["elf_bumps", "elf_bumps_inverse", "elf_bumps_backward", "lipschitz", "paper", "torch.compile"]

EXPERIMENT = Experiment("gpu", "The Triton kernels on GPUs", jobs, work, report)
