"""What `FlowDensity` may be told, and what it does if it is not: sizes and schedules from the size of the table."""

from __future__ import annotations

from numbers import Real
from typing import Any

from elflow._checks import check_choice, check_count, check_positive
from elflow.flows.named import FLOW_NAMES
from elflow.training.recipe import Recipe

__all__ = ["check_parameters", "default_options", "default_recipe", "default_whiten"]


def check_parameters(
    flow: Any, missing: Any, dequantization: Any, validation: Any, learning_rate: Any, whiten: Any, **others: Any
) -> None:
    """That `FlowDensity` was given what it can use; the numbers of a recipe are checked by `Recipe`."""
    check_choice("flow", flow, FLOW_NAMES)
    check_choice("missing", missing, ["error", "model"])
    check_choice("dequantization", dequantization, ["uniform", "variational"])
    if not isinstance(validation, Real) or not 0 < float(validation) < 1:
        raise ValueError(f"validation must be a share in (0, 1), got {validation!r}")
    if learning_rate is not None:
        check_positive("learning_rate", learning_rate)
    if whiten not in (None, True, False):
        raise ValueError(f"whiten must be None, True or False, got {whiten!r}")
    for name in ("columns", "flow_options"):
        if not isinstance(others[name], dict | None):
            raise TypeError(f"{name} must be a dictionary or None, got {others[name]!r}")


WIDE, WIDER = 16, 32
"""From how many numbers in a row on transformations are fewer, and hypernetworks wider."""
SCARCE = 100
"""Below how many rows for each number a flow begins from a Gaussian, goes slowly and is checked often."""


def default_options(flow: str, rows: int, features: int) -> dict[str, Any]:
    """Arguments of a flow for a table of so many rows and numbers in each."""
    wider = features >= WIDER and rows >= 50_000
    width = 256 if wider else 128 if rows >= 1_000 else 64
    few = features >= WIDE or rows < SCARCE * features
    options: dict[str, Any] = {"transforms": 3 if few else 5, "hidden_features": (width, width)}
    if flow == "elf":
        return options | {"units": 8 if wider else 16}
    return options if flow in ("maf", "nsf") else {}


def default_whiten(rows: int, features: int) -> bool:
    """Whether to take out linear correlations first."""
    return rows < SCARCE * features


def default_recipe(rows: int, features: int, **asked: Any) -> Recipe:
    """How to train on so many rows of so many numbers; what was asked for takes precedence unless it is None.

    The fewer rows there are for each number, the more the weights are held back: it is what keeps a flow from learning
    rows by heart. The rules were chosen by held-out rows of seven tables.
    """
    scarce = rows < SCARCE * features
    batch_size = asked.get("batch_size") or (128 if scarce else 256 if rows < 100_000 else 512)
    plan: dict[str, Any] = {
        "learning_rate": 1e-3 if scarce else 3e-3,
        "batch_size": batch_size,
        "round_steps": 20 if scarce else min(max(rows // batch_size, 50), 200),
        "max_steps": 20_000,
        "patience": 20,
        "plateau_patience": 5,
        "weight_decay": 5.0 if scarce else min(2.0, 1.5e5 * (features / rows) ** 2),
    }
    plan |= {name: value for name, value in asked.items() if value is not None}
    check_count("max_steps", plan["max_steps"])
    plan["round_steps"] = min(plan["round_steps"], plan["max_steps"])
    return Recipe(**plan)
