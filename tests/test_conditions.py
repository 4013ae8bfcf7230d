"""Questions about any columns given any others, against densities whose answers are known."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import elflow
from elflow.flows.mixture import GaussianMixture
from elflow.flows.whitening import Gaussian
from elflow.tabular import ExtrapolationWarning, FlowDensity, Info, PoorSampleWarning
from elflow.tabular.integrals._proposals import Gaussians
from elflow.tabular.queries._given import build_regions

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}
N_ROWS = 1200


def fit(frame: pd.DataFrame, **options) -> FlowDensity:
    settings = {"flow_options": SMALL, "max_steps": 3, "random_state": 0, "members": ["identity", "gaussian"]}
    return FlowDensity(**settings | options).fit(frame)


def known_mixture(features: int, seed: int = 0, components: int = 3) -> GaussianMixture:
    """Mixture of Gaussians over features, in double precision."""
    rng = np.random.default_rng(seed)
    mixture = GaussianMixture(features, components=components).double().eval()
    for flow in mixture.flows:
        root = rng.normal(size=(features, features)) * 0.5 + 0.5 * np.eye(features)
        flow.whitening.set_moments(
            torch.from_numpy(rng.normal(size=features)), torch.from_numpy(root @ root.T + 0.05 * np.eye(features))
        )
    mixture.set_weights(rng.uniform(0.5, 1, components).tolist())
    return mixture


def one_gaussian(features: int) -> Gaussians:
    """A single broad Gaussian, a poor proposal."""
    gaussian = Gaussian(features).double()
    gaussian.whitening.set_moments(torch.zeros(features).double(), 3 * torch.eye(features).double())
    found = Gaussians.from_flow(gaussian)
    assert found is not None
    return found


def condition_mixture(mixture: GaussianMixture, known: dict[int, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, means and covariances of the other features given known ones."""
    exact = Gaussians.from_flow(mixture)
    assert exact is not None
    given = list(known)
    rest = [i for i in range(exact.mean.shape[1]) if i not in known]
    value = np.array(list(known.values()))
    log_weights, means, covariances = [], [], []
    for weight, mean, covariance in zip(
        exact.log_weight.numpy(), exact.mean.numpy(), exact.covariance.numpy(), strict=True
    ):
        if not given:
            log_weights.append(weight)
            means.append(mean)
            covariances.append(covariance)
            continue
        gain = covariance[np.ix_(rest, given)] @ np.linalg.inv(covariance[np.ix_(given, given)])
        log_weights.append(
            weight + stats.multivariate_normal(mean[given], covariance[np.ix_(given, given)]).logpdf(value)
        )
        means.append(mean[rest] + gain @ (value - mean[given]))
        covariances.append(covariance[np.ix_(rest, rest)] - gain @ covariance[np.ix_(given, rest)])
    weights = np.exp(np.array(log_weights) - np.max(log_weights))
    return weights / weights.sum(), np.array(means), np.array(covariances)


def mixture_cdf(z: np.ndarray, weights: np.ndarray, means: np.ndarray, variances: np.ndarray) -> np.ndarray:
    return (weights * stats.norm.cdf((np.asarray(z)[..., None] - means) / np.sqrt(variances))).sum(-1)


