"""FlowDensity: scikit-learn's contract, accuracy of densities, tables of all libraries, invalid input."""

import json
import pickle
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from _tables import mixed
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.stats import kstest, multivariate_normal, norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import elflow
from elflow import FlowDensity
from elflow.tabular import _flow, estimator
from elflow.tabular.fitting._split import Split
from elflow.tabular.queries._anomaly import rank_log_density, summarize_log_density

# The category of `known` is a function of another column, and its density is known for that reason.
pytestmark = pytest.mark.filterwarnings("ignore:column 's' is determined by 'a'")
SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def small(**parameters):
    defaults = {"max_steps": 20, "flow_options": SMALL, "random_state": 0}
    return FlowDensity(**(defaults | parameters))


def known(n=4000, seed=0):
    """A table of dependent columns (continuous, integer and category) and its exact log-density, `(n,)`."""
    rng = np.random.default_rng(seed)
    a, k = rng.normal(size=n), rng.integers(0, 3, n)
    b = 1.5 * a + k + 0.5 * rng.normal(size=n)
    frame = pd.DataFrame({"a": a, "b": b, "k": k, "s": np.where(a > 0, "high", "low")})
    log_density = norm.logpdf(a) - np.log(3) + norm.logpdf(b, 1.5 * a + k, 0.5)
    return frame, log_density


@pytest.fixture(scope="module")
def fitted():
    """A density accurate enough to be compared with the truth; slow to fit."""
    members = ["cholesky", "identity", "gaussian"]  # a third flow would take half as long again
    options = {"transforms": 2, "hidden_features": (64, 64)}
    return FlowDensity(max_steps=250, flow_options=options, members=members, random_state=0).fit(known()[0])


@pytest.fixture(scope="module")
def quick():
    """A density of the same table after few steps."""
    return small(max_steps=150).fit(known(1000)[0])


