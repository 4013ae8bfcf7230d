"""Everyday columns: densities integrate to one, values come back, and distributions agree with quadrature.

The flow is a standard normal distribution of the features, so that the truth is known and nothing is trained.
"""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import log_ndtr, ndtr
from scipy.stats import norm
from torch import nn

from elflow import FlowDensity
from elflow.flows.dequantization import Dequantized
from elflow.tabular import Column, Schema
from elflow.tabular._flow import encode_rows, iter_samples, score_rows
from elflow.tabular.columns._ends import find_hard_ends
from elflow.tabular.columns._grids import find_atoms
from elflow.tabular.columns._steps import Steps
from elflow.tabular.columns._warps import Warp
from elflow.tabular.queries._conditional import condition

N = 3000


def with_atoms(rng, x, **shares):
    """Replace random values of x by exact values: `share=value`."""
    u = rng.random(len(x))
    for name, value in shares.items():
        share = int(name[1:]) / 100
        x = np.where((u >= 0) & (u < share), value, x)
        u = u - share
        u = np.where(u < 0, 2, u)
    return x


def round_some(rng, x, share, step):
    """Round a share of the values to multiples of a step, and the others to integers."""
    return np.where(rng.random(len(x)) < share, np.round(x / step) * step, np.round(x))


GENERATORS = {
    "normal": lambda r: r.normal(size=N),
    "heavy tails": lambda r: r.standard_t(2, N),
    "cauchy": lambda r: r.standard_cauchy(N) * 100,
    "lognormal": lambda r: r.lognormal(size=N),
    "very wide lognormal": lambda r: r.lognormal(sigma=10, size=N),
    "exponential": lambda r: r.exponential(size=N),
    "gamma with a pole at 0": lambda r: r.gamma(0.3, size=N),
    "uniform": lambda r: r.random(N),
    "beta": lambda r: r.beta(0.3, 0.3, N),
    "negative": lambda r: -r.lognormal(size=N),
    "two modes": lambda r: np.where(r.random(N) < 0.5, r.normal(-4, 1, N), r.normal(4, 0.5, N)),
    "outlier of 1e13": lambda r: np.append(r.normal(size=N), 1e13),
    "clusters 1e9 apart": lambda r: np.append(r.normal(size=N), r.normal(1e9, 1, N)),
    "far from zero": lambda r: 1e6 + 1e-7 * r.normal(size=N),
    "tiny": lambda r: 1e-30 * r.normal(size=N),
    "single precision": lambda r: r.normal(size=N).astype("float32"),
    "30% zeros in lognormal": lambda r: with_atoms(r, r.lognormal(size=N), _30=0.0),
    "4% zeros in beta": lambda r: with_atoms(r, r.beta(2, 5, N), _4=0.0),
    "60% zeros in beta": lambda r: with_atoms(r, r.beta(2, 5, N), _60=0.0),
    "atoms at both ends": lambda r: with_atoms(r, r.beta(0.5, 0.5, N), _20=0.0, _10=1.0),
    "three atoms": lambda r: with_atoms(r, r.normal(size=N), _10=-1.0, _15=0.0, _20=2.5),
    "censored": lambda r: np.minimum(r.exponential(size=N), 1.5),
    "tenths": lambda r: np.round(r.normal(20, 2, N), 1),
    "cents": lambda r: np.round(r.lognormal(3, 1, N), 2),
    "prices with cents": lambda r: np.round(r.uniform(6e4, 9e5, N), 2),
    "rain in tenths": lambda r: with_atoms(r, np.round(r.gamma(0.7, 5, N), 1), _60=0.0),
    "tenths of single precision": lambda r: np.round(r.normal(20, 2, N), 1).astype("float32").astype(float),
    "Celsius of whole Fahrenheit": lambda r: (r.normal(68, 12, N).round() - 32) / 1.8,
    "profits and losses": lambda r: r.choice([-1, 1], N, p=[0.3, 0.7]) * r.lognormal(8, 4, N),
    "prices of five cents": lambda r: np.round(r.gamma(6, 4, N) * 20) / 20,
    "prices up to a cap": lambda r: np.minimum(np.round(r.gamma(6, 4, N), 1), 50),
    "tenths with an atom inside": lambda r: with_atoms(r, np.round(r.normal(20, 2, N), 1), _20=21.0),
    "prices that end in 99": lambda r: r.integers(1, 40, N) + 0.99,
    "integers": lambda r: r.normal(170, 12, N).round().astype(int),
    "counts": lambda r: r.poisson(3, N),
    "counts with zeros": lambda r: with_atoms(r, r.negative_binomial(5, 0.05, N), _30=0).astype(int),
    "amounts": lambda r: round_some(r, with_atoms(r, r.lognormal(8, 0.7, N), _40=0.0), share=0.9, step=50),
    "heaped ages": lambda r: np.where(r.random(N) < 0.5, r.integers(4, 16, N) * 5, r.integers(20, 80, N)),
    "large integers": lambda r: r.lognormal(10, 1, N).astype(int),
    "a counter": lambda r: np.arange(N),
    "levels": lambda r: r.choice([0.5, 1.0865, 2.173], N),
}


