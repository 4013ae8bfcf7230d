"""The application: addresses, the questions behind them, and the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

import elflow
from elflow.report.html import BASE_CSS
from elflow.serve import _openapi
from elflow.serve._gate import Gate
from elflow.serve._metrics import Metrics
from elflow.serve._service import Service
from elflow.serve._tables import dump_json
from elflow.serve.limits import Limits, Refusal
from elflow.serve.models import ServedModel

__all__ = ["create_app"]

STATIC = {
    "/": ("explore.html", "text/html; charset=utf-8"),
    "/docs": ("docs.html", "text/html; charset=utf-8"),
    "/docs.js": ("docs.js", "text/javascript; charset=utf-8"),
    "/chart.js": ("chart.js", "text/javascript; charset=utf-8"),
    "/table.js": ("table.js", "text/javascript; charset=utf-8"),
    "/conditions.js": ("conditions.js", "text/javascript; charset=utf-8"),
    "/explore.js": ("explore.js", "text/javascript; charset=utf-8"),
}
"""Files of the page by address, with their media types."""


def create_app(
    models: Sequence[ServedModel],
    limits: Limits | None = None,
    token: str | None = None,
    hosts: Sequence[str] | None = None,
    metrics: Metrics | None = None,
) -> FastAPI:
    """Build the ASGI application of the service.

    Arguments:
        models: The models, which have different names. The first is the default.
        limits: Limits of requests.
        token: A secret that requests must have in the header `Authorization: Bearer TOKEN`; None for no secret. The
            page itself, the documentation and `/healthz` need none.
        hosts: Names by which the service may be addressed in the header `Host`; None for any name. With names, pages of
            other sites cannot use a browser to reach a service on its machine (DNS rebinding).
        metrics: Counts of requests, to share between workers.

    Example:
        >>> import numpy
        >>> table = numpy.random.default_rng(0).normal(size=(200, 2))
        >>> density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
        >>> app = create_app([ServedModel("normal", density)])
        >>> "/score" in [route.path for route in app.routes]
        True
    """
    metrics = metrics or Metrics()
    service = Service(models, limits or Limits(), metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="elflow",
        version=elflow.__version__,
        description=_openapi.DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
    )
    app.add_middleware(Gate, limits=service.limits, metrics=metrics, token=token, hosts=hosts)
    app.add_exception_handler(Refusal, _answer_refusal)
    app.add_exception_handler(HTTPException, _answer_http_error)
    for name, question in _openapi.QUESTIONS.items():
        app.add_api_route(
            f"/{name}",
            _make_endpoint(service, name),
            methods=["POST"],
            name=name,
            summary=question.summary,
            description=question.description,
            responses=question.responses,
            openapi_extra=question.extra,
            response_class=Response,
        )
    _add_facts(app, service)
    _add_page(app)
    return app


def _make_endpoint(service: Service, name: str) -> Callable[[Request], Any]:
    async def endpoint(request: Request) -> Response:
        return await service.answer(name, request)

    return endpoint


def _add_facts(app: FastAPI, service: Service) -> None:
    """Addresses about the models and the service itself."""

    @app.get("/models", summary="Names of the models; the first is the default.", responses=_openapi.FACTS)
    async def models() -> JSONResponse:
        return JSONResponse({"models": list(service.models)})

    @app.get(
        "/model",
        summary="Columns, kinds, ranges and training of a model.",
        responses=_openapi.FACTS,
        openapi_extra=_openapi.WITH_MODEL,
    )
    async def model(request: Request) -> Response:
        return service.describe(request)

    @app.get("/healthz", summary="Whether the service answers.", responses=_openapi.FACTS)
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", summary="Counts of requests for Prometheus.", responses=_openapi.METRICS)
    async def metrics() -> Response:
        return Response(service.metrics.format(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    """The page, and the documentation of the API, without anything from elsewhere."""
    folder = files("elflow.serve") / "static"
    contents = {path: ((folder / name).read_bytes(), media) for path, (name, media) in STATIC.items()}
    css = BASE_CSS + (folder / "explore.css").read_text(encoding="utf-8")
    contents["/style.css"] = css.encode(), "text/css; charset=utf-8"

    def make(content: bytes, media_type: str) -> Callable[[], Any]:
        async def send() -> Response:
            return Response(content, media_type=media_type, headers={"cache-control": "no-cache"})

        return send

    for path, (content, media_type) in contents.items():
        app.add_api_route(path, make(content, media_type), methods=["GET"], include_in_schema=False)

    @cache
    def describe() -> bytes:
        return dump_json(app.openapi())

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return Response(await asyncio.to_thread(describe), media_type="application/json")


async def _answer_refusal(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refusal)
    headers = {"retry-after": "1"} if error.status in (429, 503) else None
    return JSONResponse({"detail": error.reason}, error.status, headers)


async def _answer_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)
