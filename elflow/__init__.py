"""Exact-Lipschitz flows: density models with closed-form densities and an exact inverse."""

from elflow import activations, functional, kernels

__all__ = ["activations", "functional", "kernels"]

__version__ = "0.1.0"