@pytest.fixture(scope="module")
def continuous() -> FlowDensity:
    """Five continuous columns whose density is a known mixture of Gaussians."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(N_ROWS, 5)), columns=list("abcde"))
    density = fit(frame)
    density.model_.flow = known_mixture(5)
    return density


@pytest.fixture(scope="module")
def mixed() -> FlowDensity:
    """Columns of all kinds: numbers with an atom, counts, categories, missing values."""
    rng = np.random.default_rng(2)
    frame = pd.DataFrame(
        {
            "x": rng.normal(size=N_ROWS),
            "spend": np.where(rng.random(N_ROWS) < 0.3, 0.0, rng.lognormal(size=N_ROWS)),
            "age": rng.normal(40, 10, size=N_ROWS).round(),
            "kind": rng.choice(["a", "b", "c"], N_ROWS, p=[0.5, 0.3, 0.2]),
            "gap": np.where(rng.random(N_ROWS) < 0.2, np.nan, rng.normal(size=N_ROWS)),
        }
    )
    density = fit(frame, missing="model")
    density.model_.flow = known_mixture(density.schema_.features, seed=5)
    return density


def encode(density: FlowDensity, name: str, values) -> np.ndarray:
    return density.schema_.column(name).encode_upper(pd.Series(values))


def test_draws_follow_the_conditional_distribution_with_a_poor_proposal(continuous, monkeypatch):
    monkeypatch.setattr(FlowDensity, "_find_gaussians", lambda self, context: one_gaussian(5))
    given = {"b": 0.4, "d": -0.3}
    frame = continuous.sample(3000, given=given, random_state=0)
    assert (frame["b"] == 0.4).all()
    assert (frame["d"] == -0.3).all()
    known = {i: float(encode(continuous, name, [value])[0]) for i, name, value in ((1, "b", 0.4), (3, "d", -0.3))}
    weights, means, covariances = condition_mixture(continuous.model_.flow, known)
    for k, name in enumerate("ace"):
        cdf = mixture_cdf(encode(continuous, name, frame[name]), weights, means[:, k], covariances[:, k, k])
        assert stats.kstest(cdf, "uniform").statistic < 0.04
    exact = means.T @ weights
    found = np.stack([encode(continuous, name, frame[name]) for name in "ace"])
    between = (weights[:, None, None] * (covariances + (means - exact)[:, :, None] * (means - exact)[:, None])).sum(0)
    assert np.abs(np.cov(found) - between).max() < 0.15 * np.abs(between).max()


@pytest.mark.slow
@pytest.mark.parametrize("given", [["b"], ["a", "b"], ["a", "b", "d", "e"], []])
def test_cdf_and_quantile_given_a_subset(continuous, monkeypatch, given):
    monkeypatch.setattr(FlowDensity, "_find_gaussians", lambda self, context: one_gaussian(5))
    frame = pd.DataFrame(np.random.default_rng(3).normal(size=(4, 5)), columns=list("abcde"))
    found = continuous.conditional_cdf(frame, "c", given=given, n_points=4096)
    sizes = continuous.conditional(frame, "c", given=given, n_points=4096).effective_sample_size
    assert sizes is not None
    for row in range(len(frame)):
        known = {"abcde".index(n): float(encode(continuous, n, frame[n])[row]) for n in given}
        weights, means, covariances = condition_mixture(continuous.model_.flow, known)
        k = [i for i in range(5) if i not in known].index(2)
        z = encode(continuous, "c", frame["c"])[row]
        exact = mixture_cdf(z, weights, means[:, k], covariances[:, k, k])
        # The effective sample size states the error: that of as many independent points.
        assert found[row] == pytest.approx(exact, abs=3 * np.sqrt(0.25 / sizes[row]))
    median = continuous.conditional_quantile(frame, "c", 0.5, given=given, n_points=4096)
    again = continuous.conditional_cdf(frame.assign(c=median), "c", given=given, n_points=4096)
    assert again == pytest.approx(0.5, abs=0.01)


def test_marginal_and_conditional_density(continuous, monkeypatch):
    monkeypatch.setattr(FlowDensity, "_find_gaussians", lambda self, context: one_gaussian(5))
    frame = pd.DataFrame(np.random.default_rng(4).normal(size=(6, 5)), columns=list("abcde"))
    names, exact = ["b", "e"], Gaussians.from_flow(continuous.model_.flow)
    z = np.stack([encode(continuous, name, frame[name]) for name in names], 1)
    slope = sum(continuous.schema_.column(name).encode(frame[name])[2] for name in names)
    expected = np.log(
        sum(
            np.exp(w) * stats.multivariate_normal(m[[1, 4]], c[[1, 4]][:, [1, 4]]).pdf(z)
            for w, m, c in zip(exact.log_weight.numpy(), exact.mean.numpy(), exact.covariance.numpy(), strict=True)
        )
    )
    found, info = continuous.marginal(names).score_samples(frame, n_points=4096, return_info=True)
    assert found == pytest.approx(expected + slope, abs=0.1)
    assert info.method == "importance sampling"
    ratio = continuous.conditional_density(frame, "b", given=["e"], n_points=4096)
    of_e = continuous.marginal(["e"]).score_samples(frame, n_points=4096)
    assert np.log(ratio) == pytest.approx(expected + slope - of_e, abs=0.1)


def test_full_density_is_the_marginal_of_all_columns(continuous):
    frame = pd.DataFrame(np.random.default_rng(5).normal(size=(6, 5)), columns=list("abcde"))
    found, info = continuous.marginal(list("abcde")).score_samples(frame, return_info=True)
    assert info.method == "exact"
    assert found == pytest.approx(continuous.score_samples(frame), abs=1e-4)


CONDITIONS = [
    {"x": (0.0, 1.0)},
    {"kind": ["a", "c"]},
    {"age": (30, 45), "kind": "b"},
    {"spend": (0, 1)},
    {"spend": 0.0},
    {"spend": (0.5, None), "x": (None, 0)},
    {"gap": elflow.MISSING},
    {"age": [35, 36, 50], "gap": (-1, 1)},
]


def holds(frame: pd.DataFrame, condition: dict) -> np.ndarray:
    """Rows of a frame for which a condition holds."""
    mask = np.ones(len(frame), bool)
    for name, value in condition.items():
        if value is elflow.MISSING:
            mask &= frame[name].isna().to_numpy()
        elif isinstance(value, tuple):
            low, high = (-np.inf if value[0] is None else value[0]), (np.inf if value[1] is None else value[1])
            mask &= frame[name].between(low, high).to_numpy()
        else:
            mask &= frame[name].isin(value if isinstance(value, list) else [value]).to_numpy()
    return mask


@pytest.mark.slow
@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_conditions_agree_with_selected_samples(mixed, condition):
    """Rows drawn given a condition are distributed as those samples of the density for which it holds."""
    everything = mixed.sample(100_000, random_state=1)
    selected = everything[holds(everything, condition)]
    drawn = mixed.sample(2000, given=condition, random_state=0)
    assert holds(drawn, condition).all()
    assert drawn.dtypes.equals(everything.dtypes)
    assert drawn.attrs["elflow"]["method"] == "importance sampling"
    error = 4 * np.sqrt(0.25 / len(selected) + 0.25 / len(drawn))
    for name in everything.columns:
        if name == "kind":
            for level in "abc":
                assert (drawn[name] == level).mean() == pytest.approx((selected[name] == level).mean(), abs=error)
            continue
        assert drawn[name].isna().mean() == pytest.approx(selected[name].isna().mean(), abs=error)
        a, b = drawn[name].dropna(), selected[name].dropna()
        if len(a) and len(b):
            assert stats.ks_2samp(a, b).statistic < 2 * np.sqrt(1 / len(a) + 1 / len(b))


def test_table_of_conditions_with_mixed_patterns(mixed):
    given = pd.DataFrame(
        {
            "kind": ["a", np.nan, ["b", "c"], np.nan],
            "age": [np.nan, 40, (50, None), np.nan],
            "gap": [elflow.MISSING, np.nan, 0.25, np.nan],
        },
        dtype=object,
    )
    rows = mixed.sample(5, given=given, random_state=0)
    assert len(rows) == 20
    assert (rows["kind"][:5] == "a").all()
    assert rows["gap"][:5].isna().all()
    assert (rows["age"][5:10] == 40).all()
    assert rows["kind"][10:15].isin(["b", "c"]).all()
    assert (rows["age"][10:15] >= 50).all()
    assert (rows["gap"][10:15] == 0.25).all()
    assert rows.equals(mixed.sample(5, given=given, random_state=0))


@pytest.mark.slow
def test_imputation_keeps_what_is_observed(mixed):
    frame = mixed.sample(40, random_state=3)
    rng = np.random.default_rng(0)
    holes = frame.mask(rng.random(frame.shape) < 0.3)
    for method in ("sample", "median", "mean", "mode"):
        filled = mixed.impute(holes, method=method, random_state=0)
        assert not filled.isna().any().any()
        assert filled.dtypes.equals(frame.dtypes)
        for name in frame:
            is_known = holes[name].notna()
            assert (filled[name][is_known] == frame[name][is_known]).all()
    several, info = mixed.impute(holes, n_draws=3, random_state=0, return_info=True)
    assert len(several) == 3
    assert not several[0].equals(several[1])
    assert isinstance(info, Info)
    is_full = holes.notna().all(axis=1).to_numpy()
    assert np.isinf(info.effective_sample_size[is_full]).all()
    assert np.isfinite(info.effective_sample_size[~is_full]).all()
    absent = mixed.impute(frame.drop(columns=["x", "kind"]), random_state=0)
    assert absent.columns.tolist() == frame.columns.tolist()
    assert absent["kind"].isin(list("abc")).all()


@pytest.mark.slow
def test_imputation_where_most_values_are_missing(monkeypatch):
    """Noise that stands for missing values does not leak into filled ones: they follow the values that are present."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    y = x + 0.2 * rng.normal(size=1000)
    frame = pd.DataFrame({"x": x, "y": np.where(rng.random(1000) < 1 / (1 + np.exp(3 * x)), np.nan, y)})
    density = FlowDensity(flow_options={"transforms": 2, "units": 8, "hidden_features": (32, 32)}, random_state=0)
    density.set_params(missing="model", dequantization="uniform", max_steps=250).fit(frame)
    holes = pd.DataFrame({"x": np.full(300, -1.0), "y": np.nan})
    errors = {}
    for trim in (True, False):
        monkeypatch.setattr(FlowDensity, "_has_uniform_cells", trim)
        errors[trim] = float((density.impute(holes, random_state=0)["y"] + 1).std())
    assert errors[True] < 0.75 * errors[False], errors


