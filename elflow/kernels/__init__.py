"""The one-dimensional exact-Lipschitz network, in several implementations of one contract.

The fastest implementation that can take the input is chosen for each call; :func:`backend` forces one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from elflow.activations import PiecewiseQuadratic
from elflow.kernels import native, reference
from elflow.kernels._contract import Backend

__all__ = ["Backend", "available", "backend", "select"]

BACKENDS = {b.name: b for b in (native.BACKEND, reference.BACKEND)}
"""The fastest first; the last one takes everything."""

forced: ContextVar[str] = ContextVar("elflow_backend", default="auto")


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Forces a backend inside a `with` block, for the current thread or task.

    Arguments:
        name: `"auto"`, or the name of a backend: `"native"` (C++, CPUs, FELU) or `"reference"` (plain torch).

    Example:
        >>> import elflow, torch
        >>> w1, b1, w2 = torch.tensor([2.0, -1.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.5, 0.5])
        >>> with elflow.kernels.backend("reference"):
        ...     elflow.functional.lipschitz(w1, b1, w2)
        tensor(1.)
    """
    if name != "auto" and name not in BACKENDS:
        raise ValueError(f"backend must be one of {['auto', *BACKENDS]}, got {name!r}")
    token = forced.set(name)
    try:
        yield
    finally:
        forced.reset(token)


def select(dtype: torch.dtype, device: torch.device, activation: PiecewiseQuadratic) -> Backend:
    """The backend for such input.

    Example:
        >>> from elflow.activations import RELU
        >>> select(torch.float32, torch.device("cpu"), RELU).name
        'reference'
    """
    name = forced.get()
    if name == "auto":
        if native.extension is None:
            _warn_once()
        return next(b for b in BACKENDS.values() if b.refuses(dtype, device, activation) is None)
    reason = BACKENDS[name].refuses(dtype, device, activation)
    if reason:
        raise ValueError(f"backend {name!r} cannot take this input: {reason}. Use backend 'auto' or 'reference'")
    return BACKENDS[name]


def available() -> dict[str, str | None]:
    """Each backend, with the reason why it cannot run float32 networks of FELU on this machine's CPU, or None."""
    from elflow.activations import FELU

    return {b.name: b.refuses(torch.float32, torch.device("cpu"), FELU) for b in BACKENDS.values()}


_warned = False


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "elflow was installed without its native kernel, so it runs through plain torch, many times slower. "
            "Install a C++ compiler, then elflow again",
            RuntimeWarning,
            stacklevel=4,
        )
