"""`FlowClassifier` and `FlowRegressor` as estimators of scikit-learn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kstest, norm
from sklearn.utils.estimator_checks import estimator_checks_generator

from elflow import FlowClassifier, FlowDensity, FlowRegressor

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def small(**parameters):
    return FlowDensity(**{"flow_options": SMALL, "max_steps": 1, "members": ["cholesky", "gaussian"]} | parameters)


UNMET_CHECKS = {
    # Batches are random, and some rows are held out: the rows of a table that repeats some are others. scikit-learn
    # leaves this check out for its own estimators of this kind, too.
    "check_sample_weight_equivalence_on_dense_data": "weights are not exactly repetitions",
}


def list_checks():
    estimators = [FlowClassifier(small(), random_state=0), FlowRegressor(small(), random_state=0)]
    checks = [pair for estimator in estimators for pair in estimator_checks_generator(estimator)]
    left_out = ["array_api", *UNMET_CHECKS]
    return [(estimator, check) for estimator, check in checks if not any(name in str(check) for name in left_out)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column .* is continuous, but")
@pytest.mark.parametrize(
    ("estimator", "check"),
    list_checks(),
    ids=lambda value: getattr(getattr(value, "func", None), "__name__", type(value).__name__),
)
def test_sklearn_contract(estimator, check):
    check(estimator)


# --- classes ----------------------------------------------------------------------------------------------------------


def two_classes(n=600, seed=0):
    """Two overlapping Gaussians of different spread, a category that depends on the class, and the true log-odds."""
    rng = np.random.default_rng(seed)
    y = rng.random(n) < 0.3
    x = np.where(y, 1.0, -1.0) + np.where(y, 0.5, 1.0) * rng.normal(size=n)
    kind = np.where(rng.random(n) < np.where(y, 0.8, 0.2), "p", "q")
    log_odds = norm.logpdf(x, 1.0, 0.5) - norm.logpdf(x, -1.0, 1.0) + np.log(0.3 / 0.7)
    log_odds += np.where(kind == "p", np.log(4), -np.log(4))
    return pd.DataFrame({"x": x, "kind": kind}), np.where(y, "yes", "no"), log_odds


@pytest.fixture(scope="module")
def classifier():
    X, y, _ = two_classes(2000)
    density = small(max_steps=200, flow_options={"transforms": 2, "units": 8, "hidden_features": (32,)})
    return FlowClassifier(density, random_state=0).fit(X, y)


@pytest.mark.slow
def test_probabilities_are_those_of_bayes_rule(classifier):
    X, y, log_odds = two_classes(1000, seed=1)
    truth = 1 / (1 + np.exp(-log_odds))
    probability = classifier.predict_proba(X)
    assert classifier.classes_.tolist() == ["no", "yes"]
    assert probability.sum(1) == pytest.approx(1)
    assert np.abs(probability[:, 1] - truth).mean() < 0.04
    assert classifier.score(X, y) > ((truth > 0.5) == (y == "yes")).mean() - 0.02
    assert classifier.decision_function(X) == pytest.approx(np.log(probability[:, 1] / probability[:, 0]), abs=1e-6)


@pytest.mark.slow
def test_rows_of_no_class_are_odd(classifier):
    X, _, _ = two_classes(2000, seed=2)
    assert 0.002 < classifier.is_odd(X).mean() < 0.03
    odd = pd.DataFrame({"x": [30.0, -30.0, 1.0], "kind": ["p", "q", "p"]})
    assert classifier.is_odd(odd).tolist() == [True, True, False]
    assert classifier.predict(odd, odd="none").tolist() == ["none", "none", "yes"]
    assert classifier.predict(odd).tolist()[2] == "yes"
    assert (classifier.anomaly_score(odd) > 100 - 1e-9).tolist() == [True, True, False]
    assert classifier.predict(odd, odd=-1).tolist() == [-1, -1, "yes"]


def test_priors():
    X, y, _ = two_classes(200)
    classifier = FlowClassifier(small(), priors=[0.5, 0.5], random_state=0).fit(X, y)
    other = FlowClassifier(small(), random_state=0).fit(X, y)
    shift = np.log(other.class_prior_[1] / other.class_prior_[0])
    assert other.decision_function(X) - classifier.decision_function(X) == pytest.approx(shift)


def test_weights_of_the_classifier():
    """A row of weight zero has no effect, not even if its class has no other rows; weights shift the frequencies."""
    X, y, _ = two_classes(200)
    labels = np.where(np.arange(200) < 60, "unused", y)
    weight = np.where(np.arange(200) < 60, 0.0, np.where(y == "yes", 3.0, 1.0))
    weighted = FlowClassifier(small(), random_state=0).fit(X, labels, sample_weight=weight)
    alone = FlowClassifier(small(), random_state=0).fit(X[60:], y[60:], sample_weight=weight[60:])
    assert weighted.classes_.tolist() == ["no", "yes"]
    assert (weighted.decision_function(X) == alone.decision_function(X)).all()
    assert (weighted.anomaly_score(X) == alone.anomaly_score(X)).all()
    n_yes, n_no = (y[60:] == "yes").sum(), (y[60:] == "no").sum()
    assert weighted.class_prior_ == pytest.approx([n_no / (n_no + 3 * n_yes), 3 * n_yes / (n_no + 3 * n_yes)])


@pytest.mark.filterwarnings("ignore:.*outside its declared bounds")
def test_rows_that_are_impossible_in_every_class_have_the_prior():
    X, y, _ = two_classes(200)
    X = pd.DataFrame({"a": np.abs(np.asarray(X)[:, 0]) + 0.1})
    density = small(columns={"a": (0, None)})
    classifier = FlowClassifier(density, priors=[0.3, 0.7], random_state=0).fit(X, y)
    impossible = pd.DataFrame({"a": [-1.0]})
    assert classifier.predict_proba(impossible)[0] == pytest.approx([0.3, 0.7])
    assert classifier.predict(impossible)[0] == classifier.classes_[1]
    assert classifier.decision_function(impossible)[0] == pytest.approx(np.log(0.7 / 0.3))


def test_errors_of_the_classifier():
    X, y, _ = two_classes(200)
    with pytest.raises(ValueError, match=r"odd_share must be in \(0, 1\), got 0"):
        FlowClassifier(small(), odd_share=0).fit(X, y)
    with pytest.raises(ValueError, match="priors must be 2 positive probabilities"):
        FlowClassifier(small(), priors=[0.5, 0.6]).fit(X, y)
    with pytest.raises(ValueError, match="y must have at most 32 classes, got 40"):
        FlowClassifier(small()).fit(X, np.arange(200) // 5)
    with pytest.raises(TypeError, match="density must be a FlowDensity or None, got str"):
        FlowClassifier("elf").fit(X, y)


# --- numbers ----------------------------------------------------------------------------------------------------------


def spread_by_kind(n=2000, seed=0):
    """A number with a mean and a spread that depend on the row, and its true log-density."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"x": rng.normal(size=n), "kind": rng.choice(["calm", "wild"], n)})
    mean, spread = X["x"].to_numpy(), np.where(X["kind"] == "calm", 0.1, 1.0)
    y = mean + spread * rng.normal(size=n)
    return X, y, mean, norm.logpdf(y, mean, spread)


