"""Exact-Lipschitz flows: density models with closed-form densities and an exact inverse."""

from typing import TYPE_CHECKING, Any

from elflow import activations, data, functional, kernels, training
from elflow.flows import ELF
from elflow.serialization import load, save

if TYPE_CHECKING:
    from elflow.estimator import FlowDensity

__all__ = ["ELF", "FlowDensity", "activations", "data", "functional", "kernels", "load", "save", "training"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """scikit-learn and pandas take a while to import, so that only those who fit tables wait for them."""
    if name == "FlowDensity":
        from elflow.estimator import FlowDensity

        return FlowDensity
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
