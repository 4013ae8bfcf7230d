"""The contract of a backend for the Triton kernels: on a GPU, or on small shapes in Triton's interpreter."""

import math
import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch

from elflow import functional, kernels, testing
from elflow.activations import FELU, QELU, RELU, PiecewiseQuadratic
from elflow.kernels import triton

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}
INVERSE_TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def make_hostile_networks(count, units, dtype, generator):
    """Networks of all kinds in one batch, which the interpreter computes in the time of the slowest one."""
    parts = [testing.make_networks(kind, count, units, dtype, generator) for kind in testing.NETWORK_KINDS]
    return [torch.cat(w) for w in zip(*parts, strict=True)]


def find_worst_kind(errors, count):
    """The largest error and the kind of network that has it."""
    error, at = errors.nan_to_num(nan=math.inf).max(0)
    return error.item(), list(testing.NETWORK_KINDS)[int(at) // count]


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("units", [1, 2, 7, 20])
def test_lipschitz_is_exact(triton_device, units, dtype, generator):
    weights = make_hostile_networks(60, units, dtype, generator)
    found = functional.lipschitz(*(w.to(triton_device) for w in weights)).cpu()
    errors = testing.lipschitz_error(found, *weights)
    assert errors.max() <= TOLERANCE[dtype], find_worst_kind(errors, 60)
    assert testing.excess_slope(found, *weights, generator).max() <= TOLERANCE[dtype]


@pytest.mark.slow
@dtypes
def test_lipschitz_of_many_units(triton_device, dtype, generator):
    """Several columns per thread, a number of units that is no power of two, and tied maxima."""
    for units in (33, 300):
        weights = testing.make_networks("ordinary", 3, units, dtype, generator)
        found = functional.lipschitz(*(w.to(triton_device) for w in weights)).cpu()
        assert testing.lipschitz_error(found, *weights).max() <= TOLERANCE[dtype]


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("bound", [0.5, 0.9999])
def test_inverse_is_exact(triton_device, bound, dtype, generator):
    weights = make_hostile_networks(40, 5, dtype, generator)
    n = len(weights[0])
    shift, y = torch.randn(2, n, dtype=dtype, generator=generator)
    y = y * 10.0 ** torch.randint(-2, 13, (n,), generator=generator)
    errors = testing.inverse_error(*(t.to(triton_device, dtype) for t in (y, *weights, shift)), bound).cpu()
    assert (errors <= INVERSE_TOLERANCE[dtype]).all(), find_worst_kind(errors, 40)


@dtypes
def test_steep_units_that_share_breakpoints(triton_device, dtype):
    """A rounding error of such a breakpoint would move its units by far more than the width of their ramps."""
    rng = np.random.default_rng(0)
    times = rng.choice([1, 2, 4], (8, 6)) * rng.choice([-1, 1], (8, 6))
    scale = np.repeat([1.0, 1e6, 1e12, 1e20], 2)[:, None]
    w1 = torch.tensor(times * np.float32(3 * scale), dtype=dtype)
    b1 = torch.tensor(times * np.float32(scale), dtype=dtype)
    w2 = torch.tensor(rng.normal(size=(8, 6)), dtype=dtype) / w1
    found = functional.lipschitz(*(t.to(triton_device) for t in (w1, b1, w2))).tolist()
    for value, *weights in zip(found, w1, b1, w2, strict=True):
        truth, size = _exact_lipschitz(*weights)
        assert abs(Fraction(value) - truth) <= TOLERANCE[dtype] * max(truth, size / 1000)


def _exact_lipschitz(w1, b1, w2):
    """The Lipschitz constant and the sum of |w1 w2| in rational numbers, without rounding."""
    units = [tuple(Fraction(float(v)) for v in unit) for unit in zip(w1, b1, w2, strict=True)]
    ends = [sum((w * v for w, _, v in units if w * side > 0), Fraction()) for side in (1, -1)]
    places = [-(off + b) / w for w, b, _ in units if w for off in (0, 1)]
    slopes = [sum(w * v * min(max(w * x + b + 1, Fraction()), Fraction(1)) for w, b, v in units) for x in places]
    return max(abs(slope) for slope in ends + slopes), sum(abs(w * v) for w, _, v in units)


@pytest.mark.parametrize(
    ("w1", "b1", "w2", "constant"),
    [
        ([1e160, -1e160], [0.0, 0.0], [1.0, 1.0], 1e160),
        ([1e150, 1e150], [0.0, 0.0], [1e150, -0.5e150], 5e299),
        ([1e-170, 1e-170], [0.0, -5.0], [1.0, -0.9], 1e-170),
        ([1e-310], [0.5], [1.0], 1e-310),
    ],
)
def test_slopes_near_the_ends_of_float64(triton_device, w1, b1, w2, constant):
    weights = [torch.tensor(w, dtype=torch.float64, device=triton_device, requires_grad=True) for w in (w1, b1, w2)]
    found = functional.lipschitz(*weights)
    assert found.item() == pytest.approx(constant, rel=1e-12, abs=0)
    assert all(g.isfinite().all() for g in torch.autograd.grad(found, weights))


def test_large_float32_networks_do_not_overflow(triton_device):
    """Products beyond the largest float32 are within float64, and normalised."""
    w1, b1, w2 = (torch.tensor([v], device=triton_device, requires_grad=True) for v in (3e30, 0.0, 2e30))
    zero = torch.tensor(0.0, device=triton_device)
    y, log_slope = functional.elf(torch.tensor([1.0, -1.0], device=triton_device), w1, b1, w2, zero)
    torch.testing.assert_close(y.cpu(), torch.tensor([1.99, -1.0]))
    torch.testing.assert_close(log_slope.exp().cpu(), torch.tensor([1.99, 1.0]))
    assert all(g.isfinite().all() for g in torch.autograd.grad(y.sum(), (w1, b1, w2)))


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize("steepness", [1e3, 1e20])
def test_inverse_on_a_narrow_ramp(triton_device, steepness, dtype):
    """The solution lies where the map turns from almost flat to steep within one rounding error of x."""
    numbers = [1.0, steepness], [0.1, -0.9999], [-1.0, 2 / steepness], [-1e-11, 0.0, 1e-11, 0.3]
    w1, b1, w2, y = (torch.tensor(n, dtype=dtype, device=triton_device) for n in numbers)
    error = testing.inverse_error(y, w1, b1, w2, torch.zeros((), dtype=dtype, device=triton_device), 0.9999)
    assert (error <= INVERSE_TOLERANCE[dtype]).all()


# --- values and gradients against the reference -----------------------------------------------------------------------

SHOULDER = PiecewiseQuadratic(
    (-2, -1, 0.5), ((0.125, -0.25, 0), (0.625, 0.25, 0.125), (0.5, 0, 0), (0.5, 0, 0)), name="shoulder"
)
"""A smooth activation with a slope to the left, a flat right end and a value at its lowest point."""


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize(("activation", "points"), [(FELU, 1), (QELU, 1), (SHOULDER, 2)], ids=str)
def test_agrees_with_the_reference(triton_device, activation, points, dtype, generator):
    """All functions and their gradients."""
    kinds = ("ordinary", "wide", "steep", "one-sided", "cancelling")
    parts = [testing.make_networks(kind, 4, 4, dtype, generator) for kind in kinds]
    weights = [torch.cat(w) for w in zip(*parts, strict=True)]
    shift = torch.randn(20, dtype=dtype, generator=generator)
    x = torch.randn(20, points, dtype=dtype, generator=generator)
    narrow = [t.to(triton_device).requires_grad_() for t in (x, *weights, shift)]
    wide = [t.double().requires_grad_() for t in (x, *weights, shift)]
    found = _values_and_gradients(narrow, activation)
    with kernels.backend("reference"):
        expected = _values_and_gradients(wide, activation)
    size = torch.stack([e.abs().reshape(20, -1).amax(-1) for e in expected]).amax(0) + 1
    for a, b in zip(found, expected, strict=True):
        error = (a.cpu().double() - b).abs().reshape(20, -1).amax(-1)
        assert (error <= {torch.float32: 1e-4, torch.float64: 1e-9}[dtype] * size).all()


@pytest.mark.slow
def test_gradients_of_shared_networks(triton_device, generator):
    """The points of a network are split among three programs, whose sums are added."""
    weights = testing.make_networks("ordinary", 2, 3, torch.float64, generator)
    leaves = [w[:, None].to(triton_device).requires_grad_() for w in weights]
    x = torch.randn(2, 33, dtype=torch.float64, generator=generator).to(triton_device)
    zero = torch.zeros((), dtype=torch.float64, device=triton_device)
    found = torch.autograd.grad(functional.elf(x, *leaves, zero), leaves, (x, 2 * x))
    with kernels.backend("reference"):
        expected = torch.autograd.grad(functional.elf(x, *leaves, zero), leaves, (x, 2 * x))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def _values_and_gradients(leaves, activation):
    x, *weights, shift = leaves
    shared = [w[:, None] for w in weights]
    y, log_slope = functional.elf(x, *shared, shift[:, None], activation=activation)
    back = functional.elf_inverse(x, *shared, shift[:, None], activation=activation)
    constants = functional.lipschitz(*weights, activation)
    # Gradients with respect to the logarithm of a weight, so that large and small ones count alike.
    grads = []
    for outputs, given in (((y, log_slope), (x, 2 * x)), ((back,), (x,)), ((constants,), (1 + constants.detach(),))):
        used = weights if outputs[0] is constants else leaves
        grads += [g * t.detach().abs() for g, t in zip(torch.autograd.grad(outputs, used, given), used, strict=True)]
    return [t.detach() for t in (y, log_slope, back, *grads)]


@pytest.mark.slow
@dtypes
@pytest.mark.parametrize(("units", "points"), [(1, 1), (4, 2), (5, 1)])
def test_bumps_agree_with_the_reference(triton_device, units, points, dtype, generator):
    phi = torch.randn(12, functional.bump_size(units), dtype=dtype, generator=generator)
    if dtype == torch.float64:  # logarithms are clamped; in float32 such steep units round x
        phi[0, :units] = torch.tensor([1e30, -1e30, 13.0, -13.0, 0.0])[:units]
    x = torch.randn(12, points, dtype=dtype, generator=generator)
    narrow = [t.to(triton_device).requires_grad_() for t in (x, phi)]
    wide = [t.double().requires_grad_() for t in (x, phi)]
    found = _bumps_and_gradients(*narrow, units)
    with kernels.backend("reference"):
        expected = _bumps_and_gradients(*wide, units)
    for a, b in zip(found, expected, strict=True):
        tolerance = {torch.float32: 1e-4, torch.float64: 1e-9}[dtype]
        torch.testing.assert_close(a.cpu().double(), b, atol=tolerance * (1 + b.abs().max().item()), rtol=0)


def _bumps_and_gradients(x, phi, units):
    y, log_slope = functional.elf_bumps(x, phi[:, None], units, bound=0.9)
    back = functional.elf_bumps_inverse(x, phi[:, None], units, bound=0.9)
    grads = torch.autograd.grad((y, log_slope), (x, phi), (x, 2 * x))
    return [*(t.detach() for t in (y, log_slope, back)), *grads, *torch.autograd.grad(back, (x, phi), x)]


# --- the rest of the contract -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_non_finite_points_affect_only_themselves(triton_device, generator):
    weights = [w.to(triton_device) for w in testing.make_networks("ordinary", 9, 5, torch.float64, generator)]
    x, shift = torch.randn(2, 9, dtype=torch.float64, generator=generator).to(triton_device)
    spoilt = x.clone()
    spoilt[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    y, log_slope = functional.elf(spoilt, *weights, shift)
    inverse = functional.elf_inverse(spoilt, *weights, shift)
    for a, b in zip((y, log_slope), functional.elf(x, *weights, shift), strict=True):
        assert torch.equal(a[3:], b[3:])
    assert torch.equal(inverse[3:], functional.elf_inverse(x, *weights, shift)[3:])
    with kernels.backend("reference"):
        expected, expected_slope = functional.elf(spoilt, *weights, shift)
    torch.testing.assert_close(y, expected, equal_nan=True)
    torch.testing.assert_close(log_slope, expected_slope, equal_nan=True)
    torch.testing.assert_close(inverse[:3], spoilt[:3], equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["w1", "b1", "w2", "b2"])
def test_parameters_must_be_finite(triton_device, name, generator):
    weights = testing.make_networks("ordinary", 9, 5, torch.float32, generator)
    arguments = dict(zip(("w1", "b1", "w2", "b2"), (*weights, torch.zeros(9)), strict=True))
    arguments = {n: t.to(triton_device) for n, t in arguments.items()}
    arguments[name].view(-1)[3] = math.nan if name in ("w1", "b2") else math.inf
    message = rf"{name} must be finite, got 1 of \d+ values that are NaN or infinite"
    for function in (functional.elf, functional.elf_inverse):
        with pytest.raises(kernels.NonFiniteError, match=message):
            function(torch.zeros(9, device=triton_device), **arguments)
    if name != "b2":
        with pytest.raises(kernels.NonFiniteError, match=message):
            functional.lipschitz(arguments["w1"], arguments["b1"], arguments["w2"])


@pytest.mark.slow
@pytest.mark.parametrize("function", [functional.elf_bumps, functional.elf_bumps_inverse])
def test_phi_must_be_finite(triton_device, function, generator):
    for column in (0, 8, 14):  # log k, log w, b2
        phi = torch.randn(3, functional.bump_size(5), generator=generator).to(triton_device)
        phi[1, column] = math.nan
        with pytest.raises(kernels.NonFiniteError, match="phi must be finite, got 1 of"):
            function(torch.zeros(3, device=triton_device), phi, 5)


def test_overflow_is_an_error(triton_device):
    huge = torch.full((1,), 1e200, dtype=torch.float64, device=triton_device)
    with pytest.raises(kernels.NonFiniteError, match=r"1 of 1 networks whose product exceeds the largest float64"):
        functional.lipschitz(huge, torch.zeros_like(huge), huge)


@pytest.mark.slow
def test_any_strides_and_shapes(triton_device, generator):
    packed = torch.randn(6, 4, 25, dtype=torch.float64, generator=generator).to(triton_device)
    views = packed.split((8, 8, 8, 1), -1)
    x = torch.randn(4, 6, dtype=torch.float64, generator=generator).to(triton_device).T
    expected = functional.elf(x.contiguous(), *(v.contiguous() for v in views[:3]), views[3].squeeze(-1).contiguous())
    every_other = [torch.stack([v] * 2, -1)[..., 1] for v in views[:3]]
    for weights in (views[:3], every_other):
        torch.testing.assert_close(functional.elf(x, *weights, views[3].squeeze(-1)), expected)
    empty = [t[:0] for t in (*views[:3], views[3].squeeze(-1))]
    assert functional.elf(x[:0], *empty)[0].shape == (0, 4)
    assert functional.elf_inverse(x[:, :0, None], *(w[:, :0, None] for w in views[:3]), views[3][:, :0]).shape == (
        6,
        0,
        1,
    )


def test_second_derivatives_are_refused(triton_device, generator):
    weights = testing.make_networks("ordinary", 2, 3, torch.float64, generator)
    leaves = [w.to(triton_device).requires_grad_() for w in weights]
    (grad, *_) = torch.autograd.grad(functional.lipschitz(*leaves).square().sum(), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(grad.sum(), leaves)


def test_more_units_than_registers_take_the_reference(triton_device, monkeypatch, generator):
    monkeypatch.setattr(triton, "MAX_UNITS", 4)
    weights = [w.to(triton_device) for w in testing.make_networks("ordinary", 3, 5, torch.float64, generator)]
    found = functional.lipschitz(*weights)
    with kernels.backend("reference"):
        assert torch.equal(found, functional.lipschitz(*weights))


@pytest.mark.parametrize(
    ("dtype", "activation", "message"),
    [
        (torch.bfloat16, FELU, "float32 and float64, not torch.bfloat16"),
        (torch.float32, RELU, "smooth activations with up to 8 breakpoints, not RELU"),
        (torch.float32, PiecewiseQuadratic((0.1, 0.2), ((0, 0, 0), (0, 0, 0), (0, 0, 0)), "third"), "multiples of 2"),
    ],
)
def test_unsupported_input(triton_device, dtype, activation, message, generator):
    weights = [w.to(triton_device, dtype) for w in testing.make_networks("ordinary", 2, 3, torch.float32, generator)]
    with pytest.raises(ValueError, match=message):
        functional.lipschitz(*weights, activation)


# --- within torch -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_operators_pass_the_checks_of_torch(triton_device, generator):
    """With gradients for the fused operators of flows; schemas and empty results for all."""
    operators = triton.get_operators()
    weights = testing.make_networks("ordinary", 3, 3, torch.float32, generator)
    x, shift = torch.randn(3, 1, generator=generator), torch.randn(3, generator=generator)
    phi = torch.randn(3, functional.bump_size(3), generator=generator)
    x, w1, b1, w2, shift, phi = (t.to(triton_device).requires_grad_() for t in (x, *weights, shift, phi))
    torch.library.opcheck(operators.elf_bumps.default, (x, phi, 3, 0.9))
    for operator, arguments in (
        (operators.lipschitz.default, (w1, b1, w2)),
        (operators.elf.default, (x, w1, b1, w2, shift, 0.9)),
        (operators.elf_inverse.default, (x, w1, b1, w2, shift, 0.9)),
        (operators.elf_bumps_inverse.default, (x, phi, 3, 0.9)),
    ):
        tests = "test_schema", "test_autograd_registration", "test_faketensor"
        torch.library.opcheck(operator, arguments, test_utils=tests)


@pytest.mark.slow
def test_compiles_into_one_graph_and_exports(triton_device, generator):
    weights = testing.make_networks("ordinary", 4, 3, torch.float32, generator)
    x, shift = torch.randn(2, 4, generator=generator)
    leaves = [t.to(triton_device).requires_grad_() for t in (x, *weights, shift)]

    def loss(x, w1, b1, w2, b2):
        y, log_slope = functional.elf(x * 1.5, w1, b1, w2, b2, activation=QELU)
        return (functional.elf_inverse(y + 0.1, w1, b1, w2, b2).sin() - log_slope).sum()

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager", dynamic=False)
    expected, found = loss(*leaves), compiled(*leaves)
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(a, b)

    class Layer(torch.nn.Module):
        def forward(self, *arguments):
            return loss(*arguments)

    plain = tuple(t.detach() for t in leaves)
    exported = torch.export.export(Layer(), plain, strict=True)
    names = {str(node.target).split(".", 1)[1] for node in exported.graph.nodes if "elflow" in str(node.target)}
    assert names == {"elf.default", "elf_inverse.default"}
    torch.testing.assert_close(exported.module()(*plain), expected)


def test_results_on_the_meta_device_have_the_shapes_of_a_gpu():
    """Tracing for a GPU needs none: the weights of bumps are not stored there."""
    x, phi = torch.empty(7, 2, device="meta"), torch.empty(7, functional.bump_size(5), device="meta")
    y, log_slope, constants, places, weights = torch.ops.elflow.elf_bumps(x, phi, 5, 0.9)
    assert y.shape == log_slope.shape == (7, 2)
    assert constants.shape == places.shape == (7,)
    assert constants.dtype == torch.float64
    assert weights.shape == (3, 0, 5)


def test_the_interpreter_is_chosen_only_by_name():
    assert kernels.select(torch.float32, torch.device("cpu"), FELU).name == "native"
    assert kernels.select(torch.float32, torch.device("cpu"), QELU).name == "reference"


@pytest.mark.slow
def test_reasons_without_the_interpreter():
    """A build of torch for CPUs does not import Triton, unless the interpreter is asked for."""
    code = (
        "import sys, torch, elflow; torch.version.cuda = torch.version.hip = None; "
        "print(elflow.kernels.available()['triton'], 'triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    reason = "this build of torch is for CPUs only; set TRITON_INTERPRET=1 to use Triton's interpreter"
    assert done.stdout.strip() == f"{reason} False"


@pytest.mark.slow
def test_kernels_compile():
    """The interpreter accepts code that the compiler does not, such as branches with different types."""
    code = (
        "import torch; from elflow.kernels import ahead; "
        "[ahead.compile_kernel(name, 4, dtype, target) for dtype in (torch.float32, torch.float64) for name, target in "
        "(('elf_bumps_inverse', 'sm_80'), ('elf_backward', 'gfx942'))]"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
