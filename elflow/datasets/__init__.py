"""Small data sets: toy distributions with known entropies, and examples from scikit-learn."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elflow.datasets import example, toy

__all__ = ["example", "toy"]


def __getattr__(name: str) -> Any:
    """Import a module on first use: `python -m elflow.datasets.example` warns if the package has imported it before."""
    if name in __all__:
        return import_module(f"elflow.datasets.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
