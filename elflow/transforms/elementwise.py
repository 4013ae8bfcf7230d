"""Transformations of each coordinate for itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributions import Transform, constraints

from elflow.activations import FELU, PiecewiseQuadratic
from elflow.functional import elf, elf_bumps, elf_bumps_inverse, elf_inverse

__all__ = ["ActNormTransform", "BumpTransform", "ColumnsTransform", "ELFTransform", "Elementwise", "ScaledTransform"]


class Elementwise(Transform):
    """An increasing map of each element. A new one has `call_and_ladj` and `_inverse`."""

    domain = constraints.real
    codomain = constraints.real
    bijective = True
    sign = +1
    steepest: float
    """No slope is greater."""

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and log dy/dx, of the shape of x."""
        raise TypeError(f"{type(self).__name__} must define call_and_ladj")

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]


class ELFTransform(Elementwise):
    """The increasing map of an exact-Lipschitz network, element by element.

    Arguments:
        w1: Weights into the units, `(..., H)`.
        b1: Biases of the units, `(..., H)`.
        w2: Weights out of the units, `(..., H)`.
        b2: Shifts, `(...)`.
        bound: The greatest Lipschitz constant that the network keeps, in (0, 1).
        activation: What the units compute.

    Example:
        >>> t = ELFTransform(torch.randn(3, 16), torch.randn(3, 16), torch.randn(3, 16), torch.zeros(3))
        >>> x = torch.randn(5, 3)
        >>> y, ladj = t.call_and_ladj(x)
        >>> ladj.shape
        torch.Size([5, 3])
        >>> torch.allclose(t.inv(y), x, atol=1e-4)
        True
    """

    def __init__(
        self,
        w1: Tensor,
        b1: Tensor,
        w2: Tensor,
        b2: Tensor,
        bound: float = 0.99,
        activation: PiecewiseQuadratic = FELU,
    ) -> None:
        super().__init__()
        self.parameters = w1, b1, w2, b2
        self.bound = bound
        self.activation = activation
        self.steepest = 1 + bound

    def __repr__(self) -> str:
        return f"{type(self).__name__}(units={self.parameters[0].shape[-1]}, bound={self.bound})"

    def _inverse(self, y: Tensor) -> Tensor:
        return elf_inverse(y, *self.parameters, bound=self.bound, activation=self.activation)

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return elf(x, *self.parameters, bound=self.bound, activation=self.activation)


