"""Transformations without parameters of their own: torch `Transform`s that compose with those of zuko.

`transform(x)` takes data to latent space and `transform.inv(y)` takes it back; `call_and_ladj` also gives the
log-determinant.
"""

from elflow.transforms.autoregressive import (
    METHODS,
    AutoregressiveTransform,
    ConvergenceWarning,
    InverseInfo,
    invert,
    warn,
)
from elflow.transforms.elementwise import (
    ActNormTransform,
    BumpTransform,
    ColumnsTransform,
    Elementwise,
    ELFTransform,
    ScaledTransform,
)
from elflow.transforms.raster import RasterTransform
from elflow.transforms.stack import HeadTransform, StackTransform

__all__ = [
    "METHODS",
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
    "ScaledTransform",
    "StackTransform",
    "invert",
    "warn",
]