def test_presence_has_the_probability_of_all_values(mixed):
    """Half of the cells of the states, twice the density."""
    regions = [build_regions(mixed.schema_, {}, 1, {"gap": np.ones(1, bool)}, trim) for trim in (False, True)]
    position = mixed.schema_.positions("gap")[0]
    whole, half = (stats.norm.cdf(r.upper[0, position]) - stats.norm.cdf(r.lower[0, position]) for r in regions)
    factors = [r.offset[0].exp().item() for r in regions]
    assert half.sum() * factors[1] == pytest.approx(whole.sum() * factors[0])
    assert regions[1].upper[0, position].max() < regions[0].upper[0, position].max()


def test_summaries_are_those_of_the_distribution(continuous):
    frame = pd.DataFrame(np.random.default_rng(6).normal(size=(5, 5)), columns=list("abcde"))
    holes = frame.assign(c=np.nan)
    median = continuous.impute(holes, method="median")["c"]
    assert continuous.conditional_cdf(holes.assign(c=median), "c") == pytest.approx(0.5, abs=0.02)
    draws = np.stack([table["c"] for table in continuous.impute(holes, n_draws=100, random_state=0)])
    error = 4 * draws.std(0) / 10
    assert (np.abs(continuous.impute(holes, method="mean")["c"] - draws.mean(0)) < error + 0.05).all()


