"""Tests of the standardisation of features within groups of categories, before a flow."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax

import elflow
from elflow.flows.compiled import compile_density
from elflow.flows.group_norm import MAX_LOG_RATIO, Grouped, GroupNorm, _shrink_log_scales
from elflow.flows.mixture import FlowMixture, GaussianMixture
from elflow.flows.strata import BoxGaussian
from elflow.flows.whitening import Whitened
from elflow.tabular.integrals._members import list_gaussians
from experiments.faults.files import read_content, write_content

SMALL = {"transforms": 2, "units": 8, "hidden_features": (32,)}


def draw_categories(n: int, shift: float, scale: float = 1.0, seed: int = 0) -> torch.Tensor:
    """Rows with a category, whose third cell has another mean and scale of the other two features."""
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    is_rare = x[:, 0] > 1.5
    x[is_rare, 1:] = shift + scale * x[is_rare, 1:]
    return x


def make_norm(rows: torch.Tensor, groups: int = 4) -> GroupNorm:
    norm = GroupNorm(3, {0: [-0.5, 1.5]}, standardized={1: None, 2: None}, groups=groups).double()
    norm.initialize(rows)
    return norm


def make_payments(n: int, seed: int) -> pd.DataFrame:
    """Amounts in four currencies, one of them rare and with far larger amounts, and a fifth of them zero."""
    rng = np.random.default_rng(seed)
    currency = rng.choice(["USD", "EUR", "GBP", "JPY"], n, p=[0.5, 0.3, 0.146, 0.054])
    scale = pd.Series(currency).map({"USD": 40.0, "EUR": 35.0, "GBP": 30.0, "JPY": 4_000.0})
    amount = np.where(rng.random(n) < 0.2, 0.0, scale * rng.lognormal(sigma=0.6, size=n))
    return pd.DataFrame({"currency": currency, "amount": amount, "score": rng.beta(2, 5, n)})


def test_jacobian_and_inverse():
    rows = draw_categories(600, 5.0, scale=0.4)
    transform = make_norm(rows)()
    y, ladj = transform.call_and_ladj(rows)
    torch.testing.assert_close(transform.inv(y), rows)
    for x, expected in zip(rows[:50], ladj, strict=False):
        jacobian = torch.autograd.functional.jacobian(transform, x)
        torch.testing.assert_close(torch.linalg.slogdet(jacobian).logabsdet, expected)
    torch.testing.assert_close(transform.log_abs_det_jacobian(rows, y), ladj)


def test_a_group_apart_from_others_gets_their_moments():
    rows = draw_categories(20_000, 5.0, scale=0.4)
    y = make_norm(rows)()(rows)
    is_rare = rows[:, 0] > 1.5
    torch.testing.assert_close(y[is_rare, 1:].mean(0), y[~is_rare, 1:].mean(0), atol=0.02, rtol=0)
    torch.testing.assert_close(y[is_rare, 1:].std(0), y[~is_rare, 1:].std(0), atol=0.03, rtol=0)
    assert torch.equal(y[:, 0], rows[:, 0])
    assert torch.equal(y[~is_rare], rows[~is_rare])


@pytest.mark.parametrize("shift", [0.0, 0.7])
def test_groups_that_overlap_stay_in_their_place(shift):
    norm = make_norm(draw_categories(3000, shift))
    rows = draw_categories(10, 0.0, seed=1)
    assert torch.equal(norm()(rows), rows)
    assert norm.drop_unused() == 0


def test_one_of_several_separate_groups_stays_in_its_place():
    rows = draw_categories(2000, 0.0)
    rows[:, 1] += 20 * (rows[:, 0] > -0.5) + 20 * (rows[:, 0] > 1.5)
    norm = make_norm(rows)
    y = norm()(rows)
    assert norm.drop_unused() == 2
    assert y[:, 1].std() == pytest.approx(1.0, abs=0.1)


def test_estimates_of_small_groups_are_shrunk():
    sizes = np.array([1000.0, 800.0, 5.0])
    found = _shrink_log_scales(np.array([1.0, 2.0, 9.0]), sizes)
    # The last group has a variance far from the others, but hardly any rows to show it.
    assert 0 < found[2] < 0.5 * np.log(9.0) * 0.5
    assert found[1] - found[0] == pytest.approx(0.5 * np.log(2.0), abs=0.05)
    assert (_shrink_log_scales(np.array([1.0, 0.0, 2.0]), np.array([90.0, 50.0, 1.0])) == 0).all()


def test_log_scales_of_equal_groups_are_zero():
    rng = np.random.default_rng(0)
    variances = np.array([rng.normal(size=30).var(ddof=1) for _ in range(20)])
    assert np.abs(_shrink_log_scales(variances, np.full(20, 30.0))).max() < 0.1


def test_gated_features_change_only_if_their_gate_is_open():
    rows = draw_categories(5000, 5.0, scale=0.4)
    is_open = rows[:, 2] > 0
    rows[~is_open, 1] = torch.randn(int((~is_open).sum()), generator=torch.Generator().manual_seed(1)).double()
    norm = GroupNorm(3, {0: [-0.5, 1.5]}, standardized={1: (2, 0.0, 1e30)}).double()
    norm.initialize(rows)
    y = norm()(rows)
    assert torch.equal(y[~is_open], rows[~is_open])
    is_rare = rows[:, 0] > 1.5
    torch.testing.assert_close(y[is_open & is_rare, 1].mean(), y[is_open & ~is_rare, 1].mean(), atol=0.1, rtol=0)
    torch.testing.assert_close(norm().inv(y), rows)


@pytest.mark.parametrize("n_rare", [2, 5, 9, 12, 30])
def test_small_groups_of_the_same_distribution_stay_in_their_place(n_rare):
    generator = torch.Generator().manual_seed(0)
    n_moved = 0
    for _ in range(20):
        x = torch.randn(500, 3, generator=generator, dtype=torch.double)
        x[:, 0] = torch.where(torch.arange(500) < n_rare, 2.0, x[:, 0].clamp(max=1.4))
        x[:n_rare, 1] += 30  # so that the rare category is a group
        norm = make_norm(x)
        assert bool((norm.loc[:, 1] != 0).any()) == (n_rare >= 10)
        n_moved += bool((norm.loc[:, 2] != 0).any())
    assert n_moved == 0


def test_maps_keep_their_precision_under_autocast():
    rows = draw_categories(600, 5.0, scale=0.4).float()
    norm = make_norm(rows.double()).float()
    with torch.autocast("cpu", torch.bfloat16):
        y, ladj = norm().call_and_ladj(rows)
    expected, expected_ladj = norm().call_and_ladj(rows)
    assert torch.equal(y, expected)
    assert torch.equal(ladj, expected_ladj)


def test_first_training_batch_initialises_groups():
    rows = draw_categories(600, 5.0).float()
    flow = Grouped(Whitened(elflow.ELF(3, units=8, hidden_features=(16,)), 3), GroupNorm(3, {0: [1.5]}, {1: None}))
    flow.train()().log_prob(rows)
    assert flow.initialized
    assert flow.norm.drop_unused() == 1


def test_categories_are_divided_before_states():
    rng = np.random.default_rng(1)
    kind = rng.choice(list("abc"), 800, p=[0.6, 0.35, 0.05])
    # Whether the amount is zero says nearly as much as the category.
    amount = np.where(kind == "a", rng.lognormal(size=800), 0.0)
    table = pd.DataFrame({"kind": kind, "x": amount, "y": rng.normal(size=800) + 8 * (kind == "c")})
    density = elflow.FlowDensity(max_steps=40, random_state=0, flow_options=SMALL).fit(table)
    sample = density.sample(5000, random_state=0)
    assert (sample.y[sample.kind == "c"] < 4).mean() < 0.05
    assert ((sample.kind == "a") & (sample.y > 5)).mean() < 0.005
    rare = table[table.kind == "c"]
    assert density.conditional_proba(rare, "kind")["c"].mean() > 0.95


def test_groups_whose_gate_is_closed_for_all_rows():
    rows = draw_categories(2000, 0.0)
    rows[:, 1] += 20 * (rows[:, 0] > -0.5) + 20 * (rows[:, 0] > 1.5)
    rows[:, 2] = torch.where(rows[:, 0] > 1.5, -1.0, 1.0)
    for gates, n_moved in (((2, 0.0, 1e30), 1), ((2, 5.0, 1e30), 0), ((2, -1e30, 0.0), 0)):
        norm = GroupNorm(3, {0: [-0.5, 1.5]}, standardized={1: gates}).double()
        norm.initialize(rows)
        assert norm()(rows).isfinite().all()
        assert norm.drop_unused() == n_moved


def test_repeated_rows_are_not_taken_for_new_ones():
    rows = draw_categories(200, 0.0)
    rows[0] = torch.tensor([2.0, 1.5, 1.0])
    sources = torch.cat([torch.arange(200), torch.zeros(50, dtype=torch.long)])
    for given, n_groups in ((None, 1), (sources, 0)):
        norm = GroupNorm(3, {0: [-0.5, 1.9]}, standardized={1: None, 2: None}).double()
        norm.sources = given
        norm.initialize(rows[sources])
        assert norm.drop_unused() == n_groups


def test_kernel_scores_groups_as_torch():
    rows = draw_categories(600, 5.0, scale=0.4)
    rows[:, 2] = torch.randn(
        600, generator=torch.Generator().manual_seed(1)
    )  # the gate is open for a part of each group
    flows = [elflow.ELF(3, units=8, hidden_features=(16,)).double() for _ in range(3)]
    gated = GroupNorm(3, {0: [-0.5, 1.5]}, standardized={1: (2, 0.0, 1.5)})
    whitened = [Whitened(flow, 3) for flow in flows]
    members = [Grouped(whitened[0], make_norm(rows)), whitened[1], Grouped(whitened[2], gated)]
    gaussians = Grouped(GaussianMixture(3, components=4), make_norm(rows))
    mixture = FlowMixture([*members, gaussians]).double()
    mixture.initialize(rows)
    mixture.eval()
    assert (gated.loc != 0).any()
    compiled = compile_density(mixture)
    if compiled is None:
        pytest.skip("the native kernel is not installed")
    ends = torch.tensor([-0.5, 1.5], dtype=torch.double)
    points = torch.cat([ends, ends.nextafter(ends - 1), ends.nextafter(ends + 1)])
    x = torch.cat([rows, torch.cartesian_prod(points, *torch.tensor([[-1.0, 4.0]] * 2).double())])
    torch.testing.assert_close(compiled.log_prob(x), mixture().log_prob(x).detach(), atol=1e-9, rtol=1e-9)


def test_density_integrates_to_one_over_groups():
    rows = draw_categories(600, 3.0, scale=0.5)[:, :2]
    norm = GroupNorm(2, {0: [-0.5, 1.5]}, standardized={1: None}).double()
    flow = Grouped(Whitened(elflow.ELF(2, units=8, hidden_features=(16,)), 2), norm).double()
    flow.initialize(rows)
    axes = [torch.linspace(-7, 7, 701).double(), torch.linspace(-8, 11, 951).double()]
    middles = [(axis[1:] + axis[:-1]) / 2 for axis in axes]
    volume = float((axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0]))
    with torch.no_grad():
        mass = flow.eval()().log_prob(torch.cartesian_prod(*middles)).exp().sum() * volume
    assert float(mass) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_rare_currency_keeps_its_amounts(seed):
    density = elflow.FlowDensity(random_state=seed).fit(make_payments(900, seed))
    sample = density.sample(20_000, random_state=1)
    rare = sample.amount[(sample.currency == "JPY") & (sample.amount > 0)]
    other = sample.amount[(sample.currency != "JPY") & (sample.amount > 0)]
    assert (rare < 500).mean() < 0.03  # truth 0.0003; 0.18 to 0.42 without groups
    assert (other > 1_000).mean() < 0.002
    assert np.median(rare) == pytest.approx(4_000, rel=0.25)
    assert (sample.currency == "JPY").mean() == pytest.approx(0.054, abs=0.015)


@pytest.fixture(scope="module")
def payments():
    """A density whose flows have groups, and its table."""
    table = make_payments(500, seed=0)
    density = elflow.FlowDensity(random_state=0, max_steps=60, flow_options=SMALL).fit(table)
    assert density.options_["groups"] == 1
    return density, table


def test_conditional_probabilities_agree_with_scores(payments):
    density, table = payments
    some = table.head(40)
    found = density.conditional_proba(some, "currency")
    scores = [density.score_samples(some.assign(currency=name), n_draws=256) for name in found]
    np.testing.assert_allclose(found.to_numpy(), softmax(np.stack(scores, 1), axis=1), atol=0.015)


def test_gaussians_behind_groups_have_the_density_of_their_group():
    rows = draw_categories(2000, 6.0, scale=0.4)
    grouped = Grouped(GaussianMixture(3, components=4), make_norm(rows)).double()
    grouped.initialize(rows)
    grouped.eval()
    moved = [(weight, part) for weight, part in list_gaussians(grouped) if isinstance(part, BoxGaussian)]
    assert 0 < len(moved) < len(list_gaussians(grouped))
    x = grouped().sample((4000,))
    x = x[x[:, 0] > 1.5]
    found = torch.logsumexp(torch.stack([weight + part().log_prob(x) for weight, part in moved]), 0)
    torch.testing.assert_close(found, grouped().log_prob(x), atol=1e-6, rtol=0)


def test_conditional_samples_of_a_rare_category_are_efficient(payments):
    density, _ = payments
    sample = density.sample(400, given={"currency": "JPY"}, random_state=0)
    assert sample.attrs["elflow"]["min_effective_sample_size"] > 500
    assert (sample.amount[sample.amount > 0] > 500).mean() > 0.97


def test_file_holds_groups(payments, tmp_path):
    density, table = payments
    density.save(tmp_path / "model.elf")
    again = elflow.load(tmp_path / "model.elf")
    np.testing.assert_array_equal(again.score_samples(table), density.score_samples(table))
    assert again.sample(50, random_state=0).equals(density.sample(50, random_state=0))


@pytest.mark.parametrize(
    ("tensor", "position", "value", "message"),
    [
        ("lower", 0, 0.3, r"norm\.lower\[0, 0\] must be -1e\+30 or an end between cells, got 0\.3"),
        ("lower", 0, 1e30, r"norm\.lower\[0, 0\] must be -1e\+30 or an end between cells, got 1e\+30"),
        # An end between states, by which the kernel would divide rows and torch would not.
        ("upper", 1, "state", r"norm\.upper\[0, 1\] must be 1e\+30 or an end between cells, got"),
        ("loc", 0, 0.5, r"norm\.loc\[0, 0\] must be 0, got 0\.5"),
        ("log_scale", 0, 0.5, r"norm\.log_scale\[0, 0\] must be 0, got 0\.5"),
        ("log_scale", 2, 21.0, r"norm\.log_scale\[0, 2\] must be at most 20 in size, got 21"),
    ],
)
def test_files_with_other_groups_are_refused(payments, tmp_path, tensor, position, value, message):
    density, _ = payments
    path = tmp_path / "model.elf"
    density.save(path)
    header, tensors = read_content(path)
    if value == "state":
        value = float(density.schema_.state_ends[position][0])
    for name in [name for name in tensors if name.endswith(f"norm.{tensor}")]:
        tensors[name][0, position] = value
    write_content(path, header, tensors)
    with pytest.raises(ValueError, match=message):
        elflow.load(path)


def test_files_with_more_groups_than_a_fit_stores_are_refused(payments, tmp_path):
    density, _ = payments
    path = tmp_path / "model.elf"
    density.save(path)
    header, tensors = read_content(path)
    config = json.loads(header["config"])
    config["fitted"]["options_"]["groups"] = 33
    header["config"] = json.dumps(config)
    write_content(path, header, tensors)
    with pytest.raises(ValueError, match=r"options_\.groups must be at most 32, got 33"):
        elflow.load(path)


@pytest.mark.parametrize("ratio", [1e-10, 1e-15])
def test_scales_stay_within_what_a_file_may_hold(ratio):
    rows = draw_categories(2000, 6.0, scale=ratio)
    norm = make_norm(rows).double()
    norm.initialize(rows)
    assert 0 < norm.log_scale.abs().max() <= MAX_LOG_RATIO


def test_tables_without_categories_have_no_groups():
    table = make_payments(200, seed=0)[["amount", "score"]]
    density = elflow.FlowDensity(max_steps=5, random_state=0, flow_options=SMALL).fit(table)
    assert "groups" not in density.options_
