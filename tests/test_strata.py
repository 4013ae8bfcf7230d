"""Tests of Gaussians by groups of categories, whose density is zero at the cells of other groups."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from scipy.stats import norm

import elflow
from elflow.flows.compiled import compile_density
from elflow.flows.groups import RepeatedRows, divide
from elflow.flows.mixture import FlowMixture, GaussianMixture
from elflow.flows.strata import BoxGaussian, StratifiedMixture
from elflow.tabular.integrals._integration import _Normals
from elflow.tabular.integrals._lines import Lines
from experiments.faults.files import read_content, write_content

SCALES = {"EUR": 40.0, "JPY": 5_000.0, "USD": 400.0}
SHARES = [0.55, 0.15, 0.3]


def make_box() -> BoxGaussian:
    covariance = torch.tensor([[1.0, 0.3, 0.6], [0.3, 0.5, 0.1], [0.6, 0.1, 2.0]])
    gaussian = BoxGaussian(3).double()
    gaussian.set_box({0: (-0.4, 0.7), 2: (1.0, np.inf)}, torch.tensor([0.2, 1.0, 1.5]), covariance, standard=[2])
    return gaussian.eval()


def draw_categories(n: int, shift: float, seed: int = 0) -> torch.Tensor:
    """Rows with a category, whose third cell has another mean of the other two features."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=generator, dtype=torch.double)
    x[x[:, 0] > 1.5, 1:] += shift
    return x


