"""ActNorm, which only the first batch initialises, and the hypernetwork of vectors."""

import copy
from datetime import timedelta

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from _fork_server import START_METHOD

import elflow
from elflow.nn import ActNorm, Hypernetwork


def find_norms(flow):
    return [layer for layer in flow.transform.transforms if isinstance(layer, ActNorm)]


def draw_shifted(rows=256):
    return torch.tensor([100.0, -3.0]) + torch.tensor([20.0, 0.01]) * torch.randn(rows, 2)


def test_first_batch_standardises_what_reaches_every_norm():
    flow, x = elflow.ELF(2, transforms=2), draw_shifted()
    flow().log_prob(x)
    h = x
    for layer in flow.transform.transforms:
        h = layer()(h)
        if isinstance(layer, ActNorm):
            assert layer.initialized
            torch.testing.assert_close(h.mean(0), torch.zeros(2), atol=1e-3, rtol=0)
            torch.testing.assert_close(h.std(0, correction=0), torch.ones(2), atol=1e-3, rtol=0)


def test_only_the_first_batch_counts():
    flow = elflow.ELF(2)
    flow().log_prob(draw_shifted())
    before = copy.deepcopy(flow.state_dict())
    flow().log_prob(torch.randn(100, 2))
    for name, value in flow.state_dict().items():
        assert (value == before[name]).all(), name


def test_evaluation_sampling_and_tracing_do_not_count():
    flow = elflow.ELF(2, transforms=1, units=4, hidden_features=(8,))
    flow().sample((10,))
    flow().rsample_and_log_prob((10,))
    flow.inverse(torch.randn(10, 2))
    torch.func.vmap(lambda x: flow().log_prob(x), randomness="different")(torch.randn(10, 2))
    flow.eval()().log_prob(draw_shifted())
    assert not any(norm.initialized for norm in find_norms(flow))
    flow.train()().log_prob(draw_shifted())
    assert all(norm.initialized for norm in find_norms(flow))


def test_one_row_does_not_count():
    flow = elflow.ELF(2)
    flow().log_prob(draw_shifted(1))
    flow().log_prob(draw_shifted(1)[0])
    assert not any(norm.initialized for norm in find_norms(flow))


def test_constant_columns():
    flow = elflow.ELF(3)
    x = torch.randn(100, 3)
    x[:, 1], x[:, 2] = 0.0, 1e6
    log_p = flow().log_prob(x)
    assert log_p.isfinite().all()
    assert find_norms(flow)[0].log_scale[1:].tolist() == [0, 0]
    log_p.mean().backward()
    assert all(p.grad.isfinite().all() for p in flow.parameters())


def test_large_offsets_are_not_constant():
    norm = ActNorm(1).double()
    x = 1.7e9 + 100 * torch.randn(1000, 1, dtype=torch.float64)
    norm.initialize(x)
    assert abs(norm()(x).std() - 1) < 0.01


def test_expanded_and_broadcast_batches_count():
    flow = elflow.ELF(2)
    flow().expand((100,)).log_prob(draw_shifted(100))
    assert all(norm.initialized for norm in find_norms(flow))
    flow = elflow.ELF(2, 3)
    flow(torch.randn(5, 3)).log_prob(torch.randn(2))
    assert len({bool(norm.initialized) for norm in find_norms(flow)}) == 1


@pytest.mark.parametrize("how", ["deepcopy", "state dict", "file"])
def test_what_is_set_stays_set(how, tmp_path):
    flow = elflow.ELF(2)
    flow().log_prob(draw_shifted())
    if how == "deepcopy":
        other = copy.deepcopy(flow)
    elif how == "state dict":
        other = elflow.ELF(2)
        other.load_state_dict(flow.state_dict())
    else:
        elflow.save(flow, tmp_path / "model.elf")
        other = elflow.load(tmp_path / "model.elf")
    x = torch.randn(50, 2)
    torch.testing.assert_close(other.train()().log_prob(x), flow().log_prob(x))
    # and a state that is not initialised is initialised by the next batch
    fresh = elflow.ELF(2)
    other.load_state_dict(fresh.state_dict())
    other().log_prob(draw_shifted())
    assert all(norm.initialized for norm in find_norms(other))


