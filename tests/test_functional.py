"""Shapes, broadcasting, non-finite values and errors of the public functions."""

import math

import pytest
import torch

from elflow import activations, functional, kernels, testing, transforms
from elflow.activations import FELU
from elflow.functional import elf, elf_inverse, felu, lipschitz


@pytest.fixture
def network(generator):
    w1, b1, w2 = testing.make_networks("ordinary", 1, 5, torch.float32, generator)
    return w1[0], b1[0], w2[0], torch.tensor(0.3)


def test_felu():
    u = torch.tensor([-math.inf, -3, -1, -0.5, -1e-6, 0, 2, math.inf, math.nan], dtype=torch.float64)
    expected = [-0.5, -0.5, -0.5, -0.375, -1e-6 + 5e-13, 0, 2, math.inf, math.nan]
    torch.testing.assert_close(felu(u), torch.tensor(expected, dtype=torch.float64), equal_nan=True, rtol=1e-14, atol=0)
    torch.testing.assert_close(felu(u), FELU(u), equal_nan=True)
    inner = torch.linspace(-2, 2, 11, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(felu, inner + 0.01)


@pytest.mark.parametrize(
    ("x_shape", "w_shapes", "b2_shape"),
    [
        ((), [(5,), (5,), (5,)], ()),
        ((7,), [(5,), (5,), (5,)], ()),
        ((7,), [(7, 5), (5,), (1, 5)], (7,)),
        ((2, 7), [(7, 5), (7, 5), (7, 5)], (7,)),
        ((2, 1, 7), [(3, 1, 5), (5,), (3, 7, 5)], (3, 1)),
        ((4, 3), [(4, 1, 5), (4, 1, 5), (4, 1, 5)], (4, 1)),
        ((), [(2, 3, 5), (3, 5), (5,)], (2, 1)),
        ((0,), [(5,), (5,), (5,)], ()),
        ((0, 3), [(0, 3, 5), (3, 5), (5,)], (0, 3)),
        ((3, 0), [(3, 1, 5), (5,), (5,)], (3, 1)),
        ((600, 3), [(3, 5), (3, 5), (3, 5)], (3,)),
    ],
)
def test_broadcasting(implementation, x_shape, w_shapes, b2_shape):
    """Any batch shape gives the results of each element alone, and gradients of the shape of the arguments."""
    x = torch.randn(x_shape, dtype=torch.float64, requires_grad=True)
    w1, b1, w2 = (torch.randn(s, dtype=torch.float64, requires_grad=True) for s in w_shapes)
    b2 = torch.randn(b2_shape, dtype=torch.float64, requires_grad=True)
    shape = torch.broadcast_shapes(x_shape, *(s[:-1] for s in w_shapes), b2_shape)
    assert lipschitz(w1, b1, w2).shape == torch.broadcast_shapes(*(s[:-1] for s in w_shapes))
    y, log_slope = elf(x, w1, b1, w2, b2)
    assert y.shape == log_slope.shape == elf_inverse(y, w1, b1, w2, b2).shape == shape
    grads = torch.autograd.grad(y.sum() + log_slope.square().sum(), (x, w1, b1, w2, b2))
    assert [g.shape for g in grads] == [t.shape for t in (x, w1, b1, w2, b2)]

    weights = [w.expand(*shape, 5).reshape(-1, 5).detach().requires_grad_() for w in (w1, b1, w2)]
    xs, shifts = (t.expand(shape).reshape(-1).detach().requires_grad_() for t in (x, b2))
    y_alone, log_slope_alone = elf(xs, *weights, shifts)
    torch.testing.assert_close(y.reshape(-1), y_alone)
    torch.testing.assert_close(log_slope.reshape(-1), log_slope_alone)
    torch.testing.assert_close(elf_inverse(y, w1, b1, w2, b2), x.expand(shape))
    alone = torch.autograd.grad(y_alone.sum() + log_slope_alone.square().sum(), (xs, *weights, shifts))
    for grad, one in zip(grads, alone, strict=True):
        full = one.reshape((*shape, *one.shape[1:]))
        torch.testing.assert_close(grad, full.sum_to_size(grad.shape))


def test_non_contiguous_input(implementation, generator):
    packed = torch.randn(6, 4, 3 * 8 + 1, dtype=torch.float64, generator=generator)
    views = packed.split((8, 8, 8, 1), -1)
    every_other = [torch.stack([v] * 2, -1)[..., 1] for v in views[:3]]
    x = torch.randn(4, 6, dtype=torch.float64, generator=generator).T
    expected = elf(x.contiguous(), *(v.contiguous() for v in views[:3]), views[3].squeeze(-1).contiguous())
    for weights in (views[:3], every_other):
        torch.testing.assert_close(elf(x, *weights, views[3].squeeze(-1)), expected)
        torch.testing.assert_close(elf_inverse(expected[0], *weights, views[3].squeeze(-1)), x)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_points_affect_only_themselves(implementation, value, generator):
    weights = [w.requires_grad_() for w in testing.make_networks("ordinary", 9, 5, torch.float64, generator)]
    x, shift = torch.randn(2, 9, dtype=torch.float64, generator=generator)
    spoilt = x.clone()
    spoilt[4] = value
    others = torch.arange(9) != 4
    y, log_slope = elf(x, *weights, shift)
    y_spoilt, log_slope_spoilt = elf(spoilt, *weights, shift)
    assert torch.equal(y[others], y_spoilt[others])
    assert torch.equal(log_slope[others], log_slope_spoilt[others])
    w1, b1, w2 = (w[4] for w in weights)
    s = min(1, 0.99 / lipschitz(w1, b1, w2).item())
    torch.testing.assert_close(y_spoilt[4], value + s * (w2 * felu(w1 * value + b1)).sum() + shift[4], equal_nan=True)
    assert log_slope_spoilt[4].isnan() if math.isnan(value) else log_slope_spoilt[4].isfinite()
    inverse, inverse_spoilt = elf_inverse(x, *weights, shift), elf_inverse(spoilt, *weights, shift)
    assert torch.equal(inverse[others], inverse_spoilt[others])
    torch.testing.assert_close(inverse_spoilt[4].item(), value, equal_nan=True)
    for function in (lambda x: elf(x, *weights, shift)[0], lambda x: elf_inverse(x, *weights, shift)):
        grads = torch.autograd.grad(function(x).sum(), weights)
        grads_spoilt = torch.autograd.grad(function(spoilt).sum(), weights)
        for grad, grad_spoilt in zip(grads, grads_spoilt, strict=True):
            assert torch.equal(grad[others], grad_spoilt[others])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["w1", "b1", "w2", "b2"])
