"""Piecewise-quadratic activations, for which the Lipschitz constant of a one-layer network is exact.

The slope of a network of such units is piecewise linear. So its maximum is at one of finitely many points, provided
that the first and the last piece of the activation are linear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

__all__ = ["FELU", "QELU", "RELU", "PiecewiseQuadratic", "check_activation"]

TOLERANCE = 1e-12
"""Maximum gap between two pieces at their breakpoint, and maximum excess of a slope over 1."""


@dataclass(frozen=True)
class PiecewiseQuadratic:
    """A continuous, 1-Lipschitz, piecewise-quadratic function with linear ends.

    Piece `k` is `c0 + c1 u + c2 u^2` between breakpoint `k - 1` and breakpoint `k`.

    Arguments:
        breakpoints: The points where one piece ends and the next begins, in increasing order.
        pieces: The coefficients `(c0, c1, c2)` of each piece; one piece more than breakpoints.
        name: A name for error messages and `repr`. Activations with equal breakpoints and pieces are equal, whatever
            their names.

    Example:
        >>> leaky = PiecewiseQuadratic(breakpoints=(0.0,), pieces=((0, 0.1, 0), (0, 1, 0)), name="leaky")
        >>> leaky(torch.tensor([-2.0, 3.0]))
        tensor([-0.2000,  3.0000])
        >>> leaky
        PiecewiseQuadratic(leaky)
        >>> PiecewiseQuadratic(breakpoints=(0.0,), pieces=((1, 0, 0), (0, 1, 0)))
        Traceback (most recent call last):
        ...
        ValueError: pieces must be continuous, got a jump from 1 to 0 at the breakpoint 0
    """

    breakpoints: Sequence[float]
    pieces: Sequence[Sequence[float]]
    name: str = field(default="unnamed", compare=False)

    left_slope: float = field(init=False, repr=False, compare=False)
    """The slope left of all breakpoints."""
    right_slope: float = field(init=False, repr=False, compare=False)
    """The slope right of all breakpoints."""
    jumps: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """The jump of the slope at each breakpoint; all zero for a smooth function."""
    _home: int = field(init=False, repr=False, compare=False)
    """The index of the breakpoint where the function is nearest to zero."""

    def to_dict(self) -> dict[str, Any]:
        """The arguments of the constructor, as JSON stores them."""
        return {
            "breakpoints": list(self.breakpoints),
            "pieces": [list(piece) for piece in self.pieces],
            "name": self.name,
        }

    def __post_init__(self) -> None:
        points = tuple(float(p) for p in self.breakpoints)
        pieces = tuple(tuple(float(c) for c in piece) for piece in self.pieces)
        _check_pieces(points, pieces)
        slopes = [(_slope(a, p), _slope(b, p)) for p, a, b in zip(points, pieces, pieces[1:], strict=False)]
        set_ = object.__setattr__  # a frozen dataclass refuses plain assignment
        set_(self, "breakpoints", points)
        set_(self, "pieces", pieces)
        set_(self, "left_slope", pieces[0][1])
        set_(self, "right_slope", pieces[-1][1])
        heights = [abs(_value(piece, p)) for piece, p in zip(pieces, points, strict=False)]
        set_(self, "_home", heights.index(min(heights)))
        set_(self, "jumps", tuple(0.0 if abs(r - l) <= TOLERANCE else r - l for l, r in slopes))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @property
    def smooth(self) -> bool:
        """Whether the slope is continuous."""
        return not any(self.jumps)

    def __call__(self, u: Tensor) -> Tensor:
        """The value at each element of `u`, a float tensor of any shape.

        The value is summed up piece by piece, starting from the breakpoint where the function is nearest to zero. So
        small values are accurate, infinite `u` gives the limit, and NaN gives NaN.

        Example:
            >>> RELU(torch.tensor([-1.0, 0.0, 1.0]))
            tensor([0., 0., 1.])
        """
        points, pieces, home = self.breakpoints, self.pieces, self._home
        value = torch.zeros_like(u) + _value(pieces[home], points[home])
        if self.left_slope:
            value = value + self.left_slope * (u - points[0]).clamp(max=0)
        if self.right_slope:
            value = value + self.right_slope * (u - points[-1]).clamp(min=0)
        for k, (left, right) in enumerate(pairwise(points), start=1):
            near = right if k <= home else left  # the end of the piece that is nearer to the home breakpoint
            t = (u - near).clamp(left - near, right - near)
            value = value + (_slope(pieces[k], near) + pieces[k][2] * t) * t
        return value

    def slope(self, u: Tensor, from_right: Tensor | bool = False) -> Tensor:
        """The slope at each element of `u`; at a jump, the limit from one side.

        Arguments:
            u: A float tensor of any shape.
            from_right: Whether to take the limit from the right instead of the left: a bool, or a bool tensor that
                broadcasts with `u`.

        Example:
            >>> RELU.slope(torch.tensor([-1.0, 0.0, 1.0]))
            tensor([0., 0., 1.])
            >>> RELU.slope(torch.tensor([-1.0, 0.0, 1.0]), from_right=True)
            tensor([0., 1., 1.])
        """
        slope = torch.zeros_like(u) + self.left_slope
        for c2, left, right in self._inner_pieces():
            slope = slope + 2 * c2 * (u.clamp(left, right) - left)
        for p, jump in zip(self.breakpoints, self.jumps, strict=True):
            if jump:
                slope = slope + jump * ((u > p) | ((u == p) & from_right))
        return torch.where(u.isnan(), u, slope)

    def piece(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The coefficients c0, c1 and c2, of the shape of `u`, of the piece that each element lies on.

        Example:
            >>> FELU.piece(torch.tensor([-2.0, -0.5, 1.0]))
            (tensor([-0.5000,  0.0000,  0.0000]), tensor([0., 1., 1.]), tensor([0.0000, 0.5000, 0.0000]))
        """
        index = torch.bucketize(u, u.new_tensor(self.breakpoints))
        c0, c1, c2 = u.new_tensor(self.pieces).T[:, index]
        return c0, c1, c2

    def _inner_pieces(self) -> list[tuple[float, float, float]]:
        """c2, the left end and the right end of each piece but the first and the last."""
        inner = zip(self.pieces[1:-1], self.breakpoints, self.breakpoints[1:], strict=False)
        return [(piece[2], left, right) for piece, left, right in inner]