def list_contract_checks():
    """scikit-learn's checks, except for those of array libraries that are not installed."""
    checks = estimator_checks_generator(small(max_steps=3))
    return [(estimator, check) for estimator, check in checks if "array_api" not in str(check)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column .* is continuous, but")
@pytest.mark.parametrize(
    ("estimator", "check"),
    list_contract_checks(),
    ids=lambda value: getattr(getattr(value, "func", None), "__name__", ""),
)
def test_sklearn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("flow", ["elf", "nsf"])
def test_scores_depend_on_neither_the_batch_nor_the_threads(flow, threads):
    frame, _ = known(500)
    density = small(flow=flow, flow_options={}, max_steps=10).fit(frame)
    scores = density.score_samples(frame)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for size in (500, 333, 7, 1):
            head = frame.head(20 * size)
            parts = [density.score_samples(head.iloc[start : start + size]) for start in range(0, len(head), size)]
            assert np.concatenate(parts) == pytest.approx(scores[: len(head)], rel=1e-10, abs=1e-10)
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_log_density_is_right_in_the_units_of_the_data(fitted):
    frame, truth = known(2000, seed=1)
    scores = fitted.score_samples(frame)
    assert fitted.score(frame) == pytest.approx(scores.mean())
    assert scores.mean() == pytest.approx(truth.mean(), abs=0.12)
    assert scores.mean() < truth.mean() + 4 * np.std(scores - truth) / np.sqrt(len(frame))
    assert np.corrcoef(scores, truth)[0, 1] > 0.9


def test_units_scale_the_density():
    """The density in other units is the same up to the factor of the units."""
    x = np.random.default_rng(0).normal(size=(300, 2))
    one, other = small().fit(x), small().fit(x * [1000.0, 1e-6])
    shift = one.score_samples(x) - other.score_samples(x * [1000.0, 1e-6])
    assert shift == pytest.approx(np.log(1000) + np.log(1e-6), abs=1e-3)


@pytest.mark.slow
def test_density_integrates_to_one():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-2, 0.5, 500), rng.normal(2, 1, 500)])[:, None]
    grid = np.linspace(-20, 20, 20_001)[:, None]
    for flow in ("elf", "nsf"):
        density = small(flow=flow, flow_options={}, max_steps=60).fit(x)
        assert np.trapezoid(np.exp(density.score_samples(grid)), grid[:, 0]) == pytest.approx(1, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("dequantization", ["uniform", "gaussian", "variational"])
def test_probabilities_of_discrete_tables_sum_to_one(dequantization):
    rng = np.random.default_rng(0)
    a = rng.integers(0, 3, 500)
    frame = pd.DataFrame({"a": a, "b": np.where(rng.random(500) < 0.8, a, 0).astype(str)})
    density = small(dequantization=dequantization, max_steps=100, flow_options={}).fit(frame)
    every = pd.DataFrame([(i, str(j)) for i in range(3) for j in range(3)], columns=["a", "b"])
    probability = np.exp(density.score_samples(every, n_draws=4096))
    assert probability.sum() == pytest.approx(1, abs=0.05)
    observed = frame.groupby(["a", "b"]).size().reindex(pd.MultiIndex.from_frame(every), fill_value=0) / 500
    assert np.abs(probability - observed.to_numpy()).max() < 0.08


def test_more_draws_tighten_the_bound(quick):
    frame, _ = known(300, seed=2)
    assert quick.score_samples(frame, n_draws=1).mean() < quick.score_samples(frame, n_draws=64).mean()


@pytest.mark.slow
def test_samples_look_like_the_data(fitted):
    frame, _ = known(4000, seed=3)
    new = fitted.sample(4000, random_state=0)
    assert new.dtypes.to_dict() == frame.dtypes.to_dict()
    assert np.allclose(new[["a", "b", "k"]].corr(), frame[["a", "b", "k"]].corr(), atol=0.07)
    assert ((new["a"] > 0) == (new["s"] == "high")).mean() > 0.9
    assert new.equals(fitted.sample(4000, random_state=0))
    assert not new.equals(fitted.sample(4000, random_state=1))


@pytest.mark.slow
def test_conditional_distribution(fitted):
    frame, _ = known(40, seed=4)
    truth = norm(1.5 * frame["a"] + frame["k"], 0.5)
    assert np.abs(fitted.conditional_cdf(frame, "b") - truth.cdf(frame["b"])).mean() < 0.06
    quantiles = fitted.conditional_quantile(frame, "b", [0.1, 0.5, 0.9])
    assert quantiles.shape == (40, 3)
    assert np.abs(quantiles[:, 1] - truth.mean()).mean() < 0.15
    back = fitted.conditional_cdf(frame.assign(b=quantiles[:, 0]), "b")
    assert back == pytest.approx(0.1, abs=0.01)
    counts = fitted.conditional_quantile(frame, "k", 0.5)
    assert set(counts) <= {0, 1, 2}
    assert (counts == frame["k"]).mean() > 0.6


def test_conditional_object_agrees_with_the_methods(quick):
    frame, _ = known(20, seed=4)
    distribution = quick.conditional(frame, "b")
    assert distribution.cdf(frame["b"]) == pytest.approx(quick.conditional_cdf(frame, "b"), abs=1e-6)
    assert distribution.quantile([0.1, 0.9]) == pytest.approx(
        quick.conditional_quantile(frame, "b", [0.1, 0.9]), abs=1e-5
    )
    assert (np.diff(distribution.knots, axis=1) >= 0).all()
    assert distribution.cumulative[:, -1] == pytest.approx(1)
    with pytest.raises(ValueError, match="one value for each of 20 rows, got 3"):
        distribution.cdf(frame["b"].head(3))
    with pytest.raises(ValueError, match="values of 'b' must not be missing, got 20 missing values"):
        distribution.cdf(frame["b"] * np.nan)


@pytest.mark.slow
def test_pit_values_are_uniform(fitted):
    frame, _ = known(100, seed=6)
    pit = fitted.pit_values(frame, ["b", "k"], random_state=0)
    assert list(pit.columns) == ["b", "k"]
    assert pit.equals(fitted.pit_values(frame, ["b", "k"], random_state=0))
    for name in pit:
        assert kstest(pit[name], "uniform").pvalue > 1e-3
    # `pit_values` is given points of the other columns' cells, which follow b, and `conditional_cdf` the cells: the two
    # are not the same number, but both increase with b
    assert np.corrcoef(pit["b"], fitted.conditional_cdf(frame, "b"))[0, 1] > 0.8


def test_pit_values_agree_with_conditional_distributions():
    """Without cells, whose points are random, the two are the same up to the error of the quadrature."""
    frame = known(300, seed=6)[0][["a", "b"]]
    density = small(max_steps=100).fit(frame)
    pit = density.pit_values(frame[:60], ["b"], random_state=0)["b"]
    assert np.abs(pit - density.conditional_cdf(frame[:60], "b")).max() < 0.005


def test_pit_values_of_missing_values_are_missing():
    frame = mixed(120)[["float", "count", "text"]]
    pit = small(missing="model").fit(frame).pit_values(frame, random_state=0)
    assert list(pit.columns) == list(frame.columns)
    assert (pit.isna() == frame.isna()).all(axis=None)


def test_conditional_distribution_is_exact_far_out_in_the_tails():
    """With one column the flow has its distribution in closed form."""
    x = np.random.default_rng(0).standard_t(3, size=(500, 1))
    density = small(max_steps=100, flow_options={}, members=["plain"]).fit(x)
    points = np.array([[-20.0], [-6.0], [-3.0], [-1.0], [0.0], [2.0], [5.0], [15.0]])
    z = torch.from_numpy(density.encode(points)[0])
    exact = density.model_.flow.conditional_cdf(z).detach().numpy()[:, 0]
    found = density.conditional_cdf(points, 0)
    assert found == pytest.approx(exact, abs=2e-3)
    assert found[1:3] == pytest.approx(exact[1:3], rel=0.02)
    q = np.array([0.001, 0.01, 0.05, 0.5, 0.99])
    quantiles = density.conditional_quantile(points[:1], 0, q)[0]
    back = density.encode(quantiles[:, None])[0]
    assert density.model_.flow.conditional_cdf(torch.from_numpy(back)).detach().numpy()[:, 0] == pytest.approx(
        q, rel=0.04
    )


@pytest.mark.slow
def test_conditional_distribution_of_a_discrete_column():
    """P(k <= value | others) agrees with sums of joint probabilities."""
    rng = np.random.default_rng(0)
    k = rng.integers(0, 4, 600)
    frame = pd.DataFrame({"k": k, "m": np.where(rng.random(600) < 0.7, k, 3 - k)})
    density = small(max_steps=150, flow_options={}).fit(frame)
    rows = frame.head(12)
    every = pd.concat([rows.assign(k=value) for value in range(4)])
    joint = np.exp(density.score_samples(every, n_draws=1024)).reshape(4, 12)
    below = np.cumsum(joint, 0)[rows["k"], np.arange(12)] / joint.sum(0)
    assert density.conditional_cdf(rows, "k") == pytest.approx(below, abs=0.05)


@pytest.mark.slow
def test_conditional_distribution_with_a_context_and_no_names():
    rng = np.random.default_rng(0)
    c = rng.normal(size=800)
    x = (3 * c + rng.normal(size=800))[:, None]
    density = FlowDensity(max_steps=300, random_state=0).fit(x, context=c)
    median = density.conditional_quantile(x[:50], 0, 0.5, context=c[:50])
    assert np.abs(median - 3 * c[:50]).mean() < 0.3
    assert np.corrcoef(density.sample(1, context=c, random_state=0)[:, 0], c)[0, 1] > 0.9
    assert len(density.sample(3, context=c[:2], random_state=0)) == 6
    with pytest.raises(ValueError, match=r"context must be a table of \['x0'\], got None"):
        density.score_samples(x)
    with pytest.raises(ValueError, match="context must have one row for each of the 800"):
        density.score_samples(x, context=c[:5])


def test_quantiles_without_other_columns_and_for_each_row():
    rng = np.random.default_rng(0)
    c = pd.DataFrame({"c": rng.normal(size=300)})
    frame = pd.DataFrame({"x": 3 * c["c"] + rng.normal(size=300)})
    density = small().fit(frame, context=c)
    q = [0.1, 0.5, 0.9]
    expected = density.conditional_quantile(frame.head(9), "x", q, context=c.head(9))
    assert np.array_equal(density.conditional_quantile(None, "x", q, context=c.head(9)), expected)
    of_rows = density.conditional_quantile(None, "x", np.tile(q, 3)[:, None], context=c.head(9))
    assert np.array_equal(of_rows[:, 0], expected[np.arange(9), np.arange(9) % 3])
    assert density.conditional_quantile(frame.head(0), "x", q, context=c.head(0)).shape == (0, 3)
    with pytest.raises(ValueError, match=r"q must have one row for each of the 9 rows of X, got 3"):
        density.conditional_quantile(frame.head(9), "x", np.array(q)[:, None], context=c.head(9))
    with pytest.raises(ValueError, match=r"context must be a table of \['c'\], got None"):
        density.conditional_quantile(None, "x", q)
    both = small().fit(frame.assign(y=rng.normal(size=300)))
    with pytest.raises(ValueError, match=r"X must be a table of the columns conditioned on, \['y'\], got None"):
        both.conditional_quantile(None, "x", q)


@pytest.mark.parametrize(("flow", "option", "owner"), [("nsf", "units", "ELF"), ("elf", "bins", "NSF")])
def test_options_of_another_flow(flow, option, owner):
    table = np.random.default_rng(0).normal(size=(50, 2))
    message = f"flow_options must be arguments of {flow.upper()}, got '{option}', an option of {owner}: give each flow"
    with pytest.raises(TypeError, match=message):
        small(flow=flow, flow_options={option: 4}).fit(table)


def test_grid_search_over_flows():
    table = np.random.default_rng(0).normal(size=(60, 2))
    grids = [
        {"flow": ["elf"], "flow_options": [SMALL]},
        {"flow": ["nsf"], "flow_options": [{"transforms": 1, "bins": 4, "hidden_features": (8,)}]},
    ]
    search = GridSearchCV(small(max_steps=3), grids, cv=2, error_score="raise").fit(table)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_anomalies(quick):
    frame, _ = known(500, seed=5)
    scores = quick.anomaly_score(frame)
    assert 35 < scores.mean() < 65
    odd = pd.concat([frame.head(1).assign(b=b) for b in (1e3, 1e6, 1e12)])
    assert (np.diff(quick.anomaly_score(odd), prepend=100) > 0).all()
    assert 0 < (scores > 95).mean() < 0.12


def test_anomaly_scores_rank_like_log_densities():
    """Scores are strictly monotone over all finite log-densities, and finite for minus infinity."""
    rng = np.random.default_rng(0)
    for size in (5, 100, 20_000):
        reference = summarize_log_density(-rng.exponential(3.0, size))
        values = np.concatenate([-rng.exponential(3.0, 1000), [-1e6, -1e3, -50.0, 0.5, 50.0]])
        scores = rank_log_density(values, reference)
        assert np.array_equal(np.argsort(-values, kind="stable"), np.argsort(scores, kind="stable"))
        assert len(np.unique(scores)) == len(values)
        assert np.isfinite(rank_log_density([-np.inf], reference)).all()
        assert rank_log_density([-np.inf], reference)[0] > scores.max()
    # At 100 + k, the tail probability is 10 ** -k times that of the lowest reference row: here of about 1 in 20,000.
    lowest = reference[0]
    excess = rank_log_density([lowest - 3.0 * np.log(1000)], reference)[0] - 100
    assert excess == pytest.approx(3, rel=0.1)
    # Of new rows of the same distribution, a score above q has the share 100 - q.
    new = rank_log_density(-rng.exponential(3.0, 20_000), reference)
    for level in (50, 90, 99):
        assert (new > level).mean() == pytest.approx(1 - level / 100, abs=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column 'constant' is constant")
def test_pandas_polars_arrow_and_numpy_agree():
    frame = mixed(200).drop(columns=["zone", "category"])
    tables = [frame, pl.from_pandas(frame), pa.Table.from_pandas(frame, preserve_index=False)]
    scores = []
    for table in tables:
        density = small(missing="model").fit(table)
        sample = density.sample(5, random_state=0)
        assert type(sample) is type(table)
        scores.append(density.score_samples(table))
    assert np.array_equal(scores[0], scores[1])
    assert np.array_equal(scores[0], scores[2])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column 'constant' is constant")
def test_missing_values_are_sampled_back():
    frame = mixed(2000)
    density = small(missing="model", max_steps=100).fit(frame)
    new = density.sample(2000, random_state=0)
    assert new.dtypes.to_dict() == frame.dtypes.to_dict()
    assert np.abs(new.isna().mean() - frame.isna().mean()).max() < 0.03
    assert np.isfinite(density.score_samples(frame)).all()
    assert set(new["text"].dropna()) <= {"a", "b", "<c>"}
    assert new["share"].between(0, 1).all()
    assert new["positive"].min() > 0
    assert new["count"].between(frame["count"].min(), frame["count"].max()).all()
    with pytest.raises(ValueError, match=r"'float' \(71\), 'text' \(14\), 'nullable' \(51\)"):
        small().fit(frame)


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["elf", "nsf", "maf"])
@pytest.mark.filterwarnings("ignore:column 'constant' is constant")
def test_file(flow, tmp_path):
    frame = mixed(200)
    context = frame[["flag", "count"]]
    density = small(flow=flow, flow_options={"transforms": 1}, missing="model").fit(frame, context=context)
    density.save(tmp_path / "model.elf")
    with safe_open(tmp_path / "model.elf", "pt") as file:
        assert file.metadata()["flow"] == "FlowDensity"
    same = elflow.load(tmp_path / "model.elf")
    assert np.array_equal(same.score_samples(frame, context), density.score_samples(frame, context))
    pd.testing.assert_frame_equal(same.sample(2, context.head(3), 0), density.sample(2, context.head(3), 0))
    assert np.array_equal(same.validation_mask(frame), density.validation_mask(frame))
    assert np.array_equal(same.anomaly_score(frame, context), density.anomaly_score(frame, context))
    assert same.training_ == density.training_ == elflow.serialization.read_training(tmp_path / "model.elf")
    assert same.random_state == 0
    assert list(same.feature_names_in_) == list(frame.columns)


def test_files_keep_custom_activations(tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 2))
    density = small(flow_options=SMALL | {"activation": elflow.activations.RELU}).fit(x)
    density.save(tmp_path / "model.elf")
    assert np.array_equal(elflow.load(tmp_path / "model.elf").score_samples(x), density.score_samples(x))


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config.pop("schema"),
        lambda config: config["schema"]["columns"].pop(),
        lambda config: config["fitted"].pop("options_"),
        lambda config: config["fitted"]["options_"].update(hidden_features=[10**9, 10**9]),
        lambda config: config["parameters"].update(surprise=1),
        lambda config: config["parameters"].update(flow="nothing"),
        lambda config: config["schema"]["columns"][0].update(map={"edges": "many"}),
    ],
)
@pytest.mark.parametrize("flow", ["elf", "nsf"])
def test_files_that_were_tampered_with(change, flow, tmp_path):
    x = np.random.default_rng(0).normal(size=(50, 2))
    options = {"transforms": 1, "hidden_features": (8,)}
    small(flow=flow, flow_options=options, max_steps=1).fit(x).save(path := tmp_path / "model.elf")
    with safe_open(path, "pt") as file:
        header, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    config = json.loads(header["config"])
    change(config)
    save_file(tensors, path, metadata=header | {"config": json.dumps(config)})
    with pytest.raises(ValueError, match="path must be a model saved by elflow"):
        elflow.load(path)


