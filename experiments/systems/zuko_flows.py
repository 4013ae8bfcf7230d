"""The flows of zuko, each sized by one number."""

from __future__ import annotations

import torch
from torch import nn
from zuko import flows
from zuko.lazy import LazyInverse, UnconditionalTransform
from zuko.transforms import AdditiveTransform, MonotonicAffineTransform

__all__ = ["cnf", "iaf", "made", "maf", "naf", "nice", "nsf", "realnvp", "sos", "unaf"]

# Each conditioner has `layers` hidden layers of `width`.


def realnvp(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """Affine coupling, with alternating masks, followed by a learned scale and shift of each feature.

    One coupling alone would leave half of the features as they are, whatever their scale.

    Example:
        >>> flow = realnvp(features=2, transforms=1, width=16)
        >>> flow().log_prob(torch.zeros(5, 2)).shape
        torch.Size([5])
    """
    flow = flows.RealNVP(features, transforms=transforms, hidden_features=(width,) * layers)
    return _append_affine(flow, features)


def nice(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """Additive coupling, with alternating masks, followed by a learned scale and shift of each feature.

    Example:
        >>> flow = nice(features=2, transforms=4, width=16)
        >>> flow().log_prob(torch.zeros(5, 2)).shape
        torch.Size([5])
    """
    flow = flows.NICE(
        features,
        transforms=transforms,
        univariate=AdditiveTransform,
        shapes=[()],
        hidden_features=(width,) * layers,
    )
    return _append_affine(flow, features)


def _append_affine(flow: flows.Flow, features: int) -> flows.Flow:
    """Append a learned scale and shift of each feature."""
    affine = UnconditionalTransform(MonotonicAffineTransform, torch.zeros(features), torch.zeros(features))
    flow.transform.transforms.append(affine)
    return flow


def maf(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """Affine autoregressive transformations, in alternating order."""
    return flows.MAF(features, transforms=transforms, hidden_features=(width,) * layers)


def iaf(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """Inverses of the transformations of `maf`: samples take one pass, densities one pass for each feature.

    Example:
        >>> flow = iaf(features=2, transforms=4, width=16)
        >>> flow().log_prob(torch.zeros(5, 2)).shape
        torch.Size([5])
    """
    flow = maf(features, transforms, width, layers)
    flow.transform.transforms = nn.ModuleList(LazyInverse(each) for each in flow.transform.transforms)
    return flow


def made(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """A MAF of one transformation only: each conditional is one Gaussian."""
    return maf(features, 1, width, layers)


def naf(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """Autoregressive monotonic networks with two hidden layers of a quarter of `width`, and at least two units."""
    network = {"hidden_features": (max(2, width // 4),) * 2}
    return flows.NAF(features, transforms=transforms, network=network, hidden_features=(width,) * layers)


def unaf(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """Autoregressive integrals of positive networks with the hidden layers of `naf`."""
    network = {"hidden_features": (max(2, width // 4),) * 2}
    return flows.UNAF(features, transforms=transforms, network=network, hidden_features=(width,) * layers)


def nsf(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """Autoregressive rational-quadratic splines of eight bins, on [-5, 5]."""
    return flows.NSF(features, transforms=transforms, hidden_features=(width,) * layers)


def sos(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """Autoregressive sums of squares of polynomials."""
    return flows.SOSPF(features, transforms=transforms, hidden_features=(width,) * layers)


def cnf(features: int, transforms: int, width: int, layers: int = 2) -> flows.Flow:
    """One continuous transformation only, with the exact trace."""
    return flows.CNF(features, atol=1e-5, rtol=1e-5, exact=True, hidden_features=(width,) * layers)
