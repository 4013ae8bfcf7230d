"""Heaps: round numbers that are frequent all along a grid. The truth is the distribution that draws the numbers."""

import warnings

import numpy as np
import pandas as pd
import pytest

from elflow.tabular import Column
from elflow.tabular.columns._heaps import Heaps, find_heaps


def draw_amounts(share, step, n_rows=1500, seed=0, scale=1.0):
    """Lognormal amounts, a share of which are rounded to multiples of a step, and the others to units of a scale."""
    rng = np.random.default_rng(seed)
    amounts = rng.lognormal(8, 0.6, n_rows)
    return np.where(rng.random(n_rows) < share, np.round(amounts / step) * step, np.round(amounts)) * scale


@pytest.mark.parametrize(
    ("share", "step", "scale"), [(0.98, 100, 1.0), (0.7, 50, 1.0), (0.9, 10, 1.0), (0.95, 100, 0.01), (0.8, 60, 1.0)]
)
def test_samples_have_the_heaps_of_the_data(share, step, scale):
    """Before, gaps between heaps took up to a tenth of the samples, or there were no heaps at all."""
    column = Column.fit(pd.Series(draw_amounts(share, step, scale=scale), name="x"))
    z = np.random.default_rng(1).normal(size=20_000)
    samples = column.decode(z).to_numpy() / scale
    truth = draw_amounts(share, step, n_rows=100_000, seed=2)
    is_heap = np.abs(samples / step - np.round(samples / step)) < 1e-6
    assert is_heap.mean() == pytest.approx((truth % step == 0).mean(), abs=0.02)
    levels = [0.02, 0.25, 0.5, 0.75, 0.98]
    assert np.quantile(samples, levels) == pytest.approx(np.quantile(truth, levels), rel=0.08)


def test_nested_heaps():
    """Amounts that are rounded to thousands or to hundreds or not at all."""
    rng = np.random.default_rng(0)
    amounts, step = rng.normal(50_000, 8_000, 3000), rng.choice([1000, 100, 1], 3000, p=[0.5, 0.4, 0.1])
    values = np.round(amounts / step) * step
    column = Column.fit(pd.Series(values.astype(int), name="x"))
    samples = column.decode(rng.normal(size=20_000)).to_numpy()
    for divisor in (1000, 100):
        assert (samples % divisor == 0).mean() == pytest.approx((values % divisor == 0).mean(), abs=0.01)


def test_probabilities_of_a_heaped_grid_sum_to_one():
    column = Column.fit(pd.Series(draw_amounts(0.98, 100).astype(int), name="x"))
    assert column.period == 100
    points = pd.Series(np.arange(0, 400_000), name="x")
    low, width, offset = column.encode(points)
    assert (offset == 0).all()
    assert low[1:] == pytest.approx((low - width)[:-1], abs=1e-9)  # intervals follow each other
    assert (column.decode(low - width / 2) == points).all()


@pytest.mark.parametrize("atoms", [(), (0,), (-200, 0, 7)])
def test_intervals_of_integers(atoms):
    heaps = Heaps(100, (0, 50), (0.6, 0.3), atoms)
    integers = np.setdiff1d(np.arange(-1000, 1000), atoms)
    low, width = heaps.find_lower(integers), heaps.find_widths(integers)
    assert low[1:] == pytest.approx((low + width)[:-1])
    assert (heaps.find_integers(low + width / 2) == integers).all()
    assert width[integers % 100 == 0] == pytest.approx(60)
    assert width[integers % 100 == 50] == pytest.approx(30)
    at_atoms = np.array(atoms, np.int64)
    assert heaps.find_lower(at_atoms + 1) == pytest.approx(heaps.find_lower(at_atoms))


def test_smooth_numbers_have_no_heaps():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        assert find_heaps(rng.lognormal(8, 1, 1000).astype(np.int64)) is None
        assert find_heaps(rng.normal(0, 300, 1000).round().astype(np.int64)) is None


def test_significant_digits_are_no_heaps():
    """Numbers with three significant digits: the larger ones are multiples of 10 or 100, the smaller ones are not."""
    x = np.random.default_rng(0).lognormal(6, 1.5, 2000)
    digits = np.floor(np.log10(x))
    assert find_heaps(np.round(np.round(x / 10.0 ** (digits - 2)) * 10.0**digits).astype(np.int64)) is None


def test_a_sentinel_among_heaps_is_an_atom():
    x = np.append(draw_amounts(0.9, 100), np.full(60, -999.0))
    with pytest.warns(UserWarning, match="values far from all others: -999"):
        column = Column.fit(pd.Series(x, name="x"))
    assert column.atoms == (-999,)
    assert column.period == 100


@pytest.mark.parametrize("code", [-1000, -1, 0, 99_999])
@pytest.mark.parametrize("n_rows", [1500, 5000])
def test_rare_codes_among_heaps_are_atoms(code, n_rows):
    """A code of 1.2% of the rows was lost, and its remainder became a heap."""
    values = np.append(draw_amounts(0.9, 100, n_rows), np.full(round(0.012 * n_rows), float(code)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # codes far away are named
        column = Column.fit(pd.Series(values, name="x"))
    assert column.atoms == (code,)
    assert column.period == 100
    assert column.residues == (0,)


def test_ends_of_large_numbers_are_sampled():
    """The margin at an end was relative, and larger than an interval of numbers above a billion."""
    values = pd.Series(np.repeat(1_700_000_000 + np.arange(100), 200), name="t")
    for declared in (None, (1_700_000_000, 1_700_000_099)):
        column = Column.fit(values, declared)
        assert column.dithered
        assert (column.decode(column.encode_midpoints(values)) == values).all()


@pytest.mark.parametrize("bounds", [(0, 1e19), (0, 1e300), (-1e300, None)])
def test_bounds_beyond_all_integers_are_none(bounds):
    column = Column.fit(pd.Series(np.random.default_rng(0).poisson(50, 500), name="x"), bounds)
    assert column.decode(np.array([-1.0, 0.0, 1.0])).between(30, 70).all()


@pytest.mark.parametrize(
    "damage",
    [{"period": 100.0}, {"period": True}, {"residues": [0.5]}, {"atoms": [0.1, 0.2], "shares": [0.1, 0.1, 0.8]}],
)
def test_damaged_heaps_are_refused(damage):
    state = Column.fit(pd.Series(draw_amounts(0.9, 100), name="x")).to_dict()
    with pytest.raises(ValueError, match="column 'x' must have"):
        Column.from_dict(state | damage)


def test_heaps_are_described_and_stored():
    column = Column.fit(pd.Series(draw_amounts(0.98, 100), name="x"))
    assert "multiples of 100" in column.describe()["values"]
    state = column.to_dict()
    assert Column.from_dict(state).heaps == column.heaps
    for changed in ({"period": 0}, {"residues": [100]}, {"residue_shares": [1.5]}, {"residue_shares": []}):
        with pytest.raises(ValueError, match="heaps"):
            Column.from_dict(state | changed)
