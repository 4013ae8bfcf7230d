"""The list of all experiments: names, groups and modules are written here and nowhere else."""

from __future__ import annotations

from elflow._checks import check_choice
from experiments.framework.experiment import Experiment, Group

__all__ = ["GROUPS", "load"]

GROUPS = {
    "paper": Group(
        "paper",
        "The paper's experiments with elflow",
        "Tables and figures of *ELF: Exact-Lipschitz Based Universal Density Approximator Flow* (Gopal, 2021), run "
        "again, beside the systems that it compares with. Rows about ELF are highlighted; rows in grey are published "
        "figures, which were not measured here.",
        {
            "networks": "experiments.paper.networks:EXPERIMENT",
            "absolute-value": "experiments.paper.absolute_value:EXPERIMENT",
            "relu-flow": "experiments.paper.relu_flow:EXPERIMENT",
            "runtime": "experiments.paper.runtime:EXPERIMENT",
            "theory": "experiments.paper.theory:EXPERIMENT",
            "eight-gaussians": "experiments.paper.toys:EIGHT_GAUSSIANS",
            "checkerboard": "experiments.paper.toys:CHECKERBOARD",
            "limits": "experiments.paper.limits:EXPERIMENT",
            "ablation": "experiments.paper.ablation:EXPERIMENT",
            "tabular": "experiments.paper.tabular:EXPERIMENT",
            "images": "experiments.paper.images:EXPERIMENT",
            "parameter-efficiency": "experiments.paper.parameter_efficiency:EXPERIMENT",
            "sampling": "experiments.paper.sampling:EXPERIMENT",
            "samples": "experiments.paper.samples:EXPERIMENT",
        },
        help="run the paper's experiments",
        # Together 47 CPU minutes: 24 minutes on two quiet cores. The rest of 45 minutes is for jobs that outlast a
        # budget, for timings, which run alone, and for cores that are not quiet.
        budgets={
            "networks": 10,
            "absolute-value": 60,
            "relu-flow": 120,
            "runtime": 30,
            "theory": 20,
            "eight-gaussians": 450,
            "checkerboard": 500,
            "limits": 150,
            "ablation": 350,
            "tabular": 300,
            "images": 450,
            "parameter-efficiency": 150,
            "sampling": 200,
            "samples": 40,
        },
    ),
    "bench": Group(
        "bench",
        "Benchmarks of elflow",
        "Speed, quality, exactness and robustness of elflow, beside other systems where they do the same. Rows about "
        "ELF are highlighted.",
        {
            "kernels": "experiments.bench.kernels:EXPERIMENT",
            "gpu": "experiments.bench.gpu:EXPERIMENT",
            "exactness": "experiments.bench.exactness:EXPERIMENT",
            "versions": "experiments.bench.versions:EXPERIMENT",
            "flows": "experiments.bench.flows:EXPERIMENT",
            "digits": "experiments.bench.digits:EXPERIMENT",
            "threads": "experiments.bench.threads:EXPERIMENT",
            "toys": "experiments.bench.toys:EXPERIMENT",
            "tables": "experiments.bench.tables:EXPERIMENT",
            "floor": "experiments.bench.floor:EXPERIMENT",
            "race": "experiments.bench.race:EXPERIMENT",
            "horizon": "experiments.bench.horizon:EXPERIMENT",
            "simulators": "experiments.bench.simulators:EXPERIMENT",
            "sbi": "experiments.bench.sbi:EXPERIMENT",
            "anomalies": "experiments.bench.anomalies:EXPERIMENT",
            "mixed": "experiments.bench.mixed:EXPERIMENT",
            "quantiles": "experiments.bench.quantiles:EXPERIMENT",
            "conditions": "experiments.bench.conditions:EXPERIMENT",
            "imputation": "experiments.bench.imputation:EXPERIMENT",
            "drift": "experiments.bench.drift:EXPERIMENT",
            "crash": "experiments.bench.crash:EXPERIMENT",
            "scale": "experiments.bench.scale:EXPERIMENT",
            "larger-than-memory": "experiments.bench.larger_than_memory:EXPERIMENT",
            "wide": "experiments.bench.wide:EXPERIMENT",
            "serve": "experiments.bench.serve:EXPERIMENT",
            "images": "experiments.bench.images:EXPERIMENT",
            "image-sampling": "experiments.bench.image_sampling:EXPERIMENT",
            "image-speed": "experiments.bench.image_speed:EXPERIMENT",
        },
        help="run the benchmarks",
    ),
    "examples": Group(
        "examples",
        "Worked examples of the documentation",
        "The Python code of the pages in `docs/examples`, with full settings, and its figures.",
        {
            "odd-cars": "experiments.examples.odd_cars:EXPERIMENT",
            "holes": "experiments.examples.holes:EXPERIMENT",
            "portfolio": "experiments.examples.portfolio:EXPERIMENT",
            "epidemic": "experiments.examples.epidemic:EXPERIMENT",
        },
        help="run the worked examples of the documentation",
    ),
}
"""The groups by name, with their experiments in the order of the page."""


def load(group: str, name: str) -> Experiment:
    """An experiment by its group and name.

    Example:
        >>> load("paper", "networks").title
        'One-layer networks and their Lipschitz constants'
    """
    check_choice("group", group, GROUPS)
    return GROUPS[group].load(name)
