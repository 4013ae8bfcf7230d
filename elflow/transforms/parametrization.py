"""Parametrisations of one-dimensional networks: the meaning of the outputs of a hypernetwork."""

from __future__ import annotations

from torch import Tensor

from elflow._checks import check_choice
from elflow.activations import FELU, PiecewiseQuadratic
from elflow.functional import bump_size
from elflow.transforms.elementwise import BumpTransform, ELFTransform

__all__ = ["PARAMETRIZATIONS", "make_network_transform", "network_size"]

PARAMETRIZATIONS = ["bumps", "weights"]
"""`"bumps"`: see `elflow.functional.bumps`. `"weights"`: w1, b1 and w2 of all units, then b2, as in the paper."""


def network_size(units: int, parametrization: str = "bumps") -> int:
    """The number of parameters of a network with so many units.

    Example:
        >>> network_size(8), network_size(8, "weights")
        (21, 25)
    """
    check_choice("parametrization", parametrization, PARAMETRIZATIONS)
    return bump_size(units) if parametrization == "bumps" else 3 * units + 1


def make_network_transform(
    phi: Tensor,
    units: int,
    bound: float = 0.99,
    activation: PiecewiseQuadratic = FELU,
    parametrization: str = "bumps",
) -> BumpTransform | ELFTransform:
    """The elementwise map of networks that a hypernetwork has computed.

    Arguments:
        phi: Networks, `(..., network_size(units, parametrization))`.
        units: The number of units of each network.
        bound: The maximum Lipschitz constant, in (0, 1).
        activation: The activation of the units.
        parametrization: One of `PARAMETRIZATIONS`.

    Example:
        >>> import torch
        >>> make_network_transform(torch.randn(3, 25), units=8, parametrization="weights")
        ELFTransform(units=8, bound=0.99)
    """
    check_choice("parametrization", parametrization, PARAMETRIZATIONS)
    if parametrization == "bumps":
        return BumpTransform(phi, units, bound, activation)
    w1, b1, w2, b2 = phi.split([units, units, units, 1], dim=-1)
    return ELFTransform(w1, b1, w2, b2.squeeze(-1), bound, activation)
