"""The contract of the systems that ELF is compared with, over every one of them; then what some promise besides."""

import copy
import math
import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from elflow.training import Recipe, fit
from experiments import Plan
from experiments.paper.toys import missing
from experiments.systems import SYSTEMS, System, available, build, count_parameters
from experiments.systems.bnaf import BNAF, BlockTransform

SIZE = 2_500
TOLERANCE = {"cnf": 3e-3}
"""How far log-densities may be from exact ones, where it is not 1e-6: with what tolerance an ODE is solved."""
EDGE = 5.5


def data(n: int, features: int) -> Tensor:
    """A bent and shifted Gaussian, whose features depend on each other."""
    x = torch.randn(n, features, dtype=torch.float64)
    x[:, 1:] += 0.6 * x[:, :-1] ** 2
    return 0.7 * x + 0.3


@cache
def built(name: str, features: int) -> nn.Module:
    torch.manual_seed(0)
    return build(name, features, transforms=2, parameters=SIZE).double()


NAMES_LAYERED = [name for name, system in SYSTEMS.items() if system.layered and available(name)]


def make(name: str, features: int) -> nn.Module:
    return copy.deepcopy(built(name, features))


class Trained:
    """A flow of two features after a few steps, with its density on a grid of points sinh(u), which reach far out."""

    def __init__(self, name: str) -> None:
        torch.manual_seed(0)
        flow, test = make(name, 2), data(1_000, 2)
        flow().log_prob(data(200, 2))  # where an ActNorm begins
        with torch.no_grad():
            self.before = -flow.eval()().log_prob(test).mean().item()
        steps = 8 if name == "cnf" else 40  # of which a step takes far longer
        recipe = Recipe(learning_rate=1e-2, schedule="constant", max_steps=steps, round_steps=10, ema_decay=0.9)
        self.flow, self.training = fit(flow, lambda: data(100, 2), recipe=recipe)
        points = 101 if name in ("cnf", "residual", "unaf") else 201  # for the time that they take
        u = torch.linspace(-EDGE, EDGE, points, dtype=torch.float64)
        self.grid = torch.cartesian_prod(u.sinh(), u.sinh())
        area = torch.cartesian_prod(u.cosh(), u.cosh()).prod(-1) * (2 * EDGE / (points - 1)) ** 2
        with torch.no_grad():
            self.after = -self.flow().log_prob(test).mean().item()
            self.log_p = self.flow().log_prob(self.grid)
        self.mass = self.log_p.exp() * area


@pytest.fixture(scope="module", params=SYSTEMS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def trained(name: str) -> Trained:
    return Trained(name)


@pytest.fixture(params=[2, 3])
def flow(name: str, request: pytest.FixtureRequest) -> nn.Module:
    """In evaluation mode, with parameters that have moved away from where they begin."""
    flow = make(name, request.param)
    flow().log_prob(data(100, request.param))
    with torch.no_grad():
        for p in flow.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return flow.eval()


def features(flow: nn.Module) -> int:
    return flow().event_shape[0]


# --- the contract -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_log_densities_are_finite_and_one_for_each_row(name, flow):
    dist = flow()
    assert isinstance(dist, Distribution)
    x = data(6, features(flow))
    log_p = dist.log_prob(x)
    assert log_p.shape == (6,)
    assert log_p.dtype == torch.float64
    assert log_p.isfinite().all()
    atol = TOLERANCE.get(name, 1e-6)
    torch.testing.assert_close(torch.stack([flow().log_prob(row) for row in x[:2]]), log_p[:2], atol=atol, rtol=0)
    torch.testing.assert_close(dist.log_prob(x.view(2, 3, -1)), log_p.view(2, 3), atol=atol, rtol=0)


@pytest.mark.slow
def test_gradients_reach_every_parameter(flow):
    loss = -flow.train()().log_prob(data(64, features(flow))).mean()
    loss.backward()
    for name, p in flow.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name


@pytest.mark.slow
def test_log_determinant_is_autograds(name, flow):
    dist = flow()
    if not hasattr(dist, "transform"):
        pytest.skip("a density that is no transformation of another one")
    for x in data(2, features(flow)):
        jacobian = torch.autograd.functional.jacobian(dist.transform, x)
        _, ladj = dist.transform.call_and_ladj(x)
        torch.testing.assert_close(
            ladj, torch.linalg.slogdet(jacobian).logabsdet, atol=TOLERANCE.get(name, 1e-6), rtol=0
        )


@pytest.mark.slow
def test_density_integrates_to_one(trained):
    assert trained.mass.sum() == pytest.approx(1, abs=1e-3)


@pytest.mark.slow
def test_samples_have_the_density(name, trained):
    """Means of the log-density, of tanh of the features and of their products, over samples and over the grid."""
    if not SYSTEMS[name].samples:
        with pytest.raises(TypeError):
            trained.flow().sample((1,))
        return
    torch.manual_seed(1)
    x = trained.flow().sample((1_000,))
    assert x.shape == (1_000, 2)
    assert not x.requires_grad

    def statistics(x: Tensor, log_p: Tensor) -> Tensor:
        a, b = x.T.tanh()  # bounded, because a density may have no second moments
        return torch.stack([log_p, a, b, a * a, b * b, a * b])

    expected = (trained.mass * statistics(trained.grid, trained.log_p)).sum(-1)
    with torch.no_grad():
        found = statistics(x, trained.flow().log_prob(x))
    error = found.std(-1) / math.sqrt(len(x))
    assert ((found.mean(-1) - expected).abs() < 4 * error).all()


def test_training_lowers_the_loss(trained):
    assert trained.after < trained.before - 0.05
    assert all(math.isfinite(entry["training"]) for entry in trained.training.history)
    assert not trained.training.skipped


@pytest.mark.slow
def test_a_state_goes_into_another_flow(name, flow):
    other = make(name, features(flow)).eval()
    other.load_state_dict(flow.state_dict())
    x = data(20, features(flow))
    torch.testing.assert_close(other().log_prob(x), flow().log_prob(x), rtol=0, atol=1e-12)


def test_repr_names_the_class(flow):
    assert repr(flow).startswith(type(flow).__name__ + "(")


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES_LAYERED)
def test_hidden_layers_and_widths_can_be_chosen(name):
    shallow, deep = (build(name, 2, 2, width=12, layers=layers) for layers in (2, 4))
    assert count_parameters(deep) > count_parameters(shallow)
    assert deep().log_prob(torch.zeros(3, 2)).shape == (3,)
    near = count_parameters(build(name, 2, 2, parameters=SIZE, layers=4))
    assert abs(near - SIZE) < 0.25 * SIZE


