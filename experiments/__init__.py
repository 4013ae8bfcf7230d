"""The paper's figures and tables, and the systems that it compares with: see `run`."""

from __future__ import annotations

from importlib import import_module

from elflow._checks import check_choice
from experiments.framework.experiment import SCALES, Experiment, Job, Plan, Report, Table
from experiments.framework.runner import run

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "Job", "Plan", "Report", "Table", "experiment", "run"]

_MODULES = {
    "networks": "networks",
    "absolute-value": "absolute_value",
    "relu-flow": "relu_flow",
    "runtime": "runtime",
    "eight-gaussians": "toys",
    "checkerboard": "toys",
    "tabular": "tabular",
    "images": "images",
    "parameter-efficiency": "images",
    "sampling": "sampling",
    "samples": "samples",
}
EXPERIMENTS = list(_MODULES)
"""Their names, in the order of the paper."""


def experiment(name: str) -> Experiment:
    """An experiment by its name.

    Example:
        >>> experiment("networks").title
        'One-layer networks and their Lipschitz constants'
    """
    check_choice("name", name, EXPERIMENTS)
    found: dict[str, Experiment] = import_module(f"experiments.paper.{_MODULES[name]}").EXPERIMENTS
    return found[name]