class StandardNormal(nn.Module):
    """Flow whose features are independent and standard normal."""

    def forward(self, c=None):
        return self

    def log_prob(self, z):
        return torch.distributions.Normal(0.0, 1.0).log_prob(z.double()).sum(-1)


@pytest.fixture(params=GENERATORS)
def values(request):
    seed = sorted(GENERATORS).index(request.param)
    return pd.Series(GENERATORS[request.param](np.random.default_rng(seed)), name="x")


def fit(values, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "column 'x' has values far from all others")
        return Column.fit(values, **options)


def log_density(column, values):
    """Log-density of values if all features are standard normal; a probability at an atom."""
    low, width, offset = column.encode(values)
    inside = np.where(width > 0, np.log(np.maximum(width, 1e-300)), norm.logpdf(low))
    sign = np.where(low > 0, -1.0, 1.0)  # differences in the upper tail are those of the lower one
    first, last = np.minimum(sign * low, sign * (low - width)), np.maximum(sign * low, sign * (low - width))
    with np.errstate(divide="ignore", invalid="ignore"):
        interval = log_ndtr(last) + np.log(-np.expm1(log_ndtr(first) - log_ndtr(last)))
    share = np.log(np.array(column.shares or (1.0,)))[column.encode_states(values)]
    return np.where(width < 0, interval, inside) + offset + share


def grid_points(column):
    """All values of a column on a grid that have a noticeable probability."""
    if column.levels is not None:
        return pd.Series([*column.levels], name="x")
    if column.is_discrete:
        first, last = int(column.map.edges[0]), int(column.map.edges[-1]) - 1
        integers = np.arange(first - 1000, last + 1000)
    else:
        ends = column.decode(np.array([-6.0, 6.0])).to_numpy(np.float64) / column.step
        integers = np.arange(np.round(ends[0]), np.round(ends[1]) + 1)
        if column.atoms:
            integers = np.union1d(integers, np.round(np.array(column.atoms) / column.step))
    if column.kind == "integer":
        return pd.Series(integers.astype(np.int64), name="x")
    return pd.Series(integers * column.step, name="x")


def total_mass(column):
    """Integral of the density over all values, by quadrature, and of the probability of the atoms."""
    if column.is_discrete or column.dithered:
        points = grid_points(column)
        is_density = (column.encode_states(points) == column.position) & (column.kind == "continuous")
        unit = np.where(is_density & (column.step is not None), column.step or 1.0, 1.0)
        return float((np.exp(log_density(column, points)) * unit).sum())
    x = column.map.inverse(np.linspace(-8.5, 8.5, 200_001))
    kinks = np.array([knot for knot, _ in column.map.knots])
    x = np.unique(np.concatenate([x, kinks, np.nextafter(kinks, -np.inf)]))
    middle = x[:-1] + np.diff(x) / 2  # the midpoint rule, which poles at bounds do not disturb
    density = np.exp(norm.logpdf(column.map(middle)[0]) + column.map(middle)[1])
    atoms = pd.Series(column.atoms, name="x", dtype=float)
    share = column.shares[column.position] if column.shares else 1.0
    return float((density * np.diff(x)).sum() * share + np.exp(log_density(column, atoms)).sum())


def test_there_are_enough_generators():
    assert len(GENERATORS) >= 25


@pytest.mark.slow
def test_densities_integrate_to_one(values):
    assert total_mass(fit(values)) == pytest.approx(1, abs=0.002)


def test_values_come_back(values):
    """A random point of each cell is decoded to the value, also after a column was stored."""
    column = fit(values)
    column = Column.from_dict(json.loads(json.dumps(column.to_dict())))
    low, width, offset = column.encode(values)
    assert np.isfinite(offset).all()
    noise = np.random.default_rng(0).uniform(0.001, 0.999, len(values))
    u = np.clip(low + width * noise, 1e-15, 1 - 1e-15)
    z = np.where(width > 0, norm.ppf(np.where(width > 0, u, 0.5)), low - width * noise)
    back = column.decode(z, column.encode_states(values) if column.shares else None)
    assert back.dtype == values.dtype
    if column.is_exact and column.step is None:
        assert np.allclose(back, values, rtol=1e-6 if values.dtype == "float32" else 1e-9, atol=0)
    else:
        is_exact = (column.encode_states(values) == column.position) & (column.step is None) & (not column.is_discrete)
        assert (np.isclose(back, values, rtol=1e-9, atol=0) | ~is_exact).all()
        assert ((back == values) | is_exact).all()


