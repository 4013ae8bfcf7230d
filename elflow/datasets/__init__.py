"""Small data sets: toy distributions of known entropy, and examples bundled with scikit-learn."""

from elflow.datasets import example, toy

__all__ = ["example", "toy"]