def test_parameters_must_be_finite(implementation, name, value, generator):
    w1, b1, w2 = testing.make_networks("ordinary", 9, 5, torch.float32, generator)
    arguments = {"w1": w1, "b1": b1, "w2": w2, "b2": torch.zeros(9)}
    arguments[name].view(-1)[3] = value
    message = rf"{name} must be finite, got 1 of \d+ values that are NaN or infinite"
    for function in (lambda: elf(torch.zeros(9), **arguments), lambda: elf_inverse(torch.zeros(9), **arguments)):
        with pytest.raises(kernels.NonFiniteError, match=message):
            function()
    if name != "b2":
        with pytest.raises(kernels.NonFiniteError, match=message):
            lipschitz(w1, b1, w2)


def test_overflowing_products_are_an_error(implementation):
    huge = torch.full((1,), 1e200, dtype=torch.float64)
    message = r"w1 \* w2 must be finite, got 1 of 1 networks whose product exceeds the largest float64"
    with pytest.raises(kernels.NonFiniteError, match=message):
        lipschitz(huge, torch.zeros_like(huge), huge)


def test_large_float32_networks_do_not_overflow(implementation):
    """Products beyond the largest float32 are within float64, and normalised."""
    w1, b1, w2 = torch.tensor([3e30]), torch.tensor([0.0]), torch.tensor([2e30])
    y, log_slope = elf(torch.tensor([1.0, -1.0]), w1, b1, w2, torch.tensor(0.0))
    torch.testing.assert_close(y, torch.tensor([1.99, -1.0]))
    torch.testing.assert_close(log_slope.exp(), torch.tensor([1.99, 1.0]))