@pytest.mark.slow
def test_probabilities_of_categories(mixed):
    rows = mixed.sample(3, random_state=7).assign(gap=0.1)
    table, info = mixed.conditional_proba(rows, "kind", given=["x", "age"], n_points=1024, return_info=True)
    assert table.sum(axis=1).to_numpy() == pytest.approx(1)
    assert (info.effective_sample_size > 10).all()
    drawn = mixed.sample(3000, given=rows[["x", "age"]], random_state=0)
    for row in range(3):
        part = drawn["kind"][row * 3000 : (row + 1) * 3000]
        for level in "abc":
            assert table[level][row] == pytest.approx((part == level).mean(), abs=0.05)
    one = mixed.conditional_proba(None, "kind", given={"x": (0, 1)})
    assert one.shape == (1, 3)


def test_unlikely_conditions_end_and_warn(continuous, monkeypatch):
    monkeypatch.setattr(FlowDensity, "_find_gaussians", lambda self, context: one_gaussian(5))
    with (
        pytest.warns(PoorSampleWarning, match="effective sample size below"),
        pytest.warns(ExtrapolationWarning, match="far outside of the fitted values"),
    ):
        rows = continuous.sample(20, given={"a": 60.0, "b": -60.0, "c": (200, 300)}, random_state=0)
    assert rows["c"].between(200, 300).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nope": 1}, "given must have only columns of .*, got 'nope'"),
        ({"kind": "z"}, r"known values of 'kind' \('a', 'b', 'c'\), got 'z'"),
        ({"kind": ["a", "z"]}, r"known values of 'kind' \('a', 'b', 'c'\), got 'z'"),
        ({"kind": ("a", "b")}, "no order"),
        ({"x": (2, 1)}, "given must have a range of 'x' with low <= high"),
        ({"x": (1, 2, 3)}, "given must have a pair"),
        ({"x": ("low", 3)}, "given must have numbers as range of 'x', got 'low'"),
        ({"x": (10**400, None)}, "given must fit the columns: int too large to convert to float"),
        ({"x": "large"}, "given must fit the columns: column 'x' must hold numbers, got object, first 'large'"),
        (pd.DataFrame({"x": ["large"]}), "given must fit the columns: column 'x' must hold numbers"),
        ({"spend": (-3, -2)}, "with values in it"),
        ({"x": [1.0, 2.0]}, "a value or a range of 'x'"),
        ({"x": np.nan}, "must not hold nan for 'x'"),
        ({"x": elflow.MISSING}, "must not ask for missing values of 'x'"),
        ({"kind": []}, "at least one value"),
        ({"age": (30.2, 30.7)}, "with values in it"),
        (pd.DataFrame({"u": [1]}), "only columns of"),
    ],
)
def test_wrong_conditions(mixed, given, message):
    with pytest.raises(ValueError, match=message):
        mixed.sample(2, given=given)


