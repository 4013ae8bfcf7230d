"""Elementwise transforms: each coordinate by an increasing map that depends on no other coordinate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.distributions import Transform, constraints

from elflow._checks import is_asynchronous
from elflow.activations import FELU, PiecewiseQuadratic
from elflow.functional import elf, elf_bumps, elf_bumps_inverse, elf_inverse

__all__ = ["ActNormTransform", "BumpTransform", "ColumnsTransform", "ELFTransform", "Elementwise", "ScaledTransform"]


class Elementwise(Transform):
    """Base class of increasing maps of each element. A subclass defines `call_and_ladj` and `_inverse`.

    Example:
        >>> class Double(Elementwise):
        ...     def call_and_ladj(self, x):
        ...         return 2 * x, torch.full_like(x, 2.0).log()
        ...
        ...     def _inverse(self, y):
        ...         return y / 2
        >>> Double().inv(Double()(torch.tensor([1.0, 3.0])))
        tensor([1., 3.])
    """

    domain = constraints.real
    codomain = constraints.real
    bijective = True
    sign = +1
    max_slope: float | Tensor
    """An upper bound on all slopes; a tensor without dimensions if it depends on parameters."""

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y and log dy/dx, each of the shape of x."""
        raise TypeError(f"{type(self).__name__} must define call_and_ladj")

    def _call(self, x: Tensor) -> Tensor:
        return self.call_and_ladj(x)[0]

    def log_abs_det_jacobian(self, x: Tensor, y: Tensor) -> Tensor:
        return self.call_and_ladj(x)[1]


class ELFTransform(Elementwise):
    """Elementwise map by exact-Lipschitz networks: see `elflow.functional.elf`.

    Arguments:
        w1: Weights into the units, `(..., H)`.
        b1: Biases of the units, `(..., H)`.
        w2: Weights out of the units, `(..., H)`.
        b2: Shifts, `(...)`.
        bound: The maximum Lipschitz constant c, in (0, 1). Steeper networks are scaled down to it.
        activation: The activation of the units.

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
        self.max_slope = 1 + bound

    def __repr__(self) -> str:
        return f"{type(self).__name__}(units={self.parameters[0].shape[-1]}, bound={self.bound})"

    def select(self, columns: slice) -> ELFTransform:
        """The transform of a slice of the coordinates."""
        w1, b1, w2, b2 = self.parameters
        w1, b1, w2 = (w[..., columns, :] for w in (w1, b1, w2))
        return ELFTransform(w1, b1, w2, b2[..., columns], self.bound, self.activation)

    def _inverse(self, y: Tensor) -> Tensor:
        return elf_inverse(y, *self.parameters, bound=self.bound, activation=self.activation)

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return elf(x, *self.parameters, bound=self.bound, activation=self.activation)


class BumpTransform(Elementwise):
    """Elementwise map by exact-Lipschitz networks in the bump parametrisation: see `elflow.functional.elf_bumps`.

    Arguments:
        phi: Networks, `(..., bump_size(units))`: see `elflow.functional.bumps`.
        units: The number of units of each network.
        bound: The maximum Lipschitz constant c, in (0, 1). Steeper networks are scaled down to it.
        activation: The activation of the units.

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
        self.max_slope = 1 + bound

    def select(self, columns: slice) -> BumpTransform:
        """The transform of a slice of the coordinates."""
        return BumpTransform(self.phi[..., columns, :], *self.options)

    def _inverse(self, y: Tensor) -> Tensor:
        return elf_bumps_inverse(y, self.phi, *self.options)

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return elf_bumps(x, self.phi, *self.options)