def make_payments(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    currency = rng.choice(list(SCALES), n, p=SHARES)
    amount = np.exp(rng.normal(np.log([SCALES[c] for c in currency]), 0.6))
    return pd.DataFrame({"amount": amount, "currency": currency, "fee": rng.normal(size=n)})


def test_density_in_box_integrates_to_one():
    gaussian = make_box()
    axes = [torch.linspace(-0.4, 0.7, 61), torch.linspace(-6, 9, 151), torch.linspace(1, 8, 141)]
    middles = [(axis[1:] + axis[:-1]).double() / 2 for axis in axes]
    volume = np.prod([float(axis[1] - axis[0]) for axis in axes])
    density = gaussian().log_prob(torch.cartesian_prod(*middles)).exp()
    assert float(density.sum() * volume) == pytest.approx(1.0, abs=2e-3)
    assert gaussian().log_prob(torch.tensor([[0.8, 1.0, 1.5], [0.0, 1.0, 0.9]]).double()).isneginf().all()


@pytest.mark.slow
def test_samples_in_box_follow_density():
    gaussian = make_box()
    torch.manual_seed(0)
    x = gaussian().sample((20_000,))
    assert ((x >= gaussian.lower) & (x < gaussian.upper)).all()
    # Importance weights of points of a normal distribution that covers the box give the same moments.
    broad = torch.distributions.Normal(torch.tensor([0.2, 1.0, 1.5]).double(), torch.tensor([1.0, 2.0, 2.0]).double())
    points = broad.sample((100_000,))
    weights = torch.softmax(gaussian().log_prob(points) - broad.log_prob(points).sum(-1), 0)
    mean = weights @ points
    torch.testing.assert_close(x.mean(0), mean, atol=0.03, rtol=0)
    covariance = (weights[:, None] * (points - mean)).T @ (points - mean)
    torch.testing.assert_close(x.T.cov(), covariance, atol=0.05, rtol=0)


def test_kernel_scores_boxes_as_torch():
    flow = elflow.ELF(features=3).double()
    other = GaussianMixture(3, components=1).double()
    other.initialize(torch.randn(100, 3, dtype=torch.double))
    mixture = FlowMixture([make_box(), flow, other], [0.6, 0.3, 0.1]).double().eval()
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    compiled = compile_density(mixture)
    if compiled is None:
        pytest.skip("the native kernel is not installed")
    torch.testing.assert_close(compiled.log_prob(x), mixture().log_prob(x).detach(), atol=1e-9, rtol=1e-9)


def test_kernel_scores_ends_of_a_box_as_torch():
    gaussian = make_box()
    ends = torch.tensor([-0.4, 0.7, 1.0], dtype=torch.double)
    points = torch.cat([ends, *(ends.nextafter(ends + step) for step in (-1, 1)), torch.tensor([0.0, 9.0])])
    x = torch.cartesian_prod(points, torch.tensor([1.0]).double(), points)
    compiled = compile_density(gaussian)
    if compiled is None:
        pytest.skip("the native kernel is not installed")
    expected = gaussian().log_prob(x)
    assert 0 < expected.isneginf().sum() < len(x)
    torch.testing.assert_close(compiled.log_prob(x), expected, atol=1e-9, rtol=1e-9)
    mixture = FlowMixture([make_box(), make_box()]).double().eval()
    torch.testing.assert_close(compile_density(mixture).log_prob(x), mixture().log_prob(x), atol=1e-9, rtol=1e-9)


def test_mass_in_the_tail_of_a_box_is_that_of_its_mirror_image():
    found = []
    for sign in (1.0, -1.0):
        gaussian = BoxGaussian(2).double()
        ends = (1.0, np.inf) if sign > 0 else (-np.inf, -1.0)
        gaussian.set_box({0: ends}, torch.zeros(2), torch.tensor([[1.0, 0.995], [0.995, 1.0]]), standard=[0])
        lines = Lines(torch.tensor([[[0.0, -0.5 * sign]]]).double(), torch.zeros(1, 1).double(), 0)
        normals = _Normals.locate(lines, [(0.0, gaussian.eval())])
        found.append(float(normals.log_mass[0, 0]))
        # The knots resolve the tail: most of it is within a tenth of the end.
        knots = np.abs(normals.place_knots(np.ones((1, 1))))
        assert np.quantile(knots, 0.5) < 1.1
        ends_of_mass = normals.cdf(np.array([[-30.0, 30.0]]), np.ones((1, 1)))
        np.testing.assert_allclose(ends_of_mass, [[0.0, 1.0]], atol=1e-9)
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(found[1], rel=1e-9)


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_categories_are_divided_only_if_they_differ(shift):
    mixture = StratifiedMixture(3, {0: [-0.5, 0.5, 1.5]})
    mixture.initialize(draw_categories(600, shift))
    assert mixture.is_divided == (shift > 0)


def test_rare_category_keeps_its_own_mean():
    mixture = StratifiedMixture(3, {0: [-0.5, 0.5, 1.5]}).double()
    rows = draw_categories(800, 3.0)
    mixture.initialize(rows)
    torch.manual_seed(0)
    x = mixture.eval()().sample((20_000,))
    is_rare = x[:, 0] > 1.5
    truth = rows[rows[:, 0] > 1.5, 1:].mean(0)
    torch.testing.assert_close(x[is_rare, 1:].mean(0), truth, atol=0.15, rtol=0)
    # Categories of one group keep their frequencies, too.
    shares = torch.histc(x[:, 0], 4, -0.5, 1.5) / len(x)
    expected = torch.tensor(np.diff(norm.cdf([-0.5, 0.0, 0.5, 1.0, 1.5])))
    torch.testing.assert_close(shares, expected, atol=0.03, rtol=0)


def test_repeated_rows_are_not_taken_for_new_ones():
    rows = draw_categories(120, 4.0)
    # Eight rows of the rare category have the weight of two hundred.
    sources = torch.cat([torch.arange(120), (rows[:, 0] > 1.5).nonzero()[:, 0].repeat(25)])
    x = rows[sources] + torch.tensor([1e-3, 0.0, 0.0]).double() * torch.randn(len(sources), 1).double()
    mixture = StratifiedMixture(3, {0: [-0.5, 0.5, 1.5]}).double()
    mixture.sources = sources
    mixture.initialize(x)
    rare = [gaussian for gaussian in mixture.flows if float(gaussian.lower[0]) > 1]
    assert len(rare) == 1
    assert mixture.sources is None
    test = draw_categories(4000, 4.0, seed=1)
    test = test[test[:, 0] > 1.5]
    assert float(rare[0].eval()().log_prob(test).mean()) > -4


def test_a_row_with_a_large_weight_is_no_group():
    rows = draw_categories(200, 0.0)
    rows[0] = torch.tensor([2.0, 1.5, 1.0])
    sources = torch.cat([torch.arange(200), torch.zeros(50, dtype=torch.long)])
    for given, is_divided in ((None, True), (sources, False)):
        mixture = StratifiedMixture(3, {0: [-0.5, 0.5, 1.9]}).double()
        mixture.sources = given
        mixture.initialize(rows[sources])
        assert mixture.is_divided == is_divided


def test_divisions_with_the_largest_gain_come_first():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2000, 3, generator=generator, dtype=torch.double)
    # The first division is at 0. Those of the right half matter much more than those of the left one.
    x[:, 1] += 30.0 * (x[:, 0] > 0) + 8.0 * (x[:, 0] > 0.5) + 8.0 * (x[:, 0] > 1) + 0.5 * (x[:, 0] < -0.5)
    mixture = StratifiedMixture(3, {0: [-1.0, -0.5, 0.0, 0.5, 1.0]}, components=5)
    mixture.initialize(x)
    assert sorted(float(gaussian.lower[0]) for gaussian in mixture.flows)[2:] == [0.0, 0.5, 1.0]