@pytest.mark.parametrize(("condition", "wrong"), [((101, None), "a range"), ([150, 160], "values")])
def test_ranges_that_a_column_cannot_have(condition, wrong):
    """A clipped column has atoms at both ends, and nothing beyond."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"score": rng.normal(60, 30, N_ROWS).clip(0, 100).round(), "x": rng.normal(size=N_ROWS)})
    density = fit(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for end in (None, np.nan, pd.NA):
            assert density.sample(5, given={"score": (90, end)}, random_state=0)["score"].min() >= 90
        with pytest.raises(ValueError, match=f"given must allow values that a column can have, got {wrong} .*'score'"):
            density.sample(5, given={"score": condition}, random_state=0)


def test_integers_beyond_the_range_are_an_extrapolation(mixed):
    """The range of integers that do not end abruptly is no bound."""
    with pytest.warns(ExtrapolationWarning, match="'age' far outside of the fitted values"):
        assert mixed.sample(2, given={"age": (200, 300)}, random_state=0)["age"].between(200, 300).all()


@pytest.mark.parametrize("given", ["x", 3, {"x": {}}, {"x": np.ones(2)}])
def test_conditions_of_a_wrong_type(mixed, given):
    with pytest.raises((TypeError, ValueError), match=r"^given must (be conditions by column|have a value, a range)"):
        mixed.sample(2, given=given)


@pytest.mark.parametrize(
    ("given", "is_far"),
    [
        ({"x": 4.0}, False),
        ({"x": 9.0}, True),
        ({"x": (9.0, None)}, True),
        ({"x": (2.0, None)}, False),
        ({"spend": 0.0}, False),
        ({"age": 200}, True),
        ({"age": 75}, False),
        ({"gap": elflow.MISSING}, False),
        (pd.DataFrame({"x": [0.0, np.nan, -12.0]}), True),
    ],
)
def test_conditions_far_outside_of_the_data_warn(mixed, given, is_far):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mixed.sample(2, given=given, random_state=0)
    texts = [str(warning.message) for warning in caught if warning.category is ExtrapolationWarning]
    assert bool(texts) == is_far, texts
    if not isinstance(given, dict):
        assert "in 1 of 3 rows, first row 2, got -12.0: the answer is an extrapolation" in texts[0]


def test_a_range_beyond_the_cells_of_a_column_is_an_error():
    """Samples have fitted values of discrete columns only: a range beyond these would give rows that contradict it."""
    density = fit(pd.DataFrame({"k": np.tile(np.arange(5), 60), "x": np.random.default_rng(0).normal(size=300)}))
    assert set(density.sample(20, given={"k": (4, 9)}, random_state=0)["k"]) == {4}
    for condition in ((5, 9), (None, -1)):
        with pytest.raises(ValueError, match=r"range of 'k' with values in it \(0 to 4\), got"):
            density.sample(2, given={"k": condition})


@pytest.mark.parametrize("freq", ["D", "h"])
def test_times_without_a_zone_are_local_in_tables_and_conditions(freq):
    times = pd.date_range("2024-01-01", periods=300, freq=freq, tz="America/New_York")
    frame = pd.DataFrame({"time": times, "x": np.random.default_rng(0).normal(size=300)})
    density = fit(frame)
    naive = frame.assign(time=times.tz_localize(None))
    assert np.array_equal(density.score_samples(naive), density.score_samples(frame))
    assert np.array_equal(density.row_origin(naive), density.row_origin(frame))
    assert density.impute(naive.assign(x=np.nan), method="median")["time"].equals(frame["time"])
    ends = times[100], times[101]
    plain = [end.tz_localize(None) for end in ends]
    for value in (ends[0], plain[0], str(plain[0])):
        assert set(density.sample(3, given={"time": value}, random_state=0)["time"]) == {ends[0]}
    for condition in (ends, tuple(plain), tuple(map(str, plain))):
        assert set(density.sample(40, given={"time": condition}, random_state=0)["time"]) == set(ends)


def test_wrong_arguments(mixed):
    frame = mixed.sample(3, random_state=0)
    with pytest.raises(ValueError, match="n_draws must be 1"):
        mixed.impute(frame, n_draws=2, method="mode")
    with pytest.raises(ValueError, match="method must be"):
        mixed.impute(frame, method="best")
    with pytest.raises(ValueError, match="must not have a condition on the column 'x'"):
        mixed.conditional_cdf(frame, "x", given=["x"])
    with pytest.raises(ValueError, match="column must have categories, got 'x'"):
        mixed.conditional_proba(frame, "x")
    with pytest.raises(ValueError, match="one row for each of the 3 rows"):
        mixed.conditional_cdf(frame, "x", given=frame[["kind"]].head(2))
    with pytest.raises(TypeError, match="columns must be a list"):
        mixed.marginal("x")


def test_density_without_gaussians_and_with_context():
    rng = np.random.default_rng(0)
    c = rng.normal(size=(300, 1))
    table = c + rng.normal(size=(300, 3))
    density = FlowDensity(flow_options=SMALL, max_steps=5, random_state=0, members=["plain"]).fit(table, context=c)
    holes = table[:10].copy()
    holes[:, 1] = np.nan
    filled, info = density.impute(holes, context=c[:10], random_state=0, return_info=True)
    assert np.isfinite(filled).all()
    assert (info.effective_sample_size > 5).all()
    rows = density.sample(2, given={0: (0.0, 1.0)}, context=c[:3], random_state=0)
    assert rows.shape == (6, 3)
    assert ((rows[:, 0] >= 0) & (rows[:, 0] <= 1)).all()


@pytest.mark.parametrize("dequantization", ["uniform", "gaussian", "variational"])
def test_the_density_behind_explanations_integrates_to_one(dequantization):
    """Also where the other cells are narrow, so that one point of them is enough."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=400)
    b = (a + 0.5 * rng.normal(size=400)).round(2)
    frame = pd.DataFrame({"a": a, "b": b, "c": rng.normal(size=400).round(2), "kind": rng.choice(["x", "y"], 400)})
    for columns in (["a", "b", "c"], ["a", "b", "c", "kind"]):
        rows = frame[columns]
        distribution = fit(rows, max_steps=40, dequantization=dequantization).conditional(rows.head(3), "a")
        z = np.linspace(-9, 9, 721)
        values = np.stack([np.exp(distribution.log_density(np.full(3, point))) for point in z], 1)
        assert np.trapezoid(values, z) == pytest.approx(1, abs=0.02)


