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
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.stats import kstest, norm
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from test_table import mixed

import elflow
from elflow import FlowDensity

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
    return FlowDensity(max_steps=700, flow_options={"transforms": 3}, random_state=0).fit(known()[0])


@pytest.fixture(scope="module")
def quick():
    """A density of the same table after few steps."""
    return small(max_steps=150).fit(known(1000)[0])


def list_contract_checks():
    """scikit-learn's checks, except for those of array libraries that are not installed."""
    checks = estimator_checks_generator(small(max_steps=3))
    return [(estimator, check) for estimator, check in checks if "array_api" not in str(check)]


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


def test_density_integrates_to_one():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-2, 0.5, 500), rng.normal(2, 1, 500)])[:, None]
    grid = np.linspace(-20, 20, 20_001)[:, None]
    for flow in ("elf", "nsf"):
        density = small(flow=flow, flow_options={}, max_steps=60).fit(x)
        assert np.trapezoid(np.exp(density.score_samples(grid)), grid[:, 0]) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("dequantization", ["uniform", "variational"])
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
    frame, _ = known(150, seed=4)
    truth = norm(1.5 * frame["a"] + frame["k"], 0.5)
    assert np.abs(fitted.conditional_cdf(frame, "b") - truth.cdf(frame["b"])).mean() < 0.06
    quantiles = fitted.conditional_quantile(frame, "b", [0.1, 0.5, 0.9])
    assert quantiles.shape == (150, 3)
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
    frame, _ = known(300, seed=6)
    pit = fitted.pit_values(frame, ["b", "k"], random_state=0)
    assert list(pit.columns) == ["b", "k"]
    assert pit.equals(fitted.pit_values(frame, ["b", "k"], random_state=0))
    for name in pit:
        assert kstest(pit[name], "uniform").pvalue > 1e-3
    # for a continuous column, `conditional_cdf` differs only in the points of the other columns' cells
    assert np.abs(pit["b"] - fitted.conditional_cdf(frame, "b")).mean() < 0.1


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


def test_anomalies(quick):
    frame, _ = known(500, seed=5)
    scores = quick.anomaly_score(frame)
    assert 35 < scores.mean() < 65
    odd = frame.head(1).assign(b=1e12)
    assert quick.anomaly_score(odd)[0] == 100


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


@pytest.mark.parametrize("flow", ["elf", "nsf", "maf"])
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


def test_in_pipelines_and_searches():
    x = np.random.default_rng(0).normal(size=(200, 2))
    pipeline = make_pipeline(StandardScaler(), small()).fit(x)
    assert pipeline.score_samples(x).shape == (200,)
    assert cross_val_score(small(), x, cv=3).shape == (3,)
    search = GridSearchCV(small(), {"learning_rate": [1e-3, 1e-2]}, cv=2).fit(x)
    assert search.best_params_["learning_rate"] in (1e-3, 1e-2)


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


def test_validation_mask():
    frame = mixed(100)
    density = small(missing="model").fit(frame)
    assert density.validation_mask(frame).sum() == 10
    assert density.validation_mask(frame.head(99)) is None
    assert density.validation_mask(frame.iloc[::-1]) is None


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
    density = small().fit(table)
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
        ({"validation": 1.5}, r"validation must be a share in \(0, 1\)"),
        ({"learning_rate": -1}, "rate must be positive"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"columns": {"z": "integer"}}, "columns must name columns"),
        ({"flow_options": {"depth": 3}}, "flow_options must be arguments of ELF"),
        ({"flow_options": [1]}, "flow_options must be a dictionary or None"),
        ({"columns": ["x"]}, "columns must be a dictionary or None"),
        ({"members": "gaussian"}, "members must be None or a list of"),
        ({"members": ["gaussian"]}, "with at least one besides 'gaussian'"),
        ({"max_steps": "a"}, "max_steps must be an integer"),
        ({"validation": "a"}, "validation must be a share"),
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
    with pytest.raises(ValueError, match="context must be None"):
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
    for table in ("data.csv", {"x": [1.0, 2.0]}):
        with pytest.raises(TypeError, match=r"read a file with elflow\.io\.read_table"):
            small().fit(table)


def test_excessive_learning_rate_is_an_error():
    x = np.random.default_rng(0).normal(size=(300, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(FloatingPointError, match="lower learning_rate, which was 1e"):
            small(learning_rate=1e6, max_steps=100).fit(x)