WRONG = {
    "x is a list": ({"x": [1.0]}, TypeError, "x must be a torch.Tensor, got list"),
    "integers": ({"w1": torch.ones(5, dtype=torch.long)}, TypeError, "w1 must be a tensor of floats, got torch.int64"),
    "mixed dtypes": (
        {"b1": torch.ones(5, dtype=torch.float64)},
        TypeError,
        "b1 must have the dtype of x, torch.float32",
    ),
    "mixed devices": ({"w2": torch.ones(5, device="meta")}, ValueError, "w2 must be on the device of x, cpu, got meta"),
    "units differ": (
        {"w2": torch.ones(6)},
        ValueError,
        r"w2 must have as many units as w1, 5, got 6 in the shape \(6,\)",
    ),
    "no units": ({"w1": torch.ones(0)}, ValueError, r"w1 must have the shape \(..., units\) with at least one unit"),
    "a scalar weight": ({"b1": torch.ones(())}, ValueError, r"b1 must have the shape \(..., units\)"),
    "batches differ": ({"w1": torch.ones(3, 5), "b1": torch.ones(2, 5)}, ValueError, r"w1 \(3,\), b1 \(2,\)"),
    "points differ": ({"x": torch.ones(4), "w1": torch.ones(3, 5)}, ValueError, r"x \(4,\), w1 \(3,\), b1 \(\), w2"),
    "bound is 1": ({"bound": 1}, ValueError, r"bound must be in \(0, 1\), got 1"),
    "bound is 0": ({"bound": 0.0}, ValueError, r"bound must be in \(0, 1\), got 0.0"),
    "bound is NaN": ({"bound": math.nan}, ValueError, r"bound must be in \(0, 1\), got nan"),
    "bound is text": ({"bound": "0.9"}, TypeError, r"bound must be a number in \(0, 1\), got str"),
    "bound is true": ({"bound": True}, TypeError, r"bound must be a number in \(0, 1\), got bool"),
    "activation": (
        {"activation": torch.relu},
        TypeError,
        "activation must be an elflow.activations.PiecewiseQuadratic",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_argument(implementation, network, case):
    changed, error, message = WRONG[case]
    arguments = dict(zip(("w1", "b1", "w2", "b2"), network, strict=True), x=torch.zeros(1)) | changed
    with pytest.raises(error, match=message):
        elf(**arguments)
    arguments["y"] = arguments.pop("x")
    with pytest.raises(error, match=message.replace("x ", "y ").replace("of x", "of y")):
        elf_inverse(**arguments)


def test_backend_is_chosen_and_restored(network):
    with (
        pytest.raises(
            ValueError, match=r"backend must be one of .*'auto', 'native', 'triton', 'reference'.*got 'cuda'"
        ),
        kernels.backend("cuda"),
    ):
        pass
    with kernels.backend("reference"):
        assert kernels.select(torch.float32, torch.device("cpu"), FELU).name == "reference"
    assert kernels.select(torch.float32, torch.device("cpu"), FELU).name == "native"
    assert list(kernels.available()) == ["native", "triton", "reference"]
    assert kernels.available()["native"] is kernels.available()["reference"] is None


def test_meta_tensors_go_through_the_reference_only():
    """The native kernel never receives tensors of devices other than CPUs."""
    assert kernels.select(torch.float32, torch.device("meta"), FELU).name == "reference"
    assert lipschitz(*torch.ones(3, 5, device="meta")).shape == ()
    with kernels.backend("native"), pytest.raises(ValueError, match="it runs on CPUs, not on meta"):
        lipschitz(*torch.ones(3, 5, device="meta"))


PUBLIC = [
    (module, name)
    for module in (activations, functional, kernels, kernels.contract, testing, transforms, transforms.autoregressive)
    for name in module.__all__
    if callable(getattr(module, name)) and not isinstance(getattr(module, name), activations.PiecewiseQuadratic)
]


@pytest.mark.parametrize(("module", "name"), PUBLIC, ids=lambda value: getattr(value, "__name__", value))
def test_public_names_have_an_example(module, name):
    """The examples themselves run as doctests."""
    without = {"ConvergenceWarning", "Maps", "OnSettled", "RowMaps", "invert_part", "warn_not_converged"}
    assert name in without or ">>>" in (getattr(module, name).__doc__ or "")
