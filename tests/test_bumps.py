"""The bump parametrisation: the slope of a pair of units, and the fused operators against their definition."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elflow import kernels
from elflow.activations import FELU, QELU
from elflow.functional import bump_size, bumps, elf, elf_bumps, elf_bumps_inverse, elf_inverse, lipschitz


def random_phi(*batch, units, dtype=torch.float64, wild=1.0):
    return wild * torch.randn(*batch, bump_size(units), dtype=dtype)


def test_slope_of_one_bump():
    k, t, w, a = torch.tensor([100.0, 50.0], dtype=torch.float64), 3.0, 2.0, 0.25
    phi = torch.cat([k.log(), torch.tensor([t, math.log(w), a, 7.0], dtype=torch.float64)])
    w1, b1, w2, b2 = bumps(phi, 2)
    x = torch.tensor([1.9, 2.1, 3.9, 4.1], dtype=torch.float64)
    slope = (w1 * w2 * FELU.slope(w1 * x[:, None] + b1)).sum(-1)
    torch.testing.assert_close(slope, torch.tensor([0.0, 0.25, 0.25, 0.0], dtype=torch.float64))
    assert lipschitz(w1, b1, w2) == pytest.approx(0.25)
    assert b2 == 7


@pytest.mark.parametrize("units", [1, 2, 5, 16, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_equals_definition(implementation, units, dtype):
    phi = random_phi(20, 3, units=units, dtype=dtype)
    x = torch.randn(20, 3, dtype=dtype)
    with kernels.backend("reference"):
        y, log_slope = elf(x.double(), *bumps(phi.double(), units), bound=0.9)
        back = elf_inverse(x.double(), *bumps(phi.double(), units), bound=0.9)
    tolerance = {"atol": 2e-4, "rtol": 2e-4} if dtype == torch.float32 else {"atol": 1e-10, "rtol": 1e-10}
    fused = elf_bumps(x, phi, units, bound=0.9)
    assert fused[0].dtype == dtype
    torch.testing.assert_close(fused[0].double(), y, **tolerance)
    torch.testing.assert_close(fused[1].double(), log_slope, **tolerance)
    torch.testing.assert_close(elf_bumps_inverse(x, phi, units, bound=0.9).double(), back, atol=2e-3, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("units", [1, 4, 7])
def test_gradients(implementation, units):
    phi = random_phi(6, units=units).requires_grad_()
    x = torch.randn(6, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, phi: elf_bumps(x, phi, units), (x, phi), atol=1e-5, rtol=1e-4)
    assert torch.autograd.gradcheck(lambda y, phi: elf_bumps_inverse(y, phi, units), (x, phi), atol=1e-4, rtol=1e-3)


def test_gradients_of_a_shared_network(implementation):
    """One network with many points, which is computed in several tasks."""
    phi, x = random_phi(1, units=9).requires_grad_(), torch.randn(700, 1, dtype=torch.float64)
    y, log_slope = elf_bumps(x, phi, 9)
    (fused,) = torch.autograd.grad((y * x + log_slope).sum(), phi)
    with kernels.backend("reference"):
        y, log_slope = elf(x, *bumps(phi, 9))
        (expected,) = torch.autograd.grad((y * x + log_slope).sum(), phi)
    torch.testing.assert_close(fused, expected, atol=1e-8, rtol=1e-8)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.sampled_from([0.1, 1.0, 10.0, 1e3]), st.integers(0, 2**31))
def test_inverse_of_random_networks(units, wild, seed):
    torch.manual_seed(seed)
    phi, x = random_phi(8, units=units, wild=wild), torch.randn(8, dtype=torch.float64)
    y, log_slope = elf_bumps(x, phi, units)
    assert log_slope.isfinite().all()
    # A large shift costs digits of y, which a small slope makes an error of x.
    rounding = 1e-13 * float((y.abs() / log_slope.exp()).max())
    torch.testing.assert_close(elf_bumps_inverse(y, phi, units), x, atol=1e-8 + rounding, rtol=1e-8)


def test_logarithms_are_clamped(implementation):
    phi = random_phi(2, units=4)
    phi[:, :4] = torch.tensor([1e30, -1e30, 13.0, -13.0])
    phi.requires_grad_()
    y, log_slope = elf_bumps(torch.zeros(2, dtype=torch.float64), phi, 4)
    (y + log_slope).sum().backward()
    assert y.isfinite().all()
    assert (phi.grad[:, :4] == 0).all()
    assert phi.grad.isfinite().all()


@pytest.mark.parametrize("function", [elf_bumps, elf_bumps_inverse])
def test_nan_raises(implementation, function):
    for column in range(bump_size(4)):
        phi = random_phi(3, units=4)
        phi[1, column] = torch.nan
        with pytest.raises(kernels.NonFiniteError, match="phi must be finite, got 1 of 33 values"):
            function(torch.zeros(3, dtype=torch.float64), phi, 4)


@pytest.mark.slow
@pytest.mark.parametrize("function", [elf_bumps, elf_bumps_inverse])
def test_nan_raises_in_compiled_code(function):
    torch._dynamo.reset()
    phi = random_phi(3, units=4)
    phi[1, 2] = torch.nan
    compiled = torch.compile(lambda x, phi: function(x, phi, 4), fullgraph=True, backend="aot_eager", dynamic=False)
    with pytest.raises(kernels.NonFiniteError, match="phi must be finite, got 1 of 33 values"):
        compiled(torch.zeros(3, dtype=torch.float64), phi)


def test_other_activations_take_the_reference():
    phi, x = random_phi(5, units=4), torch.randn(5, dtype=torch.float64)
    y, _ = elf_bumps(x, phi, 4, activation=QELU)
    torch.testing.assert_close(y, elf(x, *bumps(phi, 4), activation=QELU)[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elf_bumps", "elf_bumps_inverse"])
def test_operators_pass_the_checks_of_torch(name):
    phi = random_phi(6, units=4, dtype=torch.float32).requires_grad_()
    x = torch.randn(6, 2, requires_grad=True)
    torch.library.opcheck(getattr(torch.ops.elflow, name).default, (x, phi, 4, 0.99))


def test_strided_rows():
    phi, x = random_phi(6, units=5), torch.randn(6, dtype=torch.float64)
    wide = torch.randn(6, 100, dtype=torch.float64)
    wide[:, 30 : 30 + bump_size(5)] = phi
    torch.testing.assert_close(elf_bumps(x, wide[:, 30 : 30 + bump_size(5)], 5), elf_bumps(x, phi, 5))
    torch.testing.assert_close(elf_bumps(x, phi.T.contiguous().T, 5), elf_bumps(x, phi, 5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bumps(torch.zeros(3, 7), 4), r"phi must have the shape \(..., 11\) for 4 units, got \(3, 7\)"),
        (lambda: elf_bumps(torch.zeros(3), torch.zeros(3, 11).long(), 4), "phi must be a tensor of floats"),
        (lambda: elf_bumps(torch.zeros(3), [1.0], 4), "phi must be a torch.Tensor, got list"),
        (lambda: elf_bumps(torch.zeros(3), torch.zeros(3, 11), 0), "units must be at least 1, got 0"),
        (lambda: elf_bumps(torch.zeros(4), torch.zeros(3, 11), 4), r"got x \(4,\), phi \(3,\)"),
        (lambda: elf_bumps(torch.zeros(3), torch.zeros(3, 11), 4, bound=1.5), r"bound must be in \(0, 1\)"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