@pytest.mark.slow
def test_distributions_agree_with_samples(values):
    """Conditional distributions pass a Kolmogorov-Smirnov test on samples of the map, and quantiles invert them."""
    frame = pd.DataFrame({"x": values})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "column 'x' has values far from all others")
        schema = Schema.fit(frame)
    rng = np.random.default_rng(1)
    sampled = np.sort(schema.decode(rng.normal(size=(20_000, schema.features)))["x"].to_numpy(np.float64))
    column = schema.columns[0]
    order = np.argsort(column.to_integers(pd.Series(column.levels))) if column.levels is not None else None
    points = np.quantile(sampled, np.linspace(0.01, 0.99, 25), method="nearest").astype(values.dtype)
    model = Dequantized(StandardNormal(), schema.exact, schema.cells)
    rows = pd.DataFrame({"x": points})
    distribution = condition(model, schema, "x", rows)
    assert order is None or (np.diff(order) > 0).all()
    cdf = distribution.cdf(rows["x"])
    empirical = np.searchsorted(sampled, points.astype(float), side="right") / len(sampled)
    assert np.abs(cdf - empirical).max() < 1.95 / np.sqrt(len(sampled))  # at the level 0.001
    # the truth, from the map alone
    shares, z = column.shares or (1.0,), column.encode_upper(rows["x"])
    truth = shares[column.position] * ndtr(z)
    for state in range(len(shares)):
        if (atom := column.state_value(state)) is not None:
            truth = truth + shares[state] * (points >= atom)
    assert np.abs(cdf - truth).max() < 0.005
    # quantiles invert the distribution, across jumps as well
    q = np.array([0.02, 0.2, 0.5, 0.8, 0.98])
    quantiles = distribution.quantile(q)
    for k, probability in enumerate(q):
        reached = distribution.cdf(pd.Series(quantiles[:, k]))
        if column.is_exact:
            assert np.abs(reached - probability).max() < 0.005
        else:
            assert (reached > probability - 0.005).all()


