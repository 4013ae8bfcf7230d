"""Classification of errors: wrong arguments of a request, or faults of the service."""

from __future__ import annotations

import dis

__all__ = ["is_about_arguments"]

KINDS = (ValueError, TypeError, OverflowError, FloatingPointError)
"""Errors that elflow raises about arguments."""
RAISE = dis.opmap["RAISE_VARARGS"]


def is_about_arguments(error: BaseException) -> bool:
    """Whether elflow itself raised an error about an argument, by a statement `raise`.

    The same kinds of errors that come from other libraries, or from an operation that fails, are faults of the service.

    Example:
        >>> from elflow import FlowDensity
        >>> def catch(function, *arguments):
        ...     try:
        ...         function(*arguments)
        ...     except Exception as error:
        ...         return error
        >>> is_about_arguments(catch(FlowDensity(missing="no").fit, [[1.0]]))
        True
        >>> is_about_arguments(catch(int, "a"))
        False
    """
    trace = error.__traceback__
    if not isinstance(error, KINDS) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return package == "elflow" and trace.tb_frame.f_code.co_code[trace.tb_lasti] == RAISE
