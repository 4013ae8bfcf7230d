"""Mixtures of flows, the linear layer before a flow, and the Gaussian: densities, samples, weights, selection."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch.distributions import MultivariateNormal

import elflow
from elflow.flows.mixture import FlowMixture, GaussianMixture, fit_weights
from elflow.flows.whitening import Gaussian, Whitened, shrink_correlation
from elflow.tabular.integrals._integration import integrate_density
from elflow.tabular.integrals._lines import Lines
from elflow.training import Recipe, fit
from elflow.training.selection import Selection

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def make_mixture(context=0, **options):
    flows = [
        elflow.ELF(2, context, **SMALL),
        Whitened(elflow.ELF(2, context, **SMALL), 2, context),
        Gaussian(2, context),
    ]
    mixture = FlowMixture(flows, **options).double()
    x = torch.randn(500, 2).double() @ torch.tensor([[1.0, 0.9], [0.0, 0.1]]).double()
    mixture.initialize(x, torch.randn(500, context).double() if context else None)
    return mixture.eval()


def test_a_mixture_is_the_weighted_sum_of_its_members():
    mixture = make_mixture(weights=[1, 2, 5])
    x = torch.randn(20, 2).double()
    densities = torch.stack([flow().log_prob(x).exp() for flow in mixture.flows])
    expected = (torch.tensor([[1.0], [2.0], [5.0]]) / 8 * densities).sum(0)
    torch.testing.assert_close(mixture().log_prob(x).exp(), expected)
    torch.testing.assert_close(mixture().log_probs(x).exp(), densities)


@pytest.mark.parametrize("context", [0, 2])
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (0,)])
def test_shapes(context, shape):
    mixture = make_mixture(context)
    for batch in [(), (4,), (2, 3)] if context else [()]:
        dist = mixture(torch.randn(*batch, context).double() if context else None)
        assert dist.event_shape == (2,)
        assert dist.batch_shape == batch
        x = dist.sample(shape)
        assert x.shape == (*shape, *batch, 2)
        assert dist.log_prob(x).shape == (*shape, *batch)


def test_samples_come_from_every_member():
    """Two members far apart: shares, means and the context of each sample are right."""
    far = [Gaussian(1, context=1) for _ in range(2)]
    for flow, shift in zip(far, (0.0, 100.0), strict=True):
        c = torch.randn(1000, 1)
        flow.initialize(shift + 5 * c + torch.randn(1000, 1), c)
    mixture = FlowMixture(far, weights=[0.2, 0.8]).eval()
    torch.manual_seed(0)
    c = torch.tensor([[-2.0], [2.0]])
    x = mixture(c).sample((5000,))[..., 0]
    assert (x > 50).float().mean(0).tolist() == pytest.approx([0.8, 0.8], abs=0.02)
    assert x[:, 1][x[:, 1] < 50].mean() == pytest.approx(10, abs=0.5)
    assert x[:, 0][x[:, 0] > 50].mean() == pytest.approx(90, abs=0.5)


def test_training_trains_each_member_by_itself():
    mixture = make_mixture().train()
    x = torch.randn(50, 2).double()
    expected = torch.stack([flow().log_prob(x) for flow in mixture.flows[:2]]).mean(0)
    torch.testing.assert_close(mixture().log_prob(x), expected)
    mixture().log_prob(x).mean().backward()
    assert all(p.grad is not None for flow in mixture.flows[:2] for p in flow.parameters())
    assert not any(p.requires_grad for p in mixture.flows[2].parameters())


def test_each_member_has_its_own_best_round():
    """A member that gets worse keeps the weights of its best round, while another one improves."""
    mixture = make_mixture().train()
    selection = Selection(mixture, patience=2, race_steps=None)
    assert selection.trained == mixture.trained == [0, 1]

    def end_round(step, scores):
        with torch.no_grad():
            for flow in mixture.flows[:2]:
                next(flow.parameters()).fill_(step)
        selection.update(mixture.state_dict(), scores, step)

    end_round(1, [-3.0, -5.0, -4.0])
    end_round(2, [-4.0, -4.5, -4.0])
    assert selection.rounds_left == 2
    end_round(3, [float("nan"), -4.0, -4.0])
    assert selection.trained == mixture.trained == [1]  # the first has used up its patience
    names = [next(name for name, _ in flow.named_parameters()) for flow in mixture.flows[:2]]
    assert (selection.weights[f"flows.0.{names[0]}"] == 1).all()
    assert (selection.weights[f"flows.1.{names[1]}"] == 3).all()
    assert selection.scores == [-3.0, -4.0, -4.0]
    end_round(4, [-9.0, -9.0, -4.0])
    end_round(5, [-9.0, -9.0, -4.0])
    assert selection.trained == []


def test_a_selection_resumes():
    selection = Selection(make_mixture(), patience=1, race_steps=None)
    selection.update(make_mixture().state_dict(), [-3.0, -5.0, -4.0], 1)
    selection.update(make_mixture().state_dict(), [-4.0, -4.5, -4.0], 2)
    state = deepcopy(selection.state_dict())
    mixture = make_mixture()
    resumed = Selection(mixture, patience=1, race_steps=None)
    resumed.load_state_dict(state)
    assert resumed.trained == mixture.trained == [1]
    assert resumed.scores == [-3.0, -4.5, -4.0]
    assert all(torch.equal(value, selection.weights[key]) for key, value in resumed.weights.items())


def test_names_of_parts_may_begin_alike():
    """Part 10 is not part 1."""
    mixture = FlowMixture([elflow.ELF(1, **SMALL) for _ in range(12)])
    selection = Selection(mixture, patience=5, race_steps=None)
    selection.update(mixture.state_dict(), [-1.0] * 12, 1)
    name = next(name for name, _ in mixture.flows[10].named_parameters())
    with torch.no_grad():
        mixture.flows[10].get_parameter(name).fill_(7.0)
    selection.update(mixture.state_dict(), [-1.0] * 10 + [-0.5, -1.0], 2)
    assert (selection.weights[f"flows.10.{name}"] == 7).all()


def test_gradients_of_a_member_do_not_depend_on_the_others():
    mixture = make_mixture().train()
    x = torch.randn(50, 2).double()

    def gradient(parts):
        mixture.zero_grad()
        mixture.train_parts(parts)
        log_prob = mixture().log_prob(x)
        log_prob.sum().backward()
        return log_prob.detach(), next(mixture.flows[0].parameters()).grad.clone()

    (mean, together), (value, alone) = gradient([0, 1]), gradient([0])
    torch.testing.assert_close(together, alone)
    members = torch.stack([flow().log_prob(x) for flow in mixture.flows[:2]]).detach()
    torch.testing.assert_close(mean, members.mean(0))
    torch.testing.assert_close(value, members[0])


def test_a_member_that_overflows_does_not_spoil_the_others():
    mixture = make_mixture()
    with torch.no_grad():
        for parameter in mixture.flows[0].parameters():
            parameter.fill_(float("inf"))
    log_probs = mixture().log_probs(torch.randn(5, 2).double())
    assert log_probs.isfinite().all(-1).tolist() == [False, True, True]
    assert fit_weights(log_probs, prior=0)[0] == 0


def test_a_mixture_is_initialised_by_the_first_batch():
    x = torch.randn(500, 2) @ torch.tensor([[1.0, 0.9], [0.0, 0.1]]) + 50
    mixture = FlowMixture([elflow.ELF(2, **SMALL), GaussianMixture(2)]).train()
    mixture().log_prob(x)
    assert mixture.eval()().log_prob(x).mean() > -5
    gaussians = GaussianMixture(2).train()
    assert gaussians().log_prob(x).mean() > -5  # there is nothing to train
    assert gaussians.drop_unused() == 1
    assert len(gaussians.flows) == 1


def make_peaks(narrow):
    """A broad Gaussian, and a narrow one along the diagonal."""
    mixture = FlowMixture([Gaussian(2), Gaussian(2)], weights=[0.05, 0.95]).double()
    covariances = torch.eye(2), torch.tensor([[1.0, 1.0], [1.0, 1.0 + narrow**2]], dtype=torch.double)
    for gaussian, covariance in zip(mixture.flows, covariances, strict=True):
        gaussian.whitening.set_moments(torch.zeros(2), covariance)
    return mixture.eval()


@pytest.mark.parametrize("narrow", [0.1, 1e-3, 1e-5])
def test_conditionals_of_a_mixture_find_narrow_peaks(narrow):
    """The broad member does not hide the peak of the narrow one."""
    mixture = make_peaks(narrow)
    first = torch.linspace(-2, 2, 9).double()
    lines = Lines(torch.stack([first, first], -1)[None], torch.zeros(1, 9).double(), position=1)
    knots, cumulative, _ = integrate_density(lines, mixture, (-10.0, 10.0))
    for row, x in enumerate(first.tolist()):
        points = x + narrow * np.linspace(-3, 3, 13)
        # both members have the same density of the first feature
        truth = 0.05 * norm.cdf(points) + 0.95 * norm.cdf((points - x) / narrow)
        assert np.abs(np.interp(points, knots[row], cumulative[row]) - truth).max() < 0.005


@pytest.mark.parametrize("components", [4, 8, 32])
@pytest.mark.parametrize("draws", [1, 8])
def test_conditionals_of_many_gaussians(components, draws):
    """Narrow peaks with gaps between them, and several draws of the other feature."""
    mixture = FlowMixture([Gaussian(2) for _ in range(components)]).double().eval()
    means = np.linspace(-6, 6, components)
    for gaussian, mean in zip(mixture.flows, means, strict=True):
        gaussian.whitening.set_moments(torch.tensor([0.0, mean]), torch.tensor([[1.0, 0.02], [0.02, 0.01]]))
    z = torch.linspace(-1, 1, draws).double()[:, None, None].expand(-1, 2, 2)
    lines = Lines(z, torch.zeros(draws, 2).double(), position=1)
    knots, cumulative, _ = integrate_density(lines, mixture, (-10.0, 10.0))
    points = np.linspace(-8, 8, 1001)
    first = np.linspace(-1, 1, draws)[:, None]
    given = norm.cdf((points[:, None, None] - means - 0.02 * first) / np.sqrt(0.01 - 0.02**2)).mean(2)
    share = norm.pdf(first)[:, 0]
    truth = given @ (share / share.sum())
    assert np.abs(np.interp(points, knots[1], cumulative[1]) - truth).max() < 0.005


def test_conditionals_far_from_all_rows_are_finite():
    rng = np.random.default_rng(0)
    a = rng.normal(size=400)
    density = elflow.FlowDensity(max_steps=5, random_state=0).fit(np.stack([a, a + 0.01 * rng.normal(size=400)], 1))
    rows = np.array([[20.0, -100.0], [20.0, 100.0], [-20.0, 100.0], [-20.0, -100.0]])
    assert np.allclose(density.conditional_cdf(rows, column=1), [0, 1, 1, 0], atol=0.01)


def test_after_a_race_only_the_winner_is_trained():
    x = torch.randn(400, 2, dtype=torch.double)
    mixture = make_mixture()
    with torch.no_grad():
        mixture.flows[1].whitening.change += 3
    recipe = Recipe(max_steps=30, round_steps=10, batch_size=50, race_steps=10)
    best, training = fit(mixture, x[:300], x[300:], recipe)
    assert training.steps == 30
    alone, _ = fit(mixture, x[:300], x[300:], replace(recipe, max_steps=10, race_steps=None))
    after, before = (flow.flows[1].state_dict() for flow in (best, alone))
    assert all(torch.equal(after[key], before[key]) for key in after)  # the loser stopped after ten steps
    assert not torch.equal(*(next(flow.flows[0].parameters()) for flow in (best, alone)))


def test_the_weights_maximise_the_likelihood():
    log_probs = torch.randn(3, 200).double() + torch.tensor([[0.0], [-1.0], [-30.0]])
    weights = fit_weights(log_probs, prior=0)
    assert weights.sum() == pytest.approx(1)
    assert fit_weights(log_probs[:, :0]).tolist() == pytest.approx([1 / 3] * 3)
    assert fit_weights(log_probs)[2] == pytest.approx(0.5 / 201.5, abs=1e-6)  # half a row of its own

    def likelihood(w):
        return torch.logsumexp(log_probs + w.log()[:, None], 0).mean()

    for other in torch.rand(50, 3).double():
        assert likelihood(weights) >= likelihood(other / other.sum()) - 1e-6
    repeated = fit_weights(log_probs[:, :20].repeat(1, 3))
    torch.testing.assert_close(fit_weights(log_probs[:, :20], torch.full((20,), 3.0)), repeated)
    log_probs[0] = torch.nan
    assert fit_weights(log_probs, prior=0)[0] == 0
    with pytest.raises(ValueError, match="weights must be 3 numbers, none negative"):
        make_mixture(weights=[1.0, -1.0, 1.0])


def test_the_gaussian_is_that_of_the_data():
    torch.manual_seed(0)
    factor = torch.randn(4, 4).tril(-1) + torch.eye(4)
    x = torch.randn(20_000, 4) @ factor.T + 3
    flow = Gaussian(4)
    flow.initialize(x)
    truth = MultivariateNormal(torch.full((4,), 3.0), factor @ factor.T)
    assert (truth.log_prob(x) - flow().log_prob(x)).mean() == pytest.approx(0, abs=0.01)
    assert flow().sample((20_000,)).T.cov().numpy() == pytest.approx((factor @ factor.T).numpy(), rel=0.1, abs=0.1)


@pytest.mark.parametrize("start", ["cholesky", "identity"])
def test_constant_and_collinear_features(start):
    x = torch.randn(300, 2)
    x = torch.cat([x, x[:, :1] - x[:, 1:], torch.full((300, 1), 7.0), torch.zeros(300, 1)], 1)
    flow = Whitened(elflow.ELF(5, **SMALL), 5, start=start, order=(4, 2, 3, 0, 1))
    flow.initialize(x)
    assert flow().log_prob(x).isfinite().all()
    torch.testing.assert_close(flow.whitening().inv(flow.whitening()(x)), x, atol=1e-3, rtol=1e-3)
    assert flow.whitening()(x).std(0).max() < 1.5


def test_shrinkage_follows_the_likelihood():
    """Few rows are shrunk strongly; collinear features of many rows hardly, unlike by Ledoit and Wolf's estimate."""
    torch.manual_seed(0)
    x = torch.randn(5000, 3).double() @ torch.randn(3, 12).double() + 0.03 * torch.randn(5000, 12).double()
    x = (x - x.mean(0)) / x.std(0)
    assert shrink_correlation(x).logdet() == pytest.approx(float((x.T @ x / 5000).logdet()), abs=0.1)
    few = torch.randn(20, 40).double()
    assert torch.linalg.eigvalsh(shrink_correlation(few)).min() > 0.3


