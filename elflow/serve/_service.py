"""Handling of requests: bodies are read and parsed, work is done by threads, and answers are JSON or Arrow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pandas as pd
from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from elflow.serve import _answers, _requests
from elflow.serve._answers import Answer, ScoreItem
from elflow.serve._arrow import FILE_TYPE, STREAM_TYPE, read_arrow, write_arrow
from elflow.serve._errors import is_about_arguments
from elflow.serve._lanes import Batcher, Lane
from elflow.serve._metrics import Metrics
from elflow.serve._picture import draw_density
from elflow.serve._tables import dump_json, frame_from_arrow, frame_from_json, parse_json
from elflow.serve.limits import Deadline, Limits, Refusal
from elflow.serve.models import ServedModel

__all__ = ["Service"]

JSON_TYPE = "application/json"
ARROW_TYPES = (STREAM_TYPE, FILE_TYPE)
SMALL_ROWS, SMALL_BYTES = 256, 2**18
"""Maximum numbers of rows and bytes of a request to score that is batched with others."""
BATCH_ROWS = 1_024
"""Maximum number of rows of a batch."""
REQUESTS: dict[str, type[_requests.Question]] = {
    "score": _requests.ScoreRequest,
    "sample": _requests.SampleRequest,
    "impute": _requests.ImputeRequest,
    "explain": _requests.ExplainRequest,
    "conditional": _requests.ConditionalRequest,
    "density": _requests.DensityRequest,
}
TEXT_OPTIONS = {"column", "method", "precision"}
"""Options that are text, also if they look like a number in the address."""


class Service:
    """Models, limits and threads of one worker.

    Arguments:
        models: The models; the first is the default.
        limits: Limits of requests.
        metrics: Counts of requests.
    """

    def __init__(self, models: Sequence[ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.models = {model.name: model for model in models}
        if not models or len(self.models) < len(models):
            raise ValueError(f"models must have different names, got {[model.name for model in models]}")
        self.limits = limits
        self.metrics = metrics
        self._quick, self._slow = Lane("quick"), Lane("slow")
        self._batchers = {model.name: self._make_batcher(model) for model in models}
        self._descriptions: dict[str, bytes] = {}

    def _make_batcher(self, model: ServedModel) -> Batcher[ScoreItem, Answer]:
        def score(items: Sequence[ScoreItem]) -> Sequence[Answer | Exception]:
            return _answers.score_items(model, self.limits, items)

        max_rows = BATCH_ROWS if model.is_batch_invariant else 0  # a batch of one request in any case
        return Batcher(self._quick, score, max_rows, self.metrics.count_batch)

    def close(self) -> None:
        """End the threads after the work that has begun."""
        self._quick.close()
        self._slow.close()

    def describe(self, request: Request) -> Response:
        """Facts about a model."""
        model = self._choose_model(request)
        if model.name not in self._descriptions:
            self._descriptions[model.name] = dump_json(model.describe())
        return Response(self._descriptions[model.name], media_type=JSON_TYPE)

    async def answer(self, name: str, request: Request) -> Response:
        """Answer to a question: see `REQUESTS`."""
        deadline = Deadline(self.limits)
        model = self._choose_model(request)
        accepted = _negotiate(request)
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refusal(415, "the body must not be compressed")
        is_arrow = media_type in ARROW_TYPES and "rows" in REQUESTS[name].model_fields
        if not is_arrow and media_type != JSON_TYPE:
            types = [JSON_TYPE, *(ARROW_TYPES if "rows" in REQUESTS[name].model_fields else ())]
            raise Refusal(415, f"the header Content-Type must be one of {types}, got {media_type!r:.100}")
        body = await self._read_body(request, deadline)
        result: Answer | dict[str, Any]
        try:
            if name == "score" and not is_arrow and len(body) <= SMALL_BYTES:
                result = await self._score_small(model, body, deadline)
            else:
                result = await self._answer_in_lane(name, model, request, body, is_arrow, deadline)
        except MemoryError:
            raise Refusal(503, "not enough memory: send fewer rows, or try later") from None
        except Exception as error:
            if not is_about_arguments(error):
                raise
            raise Refusal(422, " ".join(str(error).split())[:2_000] or type(error).__name__) from None
        if isinstance(result, dict):
            return Response(dump_json(result), media_type=JSON_TYPE)
        request.scope["elflow.rows"] = result.n_rows
        if result.n_rows > BATCH_ROWS:
            return await asyncio.to_thread(_respond, result, accepted)
        return _respond(result, accepted)

    async def _score_small(self, model: ServedModel, body: bytes, deadline: Deadline) -> Answer:
        """Score rows in JSON, together with those of other requests."""
        question = _requests.validate(_requests.ScoreRequest, parse_json(body))
        self.limits.check_rows("rows", len(question.rows))
        item = ScoreItem(question.rows, question.anomaly)
        if len(question.rows) <= SMALL_ROWS:
            return await self._batchers[model.name].submit(item, len(question.rows), deadline)
        (result,) = await self._slow.run(lambda: _answers.score_items(model, self.limits, [item], deadline), deadline)
        if isinstance(result, Exception):
            raise result
        return result

    async def _answer_in_lane(
        self, name: str, model: ServedModel, request: Request, body: bytes, is_arrow: bool, deadline: Deadline
    ) -> Answer | dict[str, Any]:
        """Parse the body and answer in a thread."""
        options = _parse_options(request) if is_arrow else {}

        def work() -> Answer | dict[str, Any]:
            frame: pd.DataFrame | None = None
            if is_arrow:
                question = _requests.validate(REQUESTS[name], {**options, "rows": []})
                frame = frame_from_arrow(read_arrow(body, self.limits), model.columns)
            else:
                question = _requests.validate(REQUESTS[name], parse_json(body))
                rows = getattr(question, "rows", None)
                if rows is not None:
                    frame = frame_from_json(rows, model.columns, self.limits)
            return self._answer(model, question, frame, deadline)

        lane = self._slow
        if name == "density" and len(body) <= SMALL_BYTES:
            # A picture that follows a slider does not wait for long work, such as a fine picture.
            content = parse_json(body)
            is_quick = isinstance(content, dict) and content.get("precision") == "quick"
            lane = self._quick if is_quick else self._slow
        return await lane.run(work, deadline)

    def _answer(
        self, model: ServedModel, question: _requests.Question, frame: pd.DataFrame | None, deadline: Deadline
    ) -> Answer | dict[str, Any]:
        """Answer to a question with its rows, in a thread."""
        match question:
            case _requests.SampleRequest():
                return _answers.answer_sample(model, self.limits, question, deadline)
            case _requests.DensityRequest():
                return draw_density(model, self.limits, question, deadline)
            case _requests.ConditionalRequest():
                return _answers.answer_conditional(model, self.limits, frame, question, deadline)
        assert frame is not None
        match question:
            case _requests.ScoreRequest():
                (result,) = _answers.score_items(model, self.limits, [ScoreItem(frame, question.anomaly)], deadline)
                if isinstance(result, Exception):
                    raise result
                return result
            case _requests.ImputeRequest():
                return _answers.answer_impute(model, frame, question, deadline)
            case _requests.ExplainRequest():
                return _answers.answer_explain(model, frame, question, deadline)
        raise AssertionError(f"every question must have an answer, got {type(question).__name__}")

    def _choose_model(self, request: Request) -> ServedModel:
        names = request.query_params.getlist("model")
        if not names:
            return next(iter(self.models.values()))
        if len(names) > 1 or names[0] not in self.models:
            raise Refusal(404, f"model must be one of {list(self.models)}, got {names[-1]!r:.100}")
        return self.models[names[0]]

    async def _read_body(self, request: Request, deadline: Deadline) -> bytes:
        """Body of a request, unless it is too large or too slow."""
        too_large = Refusal(413, f"the body must have at most {self.limits.bytes:,} bytes: send several requests")
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length[:20]) > self.limits.bytes:
            raise too_large
        chunks, size = [], 0
        try:
            async with asyncio.timeout(max(0.0, deadline.remaining)):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > self.limits.bytes:
                        raise too_large
                    chunks.append(chunk)
        except TimeoutError:
            raise Refusal(408, f"the body must arrive within {self.limits.seconds:g} seconds") from None
        except ClientDisconnect:
            raise Refusal(400, "the body must be complete") from None
        return b"".join(chunks)


def _parse_options(request: Request) -> dict[str, Any]:
    """Options of a request whose body is a table: values in JSON in the address, or text."""
    options: dict[str, Any] = {}
    for name, text in request.query_params.items():
        if name in ("model", "rows"):
            continue
        try:
            options[name] = text if name in TEXT_OPTIONS else parse_json(text.encode())
        except Refusal:
            options[name] = text
    return options


def _negotiate(request: Request) -> str:
    """Media type of the answer: the first in the header Accept that is available."""
    accepted = request.headers.get("accept", "*/*")
    for part in accepted.split(","):
        media_type = part.partition(";")[0].strip().lower()
        if media_type in (JSON_TYPE, "*/*", "application/*", ""):
            return JSON_TYPE
        if media_type in ARROW_TYPES:
            return media_type
    raise Refusal(406, f"the header Accept must have one of {[JSON_TYPE, *ARROW_TYPES]}, got {accepted!r:.100}")


def _respond(answer: Answer, media_type: str) -> Response:
    if media_type == JSON_TYPE:
        return Response(dump_json(answer.to_json()), media_type=JSON_TYPE)
    return Response(write_arrow(answer.to_arrow(), media_type), media_type=media_type)
