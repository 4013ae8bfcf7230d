"""What a backend is: the one-dimensional network for a batch, under one contract.

A backend works on a flat batch of `N` networks of `H` units, each with `M` points of its own:

====================  ==========  =========================================================================
`x`, `y`              `(N, M)`    of any strides, as are all others
`w1`, `b1`, `w2`      `(N, H)`    mostly with units next to each other, and rows any distance apart, even none
`b2`                  `(N,)`
`bound`               a float     in (0, 1)
====================  ==========  =========================================================================

All tensors share one dtype and one device, which `Backend.refuses` has accepted. Results are differentiable with
respect to every tensor. Parameters that are not finite raise `NonFiniteError` naming the argument, unless there are no
numbers to look at, as in a traced reference; values of `x` or `y` that are not finite concern their own element only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from elflow.activations import PiecewiseQuadratic

__all__ = ["LARGEST_LOG", "Backend", "NonFiniteError", "require_finite"]


@dataclass(frozen=True)
class Backend:
    """One implementation of the network.

    A new backend is a module with these functions, a line in `elflow/kernels/__init__.py` and one in
    `tests/conftest.py`, which makes the suite hold it against the reference.
    """

    name: str

    refuses: Callable[[torch.dtype, torch.device, PiecewiseQuadratic], str | None]
    """Why it cannot take such input, or None where it can."""

    lipschitz: Callable[[Tensor, Tensor, Tensor, PiecewiseQuadratic], Tensor]
    """(w1, b1, w2, activation) -> Lipschitz constants `(N,)`."""

    elf: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, PiecewiseQuadratic], tuple[Tensor, Tensor]]
    """(x, w1, b1, w2, b2, bound, activation) -> y and log dy/dx, `(N, M)` each."""

    elf_inverse: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float, PiecewiseQuadratic], Tensor]
    """(y, w1, b1, w2, b2, bound, activation) -> x `(N, M)`."""

    elf_bumps: Callable[[Tensor, Tensor, int, float, PiecewiseQuadratic], tuple[Tensor, Tensor]]
    """(x, phi, units, bound, activation) -> as `elf` of the networks in phi `(N, P)`: see `elflow.functional.bumps`."""

    elf_bumps_inverse: Callable[[Tensor, Tensor, int, float, PiecewiseQuadratic], Tensor]
    """(y, phi, units, bound, activation) -> as `elf_inverse` of the networks in phi."""


LARGEST_LOG = 12.0
"""To which logarithms are clamped, far beyond what data ask for: an edge is at least 6e-6 wide, at most 1.6e5."""


class NonFiniteError(ValueError):
    """A parameter of a network holds NaN or an infinity, or the product of two parameters overflows.

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
            of the parameters. Infinite logarithms alone are no error: they are clamped.
        parameters: w1, b1 and w2, `(N, H)` each, and where there is one b2, `(N,)`.
    """
    for name, value in parameters.items():
        if not value.isfinite().all():
            if phi is not None and not phi.isfinite().all():
                name, value = "phi", phi
            wrong = int((~value.isfinite()).sum())
            raise NonFiniteError(
                f"{name} must be finite, got {wrong} of {value.numel()} values that are NaN or infinite"
            )
    # A product beyond the largest float64 leaves nothing to normalise.
    total = (parameters["w1"].double() * parameters["w2"].double()).abs().sum(-1)
    overflows = int((~total.isfinite()).sum())
    if overflows:
        raise NonFiniteError(
            f"w1 * w2 must be finite, got {overflows} of {total.numel()} networks whose product exceeds the largest "
            "float64"
        )
