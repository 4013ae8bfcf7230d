"""Contract tests over every flow of elflow; then the density, orders, inverse and errors of ELF."""

import copy
import math
import pickle
import warnings
from collections.abc import Callable

import pytest
import safetensors.torch
import torch
import zuko
from torch import Tensor, nn

import elflow
from elflow.activations import FELU, QELU, RELU, PiecewiseQuadratic
from elflow.flows.dequantization import Cells, Dequantized
from elflow.flows.elf import MaskedELFTransform
from elflow.flows.layered import LayeredFlow, LazyStack
from elflow.flows.mixture import GaussianMixture
from elflow.flows.multiscale import MultiscaleELF
from elflow.flows.strata import BoxGaussian, StratifiedMixture
from elflow.flows.whitening import Gaussian, Whitened
from elflow.nn import ActNorm, DataInitialized
from elflow.transforms import ConvergenceWarning, invert

LEAKY = PiecewiseQuadratic((0.0,), ((0, 0.1, 0), (0, 1, 0)), name="leaky")
SMALL = {"units": 6, "hidden_features": (16, 16), "transforms": 2}
SMALL_IMAGES = {"units": 6, "channels": 12, "blocks": 1, "transforms": 2}

# Flows over real vectors. A new flow costs one line here.
FLOWS: dict[str, Callable[[], nn.Module]] = {
    "one feature": lambda: elflow.ELF(1, **SMALL),
    "one feature, context": lambda: elflow.ELF(1, 2, **SMALL),
    "two features": lambda: elflow.ELF(2, **SMALL),
    "five features": lambda: elflow.ELF(5, **SMALL),
    "context": lambda: elflow.ELF(3, 2, **SMALL),
    "shared order": lambda: elflow.ELF(3, 2, order="shared", **SMALL),
    "given order": lambda: elflow.ELF(4, order=(2, 0, 3, 1), **SMALL),
    "given orders": lambda: elflow.ELF(3, order=[(2, 0, 1), (0, 1, 2)], **SMALL),
    "rank": lambda: elflow.ELF(5, 2, rank=4, **SMALL),
    "no scale": lambda: elflow.ELF(3, 2, scale=False, **SMALL),
    "no scale, shared order": lambda: elflow.ELF(4, order="shared", scale=False, rank=4, **SMALL),
    "weights": lambda: elflow.ELF(3, 2, parametrization="weights", rank=4, **SMALL),
    "weights, one feature": lambda: elflow.ELF(1, parametrization="weights", **SMALL),
    "weights, two features": lambda: elflow.ELF(2, parametrization="weights", bound=0.6, **SMALL),
    "weights, shared order": lambda: elflow.ELF(4, order="shared", parametrization="weights", bound=0.5, **SMALL),
    "weights, ReLU": lambda: elflow.ELF(3, parametrization="weights", activation=RELU, **SMALL),
    "one transform, one unit": lambda: elflow.ELF(3, transforms=1, units=1, hidden_features=(8,)),
    "no hidden layer": lambda: elflow.ELF(3, transforms=2, units=4, hidden_features=(), scale=False),
    "tight bound": lambda: elflow.ELF(3, 1, bound=0.3, **SMALL),
    "ReLU": lambda: elflow.ELF(3, activation=RELU, **SMALL),
    "QELU": lambda: elflow.ELF(2, 1, activation=QELU, **SMALL),
    "custom activation": lambda: elflow.ELF(2, activation=LEAKY, **SMALL),
    "multiscale": lambda: MultiscaleELF((1, 4, 4), scales=3, **SMALL_IMAGES),
    "multiscale, channels": lambda: MultiscaleELF((2, 4, 4), scales=2, **SMALL_IMAGES),
    "multiscale, context": lambda: MultiscaleELF((3, 2, 4), 2, scales=1, **SMALL_IMAGES),
    "multiscale, context image": lambda: MultiscaleELF((1, 2, 3), 2, scales=1, image=True, **SMALL_IMAGES),
    "multiscale, weights": lambda: MultiscaleELF(
        (2, 4, 4), scales=2, parametrization="weights", bound=0.9, **SMALL_IMAGES
    ),
    "multiscale, weights, context image": lambda: MultiscaleELF(
        (1, 3, 3), 2, scales=1, image=True, parametrization="weights", **SMALL_IMAGES
    ),
    "whitened": lambda: Whitened(elflow.ELF(3, **SMALL), 3, order=(2, 0, 1)),
    "whitened, context": lambda: Whitened(elflow.ELF(4, 2, **SMALL), 4, context=2),
    "whitened, identity": lambda: Whitened(elflow.ELF(3, **SMALL), 3, start="identity"),
}
# Flows over three features without trainable parameters or context, which `initialize` sets.
FIXED_FLOWS: dict[str, Callable[[], nn.Module]] = {
    "gaussian": lambda: Gaussian(3),
    "gaussian in a box": lambda: BoxGaussian(3),
    "gaussian mixture": lambda: GaussianMixture(3, components=2),
    "gaussians by category": lambda: StratifiedMixture(3, {0: [-0.5, 1.0]}, components=4),
}
LAYERED = [name for name, build in FLOWS.items() if isinstance(build(), LayeredFlow)]
ELFS = [name for name, build in FLOWS.items() if isinstance(build(), elflow.ELF)]
# Activations other than FELU are compiled operation by operation, which takes long.
SLOW_TO_COMPILE = [name for name in ELFS if FLOWS[name]().config["activation"] != FELU.to_dict()]
COMPILED = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW_TO_COMPILE else name for name in ELFS]