def test_one_of_size_and_width_is_needed():
    for given in ({}, {"parameters": 100, "width": 4}):
        with pytest.raises(ValueError, match="one of parameters and width must be given"):
            build("maf", 2, 2, **given)


@pytest.mark.parametrize(("number", "size"), [(2, 40_000), (3, 10_000)])
def test_the_number_of_parameters_is_close_to_the_requested_one(name, number, size):
    count = count_parameters(build(name, number, transforms=3, parameters=size))
    if SYSTEMS[name].sized:
        assert count == pytest.approx(size, rel=0.05)
    else:
        assert count == count_parameters(build(name, number, transforms=3, parameters=2 * size))


def test_what_is_built_follows_from_the_seed(name):
    torch.manual_seed(0)
    again = build(name, 2, transforms=2, parameters=SIZE).double()
    for one, other in zip(built(name, 2).parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


# --- the registry -----------------------------------------------------------------------------------------------------


def test_titles_are_unique():
    assert len({other.title for other in SYSTEMS.values()}) == len(SYSTEMS)


def test_what_cannot_be_built():
    with pytest.raises(ValueError, match=r"name must be one of .*'maf'.*, got 'glow'"):
        build("glow", 2, 2, 1_000)
    with pytest.raises(ValueError, match="name must be one of"):
        available("glow")
    with pytest.raises(ValueError, match="features must be at least 2, got 1"):
        build("maf", 1, 2, 1_000)
    with pytest.raises(TypeError, match=r"transforms must be an integer, got 2\.5"):
        build("maf", 2, 2.5, 1_000)
    with pytest.raises(ValueError, match="parameters must be at least 1, got 0"):
        build("maf", 2, 2, 0)


def test_without_normflows(monkeypatch):
    assert all(map(available, SYSTEMS))
    monkeypatch.setitem(sys.modules, "normflows", None)  # what makes Python say that it is not installed
    assert {name for name in SYSTEMS if not available(name)} == {"residual", "planar", "radial"}
    with pytest.raises(ModuleNotFoundError, match=r"Planar Flow needs normflows: pip install 'elflow\[experiments\]'"):
        build("planar", 2, 2, 1_000)


@pytest.mark.parametrize("source", ["zuko", "nowhere_to_be_found"])
def test_a_system_of_a_package_that_is_not_installed(monkeypatch, source):
    monkeypatch.setitem(SYSTEMS, "other", replace(SYSTEMS["maf"], title="Other", source=source))
    assert available("other") == (source == "zuko")
    monkeypatch.setitem(sys.modules, "zuko", None)
    assert not available("other")
    assert available("bnaf")  # code of this repository
    with pytest.raises(ModuleNotFoundError, match=f"Other needs {source}: "):
        build("other", 2, 2, 1_000)
    assert [line.split(" without ")[1].split(":")[0] for line in missing(Plan())] == list({"zuko": 0, source: 0})


@pytest.mark.parametrize("parameters", [1, 5, 6, 7, 1_000_000])
@pytest.mark.parametrize("widest", [1, 16])
def test_a_size_that_does_not_grow_with_the_width(monkeypatch, parameters, widest):
    def make(features, transforms, width):
        return nn.Linear(features, 2 * min(width, widest))

    monkeypatch.setitem(SYSTEMS, "other", System("Other", "elflow", "Nobody 2020", make))
    if widest == 1 or parameters == 1_000_000:
        with pytest.raises(ValueError, match=r"size of 'other' must grow with its width, got .*: set sized=False"):
            build("other", 2, 2, parameters)
    else:
        assert count_parameters(build("other", 2, 2, parameters)) == 6
    monkeypatch.setitem(SYSTEMS, "other", System("Other", "elflow", "Nobody 2020", make, sized=False))
    assert count_parameters(build("other", 2, 2, parameters)) == 6


# --- what some promise besides ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bnaf", "made-mog", "maf-mog", "tan"])
def test_context_is_refused(name):
    with pytest.raises(TypeError, match="c must be None, because this flow has no context, got Tensor"):
        make(name, 2)(torch.zeros(3, 2))


@pytest.fixture
def blocks() -> BlockTransform:
    """A transformation of a BNAF of four features."""
    return BNAF(features=4, transforms=1, hidden_features=(5, 3)).double().transform.transforms[0]()


def test_bnaf_is_triangular_and_increasing(blocks):
    for x in torch.randn(20, 4, dtype=torch.float64):
        jacobian = torch.autograd.functional.jacobian(blocks, x)
        assert (jacobian.triu(1) == 0).all()
        assert (jacobian.tril(-1) != 0).sum() == 6
        assert (jacobian.diagonal() > 0).all()


def test_bnaf_inverts_to_its_tolerance_however_far(blocks):
    x = torch.randn(50, 4, dtype=torch.float64) * torch.logspace(-3, 6, 50, dtype=torch.float64)[:, None]
    torch.testing.assert_close(blocks.inv(blocks(x)), x, atol=1e-5, rtol=1e-9)


def test_bnaf_inverse_has_implicit_gradients(blocks):
    z = torch.randn(4, dtype=torch.float64)
    inverse = torch.autograd.functional.jacobian(blocks.inv, z)
    jacobian = torch.autograd.functional.jacobian(blocks, blocks.inv(z).detach())
    torch.testing.assert_close(inverse @ jacobian, torch.eye(4, dtype=torch.float64), atol=1e-5, rtol=0)


def test_bnaf_samples_have_gradients_of_the_parameters():
    """The slope along the gradient is its norm."""
    flow = BNAF(features=2, transforms=2, hidden_features=(4, 4)).double()
    start = nn.utils.parameters_to_vector(flow.parameters()).detach()

    def total(parameters: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(parameters, flow.parameters())
        torch.manual_seed(1)
        return flow().rsample((5,)).square().sum()

    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(total(start), list(flow.parameters()))])
    step = 1e-3 * gradient / gradient.norm()
    slope = (total(start + step) - total(start - step)).item() / 2e-3
    assert slope == pytest.approx(gradient.norm().item(), rel=0.01)