def test_pickle_clone_and_refit():
    x = np.random.default_rng(0).normal(size=(200, 2))
    density = small().fit(x, context=x[:, 0])
    again = pickle.loads(pickle.dumps(density))
    assert np.array_equal(again.score_samples(x, x[:, 0]), density.score_samples(x, x[:, 0]))
    assert clone(density).get_params() == density.get_params()
    density.fit(x)
    assert np.array_equal(density.score_samples(x), small().fit(x).score_samples(x))


@pytest.mark.slow
def test_in_pipelines_and_searches():
    x = np.random.default_rng(0).normal(size=(200, 2))
    pipeline = make_pipeline(StandardScaler(), small()).fit(x)
    assert pipeline.score_samples(x).shape == (200,)
    assert cross_val_score(small(), x, cv=3).shape == (3,)
    search = GridSearchCV(small(), {"learning_rate": [1e-3, 1e-2]}, cv=2).fit(x)
    assert search.best_params_["learning_rate"] in (1e-3, 1e-2)


@pytest.mark.slow
def test_weights_are_repetitions():
    """A row of weight zero has no effect, and weights shift the density."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-3, 1, 400), rng.normal(3, 1, 400)])[:, None]
    weight = np.repeat([0.0, 1.0], 400)
    density = FlowDensity(max_steps=100, random_state=0).fit(x, sample_weight=weight)
    assert np.array_equal(
        density.score_samples(x), FlowDensity(max_steps=100, random_state=0).fit(x[400:]).score_samples(x)
    )
    tilted = FlowDensity(max_steps=200, random_state=0).fit(x, sample_weight=np.repeat([1.0, 4.0], 400))
    assert (tilted.sample(2000, random_state=0) > 0).mean() == pytest.approx(0.8, abs=0.06)


@pytest.mark.filterwarnings("ignore:column 'constant' is constant")
def test_validation_mask():
    frame = mixed(100)
    density = small(missing="model").fit(frame)
    mask = density.validation_mask(frame)
    assert mask.sum() == 10
    assert np.array_equal(mask, Split(100, 0.1, density.seed_).is_validation(0, 100))
    assert np.array_equal(density.validation_mask(frame.head(99)), mask[:99])
    assert np.array_equal(density.validation_mask(frame.iloc[::-1, ::-1]), mask[::-1])
    assert density.validation_mask(mixed(100, seed=1)) is None
    density.row_hashes_ = None
    assert density.validation_mask(frame) is None
    assert set(density.row_origin(frame)) == {"unknown"}


def test_row_origin_of_discrete_rows():
    """New rows of few discrete columns repeat training rows by chance, and are still new."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.random(2000) < 0.3, "b": rng.choice(list("xyz"), 2000), "c": rng.poisson(2, 2000)})
    density = small().fit(frame[:1000])

    def count(rows):
        return tuple(int((density.row_origin(rows) == origin).sum()) for origin in ("training", "validation", "new"))

    assert count(frame[:1000].sample(frac=1, random_state=0)) == (900, 100, 0)
    assert count(frame[1000:]) == (0, 0, 1000)
    assert count(frame) == (900, 100, 1000)


