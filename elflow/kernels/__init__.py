"""The one-dimensional exact-Lipschitz network, in several implementations of one contract.

The fastest implementation that can take the input is chosen for each call; `backend` forces one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from elflow.activations import FELU, PiecewiseQuadratic
from elflow.kernels import native, reference
from elflow.kernels.contract import Backend, NonFiniteError

__all__ = ["Backend", "NonFiniteError", "available", "backend", "select"]

BACKENDS = {b.name: b for b in (native.BACKEND, reference.BACKEND)}
"""The fastest first; the last one takes everything."""

# A plain global, because torch.compile guards on it but cannot follow a ContextVar.
_forced = "auto"


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Forces a backend inside a `with` block, in the whole process.

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
    global _forced
    before, _forced = _forced, name
    try:
        yield
    finally:
        _forced = before


def select(dtype: torch.dtype, device: torch.device, activation: PiecewiseQuadratic) -> Backend:
    """The backend for such input.

    Example:
        >>> from elflow.activations import RELU
        >>> select(torch.float32, torch.device("cpu"), RELU).name
        'reference'
    """
    if native.extension is None and _forced == "auto" and not torch.compiler.is_compiling():
        _warn_once()
    reason = None
    for candidate in BACKENDS.values() if _forced == "auto" else [BACKENDS[_forced]]:
        reason = candidate.refuses(dtype, device, activation)
        if reason is None:
            return candidate
    raise ValueError(f"backend {_forced!r} cannot take this input: {reason}. Use backend 'auto' or 'reference'")


def available() -> dict[str, str | None]:
    """Each backend, with the reason why it cannot run float32 networks of FELU on this machine's CPU, or None."""
    return {b.name: b.refuses(torch.float32, torch.device("cpu"), FELU) for b in BACKENDS.values()}


_warned = False


def _warn_once() -> None:
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"elflow runs without its native kernel, through plain torch, many times slower: {native.why_not}",
            RuntimeWarning,
            stacklevel=4,
        )
