"""Bodies of requests: their fields, and conditions on columns."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from elflow.serve.limits import Refusal
from elflow.tabular import MISSING, Column

__all__ = [
    "ConditionalRequest",
    "DensityRequest",
    "ExplainRequest",
    "ImputeRequest",
    "Question",
    "SampleRequest",
    "ScoreRequest",
    "parse_given",
    "validate",
]

SCALAR = {"anyOf": [{"type": kind} for kind in ("number", "string", "boolean", "null")]}
ROW = {"type": "object", "additionalProperties": SCALAR}
CONDITION = {
    "description": "A value; a list of values; {low, high} for a range with both ends included; {missing: true}.",
    "anyOf": [
        {"type": ["number", "string", "boolean"]},
        {"type": "array", "items": {"type": ["number", "string", "boolean"]}, "minItems": 1},
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"low": SCALAR, "high": SCALAR, "missing": {"const": True}},
        },
    ],
}
Rows = Annotated[
    list[Any],
    Field(description="Rows, each an object of values by column. null, or no value, is missing.",
          json_schema_extra={"items": ROW}),
]  # fmt: skip
Given = Annotated[
    dict[str, Any],
    Field(description="Conditions by column. Columns without a condition are integrated out.",
          json_schema_extra={"additionalProperties": CONDITION}),
]  # fmt: skip
Seed = Annotated[StrictInt, Field(ge=0, lt=2**32, description="Random seed; by default a different one each time.")]
Probability = Annotated[float, Field(gt=0, lt=1)]


class Question(BaseModel):
    """Fields of all requests."""

    model_config = ConfigDict(extra="forbid")


class ScoreRequest(Question):
    """Rows to score."""

    rows: Rows
    anomaly: Annotated[StrictBool, Field(description="Whether to compute anomaly scores as well.")] = False


class SampleRequest(Question):
    """Number of rows to draw, and their conditions."""

    n: Annotated[StrictInt, Field(ge=1, description="Number of rows, for each row of the context if there is one.")] = 1
    given: Given | None = None
    context: Rows | None = None
    seed: Seed | None = None


class ImputeRequest(Question):
    """Rows with missing cells."""

    rows: Rows
    method: Annotated[
        Literal["sample", "median", "mean", "mode"],
        Field(description="Draw the missing cells of a row together, or fill each by a summary of its distribution."),
    ] = "sample"
    seed: Seed | None = None


class ExplainRequest(Question):
    """Rows to explain."""

    rows: Rows
    columns: Annotated[
        list[StrictStr] | None, Field(min_length=1, description="Columns to explain; by default all.")
    ] = None
    level: Annotated[Probability, Field(description="Probability of the interval of ordinary values.")] = 0.9


class ConditionalRequest(Question):
    """A column, and the rows or conditions given which its distribution is asked for."""

    column: StrictStr
    rows: Rows | None = None
    given: Given | None = None
    context: Rows | None = None
    quantiles: Annotated[
        list[Probability],
        Field(max_length=1_000, description="Different probabilities. Their number times that of rows is limited."),
    ] = []
    cdf: Annotated[StrictBool, Field(description="Whether to compute P(column <= its value) in each row.")] = False
    proba: Annotated[StrictBool, Field(description="Whether to compute the probabilities of categories.")] = False
    n_points: Annotated[
        StrictInt, Field(ge=1, le=16_384, description="Number of points over which other columns are integrated out.")
    ] = 256


class DensityRequest(Question):
    """One or two columns, and the conditions given which their density is asked for."""

    columns: Annotated[list[StrictStr], Field(min_length=1, max_length=2)]
    given: Given = {}
    context: Rows | None = None
    precision: Annotated[
        Literal["quick", "fine"], Field(description="Few points of integration for a moving slider, or many.")
    ] = "fine"


Body = TypeVar("Body", bound=Question)


def validate(kind: type[Body], content: object) -> Body:
    """A request of this kind; a `Refusal` names each argument that is wrong."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        parts = []
        for each in error.errors(include_url=False, include_context=False)[:5]:
            where = ".".join(map(str, each["loc"]))[:200] or "the body"
            got = "" if each["type"] == "missing" else f", got {_shorten(each['input'])}"
            parts.append(f"{where}: {each['msg'][0].lower()}{each['msg'][1:]}{got}")
        raise Refusal(422, "; ".join(parts)) from None


def _shorten(value: object) -> str:
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    try:
        text = repr(value)
    except ValueError:  # integers of more than 4,300 digits have no text
        text = "a very long number"
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse_given(given: Mapping[str, Any], columns: Sequence[Column]) -> dict[Hashable, Any]:
    """Conditions of `FlowDensity.sample` from JSON.

    Example:
        >>> import pandas as pd
        >>> column = Column.fit(pd.Series([1.5, 2.25, 0.75], name="size"))
        >>> parse_given({"size": {"low": 1}}, [column])
        {'size': (1.0, None)}
    """
    known = {column.name: column for column in columns}
    conditions: dict[Hashable, Any] = {}
    for name, condition in given.items():
        if name not in known:
            raise Refusal(422, f"given must have columns of {list(known)}, got {name!r:.200}")
        conditions[name] = _parse_condition(known[name], condition)
    return conditions


def _parse_condition(column: Column, condition: Any) -> Any:
    where = f"given[{column.name!r:.200}]"
    if isinstance(condition, dict):
        if condition == {"missing": True}:
            return MISSING
        if not condition or not condition.keys() <= {"low", "high"}:
            raise Refusal(422, f"{where} must be a value, a list, {{low, high}} or {{missing: true}}, got other keys")
        ends = [condition.get(end) for end in ("low", "high")]
        if all(end is None for end in ends):
            raise Refusal(422, f"{where} must have at least one of low and high")
        low, high = (None if end is None else _parse_value(column, end, where) for end in ends)
        return low, high
    if isinstance(condition, list):
        if not condition:
            raise Refusal(422, f"{where} must have at least one value, got none")
        return [_parse_value(column, value, where) for value in condition]
    return _parse_value(column, condition, where)


def _parse_value(column: Column, value: Any, where: str) -> Any:
    """A category as it is, a time as text, and any other value as a finite number."""
    if column.levels is not None:
        if not isinstance(value, str | bool | int | float):
            raise Refusal(422, f"{where} must be one of the values of the column, got {_shorten(value)}")
        matches = [
            level for level in column.levels if level == value and isinstance(level, bool) == isinstance(value, bool)
        ]
        if not matches:
            raise Refusal(
                422, f"{where} must be one of the {len(column.levels)} values of the column, got {_shorten(value)}"
            )
        return matches[0]
    if column.kind == "datetime":
        if not isinstance(value, str):
            raise Refusal(422, f"{where} must be a time as text, such as 2024-05-31 14:30, got {_shorten(value)}")
        return value
    try:
        number = float("nan") if isinstance(value, str | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise Refusal(422, f"{where} must be a number, got {_shorten(value)}")
    return number
