"""What `FlowDensity` does when it is not told: sizes and schedules from the number of rows and columns."""

from __future__ import annotations

from typing import Any

from elflow.training.recipe import Recipe

__all__ = ["default_options", "default_recipe"]


def default_options(flow: str, rows: int, features: int) -> dict[str, Any]:
    """Arguments of a flow for a table of so many rows and numbers in each."""
    width = 64 if rows < 2_000 else 128 if rows < 100_000 else 192
    hidden = (width, width)
    if flow == "elf":
        return {"transforms": 5 if features > 1 else 1, "units": 16, "hidden_features": hidden, "bound": 0.99}
    if flow in ("nsf", "maf"):
        return {"transforms": 5, "hidden_features": hidden}
    return {}


def default_recipe(rows: int, features: int, **asked: Any) -> Recipe:
    """How to train on so many rows; what was asked for takes precedence unless it is None."""
    batch_size = asked.get("batch_size") or (256 if rows < 50_000 else 512 if rows < 500_000 else 1_024)
    one_pass = max(1, rows // batch_size)
    plan: dict[str, Any] = {
        "batch_size": batch_size,
        "round_steps": min(max(one_pass, 50), 500),
        "max_steps": 20_000,
        "patience": 20,
        "plateau": 5,
    }
    plan |= {name: value for name, value in asked.items() if value is not None}
    plan["round_steps"] = min(plan["round_steps"], plan["max_steps"])
    return Recipe(**plan)