class BumpTransform(Elementwise):
    """As `ELFTransform`, of networks whose units are bumps.

    Arguments:
        phi: Networks, `(..., bump_size(units))`: see `elflow.functional.bumps`.
        units: The number of units of each network.
        bound: The greatest Lipschitz constant that the network keeps, in (0, 1).
        activation: What the units compute.

    Example:
        >>> t = BumpTransform(torch.randn(3, 41), units=16)
        >>> t(torch.zeros(5, 3)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        phi: Tensor,
        units: int,
        bound: float = 0.99,
        activation: PiecewiseQuadratic = FELU,
    ) -> None:
        super().__init__()
        self.phi = phi
        self.options = units, bound, activation
        self.steepest = 1 + bound

    def part(self, chosen: slice) -> BumpTransform:
        """The transform of some coordinates alone."""
        return BumpTransform(self.phi[..., chosen, :], *self.options)

    def _inverse(self, y: Tensor) -> Tensor:
        return elf_bumps_inverse(y, self.phi, *self.options)

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return elf_bumps(x, self.phi, *self.options)


class ScaledTransform(Elementwise):
    """Each element times a factor of its own, then another transform.

    Arguments:
        log_scale: The logarithms of the factors, `(...)`.
        transform: What comes then.

    Example:
        >>> t = ScaledTransform(torch.tensor([0.0, 2.0]), BumpTransform(torch.randn(2, 21), units=8))
        >>> x = torch.randn(5, 2)
        >>> torch.allclose(t.inv(t(x)), x, atol=1e-4)
        True
    """

    def __init__(self, log_scale: Tensor, transform: BumpTransform) -> None:
        super().__init__()
        self.log_scale = log_scale
        self.transform = transform

    @property
    def steepest(self) -> float:  # type: ignore[override]
        """No slope is greater."""
        greatest = float(self.log_scale.detach().max().exp()) if self.log_scale.numel() else 1.0
        return greatest * self.transform.steepest

    def part(self, chosen: slice) -> ScaledTransform:
        """The transform of some coordinates alone."""
        return ScaledTransform(self.log_scale[..., chosen], self.transform.part(chosen))

    def _inverse(self, y: Tensor) -> Tensor:
        return self.transform.inv(y) * (-self.log_scale).exp()

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, ladj = self.transform.call_and_ladj(x * self.log_scale.exp())
        return y, ladj + self.log_scale


class ColumnsTransform(Elementwise):
    """Groups of coordinates, each by an elementwise transform of its own.

    Arguments:
        columns: The coordinates of each group; every coordinate is in one.
        transforms: What each group goes through.

    Example:
        >>> one, other = BumpTransform(torch.randn(1, 21), units=8), BumpTransform(torch.randn(2, 21), units=8)
        >>> t = ColumnsTransform([(1,), (0, 2)], [one, other])
        >>> x = torch.randn(5, 3)
        >>> bool((t(x)[:, [1]] == one(x[:, [1]])).all())
        True
    """

    def __init__(
        self, columns: Sequence[Sequence[int]], transforms: Sequence[Elementwise], cache_size: int = 0
    ) -> None:
        super().__init__()
        self.columns = columns
        self.transforms = transforms
        order = [column for group in columns for column in group]
        self._back = None if order == sorted(order) else [order.index(column) for column in range(len(order))]

    @property
    def steepest(self) -> float:  # type: ignore[override]
        """No slope is greater."""
        return max(t.steepest for t in self.transforms)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._joined([t.inv(part) for t, part in zip(self.transforms, self._parts(y), strict=True)])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ys, ladjs = [], []
        for t, part in zip(self.transforms, self._parts(x), strict=True):
            y, ladj = t.call_and_ladj(part)
            ys.append(y)
            ladjs.append(ladj)
        return self._joined(ys), self._joined(ladjs)

    def _parts(self, x: Tensor) -> list[Tensor]:
        return [_selected(x, columns) for columns in self.columns]

    def _joined(self, parts: list[Tensor]) -> Tensor:
        joined = torch.cat(parts, dim=-1)
        return joined if self._back is None else joined[..., self._back]


def _selected(x: Tensor, columns: Sequence[int]) -> Tensor:
    """Columns of x `(..., features)`, as a view where they stand next to each other."""
    first, count = columns[0], len(columns)
    if tuple(columns) == tuple(range(first, first + count)):
        return x.narrow(-1, first, count)
    return x[..., list(columns)]


class ActNormTransform(Transform):
    """Shifts and scales each coordinate: `y = (x - loc) exp(log_scale)`.

    Arguments:
        loc: What is taken away, `(features,)`.
        log_scale: The logarithms of the scales, `(features,)`.

    Example:
        >>> t = ActNormTransform(torch.tensor([1.0, 2.0]), torch.zeros(2))
        >>> t.call_and_ladj(torch.tensor([[1.0, 4.0]]))
        (tensor([[0., 2.]]), tensor([0.]))
    """

    domain = constraints.real_vector
    codomain = constraints.real_vector
    bijective = True

    def __init__(self, loc: Tensor, log_scale: Tensor) -> None:
        super().__init__()
        self.loc = loc
        self.log_scale = log_scale

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def _inverse(self, y: Tensor) -> Tensor:
        return y * (-self.log_scale).exp() + self.loc

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.log_scale.sum().expand(x.shape[:-1])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = (x - self.loc) * self.log_scale.exp()
        return y, self.log_abs_det_jacobian(x, y)
