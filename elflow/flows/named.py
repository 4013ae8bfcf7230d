"""Construction of flows by name: ELF, and the flows of zuko for comparison."""

from __future__ import annotations

import inspect
import re
from typing import Any

import zuko.flows
from torch import nn

from elflow.flows.elf import ELF

__all__ = ["FLOW_NAMES", "build_flow", "min_numbers"]

ZUKO_FLOWS = {
    name.lower(): getattr(zuko.flows, name)
    for name in ("BPF", "CNF", "GF", "MAF", "NAF", "NICE", "NSF", "RealNVP", "SOSPF", "UNAF")
}
"""Flows of zuko over real vectors, by name. NCSF, a flow over circles, and GMM, not a flow, are left out."""
FLOW_NAMES = ["elf", *ZUKO_FLOWS]


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
    flow_class = ELF if name == "elf" else ZUKO_FLOWS[name]
    try:
        return flow_class(features=features, context=context, **(options or {}))
    except TypeError as error:
        raise TypeError(_describe_wrong_options(flow_class, options or {}, error)) from None


def _describe_wrong_options(flow_class: type, options: dict[str, Any], error: TypeError) -> str:
    """Error message for options that a flow does not accept, which names the flows that do."""
    message = f"flow_options must be arguments of {flow_class.__name__}, got {options}: {error}"
    match = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    classes = {"elf": ELF, **ZUKO_FLOWS}
    others = [name for name in classes if match and match[1] in inspect.signature(classes[name]).parameters]
    if match is None or not others:
        return message
    return (
        f"flow_options must be arguments of {flow_class.__name__}, got {match[1]!r}, an option of "
        f"{', '.join(classes[name].__name__ for name in others)}: give each flow its own options; in a grid search, "
        "with a list of grids, one for each flow"
    )


def min_numbers(name: str, features: int, context: int, options: dict[str, Any]) -> int:
    """Lower bound on the number of values that a flow stores, without building it.

    Arguments:
        name: The name of the flow, as for `build_flow`.
        features: The number of features.
        context: The number of context features.
        options: Further arguments of the class of the flow.

    Example:
        >>> flow = build_flow("nsf", features=3)
        >>> min_numbers("nsf", 3, 0, {}) <= sum(value.numel() for value in flow.state_dict().values())
        True
    """
    defaults = {"transforms": 1, "units": options.get("bins", 1) if name == "nsf" else 1, "hidden_features": ()}
    return ELF.min_numbers({**defaults, **options, "features": features, "context": context})
