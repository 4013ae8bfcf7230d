"""Flows by name: elflow's own and all of zuko's."""

from __future__ import annotations

from typing import Any

import zuko.flows
from torch import nn

from elflow.flows.elf import ELF

__all__ = ["FLOW_NAMES", "build_flow", "min_numbers"]

ZUKO = {
    name.lower(): getattr(zuko.flows, name)
    for name in ("BPF", "CNF", "GF", "MAF", "NAF", "NICE", "NSF", "RealNVP", "SOSPF", "UNAF")
}
"""zuko's flows over the whole space. Its NCSF is one over a circle, and its GMM is no flow."""
FLOW_NAMES = ["elf", *ZUKO]


def build_flow(name: str, features: int, context: int = 0, options: dict[str, Any] | None = None) -> nn.Module:
    """A flow by its name.

    Arguments:
        name: `"elf"`, or the name of a zuko flow in small letters, such as `"nsf"` or `"maf"`.
        features: The number of features.
        context: The number of context features.
        options: Further arguments of the flow.

    Example:
        >>> type(build_flow("nsf", features=2, options={"bins": 4})).__name__
        'NSF'
    """
    if name not in FLOW_NAMES:
        raise ValueError(f"flow must be one of {FLOW_NAMES}, got {name!r}")
    kind = ELF if name == "elf" else ZUKO[name]
    try:
        return kind(features=features, context=context, **(options or {}))
    except TypeError as error:
        raise TypeError(f"flow_options must be arguments of {kind.__name__}, got {options}: {error}") from None


def min_numbers(name: str, features: int, context: int, options: dict[str, Any]) -> int:
    """How many numbers a flow of this name stores at least, without building it.

    Example:
        >>> flow = build_flow("nsf", features=3)
        >>> min_numbers("nsf", 3, 0, {}) <= sum(value.numel() for value in flow.state_dict().values())
        True
    """
    defaults = {"transforms": 1, "units": options.get("bins", 1) if name == "nsf" else 1, "hidden_features": ()}
    return ELF.min_numbers({**defaults, **options, "features": features, "context": context})
