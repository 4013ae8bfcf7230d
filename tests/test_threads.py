"""Threads of a training: small flows are trained on one, and the number is restored."""

import numpy as np
import pytest
import torch

import elflow
from elflow.tabular import estimator
from elflow.training import limiting_threads


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
    with pytest.raises(KeyError), limiting_threads(elflow.ELF(features=2), batch_size=128):
        raise KeyError
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_large_flows_keep_their_threads():
    flow = elflow.ELF(features=63, hidden_features=(256, 256))
    with limiting_threads(flow, batch_size=512):
        assert torch.get_num_threads() == 2


def test_more_threads_are_never_started():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with limiting_threads(elflow.ELF(features=63, hidden_features=(256, 256)), batch_size=4_096):
        assert torch.get_num_threads() == 1
    torch.set_num_threads(before)
