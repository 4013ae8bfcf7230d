"""HTTP/1.1 of uvicorn, with a limit of the time that a client may take for the headers of a request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["HttpProtocol"]

TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class HttpProtocol(HttpToolsProtocol):
    """A connection, which is closed if no complete headers arrive in time.

    uvicorn waits forever for the first request of a connection, and for headers that have begun: few clients could
    take all connections. The time that a body takes is limited by the application.
    """

    header_seconds = 20.0
    """Maximum time from the connection, or from the first byte of a further request, to the end of its headers."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer: asyncio.TimerHandle | None = None
        self._unread: int | None = None
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:  # bytes of a further request, or of a body too long
            self._start_timer()
        super().data_received(data)

    def on_headers_complete(self) -> None:
        self._unread = None
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also if its client does not read the answer, which would stay in memory."""
        unread = 0 if self.transport.is_closing() else self.transport.get_write_buffer_size()
        if unread and (self._unread is None or unread < self._unread):  # the client is slow, but it reads
            self._unread = unread
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
            return
        if unread:
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _start_timer(self) -> None:
        if self._timer is None:  # further bytes do not give more time
            self._timer = self.loop.call_later(self.header_seconds, self._close_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_slow(self) -> None:
        self._timer = None
        transport: Any = self.transport
        if not transport.is_closing():
            transport.write(TOO_SLOW)
            transport.close()
