"""Modules with parameters: hypernetworks, ActNorm, and data-dependent initialisation."""

from elflow.nn.actnorm import ActNorm
from elflow.nn.convolution import ImageHypernetwork, MaskedConvolution
from elflow.nn.initialization import DataInitialized, InitializesParts
from elflow.nn.mlp import Hypernetwork
from elflow.nn.start import initial_phi

__all__ = [
    "ActNorm",
    "DataInitialized",
    "Hypernetwork",
    "ImageHypernetwork",
    "InitializesParts",
    "MaskedConvolution",
    "initial_phi",
]