def test_weight_decay_pulls_the_linear_layer_to_its_start():
    x = torch.randn(400, 2) @ torch.tensor([[1.0, 0.99], [0.0, 0.01]])
    flow = Whitened(elflow.ELF(2, **SMALL), 2)
    best, _ = fit(flow, x, recipe=Recipe(max_steps=100, round_steps=50, weight_decay=50.0, ema_decay=0.0))
    assert best.whitening()(x).T.corrcoef()[0, 1].abs() < 0.2


def test_a_mixture_has_members():
    with pytest.raises(ValueError, match="flows must have at least one member, got none"):
        FlowMixture([])
    with pytest.raises(ValueError, match="start must be one of"):
        Whitened(elflow.ELF(2), 2, start="zca")


def test_gaussian_mixtures_have_as_many_components_as_the_data():
    torch.manual_seed(0)
    for shifts in ([0.0], [0.0, 6.0]):
        x = torch.cat([shift + torch.randn(1000, 3) for shift in shifts])[torch.randperm(1000 * len(shifts))]
        mixture = GaussianMixture(3)
        mixture.initialize(x)
        assert mixture.initialized
        truth = torch.stack([-0.5 * ((x - shift) ** 2).sum(1) for shift in shifts]).logsumexp(0)
        truth = truth - 1.5 * torch.log(torch.tensor(2 * torch.pi)) - torch.log(torch.tensor(float(len(shifts))))
        mixture.eval()
        assert mixture.log_weights.exp().max() == pytest.approx(1 / len(shifts), abs=0.03)
        assert (truth - mixture().log_prob(x)).mean() == pytest.approx(0, abs=0.02)
        other = GaussianMixture(3).eval()
        other.load_state_dict(mixture.state_dict())
        assert torch.equal(other().log_prob(x), mixture().log_prob(x))
        assert mixture().sample((4000,)).mean() == pytest.approx(sum(shifts) / len(shifts), abs=0.2)


