"""Permutations in bounded memory, and the splits of tables that use them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

import elflow.tabular.fitting._split
import elflow.training.permutations
from elflow.tabular import Split
from elflow.training import Permutation, scramble


@given(st.integers(1, 600), st.integers(0, 2**40))
def test_scrambled_integers_are_a_permutation(n, seed):
    assert sorted(scramble(np.arange(n), n, seed).tolist()) == list(range(n))


def test_scrambled_integers_look_random():
    n = 5000
    values = np.array([scramble(np.array([7, 8]), n, seed) for seed in range(2000)])
    counts = np.histogram2d(values[:, 0], values[:, 1], bins=5, range=[[0, n]] * 2)[0]
    assert chisquare(counts.ravel()).pvalue > 1e-3
    order = scramble(np.arange(n), n, 0)
    assert abs(np.corrcoef(order[:-1], order[1:])[0, 1]) < 0.06
    assert abs(np.corrcoef(order, np.arange(n))[0, 1]) < 0.06


def test_long_permutations_are_not_stored(monkeypatch):
    monkeypatch.setattr(elflow.training.permutations, "MAX_STORED", 100)
    permutation = Permutation(1001, 3)
    parts = [permutation.take(first, first + 100) for first in range(0, 1001, 100)]
    assert [len(part) for part in parts] == [*[100] * 10, 1]
    assert sorted(np.concatenate(parts).tolist()) == list(range(1001))


@pytest.mark.parametrize("stored", [2**22, 10])
@pytest.mark.parametrize(("count", "fraction"), [(5, 0.1), (1000, 0.1), (1000, 0.999999), (777, 0.05)])
def test_splits(monkeypatch, stored, count, fraction):
    monkeypatch.setattr(elflow.tabular.fitting._split, "MAX_STORED", stored)
    monkeypatch.setattr(elflow.tabular.fitting._split, "MAX_VALIDATION_ROWS", 50)
    split = Split(count, fraction, seed=1)
    mask = split.is_validation(0, count)
    assert mask.sum() == split.n_validation == min(max(1, round(fraction * count)), count - 2)
    assert split.n_training == count - mask.sum()
    blocks = [split.is_validation(first, first + 64) for first in range(0, count, 64)]
    assert np.array_equal(np.concatenate(blocks), mask)
    scored, reference = split.is_scored(0, count), split.is_reference(0, count)
    assert scored.sum() == min(50, mask.sum())
    assert mask[scored].all()
    assert reference.sum() == (mask.sum() if mask.sum() >= 100 else count)
