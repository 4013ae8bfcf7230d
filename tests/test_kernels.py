"""The contract of a backend, compared with slow but reliable results."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from elflow import functional, kernels, testing
from elflow.activations import FELU, QELU, RELU
from elflow.functional import felu
from elflow.kernels import native

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
INVERSE_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
kinds = pytest.mark.parametrize("kind", testing.NETWORK_KINDS)


@pytest.mark.slow
@dtypes
@kinds
@pytest.mark.parametrize(("units", "count"), [(1, 100), (2, 100), (5, 200), (17, 100), (64, 50), (1000, 3)])
def test_lipschitz_is_exact(implementation, kind, units, count, dtype, generator):
    if implementation == "reference" and units == 1000:
        count = 1
    weights = testing.make_networks(kind, count, units, dtype, generator)
    found = functional.lipschitz(*weights)
    assert testing.lipschitz_error(found, *weights).max() <= TOLERANCE[dtype]
    assert testing.excess_slope(found, *weights, generator).max() <= TOLERANCE[dtype]


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    units=st.integers(1, 40),
    kind=st.sampled_from(list(testing.NETWORK_KINDS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    bound=st.sampled_from([1e-3, 0.5, 0.99, 0.9999]),
    distance=st.sampled_from([1e-3, 1.0, 1e3, 1e12, 1e25]),
)
def test_any_network(seed, units, kind, dtype, bound, distance):
    generator = Generator().manual_seed(seed)
    weights = testing.make_networks(kind, 50, units, dtype, generator)
    found = functional.lipschitz(*weights)
    assert testing.lipschitz_error(found, *weights).max() <= TOLERANCE[dtype]
    assert testing.excess_slope(found, *weights, generator).max() <= TOLERANCE[dtype]
    y = distance * torch.randn(50, dtype=dtype, generator=generator)
    shift = torch.randn(50, dtype=dtype, generator=generator)
    assert (testing.inverse_error(y, *weights, shift, bound) <= INVERSE_TOLERANCE[dtype]).all()


@pytest.mark.slow
@dtypes
@kinds
@pytest.mark.parametrize("bound", [0.5, 0.99, 0.9999])
def test_inverse_is_exact(implementation, kind, bound, dtype, generator):
    for units, count in [(1, 50), (7, 100), (40, 30)]:
        weights = testing.make_networks(kind, count, units, dtype, generator)
        shift = torch.randn(count, dtype=dtype, generator=generator)
        for distance in (1e-2, 1.0, 1e2, 1e6):
            y = distance * torch.randn(count, dtype=dtype, generator=generator)
            assert (testing.inverse_error(y, *weights, shift, bound) <= INVERSE_TOLERANCE[dtype]).all()


@pytest.mark.slow
@dtypes
@kinds
def test_both_directions_are_increasing(implementation, kind, dtype, generator):
    weights = testing.make_networks(kind, 40, 12, dtype, generator)
    shift = torch.zeros(40, 1, dtype=dtype)
    x = torch.linspace(-8, 8, 500, dtype=dtype)
    shared = [w[:, None] for w in weights]
    for function in (lambda *a: functional.elf(*a)[0], functional.elf_inverse):
        y = function(x, *shared, shift)
        # Rounding may make neighbours equal, up to a few units in the last place.
        assert (y.diff() >= -4 * torch.finfo(dtype).eps * y.abs()[:, 1:].clamp(min=1)).all()


@pytest.mark.slow
@dtypes
def test_implementations_agree(implementation, dtype, generator):
    """Values and gradients, for networks steeper and flatter than the bound, against the reference in float64."""
    relative = {torch.float32: 1e-4, torch.float64: 1e-9}[dtype]
    for kind in ("ordinary", "wide", "scaled", "steep", "one-sided", "cancelling"):
        for units in (1, 6, 50):
            *weights, shift = _leaves(kind, 60, units, dtype, generator)
            x = torch.randn(60, dtype=dtype, generator=generator).requires_grad_()
            leaves = [x, *weights, shift]
            wide = [t.detach().double().requires_grad_() for t in leaves]
            for function in (
                functional.elf,
                functional.elf_inverse,
                lambda x, w1, b1, w2, b2: functional.lipschitz(w1, b1, w2),
            ):
                used = leaves if function is functional.elf or function is functional.elf_inverse else leaves[1:4]
                used_wide = wide if used is leaves else wide[1:4]
                found = _values_and_gradients(function(*leaves), used)
                with kernels.backend("reference"):
                    expected = _values_and_gradients(function(*wide), used_wide)
                # Relative to the largest value or gradient of the same network, since some cancel to zero.
                size = torch.stack([e.abs().reshape(60, -1).amax(-1) for e in expected]).amax(0) + 1
                for a, b in zip(found, expected, strict=True):
                    assert ((a.double() - b).abs().reshape(60, -1).amax(-1) <= relative * size).all()


def _leaves(kind, count, units, dtype, generator):
    weights = testing.make_networks(kind, count, units, dtype, generator)
    shift = torch.randn(count, dtype=dtype, generator=generator)
    return [t.requires_grad_() for t in (*weights, shift)]


def _values_and_gradients(outputs, leaves):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum((output * (1 + k)).sum() for k, output in enumerate(outputs))
    # Gradients with respect to the logarithm of a weight, so that large and small ones count alike.
    grads = zip(torch.autograd.grad(total, leaves), leaves, strict=True)
    return [*(o.detach() for o in outputs), *(g * t.detach().abs() for g, t in grads)]


@pytest.mark.slow
@pytest.mark.parametrize("bound", [0.3, 0.99])
@pytest.mark.parametrize("units", [1, 2, 9])
def test_gradcheck(implementation, units, bound, generator):
    *weights, shift = _leaves("ordinary", 6, units, torch.float64, generator)
    x = torch.randn(6, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(functional.lipschitz, weights)
    assert torch.autograd.gradcheck(lambda *t: functional.elf(*t, bound), (x, *weights, shift))
    assert torch.autograd.gradcheck(lambda *t: functional.elf_inverse(*t, bound), (x, *weights, shift))


@pytest.mark.slow
@pytest.mark.parametrize("activation", [RELU, QELU], ids=lambda a: a.name)
def test_gradcheck_of_other_activations(activation, generator):
    *weights, shift = _leaves("ordinary", 5, 4, torch.float64, generator)
    x = torch.randn(5, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *t: functional.lipschitz(*t, activation=activation), weights)
    for function in (functional.elf, functional.elf_inverse):
        assert torch.autograd.gradcheck(lambda *t, f=function: f(*t, activation=activation), (x, *weights, shift))


@kinds
@pytest.mark.parametrize("activation", [FELU, RELU, QELU], ids=lambda a: a.name)
def test_every_activation(activation, kind, generator):
    """No slope found by dense search exceeds the constant, one comes close, and the inverse inverts."""
    w1, b1, w2 = testing.make_networks(kind, 30, 6, torch.float64, generator)
    shift = torch.randn(30, dtype=torch.float64, generator=generator)
    with kernels.backend("reference"):
        found = functional.lipschitz(w1, b1, w2, activation)
        y = 3 * torch.randn(30, dtype=torch.float64, generator=generator)
        x = functional.elf_inverse(y, w1, b1, w2, shift, activation=activation)
        back, log_slope = functional.elf(x, w1, b1, w2, shift, activation=activation)
    points = torch.tensor(activation.breakpoints, dtype=torch.float64)
    corners = ((points[:, None] - b1[:, None]) / w1[:, None]).flatten(1)
    around = torch.cat([corners * (1 - 1e-9), corners, corners * (1 + 1e-9), torch.randn(30, 200)], 1)
    around = torch.where(around.isfinite(), around, 0)
    slopes = (
        ((w1 * w2)[:, None] * activation.slope(w1[:, None] * around[..., None] + b1[:, None])).sum(-1).abs().amax(-1)
    )
    scale = torch.maximum(found, 1e-3 * (w1 * w2).abs().sum(-1))
    assert (slopes <= found + 1e-12 * scale).all()
    if kind in ("ordinary", "one-sided", "equal"):
        assert (slopes >= found - 1e-6 * scale).all()
    assert ((back - y).abs() <= 1e-11 * torch.maximum(y.abs(), x.abs()).clamp(min=1)).all()
    assert log_slope.isfinite().all()


def test_sweep_and_direct_evaluation_agree(generator):
    for kind in testing.NETWORK_KINDS:
        for units in (1, 3, 8, 31, 100):
            weights = testing.make_networks(kind, 40, units, torch.float32, generator)
            from_sweep, _ = native.find_steepest(*weights, "sweep")
            direct, _ = native.find_steepest(*weights, "direct")
            torch.testing.assert_close(from_sweep, direct, rtol=1e-6, atol=0)


def test_other_dtypes_go_through_the_reference(generator):
    weights = [w.bfloat16() for w in testing.make_networks("ordinary", 4, 5, torch.float32, generator)]
    assert functional.lipschitz(*weights).dtype == torch.bfloat16
    with kernels.backend("native"), pytest.raises(ValueError, match=r"float32 and float64, not torch.bfloat16"):
        functional.lipschitz(*weights)


@pytest.mark.parametrize("function", [functional.elf, functional.elf_inverse, functional.lipschitz])
def test_second_derivatives_are_refused_not_wrong(function, generator):
    *weights, shift = _leaves("ordinary", 4, 5, torch.float64, generator)
    x = torch.randn(4, dtype=torch.float64, generator=generator, requires_grad=True)
    leaves = weights if function is functional.lipschitz else [x, *weights, shift]

    def second():
        found = function(*leaves)
        total = sum(t.square().sum() for t in (found if isinstance(found, tuple) else (found,)))
        grads = torch.autograd.grad(total, leaves, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), weights)

    with pytest.raises(
        RuntimeError, match=r"no second derivatives: compute them under elflow.kernels.backend\('reference'\)"
    ):
        second()
    with kernels.backend("reference"):
        assert all(g.abs().sum() > 0 for g in second())


def _exact_lipschitz(w1, b1, w2):
    """The Lipschitz constant and the sum of |w1 w2| in rational numbers, without rounding."""
    units = [tuple(Fraction(float(v)) for v in unit) for unit in zip(w1, b1, w2, strict=True)]
    ends = [sum((w * v for w, _, v in units if w * side > 0), Fraction()) for side in (1, -1)]
    places = [-(off + b) / w for w, b, _ in units if w for off in (0, 1)]
    slopes = [sum(w * v * min(max(w * x + b + 1, Fraction()), Fraction(1)) for w, b, v in units) for x in places]
    return max(abs(slope) for slope in ends + slopes), sum(abs(w * v) for w, _, v in units)


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e12, 1e20])
def test_steep_units_that_share_breakpoints(implementation, scale, dtype):
    """A rounding error of such a breakpoint would move its units by far more than the width of their ramps."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        times = rng.choice([1, 2, 4], 6) * rng.choice([-1, 1], 6)
        w1 = torch.tensor(times * float(np.float32(3 * scale)), dtype=dtype)
        b1 = torch.tensor(times * float(np.float32(scale)), dtype=dtype)
        w2 = torch.tensor(rng.normal(size=6), dtype=dtype) / w1
        truth, size = _exact_lipschitz(w1, b1, w2)
        found = Fraction(functional.lipschitz(w1, b1, w2).item())
        assert abs(found - truth) <= TOLERANCE[dtype] * max(truth, size / 1000)


