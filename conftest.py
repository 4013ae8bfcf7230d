import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Start every test and doctest from one seed, whichever worker runs it and whatever ran before."""
    torch.manual_seed(0)
