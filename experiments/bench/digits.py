"""Speed of sampling in 64 dimensions: exact sweeps, the paper's fixed point, and one coordinate after the other.

The flow is trained on scikit-learn's digits of 8x8 pixels, dequantised.
"""

from __future__ import annotations

from pathlib import Path

import torch

from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.measure import median_times
from experiments.paper.sampling import METHOD_TITLES, compare_methods, fit_digits

__all__ = ["EXPERIMENT"]

FLOW = {"transforms": 3, "units": 16, "hidden_features": [256, 256]}
STEPS, LEARNING_RATE = 3_000, 1e-3
SECONDS = 60.0
N_SAMPLES, N_SLOW_SAMPLES = 1_000, 50
"""Numbers of samples of exact sweeps, and of each method for the comparison of network evaluations."""
LOOSE_TOLERANCE = 5e-5


def jobs(plan: Plan) -> list[Job]:
    sizes = {"flow": FLOW, "steps": plan.scaled(STEPS), "learning_rate": LEARNING_RATE, "seed": plan.seed}
    counts = {"samples": N_SAMPLES, "slow_samples": N_SLOW_SAMPLES, "seconds": plan.seconds(SECONDS)}
    return [Job("sampling", sizes | counts)]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    fitted = fit_digits(settings["flow"], settings["steps"], settings["learning_rate"], settings["seed"])
    torch.manual_seed(settings["seed"] + 1)
    z = torch.randn(settings["samples"], fitted.flow.features)
    with torch.no_grad():
        _, loose = fitted.flow.inverse(z, tol=LOOSE_TOLERANCE, return_info=True)
        times = median_times(
            {
                "exact": lambda: fitted.invert(z, "exact"),
                "loose": torch.no_grad()(lambda: fitted.flow.inverse(z, tol=LOOSE_TOLERANCE)),
                "sequential": lambda: fitted.invert(z, "sequential"),
            },
            settings["seconds"],
        )
    return {
        "steps": settings["steps"],
        "bits": fitted.bits,
        "methods": compare_methods(fitted.invert, z, settings["slow_samples"]),
        "loose": {"calls": list(loose.calls), "residual": loose.residual, "converged": loose.converged},
        "times": times,
    }


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    (record,) = records.values()
    rows = [
        [
            f"ELF, {METHOD_TITLES[each['method']]}",
            f"{each['samples']:,}",
            ", ".join(map(str, each["calls"])),
            "not finite" if each["residual"] is None else f"{each['residual']:.1e}",
            "yes" if each["converged"] else "no",
        ]
        for each in record["methods"]
    ]
    loose = record["loose"]
    title = f"ELF, exact sweeps, tolerance {LOOSE_TOLERANCE:g}"
    calls = ", ".join(map(str, loose["calls"]))
    rows.append([title, f"{N_SAMPLES:,}", calls, f"{loose['residual']:.1e}", "yes" if loose["converged"] else "no"])
    times = record["times"]
    names = {"exact": "ELF, exact sweeps", "loose": title, "sequential": "ELF, one coordinate after the other"}
    speeds = [[name, f"{times[key]:.3f}", f"{times['sequential'] / times[key]:.1f}"] for key, name in names.items()]
    text = (
        f"Exact sweeps are {times['sequential'] / times['exact']:.1f} times as fast as one coordinate after the other, "
        f"and {times['sequential'] / times['loose']:.1f} times with a tolerance of {LOOSE_TOLERANCE:g}. The flow has "
        f"{record['bits']:.3f} bits per dimension of test images after {record['steps']:,} steps."
    )
    tables = [
        Table("Network calls", ["method", "samples", "calls per layer", "residual", "converged"], rows),
        Table("Times", ["method", "seconds", "speed-up"], speeds, "One thread, medians of interleaved calls."),
    ]
    return Report(text, tables)


EXPERIMENT = Experiment("digits", "Speed of sampling in 64 dimensions", jobs, work, report, exclusive=True)