def make_cells(n: int) -> Cells:
    """Rows of one exact number and two cells, some of which are known numbers."""
    low, width = torch.rand(n, 2).double() / 2, torch.rand(n, 2).double() / 2
    width[::3, 0] = 0
    return Cells(torch.randn(n, 1), low, width, torch.zeros(n))


def make_images(n: int) -> Tensor:
    return torch.randint(4, (n, 1, 4, 4))


def make_image_flow(**options) -> elflow.ImageELF:
    return elflow.ImageELF((1, 4, 4), levels=4, scales=2, **SMALL_IMAGES, **options)


# Flows over discrete data: how to build them, n rows of their data, and the context of n rows.
DISCRETE_FLOWS = {
    "dequantized": (lambda: Dequantized(elflow.ELF(3, **SMALL), [1], [0, 2]), make_cells, lambda n: None),
    "dequantized, variational": (
        lambda: Dequantized(elflow.ELF(3, 2, **SMALL), [0], [1, 2], variational=True, context=2),
        make_cells,
        lambda n: torch.randn(n, 2),
    ),
    "images": (make_image_flow, make_images, lambda n: None),
    "images, warp, context": (
        lambda: make_image_flow(warp="histogram", context=2),
        make_images,
        lambda n: torch.randn(n, 2),
    ),
    "images, weights, variational": (
        lambda: make_image_flow(parametrization="weights", dequantization="variational", noise_sizes={"channels": 8}),
        make_images,
        lambda n: None,
    ),
    "images, variational, classes": (
        lambda: make_image_flow(dequantization="variational", classes=3),
        make_images,
        lambda n: torch.arange(n) % 3,
    ),
}


def perturb(module: nn.Module, scale: float) -> nn.Module:
    """Move all parameters away from their initial values."""
    with torch.no_grad():
        for p in module.parameters():
            p.add_(scale * torch.randn_like(p))
    return module


def build_flow(name: str) -> nn.Module:
    """A flow in float64 and evaluation mode, with parameters away from their initial values."""
    flow = FLOWS[name]().double()
    if isinstance(flow, Whitened):
        features, context = get_sizes(flow)
        x = torch.randn(100, features, dtype=torch.float64) @ torch.randn(features, features, dtype=torch.float64)
        flow.whitening.initialize(x, torch.randn(100, context, dtype=torch.float64) if context else None)
    return perturb(flow, 0.3 if name in ELFS else 0.1).eval()


def build_traced(name: str) -> elflow.ELF:
    """Such a flow with one transform only, if the compiler would trace the operations of each for seconds."""
    if name not in SLOW_TO_COMPILE:
        return build_flow(name)
    config = FLOWS[name]().config | {"transforms": 1, "order": "alternating"}
    return perturb(elflow.ELF.from_config(config).double(), 0.3).eval()


@pytest.fixture(params=FLOWS)
def flow(request: pytest.FixtureRequest) -> nn.Module:
    return build_flow(request.param)


@pytest.fixture(params=LAYERED)
def layered(request: pytest.FixtureRequest) -> LayeredFlow:
    """One of the flows with a method `inverse`."""
    return build_flow(request.param)


@pytest.fixture(params=ELFS)
def elf(request: pytest.FixtureRequest) -> elflow.ELF:
    return build_flow(request.param)


def get_sizes(flow: nn.Module) -> tuple[int, int]:
    """The numbers of features and of context features."""
    inner = flow.flow if isinstance(flow, Whitened) else flow
    return inner.features, inner.context


def draw_data(flow: nn.Module, *batch: int) -> tuple[Tensor, Tensor | None]:
    dtype = next(flow.parameters()).dtype
    features, context = get_sizes(flow)
    c = torch.randn(*batch, context, dtype=dtype) if context else None
    return torch.randn(*batch, features, dtype=dtype), c


def make_transform(flow: nn.Module, c: Tensor | None) -> zuko.transforms.ComposedTransform:
    """The whole way from data to latent space, also of a flow whose base is another flow."""
    distribution, transforms = flow(c), []
    while isinstance(distribution, zuko.distributions.NormalizingFlow):
        transforms.append(distribution.transform)
        distribution = distribution.base
    return zuko.transforms.ComposedTransform(*transforms)


# The contract of every flow over vectors


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (0,)])
@pytest.mark.parametrize("shape", [(), (5,), (3, 2)])
def test_shapes(flow, batch, shape):
    _, c = draw_data(flow, *batch)
    features, context = get_sizes(flow)
    dist = flow(c)
    assert isinstance(dist, torch.distributions.Distribution)
    batch = batch if context else ()
    assert dist.event_shape == (features,)
    assert dist.batch_shape == batch
    x = dist.sample(shape)
    assert x.shape == (*shape, *batch, features)
    assert not x.requires_grad
    assert dist.log_prob(x).shape == (*shape, *batch)
    x, log_p = dist.rsample_and_log_prob(shape)
    assert x.shape == (*shape, *batch, features)
    torch.testing.assert_close(log_p, dist.log_prob(x))