def test_scores_are_those_of_the_map(values):
    """Dequantisation under a standard normal flow gives the density of each value, atoms and intervals included."""
    frame = pd.DataFrame({"x": values})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "column 'x' has values far from all others")
        schema = Schema.fit(frame)
    frame = frame.iloc[:: max(1, len(frame) // 50)].reset_index(drop=True)
    model = Dequantized(StandardNormal(), schema.exact, schema.cells)
    scores = score_rows(model, encode_rows(schema, frame), n_draws=128)
    assert np.allclose(scores, log_density(schema.columns[0], frame["x"]), atol=0.02)


def test_treatment_follows_from_the_data():
    columns = {}
    for number, name in enumerate(sorted(GENERATORS)):
        columns[name] = fit(pd.Series(GENERATORS[name](np.random.default_rng(number)), name="x"))
    atoms = {name: column.atoms for name, column in columns.items() if column.atoms}
    assert atoms == {
        "30% zeros in lognormal": (0,),
        "4% zeros in beta": (0,),
        "60% zeros in beta": (0,),
        "atoms at both ends": (0, 1),
        "three atoms": (-1, 0, 2.5),
        "censored": (1.5,),
        "rain in tenths": (0,),
        "tenths with an atom inside": (21,),
        "prices up to a cap": (50,),
        "counts with zeros": (0,),
        "amounts": (0,),
    }
    dithered = {name for name, column in columns.items() if column.dithered}
    assert {"tenths", "integers", "rain in tenths", "counts with zeros", "tenths with an atom inside"} <= dithered
    periods = {name: column.period for name, column in columns.items() if column.period > 1}
    assert periods == {"amounts": 50}
    discrete = {name for name, column in columns.items() if column.is_discrete}
    assert discrete == {
        "prices that end in 99",
        "counts",
        "heaped ages",
        "a counter",
        "levels",
    }
    assert columns["profits and losses"].map.base == "asinh"
    assert columns["prices of five cents"].step == 0.05


def test_inferred_bounds_are_soft():
    """Values beyond them, and levels never seen, have small finite densities; only declared bounds are hard."""
    rng = np.random.default_rng(0)
    for values in (rng.lognormal(size=250), rng.lognormal(sigma=10, size=250), rng.beta(0.3, 0.3, 250)):
        column = Column.fit(pd.Series(values, name="x"))
        assert np.isfinite(column.map.low)
        beyond = log_density(column, pd.Series([-1e-9, -1.0, -1e9, -1e300, 1e9, 1e300], name="x"))
        assert np.isfinite(beyond).all()
        assert beyond[1] < log_density(column, pd.Series(values, name="x")).min() - 5
        assert (column.decode(rng.normal(size=100_000)) >= 0).all()
    levels = Column.fit(pd.Series(rng.choice([0.5, 1.5], 250), name="x"))
    assert np.isfinite(log_density(levels, pd.Series([0.7, -3.0], name="x"))).all()
    declared = Column.fit(pd.Series(rng.random(250), name="x"), (0, 1))
    outside = declared.encode(pd.Series([-0.1, 0.5, 1.1], name="x"))[2]
    assert np.isneginf(outside).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("x", "step"),
    [
        (np.round(5.4e6 + np.arange(200) * 0.037, 3), 0.001),
        (1 + np.arange(200) * 1e-7, 1e-7),
        (np.arange(200) / 3, 1 / 3),
        (np.log(np.arange(1, 201)), None),
        (np.round(np.linspace(6e4, 9e5, 200), 2), 0.01),
    ],
)
def test_grids_never_merge_values(x, step):
    values = pd.Series(np.repeat(x, 6), name="x")
    column = Column.fit(values)
    assert column.step == step
    low, width, _ = column.encode(values)
    middle = low + np.abs(width) / 2
    assert len(np.unique(middle)) == 200


@pytest.mark.parametrize("digits", [15, 17])
def test_decimals_of_single_precision_are_on_a_grid(digits):
    """As Stata, SPSS and R export them: 7.6 is 7.59999990463257. Samples have the values of the data."""
    rng = np.random.default_rng(0)
    single = rng.gamma(5, 2, 1000).round(1).astype("float32").astype(float)
    values = pd.Series([float(f"{value:.{digits}g}") for value in single], name="x")
    column = Column.fit(values)
    assert (column.step, column.dithered, column.atoms, column.single_digits) == (0.1, True, (), digits)
    sampled = column.decode(rng.normal(size=1000))
    assert sampled.isin(values).mean() > 0.9
    assert (values == values.max()).sum() == (column.encode(values)[0] == column.encode(values)[0].max()).sum()
    exact = Column.fit(pd.Series(rng.gamma(5, 2, 1000).astype("float32").astype(float), name="x"))
    assert exact.step is exact.single_digits is None


@pytest.mark.parametrize(
    ("spacing", "texts"), [(1 / 1.8, "{:.17g}"), (1 / 3, "{:.15g}"), (1000 / 12, "{:.17g}"), (0.1, "{:.17g}")]
)
def test_multiples_of_a_number_are_on_a_grid(spacing, texts):
    """Their treatment is that of the integers, and values come back up to the digits of their text."""
    multiples = np.random.default_rng(0).normal(70, 12, 400).round().astype(int)
    values = pd.Series([float(texts.format(k * spacing)) for k in multiples], name="x")
    column, of_integers = Column.fit(values), Column.fit(pd.Series(multiples, name="x"))
    assert np.isclose(column.step, spacing, rtol=1e-13)
    assert column.dithered
    assert of_integers.dithered
    assert np.array_equal(column.to_integers(values), multiples)
    assert np.allclose(column.decode(column.encode_midpoints(values)), values, rtol=1e-14)


def test_a_rare_amount_is_a_density():
    """One atom must not make a list of levels of the few other values, all of which are different."""
    rng = np.random.default_rng(0)
    column = Column.fit(pd.Series(np.append(np.zeros(960), rng.lognormal(3, 1, 40)), name="x"))
    assert column.kind == "continuous"
    assert column.atoms == (0.0,)


def test_repeated_amounts_have_their_probabilities():
    """Most of 800 amounts occur a few times each: bins would spread their probability over all cents."""
    rng = np.random.default_rng(0)
    amounts = np.unique(rng.lognormal(8, 1, 800).round(2))
    shares = rng.dirichlet(np.full(len(amounts), 2.0))
    fitted, new = (pd.Series(rng.choice(amounts, n, p=shares), name="x") for n in (3000, 3000))
    assert fitted.nunique() > 520
    column = Column.fit(fitted)
    truth = np.log(shares[np.searchsorted(amounts, new)] / 0.01).mean()
    assert 0 < truth - log_density(column, new).mean() < 1.5
    assert column.decode(rng.normal(size=2000)).isin(amounts).mean() > 0.9


@pytest.mark.parametrize("draw", ["hard upper end", "heavy tail"])
def test_samples_of_positive_numbers_are_positive(draw):
    """The bound at zero is kept beside another bound, and beside heavy tails."""
    rng = np.random.default_rng(0)
    x = {
        "hard upper end": (80 * rng.beta(2, 1, 400)).round(1),
        "heavy tail": np.abs(18 + 5 * rng.standard_t(2, 400)) + 1,
    }[draw]
    column = fit(pd.Series(x, name="x"))
    assert column.decode(np.sort(2 * rng.normal(size=20_000))).min() >= 0
    beyond = log_density(column, pd.Series([-1.0], name="x"))
    assert np.isfinite(beyond).all()


def test_new_ends_of_fine_grids_are_not_rare():
    """Half of the new tables of a uniform distribution have a larger maximum than the fitted one."""
    rng = np.random.default_rng(0)
    fitted, new = (pd.Series(rng.integers(0, 60_000, 400), name="x") for _ in range(2))
    column = fit(fitted)
    assert np.isfinite(column.map.high)
    assert log_density(column, new).mean() > -np.log(60_000) - 0.2


def test_counts_of_cells_leave_out_new_integers():
    """Rows outside a sample may have values that it does not have."""
    steps = Steps.fit(np.array([3, 3, 4, 6]))
    assert steps.count(np.array([0, 3, 4, 9])).sum() == 2


@pytest.mark.parametrize(("n_rows", "max_gap"), [(200, 1.8), (2000, 0.16)])
def test_new_values_have_their_probability(n_rows, max_gap):
    """Seconds in minutes, in thousandths: most integers do not occur, and others do not by chance."""
    rng = np.random.default_rng(0)
    is_short = rng.random(12_000) < 0.35
    seconds = np.where(is_short, rng.normal(120, 15, 12_000), rng.normal(260, 25, 12_000)).round()
    thousandths = (seconds / 60 * 1000).round().astype(int)
    fitted, new = thousandths[:n_rows], thousandths[n_rows:]
    steps = Steps.fit(fitted)
    distinct, counts = np.unique(fitted, return_counts=True)
    probability, n_once = 1 - steps.encode(distinct)[1].sum(), (counts == 1).sum()
    assert 0.8 * n_once / n_rows < probability < 1.2 * n_once / n_rows  # the estimate of Good and Turing
    truth = np.log(0.35 * norm.pdf(seconds, 120, 15) + 0.65 * norm.pdf(seconds, 260, 25)).mean()
    # With half a count for all new values together, the gaps were 2.5 and 0.17 nats.
    assert 0 < truth - np.log(steps.encode(new)[1]).mean() < max_gap


def test_an_atom_at_the_upper_end_leaves_the_bound_at_zero():
    rng = np.random.default_rng(0)
    column = Column.fit(pd.Series(np.minimum(rng.normal(23, 8, 400).clip(5), 50.0), name="x"))
    assert column.decode(np.sort(2 * rng.normal(size=20_000))).min() > 0


def test_digits_of_samples():
    rng = np.random.default_rng(0)
    for digits, scale in ((1, 2.0), (2, 100.0), (3, 5.0)):
        column = Column.fit(pd.Series(np.round(rng.normal(0, scale, 2000), digits), name="x"))
        sampled = column.decode(rng.normal(size=1000))
        assert (sampled == np.round(sampled, digits)).all()


@pytest.mark.parametrize("base", ["log", "softplus", "logit"])
def test_warps_are_smooth_where_their_tangents_begin(base):
    high = 1.0 if base == "logit" else np.inf
    warp = Warp(base, 0.0, high, 1.0, 0.0, 1.0, False, margin=1e-4, knee=8.0)
    x = np.sort(
        np.concatenate([np.linspace(-2e-4, 4e-4, 1001), 1 - np.linspace(-2e-4, 4e-4, 1001), [0.3, 0.5, -3.0, 9.0]])
    )
    z, log_slope = warp(x)
    assert (np.diff(z) > 0).all()
    assert np.allclose(warp.inverse(z), x, rtol=1e-9, atol=1e-12)
    h = 1e-9
    numerical = np.log((warp(x + h)[0] - warp(x - h)[0]) / (2 * h))
    assert np.allclose(numerical, log_slope, atol=1e-3)


def quick(**options):
    flow_options = {"transforms": 2, "units": 8, "hidden_features": (32,)}
    return FlowDensity(**({"max_steps": 300, "random_state": 0, "flow_options": flow_options} | options))


@pytest.mark.slow
def test_a_fitted_density_has_the_share_of_zeros_of_the_data():
    """Zeros depend on another column: their share, their probability and the jump of the quantiles are right."""
    rng = np.random.default_rng(0)
    age = rng.normal(size=4000)
    spends = rng.random(4000) < ndtr(0.5 + age)
    frame = pd.DataFrame({"age": age, "spend": np.where(spends, np.exp(0.5 * age + rng.normal(size=4000)), 0.0)})
    density = quick().fit(frame)
    sampled = density.sample(20_000, random_state=0)
    assert (sampled["spend"] == 0).mean() == pytest.approx((frame["spend"] == 0).mean(), abs=0.01)
    rows = pd.DataFrame({"age": [-1.0, 0.0, 1.0], "spend": 0.0})
    truth = ndtr(-0.5 - rows["age"])
    assert np.abs(density.conditional_cdf(rows, "spend") - truth).max() < 0.06
    # log p(age, spend = 0) is log phi(age) + log P(zero | age)
    expected = norm.logpdf(rows["age"]) + np.log(truth)
    assert np.abs(density.score_samples(rows, n_draws=256) - expected).max() < 0.35
    zero, median = density.conditional_quantile(rows, "spend", [0.1, 0.9]).T
    assert (zero[:2] == 0).all()
    assert (median > 0).all()
    again = density.conditional_cdf(rows.assign(spend=median), "spend")
    assert np.allclose(again, 0.9, atol=0.005)


@pytest.mark.slow
def test_one_outlier_does_not_ruin_a_fitted_density():
    rng = np.random.default_rng(0)
    for outlier in (1e13, 1e36):
        table = np.column_stack([np.append(rng.normal(size=999), outlier), rng.normal(size=1000)])
        with pytest.warns(UserWarning, match="column 'x0' has values far from all others"):
            density = quick().fit(table)
        low, high = np.quantile(density.sample(4000, random_state=0)[:, 0], [0.25, 0.75])
        assert -0.9 < low < -0.5 < 0.5 < high < 0.9
        scores = density.score_samples(np.array([[0.0, 0], [1, 0], [3, 0], [30, 0], [1e6, 0]]))
        assert (np.diff(scores) < -0.2).all()


def test_quantiles_of_no_rows_and_for_each_row():
    rng = np.random.default_rng(0)
    schema = Schema.fit(frame := pd.DataFrame({"x": with_atoms(rng, rng.lognormal(size=N), _30=0.0)}))
    model = Dequantized(StandardNormal(), schema.exact, schema.cells)
    assert condition(model, schema, "x", frame[:0]).quantile([0.5]).shape == (0, 1)
    distribution = condition(model, schema, "x", frame[:2])
    both = distribution.quantile([0.1, 0.9])
    assert np.array_equal(distribution.quantile(np.array([[0.1], [0.9]])), both[[0, 1], [0, 1]][:, None])


# Defects that a new user found


@pytest.mark.parametrize("draw", ["exponential", "half normal", "pareto", "gamma"])
def test_the_density_is_moderate_at_a_bound(draw):
    """A value of exactly zero is not the most likely one of all."""
    rng = np.random.default_rng(0)
    x = {
        "exponential": rng.exponential(50, 1500),
        "half normal": np.abs(rng.normal(size=1500)),
        "pareto": 1000 * (1 + rng.pareto(1.5, 1500)),
        "gamma": rng.gamma(3, 1, 1500),
    }[draw]
    column = fit(pd.Series(x, name="x"))
    usual = np.median(log_density(column, pd.Series(x, name="x")))
    assert (log_density(column, pd.Series([0.0, 1e-9, 1e-6], name="x")) < usual + 2).all()
    assert log_density(column, pd.Series([-x.mean()], name="x")) < usual - 20
    assert (column.decode(rng.normal(size=20_000)) == 0).mean() < 1e-3


def test_the_step_of_integers():
    rng = np.random.default_rng(0)
    hundreds = pd.Series(np.round(np.exp(rng.normal(10, 0.5, 2500)), -2).astype(int), name="x")
    column = fit(hundreds)
    assert column.step == 100
    assert "in steps of 100" in column.describe()["values"]
    decoded = column.decode(rng.normal(size=1000))
    assert (decoded % 100 == 0).all()
    assert decoded.dtype == hundreds.dtype
    # The probability of a value does not depend on the unit, and those that were not seen are as likely as others.
    single = fit((hundreds // 100).rename("x"))
    rows = pd.Series([20_000, 20_100, 60_000, 60_200], name="x")
    assert np.allclose(log_density(column, rows), log_density(single, rows // 100), atol=1e-6)
    with pytest.raises(ValueError, match=r"must hold integers, got 0\.5"):
        column.encode(pd.Series([0.5], name="x"))


def test_clipped_ends_are_bounds():
    rng = np.random.default_rng(0)
    clipped = fit(pd.Series(np.clip(rng.normal(50, 35, 2500), 0, 100), name="x"))
    assert clipped.atoms == (0, 100)
    assert (clipped.map.low, clipped.map.high) == (0, 100)
    assert clipped.decode(rng.normal(size=20_000)).between(0, 100).all()
    ages = fit(pd.Series(np.clip(np.round(rng.normal(45, 16, 2500)), 18, 90).astype(int), name="x"))
    assert 18 in ages.atoms
    assert (ages.decode(rng.normal(size=20_000)) >= 18).all()


@pytest.mark.parametrize("count", [1, 3, 14])
def test_numbers_of_nines_are_taken_for_fill_values(count):
    x = np.round(np.random.default_rng(0).normal(15, 6, 2500), 3)
    x[:count] = -999
    with pytest.warns(UserWarning, match="has values far from all others: -999"):
        column = Column.fit(pd.Series(x, name="x"))
    assert column.atoms == ((-999,) if count == 14 else ())
    assert not np.isfinite(column.map.low)  # a fill value is no bound


def test_the_only_negative_value_is_taken_for_a_fill_value():
    rng = np.random.default_rng(0)
    glucose = np.where(rng.random(700) < 0.05, -9, rng.lognormal(4.6, 0.3, 700).round())
    with pytest.warns(UserWarning, match="has values far from all others: -9. If they stand for missing"):
        assert Column.fit(pd.Series(glucose, name="x")).atoms == (-9,)


def test_unique_names_of_few_rows_are_left_out():
    numbers = pd.DataFrame({"sample": [f"S{i}" for i in range(40)], "x": np.arange(40.0) ** 2})
    with pytest.warns(UserWarning, match="column 'sample' is left out, since most values are unique"):
        assert Schema.fit(numbers).ignored == ("sample",)
    assert Schema.fit(numbers.assign(sample=[f"S{i // 2}" for i in range(40)])).ignored == ()


def test_new_missing_values_have_an_error_that_says_what_to_do():
    rows = pd.DataFrame({"a": [1.5, None, 2.5, 4.0], "b": [0.5, 1.0, 3.0, 2.0]})
    schema = Schema.fit(rows, missing="model")
    with pytest.raises(ValueError, match=r"'b' \(1\), where the fitted table had none: fill them in with impute"):
        schema.encode(rows.assign(b=[0.5, None, 3.0, 2.0]))


def test_dates_as_text_are_named():
    dates = pd.date_range("2024-01-01", periods=60).strftime("%Y-%m-%d")
    for copies, treatment in ((4, "is a category"), (1, "is left out")):  # one warning, which says what happens
        with pytest.warns(UserWarning, match=f"column 'd' holds dates as text: it {treatment}") as record:
            Schema.fit(pd.DataFrame({"d": np.tile(dates, copies), "x": np.arange(60.0 * copies)}))
        assert len(record) == 1
    slashes = pd.date_range("2024-01-01", periods=60).strftime("%d/%m/%Y")
    with pytest.warns(UserWarning, match=r"is a category, not a time. Convert it with .*dayfirst=True\) if the day"):
        Schema.fit(pd.DataFrame({"d": np.tile(slashes, 4), "x": np.arange(240.0)}))
    mixed = [f"{date} 10:00" + "+01:00" * (k % 7 == 3) for k, date in enumerate(dates)]
    with pytest.warns(UserWarning, match="Some have an offset from UTC and others have none") as record:
        Schema.fit(pd.DataFrame({"d": mixed, "x": np.arange(60.0)}))
    assert len(record) == 1
    Schema.fit(pd.DataFrame({"d": pd.to_datetime(np.tile(dates, 4)), "x": np.arange(240.0)}))


@pytest.mark.parametrize(
    ("draw", "has_atom"),
    [
        (lambda r: np.minimum(x := r.normal(50, 10, 5000), np.quantile(x, 0.985)), True),
        (lambda r: np.maximum(x := -r.normal(50, 10, 5000), np.quantile(x, 0.015)), True),
        (lambda r: r.normal(50, 10, 5000), False),
        (lambda r: r.exponential(15, 5000) + 0.5, False),
        (lambda r: np.floor(np.abs(r.normal(0, 30, 5000))), False),
        (lambda r: r.integers(0, 101, 5000), False),
    ],
)
def test_clipped_ends_of_whole_numbers(draw, has_atom):
    """1.5% of the rows are at the end, two or three times as many as at the values before it."""
    for seed in range(6):
        x = np.round(draw(np.random.default_rng(seed)))
        atoms = find_atoms(x, step=1.0)
        assert len(atoms) == has_atom
        assert not has_atom or atoms[0] in (x.min(), x.max())


@pytest.mark.parametrize(("n_zeros", "is_atom"), [(21, True), (9, False)])
def test_atoms_inside_a_grid_of_few_rows(n_zeros, is_atom):
    """A share of 13 % is an atom however few rows there are; round numbers that are a little more frequent are not."""
    changes = np.random.default_rng(0).normal(9, 13, 140).round().astype(int)
    column = Column.fit(pd.Series([*changes[changes != 0], *[0] * n_zeros], name="kg"))
    assert column.atoms == ((0,) if is_atom else ())
    assert column.dithered


@pytest.mark.parametrize("fill", [-999, 99999])
def test_isolated_whole_numbers_are_atoms(fill):
    """A code for missing values in whole numbers has a state of its own, and a warning."""
    rng = np.random.default_rng(0)
    values = np.append(rng.integers(1, 40, 750), np.full(50, fill))
    with pytest.warns(UserWarning, match=f"values far from all others: {fill}"):
        column = Column.fit(pd.Series(values, name="lag"))
    assert column.atoms == (fill,)
    assert find_atoms(np.append(rng.integers(1, 40, 750), [200.0, 201.0, 202.0]), 1.0).tolist() == []


@pytest.mark.parametrize("fill", [-999, 999])
def test_values_beside_a_fill_value_keep_their_ends(fill):
    """Ages of 18 to 79, and 999 for unknown ones: 999 was a bound, so that 2 % of samples were over 79."""
    x = np.random.default_rng(0).integers(18, 80, 2000).astype(float)
    x[:60] = fill
    with pytest.warns(UserWarning, match="values far from all others"):
        column = Column.fit(pd.Series(x, name="age"))
    assert column.atoms == (fill,)
    samples = column.decode(np.random.default_rng(1).normal(size=10_000))
    assert samples.min() >= 18
    assert samples.max() <= 79


def test_groups_of_amounts_have_no_exponentials_of_exponentials():
    """Several lognormal groups are skewed on the scale of logarithms, but their tails are light there."""
    rng = np.random.default_rng(0)
    group = rng.choice(3, 560, p=[0.6, 0.3, 0.1])
    x = rng.lognormal(np.array([3.0, 4.5, 7.0])[group], np.array([0.5, 0.7, 0.9])[group])
    column = fit(pd.Series(x, name="x"))
    assert (column.map.base, column.map.heavy) == ("log", False)
    # A sample of a standard normal distribution stays within a few times of the largest amount, not within 1e6 times.
    assert column.decode(np.array([4.0]))[0] < 10 * x.max()
    assert fit(pd.Series(np.exp(rng.standard_t(2, 1500)), name="x")).map.heavy


def test_ends_of_normal_distributions_are_not_hard():
    """A row beyond an end that is taken for a hard one by mistake loses hundreds of nats."""
    rng = np.random.default_rng(0)
    ends = [find_hard_ends(rng.normal(0, 150, size=n).astype(int)) for n in (300, 1000, 4000) for _ in range(100)]
    assert np.isfinite(ends).mean() < 0.005
    falling = [find_hard_ends((400 * rng.gamma(2, size=1000)).astype(int) + 9)[0] for _ in range(100)]
    assert np.isfinite(falling).mean() < 0.2  # the density falls to zero at its end
    grades = [find_hard_ends(rng.integers(0, 101, size=n)) for n in (500, 1000, 4000) for _ in range(20)]
    assert grades == [(0.0, 100.0)] * 60


@pytest.mark.parametrize(
    ("draw", "ends"),
    [
        (lambda r: r.integers(1, 101, 1000), (1, 100)),
        (lambda r: r.integers(1, 32, 500), (1, 31)),
        (lambda r: 2025 - r.geometric(0.08, 1000), (None, 2024)),
        (lambda r: r.uniform(1, 10, 1000).round(1), (1, 10)),
        (lambda r: r.normal(170, 9, 1000).round().astype(int), None),
        (lambda r: r.negative_binomial(3, 0.05, 1000), None),
    ],
    ids=["percent", "day of the month", "year", "rating", "height", "counts"],
)
def test_samples_end_where_the_data_end_for_a_reason(draw, ends):
    """Values at a hard end are not piled up, and others go on beyond the range of the data."""
    rng = np.random.default_rng(0)
    x = draw(rng)
    column = fit(pd.Series(x, name="x"))
    z = rng.normal(size=50_000)
    sampled = column.decode(z, rng.choice(len(column.shares), len(z), p=column.shares) if column.shares else None)
    if ends is None:
        assert sampled.max() > x.max()
        assert sampled.min() >= (0 if x.min() < 10 else x.min() - 10)
    else:
        assert sampled.max() == ends[1]
        assert ends[0] is None or sampled.min() == ends[0]
        for end in (end for end in ends if end is not None):
            assert (sampled == end).mean() < (x == end).mean() + 0.02
        beyond = log_density(column, pd.Series([ends[1] + (column.step or 1)], name="x").astype(x.dtype))
        assert -500 < beyond[0] < -5  # soft, since the end is inferred


@pytest.mark.parametrize("has_context", [False, True])
def test_samples_do_not_go_far_beyond_the_data(has_context):
    """The flow draws z of up to 12, where amounts would be exp(27)."""
    rng = np.random.default_rng(0)
    amount = np.append(rng.lognormal(3, 2, 299), 0.0)
    schema = Schema.fit(pd.DataFrame({"amount": amount, "age": rng.normal(size=300), "kind": ["a", "b"] * 150}))

    class Wide(nn.Module):
        def forward(self, c=None):
            normal = torch.distributions.Normal(0.0, 3.0).expand((schema.features,))
            return torch.distributions.Independent(normal if c is None else normal.expand((len(c), schema.features)), 1)

    model = Dequantized(Wide(), schema.exact, schema.cells)
    context = torch.zeros(100, 1) if has_context else None
    n = 50 if has_context else 5_000
    blocks = list(iter_samples(model, n, context, torch.Generator().manual_seed(0), schema.sample_limits))
    sample = schema.decode(np.concatenate(blocks))
    assert len(sample) == 5_000
    for name, values in (("amount", amount[:-1]), ("age", None)):
        column = next(column for column in schema.columns if column.name == name)
        first, last = column.fitted_range
        ends = column.map.inverse(np.array([min(-5.0, first - 2), max(5.0, last + 2)]))
        assert ends[0] <= sample[name].min()
        assert sample[name].max() <= ends[1]
        if values is not None:
            assert sample[name].max() > values.max()
    free = schema.decode(np.concatenate(list(iter_samples(model, n, context, torch.Generator().manual_seed(0)))))
    assert free["amount"].max() > 100 * sample["amount"].max()
