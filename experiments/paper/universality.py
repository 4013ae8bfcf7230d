"""The paper's lemmas as a construction: 1-Lipschitz networks that approximate any 1-Lipschitz function.

Each interval of a fine grid has two units, whose ramps rise at its ends: `L/k A(k (x - start)) - L/k A(k (x - end))`,
where L is the slope of the function over the interval. (The paper's lemma for FELU lacks the minus sign.) The slope of
the network is L inside an interval and between neighbouring values of L at its ends, so that it never exceeds them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from elflow._checks import check_positive
from elflow.activations import FELU, PiecewiseQuadratic, check_activation
from elflow.functional import lipschitz

__all__ = ["approximate", "approximate_conditional"]


def approximate(
    function: Callable[[Tensor], Tensor],
    low: float,
    high: float,
    epsilon: float,
    activation: PiecewiseQuadratic = FELU,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A 1-Lipschitz network within `epsilon` of a function on an interval.

    Arguments:
        function: A function that is 1-Lipschitz on the interval and works elementwise on float64.
        low: The start of the interval.
        high: The end of the interval.
        epsilon: The maximum distance between the network and the function.
        activation: The activation, whose slope must go from 0 to 1 within [0, 1], as those of FELU and ReLU.

    Returns:
        w1, b1 and w2, `(H,)` each, and b2, in float64.

    Example:
        >>> from elflow.functional import lipschitz
        >>> w1, b1, w2, b2 = approximate(torch.sin, low=-3, high=3, epsilon=0.01)
        >>> bool(lipschitz(w1, b1, w2) <= 1)
        True
        >>> x = torch.linspace(-3, 3, 1000, dtype=torch.float64)
        >>> g = b2 + FELU(w1 * x[:, None] + b1) @ w2
        >>> bool((g - x.sin()).abs().max() <= 0.01)
        True
    """
    check_activation(activation)
    check_positive("epsilon", epsilon)
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"low must be below high and both finite, got {low} and {high}")
    if (activation.left_slope, activation.right_slope) != (0, 1):
        raise ValueError(f"activation must have the slopes 0 and 1 at its ends, got {activation}")
    # Half of epsilon for linear interpolation between grid points, the other half for the width of the ramps.
    intervals = math.ceil((high - low) / epsilon)
    grid = torch.linspace(low, high, intervals + 1, dtype=torch.float64)
    values = function(grid)
    slopes = values.diff() / grid.diff()
    if slopes.abs().max() > 1 + 1e-9:
        raise ValueError(f"function must be 1-Lipschitz, got a slope of {slopes.abs().max():g}")
    # The last corner of the activation at the grid point: from there on a unit is a straight line.
    first, last = activation.breakpoints[0], activation.breakpoints[-1]
    rise = float(activation(grid.new_tensor(last)) - activation(grid.new_tensor(first)))
    k = max(2 * (last - first + rise) / epsilon, 2 * intervals / (high - low))
    w1 = torch.full((2 * intervals,), k, dtype=torch.float64)
    b1 = last - k * torch.cat([grid[:-1], grid[1:]])
    w2 = torch.cat([slopes, -slopes]) / k
    return w1, b1, w2, values[0]


def approximate_conditional(
    function: Callable[[Tensor, Tensor], Tensor], low: float, high: float, epsilon: float, nodes: int
) -> Callable[[Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]:
    """A hypernetwork of 1-Lipschitz networks near a function of two numbers: theorem A.1 in two dimensions.

    The construction of `approximate` depends on the values of the function at fixed points only, so that its weights
    are continuous in the context. They are interpolated between equally spaced contexts, which a ReLU network with one
    hidden layer can do, and divided by max(1, Lip), as in the theorem.

    Arguments:
        function: A function of x and of a context c, 1-Lipschitz in x, elementwise on float64.
        low: The start of the interval of both x and c.
        high: The end of the interval of both.
        epsilon: The maximum distance of the networks from the function at the nodes.
        nodes: The number of contexts between which the weights are interpolated.

    Returns:
        A function that maps contexts `(N,)` to w1, b1 and w2, `(N, H)` each, and b2, `(N,)`.

    Example:
        >>> hyper = approximate_conditional(lambda x, c: torch.sin(x + c), -1, 1, epsilon=0.1, nodes=9)
        >>> [w.shape[0] for w in hyper(torch.zeros(5, dtype=torch.float64))]
        [5, 5, 5, 5]
    """
    contexts = torch.linspace(low, high, nodes, dtype=torch.float64)
    networks = [approximate(lambda x, c=c: function(x, c), low, high, epsilon) for c in contexts]  # type: ignore[misc]
    w1, b1 = networks[0][:2]
    table = torch.stack([torch.cat([w2, b2.reshape(1)]) for _, _, w2, b2 in networks])

    def compute(c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        position = (c - low) / (high - low) * (nodes - 1)
        index = position.floor().clamp(0, nodes - 2).long()
        share = (position - index)[:, None]
        w2, b2 = (table[index] * (1 - share) + table[index + 1] * share).split([len(w1), 1], dim=-1)
        wide1, bias1 = w1.expand_as(w2), b1.expand_as(w2)
        constant = lipschitz(wide1, bias1, w2).clamp(min=1)
        return wide1, bias1, w2 / constant[:, None], b2.squeeze(-1)

    return compute
