"""Exactness of the one-dimensional network over a million networks for each dtype and instruction set.

Every kind of network in `elflow.testing.NETWORK_KINDS`, most of them hostile, with 1 to 1000 units: against direct
evaluation in wider arithmetic, against dense search, and through the inverse and back at bounds up to 0.9999. All
instruction sets that the machine has are compared; `bench gpu` does the same with Triton.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Generator

from elflow import functional, testing
from elflow.kernels import native
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table

__all__ = ["EXPERIMENT"]

N_NETWORKS = 1_000_000
PROMISED = {
    "float32": {"lipschitz": 2e-5, "dense search": 2e-5, "inverse": 1e-5},
    "float64": {"lipschitz": 1e-12, "dense search": 1e-12, "inverse": 1e-11},
}
"""Maximum errors that the documentation promises."""
SHARES = {1: 0.1, 2: 0.1, 3: 0.1, 5: 0.1, 8: 0.15, 16: 0.2, 33: 0.15, 64: 0.08, 128: 0.019, 1000: 0.001}
"""Fraction of the networks by number of units: many small ones, a few large ones."""
PLAIN = "plain torch"
"""Name for machines without the native kernel."""
BOUNDS = (0.5, 0.99, 0.9999)
DISTANCES = (1e-3, 1.0, 1e3, 1e8)


def jobs(plan: Plan) -> list[Job]:
    shared = {"networks": plan.scaled(N_NETWORKS), "seed": plan.seed}
    return [
        Job(f"{isa}-{dtype}-{kind}", {"instruction_set": isa, "dtype": dtype, "kind": kind} | shared)
        for isa in _list_instruction_sets()
        for dtype in PROMISED
        for kind in testing.NETWORK_KINDS
    ]


def _list_instruction_sets() -> list[str]:
    """Instruction sets of the native kernel on this machine."""
    return native.extension.instruction_sets() if native.extension else [PLAIN]


@contextmanager
def _computing_with(instruction_set: str) -> Iterator[None]:
    if instruction_set == PLAIN:
        yield
        return
    extension = native.extension
    assert extension is not None
    before = extension.instruction_set()
    extension.choose_instruction_set(instruction_set)
    try:
        yield
    finally:
        extension.choose_instruction_set(before)


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """The largest errors over the networks of one kind."""
    with _computing_with(settings["instruction_set"]):
        return _measure(settings)


def _measure(settings: Record) -> Record:
    generator = Generator().manual_seed(settings["seed"])
    dtype = getattr(torch, settings["dtype"])
    errors, total = dict.fromkeys(PROMISED[settings["dtype"]], -math.inf), 0
    for units, share in SHARES.items():
        count = max(1, math.ceil(settings["networks"] * share / len(testing.NETWORK_KINDS)))
        total += count
        for check, error in _find_largest_errors(settings["kind"], units, count, dtype, generator).items():
            errors[check] = max(errors[check], error)
    names = ("instruction_set", "dtype", "kind")
    return {name: settings[name] for name in names} | {"networks": total, "errors": errors}


def _find_largest_errors(
    kind: str, units: int, count: int, dtype: torch.dtype, generator: Generator
) -> dict[str, float]:
    errors = {"lipschitz": 0.0, "dense search": -math.inf, "inverse": 0.0}
    block = max(1, min(count, 2**17 // units))
    for start in range(0, count, block):
        n = min(block, count - start)
        w1, b1, w2 = testing.make_networks(kind, n, units, dtype, generator)
        b2, noise = torch.randn(2, n, dtype=dtype, generator=generator)
        constants = functional.lipschitz(w1, b1, w2)
        found = {
            "lipschitz": testing.lipschitz_error(constants, w1, b1, w2),
            "dense search": testing.excess_slope(constants, w1, b1, w2, generator, points=32),
        }
        for check, error in found.items():
            errors[check] = max(errors[check], error.max().item())
        for bound in BOUNDS:
            for distance in DISTANCES:
                error = testing.inverse_error(distance * noise, w1, b1, w2, b2, bound)
                largest = error.nan_to_num(nan=math.inf).max().item()
                errors["inverse"] = max(errors["inverse"], min(largest, torch.finfo(torch.float64).max))
    return errors


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    tables, failures = [], []
    for dtype, promised in PROMISED.items():
        some = [record for record in records.values() if record["dtype"] == dtype]
        rows = [
            [isa, f"{sum(r['networks'] for r in own):,}", *(f"{_find_largest(own, check):.1e}" for check in promised)]
            for isa in dict.fromkeys(r["instruction_set"] for r in some)
            for own in [[r for r in some if r["instruction_set"] == isa]]
        ]
        rows.append(["promised", "", *(f"{limit:.0e}" for limit in promised.values())])
        tables.append(Table(f"Largest errors, {dtype}", ["instruction set", "networks", *promised], rows))
        failures += [
            f"{r['instruction_set']} {dtype} {r['kind']}: {check} has an error of {r['errors'][check]:.1e}, "
            f"promised is {limit:.0e}"
            for r in some
            for check, limit in promised.items()
            if r["errors"][check] > limit
        ]
    total = sum(record["networks"] for record in records.values())
    verdict = f"{len(failures)} errors are larger than promised" if failures else "No error is larger than promised"
    text = (
        f"{verdict}, over {total:,} networks. Errors of constants are relative; those of the inverse are relative to "
        "the largest of 1, abs(y) and abs(x)."
    )
    return Report(text, tables, failures=failures)


def _find_largest(records: list[Record], check: str) -> float:
    return max(record["errors"][check] for record in records)


EXPERIMENT = Experiment("exactness", "Exactness of the one-dimensional network", jobs, work, report)
