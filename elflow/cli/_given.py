"""Conditions on columns from text: `segment=retail`, `age=30..40`, `city=Rome,Oslo`, `income=` for missing values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elflow import FlowDensity
    from elflow.tabular import Column

__all__ = ["parse_given"]


def parse_given(texts: list[str] | None, est: FlowDensity) -> dict[str, Any]:
    """Conditions by name of the column: see `FlowDensity.sample`."""
    conditions: dict[str, Any] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or name not in est.schema_.names:
            raise ValueError(f"--given must be COLUMN=CONDITION with a column of {est.schema_.names}, got {text!r}")
        if name in conditions:
            raise ValueError(f"--given must have one condition for each column, got several for {name!r}")
        conditions[name] = _parse_condition(est.schema_.column(name), value, text)
    return conditions


def _parse_condition(column: Column, value: str, text: str) -> Any:
    """A value, a range, a set of values, or missing values."""
    from elflow.tabular import MISSING

    if value == "":
        return MISSING
    if column.levels is not None:
        return _parse_levels(column, value, text)
    if ".." in value:
        low, _, high = value.partition("..")
        return tuple(None if end == "" else _parse_value(column, end, text) for end in (low, high))
    if "," in value:
        return [_parse_value(column, part, text) for part in value.split(",")]
    return _parse_value(column, value, text)


def _parse_levels(column: Column, value: str, text: str) -> Any:
    """A category, or a set of categories; a comma may be part of a category."""
    levels = {str(level): level for level in column.levels or ()}
    if column.kind == "boolean":
        value = value.title()  # of "true", as in JSON, beside "True"
    if value in levels:
        return levels[value]
    if ".." in value and column.has_order:
        ends = [None if end == "" else levels.get(end, end) for end in value.split("..", 1)]
        return tuple(_as_number(end) if isinstance(end, str) else end for end in ends)
    parts = value.split(",")
    if unknown := [part for part in parts if part not in levels]:
        some = ", ".join(list(levels)[:8])
        raise ValueError(f"--given must have known values of {column.name!r} ({some}), got {unknown[0]!r} in {text!r}")
    return [levels[part] for part in parts]


def _as_number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _parse_value(column: Column, value: str, text: str) -> Any:
    """A number, or a datetime as text in ISO format."""
    if column.kind == "datetime":
        return value
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"--given must have numbers for {column.name!r}, got {value!r} in {text!r}") from None
