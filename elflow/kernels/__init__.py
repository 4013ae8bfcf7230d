"""The one-dimensional exact-Lipschitz network, in several implementations of one contract.

Each call uses the fastest backend that supports its input; `backend` forces one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from elflow.activations import FELU, PiecewiseQuadratic
from elflow.kernels import native, reference, triton
from elflow.kernels.contract import Backend, NonFiniteError, has_double, widen

__all__ = ["Backend", "NonFiniteError", "available", "backend", "has_double", "select", "widen"]

BACKENDS = {b.name: b for b in (native.BACKEND, triton.BACKEND, reference.BACKEND)}
"""All backends, the fastest first. The last one supports every input."""

# A plain global, because torch.compile guards on it but cannot follow a ContextVar.
_forced = "auto"


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Context manager that forces a backend, in all threads of the process.

    Arguments:
        name: `"auto"`, or the name of a backend: `"native"` (C++, CPUs, FELU), `"triton"` (GPUs; with the environment
            variable `TRITON_INTERPRET=1` CPU tensors, slowly) or `"reference"` (plain torch).

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
    """Select the backend for an input: the forced one, or the fastest that supports it.

    Example:
        >>> from elflow.activations import RELU
        >>> select(torch.float32, torch.device("cpu"), RELU).name
        'reference'
    """
    if native.extension is None and _forced == "auto" and device.type == "cpu" and not torch.compiler.is_compiling():
        _warn_once()
    reason = None
    for candidate in BACKENDS.values() if _forced == "auto" else [BACKENDS[_forced]]:
        if _forced == "auto" and candidate is triton.BACKEND and triton.interpreted:
            continue  # the interpreter is much slower than the reference
        reason = candidate.unsupported_reason(dtype, device, activation)
        if reason is None:
            return candidate
    raise ValueError(f"backend {_forced!r} does not support this input: {reason}. Use backend 'auto' or 'reference'")


def available() -> dict[str, str | None]:
    """The reason why each backend cannot run float32 FELU networks on this machine's CPU, or None if it can.

    Example:
        >>> available()["reference"] is None
        True
    """
    return {b.name: b.unsupported_reason(torch.float32, torch.device("cpu"), FELU) for b in BACKENDS.values()}


_has_warned = False


def _warn_once() -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(
            "elflow's native kernel is not available, so plain torch is used, which is many times slower: "
            f"{native.import_error}",
            RuntimeWarning,
            stacklevel=4,
        )