def test_rare_groups_of_categories_have_their_own_gaussians() -> None:
    """Five rows of each of two categories, far away from all others: about one row in a thousand."""
    rng = np.random.default_rng(0)
    kind = np.where(rng.random(12_000) < 0.6, "a", "b").astype(object)
    kind[:5], kind[5:10] = "q1", "q2"
    table = pd.DataFrame({"x": rng.normal(size=12_000), "kind": kind}).sample(frac=1, random_state=0, ignore_index=True)
    table.loc[table["kind"].isin(["q1", "q2"]), "x"] += 7
    density = fit(table, members=["plain", "gaussian", "strata"])
    assert "strata" in dict(density.members_)
    x = np.linspace(-6, 15, 600)
    scores = np.exp(density.score_samples(pd.DataFrame({"x": x, "kind": "q1"}), n_draws=128))
    probability, is_far = scores.sum() * (x[1] - x[0]), x > 4
    found = np.exp(density.marginal(["kind"]).score_samples(pd.DataFrame({"kind": ["q1"]})))[0]
    assert found == pytest.approx(probability, rel=0.15)
    share = scores[is_far].sum() / scores.sum()
    drawn = density.sample(2000, given={"kind": "q1"}, random_state=0)
    assert (drawn["x"] > 4).mean() == pytest.approx(share, abs=0.06)
    holes = pd.DataFrame({"x": [np.nan] * 300, "kind": "q1"})
    assert (density.impute(holes, random_state=0)["x"] > 4).mean() == pytest.approx(share, abs=0.1)
