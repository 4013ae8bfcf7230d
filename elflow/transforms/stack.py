"""One transformation after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.distributions import Transform, constraints
from zuko.transforms import ComposedTransform

__all__ = ["StackTransform"]


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
