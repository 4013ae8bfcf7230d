"""Data: toy distributions whose entropies are known."""

from elflow.data import toy

__all__ = ["toy"]
