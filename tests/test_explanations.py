"""Reasons why rows are unlikely."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from elflow import FlowDensity

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def table(rows=1500):
    rng = np.random.default_rng(0)
    a = rng.normal(size=rows)
    return pd.DataFrame(
        {
            "a": a,
            "b": a + 0.1 * rng.normal(size=rows),
            "age": (40 + 10 * a + 2 * rng.normal(size=rows)).round(),
            "kind": np.where(rng.random(rows) < 0.95, np.where(a > 0, "high", "low"), "other"),
        }
    )


@pytest.fixture(scope="module")
def density():
    return FlowDensity(flow_options=SMALL, max_steps=60, random_state=0).fit(table())


def test_names_the_odd_cell(density):
    row = pd.DataFrame({"a": [1.0], "b": [-1.0], "age": [50.0], "kind": ["high"]})
    reasons = density.explain(row)
    assert reasons.columns.tolist() == ["row", "column", "value", "tail_probability", "surprise", "low", "high"]
    assert reasons["surprise"].is_monotonic_decreasing
    b = reasons.set_index("column").loc["b"]
    assert b["tail_probability"] < 1e-4
    assert b["surprise"] > 10
    assert b["low"] < 1 < b["high"]


def test_tails_and_surprise_of_ordinary_rows(density):
    """Tail probabilities of rows of the density are uniform, and the mean surprise is zero."""
    rows = density.sample(400, random_state=1)
    reasons = density.explain(rows, columns=["a", "b", "kind"])
    of_columns = reasons.groupby("column")
    for name in ("a", "b"):
        assert stats.kstest(of_columns.get_group(name)["tail_probability"], "uniform").pvalue > 1e-3
    for name in ("a", "b", "kind"):
        surprise = of_columns.get_group(name)["surprise"]
        assert abs(surprise.mean()) < 4 * surprise.std() / 20 + 0.05
    inside = of_columns.get_group("b")
    share = ((inside["low"] <= inside["value"]) & (inside["value"] <= inside["high"])).mean()
    assert share == pytest.approx(0.9, abs=0.06)


def test_missing_values_and_wrong_arguments(density):
    frame = table(200)
    frame.loc[:20, "b"] = np.nan
    model = FlowDensity(flow_options=SMALL, max_steps=3, random_state=0, missing="model").fit(frame)
    reasons = model.explain(frame.head(3), columns=["a", "b"])
    assert reasons["column"].unique().tolist() == ["a"]
    with pytest.raises(ValueError, match="level must be a probability"):
        density.explain(table(3), level=2.0)
    assert density.explain(table(3).head(0)).empty