@pytest.mark.slow
def test_compiling_takes_the_first_batch_too():
    flow, x = elflow.ELF(2, transforms=1, units=4, hidden_features=(8,)), draw_shifted()
    same = copy.deepcopy(flow)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: flow().log_prob(x), backend="eager")
    torch.testing.assert_close(compiled(x), same().log_prob(x))
    assert all(norm.initialized for norm in find_norms(flow))


def train_in_process(rank, folder):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2, timeout=timedelta(minutes=2)
    )
    torch.set_num_threads(1)
    torch.manual_seed(0)
    flow = torch.nn.parallel.DistributedDataParallel(elflow.ELF(2, transforms=1, units=4, hidden_features=(8,)))
    torch.manual_seed(rank)
    optimizer = torch.optim.Adam(flow.parameters(), 1e-2)
    for _ in range(3):
        loss = -flow().log_prob(draw_shifted(64) * (1 + 5 * rank)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(flow.module.state_dict(), f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_processes_stay_in_step(tmp_path):
    torch.multiprocessing.start_processes(train_in_process, (str(tmp_path),), nprocs=2, start_method=START_METHOD)
    one, other = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    for name, value in one.items():
        assert (value == other[name]).all(), name
    # the first batch was that of both, whose means are 100 and 600
    assert abs(one["transform.transforms.0.loc"][0] - 350) < 10


@pytest.mark.parametrize("units", [1, 2, 7, 500])
def test_units_are_bumps(units):
    hyper = Hypernetwork(3, 0, units, (32,), (0, 1, 2))
    w1, b1, w2, b2 = elflow.functional.bumps(torch.cat([hyper.first, hyper(torch.zeros(3), None)]), units)
    assert w1.shape == b1.shape == w2.shape == (3, units)
    edges, heights = -(b1 + 0.5) / w1, w1 * w2
    pairs = units // 2
    rising, falling = slice(pairs), slice((units + 1) // 2, None)
    assert (edges[:, rising] < edges[:, falling]).all()
    torch.testing.assert_close(heights[:, rising], -heights[:, falling])
    assert edges.abs().max() < 5
    assert heights.abs().max() < 2
    assert b2.abs().max() < 0.1


def test_hypernetwork_stays_finite():
    """Far from all data the parameters are wild, but the log-density is a number."""
    flow = elflow.ELF(2)
    flow().log_prob(torch.randn(100, 2))
    with torch.no_grad():
        for p in flow.parameters():
            p.mul_(3)
        x = torch.tensor([[1e6, -1e6], [1e-30, 0.0], [1e4, 1e8]])
        assert not flow().log_prob(x).isnan().any()


@pytest.mark.parametrize("context", [0, 2])
@pytest.mark.parametrize("order", ["columns", "reversed", "shuffled"])
@pytest.mark.parametrize("rank", [None, 8])
def test_wide_hypernetworks_leave_out_masked_weights(context, order, rank, monkeypatch):
    """A last layer in blocks computes what the whole one does, from fewer weights."""
    columns = {"columns": torch.arange(40), "reversed": torch.arange(40).flip(0), "shuffled": torch.randperm(40)}[order]

    def build():
        torch.manual_seed(0)
        return Hypernetwork(40, context, 8, (256, 256), columns.tolist(), rank)

    in_blocks = build()
    monkeypatch.setattr("elflow.nn.mlp.MIN_BLOCKED_WEIGHTS", 10**9)
    whole = build()
    x, c = torch.randn(7, 40), torch.randn(7, context) if context else None
    torch.testing.assert_close(in_blocks(x, c), whole(x, c))
    in_blocks_count, whole_count = (sum(p.numel() for p in net.parameters()) for net in (in_blocks, whole))
    assert in_blocks_count < (1.01 if order == "shuffled" else 0.85) * whole_count


def test_rank_saves_weights():
    def count(rank):
        flow = elflow.ELF(63, transforms=1, units=32, hidden_features=(512, 512), rank=rank)
        return sum(p.numel() for p in flow.parameters())

    assert count(16) < 0.4 * count(None)
