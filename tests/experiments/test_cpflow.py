"""Convex potential flows and the flows of normflows, beyond the contract of all systems."""

import copy
import math
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elflow.training import Recipe, fit
from experiments.systems import cpflow
from experiments.systems._conjugate import conjugate_gradients, log_determinant
from experiments.systems.cpflow import EXACT, ConvexPotential, CPFlow
from experiments.systems.normflows_flows import ResidualBlock, planar_flow, radial_flow, residual_flow

FLOWS: dict[str, Callable[[], nn.Module]] = {
    "cpflow": lambda: CPFlow(2, transforms=2, width=12),
    "residual": lambda: residual_flow(2, transforms=2, width=12),
    "planar": lambda: planar_flow(2, transforms=4),
    "radial": lambda: radial_flow(2, transforms=4),
}
RECIPE = {"schedule": "constant", "max_steps": 20, "round_steps": 5, "ema_decay": 0.995}


def bent(n: int) -> Tensor:
    x = 0.8 * torch.randn(n, 2)
    x[:, 1] += x[:, 0] ** 2
    return x


@pytest.fixture
def potential() -> Callable[..., ConvexPotential]:
    """Potentials in float64 whose parameters have moved away from where they begin."""

    def make(features: int, **options: int) -> ConvexPotential:
        made = ConvexPotential(features, **options).double()
        made.initialize(torch.randn(100, features, dtype=torch.float64))
        with torch.no_grad():
            for p in made.parameters():
                p.add_(0.3 * torch.randn_like(p))
        return made

    return make


def definite(n: int, d: int) -> Tensor:
    root = torch.randn(n, d, d, dtype=torch.float64)
    return root @ root.mT + 0.1 * torch.eye(d, dtype=torch.float64)


# --- conjugate gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 7, 20])
def test_conjugate_gradients_solve(d):
    h, b = definite(30, d), torch.randn(30, d, dtype=torch.float64)
    b[3] = 0  # which is solved at once, beside others that are not
    h[4] = torch.eye(d)
    solution = conjugate_gradients(lambda v: (h @ v[..., None])[..., 0], b, 1e-10, 10 * d)
    torch.testing.assert_close(solution.x, torch.linalg.solve(h, b))
    assert (solution.residual <= 1e-10).all()


def test_conjugate_gradients_say_how_far_they_came():
    h, b = definite(5, 20), torch.randn(5, 20, dtype=torch.float64)
    solution = conjugate_gradients(lambda v: (h @ v[..., None])[..., 0], b, 1e-10, limit=6)
    true = (b - (h @ solution.x[..., None])[..., 0]).norm(dim=-1) / b.norm(dim=-1)
    torch.testing.assert_close(solution.residual, true)
    assert (solution.residual > 1e-10).all()
    assert solution.diagonal.shape == (5, 6)
    assert solution.beside.shape == (5, 5)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_lanczos_gives_the_logarithm_of_the_matrix(d):
    """A complete run is exact: b^T log(H) b, of which random signs make the log-determinant."""
    h, b = definite(30, d), torch.randint(2, (30, d)).double() * 2 - 1
    h[4] = 3 * torch.eye(d)  # done after one step
    solution = conjugate_gradients(lambda v: (h @ v[..., None])[..., 0], b, 1e-12, d)
    values, vectors = torch.linalg.eigh(h)
    expected = ((vectors.mT @ b[..., None])[..., 0].square() * values.log()).sum(-1)
    torch.testing.assert_close(log_determinant(solution, b), expected)


