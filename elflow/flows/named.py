"""Construction of flows by name: ELF, and the flows of zuko for comparison."""

from __future__ import annotations

import inspect
import re
from typing import Any

import zuko.flows
from torch import nn
from zuko.flows import MAF, NICE
from zuko.flows.autoregressive import MaskedAutoregressiveTransform
from zuko.flows.continuous import FFJTransform
from zuko.flows.coupling import GeneralCouplingTransform
from zuko.nn import MLP, Linear, MaskedMLP

from elflow._checks import check_choice
from elflow._json_types import check_arguments
from elflow.flows.elf import ELF

__all__ = ["FLOW_NAMES", "QUICK_INVERSES", "build_flow", "check_options"]

ZUKO_FLOWS = {
    name.lower(): getattr(zuko.flows, name)
    for name in ("BPF", "CNF", "GF", "MAF", "NAF", "NICE", "NSF", "RealNVP", "SOSPF", "UNAF")
}
"""Flows of zuko over real vectors, by name. NCSF, a flow over circles, and GMM, not a flow, are left out."""
ZUKO_PARTS = [Linear, MLP, MaskedMLP, FFJTransform, MaskedAutoregressiveTransform, GeneralCouplingTransform, MAF, NICE]
"""Layers and networks of zuko's flows, to which these pass options on."""
FLOW_CLASSES: dict[str, type[nn.Module]] = {"elf": ELF, **ZUKO_FLOWS}
FLOW_NAMES = list(FLOW_CLASSES)
QUICK_INVERSES = ["elf", "maf", "nice", "nsf", "realnvp"]
"""Flows that need no numerical search or integration to sample."""


def build_flow(name: str, features: int, context: int = 0, options: dict[str, Any] | None = None) -> nn.Module:
    """Build an untrained flow by name.

    Arguments:
        name: `"elf"`, or the name of a flow of zuko in lower case, such as `"nsf"` or `"maf"`.
        features: The number of features.
        context: The number of context features.
        options: Further arguments of the class of the flow.

    Example:
        >>> type(build_flow("nsf", features=2, options={"bins": 4})).__name__
        'NSF'
    """
    if name not in FLOW_NAMES:
        raise ValueError(f"flow must be one of {FLOW_NAMES}, got {name!r}")
    flow_class, options = FLOW_CLASSES[name], options or {}
    try:
        flow: nn.Module = flow_class(features=features, context=context, **options)
    except TypeError as error:
        raise TypeError(_describe_wrong_options(flow_class, options, error)) from None
    # Other orders and masks follow from the options; those drawn at random must be stored with the weights. `vars`,
    # because nn.Module declares that all attributes are tensors or modules.
    vars(flow)["has_random_order"] = any(options.get(name) for name in ("randperm", "randmask"))
    return flow


def _describe_wrong_options(flow_class: type, options: dict[str, Any], error: TypeError) -> str:
    """Error message for options that a flow does not accept, which names the flows that do."""
    message = f"flow_options must be arguments of {flow_class.__name__}, got {options}: {error}"
    match = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    classes = FLOW_CLASSES
    others = [name for name in classes if match and match[1] in inspect.signature(classes[name]).parameters]
    if match is None or not others:
        return message
    return (
        f"flow_options must be arguments of {flow_class.__name__}, got {match[1]!r}, an option of "
        f"{', '.join(classes[name].__name__ for name in others)}: give each flow its own options; in a grid search, "
        "with a list of grids, one for each flow"
    )


def check_options(name: str, options: object, path: str) -> None:
    """Raise an error unless options from JSON have the types of the arguments of a flow.

    Arguments:
        name: The name of the flow, as for `build_flow`.
        options: Further arguments of the class of the flow.
        path: The name of the options in errors.

    Example:
        >>> check_options("nsf", {"bins": "8"}, "options")
        Traceback (most recent call last):
        ...
        ValueError: options.bins must be an integer, got "8"
    """
    check_choice("flow", name, FLOW_NAMES)
    check_arguments(FLOW_CLASSES[name], options, path, more=[] if name == "elf" else ZUKO_PARTS)
