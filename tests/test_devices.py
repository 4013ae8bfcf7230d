"""Devices and precision. No test needs a GPU: other devices are those of meta tensors and of fake tensors."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from _command import fails
from torch._subclasses import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

import elflow
from elflow._checks import defer_finite_checks
from elflow.flows import dequantization
from elflow.flows.dequantization import Cells, Dequantized
from elflow.flows.mixture import FlowMixture
from elflow.flows.whitening import Whitened
from elflow.kernels import NonFiniteError
from elflow.nn import InitializesParts
from elflow.training import Rows, choose_device, make_fabric, rows
from elflow.training.rows import RowSource
from elflow.transforms import autoregressive, elementwise, invert


def make_elf(features=3):
    torch.manual_seed(1)
    return elflow.ELF(features, transforms=2, units=4, hidden_features=(8,)).eval()


def make_image_flow(**changes):
    torch.manual_seed(1)
    sizes = {"transforms": 1, "units": 4, "channels": 4, "blocks": 1}
    return elflow.ImageELF((1, 4, 4), levels=4, scales=2, **sizes, **changes).eval()


def make_table_flow(variational=False):
    flows = [Whitened(make_elf(), 3, 0, start) for start in ("cholesky", "identity")]
    return Dequantized(FlowMixture(flows), exact=[0, 1], cells=[2], variational=variational).eval()


def make_cells(n=5):
    low = torch.full((n, 1), 0.25, dtype=torch.double)
    return Cells(torch.randn(n, 2), low, torch.full_like(low, 0.5), torch.zeros(n))


@pytest.fixture
def gpus(monkeypatch):
    """Make the machine have this number of CUDA devices, and no mps."""

    def set_count(count):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    return set_count


@pytest.mark.slow
def test_choice_of_a_device(gpus):
    gpus(0)
    assert choose_device("auto") == choose_device() == torch.device("cpu")
    for wanted in ("cuda", "mps", "cuda:0", torch.device("cuda")):
        with pytest.raises(ValueError, match=r"device must be one that is available, 'auto' or one of \['cpu'\], got"):
            choose_device(wanted)
    with pytest.raises(ValueError, match=r"device must be one of \['auto', 'cpu', 'cuda', 'mps'\], got 'gpu'"):
        choose_device("gpu")
    gpus(2)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ValueError, match=r"one of \['cpu', 'cuda'\], got 'cuda:2'"):
        choose_device("cuda:2")
    with pytest.raises(ValueError, match="devices must be at most 2, the number of cuda devices, got 3"):
        make_fabric("cuda", devices=3)
    with pytest.raises(ValueError, match=r"precision must be one of \['32', 'bf16-mixed'\], got '16'"):
        make_fabric("cpu", "16")


@pytest.mark.slow
def test_errors_name_the_argument(gpus, write, tmp_path):
    gpus(0)
    table = pd.DataFrame({"size": np.arange(20.0)})
    with pytest.raises(ValueError, match="device must be one that is available"):
        elflow.FlowDensity(device="cuda").fit(table)
    with pytest.raises(ValueError, match="precision must be one of"):
        elflow.FlowDensity(precision="16").fit(table)
    elflow.save(make_image_flow(), tmp_path / "m.elf")
    with pytest.raises(ValueError, match="device must be one that is available"):
        elflow.load(tmp_path / "m.elf", "cuda")
    assert elflow.load(tmp_path / "m.elf", "auto").device == torch.device("cpu")
    data = write(table)
    error = "--device must be one that is available, 'auto' or one of ['cpu'], got 'cuda'"
    assert error in fails("fit", data, "-o", tmp_path / "new.elf", "--device", "cuda")
    assert error in fails("sample-images", tmp_path / "m.elf", "-o", tmp_path / "new.png", "--device", "cuda")


@pytest.mark.slow
def test_a_density_fitted_elsewhere_loads_here(gpus, tmp_path):
    gpus(0)
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(50, 2)), columns=["a", "b"])
    density = elflow.FlowDensity(max_steps=3, random_state=0, precision="bf16-mixed").fit(table)
    assert next(density.model_.parameters()).dtype == torch.double
    density.set_params(device=torch.device("cuda")).save(tmp_path / "m.elf")
    loaded = elflow.load(tmp_path / "m.elf", "auto")
    assert loaded.device == "auto"  # it can be fitted again on any machine
    np.testing.assert_array_equal(loaded.score_samples(table), density.score_samples(table))


class CountReads(TorchDispatchMode):
    """Count the operations that wait for a device, because Python reads a value or a size."""

    READS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function.overloadpacket.__name__ in self.READS
        return function(*args, **kwargs or {})


@pytest.fixture
def asynchronous(monkeypatch):
    """Treat the CPU as a device that computes while Python goes on."""
    for module in (autoregressive, elementwise):
        monkeypatch.setattr(module, "is_asynchronous", lambda device: True)


@pytest.mark.parametrize("scale", [False, True])
def test_one_read_in_each_sweep(scale, asynchronous, monkeypatch):
    torch.manual_seed(1)
    flow = elflow.ELF(5, transforms=1, units=4, hidden_features=(8,), scale=scale, order=[2, 0, 4, 1, 3]).eval()
    with torch.no_grad(), elflow.kernels.backend("reference"):
        for parameter in flow.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        z = torch.randn(20, 5)
        with CountReads() as reads:
            x, info = invert(flow.transform(), z)
    (sweeps,) = info.sweeps
    assert sweeps > 2
    # One in each sweep and one for the last residual; the check of z, the largest residual of all rows, and twice the
    # maximum of numbers on the CPU.
    assert reads.count == sweeps + 1 + 4
    monkeypatch.undo()
    with torch.no_grad(), elflow.kernels.backend("reference"):
        expected, info = invert(flow.transform(), z)
    assert info.sweeps == (sweeps,)
    torch.testing.assert_close(x, expected)


@pytest.mark.slow
def test_triton_defers_its_check(triton_device):
    w = torch.full((1, 2), math.nan, device=triton_device)
    with pytest.raises(NonFiniteError):
        elflow.functional.lipschitz(w, w, w)
    with defer_finite_checks():
        assert elflow.functional.lipschitz(w, w, w).isnan().all()


def test_sweeps_report_networks_that_are_not_finite(asynchronous):
    flow = make_elf()
    with torch.no_grad():
        flow.transform.transforms[1].hyper.net[-2].bias.fill_(math.nan)
        with elflow.kernels.backend("reference"), pytest.raises(NonFiniteError):
            invert(flow.transform(), torch.randn(4, 3))


def test_cells_stay_on_the_cpu_without_double_precision(monkeypatch):
    """The meta device stands for mps: the numbers of cells are computed on the CPU, those of the flow on the device."""
    for module in (dequantization, rows):
        monkeypatch.setattr(module, "has_double", lambda device: device.type != "meta")
    flow = make_table_flow().to("meta")
    here = Rows(make_cells(), weight=torch.ones(5))
    there = here.to(torch.device("meta"))
    assert there.weight.is_meta
    assert not there.x.low.is_meta
    noise = flow.draw_noise(5)
    assert (noise.device.type, noise.dtype) == ("cpu", torch.double)
    z, log_volume = flow.dequantize(there.x, noise=noise)
    assert z.is_meta
    assert log_volume.is_meta
    batch = next(RowSource(here, 2, 0, torch.device("meta")).iter_batches(range(1)))
    assert (len(batch), batch.x.low.device.type, batch.weight.device.type) == (2, "cpu", "meta")


def test_batches_are_taken_on_the_device():
    source = RowSource(Rows(torch.randn(6, 2), torch.randn(6, 1)), 3, 0, torch.device("meta"))
    batch = next(source.iter_batches(range(1)))
    assert (batch.x.device.type, batch.context.device.type, len(batch)) == ("meta", "meta", 3)
    assert source._rows_at_hand.x.is_meta
    assert source.take_initial(4)[0].x.device.type == "cpu"


class Score(torch.nn.Module):
    """The log-density as a module, for `functional_call`."""

    def __init__(self, flow):
        super().__init__()
        self.flow = flow

    def forward(self, x, *noise):
        return self.flow().log_prob(x, *noise)


def make_ready(flow):
    """A flow in training mode, as after its initialisation."""
    for module in flow.modules():
        if isinstance(module, InitializesParts):
            module.initialized = True
    return flow.train()


def draw_images(n=5):
    return torch.randint(4, (n, 1, 4, 4))


FLOWS = {
    "elf": (make_elf, lambda: torch.randn(5, 3)),
    "table": (make_table_flow, make_cells),
    "variational": (lambda: make_table_flow(variational=True), make_cells),
    "images": (make_image_flow, draw_images),
    "variational images": (lambda: make_image_flow(dequantization="variational"), draw_images),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOWS)
def test_meta_tensors(name):
    """All tensors that a flow makes are on its device: torch refuses to mix the meta device with others."""
    make, draw = FLOWS[name]
    flow, x = make_ready(make()).to("meta"), draw()
    x = Cells(*(part.to("meta") for part in x)) if isinstance(x, Cells) else x.to("meta")
    noise = [flow.draw_noise(5)] if hasattr(flow, "draw_noise") else []
    log_prob = flow().log_prob(x, *noise)
    assert (log_prob.shape, log_prob.device.type) == ((5,), "meta")
    log_prob.sum().backward()
    assert all(p.grad.is_meta for p in flow.parameters() if p.grad is not None)


@pytest.mark.slow
@pytest.mark.parametrize("name", FLOWS)
def test_fake_tensors(name):
    """A log-density and its gradient read no value of a tensor, for which a GPU would have to wait."""
    make, draw = FLOWS[name]
    flow, x = make_ready(make()), draw()
    noise = [flow.draw_noise(5)] if hasattr(flow, "draw_noise") else []
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        parameters = {
            f"flow.{key}": mode.from_tensor(p.detach()).requires_grad_() for key, p in flow.named_parameters()
        }
        buffers = {f"flow.{key}": mode.from_tensor(value) for key, value in flow.named_buffers()}
        x = Cells(*map(mode.from_tensor, x)) if isinstance(x, Cells) else mode.from_tensor(x)
        log_prob = functional_call(Score(flow), parameters | buffers, (x, *map(mode.from_tensor, noise)))
        log_prob.sum().backward()
    assert log_prob.shape == (5,)
    assert parameters["flow." + next(key for key, _ in flow.named_parameters())].grad is not None


def test_autocast_keeps_the_digits_of_data():
    """Only hypernetworks compute in bfloat16: the linear layer before them, and the networks, do not."""
    flow = Whitened(make_elf(), 3, 0, "cholesky").eval()
    with torch.no_grad():
        flow.whitening.matrix.add_(torch.randn(3, 4))
        x = 100 + torch.randn(50, 3)
        exact = flow.whitening()(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(flow.whitening()(x), exact)
            log_prob = flow().log_prob(x)
    assert log_prob.dtype == torch.float32
