"""Modules with parameters: hypernetworks, ActNorm, and data-dependent initialisation."""

from elflow.nn.actnorm import ActNorm
from elflow.nn.attention import CausalAttention
from elflow.nn.convolution import ImageHypernetwork, MaskedConvolution
from elflow.nn.initialization import DataInitialized, InitializesParts, draw_initial_phi
from elflow.nn.mlp import Hypernetwork
from elflow.nn.rows import RowNetwork

__all__ = [
    "ActNorm",
    "CausalAttention",
    "DataInitialized",
    "Hypernetwork",
    "ImageHypernetwork",
    "InitializesParts",
    "MaskedConvolution",
    "RowNetwork",
    "draw_initial_phi",
]