@pytest.mark.slow
@dtypes
@kinds
def test_lipschitz_against_rational_numbers(implementation, kind, dtype, generator):
    weights = testing.make_networks(kind, 10, 5, dtype, generator)
    for found, w1, b1, w2 in zip(functional.lipschitz(*weights), *weights, strict=True):
        truth, size = _exact_lipschitz(w1, b1, w2)
        smallest = Fraction(torch.finfo(dtype).tiny / torch.finfo(dtype).eps)
        assert abs(Fraction(found.item()) - truth) <= TOLERANCE[dtype] * max(truth, size / 1000, smallest)


@pytest.mark.parametrize(
    ("w1", "b1", "w2", "constant"),
    [
        ([1e160, -1e160], [0.0, 0.0], [1.0, 1.0], 1e160),  # curvatures overflow
        ([1e150, 1e150], [0.0, 0.0], [1e150, -0.5e150], 5e299),
        ([1e-170, 1e-170], [0.0, -5.0], [1.0, -0.9], 1e-170),  # curvatures underflow
        ([1e-100, 1e-100], [0.0, -5.0], [1e-150, -0.9e-150], 1e-250),
        ([1e-310], [0.5], [1.0], 1e-310),
    ],
)
def test_slopes_near_the_ends_of_float64(implementation, w1, b1, w2, constant):
    weights = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in (w1, b1, w2)]
    found = functional.lipschitz(*weights)
    assert found.item() == pytest.approx(constant, rel=1e-12, abs=0)
    if implementation != "reference":  # autograd divides by w1 squared
        assert all(g.isfinite().all() for g in torch.autograd.grad(found, weights))


