"""Descriptions of the questions in OpenAPI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from elflow.serve import _requests
from elflow.serve._arrow import FILE_TYPE, STREAM_TYPE

__all__ = ["DESCRIPTION", "FACTS", "METRICS", "QUESTIONS", "WITH_MODEL", "Described"]

DESCRIPTION = """Densities of tables, fitted with elflow.

Rows are JSON or Arrow IPC, by the header `Content-Type`, and so are answers, by `Accept`. In JSON, `null` is a missing
value, times are text in ISO format, and a log-density of minus infinity is the text `"-Infinity"`. With Arrow, other
arguments are in the address, as JSON. Errors have a `detail` that names the argument."""


class Detail(BaseModel):
    """Reason why a request was refused."""

    detail: str


class Facts(BaseModel):
    """Any facts."""

    model_config = {"extra": "allow"}


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Detail, "description": "The body is not JSON, or no Arrow table."},
    401: {"model": Detail, "description": "The token is wrong."},
    404: {"model": Detail, "description": "There is no such model."},
    406: {"model": Detail, "description": "No media type of the header Accept is available."},
    408: {"model": Detail, "description": "The body did not arrive in time."},
    413: {"model": Detail, "description": "Too many rows or bytes."},
    415: {"model": Detail, "description": "The media type of the body is not supported."},
    421: {"model": Detail, "description": "The header Host is no name of the service."},
    422: {"model": Detail, "description": "An argument is wrong."},
    429: {"model": Detail, "description": "Too many requests are under way."},
    503: {"model": Detail, "description": "The answer would take too long."},
}
FACTS: dict[int | str, dict[str, Any]] = {200: {"model": Facts}, **{code: ERRORS[code] for code in (401, 404, 421)}}
METRICS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "Counts"},
    401: ERRORS[401],
    421: ERRORS[421],
}
MODEL = {
    "name": "model",
    "in": "query",
    "required": False,
    "schema": {"type": "string"},
    "description": "Name of the model; by default the first.",
}
WITH_MODEL = {"parameters": [MODEL]}

NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["-Infinity"]}]}
ROWS = {"type": "array", "items": _requests.ROW}
WARNINGS = {"type": "array", "items": {"type": "string"}}


@dataclass(frozen=True)
class Described:
    """A question in OpenAPI.

    Arguments:
        request: Its fields.
        summary: One line.
        description: More lines.
        answer: JSON schemas of the fields of the answer.
        example: An example of the body.
    """

    request: type[BaseModel]
    summary: str
    description: str
    answer: dict[str, Any]
    example: dict[str, Any]

    @property
    def extra(self) -> dict[str, Any]:
        """Parameters and body."""
        schema = self.request.model_json_schema()
        content: dict[str, Any] = {"application/json": {"schema": schema, "example": self.example}}
        parameters: list[dict[str, Any]] = [MODEL]
        if "rows" in self.request.model_fields:
            binary = {"schema": {"type": "string", "format": "binary"}}
            content |= {STREAM_TYPE: binary, FILE_TYPE: binary}
        return {"parameters": parameters, "requestBody": {"required": True, "content": content}}

    @property
    def responses(self) -> dict[int | str, dict[str, Any]]:
        """Answers by status."""
        schema = {"type": "object", "properties": {**self.answer, "warnings": WARNINGS}, "required": list(self.answer)}
        content: dict[str, Any] = {"application/json": {"schema": schema}}
        if "grid" not in self.answer:
            binary = {"schema": {"type": "string", "format": "binary"}}
            content |= {STREAM_TYPE: binary, FILE_TYPE: binary}
        return {200: {"description": "The answer", "content": content}, **ERRORS}


CELL = {
    "type": "object",
    "properties": {
        "row": {"type": "integer", "minimum": 0},
        "column": {"type": "string"},
        "value": _requests.SCALAR,
        "tail_probability": {"type": "number"},
        "surprise": {"type": "number"},
        "low": _requests.SCALAR,
        "high": _requests.SCALAR,
    },
}
QUESTIONS = {
    "score": Described(
        _requests.ScoreRequest,
        "Log-density of each row, in nats.",
        "The answer for a row does not depend on the other rows, nor on other requests. With `anomaly`, it also has "
        "`anomaly_score`: the percentage of rows that are more likely, above 100 for rows unlike any.",
        {"log_density": {"type": "array", "items": NUMBER}},
        {"rows": [{"a": 1.5, "b": "x"}]},
    ),
    "sample": Described(
        _requests.SampleRequest,
        "New rows, given conditions on columns or not.",
        "A condition is a value, a list of values, a range, or that the value is missing. The same seed gives the same "
        "rows.",
        {"rows": ROWS},
        {"n": 3, "given": {"a": {"low": 1, "high": 2}, "b": "x"}, "seed": 0},
    ),
    "impute": Described(
        _requests.ImputeRequest,
        "Rows with their missing cells filled.",
        "All missing cells of a row are drawn together, given the others. For multiple imputation, send several seeds.",
        {"rows": ROWS},
        {"rows": [{"a": 1.5, "b": None}], "method": "sample", "seed": 0},
    ),
    "explain": Described(
        _requests.ExplainRequest,
        "How surprising each value of each row is, given the other values of the row.",
        "One cell for each value, the most surprising ones of each row first. `tail_probability` is the probability of "
        "values at least as extreme, and `low` to `high` is the interval of ordinary values.",
        {"cells": {"type": "array", "items": CELL}},
        {"rows": [{"a": 1.5, "b": "x"}], "level": 0.9},
    ),
    "conditional": Described(
        _requests.ConditionalRequest,
        "Distribution of a column, in each row or given conditions.",
        "Quantiles are in `q0.05`, ..., the distribution function in `cdf`, and probabilities of categories in `p_x`, "
        "... Missing cells of other columns are integrated out.",
        {"rows": ROWS},
        {"column": "a", "given": {"b": "x"}, "quantiles": [0.05, 0.5, 0.95]},
    ),
    "density": Described(
        _requests.DensityRequest,
        "Density of one or two columns given conditions, on a grid.",
        "What the page shows: see the guide for the kinds of grids.",
        {"grid": {"type": "string", "enum": ["line", "bars", "mesh", "lines", "table"]}},
        {"columns": ["a"], "given": {"b": "x"}},
    ),
}
"""Questions by name, which is also their address."""
