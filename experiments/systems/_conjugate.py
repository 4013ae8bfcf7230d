"""Conjugate gradients for batches of linear systems, and log-determinants from them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Solution", "conjugate_gradients", "log_determinant"]


class Solution(NamedTuple):
    """Solution of systems `H x = b`, and the Lanczos matrices of the iteration."""

    x: Tensor
    """`(N, d)`."""
    residual: Tensor
    """|b - H x| / |b|, as tracked by the iteration, `(N,)`."""
    diagonal: Tensor
    """Diagonals of the tridiagonal Lanczos matrices that start with b, `(N, steps)`; ones after a row is done."""
    beside: Tensor
    """Off-diagonals, `(N, steps - 1)`; zeros after a row is done."""


def conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor, tol: float, limit: int) -> Solution:
    """Solve `H x = b` for symmetric positive definite matrices, one for each row.

    Arguments:
        product: Multiplies vectors `(N, d)` by their matrices.
        b: Right-hand sides, `(N, d)`.
        tol: The relative residual at which a row is done.
        limit: The maximum number of steps. Without rounding, d suffice.

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
    """A Lanczos estimate of log det H, `(N,)`: that of `b^T log(H) b`, unbiased over random signs b.

    Arguments:
        solution: The solution of `H x = b`.
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