@pytest.fixture(scope="module")
def regressor():
    X, y, _, _ = spread_by_kind(3000)
    density = small(max_steps=300, flow_options={"transforms": 2, "units": 8, "hidden_features": (32,)})
    return FlowRegressor(density, random_state=0).fit(X, y)


@pytest.mark.slow
def test_distribution_is_the_true_one(regressor):
    X, y, mean, log_density = spread_by_kind(500, seed=1)
    assert regressor.score(X, y) == pytest.approx(regressor.log_density(X, y).mean())
    assert regressor.score(X, y) > log_density.mean() - 0.1
    is_calm = (X["kind"] == "calm").to_numpy()
    errors = regressor.predict(X) - mean
    assert np.abs(errors[is_calm]).mean() < 0.06
    assert np.abs(errors[~is_calm]).mean() < 0.2
    low, high = regressor.predict_interval(X, coverage=0.8).T
    inside = (low <= y) & (y <= high)
    assert 0.72 < inside[is_calm].mean() < 0.88
    assert 0.72 < inside[~is_calm].mean() < 0.88


@pytest.mark.slow
def test_samples_follow_the_quantiles(regressor):
    X = spread_by_kind(5, seed=1)[0]
    samples = regressor.sample(X, n=400, random_state=0)
    assert samples.shape == (5, 400)
    quantiles = regressor.predict_quantiles(X, np.linspace(0.01, 0.99, 99))
    for row, levels in zip(samples, quantiles, strict=True):
        assert kstest(np.interp(row, levels, np.linspace(0.01, 0.99, 99)), "uniform").pvalue > 1e-3


def test_weights_of_the_regressor():
    """A row of weight zero has no effect, and weights shift the distribution."""
    X = pd.DataFrame({"x": np.zeros(800)})
    y = np.random.default_rng(0).normal(size=800) + np.repeat([0.0, 8.0], 400)
    weight = np.repeat([0.0, 1.0], 400)
    weighted = FlowRegressor(small(), random_state=0).fit(X, y, sample_weight=weight)
    alone = FlowRegressor(small(), random_state=0).fit(X[400:], y[400:])
    tilted = FlowRegressor(small(max_steps=30), random_state=0).fit(X, y, sample_weight=weight + 0.25)
    assert (weighted.log_density(X, y) == alone.log_density(X, y)).all()
    assert tilted.predict(X[:1])[0] == pytest.approx(8 * 1.25 / 1.5, abs=0.6)
    with pytest.raises(ValueError, match="sample_weight must have a positive weight, got 800 zeros"):
        FlowRegressor(small()).fit(X, y, sample_weight=np.zeros(800))


def test_errors_of_the_regressor():
    X, y, _, _ = spread_by_kind(100)
    with pytest.raises(ValueError, match="y must have one number for each of the 100 rows of X, got 99"):
        FlowRegressor(small()).fit(X, y[:99])
    regressor = FlowRegressor(small(), random_state=0).fit(X, y)
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got 90"):
        regressor.predict_interval(X, coverage=90)
    with pytest.raises(ValueError, match=r"got none named \['kind'\]"):
        regressor.predict(X[["x"]])
