"""Checks of every request, as middleware: host name, token and number of requests; counts and headers."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elflow.serve._metrics import ENDPOINTS, Metrics
from elflow.serve.limits import Limits

__all__ = ["Gate"]

PUBLIC = {
    *("/", "/docs", "/openapi.json", "/healthz", "/style.css"),
    *("/chart.js", "/conditions.js", "/docs.js", "/explore.js", "/table.js"),
}
"""Addresses that need no token: the page without any data, the documentation, and the health check."""
FREE = {"model", "other"}
"""Endpoints that do not count as work."""
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}
log = logging.getLogger("elflow.serve")


class Gate:
    """ASGI middleware that refuses requests before they are read, counts answers, and hides internal errors.

    Arguments:
        app: The application.
        limits: Limits of requests.
        metrics: Counts of requests.
        token: A secret; None for none.
        hosts: Names of the service; None for any name.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        metrics: Metrics,
        token: str | None = None,
        hosts: Sequence[str] | None = None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0
        name = scope["path"].strip("/")
        endpoint = name if name in ENDPOINTS else "other"

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(SECURITY_HEADERS)
            await send(message)

        is_work = endpoint not in FREE
        refusal = self._refuse(scope, is_work)
        if is_work:
            self._metrics.begin()
        try:
            await (refusal or self._app)(scope, receive, send_with_headers)
        except Exception:
            log.exception("internal error in %s %s", scope["method"], endpoint)
            if not status:
                answer = JSONResponse({"detail": "internal error; the log of the service has its cause"}, 500)
                await answer(scope, receive, send_with_headers)
        finally:
            if is_work:
                self._metrics.end()
            self._metrics.count(endpoint, status, time.perf_counter() - start, scope.get("elflow.rows", 0))

    def _refuse(self, scope: Scope, is_work: bool) -> JSONResponse | None:
        """The answer to a request that is refused; None if it is not."""
        headers = Headers(scope=scope)
        if self._hosts is not None and _strip_port(headers.get("host", "")) not in self._hosts:
            return JSONResponse({"detail": "the header Host must be a name of this service"}, 421)
        if self._expected is not None and scope["path"] not in PUBLIC:
            given = headers.get("authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, self._expected):
                text = "the header Authorization must be 'Bearer TOKEN' with the token of this service"
                return JSONResponse({"detail": text}, 401, {"www-authenticate": "Bearer"})
        if is_work and self._metrics.under_way >= self._limits.requests:
            text = f"at most {self._limits.requests} requests may be under way: try again"
            return JSONResponse({"detail": text}, 429, {"retry-after": "1"})
        return None


def _strip_port(host: str) -> str:
    """Name of a host without its port.

    Example:
        >>> _strip_port("localhost:8765"), _strip_port("[::1]:8765")
        ('localhost', '[::1]')
    """
    name, _, port = host.lower().rpartition(":")
    return name if port.isdigit() and name else host.lower()
