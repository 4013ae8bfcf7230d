"""Threads of a training: one within operations of small flows, several for the members of a mixture."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import elflow
from elflow.flows import mixture as mixture_module
from elflow.flows._threads import stack_results
from elflow.flows.mixture import FlowMixture
from elflow.kernels import NonFiniteError
from elflow.tabular import estimator
from elflow.training import Recipe, fit, sharing_threads


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class StoppedError(Exception):
    """Ends a fit before its first step: steps on two threads take long where another test uses a core."""


@pytest.mark.usefixtures("two_threads")
def test_a_table_of_few_columns_is_trained_on_one_thread(monkeypatch):
    n_threads = []

    def train(*args, **options):
        n_threads.append(torch.get_num_threads())
        raise StoppedError

    monkeypatch.setattr(estimator, "fit", train)
    with pytest.raises(StoppedError):
        elflow.FlowDensity(random_state=0).fit(np.random.default_rng(0).normal(size=(100, 2)))
    assert n_threads == [1]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_is_restored_after_an_error():
    with pytest.raises(KeyError), sharing_threads(elflow.ELF(features=2), batch_size=128):
        raise KeyError
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_large_flows_keep_their_threads():
    flow = elflow.ELF(features=63, hidden_features=(256, 256))
    with sharing_threads(flow, batch_size=512):
        assert torch.get_num_threads() == 2


def test_more_threads_are_never_started():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with sharing_threads(elflow.ELF(features=63, hidden_features=(256, 256)), batch_size=4_096):
        assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


class Square(torch.nn.Module):
    """A member of a mixture, whose density has one parameter."""

    def __init__(self, scale):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(scale))

    def forward(self, c=None):
        mean = self.scale.new_zeros(2) if c is None else c
        normal = torch.distributions.Normal(mean, self.scale.expand(2), validate_args=False)
        return torch.distributions.Independent(normal, 1)


def train_mixture(n_threads):
    torch.manual_seed(0)
    x = torch.randn(1000, 3) @ torch.randn(3, 3)
    flows = [elflow.ELF(features=3, transforms=1, units=4, hidden_features=(8,)) for _ in range(3)]
    mixture = FlowMixture(flows)
    mixture.train_in_threads(n_threads)
    recipe = Recipe(max_steps=12, round_steps=4, optimizer=["adamw", "muon", "adamw"])
    fitted, training = fit(mixture, x[:900], x[900:], recipe)
    return fitted.state_dict(), training.history


@pytest.mark.parametrize("n_threads", [2, 3])
def test_members_on_threads_have_the_weights_of_members_in_turn(n_threads):
    (plain, before), (parallel, after) = train_mixture(1), train_mixture(n_threads)
    assert all(torch.equal(plain[key], parallel[key]) for key in plain)
    assert [entry["validation"] for entry in before] == [entry["validation"] for entry in after]


def test_gradients_of_points_are_those_without_threads():
    mixture = FlowMixture([Square(1.0), Square(2.0)]).train()
    mixture.initialize(torch.randn(5, 2))
    mixture.train_in_threads(2)
    x = torch.ones(5, 2, requires_grad=True)
    mixture().log_prob(x).sum().backward()
    assert torch.allclose(x.grad, torch.full((5, 2), -(1 + 0.25) / 2))
    assert all(flow.scale.grad is not None for flow in mixture.flows)


def test_gradients_of_a_context_are_those_without_threads():
    embedding = torch.nn.Linear(3, 2)
    mixture = FlowMixture([Square(1.0), Square(2.0)]).train()
    gradients = []
    for n_threads in (1, 2):
        mixture.train_in_threads(n_threads)
        embedding.zero_grad()
        mixture(embedding(torch.ones(5, 3))).log_prob(torch.ones(5, 2)).sum().backward()
        gradients.append(embedding.weight.grad.clone())
    assert torch.equal(*gradients)


def test_other_devices_have_no_threads(monkeypatch):
    """A device goes backward on one thread, which would wait for the others forever."""
    n_threads = []

    def record(functions, n):
        n_threads.append(n)
        return stack_results(functions, n)

    monkeypatch.setattr(mixture_module, "stack_results", record)
    for device in ("cpu", "meta"):
        mixture = FlowMixture([Square(1.0), Square(2.0)]).to(device).train()
        mixture.train_in_threads(2)
        mixture().log_prob(torch.ones(5, 2, device=device))
    assert n_threads == [2, 1]


def test_an_error_of_a_member_is_that_of_the_mixture():
    def fail():
        raise NonFiniteError("weights must be finite")

    parameter = torch.ones(3, requires_grad=True)
    with pytest.raises(NonFiniteError, match="weights must be finite"):
        stack_results([lambda: 2 * parameter, fail], n_threads=2)


def test_autocast_reaches_the_functions():
    weight = torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        results = stack_results([lambda: weight @ weight, lambda: weight @ weight.T], n_threads=2)
    assert results.dtype == torch.bfloat16


FORKING = """
import multiprocessing
import torch
from elflow.flows._threads import stack_results
parameter = torch.ones(3, requires_grad=True)
functions = [lambda: 2 * parameter, lambda: 3 * parameter]
stack_results(functions, n_threads=2)
process = multiprocessing.get_context("fork").Process(target=stack_results, args=(functions, 2))
process.start()
process.join(60)
assert process.exitcode == 0, process.exitcode
"""


def test_a_forked_process_has_threads_of_its_own():
    """In a new process: libraries that other tests have started do not all survive a fork."""
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING], check=True, timeout=120)
