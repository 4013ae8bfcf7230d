"""Exact-Lipschitz flows: density models with closed-form densities and an exact inverse."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elflow import activations, datasets, functional, io, kernels, training
    from elflow.flows import ELF, ImageELF
    from elflow.serialization import load, save
    from elflow.tabular import FlowDensity

__all__ = [
    "ELF",
    "FlowDensity",
    "ImageELF",
    "activations",
    "datasets",
    "functional",
    "io",
    "kernels",
    "load",
    "save",
    "training",
]

__version__ = "0.1.0"

_HOMES = {
    "ELF": "elflow.flows",
    "FlowDensity": "elflow.tabular",
    "ImageELF": "elflow.flows",
    "load": "elflow.serialization",
    "save": "elflow.serialization",
}


def __getattr__(name: str) -> Any:
    """Parts are imported when they are first asked for: torch, pandas and scikit-learn take a while."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in __all__:
        return import_module(f"elflow.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
