"""Exact-Lipschitz flows: density models with closed-form densities and an exact inverse."""

from elflow import activations, data, functional, kernels, training
from elflow.flows import ELF
from elflow.serialization import load, save

__all__ = ["ELF", "activations", "data", "functional", "kernels", "load", "save", "training"]

__version__ = "0.1.0"
