"""Values of a column in words, for schemas and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from elflow.tabular.columns import _times
from elflow.tabular.columns._warps import Warp

if TYPE_CHECKING:
    from elflow.tabular.columns._column import Column

__all__ = ["describe_values"]

MAX_LEVELS_SHOWN = 4
"""Maximum number of categories in the description of a column."""


def describe_values(column: Column) -> str:
    """Range of the values, or the first categories."""
    if column.levels is not None:
        shown = [*map(str, column.levels[:MAX_LEVELS_SHOWN])]
        shown += ["..."] if len(column.levels) > MAX_LEVELS_SHOWN else []
        return f"{len(column.levels)}: {', '.join(shown)}"
    if isinstance(column.map, Warp):
        return _describe_numbers(column)
    first, last = int(column.map.edges[0]), int(column.map.edges[-1]) - 1
    step = column.step or 1.0
    if column.kind == "datetime":
        ends = [end * int(step) for end in (first, last)]
        return _times.describe_range(ends[0], ends[1], column.unit, column.zone, column.local)
    return f"{first * step:.15g} to {last * step:.15g}" + ("" if step == 1.0 else f" in steps of {step:g}")


def _describe_numbers(column: Column) -> str:
    """Range or bounds of the values of a smooth column, and its atoms."""
    assert isinstance(column.map, Warp)
    if column.step is not None:
        ends = column.decode_numbers(np.array([column.map.first, column.map.last]))
        low, high = min([ends[0], *column.atoms]), max([ends[1], *column.atoms])
        text = f"{low:.15g} to {high:.15g}" + ("" if column.step == 1.0 else f" in steps of {column.step:g}")
        if column.residues == (0,):
            text += f", {column.residue_shares[0]:.1%} multiples of {column.period * column.step:g}"
        elif column.residues:
            text += f", {sum(column.residue_shares):.1%} at {len(column.residues)} of every {column.period} steps"
    else:
        low, high = float(column.map.low), float(column.map.high)
        if np.isinf(low) and np.isinf(high):
            text = "any"
        elif np.isinf(low) or np.isinf(high):
            text = f"at least {low:g}" if np.isinf(high) else f"at most {high:g}"
        else:
            text = f"between {low:g} and {high:g}"
    parts = []
    for state, share in enumerate(column.shares[: len(column.atoms) + 1]):
        if (atom := column.state_value(state)) is not None:
            parts.append(f"{share:.1%} {atom:g}")
    return ", ".join([text, *parts])
