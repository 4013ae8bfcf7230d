"""ELF: exact-Lipschitz flow over vectors, a stack of autoregressive transformations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributions import Transform
from zuko.lazy import LazyTransform

from elflow._checks import (
    as_list,
    check_bound,
    check_choice,
    check_count,
    check_counts,
    check_order,
    check_rows,
)
from elflow.activations import FELU, PiecewiseQuadratic, check_activation
from elflow.flows.layered import LayeredFlow
from elflow.nn import ActNorm, Hypernetwork
from elflow.transforms import (
    PARAMETRIZATIONS,
    AutoregressiveTransform,
    ColumnsTransform,
    Elementwise,
    ScaledTransform,
    make_network_transform,
    network_size,
)

__all__ = ["ELF", "MaskedELFTransform"]

MAX_LOG_SCALE = 7.0
"""Upper bound on the absolute value of a log-scale, which it never reaches."""
MAX_OUTPUTS_AT_ONCE = 2**19
"""Maximum number of outputs of a hypernetwork computed at once if no gradients are needed."""


class ELF(LayeredFlow):
    """Exact-Lipschitz flow (ELF).

    With one feature this is the paper's universal density model in one dimension, with several features its ELF-AR.
    Each transformation applies an increasing one-dimensional network to every coordinate. A masked hypernetwork
    computes the parameters of that network from the coordinates before it and the context. There is an `ActNorm`
    before each transformation and after the last; with `parametrization="weights"` only after each, as in the paper.

    The first batch passed to `log_prob` in training mode initialises the ActNorms; before that they are the identity.

    Reference:
        ELF: Exact-Lipschitz Based Universal Density Approximator Flow (Gopal, 2021)

    Arguments:
        features: The number of features.
        context: The number of context features. Standardise them: ActNorm only sees the features.
        transforms: The number of autoregressive transformations.
        units: The number of units of each one-dimensional network.
        hidden_features: The widths of the hidden layers of each hypernetwork.
        bound: The maximum Lipschitz constant of the networks, in (0, 1). The slope of a transformation, apart from its
            scale, is between `1 - bound` and `1 + bound`: a bound close to 1 allows steeper changes of the density.
            The paper's constant is 1, which allows slopes of exactly zero: the log-density is then minus infinity, and
            the map has no inverse. Every bound below 1 excludes this; 0.99 lets a transformation compress a hundred
            times.
        activation: The activation function of the units.
        order: The order in which the features are modelled. `"alternating"` reverses it from one transformation to the
            next. `"shared"` keeps the order of the columns in all of them, and a permutation of the features keeps that
            one: `conditional_cdf` and `conditional_quantile` need such a flow. A sequence of permutations gives each
            transformation its own order.
        rank: The size of an embedding of each feature before the last layer of the hypernetworks, which saves weights
            for tables of many columns; None for no embedding.
        scale: Whether hypernetworks also scale each coordinate before its network, as in MAF. This is an extension by
            this library, which removes the bound on the slope of a transformation. It was better on nearly all data,
            most where the spread varies from row to row. None for True with bumps and False with weights.
        parametrization: The outputs of the hypernetworks. `"bumps"`: position, width, height and sharpness of pairs of
            units (`elflow.functional.bumps`), a sub-family of the paper's networks. `"weights"`: the paper's own model,
            ELF-AR, in which hypernetworks return the 3 H + 1 weights of a network, and scale nothing: standardise the
            data, because no `ActNorm` precedes the first transformation.

    Example:
        >>> flow = ELF(features=3, context=2, transforms=2, units=16)
        >>> c = torch.randn(5, 2)
        >>> dist = flow(c)
        >>> x = dist.sample((100,))
        >>> x.shape
        torch.Size([100, 5, 3])
        >>> dist.log_prob(x).shape
        torch.Size([100, 5])
    """

    def __init__(
        self,
        features: int,
        context: int = 0,
        transforms: int = 3,
        units: int = 32,
        hidden_features: Sequence[int] = (128, 128),
        bound: float = 0.99,
        activation: PiecewiseQuadratic = FELU,
        order: str | Sequence[int] | Sequence[Sequence[int]] = "alternating",
        rank: int | None = None,
        scale: bool | None = None,
        parametrization: str = "bumps",
    ) -> None:
        features = check_count("features", features)
        context = check_count("context", context, least=0)
        units = check_count("units", units)
        rank = rank if rank is None else check_count("rank", rank)
        hidden_features = check_counts("hidden_features", hidden_features)
        check_choice("parametrization", parametrization, PARAMETRIZATIONS)
        has_bumps = parametrization == "bumps"
        scale = has_bumps if scale is None else bool(scale)
        if scale and not has_bumps:
            raise ValueError(f"scale must be False with parametrization={parametrization!r}, got True")
        orders = _make_orders(order, features, check_count("transforms", transforms))
        layers: list[LazyTransform] = []
        for layer_order in orders:
            sizes = units, hidden_features, bound, activation
            elf = MaskedELFTransform(features, context, *sizes, layer_order, rank, scale, parametrization)
            layers += [elf, ActNorm(features)]
        super().__init__([ActNorm(features), *layers] if has_bumps else layers, features, context)
        self.orders = orders
        self.config = {
            "features": features,
            "context": context,
            "transforms": len(orders),
            "units": units,
            "hidden_features": hidden_features,
            "bound": float(bound),
            "activation": activation.to_dict(),
            "order": [list(order) for order in orders],
            "rank": rank,
            "scale": scale,
            "parametrization": parametrization,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build an untrained flow from the configuration of another one, `flow.config`.

        Example:
            >>> ELF.from_config(ELF(features=3).config).features
            3
        """
        return cls(**config | {"activation": PiecewiseQuadratic(**config["activation"])})

    def conditional_cdf(self, x: Tensor, c: Tensor | None = None) -> Tensor:
        """Exact conditional CDF of each feature t, F(x_t | features modelled before t, c).

        For data that follow the flow, these probabilities are independent and uniform on (0, 1) (probability integral
        transform).

        Arguments:
            x: Points, `(..., features)`.
            c: The context, `(..., context)`, or None for a flow without context.

        Returns:
            Probabilities, `(..., features)`.

        Example:
            >>> flow = ELF(features=1, transforms=1)
            >>> flow.conditional_cdf(flow.conditional_quantile(None, torch.tensor([[0.05], [0.5]])))
            tensor([[0.0500],
                    [0.5000]], grad_fn=<MulBackward1>)
        """
        check_rows("x", x, self.features, "feature", self.dtype)
        self.check_context(c)
        self._check_shared_order("conditional_cdf")
        return torch.special.ndtr(self.transform(c)(x))

    def conditional_quantile(self, x: Tensor | None, q: Tensor, c: Tensor | None = None) -> Tensor:
        """Exact conditional quantile of each feature t, given the features modelled before it.

        This is the inverse of `conditional_cdf`.

        Arguments:
            x: Points, `(..., features)`. The quantile of feature t depends on the features modelled before t; the
                others may hold any finite number. None is allowed with one feature.
            q: Probabilities, which broadcast to `(..., features)`.
            c: The context, `(..., context)`, or None for a flow without context.

        Returns:
            Quantiles, `(..., features)`.

        Example:
            >>> flow = ELF(features=3, order="shared")
            >>> x = torch.randn(5, 3)
            >>> median = flow.conditional_quantile(x, torch.tensor(0.5))[:, 2]  # of the last feature, given the others
            >>> median.shape
            torch.Size([5])
        """
        if not isinstance(q, Tensor) or not q.is_floating_point():
            raise TypeError(
                f"q must be a tensor of floats, got {q.dtype if isinstance(q, Tensor) else type(q).__name__}"
            )
        if not ((q >= 0) & (q <= 1)).all():
            raise ValueError(f"q must hold probabilities in [0, 1], got {q.min():g} to {q.max():g}")
        if x is None and self.features > 1:
            raise ValueError(f"x must hold the features to condition on, got None for {self.features} features")
        self.check_context(c)
        self._check_shared_order("conditional_quantile")
        if q.dtype != self.dtype:
            raise TypeError(
                f"q must have the dtype of the flow, {self.dtype}, got {q.dtype}: convert one of them with .to()"
            )
        x = q.new_zeros(1) if x is None else x
        check_rows("x", x, self.features, "feature", self.dtype)
        maps, h = [], x
        # Given x, every layer is an elementwise map, whose inverse is closed-form.
        for t in self.transform(c).transforms:
            maps.append(t.maps(h, c) if isinstance(t, AutoregressiveTransform) else t)
            h = maps[-1](h)
        z = torch.special.ndtri(q).expand(torch.broadcast_shapes(q.shape, h.shape))
        for t in reversed(maps):
            z = t.inv(z)
        return z

    def _check_shared_order(self, name: str) -> None:
        if len(set(self.orders)) > 1:
            raise ValueError(
                f"order must be the same in all transformations for {name}, got {len(set(self.orders))} orders: build "
                "the flow with order='shared' or with a permutation"
            )


