import math

import pytest
import torch

from elflow.activations import FELU, QELU, RELU, PiecewiseQuadratic

ALL = [
    FELU,
    RELU,
    QELU,
    PiecewiseQuadratic((-2, 3), ((-3.0, -0.5, 0), (-1.2, 0.4, 0), (1.8, -0.6, 0)), name="zigzag"),
    PiecewiseQuadratic((-1, 0, 1), ((0, 0, 0), (-0.5, -1, -0.5), (-0.5, 0, 0.5), (-1, 1, 0)), name="wave"),
]
named = pytest.mark.parametrize("activation", ALL, ids=lambda a: a.name)


@named
def test_values_slopes_and_pieces(activation):
    u = torch.linspace(-5, 5, 1001, dtype=torch.float64)[1:] - 0.003
    c0, c1, c2 = activation.piece(u)
    torch.testing.assert_close(activation(u), c0 + c1 * u + c2 * u**2)
    torch.testing.assert_close(activation.slope(u), c1 + 2 * c2 * u)
    u.requires_grad_()
    (slope,) = torch.autograd.grad(activation(u).sum(), u)
    torch.testing.assert_close(slope, activation.slope(u.detach()))
    assert slope.abs().max() <= 1


@named
def test_infinities_and_nan(activation):
    u = torch.tensor([-math.inf, math.inf, math.nan])
    left = -activation.left_slope * math.inf if activation.left_slope else activation.pieces[0][0]
    right = activation.right_slope * math.inf if activation.right_slope else activation.pieces[-1][0]
    torch.testing.assert_close(activation(u), torch.tensor([left, right, math.nan]), equal_nan=True)
    assert activation.slope(u)[:2].tolist() == pytest.approx([activation.left_slope, activation.right_slope])


def test_small_values_are_accurate():
    for activation in (FELU, QELU):
        u = torch.tensor([-1e-12, 1e-12])
        torch.testing.assert_close(activation(u), u, rtol=1e-6, atol=0)


def test_smoothness_and_jumps():
    assert FELU.smooth
    assert QELU.smooth
    assert not RELU.smooth
    assert RELU.jumps == (1.0,)
    assert RELU.slope(torch.tensor([0.0, 0.0]), from_right=torch.tensor([False, True])).tolist() == [0, 1]
    assert PiecewiseQuadratic([-1, 0], [[-0.5, 0, 0], [0, 1, 0.5], [0, 1, 0]], name="mine") == FELU
    assert FELU != RELU
    assert len({FELU, RELU, QELU}) == 3


@pytest.mark.parametrize(
    ("breakpoints", "pieces", "message"),
    [
        ((), ((0, 1, 0),), "breakpoints must hold at least one point, got none"),
        ((1, 0), ((0, 0, 0),) * 3, r"breakpoints must be finite and increasing, got \(1.0, 0.0\)"),
        ((0, math.inf), ((0, 0, 0),) * 3, "breakpoints must be finite and increasing"),
        ((0,), ((0, 0, 0),), "pieces must be one more than the 1 breakpoints, got 1"),
        ((0,), ((0, 0), (0, 1)), r"pieces must hold three finite coefficients \(c0, c1, c2\) each, got \(0.0, 0.0\)"),
        ((0,), ((0, math.nan, 0), (0, 1, 0)), "pieces must hold three finite coefficients"),
        ((0,), ((0, 0, 0.1), (0, 1, 0)), r"pieces must be linear at both ends \(c2 = 0\)"),
        ((0,), ((0, 0, 0), (0.5, 1, 0)), "pieces must be continuous, got a jump from 0 to 0.5 at the breakpoint 0"),
        ((0,), ((0, 0, 0), (0, 1.5, 0)), "pieces must be 1-Lipschitz, got a slope of 1.5 at the breakpoint 0"),
        (
            (0, 2),
            ((0, 0, 0), (0, 0, 0.5), (-2, 2, 0)),
            "pieces must be 1-Lipschitz, got a slope of 2 at the breakpoint 2",
        ),
    ],
)
def test_checked_on_construction(breakpoints, pieces, message):
    with pytest.raises(ValueError, match=message):
        PiecewiseQuadratic(breakpoints, pieces)
