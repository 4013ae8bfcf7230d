"""What `FlowDensity` does when it is not told: sizes and schedules from the number of rows and columns."""

from __future__ import annotations

from typing import Any

from elflow.training.recipe import Recipe

__all__ = ["default_options", "default_recipe"]


WIDE, WIDER = 16, 32
"""From how many numbers in a row on transformations are fewer, and hypernetworks wider."""


def default_options(flow: str, rows: int, features: int) -> dict[str, Any]:
    """Arguments of a flow for a table of so many rows and numbers in each."""
    wider = features >= WIDER and rows >= 50_000
    width = 256 if wider else 128 if rows >= 1_000 else 64
    options: dict[str, Any] = {"transforms": 5 if features < WIDE else 3, "hidden_features": (width, width)}
    if flow == "elf":
        return options | {"units": 8 if wider else 16}
    return options if flow in ("maf", "nsf") else {}


def default_recipe(rows: int, features: int, **asked: Any) -> Recipe:
    """How to train on so many rows of so many numbers; what was asked for takes precedence unless it is None.

    The fewer rows there are for each number, the more the weights are held back: it is what keeps a flow from learning
    rows by heart. The rule is a fit to what was best on held-out rows of five tables.
    """
    batch_size = asked.get("batch_size") or (256 if rows < 100_000 else 512)
    plan: dict[str, Any] = {
        "batch_size": batch_size,
        "round_steps": min(max(rows // batch_size, 50), 200),
        "max_steps": 20_000,
        "patience": 20,
        "plateau": 5,
        "weight_decay": min(2.0, 1.5e5 * (features / rows) ** 2),
    }
    plan |= {name: value for name, value in asked.items() if value is not None}
    plan["round_steps"] = min(plan["round_steps"], plan["max_steps"])
    return Recipe(**plan)