class MaskedELFTransform(LazyTransform):
    """Autoregressive transformation of vectors: a hypernetwork, and the one-dimensional networks that it computes.

    For the arguments see `ELF`; `order` is a permutation of the features, by default that of the columns.

    Example:
        >>> t = MaskedELFTransform(features=3, order=(2, 0, 1))
        >>> y, ladj = t().call_and_ladj(torch.randn(10, 3))
        >>> y.shape, ladj.shape
        (torch.Size([10, 3]), torch.Size([10]))
    """

    def __init__(
        self,
        features: int,
        context: int = 0,
        units: int = 32,
        hidden_features: Sequence[int] = (128, 128),
        bound: float = 0.99,
        activation: PiecewiseQuadratic = FELU,
        order: Sequence[int] | None = None,
        rank: int | None = None,
        scale: bool = False,
        parametrization: str = "bumps",
    ) -> None:
        super().__init__()
        check_bound(bound)
        check_activation(activation)
        self.features = check_count("features", features)
        self.bound = bound
        self.activation = activation
        self.scale = scale
        self.order = check_order(range(features) if order is None else order, features)
        self.hyper = Hypernetwork(
            features,
            check_count("context", context, least=0),
            check_count("units", units),
            check_counts("hidden_features", hidden_features),
            self.order,
            rank if rank is None else check_count("rank", rank),
            extra_outputs=1 if scale else 0,
            parametrization=parametrization,
        )

    def extra_repr(self) -> str:
        order = "" if self.features == 1 else f", order={list(self.order)}"
        return f"units={self.hyper.units}, bound={self.bound}, activation={self.activation.name}{order}"

    def forward(self, c: Tensor | None = None) -> Transform:
        size = network_size(self.hyper.units, self.hyper.parametrization)
        return AutoregressiveTransform(
            self._compute_maps,
            c,
            sweeps=len(self.hyper.dependent),
            order=self.order,
            start=self._invert_free if self.hyper.free else None,
            rows=max(256, MAX_OUTPUTS_AT_ONCE // (size * self.features)),
        )

    def _compute_maps(self, x: Tensor, c: Tensor | None) -> Elementwise:
        if not self.hyper.dependent:
            return self._make_networks(self.hyper.first)
        dependent = self._make_networks(self.hyper(x, c).to(x.dtype))  # autocast may return a lower precision
        if not self.hyper.free:
            return dependent
        groups = [(self.hyper.free, self._make_networks(self.hyper.first)), (self.hyper.dependent, dependent)]
        groups.sort(key=lambda group: group[0])  # groups in the order of the columns are joined without a permutation
        columns, maps = zip(*groups, strict=True)
        return ColumnsTransform(columns, maps)

    def _invert_free(self, y: Tensor) -> Tensor:
        """First guess of the inverse: y with the coordinate that depends on nothing already inverted."""
        x, free = y.clone(), list(self.hyper.free)
        x[..., free] = self._make_networks(self.hyper.first).inv(y[..., free])
        return x

    def _make_networks(self, phi: Tensor) -> Elementwise:
        options = self.hyper.units, self.bound, self.activation, self.hyper.parametrization
        if not self.scale:
            return make_network_transform(phi, *options)
        networks = make_network_transform(phi[..., :-1].contiguous(), *options)
        log_scale = phi[..., -1]
        return ScaledTransform(log_scale / (1 + log_scale.abs() / MAX_LOG_SCALE), networks)


def _make_orders(order: object, features: int, transforms: int) -> tuple[tuple[int, ...], ...]:
    """The order of the features in each transformation."""
    columns = tuple(range(features))
    if isinstance(order, str):
        check_choice("order", order, ["alternating", "shared"])
        second = columns if order == "shared" else columns[::-1]
        return tuple(columns if layer % 2 == 0 else second for layer in range(transforms))
    items = as_list(order) if isinstance(order, Iterable) else order
    if isinstance(items, list) and items and all(isinstance(item, Iterable) for item in items):
        if len(items) != transforms:
            raise ValueError(f"order must hold one permutation for each of {transforms} transforms, got {len(items)}")
        return tuple(check_order(item, features) for item in items)
    return (check_order(items, features),) * transforms
