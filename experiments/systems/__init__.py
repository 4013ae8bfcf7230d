"""Systems that ELF is compared with, in one form: as for zuko's flows, `flow()` is a torch distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec

import torch
from torch import nn

from elflow._checks import check_choice, check_count
from experiments.framework.measure import count_parameters
from experiments.systems import zuko_flows
from experiments.systems.bnaf import BNAF
from experiments.systems.mixtures import MADEMoG, MAFMoG
from experiments.systems.tan import TAN

__all__ = ["SYSTEMS", "System", "available", "build", "count_parameters"]

Make = Callable[..., nn.Module]
LAYERS = 32
"""Number of layers of planar and radial flows."""


@dataclass(frozen=True)
class System:
    """A density model to compare with."""

    title: str
    source: str
    """The package with its code, such as `"zuko"`; `"elflow"` for code in this repository."""
    reference: str
    """The paper that introduced it, for reports."""
    make: Make
    """Builds it from the number of features, of transformations, the width of its networks, and, if it is `layered`,
    the number of their hidden layers."""
    samples: bool = True
    """Whether it can generate samples."""
    note: str = ""
    """A remark for reports, if there is any."""
    sized: bool = True
    """Whether the number of parameters depends on the width."""
    layered: bool = True
    """Whether the number of hidden layers can be chosen."""


def _bnaf(features: int, transforms: int, width: int, layers: int = 2) -> nn.Module:
    return BNAF(features, transforms, hidden_features=(width,) * layers)


def _made_mog(features: int, transforms: int, width: int, layers: int = 2) -> nn.Module:
    return MADEMoG(features, hidden_features=(width,) * layers)


def _maf_mog(features: int, transforms: int, width: int, layers: int = 2) -> nn.Module:
    return MAFMoG(features, transforms, hidden_features=(width,) * layers)


def _cpflow(features: int, transforms: int, width: int, layers: int = 3) -> nn.Module:
    from experiments.systems.cpflow import CPFlow

    return CPFlow(features, transforms=transforms, width=width, layers=layers)


# normflows is optional: it is imported only when one of its flows is built.


def _residual(features: int, transforms: int, width: int, layers: int = 2) -> nn.Module:
    from experiments.systems.normflows_flows import residual_flow

    return residual_flow(features, transforms, width, layers)


def _planar(features: int, transforms: int, width: int) -> nn.Module:
    from experiments.systems.normflows_flows import planar_flow

    return planar_flow(features, LAYERS)


def _radial(features: int, transforms: int, width: int) -> nn.Module:
    from experiments.systems.normflows_flows import radial_flow

    return radial_flow(features, LAYERS)


SOLVED = "One transformation only: an ODE, solved with a tolerance of 1e-5 and the exact trace."
ONE = "One transformation only."
GLOW = "Called Glow (IAF) in the figures of the paper."
WITHIN = "The inverse, and so every sample, lies in [-10, 10], where zuko searches for it."

SYSTEMS: dict[str, System] = {
    "realnvp": System("Affine Coupling (RealNVP)", "zuko", "Dinh et al. 2017", zuko_flows.realnvp),
    "nice": System("Additive Coupling (NICE)", "zuko", "Dinh et al. 2015", zuko_flows.nice),
    "maf": System("Masked Autoregressive (MAF)", "zuko", "Papamakarios et al. 2017", zuko_flows.maf),
    "iaf": System("Inverse Autoregressive (IAF)", "zuko", "Kingma et al. 2016", zuko_flows.iaf, note=GLOW),
    "made": System("Masked Autoencoder (MADE)", "zuko", "Germain et al. 2015", zuko_flows.made, note=ONE),
    "naf": System("Neural Autoregressive (NAF)", "zuko", "Huang et al. 2018", zuko_flows.naf, note=WITHIN),
    "nsf": System("Neural Spline (NSF)", "zuko", "Durkan et al. 2019", zuko_flows.nsf, note="Splines lie in [-5, 5]."),
    "sos": System("Sum of Squares (SOS)", "zuko", "Jaini et al. 2019", zuko_flows.sos, note=WITHIN),
    "cnf": System("Continuous (FFJORD)", "zuko", "Grathwohl et al. 2019", zuko_flows.cnf, note=SOLVED),
    "unaf": System("Unconstrained Monotonic (UMNN)", "zuko", "Wehenkel et al. 2019", zuko_flows.unaf, note=WITHIN),
    "residual": System("Residual Flow", "normflows", "Chen et al. 2019", _residual),
    "planar": System(
        "Planar Flow",
        "normflows",
        "Rezende and Mohamed 2015",
        _planar,
        samples=False,
        note=f"{LAYERS} layers, with 2 d + 1 parameters each, and no width.",
        sized=False,
        layered=False,
    ),
    "radial": System(
        "Radial Flow",
        "normflows",
        "Rezende and Mohamed 2015",
        _radial,
        samples=False,
        note=f"{LAYERS} layers, with d + 2 parameters each, and no width.",
        sized=False,
        layered=False,
    ),
    "bnaf": System("Block Neural Autoregressive (BNAF)", "elflow", "De Cao et al. 2019", _bnaf),
    "cpflow": System("Convex Potential (CP-Flow)", "elflow", "Huang et al. 2021", _cpflow),
    "made-mog": System("MADE, mixtures (MADE MoG)", "elflow", "Papamakarios et al. 2017", _made_mog, note=ONE),
    "maf-mog": System("MAF, mixtures (MAF MoG)", "elflow", "Papamakarios et al. 2017", _maf_mog),
    "tan": System("Transformation Autoregressive (TAN)", "elflow", "Oliva et al. 2018", TAN, layered=False),
}


def available(name: str) -> bool:
    """Whether the package of a system is installed.

    Example:
        >>> available("maf")
        True
    """
    check_choice("name", name, SYSTEMS)
    source = SYSTEMS[name].source
    return source == "elflow" or find_spec(source) is not None


def build(
    name: str,
    features: int,
    transforms: int,
    parameters: int | None = None,
    width: int | None = None,
    layers: int | None = None,
) -> nn.Module:
    """A compared system of a given size or width.

    The width of its networks is chosen such that the number of trainable parameters is as close as possible to
    `parameters`. Planar and radial flows have no width: they always have 32 layers.

    Arguments:
        name: One of `SYSTEMS`.
        features: The number of features, at least two.
        transforms: The number of transformations.
        parameters: The number of trainable parameters, as counted by `count_parameters`; or None with a width.
        width: The width of its networks; or None with a number of parameters.
        layers: The number of hidden layers; None for that of the system, two or three.

    Example:
        >>> flow = build("maf", features=2, transforms=5, parameters=250_000)
        >>> count_parameters(flow)
        250820
    """
    check_choice("name", name, SYSTEMS)
    features = check_count("features", features, least=2)
    transforms = check_count("transforms", transforms)
    system = SYSTEMS[name]
    if (parameters is None) == (width is None):
        raise ValueError(f"one of parameters and width must be given, got {parameters} and {width}")
    make = system.make
    if layers is not None and system.layered:
        make = partial(make, layers=check_count("layers", layers))
    if not available(name):
        raise ModuleNotFoundError(
            f"{system.title} needs {system.source}: pip install 'elflow[experiments]' in a checkout"
        )

    if width is not None:
        return make(features, transforms, check_count("width", width))
    parameters = check_count("parameters", parameters)

    @cache
    def size(width: int) -> int:
        with torch.random.fork_rng(devices=[]):  # the weights of the result do not depend on the search
            return count_parameters(make(features, transforms, width))

    def check_growth(low: int, high: int) -> None:
        if size(high) <= size(low):
            raise ValueError(
                f"the size of {name!r} must grow with its width, got {size(low)} parameters for a width of {low} and "
                f"{size(high)} for {high}: set sized=False in its System"
            )

    if not system.sized:
        return make(features, transforms, 1)
    low, high = 1, 4
    check_growth(low, high)
    while size(high) < parameters:
        low, high = high, 4 * high
        check_growth(low, high)
    if size(low) >= parameters:  # no smaller one exists
        return make(features, transforms, low)
    while high - low > 1:  # the root of the size is nearly linear in the width: interpolate
        below, above = math.sqrt(size(low)), math.sqrt(size(high))
        middle = low + math.ceil((high - low) * (math.sqrt(parameters) - below) / (above - below))
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if size(middle) < parameters else (low, middle)
    return make(features, transforms, min(low, high, key=lambda width: abs(size(width) - parameters)))
