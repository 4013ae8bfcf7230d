"""Fixtures for the tests of the experiments."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Jobs run on one thread, as in the runner."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
