"""Conjugate gradients for many systems at once, and the determinants that they give away."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Solution", "conjugate_gradients", "log_determinant"]


class Solution(NamedTuple):
    """Of systems `H x = b`, and what the iteration has learnt about H."""

    x: Tensor
    """`(N, d)`."""
    residual: Tensor
    """|b - H x| / |b| as the iteration has it, `(N,)`."""
    diagonal: Tensor
    """Of the tridiagonal matrices of Lanczos that begin with b, `(N, steps)`: once a row is done, ones."""
    beside: Tensor
    """What is next to the diagonal, `(N, steps - 1)`: once a row is done, zeros."""


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, tol: float, limit: int) -> Solution:
    """Solves `H x = b` for symmetric positive definite matrices, one for each row.

    Arguments:
        product: Multiplies vectors `(N, d)` by their matrices.
        b: Right-hand sides, `(N, d)`.
        tol: The relative residual at which a row is done.
        limit: The greatest number of steps. Without rounding d are enough.

    Example:
        >>> h = torch.tensor([[[4.0, 1.0], [1.0, 3.0]]])
        >>> conjugate_gradients(lambda v: (h @ v[..., None])[..., 0], torch.tensor([[1.0, 2.0]]), 1e-5, limit=10).x
        tensor([[0.0909, 0.6364]])
    """
    x, r, p = torch.zeros_like(b), b, b
    square = start = b.square().sum(-1)
    alpha, beta = torch.ones_like(square), torch.zeros_like(square)
    diagonal, beside = [], []
    for _ in range(limit):
        active = square > tol**2 * start
        if not active.any():
            break
        q = product(p)
        before = beta / alpha
        beside.append(torch.where(active, beta.sqrt() / alpha, 0))
        alpha = torch.where(active, square / (p * q).sum(-1).where(active, 1), 1)
        diagonal.append(torch.where(active, 1 / alpha + before, 1))
        x = torch.where(active[:, None], x + alpha[:, None] * p, x)
        r = torch.where(active[:, None], r - alpha[:, None] * q, r)
        after = r.square().sum(-1)
        beta = torch.where(active, after / square.where(active, 1), 0)
        square = after
        p = r + beta[:, None] * p
    residual = (square / start.where(start > 0, 1)).sqrt()
    steps = torch.stack(diagonal, -1) if diagonal else b.new_zeros(len(b), 0)
    return Solution(x, residual, steps, torch.stack(beside[1:], -1) if beside[1:] else steps[:, 1:])


def log_determinant(solution: Solution, b: Tensor) -> Tensor:
    """An estimate of log det H, `(N,)`: over random signs b its mean is that of `b^T log(H) b`, by Lanczos.

    Arguments:
        solution: Of `H x = b`.
        b: The right-hand sides, `(N, d)`.

    Example:
        >>> b = torch.tensor([[1.0, -1.0]])
        >>> solution = conjugate_gradients(lambda v: 2 * v, b, 1e-5, limit=10)
        >>> log_determinant(solution, b) - 2 * torch.tensor(2.0).log()
        tensor([0.])
    """
    tridiagonal = torch.diag_embed(solution.diagonal) + torch.diag_embed(solution.beside, 1)
    values, vectors = torch.linalg.eigh(tridiagonal, UPLO="U")
    logs = values.clamp(min=torch.finfo(values.dtype).tiny).log()
    return b.square().sum(-1) * (vectors[:, 0].square() * logs).sum(-1)
