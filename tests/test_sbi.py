"""`build_elf` as a density estimator of sbi."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from sbi.inference import NLE, NPE
from sbi.neural_nets.net_builders import build_zuko_nsf
from sbi.utils import BoxUniform
from sbi.utils.metrics import c2st
from torch.distributions import MultivariateNormal

from elflow.integrations.sbi import build_elf
from experiments.bench.sbi import NoTracker

SMALL = {"hidden_features": 8, "num_transforms": 2, "units": 4}


def build(features, condition_shape, batch=200, **options):
    theta, x = torch.randn(batch, features), 3 + 2 * torch.randn(batch, *condition_shape)
    return build_elf(**SMALL | options)(theta, x)


@pytest.mark.parametrize("features", [1, 4])
@pytest.mark.parametrize("condition_shape", [(1,), (7,), (2, 3)])
@pytest.mark.parametrize("batch", [1, 10])
def test_shapes(features, condition_shape, batch):
    """The conventions of sbi's own tests of density estimators."""
    estimator = build(features, condition_shape)
    assert estimator.input_shape == (features,)
    assert estimator.condition_shape == condition_shape
    condition = torch.randn(batch, *condition_shape)
    inputs = torch.randn(1, batch, features).repeat(2, 1, 1)
    assert estimator.loss(inputs[0], condition=condition).shape == (batch,)
    log_probs = estimator.log_prob(inputs, condition=condition)
    assert log_probs.shape == (2, batch)
    assert torch.allclose(log_probs[0], log_probs[1], rtol=1e-4)
    assert torch.allclose(estimator.log_prob(inputs[0], condition=condition), log_probs[:1], atol=1e-5)
    with_samples = condition.expand(2, *condition.shape)
    assert torch.allclose(estimator.log_prob(inputs, condition=with_samples), log_probs, atol=1e-5)
    assert estimator.log_prob(torch.randn(2, 1, features), condition=condition).shape == (2, batch)
    for shape in ((), (1,), (2, 3)):
        assert estimator.sample(shape, condition=condition).shape == (*shape, batch, features)
        samples, log_probs = estimator.sample_and_log_prob(torch.Size(shape), condition=condition)
        assert samples.shape == (*shape, batch, features)
        assert log_probs.shape == (*shape, batch)


def test_noise_and_density_belong_together():
    """The density is that of the noise, by the Jacobian of the map to it."""
    estimator = build(3, (2,)).double()
    x, c = torch.randn(5, 3, dtype=torch.double), torch.randn(5, 2, dtype=torch.double)
    noise = estimator.inverse_transform(x, c)
    jacobian = torch.autograd.functional.jacobian(lambda x: estimator.inverse_transform(x, c), x)
    logdet = torch.stack([torch.linalg.slogdet(jacobian[i, :, i])[1] for i in range(5)])
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(noise).sum(-1) + logdet
    assert torch.allclose(estimator.log_prob(x[None], c)[0], expected)
    samples, log_probs = estimator.sample_and_log_prob(torch.Size((4,)), c)
    assert torch.allclose(estimator.log_prob(samples, c), log_probs)


@pytest.mark.parametrize("z_score", ["independent", "structured", "none", None])
def test_starts_from_the_linear_regression(z_score):
    theta = torch.randn(2000, 2)
    x = theta + 0.1 * torch.randn(2000, 2)
    estimator = build_elf(z_score_theta=z_score, z_score_x=z_score, **SMALL)(theta, x)
    with torch.no_grad():
        log_prob = estimator.log_prob(theta[None], x)[0].mean()
    entropy = MultivariateNormal(torch.zeros(2), torch.eye(2) / 101).entropy()
    # An untrained flow is near the identity; without whitening it would be near the prior.
    assert log_prob > -entropy - 0.5
    with torch.no_grad():
        plain = build_elf(whiten=False, **SMALL)(theta, x).log_prob(theta[None], x)[0].mean()
    assert plain < -entropy - 1


@pytest.mark.parametrize("hidden_features", [8, [8, 6]])
def test_hidden_layers_are_those_of_sbi(hidden_features):
    """The same arguments give hypernetworks of the same depth and widths as those of sbi's own flows of zuko."""
    theta, x, sizes = torch.randn(50, 3), torch.randn(50, 2), {"hidden_features": hidden_features, "num_transforms": 4}

    def list_widths(estimator):
        transforms = [t for t in estimator.net.transform.transforms if hasattr(t, "hyper")]
        linear = [[m for m in t.hyper.modules() if isinstance(m, torch.nn.Linear)] for t in transforms]
        return [[layer.out_features for layer in layers[:-1]] for layers in linear]

    widths = list_widths(build_elf(**sizes)(theta, x))
    assert widths == list_widths(build_zuko_nsf(theta, x, **sizes))
    assert widths == [[8] * 4 if hidden_features == 8 else [8, 6]] * 4


