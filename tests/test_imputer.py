"""`FlowImputer` as a transformer of scikit-learn."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from elflow import FlowDensity, FlowImputer

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def small(**options):
    density = FlowDensity(flow_options=SMALL, max_steps=3, members=["identity", "gaussian"])
    return FlowImputer(density, **{"random_state": 0} | options)


def table(rows=400):
    rng = np.random.default_rng(0)
    a = rng.normal(size=rows)
    frame = pd.DataFrame({"a": a, "b": a + 0.2 * rng.normal(size=rows), "kind": rng.choice(["x", "y"], rows)})
    return frame.mask(rng.random(frame.shape) < 0.1)


def list_checks():
    checks = estimator_checks_generator(small())
    return [(estimator, check) for estimator, check in checks if "array_api" not in str(check)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column .* is continuous, but")
@pytest.mark.parametrize(
    ("estimator", "check"),
    list_checks(),
    ids=lambda value: getattr(getattr(value, "func", None), "__name__", ""),
)
def test_sklearn_contract(estimator, check):
    check(estimator)


@pytest.mark.parametrize("method", ["median", "sample"])
def test_fills_every_hole_and_keeps_the_rest(method):
    frame = table()
    filled = small(method=method).fit_transform(frame)
    assert not filled.isna().any().any()
    for name in frame:
        is_known = frame[name].notna()
        assert (filled[name][is_known] == frame[name][is_known]).all()
    holes = frame["b"].isna() & frame["a"].notna()
    assert np.corrcoef(filled["b"][holes], frame["a"][holes])[0, 1] > 0.8


def test_names_and_output_container():
    frame = table()[["a", "b"]]
    imputer = small().set_output(transform="pandas").fit(frame.to_numpy())
    filled = imputer.transform(frame.to_numpy())
    assert isinstance(filled, pd.DataFrame)
    assert filled.columns.tolist() == imputer.get_feature_names_out().tolist() == ["x0", "x1"]
    assert small().fit(frame).get_feature_names_out().tolist() == ["a", "b"]


def test_filled_columns_can_be_assigned_to_the_given_table():
    """The index was replaced by 0, 1, ..., so that pandas aligned values with other rows."""
    frame = table()
    density = FlowDensity(flow_options=SMALL, max_steps=3, missing="model", random_state=0).fit(frame)
    part = frame[frame["a"].isna()]
    filled = density.impute(part, random_state=0)
    assert filled.index.equals(part.index)
    assert frame["a"].fillna(filled["a"]).notna().all()


def test_pipeline_with_a_regression():
    frame = table()
    y = frame["a"].fillna(0.0)
    model = make_pipeline(small(), LinearRegression()).fit(frame[["a", "b"]], y)
    assert model.score(frame[["a", "b"]], y) > 0.7


def test_errors():
    with pytest.raises(ValueError, match="method must be"):
        small(method="best").fit(table())
    with pytest.raises(TypeError, match="density must be a FlowDensity"):
        FlowImputer(LinearRegression()).fit(table())
    imputer = small().fit(table())
    with pytest.raises(ValueError, match=r"must have the columns .* got none named \['kind'\]"):
        imputer.transform(table()[["a", "b"]])


def test_means_of_rare_amounts():
    """An amount with 99 % zeros: the mean counts the others, although their probability is below the cut of tails."""
    rng = np.random.default_rng(0)
    claim = np.where(rng.random(3000) < 0.02, rng.gamma(4, 500, 3000), 0.0)
    frame = pd.DataFrame({"claim": claim, "x": rng.normal(size=3000)})
    density = FlowDensity(max_steps=5, random_state=0, members=["identity", "gaussian"]).fit(frame)
    holes = pd.DataFrame({"claim": np.full(100, np.nan), "x": rng.normal(size=100)})
    filled = density.impute(holes, method="mean", random_state=0)["claim"]
    assert 0.5 * claim.mean() < filled.mean() < 2 * claim.mean()
