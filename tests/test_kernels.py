"""The contract of a backend, held against slow and trustworthy answers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator

from elflow import functional, kernels, testing
from elflow.activations import FELU, QELU, RELU

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
INVERSE_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
kinds = pytest.mark.parametrize("kind", testing.KINDS)


@dtypes
@kinds
@pytest.mark.parametrize(("units", "count"), [(1, 100), (2, 100), (5, 200), (17, 100), (64, 50), (1000, 3)])
def test_lipschitz_is_exact(implementation, kind, units, count, dtype, generator):
    if implementation == "reference" and units == 1000:
        count = 1
    weights = testing.networks(kind, count, units, dtype, generator)
    found = functional.lipschitz(*weights)
    assert testing.lipschitz_error(found, *weights).max() <= TOLERANCE[dtype]
    assert testing.overtaken(found, *weights, generator).max() <= TOLERANCE[dtype]


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    units=st.integers(1, 40),
    kind=st.sampled_from(list(testing.KINDS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    bound=st.sampled_from([1e-3, 0.5, 0.99, 0.9999]),
    distance=st.sampled_from([1e-3, 1.0, 1e3, 1e12, 1e25]),
)
def test_any_network(seed, units, kind, dtype, bound, distance):
    generator = Generator().manual_seed(seed)
    weights = testing.networks(kind, 50, units, dtype, generator)
    found = functional.lipschitz(*weights)
    assert testing.lipschitz_error(found, *weights).max() <= TOLERANCE[dtype]
    assert testing.overtaken(found, *weights, generator).max() <= TOLERANCE[dtype]
    y = distance * torch.randn(50, dtype=dtype, generator=generator)
    shift = torch.randn(50, dtype=dtype, generator=generator)
    assert (testing.inverse_error(y, *weights, shift, bound) <= INVERSE_TOLERANCE[dtype]).all()


@dtypes
@kinds
@pytest.mark.parametrize("bound", [0.5, 0.99, 0.9999])
def test_inverse_is_exact(implementation, kind, bound, dtype, generator):
    for units, count in [(1, 50), (7, 100), (40, 30)]:
        weights = testing.networks(kind, count, units, dtype, generator)
        shift = torch.randn(count, dtype=dtype, generator=generator)
        for distance in (1e-2, 1.0, 1e2, 1e6):
            y = distance * torch.randn(count, dtype=dtype, generator=generator)
            assert (testing.inverse_error(y, *weights, shift, bound) <= INVERSE_TOLERANCE[dtype]).all()


@dtypes
@kinds
def test_both_directions_are_increasing(implementation, kind, dtype, generator):
    weights = testing.networks(kind, 40, 12, dtype, generator)
    shift = torch.zeros(40, 1, dtype=dtype)
    x = torch.linspace(-8, 8, 500, dtype=dtype)
    shared = [w[:, None] for w in weights]
    for function in (lambda *a: functional.elf(*a)[0], functional.elf_inverse):
        y = function(x, *shared, shift)
        # Rounding makes neighbours equal at the worst.
        assert (y.diff() >= -4 * torch.finfo(dtype).eps * y.abs()[:, 1:].clamp(min=1)).all()


@dtypes
def test_implementations_agree(implementation, dtype, generator):
    """Values and gradients, for networks steeper and flatter than the bound, against the reference in float64."""
    relative = {torch.float32: 1e-4, torch.float64: 1e-9}[dtype]
    for kind in ("ordinary", "wide", "one-sided", "cancelling"):
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
                for a, b in zip(found, expected, strict=True):
                    _assert_close(a.double(), b, relative)


def _leaves(kind, count, units, dtype, generator):
    weights = testing.networks(kind, count, units, dtype, generator)
    shift = torch.randn(count, dtype=dtype, generator=generator)
    return [t.requires_grad_() for t in (*weights, shift)]


def _values_and_gradients(outputs, leaves):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    total = sum((output * (1 + k)).sum() for k, output in enumerate(outputs))
    return [*(o.detach() for o in outputs), *torch.autograd.grad(total, leaves)]


def _assert_close(found, expected, relative):
    """Relative to the largest gradient of the same network."""
    size = expected.abs() if expected.ndim == 1 else expected.abs().amax(-1, keepdim=True)
    assert ((found - expected).abs() <= relative * (size + 1)).all()


@pytest.mark.parametrize("bound", [0.3, 0.99])
@pytest.mark.parametrize("units", [1, 2, 9])
def test_gradcheck(implementation, units, bound, generator):
    *weights, shift = _leaves("ordinary", 6, units, torch.float64, generator)
    x = torch.randn(6, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(functional.lipschitz, weights)
    assert torch.autograd.gradcheck(lambda *t: functional.elf(*t, bound), (x, *weights, shift))
    assert torch.autograd.gradcheck(lambda *t: functional.elf_inverse(*t, bound), (x, *weights, shift))


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
    w1, b1, w2 = testing.networks(kind, 30, 6, torch.float64, generator)
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
    from elflow.kernels import native

    for kind in testing.KINDS:
        for units in (1, 3, 8, 31, 100):
            weights = testing.networks(kind, 40, units, torch.float32, generator)
            swept, _ = native.steepest(*weights, "sweep")
            direct, _ = native.steepest(*weights, "direct")
            torch.testing.assert_close(swept, direct, rtol=1e-6, atol=1e-7 * direct.max().item())


def test_other_dtypes_and_double_backward(generator):
    """Half precision goes through the reference; second derivatives are refused, not wrong."""
    weights = [w.bfloat16() for w in testing.networks("ordinary", 4, 5, torch.float32, generator)]
    assert functional.lipschitz(*weights).dtype == torch.bfloat16
    with kernels.backend("native"), pytest.raises(ValueError, match=r"float32 and float64, not torch.bfloat16"):
        functional.lipschitz(*weights)

    w1, b1, w2 = (w.float().requires_grad_() for w in weights)
    with kernels.backend("native"):
        (grad,) = torch.autograd.grad(functional.lipschitz(w1, b1, w2).sum(), w1, create_graph=True)
        with pytest.raises(RuntimeError):
            torch.autograd.grad(grad.sum(), w1)