@dtypes
@pytest.mark.parametrize("steepness", [1e3, 1e12, 1e20, 1e30])
def test_inverse_on_a_narrow_ramp(implementation, steepness, dtype):
    """The solution lies where the map turns from almost flat to steep within one rounding error of x."""
    w1 = torch.tensor([1.0, steepness], dtype=dtype)
    b1 = torch.tensor([0.1, -0.9999], dtype=dtype)
    w2 = torch.tensor([-1.0, 2 / steepness], dtype=dtype)
    y = torch.tensor([-1e-11, 0.0, 1e-11, 0.3], dtype=dtype)
    error = testing.inverse_error(y, w1, b1, w2, torch.zeros((), dtype=dtype), 0.9999)
    assert (error <= INVERSE_TOLERANCE[dtype]).all()


@dtypes
@pytest.mark.parametrize(("bound", "spikes", "width"), [(0.99, 170, 1e-3), (0.9999, 170, 1e-4), (0.5, 60, 1e-2)])
def test_inverse_of_a_map_that_defeats_newtons_method(bound, spikes, width, dtype):
    """An almost flat map with a steep spike at every point that Newton's method would visit."""
    w1, b1, w2 = np.array([1.0]), np.array([1 / bound]), np.array([-bound])
    x = 0.0
    for _ in range(spikes):
        missing = -(x + (w2 * felu(torch.from_numpy(w1 * x + b1)).numpy()).sum())
        near = width * missing / (1 + bound)
        sharp = 1 / (0.2 * near)
        w1 = np.append(w1, [sharp, sharp])
        b1 = np.append(b1, [-sharp * (x - near), -sharp * (x + near + 1 / sharp)])
        w2 = np.append(w2, [2 * bound / sharp, -2 * bound / sharp])
        missing = -(x + (w2 * felu(torch.from_numpy(w1 * x + b1)).numpy()).sum())
        x += missing / (1 + bound)
    weights = [torch.from_numpy(w).to(dtype) for w in (w1, b1, w2)]
    zero = torch.zeros((), dtype=dtype)
    assert testing.inverse_error(zero, *weights, zero, bound) <= INVERSE_TOLERANCE[dtype]


@pytest.mark.slow
def test_second_derivatives_of_the_reference(generator):
    *weights, shift = _leaves("ordinary", 3, 4, torch.float64, generator)
    x = torch.randn(3, dtype=torch.float64, generator=generator, requires_grad=True)
    with kernels.backend("reference"):
        assert torch.autograd.gradgradcheck(lambda *t: functional.elf(*t, 0.8), (x, *weights, shift))
        assert torch.autograd.gradgradcheck(lambda *t: functional.elf_inverse(*t, 0.8), (x, *weights, shift))
