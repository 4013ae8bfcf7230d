"""The known densities of the benchmark of conditions, and the measures of the benchmark of imputation."""

import numpy as np
import pandas as pd
import pytest

from experiments.bench import conditions, imputation


@pytest.mark.parametrize(("name", "known"), [("mixture", {"a": 0.5, "c": -0.2}), ("network", {"m": "u", "b": 0.3})])
def test_known_conditionals_agree_with_selected_samples(name, known):
    truth = conditions.make_truth(name)
    frame = truth.sample(400_000, np.random.default_rng(0))
    is_close = np.ones(len(frame), bool)
    for column, value in known.items():
        is_close &= (frame[column] == value) if isinstance(value, str) else (frame[column] - value).abs() < 0.1
    rest = [n for n in truth.names[len(truth.names) - truth.mean.shape[1] :] if n not in known]
    exact = truth.condition(known)
    mean = np.exp(exact.log_weight) @ exact.mean
    selected = frame[is_close][rest]
    error = 4 * selected.std() / np.sqrt(len(selected)) + 0.08  # of the width of the selection
    assert (np.abs(selected.mean() - mean) < error).all()


def test_known_conditionals_given_a_range_and_a_set_agree_with_selected_samples():
    truth = conditions.make_truth("network")
    frame = truth.sample(100_000, np.random.default_rng(0))
    selected = frame[frame["k"].isin(["x", "z"]) & frame["b"].between(0.0, 0.8)]["a"]
    exact = truth.condition({"k": ["x", "z"]})
    values = np.array([-1.0, 0.0, 1.5])
    found = exact.cdf(0, values, (1, 0.0, 0.8))
    assert np.abs(found - [(selected <= value).mean() for value in values]).max() < 0.02


def test_estimate_of_the_true_family_approaches_it():
    truth = conditions.make_truth("network")
    estimate = truth.estimate(300_000, np.random.default_rng(0))
    known = {"m": "v", "b": 0.3}
    values = np.array([-1.0, 0.0, 1.5])
    pair = [density.condition(known).cdf(0, values) for density in (truth, estimate)]
    assert 0 < np.abs(pair[0] - pair[1]).max() < 0.01


def test_measures_of_imputation():
    rng = np.random.default_rng(0)
    truth = pd.DataFrame({"x": rng.normal(size=2000), "kind": rng.choice(["a", "b"], 2000)})
    mask = np.ones(truth.shape, bool)
    zero = pd.DataFrame({"x": np.zeros(2000), "kind": ["a"] * 2000})
    draws = [pd.DataFrame({"x": rng.normal(size=2000)}) for _ in range(imputation.N_DRAWS)]
    points = dict.fromkeys(("mean", "median", "mode"), zero)
    found = imputation.measure(truth, truth, mask, points, draws)
    unit = truth["x"].sub(truth["x"].median()).abs().mean()
    assert found["rmse"] == pytest.approx(truth["x"].std() / unit, rel=0.01)
    assert found["mae"] == pytest.approx(1, rel=0.01)
    # E|X - Y| - E|Y - Y'| / 2 of independent standard normals is 1 / sqrt(pi).
    assert found["crps"] == pytest.approx(1 / np.sqrt(np.pi) / unit, rel=0.03)
    assert found["crps"] < imputation.measure(truth, truth, mask, points, [])["crps"]
    assert found["coverage"] == pytest.approx(0.9, abs=0.02)  # of quantiles of 39 draws it would be 0.86
    assert found["accuracy"] == pytest.approx((truth["kind"] == "a").mean())


def test_coverage_of_right_draws_of_few_values():
    rng = np.random.default_rng(1)  # other numbers than those that break ties
    frames = [pd.DataFrame({"x": rng.integers(3, size=5000)}) for _ in range(1 + imputation.N_DRAWS)]
    points = dict.fromkeys(("mean", "median", "mode"), frames[0])
    found = imputation.measure(frames[0], frames[0], np.ones((5000, 1), bool), points, frames[1:])
    assert found["coverage"] == pytest.approx(0.9, abs=0.02)


@pytest.mark.parametrize("mechanism", imputation.MECHANISMS)
def test_removed_cells(mechanism):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(5000, 3)))
    mask = imputation.remove_cells(frame, mechanism, np.random.default_rng(1))
    assert mask.mean() == pytest.approx(imputation.SHARE, abs=0.02)
