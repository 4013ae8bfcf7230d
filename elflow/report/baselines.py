"""Baseline densities: see `elflow.report._baselines`."""

from elflow.report._baselines import Baseline, baselines, kernel_density

__all__ = ["Baseline", "baselines", "kernel_density"]
