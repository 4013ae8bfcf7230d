"""Points of conditional questions: proposals, their spread, and the integration of one feature."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats
from scipy.special import logsumexp

from elflow.flows.mixture import FlowMixture
from elflow.flows.whitening import Gaussian
from elflow.tabular.integrals._integration import _accumulate
from elflow.tabular.integrals._particles import Scorer, spread_points, weigh_points
from elflow.tabular.integrals._proposals import Gaussians
from elflow.tabular.integrals._quick_integration import MAX_ERROR, MAX_ROUNDS, QuickIntegrator
from elflow.tabular.integrals._regions import Regions

N_GAUSSIANS = 24


def make_clusters() -> FlowMixture:
    """Gaussians of two features with equal weights, far from each other along the second feature."""
    mixture = FlowMixture([Gaussian(2) for _ in range(N_GAUSSIANS)]).double().eval()
    for k, gaussian in enumerate(mixture.flows):
        gaussian.whitening.set_moments(torch.tensor([0.0, 30.0 * k]), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    return mixture


def test_points_come_from_all_gaussians_that_the_conditions_allow():
    mixture = make_clusters()
    gaussians = Gaussians.from_flow(mixture)
    regions = Regions.free(rows=2, features=2)
    regions.lower[1, 1, 0], regions.upper[1, 1, 0] = 105.0, 225.0  # four Gaussians
    found = weigh_points(Scorer(mixture), gaussians, regions, None, 512)
    assert (found.effective_sample_size > 300).all()
    cluster = (found.z[..., 1] / 30).round()
    assert cluster[0].unique().numel() == N_GAUSSIANS
    assert cluster[1].unique().tolist() == [4.0, 5.0, 6.0, 7.0]
    # The integral of the density over a region.
    assert np.allclose(found.log_mass.exp(), [1.0, 4 / N_GAUSSIANS], atol=0.02)
    # A row has the same points beside any other.
    alone = weigh_points(Scorer(mixture), gaussians, regions.take(slice(1, 2)), None, 512)
    assert torch.equal(alone.z[0], found.z[1])
    assert torch.equal(alone.log_weight[0], found.log_weight[1])


def test_spread_points_are_more_even_than_random_ones():
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(60, 512, 3, generator=generator).double()
    z[..., 2] = 0.5  # a feature that is known
    is_fixed = torch.tensor([[False, False, True]]).expand(60, -1)
    chosen = spread_points(z, 128, is_fixed, main=0)
    # Each chosen point is one of the row, and none is chosen twice.
    assert ((chosen[:, :, None] == z[:, None]).all(-1).sum(-1) == 1).all()
    assert all(row.unique().numel() == 128 for row in chosen[..., 0])
    for feature in (0, 1):
        of_chosen = (chosen[..., feature] < 0.3).double().mean(1)
        of_random = (z[:, :128, feature] < 0.3).double().mean(1)
        whole = (z[..., feature] < 0.3).double().mean(1)
        assert (of_chosen - whole).abs().mean() < 0.5 * (of_random - whole).abs().mean()
        assert abs(float((of_chosen - whole).mean())) < 0.004  # no place in a part is preferred


def test_quick_integration_of_a_density_with_kinks():
    """The logarithm of two Laplace densities has kinks between the first nodes: few more find the distribution."""
    centres = np.linspace(-0.9, 0.9, 7)[:, None, None] + np.array([-0.83, 0.57])
    weights, scales = np.array([0.7, 0.3]), np.array([0.35, 0.5])

    def log_density(points):
        return logsumexp(np.log(weights / (2 * scales)) - np.abs(points[..., None] - centres) / scales, 2)

    mean = np.stack([centres[:, 0] @ weights, centres[:, 0] @ weights], 1)
    integrator = QuickIntegrator(mean, np.full(mean.shape, 0.85), np.full(mean.shape, 0.5), (-9.0, 9.0))
    integrator.set_values(log_density(integrator.nodes))
    for _ in range(MAX_ROUNDS):
        points, values = integrator.refine()
        new = integrator.choose_nodes(points, _accumulate(points, values)[0])
        error = integrator.add(new, log_density(new.points))
        if (error < MAX_ERROR).all():
            break
    assert (error < MAX_ERROR).all()
    assert integrator.nodes.shape[1] < 60
    knots, values = integrator.refine()
    cumulative = _accumulate(knots, values)[0]
    at = np.linspace(-4, 4, 101)
    for row in range(len(centres)):
        truth = stats.laplace.cdf(at[:, None], centres[row, 0], scales) @ weights
        assert np.abs(np.interp(at, knots[row], cumulative[row]) - truth).max() < MAX_ERROR
