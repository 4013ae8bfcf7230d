"""The native kernel for mixtures of flows: the same densities as through torch, row by row."""

import gc
import weakref

import pytest
import torch

import elflow
from elflow.flows.compiled import compile_density
from elflow.flows.mixture import FlowMixture, GaussianMixture
from elflow.flows.whitening import Gaussian, Whitened
from elflow.kernels import NonFiniteError, backend, native

SMALL = {"transforms": 2, "units": 6, "hidden_features": (24, 24)}
FLOWS = {
    "one feature": lambda: elflow.ELF(1, transforms=3),
    "one feature, context": lambda: elflow.ELF(1, 2, **SMALL),
    "two features": lambda: elflow.ELF(2, **SMALL),
    "default": lambda: elflow.ELF(5),
    "context": lambda: elflow.ELF(4, 3, **SMALL),
    "odd units": lambda: elflow.ELF(3, transforms=2, units=7, hidden_features=(16,)),
    "one unit": lambda: elflow.ELF(3, transforms=2, units=1, hidden_features=(16,)),
    "many units": lambda: elflow.ELF(2, transforms=1, units=50, hidden_features=(16,)),
    "no hidden layer": lambda: elflow.ELF(3, transforms=2, units=6, hidden_features=()),
    "three hidden layers": lambda: elflow.ELF(3, transforms=1, units=6, hidden_features=(16, 8, 24)),
    "no scale": lambda: elflow.ELF(3, scale=False, **SMALL),
    "rank": lambda: elflow.ELF(5, rank=3, **SMALL),
    "shuffled": lambda: elflow.ELF(5, order=(3, 0, 4, 1, 2), **SMALL),
    "blocked last layer": lambda: elflow.ELF(20, transforms=2, units=16, hidden_features=(96, 96)),
    "whitened": lambda: Whitened(elflow.ELF(4, **SMALL), 4, order=(3, 2, 1, 0)),
    "whitened, context": lambda: Whitened(elflow.ELF(3, 2, **SMALL), 3, 2),
    "gaussian": lambda: Gaussian(3),
    "mixture": lambda: FlowMixture(
        [Whitened(elflow.ELF(3, **SMALL), 3), elflow.ELF(3, **SMALL), GaussianMixture(3, components=4)], [3, 2, 1]
    ),
    "mixture, context": lambda: FlowMixture([elflow.ELF(2, 1, **SMALL), Gaussian(2, 1)], [0.2, 0.8]),
}


def make_flow(name, steepness=1.0):
    """A flow with random weights; `steepness` multiplies the weights that make networks differ from row to row."""
    torch.manual_seed(3)
    flow = FLOWS[name]().double()
    elf = next((part for part in flow.modules() if isinstance(part, elflow.ELF)), None)
    features, context = (3, 0) if elf is None else (elf.features, elf.context)
    x = 2 * torch.randn(301, features).double() @ torch.randn(features, features).double()
    c = torch.randn(301, context).double() if context else None
    flow.initialize(x, c)
    with torch.no_grad():
        for part in flow.parameters():
            part.add_(0.03 * torch.randn_like(part))
        for part in flow.modules():
            if hasattr(part, "hyper"):
                for layer in part.hyper.net if part.hyper.dependent else []:
                    if hasattr(layer, "weight"):
                        layer.weight.mul_(steepness)
                if part.hyper.free:
                    part.hyper.first.mul_(steepness)
    return flow.eval(), x, c


@pytest.mark.parametrize("steepness", [1.0, 2.0])
@pytest.mark.parametrize("name", FLOWS)
@torch.no_grad()
def test_log_densities_are_those_of_torch(name, steepness):
    flow, x, c = make_flow(name, steepness)
    expected = flow(c).log_prob(x)
    compiled = compile_density(flow)
    assert compiled is not None
    torch.testing.assert_close(compiled.log_prob(x, c), expected, rtol=1e-9, atol=1e-8)
    # Several points for each row.
    several = torch.stack([x, x + 0.5], 1)
    expected = torch.stack([expected, flow(c).log_prob(x + 0.5)], 1)
    torch.testing.assert_close(compiled.log_prob(several, c), expected, rtol=1e-9, atol=1e-8)


@pytest.fixture
def instruction_set(request):
    before = native.extension.instruction_set()
    native.extension.choose_instruction_set(request.param)
    yield request.param
    native.extension.choose_instruction_set(before)


