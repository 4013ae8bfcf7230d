"""The paper's lemmas: the construction comes as close as asked for, and its network is no steeper than the function."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elflow.activations import FELU, QELU, RELU
from elflow.functional import elf, elf_inverse, lipschitz
from experiments.paper.universality import approximate, approximate_conditional

FUNCTIONS = {
    "sine": torch.sin,
    "absolute value": torch.abs,
    "zigzag": lambda x: (x - 2 * (x / 2).round()).abs(),
    "fast and small": lambda x: torch.sin(50 * x) / 50,
    "straight": lambda x: -x,
    "constant": lambda x: torch.full_like(x, 3.0),
    "cantor-like": lambda x: sum(torch.sin(3.0**n * x) / 3.0**n for n in range(4)) / 4,
}


def network(x, w1, b1, w2, b2, activation):
    return b2 + activation(w1 * x[:, None] + b1) @ w2


@pytest.mark.parametrize("activation", [FELU, RELU, QELU], ids=lambda a: a.name)
@pytest.mark.parametrize("epsilon", [0.5, 0.05])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_epsilon_everywhere(name, epsilon, activation):
    f = FUNCTIONS[name]
    w1, b1, w2, b2 = approximate(f, -4, 5, epsilon, activation)
    x = torch.linspace(-4, 5, 3011, dtype=torch.float64)
    assert (network(x, w1, b1, w2, b2, activation) - f(x)).abs().max() <= epsilon
    assert lipschitz(w1, b1, w2, activation) <= 1 + 1e-9


@settings(deadline=None, max_examples=20)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=12), st.floats(0.02, 1.0))
def test_any_slopes(slopes, epsilon):
    """A 1-Lipschitz function is the limit of those that are straight between the integers."""
    heights = torch.tensor([0.0, *slopes], dtype=torch.float64).cumsum(0)

    def f(x):
        index = x.floor().clamp(0, len(slopes) - 1).long()
        return heights[index] + (x - index) * heights.diff()[index]

    w1, b1, w2, b2 = approximate(f, 0, len(slopes), epsilon)
    x = torch.linspace(0, len(slopes), 1501, dtype=torch.float64)
    assert (network(x, w1, b1, w2, b2, FELU) - f(x)).abs().max() <= epsilon
    assert lipschitz(w1, b1, w2) <= 1 + 1e-9


def test_the_papers_sign_is_wrong():
    """With both weights of an interval positive, as the paper prints them, the network is nowhere near."""
    w1, b1, w2, b2 = approximate(torch.sin, -3, 3, 0.01)
    half = len(w2) // 2
    printed = torch.cat([w2[:half], -w2[half:]])
    x = torch.linspace(-3, 3, 1001, dtype=torch.float64)
    assert (network(x, w1, b1, printed, b2, FELU) - x.sin()).abs().max() > 1


@pytest.mark.slow
def test_hypernetworks_in_two_dimensions():
    """Theorem A.1: within epsilon between the nodes as well, once they are dense, and never steeper than 1."""
    axis = torch.linspace(-2, 2, 64, dtype=torch.float64)

    def target(x, c):
        return torch.sin(x + c) * torch.cos(c)

    errors = []
    for nodes in (5, 17, 129):
        w1, b1, w2, b2 = approximate_conditional(target, -2, 2, 0.02, nodes)(axis)
        assert lipschitz(w1, b1, w2).max() <= 1 + 1e-9
        values = b2[:, None] + torch.einsum("ch,cxh->cx", w2, FELU(w1[:, None] * axis[:, None] + b1[:, None]))
        errors.append((values - target(axis, axis[:, None])).abs().max().item())
    assert errors[0] > errors[1] > errors[2]
    assert errors[0] > 0.1
    assert errors[2] <= 0.03


def test_an_increasing_map_by_elf():
    """So ELF comes as close as asked for to any increasing map with slopes within 1 - c and 1 + c."""
    c = 0.9
    w1, b1, w2, b2 = approximate(torch.sin, -3, 3, 0.01)
    x = torch.linspace(-3, 3, 1001, dtype=torch.float64)
    y, _ = elf(x, w1, b1, c * w2, c * b2, bound=c)
    assert (y - (x + c * x.sin())).abs().max() <= 0.01
    torch.testing.assert_close(elf_inverse(y, w1, b1, c * w2, c * b2, bound=c), x, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"low": 1.0, "high": 1.0}, "low must be below high"),
        ({"function": lambda x: 2 * x}, "function must be 1-Lipschitz, got a slope of 2"),
    ],
)
def test_bad_input(changed, message):
    given = {"function": torch.sin, "low": -1.0, "high": 1.0, "epsilon": 0.1} | changed
    with pytest.raises(ValueError, match=message):
        approximate(**given)