def check_activation(activation: PiecewiseQuadratic) -> None:
    """Raise TypeError unless the argument is a `PiecewiseQuadratic`.

    Example:
        >>> check_activation(torch.relu)
        Traceback (most recent call last):
        ...
        TypeError: activation must be an elflow.activations.PiecewiseQuadratic, got builtin_function_or_method
    """
    if not isinstance(activation, PiecewiseQuadratic):
        raise TypeError(f"activation must be an elflow.activations.PiecewiseQuadratic, got {type(activation).__name__}")


def _value(piece: Sequence[float], u: float) -> float:
    return piece[0] + piece[1] * u + piece[2] * u * u


def _slope(piece: Sequence[float], u: float) -> float:
    return piece[1] + 2 * piece[2] * u


def _check_pieces(points: tuple[float, ...], pieces: tuple[tuple[float, ...], ...]) -> None:
    if not points:
        raise ValueError("breakpoints must hold at least one point, got none")
    if not all(math.isfinite(p) for p in points) or any(a >= b for a, b in pairwise(points)):
        raise ValueError(f"breakpoints must be finite and increasing, got {points}")
    if len(pieces) != len(points) + 1:
        raise ValueError(f"pieces must be one more than the {len(points)} breakpoints, got {len(pieces)}")
    for piece in pieces:
        if len(piece) != 3 or not all(math.isfinite(c) for c in piece):
            raise ValueError(f"pieces must hold three finite coefficients (c0, c1, c2) each, got {piece}")
    for end in (pieces[0], pieces[-1]):
        if end[2] != 0:
            raise ValueError(f"pieces must be linear at both ends (c2 = 0), got {end}")
    for point, a, b in zip(points, pieces, pieces[1:], strict=False):
        left, right = _value(a, point), _value(b, point)
        if abs(left - right) > TOLERANCE * max(1, abs(left)):
            raise ValueError(
                f"pieces must be continuous, got a jump from {left:g} to {right:g} at the breakpoint {point:g}"
            )
        # The slope is linear on each piece, so that its maximum is at an end of the piece.
        for slope in (_slope(a, point), _slope(b, point)):
            if abs(slope) > 1 + TOLERANCE:
                raise ValueError(f"pieces must be 1-Lipschitz, got a slope of {slope:g} at the breakpoint {point:g}")


FELU = PiecewiseQuadratic((-1, 0), ((-0.5, 0, 0), (0, 1, 0.5), (0, 1, 0)), name="FELU")
"""The paper's activation: ELU with a parabola in place of the exponential. Its slope rises from 0 at -1 to 1 at 0."""

RELU = PiecewiseQuadratic((0,), ((0, 0, 0), (0, 1, 0)), name="RELU")
"""The rectifier `max(u, 0)`: two linear pieces, with a jump of the slope at 0."""

QELU = PiecewiseQuadratic((-3, -1, 0), ((-1, 0, 0), (-0.25, 0.5, 1 / 12), (0, 1, 1 / 3), (0, 1, 0)), name="QELU")
"""A smooth function of four pieces. It is closer to ELU than FELU is, and has the lower limit of ELU, -1."""