def test_gaussian_mixtures_of_few_constant_or_conditional_rows():
    for x in (torch.randn(5, 8), torch.ones(50, 2), torch.randn(300, 1).expand(300, 4).contiguous()):
        mixture = GaussianMixture(x.shape[1])
        mixture.initialize(x)
        assert mixture.eval()().log_prob(x).isfinite().all()
    c = torch.randn(500, 2)
    mixture = GaussianMixture(1, context=2)
    mixture.initialize(3 * c[:, :1] + 0.1 * torch.randn(500, 1), c)
    assert mixture.eval()(c).log_prob(3 * c[:, :1]).mean() > 1


def test_the_history_has_the_likelihood_of_the_mixture():
    """Not that of its best member, which stops at what one flow can do."""
    x = torch.cat([torch.randn(300, 2) - 4, torch.randn(300, 2) + 4]).double()[torch.randperm(600)]
    mixture = FlowMixture([Gaussian(2), Gaussian(2), elflow.ELF(2, **SMALL)]).double()
    for gaussian, mean in zip(mixture.flows, (-4.0, 4.0), strict=False):
        gaussian.whitening.set_moments(torch.full((2,), mean), torch.eye(2))
    _, training = fit(mixture, x[:500], x[500:], Recipe(max_steps=2, round_steps=1, batch_size=50))
    truth = -np.log(2) - np.log(2 * np.pi) - (((x[500:].abs() - 4) ** 2).sum(1) / 2).mean().item()
    assert training.history[-1]["validation"] == pytest.approx(truth, abs=0.1)
