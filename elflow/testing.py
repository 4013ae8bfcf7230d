"""Networks to test a backend with, and slow but trustworthy answers to hold it against.

Whoever writes a backend can run the same checks on it as the test suite:

    >>> import elflow.testing
    >>> generator = torch.Generator().manual_seed(0)
    >>> w1, b1, w2 = elflow.testing.networks("cancelling", 100, 8, torch.float64, generator)
    >>> error = elflow.testing.lipschitz_error(elflow.functional.lipschitz(w1, b1, w2), w1, b1, w2)
    >>> bool((error < 1e-12).all())
    True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

import elflow

__all__ = ["KINDS", "inverse_error", "lipschitz_error", "networks", "overtaken"]

Weights = tuple[Tensor, Tensor, Tensor]
Array = np.ndarray[Any, Any]


def _ordinary(size: tuple[int, int], rng: np.random.Generator) -> tuple[Array, ...]:
    w1 = rng.uniform(0.5, 2.5, size) * rng.choice([-1, 1], size)
    return w1, -w1 * rng.uniform(-3, 3, size), rng.normal(size=size) / np.sqrt(size[1])


def _wide(size: tuple[int, int], rng: np.random.Generator) -> tuple[Array, ...]:
    def some() -> Array:
        magnitude: Array = 10 ** rng.uniform(-3, 3, size)
        return magnitude * rng.choice([-1, 1], size)

    return some(), some(), some()


def _with_w1(choices: list[float]) -> Callable[..., tuple[Array, ...]]:
    """Ordinary networks in which about a third of the first weights are replaced."""

    def make(size: tuple[int, int], rng: np.random.Generator) -> tuple[Array, ...]:
        w1, b1, w2 = _ordinary(size, rng)
        replaced = rng.choice(choices, size) * rng.choice([-1, 1], size)
        return np.where(rng.random(size) < 0.3, replaced, w1), b1, w2

    return make


def _equal(size: tuple[int, int], rng: np.random.Generator) -> tuple[Array, ...]:
    """Units that share breakpoints: copies, and mirror images that begin where others end."""
    w1, b1, w2 = _ordinary(size, rng)
    w1 = np.round(w1[:, :1] * 4) / 4 * rng.choice([-1, 1, 2], size)
    b1 = np.round(b1[:, :1]) * np.sign(w1) - rng.choice([0, 1], size)
    return w1, b1, w2


def _one_sided(size: tuple[int, int], rng: np.random.Generator) -> tuple[Array, ...]:
    w1, b1, w2 = _ordinary(size, rng)
    return abs(w1), -abs(b1) - 1, abs(w2)


def _cancelling(size: tuple[int, int], rng: np.random.Generator) -> tuple[Array, ...]:
    """Pairs of units that are nearly opposite, so that their slopes nearly cancel."""
    w1, b1, w2 = _ordinary(size, rng)
    half = size[1] // 2
    for w, sign in ((w1, 1), (b1, 1), (w2, -1)):
        w[:, half : 2 * half] = sign * w[:, :half]
    return w1 + 1e-3 * rng.normal(size=size), b1, w2 * 30


def _scaled(size: tuple[int, int], rng: np.random.Generator) -> tuple[Array, ...]:
    """Ordinary slopes, of ramps as wide as 1e20 or as narrow as 1e-20 beside ordinary ones."""
    w1, b1, w2 = _ordinary(size, rng)
    scale = rng.choice([1e-20, 1, 1, 1e20], size)
    return w1 * scale, b1 * scale, w2 / scale


def _zero(size: tuple[int, int], rng: np.random.Generator) -> tuple[Array, ...]:
    w1, b1, w2 = _ordinary(size, rng)
    return w1 * rng.choice([0, 1], (size[0], 1)), b1, w2 * rng.choice([0, 1], (size[0], 1))


KINDS: dict[str, Callable[[tuple[int, int], np.random.Generator], tuple[Array, ...]]] = {
    "ordinary": _ordinary,
    "wide": _wide,
    "flat": _with_w1([0.0]),
    "denormal": _with_w1([1e-45, 1e-42, 1e-39, 1e-310]),
    "extreme": _with_w1([1e-20, 1e20]),
    "scaled": _scaled,
    "steep": _with_w1([1e4, 1e8]),
    "equal": _equal,
    "one-sided": _one_sided,
    "cancelling": _cancelling,
    "zero": _zero,
}
"""Kinds of networks, most of them hostile."""


def networks(kind: str, count: int, units: int, dtype: torch.dtype, generator: Generator) -> Weights:
    """Random networks of one of `KINDS`: w1, b1 and w2, `(count, units)` each."""
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    w1, b1, w2 = (torch.from_numpy(w).to(dtype) for w in KINDS[kind]((count, units), rng))
    return w1, b1, w2


def _smallest(dtype: torch.dtype) -> float:
    """Slopes below this may underflow on the way: they are as good as zero."""
    return torch.finfo(dtype).tiny / torch.finfo(dtype).eps


def lipschitz_error(found: Tensor, w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    """How far constants `(N,)` are from direct evaluation at every breakpoint.

    Relative to the constant, or to a thousandth of the sum of abs(w1 w2) where slopes cancel. Arithmetic is in float64
    for float32 networks and in numpy's `longdouble` for float64 ones.
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
    scale = np.maximum(truth, 1e-3 * abs(slopes).sum(-1)).clip(_smallest(w1.dtype))
    return torch.from_numpy((abs(found.numpy() - truth) / scale).astype(np.float64))


def overtaken(found: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, generator: Generator, points: int = 64) -> Tensor:
    """By how much slopes found by dense search exceed the constants `(N,)`, relative as in `lipschitz_error`."""
    smallest = _smallest(w1.dtype)
    w1, b1, w2, found = w1.double(), b1.double(), w2.double(), found.double()
    shape = (len(w1), points)
    unit = torch.randint(w1.shape[1], shape, generator=generator)
    near = -(b1.gather(1, unit) + torch.rand(shape, generator=generator, dtype=torch.float64) * 1.2 - 0.1)
    x = near / w1.gather(1, unit)
    x = torch.where(x.isfinite(), x, torch.randn(shape, generator=generator, dtype=torch.float64))
    q = (w1[:, None] * x[..., None] + b1[:, None] + 1).clamp(0, 1)
    steepest = ((w1 * w2)[:, None] * q).sum(-1).abs().amax(-1)
    scale = torch.maximum(found, 1e-3 * (w1 * w2).abs().sum(-1)).clamp(min=smallest)
    return (steepest - found) / scale


def inverse_error(y: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, bound: float) -> Tensor:
    """How far elf(elf_inverse(y)) is from y, relative to the largest of 1, abs(y), abs(x); NaN where x is infinite."""
    x = elflow.functional.elf_inverse(y, w1, b1, w2, b2, bound)
    back, _ = elflow.functional.elf(x, w1, b1, w2, b2, bound)
    size = torch.stack([torch.ones_like(y), y.abs(), x.abs()]).amax(0)
    return torch.where(x.isfinite(), (back - y).abs() / size, torch.nan)