def test_groups_have_the_frequencies_of_their_categories():
    """Two categories that depend on each other only, and not as the sign of a correlation would have it."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(3000, 4)))
    x[:, 1] = torch.where((x[:, 0].abs() < 0.5) == (x[:, 1] < 1.0), x[:, 1], -x[:, 1])
    x[:, 1] = torch.where((x[:, 0].abs() < 0.5) & (x[:, 1] > 0.3), -x[:, 1], x[:, 1])
    mixture = StratifiedMixture(4, {0: [-0.5, 0.5], 1: [0.3]}).double()
    mixture.initialize(x)
    sample = mixture().sample((50_000,))
    for low, high in ((-9.0, -0.5), (-0.5, 0.5), (0.5, 9.0)):
        shares = [((z[:, 1] > 0.3) & (z[:, 0] > low) & (z[:, 0] <= high)).double().mean() for z in (x, sample)]
        assert float(shares[1]) == pytest.approx(float(shares[0]), abs=0.02)
    assert mixture().log_prob(torch.tensor([[0.0, 1.0, 0.0, 0.0]]).double()).isfinite()  # which never occurs


def test_groups_that_differ_in_their_frequency_share_their_means():
    """There is nothing else to estimate from their rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 4))
    # Of three signs, two determine the third, and no mean of two of them depends on the other one.
    x[:, 2] = np.abs(x[:, 2]) * np.sign(x[:, 0]) * np.sign(x[:, 1])
    x[:, 3] += 2 * (x[:, 0] > 0) + 2 * (x[:, 1] > 0)
    rows, cells = RepeatedRows.from_sources(x, np.arange(2000)), {k: np.zeros(1) for k in range(3)}
    groups = divide(rows, cells, 32, by_frequency=True)
    assert sum(len(group.members) for group in groups) == 2000
    assert sorted({tuple(sorted(group.box.items())) for group in groups}) == [
        ((0, (a, a)), (1, (b, b)), (2, (int(a == b), int(a == b)))) for a in (0, 1) for b in (0, 1)
    ]


@pytest.mark.slow
def test_combinations_of_categories_keep_their_frequencies():
    rng = np.random.default_rng(0)
    group, wave = rng.choice(["A", "B", "C"], 700, p=[0.5, 0.3, 0.2]), rng.choice(["w1", "w2"], 700)
    is_likely = ((group == "A") & (wave == "w1")) | ((group == "B") & (wave == "w2"))
    answer = rng.random(700) < np.where(is_likely, 0.9, 0.05)
    table = pd.DataFrame({"group": group, "wave": wave, "answer": np.where(answer, "yes", "no")})
    table["x"] = rng.normal(np.where(answer, 3, 0))
    density = elflow.FlowDensity(random_state=0, max_steps=200).fit(table)
    shares = [
        (rows["answer"] == "yes").groupby([rows["group"], rows["wave"]]).mean()
        for rows in (table, density.sample(20_000, random_state=1))
    ]
    assert (shares[1] - shares[0]).abs().max() < 0.12  # 0.28 if groups differ by their means only


def test_groups_of_constant_features_have_the_minimum_variance():
    x = draw_categories(400, 0.0)
    x[:, 1] = (x[:, 0] > 0).double()
    mixture = StratifiedMixture(3, {0: [0.0]}).double()
    mixture.initialize(x)
    assert mixture.is_divided
    for gaussian in mixture.flows[:2]:
        assert float(gaussian.whitening.moments()[2][1, 1]) >= 0.999e-6


@pytest.mark.slow
def test_weights_do_not_make_a_member_overfit():
    rng = np.random.default_rng(0)
    kind = rng.choice(["a", "b", "r"], 600, p=[0.6, 0.33, 0.07])
    table = pd.DataFrame({"x": np.where(kind == "r", 6.0, 0.0) + rng.normal(size=600), "kind": kind})
    table["y"] = rng.normal(size=600)
    options = {"transforms": 1, "hidden_features": (16,)}
    density = elflow.FlowDensity(max_steps=20, random_state=0, flow_options=options)
    density.fit(table, sample_weight=np.where(kind == "r", 20.0, 1.0))
    # It would have no weight if it had taken repeated rows for new ones. The flows have groups of their own.
    assert dict(density.members_)["strata"] > 0.2


