"""The paper's lemmas, constructively: a 1-Lipschitz network as close as asked for to any 1-Lipschitz function.

Each interval of a fine grid gets two units, whose ramps rise at its ends: `L/k A(k (x - start)) - L/k A(k (x - end))`,
where L is the slope of the function over the interval. (The paper's lemma for FELU lacks the minus.) The slope of the
network is L inside an interval, and goes from one L to the next in between, so that it never exceeds the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from elflow._checks import check_positive
from elflow.activations import FELU, PiecewiseQuadratic, check_activation

__all__ = ["approximate"]


def approximate(
    function: Callable[[Tensor], Tensor],
    low: float,
    high: float,
    epsilon: float,
    activation: PiecewiseQuadratic = FELU,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A network that is within `epsilon` of a function on an interval, and no steeper than it.

    Arguments:
        function: 1-Lipschitz on the interval, elementwise on float64.
        low: Where the interval begins.
        high: Where it ends.
        epsilon: How far the network may be from the function.
        activation: What the units compute: any whose slope goes from 0 to 1 without leaving [0, 1], as FELU and ReLU.

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
    # Half of epsilon for the straight lines between grid points, the other half for ramps that are not quite upright.
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
