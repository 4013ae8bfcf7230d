"""Signals that end a command, as exceptions: SIGINT, SIGTERM and SIGHUP, which training defers to the end of a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupted", "deferring_interrupts", "raising_interrupts"]

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Interrupted(BaseException):
    """The process was asked to end by a signal.

    No `KeyboardInterrupt`, which typer replaces by the exit code of Ctrl-C.

    Arguments:
        signum: Number of the signal.
        is_deferred: Whether it was deferred, so that the state of the program is consistent.
    """

    def __init__(self, signum: int, is_deferred: bool = False) -> None:
        super().__init__(f"interrupted by {signal.Signals(signum).name}")
        self.signum = signum
        self.is_deferred = is_deferred


class _State:
    """Signals so far."""

    deferred: int | None = None
    """A signal that waits for the end of a block of `deferring_interrupts`."""
    n_deferring = 0
    """Number of such blocks."""
    is_ending = False
    """Whether an exception was raised already."""


_state = _State()


def _handle(signum: int, frame: FrameType | None) -> None:
    if _state.n_deferring and _state.deferred is None:
        _state.deferred = signum
        return
    # While files are being removed, only a second Ctrl-C counts: schedulers often send SIGTERM and SIGHUP together.
    if _state.is_ending and signum != signal.SIGINT:
        return
    _state.deferred, _state.is_ending = None, True  # a deferred signal must not interrupt what is run afterwards
    raise Interrupted(signum)


@contextmanager
def raising_interrupts() -> Iterator[None]:
    """Raise `Interrupted` for signals that arrive inside the block, so that files are closed and removed as for errors.

    Signals that the process ignores, as with `nohup`, stay ignored. Only the main thread can do this.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    _state.deferred, _state.n_deferring, _state.is_ending = None, 0, False
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, _handle)
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was not set from Python, which cannot restore it
                signal.signal(number, handler)


@contextmanager
def deferring_interrupts() -> Iterator[Callable[[], None]]:
    """Defer the first signal inside the block; the function that it yields raises it, if one has arrived.

    A second signal is raised at once. Outside of `raising_interrupts` nothing is deferred.

    Example:
        >>> with raising_interrupts():
        ...     with deferring_interrupts() as check_interrupt:
        ...         signal.raise_signal(signal.SIGTERM)
        ...         print("a step is completed")
        ...         check_interrupt()
        Traceback (most recent call last):
        elflow._interrupts.Interrupted: interrupted by SIGTERM
    """

    def check_interrupt() -> None:
        if _state.deferred is not None:
            signum, _state.deferred = _state.deferred, None
            _state.is_ending = True
            raise Interrupted(signum, is_deferred=True)

    _state.n_deferring += 1
    try:
        yield check_interrupt
    finally:
        _state.n_deferring -= 1
    check_interrupt()