def test_row_hashes_of_large_tables(monkeypatch):
    """Beyond a limit, only rows with small hashes are stored and recognised."""
    monkeypatch.setattr("elflow.tabular.fitting._row_hashes.MAX_HASHES", 100)
    table = np.random.default_rng(0).normal(size=(1000, 2))
    density = small().fit(table)
    assert 60 < len(density.row_hashes_.codes) < 140
    origins = density.row_origin(table[::-1])[::-1]
    is_known = origins != "unknown"
    assert is_known.sum() == len(density.row_hashes_.codes)
    assert np.array_equal(
        (origins == "validation")[is_known], Split(1000, 0.1, density.seed_).is_validation(0, 1000)[is_known]
    )
    assert set(density.row_origin(table + 1)) == {"new"}


def test_encoding_is_a_change_of_variables():
    """The standard normal density of z times the volume is a density of the table."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.lognormal(size=3000), "k": rng.choice([0, 1], 3000, p=[0.8, 0.2])})
    z, log_volume = small().fit(frame).encode(frame)
    log_density = norm.logpdf(z).sum(1) + log_volume
    truth = norm.logpdf(np.log(frame["x"])) - np.log(frame["x"]) + np.log(np.where(frame["k"] == 0, 0.8, 0.2))
    assert log_density.mean() == pytest.approx(truth.mean(), abs=0.05)


def test_inverse_residual_is_small(quick):
    assert quick.inverse_residual(known(200)[0]) < 1e-3


@pytest.mark.slow
def test_checkpoint_resumes_to_the_same_density(tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 2))
    whole = small(max_steps=100).fit(x)
    first = small(max_steps=100).fit(x, checkpoint=tmp_path / "c")
    assert (tmp_path / "c").exists()
    again = small(max_steps=100).fit(x, checkpoint=tmp_path / "c")
    for other in (first, again):
        assert np.array_equal(whole.score_samples(x), other.score_samples(x))
    with pytest.raises(ValueError, match="checkpoint must belong to the same data"):
        small(max_steps=100).fit(x + 1, checkpoint=tmp_path / "c")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column 'x' has values far from all others")
@pytest.mark.filterwarnings("ignore:column 'x' is constant", "ignore:column 'y' numbers the rows")
@pytest.mark.parametrize(
    ("table", "check"),
    [
        (pd.DataFrame({"x": np.random.default_rng(0).normal(size=50)}), "one column"),
        (pd.DataFrame({"x": [1.5] * 50}), "constant"),
        (pd.DataFrame({"x": np.append(np.random.default_rng(0).normal(size=99), 1e12)}), "outlier"),
        (pd.DataFrame({"x": [f"c{i}" for i in range(10_000)], "y": np.arange(10_000)}), "many categories"),
        (pd.DataFrame({"x": [True, False] * 20, "y": pd.date_range("2020", periods=40)}), "no floats"),
        (pd.DataFrame(np.random.default_rng(0).normal(size=(40, 60))), "more columns than rows"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_odd_tables_have_sensible_results(table, check):
    density = small(columns={"x": "category"} if check == "many categories" else None).fit(table)
    assert np.isfinite(density.score_samples(table)).all()
    new = density.sample(20, random_state=0)
    assert len(new) == 20
    assert not new.isna().any().any()
    if check == "constant":
        assert (new["x"] == 1.5).all()
        assert density.score(table) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"flow": "realnvp2"}, "flow must be one of"),
        ({"missing": "drop"}, "missing must be one of"),
        ({"dequantization": "none"}, "dequantization must be one of"),
        ({"validation": 1.5}, r"validation must be a fraction in \(0, 1\)"),
        ({"learning_rate": -1}, "rate must be positive"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"columns": {"z": "integer"}}, "columns must refer to columns"),
        ({"flow_options": {"depth": 3}}, "flow_options must be arguments of ELF"),
        ({"flow_options": [1]}, "flow_options must be a dictionary or None"),
        ({"columns": ["x"]}, "columns must be a dictionary or None"),
        ({"members": "gaussian"}, "members must be None or a list of"),
        ({"members": ["gaussian"]}, "with at least one flow"),
        ({"max_steps": "a"}, "max_steps must be an integer"),
        ({"validation": "a"}, "validation must be a fraction"),
    ],
)
def test_bad_parameters(parameters, message):
    with pytest.raises((ValueError, TypeError), match=message):
        small(**parameters).fit(pd.DataFrame({"x": np.arange(20.0) ** 1.5}))


def test_bad_input():
    x = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.raises(ValueError, match="at least 5 rows"):
        small().fit(x[:1])
    density = small().fit(x)
    with pytest.raises(ValueError, match="context must be None, because the model was fitted without one, got"):
        density.score_samples(x, context=x)
    with pytest.raises(ValueError, match="q must be"):
        density.conditional_quantile(x, 0, 1.5)
    with pytest.raises(
        TypeError, match=r"column must be .*, got 0\.5: the order .* conditional_quantile\(X, column, q\)"
    ):
        density.conditional_quantile(x, 0.5, 0)
    with pytest.raises(TypeError, match=r"column must be .*, got \[0\.1, 0\.9\]: the order"):
        density.conditional_quantile(x, [0.1, 0.9], 0)
    with pytest.raises(TypeError, match=r"q must be .*, got 'x0': the order"):
        density.conditional_quantile(x, 0.5, "x0")
    with pytest.raises(ValueError, match="column must be below the number of columns 2, got 2"):
        density.conditional_cdf(x, 2)
    with pytest.raises(ValueError, match="column must be one of"):
        density.conditional_cdf(x, "z")
    with pytest.raises(ValueError, match="n must be at least 1"):
        density.sample(0)
    with pytest.raises(TypeError, match=r"read files with elflow\.io\.read_table"):
        small().fit({"x": [1.0, 2.0]})
    with pytest.raises(FileNotFoundError, match=r"path must be an existing file, got data\.csv"):
        small().fit("data.csv")


def test_excessive_learning_rate_is_an_error():
    x = np.random.default_rng(0).normal(size=(300, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(FloatingPointError, match=r"lower learning_rate \(now 1e"):
            small(learning_rate=1e6, max_steps=100).fit(x)


def test_a_failed_refit_leaves_no_density(monkeypatch):
    """New columns with an old flow would give wrong densities silently."""
    x = np.random.default_rng(0).normal(size=(60, 2))
    density = small(max_steps=2).fit(x)
    with pytest.raises(NotFittedError):
        density.fit_schema(1000 * x).score_samples(x)
    density.fit(x)
    monkeypatch.setattr(estimator, "fit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        density.fit(1000 * x)
    with pytest.raises(NotFittedError):
        density.score_samples(x)


def test_numpy_parameters_can_be_saved(tmp_path):
    frame = pd.DataFrame(
        {"a": np.random.default_rng(0).uniform(size=60), "b": np.random.default_rng(1).normal(size=60)}
    )
    bounds = {"a": (frame.a.min() - 1, frame.a.max() + 1)}
    density = FlowDensity(
        flow_options={"units": np.int64(4), "transforms": 1, "hidden_features": (8,)},
        columns=bounds,
        max_steps=np.int64(4),
        batch_size=np.int64(16),
        learning_rate=np.float64(1e-3),
        random_state=0,
    ).fit(frame)
    density.save(tmp_path / "m.elf")
    assert np.array_equal(elflow.load(tmp_path / "m.elf").score_samples(frame), density.score_samples(frame))


# The floor: a Gaussian


def gaussian_score(training, test):
    return multivariate_normal(training.mean(0), np.cov(training.T), allow_singular=False).logpdf(test).mean()


@pytest.mark.slow
def test_collinear_columns_are_not_worse_than_a_gaussian():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1600, 3)) @ rng.normal(size=(3, 6)) + 0.01 * rng.normal(size=(1600, 6))
    density = small(max_steps=100, random_state=0).fit(x[:800])
    assert density.score(x[800:]) > gaussian_score(x[:800], x[800:]) - 0.05
    assert density.members_[-1][0] == "gaussian"


@pytest.mark.slow
def test_exactly_collinear_and_constant_columns(tmp_path):
    """Samples and quantiles stay on the plane."""
    a, b = np.random.default_rng(0).normal(size=(2, 300))
    table = pd.DataFrame({"a": a, "b": b, "sum": a + b, "same": 3.5})
    with pytest.warns(UserWarning, match="column 'same' is constant|column 'sum' is a linear function of 'a', 'b'"):
        density = small(max_steps=60, random_state=0).fit(table)
    assert len(density.warnings_) == 2
    sample = density.sample(1000, random_state=0)
    assert np.abs(sample["sum"] - sample["a"] - sample["b"]).max() < 0.1
    assert (sample["same"] == 3.5).all()
    median = density.conditional_quantile(table, "sum", 0.5)
    assert np.abs(median - table["sum"]).max() < 0.05
    density.save(tmp_path / "m.elf")
    loaded = elflow.load(tmp_path / "m.elf")
    assert (loaded.score_samples(table) == density.score_samples(table)).all()
    assert loaded.members_ == density.members_


@pytest.mark.slow
def test_flows_that_the_rows_do_not_need_are_left_out(tmp_path, monkeypatch):
    x = np.random.default_rng(0).normal(size=(300, 2))
    monkeypatch.setattr(_flow, "fit_weights", lambda log_probs, *_, **__: torch.eye(len(log_probs)).double()[-1])
    density = small().fit(x)
    assert density.members_ == [("gaussian", 1.0)]
    assert density.n_parameters_ == 5 * density.options_["components"]
    density.save(tmp_path / "m.elf")
    loaded = elflow.load(tmp_path / "m.elf")
    assert (loaded.score_samples(x) == density.score_samples(x)).all()
    assert loaded.members_ == density.members_
    assert loaded.sample(5, random_state=0).shape == (5, 2)
    assert loaded.conditional_quantile(x[:3], 1, 0.5).shape == (3,)


@pytest.mark.slow
def test_the_gaussian_is_that_of_all_rows_whatever_their_order():
    """A drift over time must not make the first rows stand for all."""
    rng = np.random.default_rng(0)
    x = np.stack([10 * np.linspace(0, 1, 12_000), np.zeros(12_000)], 1) + rng.normal(size=(12_000, 2))
    ordered, shuffled = (small(max_steps=5, random_state=0).fit(rows) for rows in (x, rng.permutation(x)))
    assert ordered.score(x) == pytest.approx(shuffled.score(x), abs=0.05)
    assert ordered.score(x) > gaussian_score(x, x) - 0.05


@pytest.mark.slow
def test_the_gaussian_has_weighted_rows():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1000, 2)) + np.repeat([[0.0], [6.0]], 500, 0)
    weight = np.repeat([1.0, 1e-3], 500)
    score = small(max_steps=5, random_state=0).fit(x, sample_weight=weight).score_samples(x)
    truth = gaussian_score(x[:500], x[:500])
    assert np.average(score, weights=weight) > truth - 0.1


@pytest.mark.parametrize(
    "members", ["gaussian", ["gaussian"], ["cholesky", "gaussian", "gaussian"], [["identity"]], []]
)
def test_members_that_are_none(members):
    with pytest.raises(ValueError, match="members must be None or a list of"):
        FlowDensity(members=members).fit(np.zeros((20, 2)))
