"""The training loop: it learns known densities, and never goes on from a number that is not one."""

import math

import pytest
import torch
import zuko

import elflow
from elflow.datasets import toy
from elflow.training import train


def gap(flow, distribution, n=20_000):
    """By how much the flow's mean log-density is below the best possible, and its standard error."""
    torch.manual_seed(123)
    x = distribution.sample((n,))
    with torch.no_grad():
        difference = distribution.log_prob(x) - flow().log_prob(x)
    return difference.mean(), difference.std() / math.sqrt(n)


@pytest.mark.parametrize("features", [1, 3])
def test_learns_a_gaussian(features):
    scale, loc = 0.1 + torch.arange(features), 10.0 * torch.arange(features)
    flow = elflow.ELF(features, transforms=1, units=8, hidden_features=(32,))
    flow, history = train(flow, lambda: loc + scale * torch.randn(256, features), steps=200, halve_every=50)
    entropy = 0.5 * math.log(2 * math.pi * math.e) * features + scale.log().sum()
    x = loc + scale * torch.randn(20_000, features)
    with torch.no_grad():
        assert flow().log_prob(x).mean() > -entropy - 0.03
    assert len(history.loss) == 200
    assert not flow.training


def test_learns_eight_gaussians_from_few_steps():
    distribution = toy.EightGaussians()
    flow = elflow.ELF(2, transforms=1, units=32, hidden_features=(64, 64), bound=0.999)
    flow, _ = train(flow, lambda: distribution.sample((128,)), steps=1000, rate=5e-3, halve_every=250)
    difference, error = gap(flow, distribution)
    assert -4 * error < difference < 0.1


def test_learns_what_depends_on_a_context():
    def batch():
        c = torch.rand(256, 1)
        return 5 * c + 0.1 * torch.randn(256, 1), c

    flow, _ = train(elflow.ELF(1, 1, transforms=1, units=8, hidden_features=(32,)), batch, steps=500, halve_every=125)
    c = torch.tensor([[0.1], [0.9]])
    median = flow.conditional_quantile(torch.full((2, 1), 0.5), c=c)
    torch.testing.assert_close(median, 5 * c, atol=0.1, rtol=0)


def test_takes_the_batches_of_a_data_loader():
    rows = torch.utils.data.TensorDataset(torch.randn(64, 2), torch.randn(64, 3))
    batches = iter(torch.utils.data.DataLoader(rows, batch_size=16))
    _, history = train(elflow.ELF(2, 3, units=4), lambda: next(batches), steps=4, clip=math.inf)
    assert len(history.loss) == 4


def test_trains_zukos_flows():
    flow, history = train(zuko.flows.MAF(2, hidden_features=(16,)), lambda: torch.randn(64, 2), steps=20)
    assert isinstance(flow, zuko.flows.MAF)
    assert all(math.isfinite(loss) for loss in history.loss)


def test_the_average_is_an_average():
    flow = elflow.ELF(1, transforms=1, units=4)
    averaged, _ = train(flow, lambda: torch.randn(64, 1), steps=30, decay=0.9)
    last, _ = train(flow, lambda: torch.randn(64, 1), steps=1, decay=0.0)
    for a, b, c in zip(averaged.parameters(), last.parameters(), flow.parameters(), strict=True):
        assert (b == c).all()
        assert not (a == c).all()


def test_progress_is_told():
    told = []
    flow = elflow.ELF(1, transforms=1, units=4)
    _, history = train(flow, lambda: torch.randn(64, 1), steps=5, progress=lambda step, loss: told.append((step, loss)))
    assert told == list(enumerate(history.loss, start=1))


def test_stops_at_what_is_not_a_number():
    class Broken(zuko.flows.MAF):
        def forward(self, c=None):
            with torch.no_grad():
                next(self.parameters()).fill_(math.nan)
            return super().forward(c)

    with pytest.raises(FloatingPointError, match="the loss is nan and its gradient nan at step 1: lower the rate"):
        train(Broken(2), lambda: torch.randn(8, 2), steps=3)


def test_data_instead_of_a_function():
    with pytest.raises(TypeError, match="batch must be a function that gives the next batch, got Tensor"):
        train(elflow.ELF(1), torch.randn(8, 1))


@pytest.mark.parametrize("changed", [{"steps": 0}, {"rate": -1.0}, {"halve_every": 0}, {"clip": 0.0}, {"decay": 1.0}])
def test_bad_input(changed):
    with pytest.raises(ValueError, match=next(iter(changed))):
        train(elflow.ELF(1), lambda: torch.randn(8, 1), **{"steps": 1} | changed)
