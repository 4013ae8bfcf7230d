"""`FlowDetector` as a detector of PyOD."""

from __future__ import annotations

import json

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import roc_auc_score

from elflow import FlowDensity
from elflow.integrations._number_mixture import NumberMixture
from elflow.integrations.pyod import FlowDetector

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


# The categories of the mixed table are ranges of a number, but for rows that are rare.
pytestmark = pytest.mark.filterwarnings("ignore:column 'kind' is determined by 'a'")


def small(members=("identity",), **parameters):
    density = FlowDensity(flow_options=SMALL, max_steps=5, members=list(members))
    return FlowDetector(**{"density": density, "contamination": 0.05, "random_state": 0} | parameters)


def contaminated(n=400, seed=0):
    """A mixed table whose last rows are anomalies: ordinary values in each column, but not together."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["low", "high"], n)
    a = np.where(kind == "low", -2.0, 2.0) + 0.5 * rng.normal(size=n)
    frame = pd.DataFrame({"a": a, "b": a + 0.2 * rng.normal(size=n), "kind": kind})
    n_odd = round(0.05 * n)
    frame.loc[n - n_odd :, "b"] = -frame.loc[n - n_odd :, "a"] + rng.normal(size=n_odd)
    return frame, np.arange(n) >= n - n_odd


@pytest.fixture(scope="module")
def numeric():
    return small(members=("identity", "gaussian"), n_rounds=0).fit(contaminated()[0][["a", "b"]])


@pytest.fixture(scope="module")
def fitted():
    return small(members=("identity", "gaussian")).fit(contaminated()[0])


def test_attributes(fitted):
    frame, is_odd = contaminated()
    scores = fitted.decision_scores_
    assert (scores == fitted.decision_function(frame)).all()
    assert scores == pytest.approx(-fitted.density_.score_samples(frame))
    assert roc_auc_score(is_odd, scores) > 0.95
    assert fitted.labels_.sum() == is_odd.sum()
    assert (fitted.labels_ == (scores > fitted.threshold_)).all()
    assert (fitted.predict(frame) == fitted.labels_).all()


def test_probabilities_and_confidence(fitted):
    frame, _ = contaminated(seed=1)
    labels, confidence = fitted.predict(frame, return_confidence=True)
    for method in ("linear", "unify"):
        probability = fitted.predict_proba(frame, method=method)
        assert probability.shape == (400, 2)
        assert probability.sum(1) == pytest.approx(1)
        assert probability[labels == 1, 1].min() >= probability[labels == 0, 1].max()
    assert ((confidence >= 0) & (confidence <= 1)).all()


def test_rows_that_stay_odd_lose_weight(fitted):
    _, is_odd = contaminated()
    assert set(np.unique(fitted.weights_)) <= {0.0, 0.5, 1.0}
    assert fitted.weights_[is_odd].mean() < 0.3
    assert fitted.weights_[~is_odd].mean() > 0.95
    assert small(n_rounds=0).fit(contaminated()[0]).weights_.min() == 1


def test_scores_are_surprise_in_both_views():
    frame, _ = contaminated()
    numbers = frame[["a", "b"]]
    both, alone = (small(mixture=mixture, n_rounds=0).fit(numbers) for mixture in (True, False))
    assert alone.mixture_ is None
    assert alone.decision_scores_ == pytest.approx(-alone.density_.score_samples(numbers))
    scored = pd.concat([numbers.head(2), numbers.tail(1).assign(b=50.0)])
    reference = both.density_.reference_scores_
    shares = [max(1 / len(reference), (reference <= score).mean()) for score in both.density_.score_samples(scored)]
    in_mixture = both.decision_function(scored) + np.log(shares)
    assert ((in_mixture[:2] > -0.1) & (in_mixture[:2] < np.log(400))).all()
    assert in_mixture[2] > 10  # both views extrapolate
    assert small(n_rounds=0).fit(frame).mixture_ is None  # a category has no distances


def test_clusters_that_were_never_seen():
    """Many columns and few rows: the flow knows pairs of columns, and only the mixture knows the clusters."""
    rng = np.random.default_rng(0)
    centres = rng.choice([-2.0, 2.0], size=(7, 20))
    rows = [centre + rng.normal(size=(60, 20)) for centre in centres]
    detector = small(n_rounds=0).fit(np.concatenate(rows[:6]))
    scored, is_odd = np.concatenate(rows), np.repeat([False, True], [360, 60])
    density_auc = roc_auc_score(is_odd, detector.density_.anomaly_score(scored))
    assert roc_auc_score(is_odd, detector.decision_function(scored)) > max(0.98, density_auc)
    assert len(detector.mixture_.mixture.weights_) > 1


@pytest.mark.filterwarnings("ignore:column 'constant' is constant")
def test_mixture_of_odd_numbers():
    """Missing, constant and enormous numbers, and more columns than the mixture has features."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(150, 70)), columns=[f"c{k}" for k in range(70)])
    frame.loc[::7, "c0"] = np.nan
    frame["constant"] = 1
    schema = FlowDensity(missing="model").fit_schema(frame).schema_
    mixture = NumberMixture.fit(frame, schema, np.random.RandomState(0))
    assert "constant" not in mixture.names
    assert mixture.projection.shape == (70, 64)
    far = frame.head(3).assign(c1=1e300)
    surprise = mixture.measure_surprise(pd.concat([frame.head(3), far]))
    assert np.isfinite(surprise).all()
    assert surprise[3:].min() > surprise[:3].max()
    again = NumberMixture.from_dict(json.loads(json.dumps(mixture.to_dict())))
    assert (again.measure_surprise(frame) == mixture.measure_surprise(frame)).all()