def test_the_context_of_a_row_is_its_own(flow):
    x, c = draw_data(flow, 7)
    together = flow(c).log_prob(x)
    rows = [flow(None if c is None else c[i]).log_prob(x[i]) for i in range(7)]
    torch.testing.assert_close(together, torch.stack(rows))


def test_gradients_reach_every_parameter(flow):
    x, c = draw_data(flow, 64)
    (-flow(c).log_prob(x).mean()).backward()
    check_gradients(flow)


def check_gradients(flow):
    for name, p in flow.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.any(), name


@pytest.mark.slow
def test_log_determinant_is_autograds(flow):
    x, c = draw_data(flow)
    with elflow.kernels.backend("reference"):
        t = make_transform(flow, c)
        jacobian = torch.autograd.functional.jacobian(t, x)
        _, ladj = t.call_and_ladj(x)
    torch.testing.assert_close(ladj, torch.linalg.slogdet(jacobian).logabsdet, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(t.log_abs_det_jacobian(x, t(x)), ladj)


@pytest.mark.slow
def test_inverse_both_ways(flow):
    x, c = draw_data(flow, 100)
    t = make_transform(flow, c)
    torch.testing.assert_close(t.inv(t(x)), x, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(t(t.inv(x)), x, atol=1e-8, rtol=1e-8)


def test_autocast(flow):
    flow = flow.float()
    x, c = draw_data(flow, 5)
    with torch.autocast("cpu", torch.bfloat16):
        assert flow(c).log_prob(x).dtype == torch.float32


def test_state_dict_restores_the_density(flow, request, tmp_path):
    x, c = draw_data(flow, 10)
    safetensors.torch.save_file(flow.state_dict(), tmp_path / "state")
    fresh = FLOWS[request.node.callspec.params["flow"]]().double().eval()
    assert (fresh(c).log_prob(x) != flow(c).log_prob(x)).any()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "state"))
    assert torch.equal(fresh(c).log_prob(x), flow(c).log_prob(x))


@pytest.mark.slow
def test_copies(flow):
    x, c = draw_data(flow, 10)
    for other in (copy.deepcopy(flow), copy.copy(flow), pickle.loads(pickle.dumps(flow))):
        torch.testing.assert_close(other(c).log_prob(x), flow(c).log_prob(x), atol=1e-9, rtol=1e-9)
    other = copy.deepcopy(flow)
    with torch.no_grad():
        next(other.parameters()).add_(1)
    assert (other(c).log_prob(x) != flow(c).log_prob(x)).any()


def test_double_and_back(flow):
    x, c = draw_data(flow, 10)
    exact = flow(c).log_prob(x)
    single = flow.float()(None if c is None else c.float()).log_prob(x.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), exact, atol=1e-3, rtol=1e-3)


def test_repr_names_every_part(flow):
    check_repr(flow)


def check_repr(flow):
    shown = repr(flow)
    for part in flow.modules():
        if type(part).__module__.startswith("elflow") and not isinstance(part, LazyStack):  # zuko hides compositions
            assert type(part).__name__ in shown
    assert "units=" in shown
    assert "bound=" in shown


# The contract of flows without trainable parameters


@pytest.fixture(params=FIXED_FLOWS)
def fixed(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    x = torch.randn(400, 3, dtype=torch.float64)
    x[x[:, 0] > 1, 1:] += 4
    flow = FIXED_FLOWS[request.param]().double()
    flow.initialize(x)
    if isinstance(flow, BoxGaussian):
        flow.set_box({0: (-0.5, 1.0), 2: (0.0, math.inf)}, x.mean(0), x.T.cov())
    return flow.eval()


@pytest.mark.parametrize("shape", [(), (5,), (3, 2), (0,)])
def test_fixed_shapes(fixed, shape):
    dist = fixed()
    assert (dist.batch_shape, dist.event_shape) == ((), (3,))
    x = dist.sample(shape)
    assert x.shape == (*shape, 3)
    assert dist.log_prob(x).shape == shape
    assert dist.log_prob(x).isfinite().all()
    rows = [dist.log_prob(row) for row in x.reshape(-1, 3)]
    torch.testing.assert_close(dist.log_prob(x).flatten(), torch.tensor(rows, dtype=torch.float64))


@pytest.mark.parametrize("fixed", ["gaussian", "gaussian in a box"], indirect=True)
def test_fixed_samples_have_the_density_of_log_prob(fixed):
    dist = fixed()
    for one in (dist, dist.expand(torch.Size([2]))):
        x, log_p = one.rsample_and_log_prob((5,))
        assert x.shape == (5, *one.batch_shape, 3)
        torch.testing.assert_close(log_p, dist.log_prob(x))
        torch.testing.assert_close(one.log_prob(x), log_p)
    with pytest.raises(TypeError, match=r"sample_shape must be a tuple, got 5: write \(5,\)"):
        dist.rsample(5)


def test_fixed_state_dict_restores_the_density(fixed, request, tmp_path):
    x = torch.randn(50, 3, dtype=torch.float64)
    expected = fixed().log_prob(x)
    safetensors.torch.save_file(fixed.state_dict(), tmp_path / "state")
    fresh = FIXED_FLOWS[request.node.callspec.params["fixed"]]().double().eval()
    assert (fresh().log_prob(x) != expected).any()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "state"))
    for other in (fresh, copy.deepcopy(fixed), pickle.loads(pickle.dumps(fixed))):
        assert torch.equal(other().log_prob(x), expected)
    for part in fixed.modules():
        assert type(part).__name__ in repr(fixed)


