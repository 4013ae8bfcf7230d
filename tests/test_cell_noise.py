"""Gaussian dequantisation: densities of drawn points, estimated moments, and correlations of samples."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal

import elflow
from elflow.flows.cell_noise import CellNoise


def make_noise(covariance, exact=(), cells=(0, 1)):
    noise = CellNoise(exact, cells)
    noise.covariance.copy_(torch.as_tensor(covariance))
    return noise.double()


def draw_uniform(*shape):
    return torch.rand(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(0))


def test_densities_of_points_give_the_probability_of_the_cells():
    covariance = [[1.0, 0.8], [0.8, 1.0]]
    noise = make_noise(covariance)
    low, width = torch.tensor([[0.6, 0.0]]).double(), torch.tensor([[0.3, 0.5]]).double()
    z, log_density = noise.draw(torch.zeros(1, 0).double(), low, width, draw_uniform(20_000, 2))
    normal = multivariate_normal([0, 0], covariance)
    estimate = np.exp(normal.logpdf(z.numpy()) - log_density.numpy()).mean()
    ends = torch.special.ndtri(torch.stack([low, low + width])[:, 0]).numpy()
    expected = normal.cdf([ends[1, 0], 0.0]) - normal.cdf([ends[0, 0], 0.0])
    assert estimate == pytest.approx(expected, rel=0.02)
    assert bool(((z >= torch.from_numpy(ends[0])) & (z <= torch.from_numpy(ends[1]))).all())


def test_known_and_linear_cells_keep_their_values():
    noise = make_noise(torch.eye(3) * 0.5 + 0.5, exact=[0], cells=[1, 2])
    low, width = torch.tensor([[0.7, 0.2]]).double(), torch.tensor([[0.0, -0.01]]).double()
    z, log_density = noise.draw(torch.zeros(1, 1).double(), low, width, draw_uniform(50, 2))
    assert (z[:, 0] == low[0, 0]).all()
    assert ((z[:, 1] >= low[0, 1]) & (z[:, 1] <= low[0, 1] + 0.01)).all()
    torch.testing.assert_close(log_density, torch.full((50,), -np.log(0.01)).double())


def test_points_far_from_their_cells_are_finite():
    noise = make_noise([[1.0, 0.999], [0.999, 1.0]], exact=[0], cells=[1])
    exact = torch.tensor([[-30.0], [30.0]]).double()
    low, width = torch.tensor([[0.5], [0.0]]).double(), torch.tensor([[0.5], [1e-12]]).double()
    z, log_density = noise.draw(exact, low, width, draw_uniform(2, 1))
    assert z.isfinite().all()
    assert log_density.isfinite().all()


def test_narrow_cells_have_the_density_of_uniform_points():
    """Also where both ends of a cell are the same float."""
    noise = make_noise([[1.0, 0.9], [0.9, 1.0]], exact=[0], cells=[1])
    width = torch.tensor([[1e-18], [1e-9], [1e-300]], dtype=torch.double)
    low = torch.tensor([[0.5], [0.9], [1 - 1e-16]], dtype=torch.double)
    z, log_density = noise.draw(torch.zeros(3, 1).double(), low, width, draw_uniform(3, 1))
    torch.testing.assert_close(log_density, torch.distributions.Normal(0.0, 1.0).log_prob(z)[:, 0] - width.log()[:, 0])


def test_a_skipped_feature_has_no_effect():
    noise = make_noise([[1.0, 0.9], [0.9, 1.0]], exact=[0], cells=[1])
    low, width, u = torch.zeros(5, 1).double(), torch.full((5, 1), 0.5).double(), draw_uniform(5, 1)
    first, second = (noise.draw(torch.full((5, 1), x).double(), low, width, u, skipped=0)[0] for x in (-2.0, 2.0))
    torch.testing.assert_close(first, second)
    assert not torch.equal(first, noise.draw(torch.full((5, 1), 2.0).double(), low, width, u)[0])


def test_moments_are_those_before_the_threshold():
    rng = np.random.default_rng(0)
    latent = rng.multivariate_normal([0, 0], [[1.0, 0.8], [0.8, 1.0]], size=4000)
    exact = torch.from_numpy(latent[:, :1])
    low = torch.from_numpy((latent[:, 1:] > 0) * 0.5)
    noise = CellNoise([0], [1])
    noise.estimate_moments(exact, low, torch.full_like(low, 0.5))
    assert float(noise.covariance[0, 1]) == pytest.approx(0.8 * 0.97, abs=0.04)
    assert float(noise.covariance[1, 1]) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_points_of_free_cells_do_not_determine_the_moments(seed):
    """Of a constant, and of numbers of columns with atoms, many rows say nothing: variances grew without limit."""
    rng = np.random.default_rng(seed)
    exact = rng.normal(size=(1500, 2))
    exact[:, 1] = exact[:, 0] + 1e-3 * rng.normal(size=1500)  # nearly collinear columns
    shares, lows, widths = (0.03, 0.12, 0.68), [], []
    for share in shares:  # a state that depends on the columns, and the number, known in one of the states only
        state = rng.random(1500) < np.where(exact[:, 0] > 0, 1.5, 0.5) * share
        number = 0.7 * exact[:, 0] + 0.7 * rng.normal(size=1500)
        lows += [np.where(state, 0.0, share), np.where(state, 0.0, number)]
        widths += [np.where(state, share, 1 - share), np.where(state, 1.0, -0.01)]
    lows.append(np.zeros(1500))
    widths.append(np.ones(1500))  # the constant
    cells = torch.from_numpy(np.stack(lows, 1)), torch.from_numpy(np.stack(widths, 1))
    noise = CellNoise([0, 1], range(2, 9))
    noise.estimate_moments(torch.from_numpy(exact), *cells)
    deviation = noise.covariance.diagonal().sqrt()
    correlation = noise.covariance / deviation[:, None] / deviation
    torch.testing.assert_close(deviation, torch.ones(9), atol=0.12, rtol=0)
    assert (correlation[-1, :-1].abs() < 1e-6).all()
    for number in (3, 5):  # as that of the rows that are known, 0.707
        assert 0.55 < float(correlation[0, number]) < 0.75
    z, log_density = noise.draw(torch.from_numpy(exact), *cells, draw_uniform(1500, 7))
    assert float(z.abs().max()) < 8
    assert log_density.isfinite().all()


@pytest.fixture(scope="module")
def labelled():
    rng = np.random.default_rng(0)
    x = rng.normal(size=600)
    label = np.where(x + 0.3 * rng.normal(size=600) > 0, "high", "low")
    return pd.DataFrame({"x": x, "y": 0.8 * x + 0.6 * rng.normal(size=600), "label": label})


@pytest.mark.slow
def test_categories_keep_their_correlations(labelled, tmp_path):
    options = {"max_steps": 60, "flow_options": {"transforms": 2, "units": 8, "hidden_features": (32, 32)}}
    found, scores = {}, {}
    for dequantization in ("uniform", "gaussian"):
        density = elflow.FlowDensity(dequantization=dequantization, random_state=0, **options).fit(labelled)
        samples = density.sample(4000, random_state=0)
        found[dequantization] = samples["x"].corr(samples["label"] == "high", method="spearman")
        scores[dequantization] = density.score(labelled)
    truth = labelled["x"].corr(labelled["label"] == "high", method="spearman")
    assert truth - found["gaussian"] < 0.7 * (truth - found["uniform"])
    assert scores["gaussian"] > scores["uniform"]
    density.save(tmp_path / "model.elf")
    loaded = elflow.load(tmp_path / "model.elf")
    np.testing.assert_array_equal(loaded.score_samples(labelled), density.score_samples(labelled))
    # The column in question has no value yet: points of the cells of others do not depend on it.
    low, high = density.conditional_quantile(labelled.head(50).drop(columns="x"), "x", [0.05, 0.95]).T
    assert 0.75 < ((low <= labelled["x"].head(50)) & (labelled["x"].head(50) <= high)).mean() <= 1


def test_the_default_follows_from_the_columns():
    """Points of unordered categories are uniform, those of ordered ones follow the others; many cells are uniform."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    y = x + 0.3 * rng.normal(size=300)
    frame = pd.DataFrame({"x": x, "rating": np.digitize(y, [-1, 0, 1]), "city": rng.choice(list("abc"), 300)})
    frame["flag"] = np.where(y + 0.3 * rng.normal(size=300) > 0.3, "yes", "no")
    options = {
        "max_steps": 2,
        "random_state": 0,
        "flow_options": {"transforms": 1, "units": 4, "hidden_features": (8,)},
    }
    density = elflow.FlowDensity(**options).fit(frame)
    noise = density.model_.cell_noise
    names = [density.schema_.columns[position].name for position in noise.cells]
    assert dict(zip(names, noise.correlated, strict=True)) == {"rating": True, "city": False, "flag": True}
    many = pd.DataFrame({f"c{k}": rng.integers(0, 3, 300) for k in range(17)})
    assert elflow.FlowDensity(**options).fit(many).model_.cell_noise is None
