"""The systems that the paper compares ELF with, of one make: `flow()` is a torch distribution, as of zuko's flows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import nn

from elflow._checks import check_choice, check_count
from experiments.systems import zuko_flows
from experiments.systems.bnaf import BNAF
from experiments.systems.mixtures import MADEMoG, MAFMoG
from experiments.systems.tan import TAN

__all__ = ["PEERS", "Peer", "available", "build", "count_parameters"]

Make = Callable[[int, int, int], nn.Module]
LAYERS = 32
"""Of planar and radial flows."""


@dataclass(frozen=True)
class Peer:
    """A density model to compare with."""

    title: str
    source: str
    """Whose code it is: `"zuko"`, `"normflows"` or `"elflow"`."""
    reference: str
    make: Make
    """Builds it from the numbers of features and of transformations and the width of its networks."""
    samples: bool = True
    """Whether it can be sampled from."""
    note: str = ""
    """What to know of it, if anything."""
    sized: bool = True
    """Whether the width decides how many parameters there are."""


def _bnaf(features: int, transforms: int, width: int) -> nn.Module:
    return BNAF(features, transforms, hidden_features=(width, width))


def _made_mog(features: int, transforms: int, width: int) -> nn.Module:
    return MADEMoG(features, hidden_features=(width, width))


def _maf_mog(features: int, transforms: int, width: int) -> nn.Module:
    return MAFMoG(features, transforms, hidden_features=(width, width))


def _cpflow(features: int, transforms: int, width: int) -> nn.Module:
    from experiments.systems.cpflow import CPFlow

    return CPFlow(features, transforms=transforms, width=width)


# normflows is an optional dependency: it is imported when one of its flows is built.


def _residual(features: int, transforms: int, width: int) -> nn.Module:
    from experiments.systems.normflows_flows import residual_flow

    return residual_flow(features, transforms, width)


def _planar(features: int, transforms: int, width: int) -> nn.Module:
    from experiments.systems.normflows_flows import planar_flow

    return planar_flow(features, LAYERS)


def _radial(features: int, transforms: int, width: int) -> nn.Module:
    from experiments.systems.normflows_flows import radial_flow

    return radial_flow(features, LAYERS)


SOLVED = "It has one transformation, an ODE that is solved with a tolerance of 1e-5, and the exact trace."
ONE = "It has one transformation, however many are asked for."
WITHIN = "Its inverse, and so its samples, stay within 10 of zero, where zuko looks for them."

PEERS: dict[str, Peer] = {
    "realnvp": Peer("Affine Coupling (RealNVP)", "zuko", "Dinh et al. 2017", zuko_flows.realnvp),
    "nice": Peer("Additive Coupling (NICE)", "zuko", "Dinh et al. 2015", zuko_flows.nice),
    "maf": Peer("Masked Autoregressive (MAF)", "zuko", "Papamakarios et al. 2017", zuko_flows.maf),
    "made": Peer("Masked Autoencoder (MADE)", "zuko", "Germain et al. 2015", zuko_flows.made, note=ONE),
    "naf": Peer("Neural Autoregressive (NAF)", "zuko", "Huang et al. 2018", zuko_flows.naf, note=WITHIN),
    "nsf": Peer("Neural Spline (NSF)", "zuko", "Durkan et al. 2019", zuko_flows.nsf, note="Splines lie in [-5, 5]."),
    "sos": Peer("Sum of Squares (SOS)", "zuko", "Jaini et al. 2019", zuko_flows.sos, note=WITHIN),
    "cnf": Peer("Continuous (FFJORD)", "zuko", "Grathwohl et al. 2019", zuko_flows.cnf, note=SOLVED),
    "unaf": Peer("Unconstrained Monotonic (UMNN)", "zuko", "Wehenkel et al. 2019", zuko_flows.unaf, note=WITHIN),
    "residual": Peer("Residual Flow", "normflows", "Chen et al. 2019", _residual),
    "planar": Peer(
        "Planar Flow",
        "normflows",
        "Rezende and Mohamed 2015",
        _planar,
        samples=False,
        note=f"It has {LAYERS} layers, with 2 d + 1 parameters each and no width: it cannot have many.",
        sized=False,
    ),
    "radial": Peer(
        "Radial Flow",
        "normflows",
        "Rezende and Mohamed 2015",
        _radial,
        samples=False,
        note=f"It has {LAYERS} layers, with d + 2 parameters each and no width: it cannot have many.",
        sized=False,
    ),
    "bnaf": Peer("Block Neural Autoregressive (BNAF)", "elflow", "De Cao et al. 2019", _bnaf),
    "cpflow": Peer("Convex Potential (CP-Flow)", "elflow", "Huang et al. 2021", _cpflow),
    "made-mog": Peer("MADE, mixtures (MADE MoG)", "elflow", "Papamakarios et al. 2017", _made_mog, note=ONE),
    "maf-mog": Peer("MAF, mixtures (MAF MoG)", "elflow", "Papamakarios et al. 2017", _maf_mog),
    "tan": Peer("Transformation Autoregressive (TAN)", "elflow", "Oliva et al. 2018", TAN),
}


def available(name: str) -> bool:
    """Whether the package that a peer comes from is installed.

    Example:
        >>> available("maf")
        True
    """
    check_choice("name", name, PEERS)
    return PEERS[name].source != "normflows" or find_spec("normflows") is not None


def count_parameters(flow: nn.Module) -> int:
    """The number of trainable parameters, with those that a mask multiplies by zero.

    Example:
        >>> count_parameters(nn.Linear(2, 3))
        9
    """
    return sum(p.numel() for p in flow.parameters() if p.requires_grad)


def build(name: str, features: int, transforms: int, parameters: int) -> nn.Module:
    """A peer of a given size.

    The width of its networks is the one with which the number of trainable parameters comes nearest to `parameters`,
    found by interpolation. Planar and radial flows have no width: they have 32 layers, whatever is asked for.

    Arguments:
        name: One of `PEERS`.
        features: The number of features, at least two.
        transforms: The number of transformations.
        parameters: The number of trainable parameters, as of `count_parameters`.

    Example:
        >>> flow = build("maf", features=2, transforms=5, parameters=250_000)
        >>> count_parameters(flow)
        250820
    """
    check_choice("name", name, PEERS)
    features = check_count("features", features, least=2)
    transforms = check_count("transforms", transforms)
    parameters = check_count("parameters", parameters)
    peer = PEERS[name]
    if not available(name):
        raise ModuleNotFoundError(f"{peer.title} needs {peer.source}: pip install 'elflow[reproduce]'")

    @cache
    def size(width: int) -> int:
        with torch.random.fork_rng(devices=[]):  # what is built in the end does not depend on what was tried
            return count_parameters(peer.make(features, transforms, width))

    if not peer.sized:
        return peer.make(features, transforms, 1)
    low, high = 1, 4
    while size(high) < parameters:
        low, high = high, 4 * high
    while high - low > 1:  # the root of the size is nearly linear in the width: look where a line says
        below, above = math.sqrt(size(low)), math.sqrt(size(high))
        middle = low + math.ceil((high - low) * (math.sqrt(parameters) - below) / (above - below))
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if size(middle) < parameters else (low, middle)
    return peer.make(features, transforms, min(low, high, key=lambda width: abs(size(width) - parameters)))
