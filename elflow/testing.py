"""Test cases for backends: networks with extreme parameters, and slow but reliable errors of their results.

The author of a backend can run the checks of the test suite on it:

    >>> import elflow.testing
    >>> generator = torch.Generator().manual_seed(0)
    >>> w1, b1, w2 = elflow.testing.make_networks("cancelling", 100, 8, torch.float64, generator)
    >>> constants = elflow.functional.lipschitz(w1, b1, w2)
    >>> error = elflow.testing.lipschitz_error(constants, w1, b1, w2)
    >>> bool((error < 1e-12).all())
    True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from elflow._checks import check_choice
from elflow.functional import elf, elf_inverse

__all__ = ["NETWORK_KINDS", "excess_slope", "inverse_error", "lipschitz_error", "make_networks"]

Weights = tuple[Tensor, Tensor, Tensor]
Array = np.ndarray[Any, Any]
Size = tuple[int, int]


def _make_ordinary(size: Size, rng: np.random.Generator) -> tuple[Array, ...]:
    """Slopes and breakpoints as in a freshly initialised flow."""
    w1 = rng.uniform(0.5, 2.5, size) * rng.choice([-1, 1], size)
    return w1, -w1 * rng.uniform(-3, 3, size), rng.normal(size=size) / np.sqrt(size[1])


def _make_wide(size: Size, rng: np.random.Generator) -> tuple[Array, ...]:
    """Parameters of all magnitudes between 1e-3 and 1e3."""

    def draw() -> Array:
        magnitude: Array = 10 ** rng.uniform(-3, 3, size)
        return magnitude * rng.choice([-1, 1], size)

    return draw(), draw(), draw()


def _replace_w1(choices: list[float]) -> Callable[[Size, np.random.Generator], tuple[Array, ...]]:
    """Ordinary networks in which about a third of w1 is replaced by the choices, with random signs."""

    def make(size: Size, rng: np.random.Generator) -> tuple[Array, ...]:
        w1, b1, w2 = _make_ordinary(size, rng)
        replaced = rng.choice(choices, size) * rng.choice([-1, 1], size)
        return np.where(rng.random(size) < 0.3, replaced, w1), b1, w2

    return make


def _make_equal(size: Size, rng: np.random.Generator) -> tuple[Array, ...]:
    """Units that share breakpoints: copies, and mirror images that rise where others fall."""
    w1, b1, w2 = _make_ordinary(size, rng)
    w1 = np.round(w1[:, :1] * 4) / 4 * rng.choice([-1, 1, 2], size)
    b1 = np.round(b1[:, :1]) * np.sign(w1) - rng.choice([0, 1], size)
    return w1, b1, w2


def _make_one_sided(size: Size, rng: np.random.Generator) -> tuple[Array, ...]:
    """Positive slopes only, so that the maximum is at the right end of the line."""
    w1, b1, w2 = _make_ordinary(size, rng)
    return abs(w1), -abs(b1) - 1, abs(w2)


def _make_cancelling(size: Size, rng: np.random.Generator) -> tuple[Array, ...]:
    """Pairs of units that are nearly opposite, so that their slopes nearly cancel."""
    w1, b1, w2 = _make_ordinary(size, rng)
    half = size[1] // 2
    for w, sign in ((w1, 1), (b1, 1), (w2, -1)):
        w[:, half : 2 * half] = sign * w[:, :half]
    return w1 + 1e-3 * rng.normal(size=size), b1, w2 * 30


def _make_scaled(size: Size, rng: np.random.Generator) -> tuple[Array, ...]:
    """Ordinary slopes, with some ramps 1e20 times wider or narrower than others."""
    w1, b1, w2 = _make_ordinary(size, rng)
    scale = rng.choice([1e-20, 1, 1, 1e20], size)
    return w1 * scale, b1 * scale, w2 / scale


def _make_zero(size: Size, rng: np.random.Generator) -> tuple[Array, ...]:
    """Networks some of which have only zeros as w1, w2 or both."""
    w1, b1, w2 = _make_ordinary(size, rng)
    return w1 * rng.choice([0, 1], (size[0], 1)), b1, w2 * rng.choice([0, 1], (size[0], 1))


NETWORK_KINDS: dict[str, Callable[[Size, np.random.Generator], tuple[Array, ...]]] = {
    "ordinary": _make_ordinary,
    "wide": _make_wide,
    "flat": _replace_w1([0.0]),
    "denormal": _replace_w1([1e-45, 1e-42, 1e-39, 1e-310]),
    "extreme": _replace_w1([1e-20, 1e20]),
    "scaled": _make_scaled,
    "steep": _replace_w1([1e4, 1e8]),
    "equal": _make_equal,
    "one-sided": _make_one_sided,
    "cancelling": _make_cancelling,
    "zero": _make_zero,
}
"""The kinds of networks that `make_networks` makes, most of them numerically difficult."""


def make_networks(kind: str, count: int, units: int, dtype: torch.dtype, generator: Generator) -> Weights:
    """Make random networks of one kind.

    Arguments:
        kind: One of `NETWORK_KINDS`.
        count: The number of networks N.
        units: The number of units H of each.
        dtype: The dtype of the tensors.
        generator: The source of randomness.

    Returns:
        w1, b1 and w2, `(N, H)` each.

    Example:
        >>> w1, b1, w2 = make_networks("steep", 10, 4, torch.float32, Generator().manual_seed(0))
        >>> w1.shape, bool(w1.abs().max() >= 1e4)
        (torch.Size([10, 4]), True)
    """
    check_choice("kind", kind, NETWORK_KINDS)
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    w1, b1, w2 = (torch.from_numpy(w).to(dtype) for w in NETWORK_KINDS[kind]((count, units), rng))
    return w1, b1, w2


def _min_slope(dtype: torch.dtype) -> float:
    """Slopes below this count as zero: they may underflow in the computation."""
    return torch.finfo(dtype).tiny / torch.finfo(dtype).eps


def lipschitz_error(constants: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """The relative error of Lipschitz constants, by direct evaluation of g' at every breakpoint.

    The error is relative to the true constant or, if slopes cancel, to a thousandth of the sum of abs(w1 w2). The
    evaluation is in float64 for float32 networks and in numpy's `longdouble` for float64 networks.

    Arguments:
        constants: The constants to check, `(N,)`.
        w1: Weights into the units, `(N, H)`.
        b1: Biases of the units, `(N, H)`.
        w2: Weights out of the units, `(N, H)`.

    Returns:
        The errors, `(N,)`.

    Example:
        >>> w1, b1, w2 = torch.tensor([[[1.0, 2.0]], [[0.0, -4.0]], [[0.5, -1.0]]])
        >>> lipschitz_error(torch.tensor([1.5]), w1, b1, w2)
        tensor([0.], dtype=torch.float64)
    """
    real: Any = np.float64 if w1.dtype == torch.float32 else np.longdouble
    a1, c1, a2 = (w.numpy().astype(real) for w in (w1, b1, w2))
    slopes = a1 * a2
    truth = np.maximum(abs((slopes * (a1 > 0)).sum(-1)), abs((slopes * (a1 < 0)).sum(-1)))
    with np.errstate(all="ignore"):
        for off in (0, 1):
            for j in range(a1.shape[1]):
                x = -(off + c1[:, j]) / a1[:, j]
                q = np.clip(a1 * x[:, None] + c1 + 1, 0, 1)
                q[:, j] = 1 - off
                slope = abs((slopes * q).sum(-1))
                truth = np.where(np.isfinite(x), np.fmax(truth, slope), truth)
    scale = np.maximum(truth, 1e-3 * abs(slopes).sum(-1)).clip(_min_slope(w1.dtype))
    return torch.from_numpy((abs(constants.numpy() - truth) / scale).astype(np.float64))


def excess_slope(
    constants: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, generator: Generator, points: int = 64
) -> Tensor:
    """The excess of abs(g') over Lipschitz constants, by random search near the breakpoints; positive is an error.

    The excess is relative, with the scale of `lipschitz_error`.

    Arguments:
        constants: The constants to check, `(N,)`.
        w1: Weights into the units, `(N, H)`.
        b1: Biases of the units, `(N, H)`.
        w2: Weights out of the units, `(N, H)`.
        generator: The source of randomness.
        points: The number of points per network.

    Returns:
        The excess, `(N,)`.

    Example:
        >>> w1, b1, w2 = torch.tensor([[[1.0, 2.0]], [[0.0, -4.0]], [[0.5, -1.0]]])
        >>> excess_slope(torch.tensor([1.0]), w1, b1, w2, Generator().manual_seed(0)) > 0.4
        tensor([True])
    """
    min_slope = _min_slope(w1.dtype)
    w1, b1, w2, constants = w1.double(), b1.double(), w2.double(), constants.double()
    shape = (len(w1), points)
    unit = torch.randint(w1.shape[1], shape, generator=generator)
    near = -(b1.gather(1, unit) + torch.rand(shape, generator=generator, dtype=torch.float64) * 1.2 - 0.1)
    x = near / w1.gather(1, unit)
    x = torch.where(x.isfinite(), x, torch.randn(shape, generator=generator, dtype=torch.float64))
    q = (w1[:, None] * x[..., None] + b1[:, None] + 1).clamp(0, 1)
    max_slope = ((w1 * w2)[:, None] * q).sum(-1).abs().amax(-1)
    scale = torch.maximum(constants, 1e-3 * (w1 * w2).abs().sum(-1)).clamp(min=min_slope)
    return (max_slope - constants) / scale


def inverse_error(y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float) -> Tensor:
    """The round-trip error of `elf(elf_inverse(y))`, relative to the maximum of 1, abs(y) and abs(x).

    Arguments:
        y: Points, `(...)`.
        w1: Weights into the units, `(..., H)`.
        b1: Biases of the units, `(..., H)`.
        w2: Weights out of the units, `(..., H)`.
        b2: Shifts, `(...)`.
        bound: The maximum Lipschitz constant c, in (0, 1).

    Returns:
        The errors, `(...)`; NaN where x is infinite.

    Example:
        >>> w1, b1, w2 = make_networks("ordinary", 10, 4, torch.float64, Generator().manual_seed(0))
        >>> bool((inverse_error(torch.zeros(10).double(), w1, b1, w2, torch.zeros(10).double(), 0.99) < 1e-12).all())
        True
    """
    x = elf_inverse(y, w1, b1, w2, b2, bound)
    back, _ = elf(x, w1, b1, w2, b2, bound)
    size = torch.stack([torch.ones_like(y), y.abs(), x.abs()]).amax(0)
    return torch.where(x.isfinite(), (back - y).abs() / size, torch.nan)
