"""Modules with parameters: hypernetworks, which give each coordinate a network of its own, and ActNorm."""

from elflow.nn.actnorm import ActNorm
from elflow.nn.convolution import ImageHypernetwork, MaskedConvolution
from elflow.nn.mlp import Hypernetwork
from elflow.nn.start import initial_phi

__all__ = ["ActNorm", "Hypernetwork", "ImageHypernetwork", "MaskedConvolution", "initial_phi"]
