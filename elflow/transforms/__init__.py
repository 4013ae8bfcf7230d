"""Stateless transforms: torch `Transform`s that compose with those of zuko.

`transform(x)` maps data to latent space, `transform.inv(y)` maps it back, and `call_and_ladj(x)` returns y and the
log-determinant.
"""

from elflow.transforms.autoregressive import (
    METHODS,
    AutoregressiveTransform,
    ConvergenceWarning,
    InverseInfo,
    invert,
    warn_not_converged,
)
from elflow.transforms.elementwise import (
    ActNormTransform,
    BumpTransform,
    ColumnsTransform,
    Elementwise,
    ELFTransform,
    ScaledTransform,
)
from elflow.transforms.parametrization import PARAMETRIZATIONS, make_network_transform, network_size
from elflow.transforms.raster import RasterTransform, RowMaps
from elflow.transforms.stack import HeadTransform, StackTransform

__all__ = [
    "METHODS",
    "PARAMETRIZATIONS",
    "ActNormTransform",
    "AutoregressiveTransform",
    "BumpTransform",
    "ColumnsTransform",
    "ConvergenceWarning",
    "ELFTransform",
    "Elementwise",
    "HeadTransform",
    "InverseInfo",
    "RasterTransform",
    "RowMaps",
    "ScaledTransform",
    "StackTransform",
    "invert",
    "make_network_transform",
    "network_size",
    "warn_not_converged",
]