def test_initial_weights_are_those_of_dense_layers():
    """Units that see few inputs start with the weights that torch draws for all inputs, as in sbi's flows of zuko."""
    estimator = build(5, (3,), hidden_features=40)
    hypers = [t.hyper for t in estimator.net.transform.transforms if hasattr(t, "hyper")]
    for hyper in hypers:
        hidden = [m for m in hyper.net if isinstance(m, torch.nn.Linear)][:-1]
        assert len(hidden) == 2
        for layer in hidden:
            limit = layer.in_features**-0.5
            assert 0.9 * limit < layer.weight.abs().max() <= limit


def test_gradients_reach_every_parameter():
    estimator = build(3, (2,), embedding_net=torch.nn.Linear(2, 4))
    estimator.loss(torch.randn(50, 3), torch.randn(50, 2)).mean().backward()
    missing = [name for name, p in estimator.named_parameters() if p.requires_grad and p.grad is None]
    assert not missing


def test_bounded_parameters_stay_inside():
    prior = BoxUniform(torch.tensor([0.0, -5.0]), torch.tensor([1.0, 5.0]))
    theta = prior.sample((500,))
    options = {"z_score_theta": "transform_to_unconstrained", "x_dist": prior, **SMALL}
    estimator = build_elf(**options)(theta, theta + torch.randn(500, 2))
    samples = estimator.sample((2000,), torch.zeros(1, 2))
    assert prior.support.check(samples).all()
    # A density over the box: it integrates to one.
    points = prior.sample((20_000,))
    with torch.no_grad():
        mass = 10 * estimator.log_prob(points[:, None], torch.zeros(1, 2)).exp().mean()
    assert mass == pytest.approx(1, abs=0.1)


def test_copies_and_states():
    theta, x = torch.randn(200, 3), torch.randn(200, 2)
    builder = build_elf(**SMALL)
    estimator = builder(theta, x)
    expected = estimator.log_prob(theta[None], x)
    assert torch.equal(copy.deepcopy(estimator).log_prob(theta[None], x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(estimator)).log_prob(theta[None], x), expected)
    other = pickle.loads(pickle.dumps(builder))(theta, x)
    other.load_state_dict(estimator.state_dict())
    assert torch.equal(other.log_prob(theta[None], x), expected)


def linear_gaussian(n, dim=2):
    """Parameters, observations with noise, and the posterior of the observation zero."""
    prior = MultivariateNormal(torch.zeros(dim), torch.eye(dim))
    theta = prior.sample((n,))
    x = theta + 0.5 * torch.randn(n, dim)
    return prior, theta, x, MultivariateNormal(torch.zeros(dim), 0.2 * torch.eye(dim))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Maximum number of epochs")
@pytest.mark.parametrize("embedding", [False, True])
def test_posterior_of_a_linear_gaussian(embedding):
    prior, theta, x, truth = linear_gaussian(1000)
    net = torch.nn.Linear(2, 4) if embedding else None
    trainer = NPE(prior, density_estimator=build_elf(embedding_net=net, **SMALL), tracker=NoTracker())
    trainer.append_simulations(theta, x).train(max_num_epochs=10, learning_rate=2e-3)
    posterior = trainer.build_posterior()
    samples = posterior.sample((1000,), x=torch.zeros(2), show_progress_bars=False)
    assert c2st(samples, truth.sample((1000,))) < 0.55


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Maximum number of epochs")
def test_likelihood_of_a_linear_gaussian():
    prior, theta, x, truth = linear_gaussian(1000)
    trainer = NLE(prior, density_estimator=build_elf("likelihood", **SMALL), tracker=NoTracker())
    estimator = trainer.append_simulations(theta, x).train(max_num_epochs=10, learning_rate=2e-3)
    # The posterior on a grid is the prior times the likelihood.
    points = truth.sample((4000,))
    with torch.no_grad():
        log_likelihood = estimator.log_prob(torch.zeros(1, 1, 2), points)[0]
    log_posterior = log_likelihood + prior.log_prob(points)
    difference = log_posterior - truth.log_prob(points)
    assert difference.std() < 0.3


def test_errors():
    with pytest.raises(ValueError, match="options must not have 'transforms'"):
        build_elf(transforms=1)
    with pytest.raises(ValueError, match=r"target must be one of \['posterior', 'likelihood'\], got 'ratio'"):
        build_elf("ratio")
    with pytest.raises(ValueError, match=r"z_score_x must be one of .* for the posterior, got 'transform_to"):
        build_elf(z_score_x="transform_to_unconstrained")
    with pytest.raises(ValueError, match="x_dist must be a distribution with a support"):
        build_elf(z_score_theta="transform_to_unconstrained")
    with pytest.raises(ValueError, match=r"x must be a matrix of vectors to model, got the shape \(9, 2, 2\)"):
        build_elf("likelihood")(torch.randn(9, 2), torch.randn(9, 2, 2))
    with pytest.raises(ValueError, match="embedding_net must return one vector for each row"):
        build_elf(embedding_net=torch.nn.Unflatten(1, (1, 2)))(torch.randn(9, 2), torch.randn(9, 2))
