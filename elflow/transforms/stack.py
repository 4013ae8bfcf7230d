"""One transformation after the other, and those that only some coordinates go through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Transform, constraints
from zuko.transforms import ComposedTransform

from elflow.transforms.autoregressive import InverseInfo, Settled, swept

__all__ = ["HeadTransform", "StackTransform"]


class StackTransform(ComposedTransform):
    """zuko's composition for transforms of vectors, in a form that `torch.compile` follows.

    Arguments:
        transforms: Transforms of `(..., features)`, in the order of the data's way to latent space.

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
    """A transform of the first coordinates, which leaves the others as they are.

    Arguments:
        transform: A transform of `(..., size)`.
        size: How many coordinates it takes.

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
        return self._joined(self.transform.inv(y[..., : self.size]), y)

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, ladj = self.transform.call_and_ladj(x[..., : self.size])
        return self._joined(y, x), ladj

    def sweep(self, y: Tensor, tol: float, method: str, settled: Settled = None) -> tuple[Tensor, InverseInfo | None]:
        """The inverse, and how it went if the transform is one that sweeps."""
        x, info = swept(self.transform, y[..., : self.size], tol, method, settled)
        return self._joined(x, y), info

    def _joined(self, head: Tensor, whole: Tensor) -> Tensor:
        tail = whole[..., self.size :]
        return torch.cat([head, tail.expand(*head.shape[:-1], -1)], dim=-1)
