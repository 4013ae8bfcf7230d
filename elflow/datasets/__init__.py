"""Small data sets: toy distributions with known entropies, and examples from scikit-learn."""

from elflow.datasets import example, toy

__all__ = ["example", "toy"]