class ScaledTransform(Elementwise):
    """Scale each element, then apply another transform.

    Arguments:
        log_scale: The logarithms of the scales, `(...)`.
        transform: The transform of the scaled elements.

    Example:
        >>> t = ScaledTransform(torch.tensor([0.0, 2.0]), BumpTransform(torch.randn(2, 21), units=8))
        >>> x = torch.randn(5, 2)
        >>> torch.allclose(t.inv(t(x)), x, atol=1e-4)
        True
    """

    def __init__(self, log_scale: Tensor, transform: BumpTransform | ELFTransform) -> None:
        super().__init__()
        self.log_scale = log_scale
        self.transform = transform

    @property
    def max_slope(self) -> float | Tensor:  # type: ignore[override]
        """An upper bound on all slopes."""
        if not self.log_scale.numel():
            return self.transform.max_slope
        return self.log_scale.detach().max().exp() * self.transform.max_slope  # no float: that would wait for a GPU

    def select(self, columns: slice) -> ScaledTransform:
        """The transform of a slice of the coordinates."""
        return ScaledTransform(self.log_scale[..., columns], self.transform.select(columns))

    def _inverse(self, y: Tensor) -> Tensor:
        return self.transform.inv(y) * (-self.log_scale).exp()

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, ladj = self.transform.call_and_ladj(x * self.log_scale.exp())
        return y, ladj + self.log_scale


class ColumnsTransform(Elementwise):
    """Apply a different elementwise transform to each group of coordinates.

    Arguments:
        columns: The coordinates of each group. Every coordinate is in exactly one group.
        transforms: The transform of each group.

    Example:
        >>> one, other = BumpTransform(torch.randn(1, 21), units=8), BumpTransform(torch.randn(2, 21), units=8)
        >>> t = ColumnsTransform([(1,), (0, 2)], [one, other])
        >>> x = torch.randn(5, 3)
        >>> bool((t(x)[:, [1]] == one(x[:, [1]])).all())
        True
    """

    def __init__(self, columns: Sequence[Sequence[int]], transforms: Sequence[Elementwise]) -> None:
        super().__init__()
        self.columns = columns
        self.transforms = transforms
        order = [column for group in columns for column in group]
        # The permutation from the order of the groups to that of the columns; None if they are the same.
        self._permutation = None if order == sorted(order) else [order.index(c) for c in range(len(order))]

    @property
    def max_slope(self) -> float | Tensor:  # type: ignore[override]
        """An upper bound on all slopes."""
        slopes = [t.max_slope for t in self.transforms]
        tensors = [slope for slope in slopes if isinstance(slope, Tensor)]
        floats = [slope for slope in slopes if not isinstance(slope, Tensor)]
        if not tensors:
            return max(floats)
        return torch.stack(tensors).max().clamp(min=max(floats, default=0.0))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._join([t.inv(group) for t, group in zip(self.transforms, self._split(y), strict=True)])

    def call_and_ladj(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ys, ladjs = [], []
        for t, group in zip(self.transforms, self._split(x), strict=True):
            y, ladj = t.call_and_ladj(group)
            ys.append(y)
            ladjs.append(ladj)
        return self._join(ys), self._join(ladjs)

    def _split(self, x: Tensor) -> list[Tensor]:
        return [_select_columns(x, columns) for columns in self.columns]

    def _join(self, groups: list[Tensor]) -> Tensor:
        joined = torch.cat(groups, dim=-1)
        return joined if self._permutation is None else _take_columns(joined, self._permutation)


def _select_columns(x: Tensor, columns: Sequence[int]) -> Tensor:
    """Select columns of x `(..., features)`: a view if they are next to each other, otherwise a copy."""
    first, count = columns[0], len(columns)
    if tuple(columns) == tuple(range(first, first + count)):
        return x.narrow(-1, first, count)
    return _take_columns(x, columns)


def _take_columns(x: Tensor, columns: Sequence[int]) -> Tensor:
    """Copy of columns of x `(..., features)`."""
    if is_asynchronous(x.device) and not torch.compiler.is_compiling():
        return x.index_select(-1, _make_index(tuple(columns), x.device))
    return x[..., list(columns)]


@lru_cache(maxsize=256)
def _make_index(columns: tuple[int, ...], device: torch.device) -> Tensor:
    """Columns as a tensor on a device. A list would be copied there each time, which waits for the device."""
    return torch.tensor(columns, device=device)


class ActNormTransform(Transform):
    """Shift and scale each coordinate: `y = (x - loc) exp(log_scale)`.

    Arguments:
        loc: The locations, `(features,)`.
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