def test_clone_and_parameters():
    detector = small(contamination=0.2)
    copy = clone(detector)
    assert copy.get_params()["contamination"] == 0.2
    assert copy.get_params()["density__max_steps"] == 5
    assert copy.set_params(n_rounds=0, density__max_steps=3).density.max_steps == 3
    assert detector.density.max_steps == 5


def test_same_seed_same_scores():
    frame, _ = contaminated(200)
    first, second = (small(n_rounds=1).fit(frame).decision_scores_ for _ in range(2))
    assert (first == second).all()
    density = FlowDensity(max_steps=5, random_state=0)
    first, second = (FlowDetector(density=density, n_rounds=0).fit(frame).decision_scores_ for _ in range(2))
    assert (first == second).all()


@pytest.mark.parametrize("name", ["fitted", "numeric"])
def test_save_and_load(name, request, tmp_path):
    frame, _ = contaminated(seed=1)
    fitted = request.getfixturevalue(name)
    assert (fitted.mixture_ is None) == (name == "fitted")
    fitted.save(tmp_path / "detector.elf")
    joblib.dump(fitted, tmp_path / "detector.joblib")
    for same in (FlowDetector.load(tmp_path / "detector.elf"), joblib.load(tmp_path / "detector.joblib")):
        assert same.threshold_ == fitted.threshold_
        assert (same.labels_ == fitted.labels_).all()
        assert (same.decision_function(frame) == fitted.decision_function(frame)).all()
        assert (same.predict_proba(frame) == fitted.predict_proba(frame)).all()
        assert same.get_params()["contamination"] == 0.05


def test_matrices_and_rows_of_density_zero():
    matrix = np.abs(np.random.default_rng(0).normal(size=(200, 2)))
    density = FlowDensity(flow_options=SMALL, max_steps=5, columns={"x0": (0, None)})
    detector = small(density=density, n_rounds=0).fit(matrix)
    with pytest.warns(UserWarning, match="outside its declared bounds"):
        scores = detector.decision_function(np.array([[1.0, 1.0], [-1.0, 1.0]]))
    assert scores[0] < 100
    assert scores[1] == 1e100


def test_errors(tmp_path):
    with pytest.raises(ValueError, match="contamination must be in"):
        small(contamination=0.7)
    with pytest.raises(TypeError, match="density must be a FlowDensity or None"):
        small(density="elf").fit(contaminated(100)[0])
    with pytest.raises(ValueError, match="n_rounds must be at least 0, got -1"):
        small(n_rounds=-1).fit(contaminated(100)[0])
    FlowDensity(flow_options=SMALL, max_steps=3).fit(contaminated(100)[0]).save(tmp_path / "density.elf")
    with pytest.raises(ValueError, match=r"density.elf must be a file of FlowDetector.save, got another model file"):
        FlowDetector.load(tmp_path / "density.elf")
