"""Toy distributions: agreement of samplers, densities and entropies."""

import math
from functools import cache

import pytest
import torch

from elflow.datasets import toy

SLOW_RINGS = pytest.mark.parametrize(
    "distribution",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "rings" else []) for name in toy.DISTRIBUTIONS],
    indirect=True,
)
"""Every distribution; the density of the rings has thousands of terms."""


@pytest.fixture(params=toy.DISTRIBUTIONS)
def distribution(request):
    return toy.DISTRIBUTIONS[request.param]()


@cache
def integrate_squares(kind):
    """Edges of 300 intervals, and the probabilities of all squares, `(300, 300)`. Two tests need them."""
    distribution = kind()
    axis = torch.linspace(-distribution.extent, distribution.extent, 301, dtype=torch.float64)
    middle = (axis[1:] + axis[:-1]) / 2
    density = distribution.log_prob(torch.cartesian_prod(middle, middle)).exp()
    return axis, (density * (axis[1] - axis[0]) ** 2).reshape(300, 300)


def test_shapes_and_dtypes(distribution):
    assert distribution.sample().shape == (2,)
    x = distribution.sample((3, 4))
    assert x.shape == (3, 4, 2)
    assert x.dtype == torch.get_default_dtype()
    assert distribution.log_prob(x).shape == (3, 4)
    assert distribution.log_prob(x[:0]).shape == (0, 4)
    assert distribution.event_shape == (2,)


def test_seeds(distribution):
    torch.manual_seed(3)
    x = distribution.sample((100,))
    assert not (distribution.sample((100,)) == x).all()
    torch.manual_seed(3)
    assert (distribution.sample((100,)) == x).all()


@pytest.mark.slow
@SLOW_RINGS
def test_density_integrates_to_one(distribution):
    _, probability = integrate_squares(type(distribution))
    assert abs(probability.sum() - 1) < 1e-4


@pytest.mark.slow
@SLOW_RINGS
def test_samples_follow_the_density(distribution):
    """Chi-squared test over the squares with an expected count of at least five."""
    n, coarse, fine = 40_000, 20, 15
    axis, probability = integrate_squares(type(distribution))
    expected = probability.reshape(coarse, fine, coarse, fine).sum((1, 3)) * n
    x = distribution.sample((n,)).double()
    edges = axis[::fine].contiguous()
    place = (torch.bucketize(x.contiguous(), edges) - 1).clamp(0, coarse - 1)
    counts = torch.zeros(coarse, coarse, dtype=torch.float64)
    counts.index_put_((place[:, 0], place[:, 1]), torch.ones(n, dtype=torch.float64), accumulate=True)
    enough = expected >= 5
    chi = ((counts - expected)[enough].square() / expected[enough]).sum()
    freedom = int(enough.sum()) - 1
    assert chi < freedom + 4 * math.sqrt(2 * freedom)


@pytest.mark.slow
@SLOW_RINGS
def test_entropy_is_minus_the_mean_log_density(distribution):
    log_p = distribution.log_prob(distribution.sample((20_000,)))
    error = log_p.std() / math.sqrt(len(log_p))
    assert abs(log_p.mean() + distribution.entropy()) <= 4 * error + 1e-12


def test_known_entropies():
    assert float(toy.EightGaussians().entropy()) == pytest.approx(2.8319, abs=5e-5)
    assert float(toy.Checkerboard().entropy()) == math.log(32)
    # far apart, the entropy of one Gaussian plus that of the choice between eight
    tight = toy.EightGaussians(noise=0.1)
    apart = math.log(2 * math.pi * math.e * (0.1 / 1.414) ** 2) + math.log(8)
    assert float(tight.entropy()) == pytest.approx(apart, abs=1e-6)


@pytest.mark.slow
def test_extent_contains_the_samples(distribution):
    x = distribution.sample((20_000,))
    assert x.abs().max() <= distribution.extent
    assert distribution.log_prob(torch.full((2,), 1e3)) < -1e3
    assert not distribution.log_prob(x).isinf().any()


def test_bad_input():
    with pytest.raises(ValueError, match=r"value must have the shape \(..., 2\), got \(4, 3\)"):
        toy.Moons().log_prob(torch.zeros(4, 3))
    for kind in (toy.EightGaussians, toy.Moons, toy.Rings, toy.Circles, toy.SwissRoll, toy.TwoSpirals):
        with pytest.raises(ValueError, match="noise must be positive and finite, got 0"):
            kind(noise=0)


def test_rounding_keeps_samples_in_their_squares(monkeypatch):
    board = toy.Checkerboard()
    edge = torch.tensor([[2 - 1e-12, 2 - 1e-12], [-2 - 1e-12, 4 - 1e-12]], dtype=torch.float64)
    monkeypatch.setattr(board, "draw", lambda n: edge)
    assert board.log_prob(board.sample((2,))).tolist() == board.log_prob(edge).tolist()


def test_density_far_away_is_finite():
    log_p = toy.EightGaussians().log_prob(torch.tensor([[20.0, 20.0]]))
    assert -5000 < log_p < -1000