@pytest.mark.parametrize("target", [math.inf, math.nan, 1e12])
def test_bnaf_says_what_it_cannot_invert(blocks, target):
    with pytest.raises(ArithmeticError, match=r"1 of the 2 coordinates 0 .* are not within 1\.07374e\+09 of zero"):
        blocks.inv(torch.tensor([[0.0, 0, 0, 0], [target, 0, 0, 0]], dtype=torch.float64))


def test_a_feature_of_a_mixture_depends_on_those_before_it_only():
    for name in ("made-mog", "tan"):
        flow = make(name, 3)
        net = flow.net if name == "made-mog" else flow.base.net
        jacobian = torch.autograd.functional.jacobian(net, torch.randn(3, dtype=torch.float64))  # (3, 3, K, 3)
        depends = jacobian.ne(0).any(2).any(1)
        assert (depends == torch.ones(3, 3, dtype=torch.bool).tril(-1)).all()


def test_nice_has_one_volume_everywhere():
    ladj = make("nice", 3)().transform.call_and_ladj(data(20, 3))[1]
    torch.testing.assert_close(ladj, ladj[:1].expand(20))


@pytest.mark.parametrize("name", ["made", "cnf", "made-mog"])
def test_systems_with_one_transformation_only(name):
    one, five = (build(name, 2, transforms, SIZE) for transforms in (1, 5))
    assert repr(one) == repr(five)
    assert "One transformation" in SYSTEMS[name].note