# --- potentials -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("features", "layers"), [(1, 1), (2, 3), (5, 2)])
def test_the_map_is_the_gradient_of_a_convex_potential(potential, features, layers):
    t = potential(features, width=8, layers=layers).eval()()
    x = torch.randn(20, features, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(t.at(x).value.sum(), x)
    torch.testing.assert_close(t(x), gradient)
    hessian = torch.stack([torch.autograd.functional.hessian(lambda r: t.at(r[None]).value.sum(), row) for row in x])
    torch.testing.assert_close(t.at(x).hessian(), hessian)
    assert torch.linalg.eigvalsh(hessian).min() >= t.quadratic
    torch.testing.assert_close(t.log_abs_det_jacobian(x, t(x)), torch.linalg.slogdet(hessian).logabsdet)
    u, v = torch.randn(2, 20, features, dtype=torch.float64)
    torch.testing.assert_close(t.at(x).product(v), (hessian @ v[..., None])[..., 0])
    torch.testing.assert_close(t.at(x).bilinear(u, v), (u[:, None] @ hessian @ v[..., None])[:, 0, 0])


@pytest.mark.parametrize("features", [2, 5, EXACT + 2])
def test_estimates_in_training_mode_are_unbiased(potential, features):
    """Gradients of log-determinants by the parameters and by x; their values, where they are estimates."""
    made = potential(features, width=6, layers=2)
    row = torch.randn(features, dtype=torch.float64, requires_grad=True)
    x, wanted = row.expand(300, -1), [row, *made.parameters()]
    exact = made.eval()().call_and_ladj(x)[1].mean()
    expected = torch.autograd.grad(exact, wanted)
    made.train()
    values, gradients = [], []
    for _ in range(40):
        value = made().call_and_ladj(x)[1].mean()
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value, wanted))
    for found, true in zip(map(torch.stack, zip(*gradients, strict=True)), expected, strict=True):
        error = found.std(0) / math.sqrt(len(found))
        assert ((found.mean(0) - true).abs() <= 5 * error + 1e-9).all()
    assert gradients[0][1].ne(gradients[1][1]).any()
    found = torch.stack(values)
    if features <= EXACT:
        torch.testing.assert_close(found, exact.detach().expand(40))
    else:
        error = found.std() / math.sqrt(40)
        assert 0 < error < 0.1
        assert abs(found.mean() - exact) <= 5 * error


@pytest.mark.parametrize("features", [1, 2, EXACT + 2])
def test_inverse(potential, features):
    t = potential(features, width=8).eval()()
    x = 3 * torch.randn(4, 25, features, dtype=torch.float64)
    torch.testing.assert_close(t.inv(t(x)), x, atol=1e-7, rtol=1e-7)
    far = 1e4 * torch.randn(10, features, dtype=torch.float64)
    torch.testing.assert_close(t(t.inv(far)), far)
    assert t.inv(far[:0]).shape == (0, features)


