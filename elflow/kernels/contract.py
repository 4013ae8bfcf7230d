"""The contract of a backend: the one-dimensional network for a batch of networks and points.

A backend works on a flat batch of `N` networks with `H` units each, and `M` points per network:

====================  ==========  =========================================================================
`x`, `y`              `(N, M)`    points
`w1`, `b1`, `w2`      `(N, H)`    weights into the units, biases of the units, weights out of the units
`b2`                  `(N,)`      shifts
`phi`                 `(N, P)`    networks of bumps: see `elflow.functional.bumps`
`bound`               float       in (0, 1)
====================  ==========  =========================================================================

`Backend` says what each function returns and how to add a backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from elflow.activations import PiecewiseQuadratic

__all__ = ["MAX_LOG", "Backend", "NonFiniteError", "has_double", "require_finite", "widen"]

MAX_LOG = 12.0
"""Logarithms in phi are clamped to +-12, far beyond the needs of data: edges are between 6e-6 and 1.6e5 wide."""


@dataclass(frozen=True)
class Backend:
    """One implementation of the one-dimensional network.

    To add a backend:

    1. Write a module with the five functions below and `unsupported_reason`, and collect them in a `Backend`.
       `elflow/kernels/reference.py` is the definition of the results, and the shortest example.
    2. Add it to `BACKENDS` in `elflow/kernels/__init__.py`, before slower backends.
    3. Add its name to `IMPLEMENTATIONS` in `tests/conftest.py`: the suite then compares it with the reference, over
       the networks of `elflow.testing`.

    What the functions can rely on: shapes as in the table of this module; one dtype, one device and one activation, all
    accepted by `unsupported_reason`. Strides are arbitrary: weights are often slices of a larger tensor, and one
    network that many points share arrives as rows with stride 0.

    What they must guarantee: results in the dtype of the input, differentiable with respect to every tensor. They raise
    `NonFiniteError` if a parameter is not finite (`require_finite` does), except while tracing, when tensors have no
    values. A point that is not finite affects the result at this point only.

    Example:
        >>> import elflow
        >>> cpu = elflow.kernels.select(torch.float32, torch.device("cpu"), elflow.activations.FELU)
        >>> w1, b1, w2 = torch.ones(3, 4, 8)  # four networks of eight units
        >>> cpu.lipschitz(w1, b1, w2, elflow.activations.FELU)
        tensor([8., 8., 8., 8.])
    """

    name: str
    """The name to choose it by: see `elflow.kernels.backend`."""

    unsupported_reason: Callable[[torch.dtype, torch.device, PiecewiseQuadratic], str | None]
    """(dtype, device, activation) -> why the backend does not support this input, or None if it does."""

    lipschitz: Callable[[Tensor, Tensor, Tensor, PiecewiseQuadratic], Tensor]
    """(w1, b1, w2, activation) -> Lipschitz constants `(N,)`."""

    elf: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, PiecewiseQuadratic], tuple[Tensor, Tensor]]
    """(x, w1, b1, w2, b2, bound, activation) -> y and log dy/dx, `(N, M)` each."""

    elf_inverse: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, PiecewiseQuadratic], Tensor]
    """(y, w1, b1, w2, b2, bound, activation) -> x `(N, M)`."""

    elf_bumps: Callable[[Tensor, Tensor, int, float, PiecewiseQuadratic], tuple[Tensor, Tensor]]
    """(x, phi, units, bound, activation) -> y and log dy/dx, `(N, M)` each."""

    elf_bumps_inverse: Callable[[Tensor, Tensor, int, float, PiecewiseQuadratic], Tensor]
    """(y, phi, units, bound, activation) -> x `(N, M)`."""


class NonFiniteError(ValueError):
    """A parameter of a network holds NaN or an infinity, or the product of two parameters overflows.

    Every backend raises it, in eager and in compiled code. The message names the parameter and the number of wrong
    values. In training it usually means that the learning rate is too high.

    Example:
        >>> import elflow
        >>> w = torch.ones(3)
        >>> elflow.functional.lipschitz(w, w, torch.tensor([1.0, torch.nan, torch.inf]))
        Traceback (most recent call last):
        ...
        elflow.kernels.contract.NonFiniteError: w2 must be finite, got 2 of 3 values that are NaN or infinite
    """


def require_finite(*, phi: Tensor | None = None, **parameters: Tensor) -> None:
    """Raise `NonFiniteError` for the first parameter, or product of w1 and w2, that is not finite.

    Arguments:
        phi: The tensor that the parameters were computed from, if any. If it is not finite, the error names it instead
            of the parameters. Infinite logarithms alone are no error, because they are clamped.
        parameters: w1, b1 and w2, `(N, H)` each, and if there is one b2, `(N,)`.

    Example:
        >>> w = torch.ones(4, 3)
        >>> require_finite(w1=w, b1=w, w2=w / 0)
        Traceback (most recent call last):
        ...
        elflow.kernels.contract.NonFiniteError: w2 must be finite, got 12 of 12 values that are NaN or infinite
    """
    for name, value in parameters.items():
        if not value.isfinite().all():
            if phi is not None and not phi.isfinite().all():
                name, value = "phi", phi
            wrong = int((~value.isfinite()).sum())
            raise NonFiniteError(
                f"{name} must be finite, got {wrong} of {value.numel()} values that are NaN or infinite"
            )
    # A slope that overflows float64 cannot be normalised: all of its digits are lost.
    total = (parameters["w1"].double() * parameters["w2"].double()).abs().sum(-1)
    overflows = int((~total.isfinite()).sum())
    if overflows:
        raise NonFiniteError(
            f"w1 * w2 must be finite, got {overflows} of {total.numel()} networks whose product exceeds the largest "
            "float64"
        )


def has_double(device: torch.device) -> bool:
    """Whether a device computes in double precision.

    Example:
        >>> has_double(torch.device("cpu")), has_double(torch.device("mps"))
        (True, False)
    """
    return device.type != "mps"


def widen(t: Tensor) -> Tensor:
    """Convert to float64, if the device has it.

    Example:
        >>> widen(torch.zeros(2)).dtype
        torch.float64
    """
    return t.double() if has_double(t.device) else t