def test_fixed_double_and_back(fixed):
    x = fixed().sample((50,)).float()
    exact = fixed().log_prob(x.double())
    single = fixed.float()().log_prob(x)
    assert single.dtype == torch.float32
    is_inside = exact.isfinite() & single.isfinite()  # ends of a box are rounded, too
    assert is_inside.float().mean() > 0.9
    torch.testing.assert_close(single.double()[is_inside], exact[is_inside], atol=1e-3, rtol=1e-3)


# The contract of flows over discrete data


@pytest.fixture(params=DISCRETE_FLOWS)
def discrete(request):
    """A flow over discrete data with initialised parts, ten rows of data, and their context."""
    build, draw_rows, draw_context = DISCRETE_FLOWS[request.param]
    flow, rows, c = build(), draw_rows(10), draw_context(10)
    flow.initialize(draw_rows(100), draw_context(100))
    return perturb(flow, 0.1).eval(), rows, c


def score(flow, rows, c):
    torch.manual_seed(0)
    return flow(c).log_prob(rows)


def test_discrete_shapes(discrete):
    flow, rows, c = discrete
    log_p = score(flow, rows, c)
    assert log_p.shape == (10,)
    assert log_p.isfinite().all()
    samples = flow(c).sample((2,) if c is not None else (2, 10))
    event = (1, 4, 4) if isinstance(flow, elflow.ImageELF) else (3,)
    assert samples.shape == (2, 10, *event)


def test_discrete_gradients_reach_every_parameter(discrete):
    flow, rows, c = discrete
    (-score(flow, rows, c).mean()).backward()
    check_gradients(flow)


def test_the_first_batch_initialises_every_part(discrete, request):
    build, draw_rows, draw_context = DISCRETE_FLOWS[request.node.callspec.params["discrete"]]
    flow = build()
    flow.initialize(draw_rows(100), draw_context(100))
    assert flow.initialized
    assert all(part.initialized for part in flow.modules() if isinstance(part, DataInitialized))


def test_discrete_state_dict_restores_the_density(discrete, request, tmp_path):
    flow, rows, c = discrete
    safetensors.torch.save_file(flow.state_dict(), tmp_path / "state")
    fresh = DISCRETE_FLOWS[request.node.callspec.params["discrete"]][0]().eval()
    fresh.load_state_dict(safetensors.torch.load_file(tmp_path / "state"))
    assert torch.equal(score(fresh, rows, c), score(flow, rows, c))
    assert torch.equal(score(copy.deepcopy(flow), rows, c), score(flow, rows, c))


def test_discrete_repr_names_every_part(discrete):
    check_repr(discrete[0])


# The contract of flows with a method `inverse`


def test_it_is_a_zuko_flow(layered):
    assert isinstance(layered, zuko.flows.Flow)


@pytest.mark.slow
def test_inverse_reports_convergence(layered):
    x, c = draw_data(layered, 100)
    back, info = layered.inverse(x, c, return_info=True)
    torch.testing.assert_close(layered.transform(c)(back), x, atol=1e-8, rtol=1e-8)
    torch.testing.assert_close(layered.inverse(x, c), back)
    assert info.converged
    assert info.residual < 1e-9
    assert all(0 <= sweeps <= layered.features for sweeps in info.sweeps)


@pytest.mark.slow
def test_inverse_in_float32(layered):
    flow = layered.float()
    z, c = draw_data(flow, 200)
    x, info = flow.inverse(z, c, return_info=True)
    assert info.converged
    assert x.dtype == torch.float32
    assert info.residual < 1e-5


@pytest.mark.slow
def test_samples_follow_the_latent_point(layered):
    is_large = layered.features >= 10  # of whose Jacobian random projections are checked
    z, c = draw_data(layered, 1 if is_large else 2)
    z.requires_grad_()
    assert torch.autograd.gradcheck(lambda z: layered.inverse(z, c), z, atol=1e-6, fast_mode=is_large)


def test_gradients_of_no_rows(layered):
    z, c = draw_data(layered, 0)
    layered.inverse(z, c).sum().backward()


# The contract of ELF


@pytest.mark.slow
def test_each_feature_depends_on_those_before_it_only(elf):
    _, c = draw_data(elf)
    points = torch.randn(50, elf.features, dtype=torch.float64, requires_grad=True)
    layers = [layer for layer in elf.transform.transforms if isinstance(layer, MaskedELFTransform)]
    for order, layer in zip(elf.orders, layers, strict=True):
        sums = layer(c)(points).sum(0)  # over rows, which do not depend on each other
        rows = [torch.autograd.grad(sums[feature], points, retain_graph=True)[0][:, list(order)] for feature in order]
        jacobians = torch.stack(rows, 1)
        somewhere = jacobians.ne(0).any(0)  # a unit may be flat at some of the points
        assert (somewhere == torch.ones_like(somewhere).tril()).all()
        assert (jacobians.diagonal(dim1=1, dim2=2) > 0).all()


