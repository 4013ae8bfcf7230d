"""Limits of the service, and the deadline of a request."""

from __future__ import annotations

import time
from dataclasses import dataclass

from elflow._checks import check_count, check_positive

__all__ = ["Deadline", "Limits", "Refusal"]


class Refusal(Exception):  # noqa: N818 - an answer, not a failure of the service
    """A request that is not answered, with the HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Limits:
    """Limits of each worker.

    Arguments:
        rows: Maximum number of rows of a request and of its answer; beyond it the answer is 413.
        bytes: Maximum number of bytes of the body of a request; beyond it the answer is 413.
        seconds: Maximum time from the arrival of a request to its answer; beyond it the answer is 503.
        requests: Maximum number of requests under way; beyond it the answer is 429.

    Example:
        >>> Limits(rows=0)
        Traceback (most recent call last):
        ...
        ValueError: rows must be at least 1, got 0
    """

    rows: int = 100_000
    bytes: int = 32 * 2**20
    seconds: float = 30.0
    requests: int = 128

    def __post_init__(self) -> None:
        for name in ("rows", "bytes", "requests"):
            check_count(name, getattr(self, name))
        check_positive("seconds", self.seconds)

    def check_rows(self, name: str, count: int) -> None:
        """Refuse a request whose argument `name` has, or asks for, too many rows."""
        if count > self.rows:
            raise Refusal(413, f"{name} must be at most {self.rows:,} rows, got {count:,}: send several requests")


class Deadline:
    """Time at which the work of a request ends, whether it is complete or not.

    A thread cannot be stopped: work is divided into blocks, and checks the deadline between them.

    Example:
        >>> Deadline(Limits(seconds=60)).check()
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._end = time.monotonic() + limits.seconds

    @property
    def remaining(self) -> float:
        """Seconds left; negative after the deadline."""
        return self._end - time.monotonic()

    def refuse(self) -> Refusal:
        """The refusal of a request that takes too long."""
        seconds = self._limits.seconds
        return Refusal(503, f"the answer must take at most {seconds:g} seconds: send fewer rows, or try later")

    def check(self) -> None:
        """Raise a `Refusal` after the deadline."""
        if self.remaining <= 0:
            raise self.refuse()
