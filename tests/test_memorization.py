"""Memorization: copies of training rows are found, and samples of a good density are not taken for copies."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from elflow import FlowDensity
from elflow.report import judge, measure
from elflow.tabular.memorization._memorization import Distances, Memorization, _estimate_share, find_memorization
from elflow.tabular.schema import Schema

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def table(n, seed):
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    frame = pd.DataFrame({"a": a, "b": a + 0.5 * rng.normal(size=n), "count": rng.poisson(3, n)})
    frame["kind"] = rng.choice(["x", "y", "z"], n)
    frame["size"] = np.where(rng.random(n) < 0.1, np.nan, rng.lognormal(size=n))
    return frame


@pytest.fixture(scope="module")
def density():
    model = FlowDensity(
        flow_options=SMALL, members=["plain"], max_steps=40, missing="model", validation=0.3, random_state=0
    )
    return model.fit(table(1500, 0))


def split(density, frame):
    origins = density.row_origin(frame)
    return frame[origins == "training"], frame[origins == "validation"]


def test_good_density_does_not_memorize(density):
    training, holdout = split(density, table(1500, 0))
    found = density.memorization(training, holdout, n_samples=800)
    assert found.verdict == "none"
    assert abs(found.memorized) < 3 * found.memorized_error < 0.3
    assert found.samples.median > 0.8 * found.holdout.median
    assert found.samples.identical == found.holdout.identical == 0
    assert abs(found.gap) < 4 * found.gap_error
    assert json.loads(json.dumps(found.to_dict()))["verdict"] == "none"
    assert "No sign of memorization" in repr(found)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_copies_with_noise_are_found(density, share):
    """A memorizing fake: a share of the samples are training rows with tiny noise, the others rows of the truth."""
    training, holdout = split(density, table(1500, 0))
    samples = table(1000, 9)
    copies = training.iloc[: round(1000 * share)].reset_index(drop=True)
    copies["a"] += 1e-4 * np.random.default_rng(0).normal(size=len(copies))
    samples = pd.concat([copies, samples[len(copies) :]], ignore_index=True)
    found = density.memorization(training, holdout, samples=samples)
    assert found.verdict == "strong"
    assert found.p_value < 1e-3
    assert found.memorized == pytest.approx(share, abs=3 * found.memorized_error)


def test_identical_rows_are_counted(density):
    training, holdout = split(density, table(1500, 0))
    samples = pd.concat([training[:100], table(100, 9)], ignore_index=True)
    found = density.memorization(training, holdout, samples=samples)
    assert found.samples.identical == 0.5
    assert found.holdout.identical == 0.0


def test_outliers_beyond_the_limit_of_distances_are_not_identical():
    schema = Schema.fit(pd.DataFrame({"a": np.random.default_rng(0).normal(size=200)}))
    far = pd.DataFrame({"a": np.full(30, 1e6) + np.arange(30)})
    found = find_memorization(schema, far + 100.0, far, far + 1000.0, (np.zeros(2), np.zeros(2)))
    assert found.samples.median == 0.0
    assert found.samples.identical == found.holdout.identical == 0.0
    assert find_memorization(schema, far, far, far + 1000.0, (np.zeros(2), np.zeros(2))).samples.identical == 1.0


def test_grave_verdicts_are_rarely_chance():
    """Few held-out rows give no verdict, and two standard errors are not enough for a strong one."""
    near = Distances(0.1, 1.0, 0.0)
    found = Memorization(100, 500, 25, 0.9, 0.3, near, near, 0.0, 0.1)
    assert found.verdict == "unknown"
    for share, verdict in ((0.7, "strong"), (0.5, "slight"), (0.3, "none")):
        assert dataclasses.replace(found, memorized=share, memorized_error=0.2).verdict == verdict


def test_equal_rows_of_few_categories_are_no_memorization():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.choice(["x", "y"], 500), "b": rng.random(500) < 0.5})
    model = FlowDensity(flow_options=SMALL, members=["plain"], max_steps=20, random_state=0).fit(frame)
    found = model.memorization(frame[:400], frame[400:], n_samples=300)
    assert found.samples.identical == 1.0
    assert found.holdout.identical == 1.0
    assert found.verdict == "none"


def test_error_is_that_of_random_labels():
    """The standard error of the share is the standard deviation over random choices of the training rows."""
    rng = np.random.default_rng(0)
    weights = rng.poisson(2.0, 200) * rng.random(200)
    labels = np.arange(200) < 150
    found = [_estimate_share(weights, rng.permutation(labels)) for _ in range(3000)]
    assert np.mean([share for share, _ in found]) == pytest.approx(0, abs=0.01)
    assert np.std([share for share, _ in found]) == pytest.approx(found[0][1], rel=0.06)


def test_context_and_wrong_arguments(density):
    training, holdout = split(density, table(1500, 0))
    with pytest.raises(ValueError, match="X_holdout must have at least 20 rows, got 3"):
        density.memorization(training, holdout[:3])
    with pytest.raises(ValueError, match="samples must have at least 20 rows, got 2"):
        density.memorization(training, holdout, samples=training[:2])
    c = np.random.default_rng(0).normal(size=(400, 1))
    x = c + np.random.default_rng(1).normal(size=(400, 2))
    model = FlowDensity(flow_options=SMALL, members=["plain"], max_steps=20, random_state=0).fit(x, context=c)
    found = model.memorization(x[:300], x[300:], n_samples=300, context_train=c[:300], context_holdout=c[300:])
    assert found.verdict in ("none", "unknown")


@pytest.mark.slow
def test_report_of_the_fitted_table(density):
    found = measure(density, table(1500, 0), max_rows=150)
    assert found.memorization.n_training == 1050
    assert found.memorization.n_holdout == 450
    (verdict,) = (one for one in judge(found) if one.title == "Memorization")
    assert verdict.level in ("good", "fair")  # two standard errors are not rare
    assert found.memorization.p_value > 0.001
