"""Compositions of transforms, and transforms of the first coordinates only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Transform, constraints
from zuko.transforms import ComposedTransform

from elflow.transforms.autoregressive import InverseInfo, OnSettled, invert_part

__all__ = ["HeadTransform", "StackTransform"]


class StackTransform(ComposedTransform):
    """Composition of transforms of vectors: zuko's `ComposedTransform`, in a form that `torch.compile` can trace.

    Arguments:
        transforms: Transforms of `(..., features)`, in the order from data to latent space.

    Example:
        >>> import torch
        >>> from elflow.transforms import ActNormTransform
        >>> double = ActNormTransform(torch.zeros(3), torch.full((3,), 2.0).log())
        >>> StackTransform([double, double]).call_and_ladj(torch.ones(1, 3))
        (tensor([[4., 4., 4.]]), tensor([4.1589]))
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, transforms: Sequence[Any]) -> None:
        Transform.__init__(self)
        self.transforms = tuple(transforms)
        self.domain_dim = self.codomain_dim = 1

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, total = self.transforms[0].call_and_ladj(x)
        for t in self.transforms[1:]:
            x, ladj = t.call_and_ladj(x)
            total = total + ladj
        return x, total


class HeadTransform(Transform):
    """Apply a transform to the first coordinates and leave the others unchanged.

    Arguments:
        transform: A transform of `(..., size)`.
        size: The number of coordinates that it transforms.

    Example:
        >>> import torch
        >>> from elflow.transforms import ActNormTransform
        >>> double = ActNormTransform(torch.zeros(2), torch.full((2,), 2.0).log())
        >>> HeadTransform(double, 2).call_and_ladj(torch.ones(1, 3))
        (tensor([[2., 2., 1.]]), tensor([1.3863]))
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, transform: Any, size: int) -> None:
        super().__init__()
        self.transform = transform
        self.size = size

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return self._join(self.transform.inv(y[..., : self.size]), y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, ladj = self.transform.call_and_ladj(x[..., : self.size])
        return self._join(y, x), ladj

    def sweep(
        self, y: Tensor, tol: float, method: str, on_settled: OnSettled = None
    ) -> tuple[Tensor, InverseInfo | None]:
        """The inverse, and its diagnostics if the transform sweeps; for the arguments see `invert`."""
        x, info = invert_part(self.transform, y[..., : self.size], tol, method, on_settled)
        return self._join(x, y), info

    def _join(self, head: Tensor, whole: Tensor) -> Tensor:
        tail = whole[..., self.size :]
        return torch.cat([head, tail.expand(*head.shape[:-1], -1)], dim=-1)
