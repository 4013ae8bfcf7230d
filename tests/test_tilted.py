"""Tests of flows whose probabilities of combinations of categories are corrected to those of data."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import ndtr, softmax

import elflow
from elflow.flows.compiled import compile_density
from elflow.flows.raking import fit_factors
from elflow.flows.tilted import MAX_LOG_FACTOR, MAX_LOG_PART, MIN_LOG_FACTOR, Tilted
from elflow.flows.whitening import Gaussian
from elflow.kernels import NonFiniteError
from elflow.tabular.integrals._integration import integrate_density, interpolate
from elflow.tabular.integrals._lines import Lines
from experiments.faults.files import read_content, write_content

SMALL = {"transforms": 2, "units": 8, "hidden_features": (32,)}
CELLS = {0: np.array([-0.5, 0.7]), 1: np.array([0.2])}
FACTORS = np.log([[0.2, 1.4], [1.9, 0.6], [1.0, 3.0]])


def make_tilted() -> Tilted:
    """Three correlated normal features, with factors of the cells of the first two."""
    gaussian = Gaussian(3).double()
    covariance = torch.tensor([[1.0, 0.5, 0.3], [0.5, 1.0, -0.4], [0.3, -0.4, 1.0]])
    gaussian.whitening.set_moments(torch.tensor([0.1, -0.2, 0.3]), covariance)
    gaussian.whitening.initialized.fill_(True)
    tilted = Tilted(gaussian, CELLS, [[1], [0, 1]]).double().eval()
    codes = [np.searchsorted(CELLS[k], draw_base(tilted)[:, k].numpy(), side="right") for k in (0, 1)]
    single = np.log([1.5, 0.5])
    constant = -np.log(np.exp(single[codes[1]] + FACTORS[codes[0], codes[1]]).mean())
    tilted.set_factors([single, FACTORS], constant)
    return tilted


def draw_base(tilted: Tilted) -> torch.Tensor:
    torch.manual_seed(0)
    return tilted.flow().sample((400_000,))


def make_clinic(n: int, seed: int) -> pd.DataFrame:
    """Patients of four wards: one is for women only, one has single rooms; a third of the fees is zero, but none of
    surgery."""
    rng = np.random.default_rng(seed)
    ward = rng.choice(["general", "surgery", "maternity", "icu"], n, p=[0.4, 0.3, 0.18, 0.12])
    sex = np.where(ward == "maternity", "F", rng.choice(["F", "M"], n))
    fee = np.where((rng.random(n) < 0.4) & (ward != "surgery"), 0.0, rng.lognormal(3, 0.5, n))
    beds = np.where(ward == "icu", 1, rng.choice([1, 2, 4], n, p=[0.1, 0.5, 0.4]))
    return pd.DataFrame({"ward": ward, "sex": sex, "age": rng.normal(50, 15, n), "fee": fee, "beds": beds})


def test_density_has_an_integral_of_one():
    tilted = make_tilted()
    axis = torch.linspace(-6, 6, 241, dtype=torch.double)
    third = torch.linspace(-6, 6, 61, dtype=torch.double)
    # Midpoints, so that few pieces extend over an end between cells.
    grid = torch.cartesian_prod(axis + 0.0125, axis + 0.0125, third)
    volume = float((axis[1] - axis[0]) ** 2 * (third[1] - third[0]))
    assert float(tilted().log_prob(grid).exp().sum()) * volume == pytest.approx(1.0, abs=0.01)


def test_samples_follow_the_density():
    tilted = make_tilted()
    torch.manual_seed(1)
    x = tilted().sample((40_000,))
    # Importance weights of independent points have the same means.
    base = draw_base(tilted)
    weight = tilted.compute_log_factor(base).exp()
    for function in (lambda x: x, torch.square, lambda x: (x < 0.2).double(), lambda x: x * x.roll(1, -1)):
        expected = (weight[:, None] * function(base)).mean(0)
        spread = function(x).std(0) / len(x) ** 0.5
        assert ((function(x).mean(0) - expected).abs() < 5 * spread).all()
    assert tilted().sample((2, 5)).shape == (2, 5, 3)
    assert tilted().sample((0,)).shape == (0, 3)


def test_highest_factor_is_that_of_a_combination(monkeypatch):
    tilted = make_tilted()
    highest = tilted.compute_log_factor(draw_base(tilted)).max()
    assert tilted.log_highest == pytest.approx(float(highest))
    monkeypatch.setattr("elflow.flows.tilted.MAX_COMBINATIONS", 1)
    assert tilted.log_highest >= float(highest)


def test_kernel_has_the_same_density():
    tilted = make_tilted()
    x = draw_base(tilted)[:2000]
    torch.testing.assert_close(compile_density(tilted).log_prob(x), tilted().log_prob(x))


@pytest.mark.parametrize("position", [0, 2])
def test_integrals_along_features_with_and_without_cells(position):
    tilted = make_tilted()
    z = draw_base(tilted)[:20]
    lines = Lines(z[None], torch.zeros(1, 20, dtype=torch.double), position)
    found = integrate_density(lines, tilted, (-8.0, 8.0))
    points = torch.linspace(-8, 8, 16_001, dtype=torch.double)[None].expand(20, -1)
    density = lines.evaluate(tilted, points)[0].exp()
    mass = torch.cumulative_trapezoid(density, points)
    np.testing.assert_allclose(found.log_mass, mass[:, -1].log().numpy(), atol=2e-3)
    some = points[:, 1::500].numpy()
    expected = (mass / mass[:, -1:])[:, ::500].numpy()
    np.testing.assert_allclose(interpolate(some, found.knots, found.cumulative), expected, atol=2e-3)


@pytest.mark.parametrize("ends", [[-3.7, 3.8], [-3.1, 3.9]])
def test_integrals_where_hardly_any_mass_of_the_flow_remains(ends):
    """Only the outer cells are possible, whose masses under the flow are below 0.001."""
    gaussian = Gaussian(2).double()
    gaussian.whitening.initialized.fill_(True)
    tilted = Tilted(gaussian, {0: np.array(ends)}, [[0]]).double().eval()
    tilted.set_factors([np.array([0.0, -18.0, 0.0])], 0.0)
    lines = Lines(torch.zeros(1, 3, 2).double(), torch.zeros(1, 3).double(), 0)
    found = integrate_density(lines, tilted, (-8.0, 8.0))
    masses = ndtr([ends[0], -ends[1]])
    middle = np.exp(-18.0) * (ndtr(ends[1]) - ndtr(ends[0]))
    other = float(np.log(1 / np.sqrt(2 * np.pi)))
    np.testing.assert_allclose(found.log_mass, np.log(masses.sum() + middle) + other, atol=5e-3)
    at = interpolate(np.full((3, 1), 0.0), found.knots, found.cumulative)
    np.testing.assert_allclose(at, (masses[0] + middle / 2) / (masses.sum() + middle), atol=2e-3)


def test_factors_give_samples_the_shares_of_rows():
    rng = np.random.default_rng(0)
    a = rng.integers(3, size=4000)
    b = np.where(a == 2, 0, rng.integers(4, size=4000))
    samples = {0: rng.integers(3, size=30_000), 1: rng.integers(4, size=30_000)}
    found = fit_factors({0: a, 1: b}, samples, {0: 3, 1: 4}, np.ones(4000))
    log_factor = np.zeros(30_000)
    for table, factors in zip(found.tables, found.factors, strict=True):
        log_factor += factors[tuple(samples[position] for position in table)]
    weight = np.exp(log_factor.clip(max=MAX_LOG_FACTOR) + found.log_constant)
    assert weight.mean() == pytest.approx(1.0)
    for first, second in np.ndindex(3, 4):
        share = weight[(samples[0] == first) & (samples[1] == second)].sum() / 30_000
        assert share == pytest.approx(((a == first) & (b == second)).mean(), abs=0.006)


def test_a_value_of_few_rows_that_always_goes_with_another_is_found():
    """Electric cars, 5 % of the rows, have engines of size 0, which samples have in 70 % of them and in others."""
    rng = np.random.default_rng(0)

    def draw(n, share, other):
        is_electric = rng.random(n) < 0.05
        is_zero = rng.random(n) < np.where(is_electric, share, other)
        return {0: np.where(is_electric, 0, rng.integers(1, 4, n)), 1: np.where(is_zero, 0, rng.integers(1, 7, n))}

    rows, samples = draw(700, 1.0, 0.0), draw(9000, 0.7, 0.012)
    found = fit_factors(rows, samples, {0: 4, 1: 7}, np.ones(700))
    assert found.tables == [[0], [1], [0, 1]]
    total = sum(f[tuple(samples[k] for k in table)] for table, f in zip(found.tables, found.factors, strict=True))
    weight = np.exp(total.clip(max=MAX_LOG_FACTOR))
    is_electric, is_zero = samples[0] == 0, samples[1] == 0
    assert weight[is_electric & is_zero].sum() / weight[is_electric].sum() > 0.97
    assert weight[is_zero & ~is_electric].sum() / weight[~is_electric].sum() < 0.002
    assert weight[is_electric].sum() / weight.sum() == pytest.approx((rows[0] == 0).mean(), abs=0.01)


def test_cells_without_rows_and_samples_keep_their_density():
    """Gaps between numbers, whose cells are narrow: a new value there is not made less likely."""
    rng = np.random.default_rng(0)
    first = 2 * rng.integers(2, size=1000)
    of_samples = {0: 2 * rng.integers(2, size=9000), 1: rng.integers(2, size=9000)}
    found = fit_factors({0: first, 1: first // 2}, of_samples, {0: 3, 1: 2}, np.ones(1000))
    assert found.tables == [[0], [1], [0, 1]]
    assert all(np.abs(factors).max() <= MAX_LOG_PART for factors in found.factors)
    single, other, pair = found.factors
    assert single[1] > -1
    assert pair[1].min() > -1
    assert (single[1] + other + pair[1] + found.log_constant).min() > -2


def test_right_shares_are_rarely_changed():
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        rows, samples = ({k: rng.choice(3, n, p=[0.6, 0.3, 0.1]) for k in range(4)} for n in (500, 4000))
        found.append(fit_factors(rows, samples, dict.fromkeys(range(4), 3), np.ones(500)))
    assert sum(factors is not None for factors in found) <= 4  # 2 % of the tables


@pytest.mark.parametrize("n_features", [6, 10])
def test_rows_gain_from_factors_of_many_tables(n_features):
    """All features depend on a hidden one, which samples do not know: more than factors of limited size can correct."""
    rng = np.random.default_rng(0)
    hidden, own = rng.integers(5, size=1000), rng.integers(5, size=(n_features, 1000))
    rows = {k: np.where(rng.random(1000) < 0.5, hidden, own[k]) for k in range(n_features)}
    samples = {k: rng.integers(5, size=8000) for k in range(n_features)}
    found = fit_factors(rows, samples, dict.fromkeys(range(n_features), 5), np.ones(1000))

    def add_up(codes):
        parts = zip(found.tables, found.factors, strict=True)
        total = sum(factors[tuple(codes[k] for k in table)] for table, factors in parts)
        return total.clip(MIN_LOG_FACTOR, MAX_LOG_FACTOR) + found.log_constant

    fresh = {k: rng.integers(5, size=100_000) for k in range(n_features)}
    assert add_up(rows).mean() - np.log(np.exp(add_up(fresh)).mean()) > 0.5
    weight = np.exp(add_up(samples))
    before, after = [], []
    for table in found.tables[n_features:]:
        shares = [
            np.bincount(np.ravel_multi_index([codes[k] for k in table], (5, 5)), part, minlength=25) / part.sum()
            for codes, part in ((rows, np.ones(1000)), (samples, np.ones(8000)), (samples, weight))
        ]
        before.append(np.abs(shares[1] - shares[0]).sum() / 2)
        after.append(np.abs(shares[2] - shares[0]).sum() / 2)
    assert np.mean(after) < 0.9 * np.mean(before)


def test_weights_count_as_rows():
    rng = np.random.default_rng(0)
    a, b = rng.integers(2, size=(2, 2000))
    is_same = a == b
    samples = dict(enumerate(rng.integers(2, size=(2, 20_000))))
    weighted = fit_factors({0: a, 1: b}, samples, {0: 2, 1: 2}, np.where(is_same, 3.0, 1.0))
    assert weighted.tables[-1] == [0, 1]
    assert np.diff(weighted.factors[-1].diagonal()) == pytest.approx(0.0, abs=0.3)
    assert fit_factors({0: a, 1: b}, samples, {0: 2, 1: 2}, np.ones(2000)) is None


def test_factors_that_reject_every_sample_raise_an_error():
    # Only a cell in which the flow has no samples has a large factor.
    tilted = Tilted(make_tilted().flow, {0: [50.0]}, [[0]]).double().eval()
    tilted.set_factors([np.array([-20.0, 2.0])], 0.0)
    with pytest.raises(NonFiniteError, match="factors of cells must leave some samples, got none of 20 times"):
        tilted().sample((3,))


@pytest.fixture(scope="module")
def clinic():
    """A density with factors, and its table."""
    table = make_clinic(800, seed=0)
    density = elflow.FlowDensity(random_state=0, max_steps=60, flow_options=SMALL, members=["cholesky", "gaussian"])
    density.fit(table)
    assert density.options_["tables"]
    return density, table


def test_combinations_of_categories_keep_their_shares(clinic):
    density, table = clinic
    sample = density.sample(10_000, random_state=0)
    assert (sample.sex[sample.ward == "maternity"] == "M").mean() < 0.02
    assert (sample.fee[sample.ward == "surgery"] == 0).mean() < 0.02
    assert (sample.beds[sample.ward == "icu"] == 1).mean() > 0.95
    for name in ("ward", "sex"):
        shares = (frame[name].value_counts(normalize=True) for frame in (sample, table))
        pd.testing.assert_series_equal(*shares, check_exact=False, atol=0.04, rtol=0)


def test_conditional_probabilities_agree_with_scores(clinic):
    density, table = clinic
    some = table.head(40)
    for name in ("ward", "sex"):
        found = density.conditional_proba(some, name)
        scores = [density.score_samples(some.assign(**{name: level}), n_draws=1024) for level in found]
        np.testing.assert_allclose(found.to_numpy(), softmax(np.stack(scores, 1), axis=1), atol=0.02)


def test_conditional_distributions_of_few_numbers_agree_with_scores(clinic):
    density, table = clinic
    some = table.head(40)
    scores = [density.score_samples(some.assign(beds=beds), n_draws=1024) for beds in (1, 2, 3, 4)]
    expected = softmax(np.stack(scores, 1), axis=1).cumsum(1)
    for k, beds in enumerate((1, 2, 3)):
        found = density.conditional_cdf(some.assign(beds=beds), "beds")
        np.testing.assert_allclose(found, expected[:, k], atol=0.02)


def test_conditional_samples_have_the_factors(clinic):
    density, _ = clinic
    women = density.sample(500, given={"ward": "maternity"}, random_state=0)
    assert (women.sex == "M").mean() < 0.04
    combination = pd.DataFrame({"ward": ["maternity"], "sex": ["M"]})
    assert density.marginal(["ward", "sex"]).score_samples(combination)[0] < np.log(0.01)


def test_file_holds_factors(clinic, tmp_path):
    density, table = clinic
    density.save(tmp_path / "model.elf")
    again = elflow.load(tmp_path / "model.elf")
    np.testing.assert_array_equal(again.score_samples(table), density.score_samples(table))
    assert again.sample(50, random_state=0).equals(density.sample(50, random_state=0))
    assert again.members_ == density.members_


@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        ("flow.table0", 23.0, r"flow\.table0 must be at most 20 in size, got 23"),
        ("flow.table0", -21.0, r"flow\.table0 must be at most 20 in size, got -21"),
        ("flow.log_constant", 5.0, r"flow\.log_constant must be at most 2\.77259 in size, got 5"),
    ],
)
def test_files_with_extreme_factors_are_refused(clinic, tmp_path, tensor, value, message):
    path = tmp_path / "model.elf"
    clinic[0].save(path)
    header, tensors = read_content(path)
    tensors[tensor][...] = value
    write_content(path, header, tensors)
    with pytest.raises(ValueError, match=message):
        elflow.load(path)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([[0, 0]], r"tables\[0\] must have one or two different features, got \[0, 0\]"),
        ([[]], r"tables\[0\] must have one or two different features, got \[\]"),
        ([[0]] * 137, r"tables must be at most 136, got 137"),
        ([["a"]], r"tables\[0\]\[0\] must be an integer"),
        ([[2]], r"path must be a model saved by elflow"),  # a feature without cells
    ],
)
def test_files_with_other_tables_are_refused(clinic, tmp_path, tables, message):
    path = tmp_path / "model.elf"
    clinic[0].save(path)
    header, tensors = read_content(path)
    config = json.loads(header["config"])
    config["fitted"]["options_"]["tables"] = tables
    header["config"] = json.dumps(config)
    write_content(path, header, tensors)
    with pytest.raises(ValueError, match=message):
        elflow.load(path)


def test_tables_with_a_context_have_no_factors():
    table = make_clinic(200, seed=0)
    density = elflow.FlowDensity(max_steps=5, random_state=0, flow_options=SMALL)
    density.fit(table[["ward", "sex", "fee"]], context=table[["age"]])
    assert "tables" not in density.options_