def test_sweeps_of_each_layer_are_reported(elf):
    x, c = draw_data(elf, 100)
    _, info = elf.inverse(x, c, return_info=True)
    assert len(info.sweeps) == len(elf.orders)


@pytest.mark.slow
def test_samples_are_differentiable(elf):
    """The implicit gradient, against the gradient through as many sweeps as there are features."""
    z, c = draw_data(elf, 3)
    weight = torch.randn_like(z)
    with elflow.kernels.backend("reference"):
        implicit = torch.autograd.grad((elf.inverse(z, c) * weight).sum(), elf.parameters())
        x = z
        for layer in reversed(elf.transform(c).transforms):
            if hasattr(layer, "maps"):
                y, x = x, torch.zeros_like(x)
                for _ in range(elf.features):
                    x = layer.maps(x, c).inv(y)
            else:
                x = layer.inv(x)
        unrolled = torch.autograd.grad((x * weight).sum(), elf.parameters())
    for a, b in zip(implicit, unrolled, strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-6)


def test_second_derivatives_raise_or_are_right(elf):
    """Never zeros where there should be numbers."""
    x, c = draw_data(elf, 3)
    x.requires_grad_()
    (slope,) = torch.autograd.grad(elf(c).log_prob(x).sum(), x, create_graph=True)
    if elf.config["activation"] == FELU.to_dict():
        with pytest.raises(RuntimeError, match="no second derivatives"):
            torch.autograd.grad(slope.square().sum(), x)
    with pytest.raises(RuntimeError, match="the inverse of a flow has no second derivatives"):
        torch.autograd.grad(elf.inverse(x, c).sum(), x, create_graph=True)