def test_inverse_is_differentiable(potential):
    t = potential(3, width=8).eval()()
    y = torch.randn(3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(t, t.inv(y).detach())
    torch.testing.assert_close(torch.autograd.functional.jacobian(t.inv, y), jacobian.inverse())


def test_an_inverse_that_does_not_converge_is_an_error(potential, monkeypatch):
    t = potential(2, width=8).eval()()
    monkeypatch.setattr(cpflow, "NEWTON_STEPS", 1)
    with pytest.raises(RuntimeError, match=r"has not converged for 5 of 5 points after 1 steps"):
        t.inv(100 * torch.ones(5, 2, dtype=torch.float64))


def test_many_rows_go_through_in_parts(potential, monkeypatch):
    t = potential(2, width=8).eval()()
    x = torch.randn(3, 7, 2, dtype=torch.float64)
    whole = t.call_and_ladj(x)
    monkeypatch.setattr(cpflow, "NUMBERS", 4 * 8 * 2)
    with torch.no_grad():
        parts = t.call_and_ladj(x)
        assert len(t._parts(x)) == 6
    torch.testing.assert_close(parts, whole)


# --- every flow -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=FLOWS)
def trained(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """A flow before and after twenty steps, as elflow trains it."""
    torch.manual_seed(0)
    flow = FLOWS[request.param]()
    flow().log_prob(bent(500))
    before = copy.deepcopy(flow).eval()
    averaged, training = fit(flow, lambda: bent(128), recipe=Recipe(learning_rate=1e-2, **RECIPE))
    assert all(math.isfinite(entry["training"]) for entry in training.history)
    assert not averaged.training
    return before, averaged


@pytest.mark.slow
def test_training_helps(trained):
    before, averaged = trained
    x = bent(4_000)
    with torch.no_grad():
        gain = averaged().log_prob(x) - before().log_prob(x)
    assert gain.mean() > 4 * gain.std() / math.sqrt(len(x))


def test_density_integrates_to_one(trained):
    axis = torch.linspace(-12, 12, 241)
    with torch.no_grad():
        p = trained[1]().log_prob(torch.cartesian_prod(axis, axis)).exp()
    assert not p.requires_grad
    assert p.dtype == torch.float32
    assert float(p.double().sum()) * 0.1**2 == pytest.approx(1, abs=2e-3)


def test_copies_and_states_have_the_same_density(trained):
    averaged, x = trained[1], bent(50)
    expected = averaged().log_prob(x)
    assert torch.equal(copy.deepcopy(averaged)().log_prob(x), expected)
    other = copy.deepcopy(trained[0])
    assert not torch.allclose(other().log_prob(x), expected)
    other.load_state_dict(averaged.state_dict())
    assert torch.equal(other().log_prob(x), expected)
    torch.testing.assert_close(copy.deepcopy(averaged).double()().log_prob(x.double()).float(), expected)


def test_it_is_trained_again_alike():
    for make in FLOWS.values():
        losses = []
        for numpys in (1, 2):  # which no flow may depend on
            torch.manual_seed(0)
            np.random.seed(numpys)  # noqa: NPY002
            _, training = fit(make(), lambda: bent(32), recipe=Recipe(max_steps=3, round_steps=1))
            losses.append([entry["training"] for entry in training.history])
            assert np.random.randint(10**9) == np.random.RandomState(numpys).randint(10**9)  # noqa: NPY002
        assert losses[0] == losses[1]


# --- normflows --------------------------------------------------------------------------------------------------------


def test_residual_estimates_are_unbiased():
    """In training mode: the value and the gradients, also of means in which rows count differently."""
    block = ResidualBlock(2, 8, hidden_layers=2).double()
    with torch.no_grad():
        for p in block.parameters():
            p.mul_(3)
    block.update(200)
    x = torch.randn(1, 2, dtype=torch.float64).expand(200, -1).clone()
    x[100:] = torch.randn(2)
    weights = torch.cat([torch.full((100,), 0.002), torch.full((100,), 0.008)]).double()
    wanted = list(block.parameters())

    def found(block: ResidualBlock) -> list[Tensor]:
        value = (weights * block().call_and_ladj(x)[1]).sum()
        gradients = torch.autograd.grad(value, wanted, allow_unused=True)
        return [value.detach(), *[g for g in gradients if g is not None]]

    expected = found(block.eval())
    block.train()
    estimates = [found(block) for _ in range(60)]
    for some, true in zip(map(torch.stack, zip(*estimates, strict=True)), expected, strict=True):
        error = some.std(0) / math.sqrt(len(some))
        assert ((some.mean(0) - true).abs() <= 5 * error + 1e-6).all()
    assert expected[0].abs() > 0.01


def test_residual_networks_contract_after_training():
    """Also those with averaged weights: there a spectral norm is not that of the weights that were trained."""
    recipe = Recipe(learning_rate=5e-2, **RECIPE)
    flow, _ = fit(residual_flow(2, transforms=2, width=16), lambda: bent(64), recipe=recipe)
    for layer in flow.modules():
        if hasattr(layer, "compute_weight"):
            assert torch.linalg.matrix_norm(layer.compute_weight(update=False), 2) <= 0.97 * 1.01


def test_residual_inverse():
    flow = residual_flow(3, transforms=2, width=8).double()
    flow().log_prob(torch.randn(100, 3, dtype=torch.float64))
    t = flow.eval().transform()
    x = 3 * torch.randn(4, 5, 3, dtype=torch.float64)
    torch.testing.assert_close(t.inv(t(x)), x)
    y = torch.randn(3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(t, t.inv(y).detach())
    torch.testing.assert_close(torch.autograd.functional.jacobian(t.inv, y), jacobian.inverse())


def test_a_residual_block_that_does_not_contract_is_an_error():
    block = ResidualBlock(2, 8, hidden_layers=2).double().eval()
    with torch.no_grad():
        for layer in block.modules():
            if hasattr(layer, "compute_weight"):
                layer.weight.mul_(100)
                layer.u.zero_()  # so that it takes its spectral norm to be small
    with pytest.raises(RuntimeError, match=r"has not converged for .* of 6 points .* call eval\(\) again"):
        block().inv(torch.randn(6, 2, dtype=torch.float64))
    block.train().eval()
    y = torch.randn(6, 2, dtype=torch.float64)
    torch.testing.assert_close(block()(block().inv(y)), y)


@pytest.mark.parametrize("make", [planar_flow, radial_flow])
def test_what_has_no_inverse_refuses_to_sample(make):
    with pytest.raises(TypeError, match="log-densities only"):
        make(2, transforms=2)().sample((3,))


def test_without_normflows(monkeypatch):
    monkeypatch.setitem(sys.modules, "normflows", None)
    for make in (lambda: residual_flow(2, 1, 4), lambda: planar_flow(2, 1), lambda: radial_flow(2, 1)):
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'elflow\[experiments\]'"):
            make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CPFlow(0), "features must be at least 1, got 0"),
        (lambda: CPFlow(2, layers=0), "layers must be at least 1, got 0"),
        (lambda: residual_flow(2, 0, 4), "transforms must be at least 1, got 0"),
        (lambda: residual_flow(2, 1, 0), "width must be at least 1, got 0"),
        (lambda: planar_flow(2, 0), "transforms must be at least 1, got 0"),
        (lambda: radial_flow(0, 1), "features must be at least 1, got 0"),
    ],
)
def test_wrong_sizes(make, message):
    with pytest.raises(ValueError, match=message):
        make()
