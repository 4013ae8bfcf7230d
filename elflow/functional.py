"""The one-dimensional exact-Lipschitz network as differentiable functions.

A network is `g(x) = b2 + sum_i w2_i FELU(w1_i x + b1_i)`. The last dimension of `w1`, `b1` and `w2` is that of its `H`
units. All dimensions before it, and all dimensions of `x` and `b2`, are batch dimensions, which broadcast. So `x` and
`b2` have one dimension less than the weights: weights `(N, H)` go with points `(N,)`. A network that many points share,
such as weights `(H,)` for points `(N,)`, is normalised once, not once per point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from elflow import kernels
from elflow._checks import check_bound, check_count
from elflow.activations import FELU, PiecewiseQuadratic, check_activation
from elflow.kernels import reference

__all__ = ["bump_size", "bumps", "elf", "elf_bumps", "elf_bumps_inverse", "elf_inverse", "felu", "lipschitz"]


def felu(u: Tensor) -> Tensor:
    """The activation of ELF: `q^2 / 2 - 1/2 + max(u, 0)` with `q = clamp(u + 1, 0, 1)`.

    Its slope is `q`: 0 up to -1, rising to 1 at 0, then 1. Near zero the result has the relative accuracy of `u`.

    Arguments:
        u: A float tensor of any shape.

    Returns:
        The values, of the shape of `u`.

    Example:
        >>> import torch
        >>> felu(torch.tensor([-2.0, -0.5, 0.0, 1.0]))
        tensor([-0.5000, -0.3750,  0.0000,  1.0000])
    """
    _check_tensors(u=u)
    n = u.clamp(-1, 0)  # q - 1: q^2 / 2 - 1/2 would cancel near zero
    return n + n.square() / 2 + u.clamp(min=0)


def lipschitz(w1: Tensor, b1: Tensor, w2: Tensor, activation: PiecewiseQuadratic = FELU) -> Tensor:
    """The exact Lipschitz constant of each network: the maximum of abs(g') over the whole line.

    Arguments:
        w1: Weights into the units, `(..., H)`.
        b1: Biases of the units, `(..., H)`.
        w2: Weights out of the units, `(..., H)`.
        activation: The activation of the units.

    Returns:
        The constants, `(...)`. The gradient is exact unless abs(g') has its maximum at several points.

    Example:
        >>> import torch
        >>> w1, b1, w2 = torch.tensor([1.0, 2.0]), torch.tensor([0.0, -4.0]), torch.tensor([0.5, -1.0])
        >>> lipschitz(w1, b1, w2)
        tensor(1.5000)
    """
    check_activation(activation)
    _check_tensors(w1=w1, b1=b1, w2=w2)
    batch = _network_batch({"w1": w1, "b1": b1, "w2": w2})
    w1, b1, w2 = (_flatten_weights(w, batch) for w in (w1, b1, w2))
    chosen = kernels.select(w1.dtype, w1.device, activation)
    return chosen.lipschitz(w1, b1, w2, activation).reshape(batch)


def elf(
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    bound: float = 0.99,
    activation: PiecewiseQuadratic = FELU,
) -> tuple[Tensor, Tensor]:
    """The increasing map `y = x + s (g(x) - b2) + b2` with `s = c / max(c, Lip(g))`, where `c` is `bound`.

    Its slope lies between `1 - c` and `1 + c`. Infinite x follows floating-point arithmetic, often to NaN.

    Arguments:
        x: Points, `(...)`.
        w1: Weights into the units, `(..., H)`.
        b1: Biases of the units, `(..., H)`.
        w2: Weights out of the units, `(..., H)`.
        b2: Shifts, `(...)`.
        bound: The maximum Lipschitz constant c, in (0, 1). Steeper networks are scaled down to it.
        activation: The activation of the units.

    Returns:
        y and log dy/dx, `(...)` each.

    Example:
        >>> import torch
        >>> w1, b1, w2 = torch.tensor([1.0, 2.0]), torch.tensor([0.0, -4.0]), torch.tensor([0.5, -1.0])
        >>> y, log_slope = elf(torch.tensor([-2.0, 0.0, 2.0]), w1, b1, w2, torch.tensor(0.0))
        >>> y
        tensor([-1.8350,  0.3300,  2.6600])
        >>> log_slope.exp()
        tensor([1.0000, 1.3300, 0.0100])
    """
    points = _Points.flatten({"x": x}, {"w1": w1, "b1": b1, "w2": w2}, {"b2": b2}, bound, activation)
    chosen = kernels.select(x.dtype, x.device, activation)
    w1, b1, w2, b2 = points.parameters
    y, log_slope = chosen.elf(points.flat, w1, b1, w2, b2, float(bound), activation)
    return points.restore(y), points.restore(log_slope)


def elf_inverse(
    y: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    bound: float = 0.99,
    activation: PiecewiseQuadratic = FELU,
) -> Tensor:
    """The inverse of `elf`, in closed form: between two breakpoints the map is quadratic.

    Arguments:
        y: Points, `(...)`.
        w1: Weights into the units, `(..., H)`.
        b1: Biases of the units, `(..., H)`.
        w2: Weights out of the units, `(..., H)`.
        b2: Shifts, `(...)`.
        bound: The maximum Lipschitz constant c, in (0, 1). Steeper networks are scaled down to it.
        activation: The activation of the units.

    Returns:
        The x that `elf` maps to y, `(...)`, with gradients by implicit differentiation.

    Example:
        >>> import torch
        >>> w1, b1, w2, b2 = torch.randn(3, 5, 8), torch.randn(5, 8), torch.randn(3, 5, 8), torch.randn(5)
        >>> x = torch.randn(3, 5)
        >>> y, _ = elf(x, w1, b1, w2, b2)
        >>> torch.allclose(elf_inverse(y, w1, b1, w2, b2), x, atol=1e-4)
        True
    """
    points = _Points.flatten({"y": y}, {"w1": w1, "b1": b1, "w2": w2}, {"b2": b2}, bound, activation)
    chosen = kernels.select(y.dtype, y.device, activation)
    w1, b1, w2, b2 = points.parameters
    return points.restore(chosen.elf_inverse(points.flat, w1, b1, w2, b2, float(bound), activation))


def bumps(phi: Tensor, units: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Networks whose units come in pairs, and whose slope is a sum of bumps: a parametrisation that is easy to learn.

    The slope of a pair rises around `t - w/2` by the height `a` and falls around `t + w/2`, over edges of width 1/k:
    `w1 = k`, `b1 = -k (t -+ w/2) - 1/2`, `w2 = +-a/k`. Position, height, width and sharpness change independently, and
    each change is local. With the weights of a single unit as parameters, a change would alter the slope up to
    infinity, and a sharper edge would also move and grow. The last of an odd number of units rises and never falls.

    Arguments:
        phi: Networks, `(..., bump_size(units))`: log k of all units, then t, log w and a of all pairs, then b2.
            Logarithms are clamped to +-12.
        units: The number of units H.

    Returns:
        w1, b1 and w2, `(..., H)` each, with the rising units first, and b2, `(...)`.

    Example:
        >>> import torch
        >>> w1, b1, w2, b2 = bumps(torch.tensor([0.0, 0.0, 3.0, 0.0, 0.5, 0.1]), units=2)  # around 3, of width 1
        >>> w1, b1, w2, b2
        (tensor([1., 1.]), tensor([-3., -4.]), tensor([ 0.5000, -0.5000]), tensor(0.1000))
    """
    _check_phi(phi, units)
    return reference.bumps(phi, units)


def bump_size(units: int) -> int:
    """The number of parameters that `bumps` takes per network.

    Arguments:
        units: The number of units H.

    Example:
        >>> bump_size(32)
        81
    """
    return check_count("units", units) + 3 * ((units + 1) // 2) + 1


def elf_bumps(
    x: Tensor, phi: Tensor, units: int, bound: float = 0.99, activation: PiecewiseQuadratic = FELU
) -> tuple[Tensor, Tensor]:
    """`elf(x, *bumps(phi, units), bound, activation)`, fused.

    Arguments:
        x: Points, `(...)`.
        phi: Networks, `(..., bump_size(units))`: see `bumps`.
        units: The number of units of each network.
        bound: The maximum Lipschitz constant c, in (0, 1). Steeper networks are scaled down to it.
        activation: The activation of the units.

    Returns:
        y and log dy/dx, `(...)` each.

    Example:
        >>> import torch
        >>> x, phi = torch.randn(100, 3), torch.randn(100, 3, bump_size(8))
        >>> y, log_slope = elf_bumps(x, phi, units=8)
        >>> torch.allclose(elf_bumps_inverse(y, phi, units=8), x, atol=1e-3)
        True
    """
    _check_phi(phi, units)
    points = _Points.flatten({"x": x}, {"phi": phi}, {}, bound, activation)
    chosen = kernels.select(x.dtype, x.device, activation)
    y, log_slope = chosen.elf_bumps(points.flat, points.parameters[0], units, float(bound), activation)
    return points.restore(y), points.restore(log_slope)


def elf_bumps_inverse(
    y: Tensor, phi: Tensor, units: int, bound: float = 0.99, activation: PiecewiseQuadratic = FELU
) -> Tensor:
    """The inverse of `elf_bumps`, in closed form: see `elf_inverse`.

    Arguments:
        y: Points, `(...)`.
        phi: Networks, `(..., bump_size(units))`: see `bumps`.
        units: The number of units of each network.
        bound: The maximum Lipschitz constant c, in (0, 1). Steeper networks are scaled down to it.
        activation: The activation of the units.

    Returns:
        The x that `elf_bumps` maps to y, `(...)`, with gradients by implicit differentiation.

    Example:
        >>> import torch
        >>> y, phi = torch.zeros(100, 3), torch.randn(3, bump_size(8))
        >>> elf_bumps_inverse(y, phi, units=8).shape
        torch.Size([100, 3])
    """
    _check_phi(phi, units)
    points = _Points.flatten({"y": y}, {"phi": phi}, {}, bound, activation)
    chosen = kernels.select(y.dtype, y.device, activation)
    return points.restore(chosen.elf_bumps_inverse(points.flat, points.parameters[0], units, float(bound), activation))


@dataclass(frozen=True)
class _Points:
    """Points `(N, M)` and parameters `(N, H)`, `(N,)` in the flat form of the kernels: N networks, M points each."""

    flat: Tensor
    parameters: tuple[Tensor, ...]
    shape: tuple[int, ...]
    order: tuple[int, ...]

    @classmethod
    def flatten(
        cls,
        named: dict[str, Tensor],
        weights: dict[str, Tensor],
        scalars: dict[str, Tensor],
        bound: float,
        activation: PiecewiseQuadratic,
    ) -> _Points:
        """Check and flatten points `(...)`, weights `(..., H)` and scalars `(...)`, each with its name for errors."""
        check_activation(activation)
        check_bound(bound)
        _check_tensors(**named, **weights, **scalars)
        ((name, x),) = named.items()
        networks = _network_batch(weights, **{n: v.shape for n, v in scalars.items()})
        if networks == x.shape:  # shortcut for the usual case, one network per point
            return cls(x.reshape(-1, 1), _flatten_all(weights, scalars, networks), networks, tuple(range(x.ndim)))
        shapes: dict[str, tuple[int, ...]] = {n: w.shape[:-1] for n, w in weights.items()}
        shape = _broadcast({name: x.shape} | shapes | {n: v.shape for n, v in scalars.items()})
        # Dimensions that only the points have go last: along them one network has many points.
        padded = (1,) * (len(shape) - len(networks)) + networks
        own = tuple([d for d, n in enumerate(padded) if n != 1])
        shared = tuple([d for d, n in enumerate(padded) if n == 1])
        order = own + shared
        flat = _permute(_expand(x, shape), order)
        flat = flat.reshape(_product(networks), _product([shape[d] for d in shared]))
        return cls(flat, _flatten_all(weights, scalars, networks), shape, order)

    def restore(self, flat: Tensor) -> Tensor:
        """Reshape a result `(N, M)` to the shape that the arguments broadcast to."""
        if self.order == tuple(range(len(self.shape))):
            return flat.reshape(self.shape)
        ordered = flat.reshape([self.shape[d] for d in self.order])
        return _permute(ordered, tuple([self.order.index(d) for d in range(len(self.order))]))


def _flatten_all(
    weights: dict[str, Tensor], scalars: dict[str, Tensor], networks: tuple[int, ...]
) -> tuple[Tensor, ...]:
    flat = [_flatten_weights(w, networks) for w in weights.values()]
    return *flat, *[_expand(v, networks).reshape(-1) for v in scalars.values()]


def _flatten_weights(w: Tensor, batch: tuple[int, ...]) -> Tensor:
    return _expand(w, (*batch, w.shape[-1])).reshape(_product(batch), w.shape[-1])


def _expand(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    return t if t.shape == shape else t.expand(shape)


def _permute(t: Tensor, order: tuple[int, ...]) -> Tensor:
    return t if order == tuple(range(t.ndim)) else t.permute(order)


def _product(sizes: Sequence[int]) -> int:
    """The product, as `math.prod`, which torch.compile does not follow."""
    product = 1
    for size in sizes:
        product *= size
    return product


def _network_batch(weights: dict[str, Tensor], **shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common batch shape of weights `(..., H)` and of tensors with other shapes `(...)`."""
    first, units = None, 0
    for name, w in weights.items():
        if w.ndim == 0 or w.shape[-1] == 0:
            raise ValueError(f"{name} must have the shape (..., units) with at least one unit, got {tuple(w.shape)}")
        if first is None:
            first, units = name, w.shape[-1]
        elif w.shape[-1] != units:
            raise ValueError(
                f"{name} must have as many units as {first}, {units}, got {w.shape[-1]} in the shape {tuple(w.shape)}"
            )
    if len(weights) == 1 and not shapes:
        return tuple(w.shape[:-1])
    return _broadcast({name: w.shape[:-1] for name, w in weights.items()} | shapes)


def _broadcast(shapes: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """The common shape, as `torch.broadcast_shapes`, but faster and with names in the error."""
    result = [1] * max([len(shape) for shape in shapes.values()])
    for shape in shapes.values():
        for d in range(-len(shape), 0):
            if result[d] == 1:
                result[d] = shape[d]
            elif shape[d] != 1 and shape[d] != result[d]:
                named = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
                raise ValueError(f"batch shapes must broadcast with each other, got {named}")
    return tuple(result)


def _check_phi(phi: Tensor, units: int) -> None:
    size = bump_size(units)
    if not isinstance(phi, Tensor):
        raise TypeError(f"phi must be a torch.Tensor, got {type(phi).__name__}")
    if phi.ndim == 0 or phi.shape[-1] != size:
        raise ValueError(f"phi must have the shape (..., {size}) for {units} units, got {tuple(phi.shape)}")


def _check_tensors(**tensors: Tensor) -> None:
    first = next(iter(tensors))
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(t).__name__}")
        if not t.is_floating_point():
            raise TypeError(f"{name} must be a tensor of floats, got {t.dtype}")
        if t.dtype != tensors[first].dtype:
            raise TypeError(f"{name} must have the dtype of {first}, {tensors[first].dtype}, got {t.dtype}")
        if t.device != tensors[first].device:
            raise ValueError(f"{name} must be on the device of {first}, {tensors[first].device}, got {t.device}")