@pytest.mark.slow
def test_amounts_keep_to_their_currency():
    density = elflow.FlowDensity(max_steps=200, random_state=0).fit(make_payments(800, seed=0))
    assert dict(density.members_)["strata"] > 0.5
    test = make_payments(100, seed=1)
    log_joint = np.log(SHARES) + norm.logpdf(np.log(test[["amount"]].to_numpy()), np.log(list(SCALES.values())), 0.6)
    truth = softmax(log_joint, axis=1)
    found = density.conditional_proba(test, "currency")[list(SCALES)].to_numpy()
    divergence = (truth * np.log(np.maximum(truth, 1e-12) / np.maximum(found, 1e-12))).sum(1).mean()
    assert divergence < 0.01  # 0.023 without "strata"
    # The distribution along the column agrees with the scores of its values.
    scores = [density.score_samples(test.assign(currency=name), n_draws=256) for name in SCALES]
    np.testing.assert_allclose(found, softmax(np.stack(scores, 1), axis=1), atol=0.005)


@pytest.mark.slow
def test_file_holds_boxes(tmp_path):
    table = make_payments(400, seed=0)
    density = elflow.FlowDensity(max_steps=20, random_state=0).fit(table)
    assert "strata" in dict(density.members_)
    density.save(tmp_path / "model.elf")
    again = elflow.load(tmp_path / "model.elf")
    np.testing.assert_array_equal(again.score_samples(table), density.score_samples(table))
    assert again.sample(50, random_state=0).equals(density.sample(50, random_state=0))


GOLDEN = Path(__file__).parent / "golden" / "v2" / "table-strata.elf"
FIRST, SECOND = "flow.flows.1.flows.0", "flow.flows.1.flows.1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # The ends between the categories of the second feature are 0.068 and 0.895.
        ({f"{SECOND}.lower": 0.8946344256401062, f"{SECOND}.upper": 0.06795449554920197}, r"1.lower\[1\] must be less"),
        ({f"{SECOND}.lower": 0.8946344256401062}, r"flows.1.lower\[1\] must be less than .*got 0.894634 and 0.894634"),
        ({f"{SECOND}.lower": 5.0, f"{SECOND}.upper": 6.0}, r"1.lower\[1\] must be -1e\+30 or an end .*, got 5"),
        (
            {f"{FIRST}.upper": 0.5},
            r"flow.flows.1.flows.0.upper\[1\] must be 1e\+30 or an end between cells, got 0.5",
        ),
        ({f"{FIRST}.upper": -1e30}, r"flow.flows.1.flows.0.upper\[1\] must be 1e\+30 or an end"),
    ],
)
def test_files_with_other_boxes_are_refused(tmp_path, changes, message):
    header, tensors = read_content(GOLDEN)
    for name, value in changes.items():
        tensors[name][1] = value
    write_content(tmp_path / "model.elf", header, tensors)
    with pytest.raises(ValueError, match=rf"model\.elf, whose configuration and weights .*{message}"):
        elflow.load(tmp_path / "model.elf")


def test_files_with_boxes_of_numbers_are_refused(tmp_path):
    header, tensors = read_content(GOLDEN)
    tensors[f"{FIRST}.lower"][0] = 0.06795449554920197
    write_content(tmp_path / "model.elf", header, tensors)
    with pytest.raises(ValueError, match=r"flow.flows.1.flows.0.lower\[0\] must be -1e\+30 or an end"):
        elflow.load(tmp_path / "model.elf")


def test_files_without_the_number_of_gaussians_are_refused(tmp_path):
    header, tensors = read_content(GOLDEN)
    config = json.loads(header["config"])
    del config["fitted"]["options_"]["strata"]
    write_content(tmp_path / "model.elf", header | {"config": json.dumps(config)}, tensors)
    with pytest.raises(ValueError, match=r"config\.fitted\.options_ has no entry strata, which its members need"):
        elflow.load(tmp_path / "model.elf")


def test_tables_without_categories_have_no_groups():
    table = make_payments(300, seed=0)[["amount", "fee"]]
    density = elflow.FlowDensity(max_steps=5, random_state=0).fit(table)
    assert "strata" not in dict(density.members_)
    assert "strata" not in density.options_


@pytest.mark.parametrize(
    ("table", "context", "lacks"),
    [
        (pd.DataFrame({"x": np.arange(50.0) ** 1.5, "y": np.arange(50.0) % 7 + 0.1}), None, "no column of categories"),
        (pd.DataFrame({"x": np.arange(50.0) ** 1.5, "kind": ["a", "b"] * 25}), np.arange(50.0)[:, None], "a context"),
    ],
    ids=["no categories", "context"],
)
def test_a_member_that_cannot_be_had_is_an_error(table: pd.DataFrame, context: np.ndarray | None, lacks: str) -> None:
    density = elflow.FlowDensity(members=["identity", "strata"], max_steps=2, random_state=0)
    with pytest.raises(ValueError, match=f"members must be without 'strata' for a table with {lacks}"):
        density.fit(table, context=context)