def test_save_and_load(elf, tmp_path):
    x, c = draw_data(elf, 10)
    elflow.save(elf, tmp_path / "model.elf")
    loaded = elflow.load(tmp_path / "model.elf")
    assert type(loaded) is type(elf)
    assert repr(loaded) == repr(elf)
    assert loaded.state_dict().keys() == elf.state_dict().keys()
    for name, value in elf.state_dict().items():
        assert (loaded.state_dict()[name] == value).all(), name
    torch.testing.assert_close(loaded(c).log_prob(x), elf(c).log_prob(x), atol=1e-9, rtol=1e-9)
    assert all(p.requires_grad for p in loaded.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_compiles(name):
    elf = build_traced(name)
    x, c = draw_data(elf, 10)
    torch.compiler.reset()
    compiled = torch.compile(lambda x, c: elf(c).log_prob(x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, c), elf(c).log_prob(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPILED)
def test_exports(name):
    elf = build_traced(name)

    class LogProb(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.flow = elf

        def forward(self, x, c):
            return self.flow(c).log_prob(x)

    x, c = draw_data(elf, 10)
    program = torch.export.export(LogProb(), (x, c))
    torch.testing.assert_close(program.module()(x, c), elf(c).log_prob(x))


def test_the_gradient_of_a_row_is_its_own():
    """However large that of another row is."""
    flow = make_hard_flow()
    z = torch.randn(2, 12, requires_grad=True)
    grads = []
    for scale in (1.0, 1e8):
        x = flow.inverse(z)
        grads.append(torch.autograd.grad(scale * x[0, 0] + x[1].sum(), z)[0][1])
    torch.testing.assert_close(grads[0], grads[1], atol=1e-4, rtol=1e-4)


# Densities and samples


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "one feature",
        "one feature, context",
        "two features",
        "weights, one feature",
        "weights, two features",
        pytest.param("QELU", marks=pytest.mark.slow),
    ],
)
def test_density_integrates_to_one(name):
    flow = perturb(FLOWS[name]().double(), 0.2)
    if flow.features == 1:
        x, cell = torch.linspace(-40, 40, 200_001, dtype=torch.float64)[:, None], 80 / 200_000
    else:
        axis = torch.linspace(-20, 20, 401, dtype=torch.float64)
        x, cell = torch.cartesian_prod(axis, axis), (40 / 400) ** 2
    c = torch.randn(flow.context, dtype=torch.float64) if flow.context else None
    with torch.no_grad():
        mass = flow.eval()(c).log_prob(x).exp().sum() * cell
    assert abs(mass - 1) < 2e-3


@pytest.mark.slow
def test_samples_follow_the_density():
    """The mean of 1/p over samples in a box, where p is the density, is the area of the box."""
    flow = FLOWS["two features"]().eval()
    with torch.no_grad():
        x = flow().sample((200_000,))
        inside = (x.abs() < 1).all(-1)
        weight = torch.where(inside, (-flow().log_prob(x)).exp(), 0.0)
    assert abs(weight.mean() - 4) < 5 * weight.std() / len(x) ** 0.5
    assert inside.float().mean() > 0.1


def test_weights_are_the_papers_model():
    """Equation 4.4 and figure 3: a network of 3 H + 1 outputs for each feature, then an ActNorm, and nothing else."""
    flow = elflow.ELF(3, transforms=2, units=6, hidden_features=(16,), parametrization="weights").double()
    layers = list(flow.transform.transforms)
    assert [type(layer).__name__ for layer in layers] == ["MaskedELFTransform", "ActNorm"] * 2
    assert not flow.config["scale"]
    hyper, x = layers[0].hyper, torch.randn(50, 3, dtype=torch.float64)
    assert hyper.first.shape == (1, 3 * 6 + 1)
    w1, b1, w2, b2 = hyper(x, None).split([6, 6, 6, 1], dim=-1)
    assert (w1 < 0).any()  # which bumps cannot have
    g = b2.squeeze(-1) + (w2 * elflow.functional.felu(w1 * x[:, 1:, None] + b1)).sum(-1)
    s = 0.99 / elflow.functional.lipschitz(w1, b1, w2).clamp(min=0.99)
    expected = x[:, 1:] + s * (g - b2.squeeze(-1)) + b2.squeeze(-1)
    torch.testing.assert_close(layers[0]()(x)[:, 1:], expected)


@pytest.mark.slow
def test_weights_in_a_table(tmp_path):
    """Conditional quantiles and files of an estimator with the paper's parametrisation."""
    a = torch.randn(300, 1)
    table = torch.cat([a, a**2 + 0.3 * torch.randn(300, 1)], dim=1).numpy()
    options = {"parametrization": "weights", "transforms": 2, "units": 8, "hidden_features": (16,)}
    density = elflow.FlowDensity(max_steps=20, random_state=0, flow_options=options).fit(table)
    median = density.conditional_quantile(table[:5], 1, 0.5)
    density.save(tmp_path / "model.elf")
    loaded = elflow.load(tmp_path / "model.elf")
    assert loaded.score(table) == density.score(table)
    assert (loaded.conditional_quantile(table[:5], 1, 0.5) == median).all()


def test_files_without_a_parametrization_have_bumps():
    """As those of earlier versions."""
    config = elflow.ELF(3, **SMALL).config
    assert config.pop("parametrization") == "bumps"
    assert elflow.ELF.from_config(config).config == config | {"parametrization": "bumps"}


# Orders and conditional distributions


CONDITIONAL = ["one feature", "one feature, context", "shared order", "given order", "weights, shared order"]


@pytest.mark.parametrize("name", CONDITIONAL)
def test_conditional_cdf_and_quantile(name):
    flow = FLOWS[name]().double().eval()
    x, c = draw_data(flow, 50)
    q = flow.conditional_cdf(x, c)
    assert ((q > 0) & (q < 1)).all()
    torch.testing.assert_close(flow.conditional_quantile(x, q, c), x, atol=1e-7, rtol=1e-7)
    # with the median in place of feature t, the CDF of t is one half
    median = flow.conditional_quantile(x, torch.tensor(0.5, dtype=torch.float64), c)
    for t in range(flow.features):
        moved = x.clone()
        moved[:, t] = median[:, t].detach()
        torch.testing.assert_close(flow.conditional_cdf(moved, c)[:, t], torch.full((50,), 0.5, dtype=torch.float64))


def test_conditional_cdf_is_the_integral_of_the_density():
    flow = FLOWS["shared order"]().double().eval()
    last = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    x, c = torch.tensor([0.3, -0.8, 0.0], dtype=torch.float64).repeat(4001, 1), torch.randn(2, dtype=torch.float64)
    x[:, 2] = last
    with torch.no_grad():
        density = flow(c).log_prob(x).exp()
        cdf = flow.conditional_cdf(x, c)[:, 2]
    integral = torch.cumulative_trapezoid(density, last)
    # the whole integral is the density of the two features before the last
    torch.testing.assert_close(integral / integral[-1] * (cdf[-1] - cdf[0]), cdf[1:] - cdf[0], atol=1e-5, rtol=0)


def test_conditional_cdf_of_samples_is_uniform():
    flow = FLOWS["given order"]().eval()
    with torch.no_grad():
        q = flow.conditional_cdf(flow().sample((20_000,)))
    for column in q.T:
        distance = (column.sort().values - torch.linspace(0, 1, 20_000)).abs().max()
        assert distance < 1.95 / math.sqrt(20_000)  # Kolmogorov-Smirnov, one in a thousand


def test_quantiles_at_the_ends():
    flow = elflow.ELF(1, **SMALL)
    assert flow.conditional_quantile(None, torch.tensor([[0.0], [1.0]])).tolist() == [[-math.inf], [math.inf]]


def test_conditional_cdf_needs_one_order():
    flow = elflow.ELF(3, transforms=2)
    for call in (flow.conditional_cdf, lambda x: flow.conditional_quantile(x, x.sigmoid())):
        with pytest.raises(ValueError, match="order='shared'"):
            call(torch.randn(4, 3))


def test_one_probability_for_one_feature():
    flow = elflow.ELF(1, **SMALL)
    assert flow.conditional_quantile(None, torch.tensor(0.5)).shape == (1,)
    with pytest.raises(TypeError, match="q must have the dtype of the flow"):
        flow.conditional_quantile(None, torch.tensor(0.5, dtype=torch.float64))


def test_orders():
    assert elflow.ELF(3, transforms=2, order=torch.tensor([[0, 1, 2], [1, 2, 0]])).orders == ((0, 1, 2), (1, 2, 0))
    assert elflow.ELF(3, transforms=3).orders == ((0, 1, 2), (2, 1, 0), (0, 1, 2))
    assert elflow.ELF(3, transforms=2, order="shared").orders == ((0, 1, 2),) * 2
    assert elflow.ELF(3, transforms=2, order=torch.tensor([1, 2, 0])).orders == ((1, 2, 0),) * 2


# Methods of the inverse


def make_hard_flow(features: int = 12) -> elflow.ELF:
    """A flow whose coordinates depend on each other so much that the paper's iteration takes long."""
    torch.manual_seed(1)
    flow = elflow.ELF(features, transforms=1, units=8, hidden_features=(64, 64))
    return perturb(flow, 0.15).eval()


def test_fixed_point_finds_the_same():
    flow = FLOWS["two features"]().eval()
    z = torch.randn(100, 2)
    exact, info = flow.inverse(z, return_info=True)
    slow, slow_info = flow.inverse(z, method="fixed-point", return_info=True)
    assert slow_info.converged
    assert max(slow_info.sweeps) > max(info.sweeps)
    torch.testing.assert_close(slow, exact, atol=1e-3, rtol=1e-3)
    torch.manual_seed(0)
    a = flow().sample((50,))
    torch.manual_seed(0)
    torch.testing.assert_close(flow().sample((50,), method="fixed-point"), a, atol=1e-3, rtol=1e-3)


def test_one_coordinate_after_the_other():
    flow = make_hard_flow().double()
    z = torch.randn(40, 12, dtype=torch.float64)
    exact, info = flow.inverse(z, return_info=True)
    slow, slow_info = flow.inverse(z, method="sequential", return_info=True)
    torch.testing.assert_close(slow, exact, atol=1e-9, rtol=1e-9)
    assert slow_info.sweeps == (11,)  # the first coordinate depends on nothing
    assert slow_info.calls == (11,)  # and nothing on the last
    assert info.calls[0] <= info.sweeps[0] + 1


def test_what_has_settled_is_told():
    flow = make_hard_flow()
    told = []
    invert(flow.transform(), torch.randn(40, 12), on_settled=told.append)
    assert sum(told) == 40
    assert len(told) > 1


def test_settled_rows_do_not_change():
    """Dropping rows gives what inverting each alone gives."""
    flow = make_hard_flow().double()
    z = torch.randn(40, 12, dtype=torch.float64)
    together, info = flow.inverse(z, return_info=True)
    alone = torch.cat([flow.inverse(row) for row in z.split(1)])
    torch.testing.assert_close(together, alone, atol=1e-9, rtol=1e-9)
    assert info.sweeps[0] <= 12


def test_a_looser_tolerance_takes_fewer_sweeps():
    flow = make_hard_flow()
    z = torch.randn(40, 12)
    sweeps = [flow.inverse(z, tol=tol, return_info=True)[1].sweeps[0] for tol in (1e-1, 1e-6)]
    assert sweeps[0] < sweeps[1]


def test_no_convergence_warns(monkeypatch):
    monkeypatch.setitem(elflow.transforms.METHODS, "fixed-point", (elflow.transforms.METHODS["fixed-point"][0], 3))
    flow = make_hard_flow()
    z = torch.randn(40, 12)
    with pytest.warns(ConvergenceWarning, match=r"residual is \d.* after \(3,\) sweeps"):
        flow.inverse(z, method="fixed-point")
    with pytest.warns(ConvergenceWarning):
        flow().sample((40,), method="fixed-point")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, info = flow.inverse(z, method="fixed-point", return_info=True)
    assert not info.converged
    assert info.residual > 1e-3


# Composition with zuko and torch.compile


def test_composes_with_zuko():
    flow = zuko.flows.Flow(
        [
            ActNorm(3),
            MaskedELFTransform(3, context=2, units=8, hidden_features=(16,)),
            zuko.lazy.UnconditionalTransform(zuko.transforms.RotationTransform, A=torch.randn(3, 3)),
            MaskedELFTransform(3, context=2, units=8, hidden_features=(16,), order=(2, 1, 0)),
        ],
        zuko.lazy.UnconditionalDistribution(zuko.distributions.DiagNormal, torch.zeros(3), torch.ones(3), buffer=True),
    )
    dist = flow(torch.randn(5, 2))
    x, log_p = dist.rsample_and_log_prob((10,))
    torch.testing.assert_close(dist.log_prob(x), log_p, atol=1e-3, rtol=1e-3)
    log_p.mean().backward()
    back, info = invert(dist.transform, dist.transform(x))
    assert info.converged
    torch.testing.assert_close(back, x, atol=1e-3, rtol=1e-3)


@pytest.mark.slow
def test_compiles_with_inductor():
    flow = elflow.ELF(2, transforms=1, units=8, hidden_features=(16,)).eval()
    x = torch.randn(16, 2)
    torch.compiler.reset()
    with torch._inductor.config.patch(compile_threads=1):  # more would first start processes that import torch
        loss = torch.compile(lambda x: flow().log_prob(x).mean(), fullgraph=True)(x)
        loss.backward()
    compiled = [p.grad.clone() for p in flow.parameters()]
    flow.zero_grad()
    flow().log_prob(x).mean().backward()
    for a, p in zip(compiled, flow.parameters(), strict=True):
        torch.testing.assert_close(a, p.grad, atol=1e-5, rtol=1e-4)


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": 0}, "features must be at least 1, got 0"),
        ({"features": 2.5}, "features must be an integer, got 2.5"),
        ({"context": -1}, "context must be at least 0, got -1"),
        ({"transforms": 0}, "transforms must be at least 1, got 0"),
        ({"units": 0}, "units must be at least 1, got 0"),
        ({"hidden_features": (8, 0)}, "hidden_features must be at least 1, got 0"),
        ({"hidden_features": 64}, "hidden_features must be a sequence of integers, got 64"),
        ({"bound": 1.0}, r"bound must be in \(0, 1\), got 1.0"),
        ({"bound": 0}, r"bound must be in \(0, 1\), got 0"),
        ({"bound": "high"}, r"bound must be a number in \(0, 1\), got str"),
        ({"activation": torch.nn.ReLU}, "activation must be an elflow.activations.PiecewiseQuadratic"),
        ({"order": "random"}, r"order must be one of \['alternating', 'shared'\], got 'random'"),
        ({"order": (0, 1)}, r"order must be a permutation of 0 to 2, got \[0, 1\]"),
        ({"order": (0, 1, 1)}, "order must be a permutation of 0 to 2"),
        ({"order": (0, 1, 3)}, "order must be a permutation of 0 to 2"),
        ({"order": (0.0, 1.0, 2.0)}, "order must be a permutation of 0 to 2"),
        ({"order": (0, "a", 1)}, "order must be a permutation of 0 to 2"),
        ({"order": [(0, 1, 2)]}, "order must hold one permutation for each of 3 transforms, got 1"),
        ({"order": 7}, "order must be 'alternating', 'shared' or a sequence of features, got 7"),
        ({"rank": 0}, "rank must be at least 1, got 0"),
        ({"parametrization": "units"}, r"parametrization must be one of \['bumps', 'weights'\], got 'units'"),
        ({"parametrization": "weights", "scale": True}, "scale must be False with parametrization='weights', got True"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        elflow.ELF(**{"features": 3} | arguments)


NAN_ROW = torch.zeros(5, 3)
NAN_ROW[2, 1] = math.nan


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, c: f(), "c must be a context of 2 features, got None"),
        (
            lambda f, c: f(c[:, :1]),
            r"c must have the shape \(..., 2\), one column for each context feature, got \(5, 1\)",
        ),
        (lambda f, c: f(c.long()), "c must be a tensor of floats"),
        (lambda f, c: f(c.fill_(math.inf)), "c must be finite, got NaN or infinite values in 5 of 5 rows"),
        (lambda f, c: f(c).log_prob(torch.randn(5, 4)), r"x must have the shape \(..., 3\).* got \(5, 4\)"),
        (lambda f, c: f(c).log_prob([1.0, 2.0, 3.0]), "x must be a torch.Tensor, got list"),
        (lambda f, c: f(c).log_prob(NAN_ROW), r"in 1 of 5 rows \(first: row 2\): drop or fill these rows"),
        (lambda f, c: f.inverse(NAN_ROW, c), "z must be finite"),
        (lambda f, c: f.inverse(torch.randn(5, 2), c), r"z must have the shape \(..., 3\)"),
        (lambda f, c: f.inverse(torch.randn(5, 3), c, method="newton"), "method must be one of"),
        (lambda f, c: f.inverse(torch.randn(5, 3), c, tol=-1), "tol must be positive"),
        (lambda f, c: f(c).sample((1,), method="newton"), "method must be one of"),
        (lambda f, c: f(c).sample(10), r"sample_shape must be a tuple, got 10: write \(10,\)"),
        (
            lambda f, c: f.conditional_quantile(torch.randn(5, 3), torch.tensor(1.5), c),
            r"probabilities in \[0, 1\], got 1.5",
        ),
        (lambda f, c: f.conditional_quantile(None, torch.tensor(0.5), c), "x must hold the features to condition on"),
        (lambda f, c: f.conditional_quantile(torch.randn(5, 3), 0.5, c), "q must be a tensor of floats, got float"),
    ],
)
def test_bad_calls(call, message):
    flow = elflow.ELF(3, 2, order="shared", **SMALL)
    with pytest.raises((TypeError, ValueError), match=message):
        call(flow, torch.zeros(5, 2))


def test_a_context_where_there_is_none():
    with pytest.raises(ValueError, match=r"c must be None for a flow built with context=0, got the shape \(5, 2\)"):
        elflow.ELF(3)(torch.zeros(5, 2))


def test_a_batch_of_other_dtype():
    with pytest.raises(TypeError, match=r"x must have the dtype of the flow, torch.float32, got torch.float64"):
        elflow.ELF(2)().log_prob(torch.zeros(5, 2, dtype=torch.float64))