@pytest.mark.parametrize("instruction_set", native.extension.instruction_sets(), indirect=True)
@pytest.mark.parametrize("name", ["mixture", "context", "rank", "odd units"])
@torch.no_grad()
def test_a_row_does_not_depend_on_its_batch(name, instruction_set):
    """To the last bit: whatever the other rows of a tile, and on every instruction set."""
    flow, x, c = make_flow(name, steepness=2.0)
    compiled = compile_density(flow)
    whole = compiled.log_prob(x, c)
    torch.testing.assert_close(whole, flow(c).log_prob(x), rtol=1e-9, atol=1e-8)
    assert torch.equal(whole, compiled.log_prob(x.flip(0), None if c is None else c.flip(0)).flip(0))
    single = [compiled.log_prob(x[i : i + 1], None if c is None else c[i : i + 1]) for i in range(0, 301, 30)]
    assert torch.equal(torch.cat(single), whole[::30])
    # Neighbours far away: other hidden units are active, other networks are steep.
    x = torch.cat([x[:20], 1e3 * x[20:40]]).reshape(2, 20, -1).transpose(0, 1).reshape(40, -1)
    c = None if c is None else c[:20].repeat_interleave(2, 0)
    assert torch.equal(compiled.log_prob(x, c)[::2], whole[:20])


@pytest.mark.parametrize("threads", [2, 4])
@torch.no_grad()
def test_a_row_does_not_depend_on_the_threads(threads):
    flow, x, _ = make_flow("mixture")
    compiled = compile_density(flow)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = compiled.log_prob(x)
        torch.set_num_threads(threads)
        assert torch.equal(compiled.log_prob(x), one)
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def test_networks_that_reach_the_bound_are_normalised():
    """Heights of bumps up to ten times the bound, with sharp and soft edges: the sum of heights decides nothing."""
    flow = elflow.ELF(2, transforms=2, units=16, hidden_features=(16,)).double()
    torch.manual_seed(0)
    for part in flow.modules():
        if hasattr(part, "hyper"):
            part.hyper.net[-2].weight.normal_(0, 0.3)
            part.hyper.net[-2].bias.normal_(0, 3.0)
            part.hyper.first.normal_(0, 3.0)
    x = 5 * torch.randn(2000, 2).double()
    torch.testing.assert_close(compile_density(flow.eval()).log_prob(x), flow().log_prob(x), rtol=1e-9, atol=1e-8)


@torch.no_grad()
def test_extreme_rows():
    flow, x, _ = make_flow("mixture")
    x[3], x[7] = 1e9, -1e30
    torch.testing.assert_close(compile_density(flow).log_prob(x), flow().log_prob(x), rtol=1e-9, atol=1e-8)


@torch.no_grad()
def test_networks_that_are_not_finite_raise_an_error():
    flow, x, _ = make_flow("default")
    flow.transform.transforms[1].hyper.net[0].bias.fill_(1e308)
    flow.transform.transforms[1].hyper.net[2].weight.fill_(1e308)
    with pytest.raises(NonFiniteError):
        compile_density(flow).log_prob(x)


@torch.no_grad()
def test_changed_weights_are_compiled_again():
    flow, x, _ = make_flow("default")
    before = compile_density(flow)
    assert compile_density(flow).program is before.program
    flow.transform.transforms[0].loc.add_(1.0)
    torch.testing.assert_close(compile_density(flow).log_prob(x), flow().log_prob(x))


def test_a_compiled_flow_is_not_kept_in_memory():
    flow = make_flow("default")[0]
    assert compile_density(flow) is not None
    reference = weakref.ref(flow)
    del flow
    gc.collect()
    assert reference() is None


@torch.no_grad()
def test_more_context_than_hidden_units():
    flow = elflow.ELF(1, 300, transforms=1, units=4, hidden_features=(8,)).double().eval()
    x, c = torch.randn(40, 1).double(), torch.randn(40, 300).double()
    torch.testing.assert_close(compile_density(flow).log_prob(x, c), flow(c).log_prob(x))


def test_wrong_shapes_are_errors():
    compiled = compile_density(make_flow("context")[0])
    x, c = torch.zeros(5, 4).double(), torch.zeros(5, 3).double()
    for wrong in [(x[:, :3], c), (x, c[:, :2]), (x, c[:4]), (x, None), (x.float(), c)]:
        with pytest.raises((TypeError, ValueError), match=r"[xc] must"):
            compiled.log_prob(*wrong)


def test_unsupported_flows_are_not_compiled():
    flow, _, _ = make_flow("default")
    assert compile_density(flow.train()) is None
    with backend("reference"):
        assert compile_density(flow.eval()) is None
    assert compile_density(flow.float()) is None
    for options in ({"parametrization": "weights"}, {"activation": elflow.activations.RELU}):
        assert compile_density(elflow.ELF(2, **SMALL, **options).double().eval()) is None
    assert compile_density(FlowMixture([Whitened(FlowMixture([Gaussian(2)]), 2)]).double().eval()) is None


@torch.no_grad()
def test_a_change_of_the_precision_is_compiled_again():
    """Rounding to single precision replaces the values of parameters without a new version of them."""
    flow, x, _ = make_flow("mixture")
    before = compile_density(flow).log_prob(x)
    flow.float().double()
    after = compile_density(flow).log_prob(x)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, flow().log_prob(x))
