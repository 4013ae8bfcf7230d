"""Reports: the content of the page, the correctness of its numbers, and tables that try to break it."""

import dataclasses
import html
import re
import warnings
from html.parser import HTMLParser
from types import SimpleNamespace

import matplotlib
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import kstest, multivariate_normal, norm, spearmanr
from sklearn.exceptions import NotFittedError
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity

from elflow import ELF, load, report
from elflow.report import _correlations
from elflow.report._anomalies import ODD_PROBABILITY
from elflow.report._compare import compare_marginal, select_dependent
from elflow.report._correlations import Correlations, compare_correlations
from elflow.report._format import format_number
from elflow.report._groups import compare_groups
from elflow.report._page import render_page
from elflow.report._pit import Pit
from elflow.report._plots import STYLE, draw_histogram
from elflow.report._tables import Column
from elflow.report._tails import compare_tails
from elflow.report._two_sample import compute_auc, run_two_sample_test
from elflow.report.baselines import (
    compute_kernel_density,
    fit_baselines,
    fit_gaussian,
    fit_gaussian_mixture,
    fit_kernel_density,
)
from elflow.report.findings import measure
from elflow.report.verdicts import judge
from elflow.tabular import FlowDensity
from elflow.tabular.queries._conditional import pit_values

SMALL = {"transforms": 1, "units": 8, "hidden_features": (16,)}
SECTIONS = ["training", "likelihood", "marginals", "pairs", "pit", "correlations"]
SECTIONS += ["anomalies", "memorization", "two-sample", "inverse"]
FEW = {"memorization"}
"""Sections that tables with few held-out rows lack."""
HOSTILE = "<script>alert('x')</script> & $x_1$"


def fit(table, **options):
    steps = options.pop("max_steps", 50)
    return FlowDensity(max_steps=steps, flow_options=SMALL, random_state=0, **options).fit(table)


def mixed(count, seed=0):
    """Columns of all kinds, with hostile names and values."""
    rng = np.random.default_rng(seed)
    size = rng.normal(size=count)
    table = pd.DataFrame(
        {
            HOSTILE: size,
            "price": np.exp(size + 0.5 * rng.normal(size=count)),
            "rooms": rng.poisson(3, count),
            "garden": rng.random(count) < 0.3,
            "town": rng.choice(["Ürümqi", '"><img src=x onerror=alert(1)>', "東京"], count, p=[0.6, 0.3, 0.1]),
            "built": pd.Timestamp("2001-01-01") + pd.to_timedelta(rng.integers(0, 9000, count), unit="D"),
        }
    )
    table.loc[rng.random(count) < 0.1, "price"] = np.nan
    table.loc[rng.random(count) < 0.1, "town"] = None
    return table


def verdict_on(title, found):
    (verdict,) = (verdict for verdict in judge(found) if verdict.title == title)
    return verdict


class Page(HTMLParser):
    """Parser of a page: its identifiers, the resources it would load, and its text."""

    VOID = ("meta", "img", "br", "!doctype")

    def __init__(self, content):
        super().__init__()
        self.open, self.ids, self.links, self.tags, self.words = [], [], [], set(), []
        self.feed(content)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href", "srcset", "data", "action"):
                self.links.append(value)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def table():
    return mixed(400)


@pytest.fixture(scope="module")
def density(table):
    return fit(table, missing="model")


@pytest.fixture(scope="module")
def written(table, density, tmp_path_factory):
    """The numbers and the page of the table that the density was fitted to."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    before = {key: matplotlib.rcParams[key] for key in STYLE}
    found = report.write(density, table, path)
    assert {key: matplotlib.rcParams[key] for key in STYLE} == before
    return found, path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_page_has_every_section(written):
    found, content = written
    page = Page(content)
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert len(set(page.ids)) == len(page.ids)
    words = " ".join(page.words)
    for verdict in judge(found):
        assert verdict.title in words
    for score in found.scores:
        assert score.name in words
        assert format_number(score.mean, score.error) in words
    assert "Validation rows decided when training stopped" in words
    assert "the model was trained on 360 and validated on 40; 0 are new" in words
    shares = [marginal.missing[0] for marginal in found.marginals if marginal.name == "price"]
    assert f"missing {shares[0]:.1%}" in words


def test_page_is_self_contained(written):
    _, content = written
    page = Page(content)
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in page.links)
    assert all(link[1:] in page.ids for link in page.links if link.startswith("#"))
    assert not page.tags & {"script", "link", "iframe", "object", "base"}
    assert not re.search(r"https?:|@import|url\((?!#)", content)
    assert "prefers-color-scheme: dark" in content
    assert "default-src 'none'" in content


def test_text_of_users_is_escaped(written):
    _, content = written
    assert "<script" not in content
    assert "<img src=x" not in content
    assert html.escape(HOSTILE) in content
    assert "東京" in content


@pytest.mark.slow
def test_link_to_the_page_that_explores_the_model(table, density, written, tmp_path):
    assert "Explore this model" not in written[1]
    linked = render_page(written[0], 0, "http://127.0.0.1:8765/?a=1&b=2")
    assert '<a href="http://127.0.0.1:8765/?a=1&amp;b=2">Explore this model</a>' in linked
    with pytest.raises(ValueError, match=r"explore must begin with http:// or https://, got 'javascript:alert\(1\)'"):
        report.write(density, table, tmp_path / "report.html", explore="javascript:alert(1)")


@pytest.mark.slow
def test_same_seed_same_page(table, density, written, tmp_path):
    path = tmp_path / "again.html"
    state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    report.write(density, table, path)
    assert path.read_text(encoding="utf-8") == written[1]
    assert np.array_equal(np.random.get_state()[1], state[0])  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), state[1])
    other = measure(density, table, random_state=1)
    assert not np.array_equal(other.columns[0].sampled, written[0].columns[0].sampled)


def test_validation_rows_are_judged(table, density, written):
    found, _ = written
    mask = density.validation_mask(table)
    assert found.is_held_out
    assert (found.n_training_rows, found.n_validation_rows, found.n_new_rows) == (360, 40, 0)
    assert found.n_test == mask.sum()
    assert found.n_train == (~mask).sum()
    assert found.scores[0].mean == pytest.approx(density.score(table[mask]), abs=1e-4)
    least = density.score_samples(table).argmin()
    assert found.anomalies[0].row == least
    assert found.anomalies[0].values[2] == table["rooms"][least]
    explained = density.explain(table.iloc[[anomaly.row for anomaly in found.anomalies]]).groupby("row")
    for number, anomaly in enumerate(found.anomalies):  # each has a reason: its most surprising value
        reasons = explained.get_group(number).reset_index()
        assert found.columns[anomaly.reasons[0].column].name == reasons["column"][0]
        n_odd = int((reasons["tail_probability"] <= ODD_PROBABILITY).sum())
        assert sum(reason.is_odd for reason in anomaly.reasons) == n_odd
    n_odd = sum(reason.is_odd for anomaly in found.anomalies for reason in anomaly.reasons)
    assert written[1].count('class="extreme"') == n_odd > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column 'one' is constant")
@pytest.mark.parametrize(
    ("make", "absent"),
    [
        (lambda rng: rng.normal(size=(200, 1)), {"pairs", "correlations"}),
        pytest.param(lambda rng: rng.normal(size=(50, 60)) @ rng.normal(size=(60, 60)), FEW, marks=pytest.mark.slow),
        (lambda rng: pl.from_pandas(mixed(40).dropna()[:30]), FEW),
        (lambda rng: pa.table({"a": rng.normal(size=50), "b": rng.choice(["x", "y"], 50)}), FEW),
        (lambda rng: pd.DataFrame({"only": rng.choice(["x", "y", "z"], 60), "one": 1.0}), FEW),
    ],
    ids=["one column", "60 columns", "30 rows", "pyarrow", "constant"],
)
def test_tables_of_every_kind(make, absent, tmp_path):
    table = make(np.random.default_rng(0))
    path = tmp_path / "report.html"
    report.write(fit(table, max_steps=10), table, path)
    page = Page(path.read_text(encoding="utf-8"))
    assert [name for name in page.ids if name in SECTIONS] == [name for name in SECTIONS if name not in absent]


@pytest.mark.slow
def test_another_table_is_split_in_half(tmp_path):
    """A table with rows outside the bounds, which the page reports."""
    rng = np.random.default_rng(0)
    density = fit(pd.DataFrame({"share": rng.uniform(size=200), "x": rng.normal(size=200)}), columns={"share": (0, 1)})
    other = pd.DataFrame({"share": rng.uniform(size=100) + 0.5, "x": rng.normal(size=100)})
    with pytest.warns(UserWarning, match="column 'share' has .* outside its declared bounds"):
        found = report.write(density, other, tmp_path / "report.html", max_rows=80)
    assert found.is_new
    assert (found.n_test, found.n_train, found.n_used_rows) == (40, 40, 80)
    assert found.n_impossible > 10
    assert found.scores[0].mean == -np.inf
    assert judge(found)[0].level == "poor"
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<title>Density report: all rows are new - elflow</title>" in content
    assert "<h1>How good is this density? (all rows are new)</h1>" in content
    for words in ("split in half", "80 of the 100 rows", "outside the bounds", "some rows have density 0"):
        assert words in content


@pytest.mark.slow
def test_training_rows_are_recognised_in_any_table(tmp_path):
    """A table like the fitted one has the same verdicts, whatever its columns, their types and the order of rows."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(400, 3)), columns=list("abc")).assign(n=rng.poisson(3, 400))
    table["k"] = rng.choice(["x", "y"], 400)
    density = fit(table)
    expected = measure(density, table)
    shuffled = table[[*"nkcba"]].assign(id=range(400)).sample(frac=1, random_state=1)
    cast = table.astype({"a": "float32", "n": float, "k": "category"})
    for other in (shuffled, pl.from_pandas(cast)):
        found = measure(density, other)
        assert (found.n_training_rows, found.n_validation_rows) == (360, 40)
        assert found.scores[0].mean == pytest.approx(expected.scores[0].mean, abs=1e-4)
        assert found.gap == pytest.approx(expected.gap, abs=1e-4)

    new = pd.DataFrame(rng.normal(size=(100, 3)), columns=list("abc")).assign(n=3, k="x")
    both = measure(density, pd.concat([table, new], ignore_index=True))
    assert (both.n_training_rows, both.n_validation_rows, both.n_new_rows) == (360, 40, 100)
    assert (both.n_test, both.n_train) == (140, 360)
    mask = density.validation_mask(table)
    held_out = measure(density, pd.concat([table[mask], new]))
    assert (held_out.n_test, held_out.n_train) == (70, 70)
    assert np.isnan(held_out.gap)
    seen = report.write(density, table[~mask], tmp_path / "report.html")
    assert not seen.is_held_out
    assert judge(seen)[0].level == ""
    assert "(all rows are training rows)</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    density.row_hashes_ = None
    assert not report.write(density, table, tmp_path / "report.html").is_held_out
    assert "(training rows are unknown)</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_context(tmp_path):
    rng = np.random.default_rng(0)
    context = pd.DataFrame({"day": rng.choice(["mo", "tu"], 300), "hour": rng.uniform(0, 24, 300)})
    table = pd.DataFrame({"load": context["hour"] + rng.normal(size=300), "other": rng.normal(size=300)})
    density = FlowDensity(max_steps=50, flow_options=SMALL, random_state=0).fit(table, context=context)
    found = report.write(density, table, tmp_path / "report.html", context=context)
    assert found.n_context_columns == 2
    assert (found.two_sample.n_rows, found.two_sample.n_sampled) == (300, 3000)
    assert found.two_sample.auc < 0.7  # the samples of a row have its context
    assert "do not use the context" in (tmp_path / "report.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="context must have as many rows as X, 300, got 299"):
        report.write(density, table, tmp_path / "report.html", context=context[1:])
    with pytest.raises(ValueError, match="context must be a table"):
        report.write(density, table, tmp_path / "report.html")


def test_baselines_against_direct_computation():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(800, 2)) @ [[100.0, 3.0], [0.0, 0.1]] + [5, -7]
    rows[:400] += [0, 2]
    train, test = rows[::2], rows[1::2]
    gaussian, mixture, kernels = fit_baselines(train)
    expected = multivariate_normal(train.mean(0), np.cov(train.T, bias=True)).logpdf(test)
    np.testing.assert_allclose(gaussian.log_density(test), expected, atol=1e-3)

    components = int(mixture.detail.split()[0])
    assert components > 1
    scale = train.std(0)
    same = GaussianMixture(components, random_state=0).fit((train - train.mean(0)) / scale)
    expected = same.score_samples((test - train.mean(0)) / scale) - np.log(scale).sum()
    assert mixture.log_density(test).mean() == pytest.approx(expected.mean(), abs=0.02)
    assert mixture.log_density(test).mean() > gaussian.log_density(test).mean()

    bandwidth = float(kernels.detail.split()[1])
    same = KernelDensity(bandwidth=bandwidth).fit(train / scale)
    expected = same.score_samples(test / scale) - np.log(scale).sum()
    assert kernels.log_density(test).mean() == pytest.approx(expected.mean(), abs=0.05)  # the detail is rounded


def test_kernel_density_against_direct_computation():
    """scikit-learn's own is wrong far out, where its tree subtracts large numbers."""
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(300, 3)), 3 * rng.normal(size=(500, 3))
    squares = ((test[:, None] - train) ** 2).sum(-1)
    for bandwidth, ours in zip((0.05, 0.5), compute_kernel_density(train, test, (0.05, 0.5)), strict=True):
        kernels = -squares / (2 * bandwidth**2) - 3 * np.log(bandwidth * np.sqrt(2 * np.pi))
        np.testing.assert_allclose(ours, logsumexp(kernels, axis=1) - np.log(300), rtol=1e-9)


def test_baselines_with_validation_rows():
    """Given validation rows choose the settings, and the density is not fitted to them."""
    rng = np.random.default_rng(0)
    train, validation, test = rng.normal(size=(3, 600, 2)) @ [[1.0, 0.9], [0.0, 0.1]]
    train[:300] += [10, 0]
    validation[:300] += [10, 0]
    test[:300] += [10, 0]
    for fit_baseline in (fit_gaussian, fit_gaussian_mixture, fit_kernel_density):
        baseline = fit_baseline(train, validation)
        assert baseline.n_rows == 600
        assert baseline.validation == pytest.approx(baseline.log_density(validation).mean(), abs=1e-9)
        scores = baseline.log_density(test)
        error = np.sqrt(2 / 600) * scores.std()
        assert scores.mean() == pytest.approx(baseline.validation, abs=4 * error)
    assert fit_gaussian_mixture(train, validation).n_parameters == 2 * 6 - 1
    limited = fit_gaussian_mixture(train, validation, n_components=(1, 2), time_limit=0.2)
    assert limited.detail == "2 components"
    assert limited.validation == pytest.approx(fit_gaussian_mixture(train, validation).validation, abs=0.05)


def test_kernels_with_the_shape_of_the_covariance():
    """They do not depend on a linear map of the rows, apart from its determinant, and suit correlated columns."""
    rng = np.random.default_rng(0)
    train, validation, test = rng.normal(size=(3, 400, 2))
    matrix = np.array([[3.0, 2.9], [0.0, 0.1]])
    plain = fit_kernel_density(train, validation, shapes=("covariance",))
    mapped = fit_kernel_density(train @ matrix, validation @ matrix, shapes=("covariance",))
    expected = plain.log_density(test) - np.log(np.linalg.det(matrix))
    np.testing.assert_allclose(mapped.log_density(test @ matrix), expected, rtol=1e-5)
    either = fit_kernel_density(train @ matrix, validation @ matrix, shapes=("round", "covariance"))
    assert either.detail == mapped.detail
    assert either.validation > fit_kernel_density(train @ matrix, validation @ matrix).validation
    few = fit_kernel_density(train, validation, max_kernels=50)
    assert (few.n_rows, few.n_parameters) == (50, 100)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((np.zeros(5),), {}, r"train must have the shape \(N, features\), got \(5,\)"),
        ((np.zeros((1, 2)),), {}, "train must have at least 2 rows, got 1"),
        ((np.full((9, 2), np.nan),), {}, "train must be finite"),
        ((np.eye(2), np.eye(3)), {}, r"validation must have the shape \(N, 2\), got \(3, 3\)"),
        ((np.eye(2),), {"shapes": ["square"]}, "shapes must be one of"),
        ((np.eye(2),), {"bandwidths": [0.0]}, "bandwidths must be positive and finite, got 0"),
    ],
)
def test_wrong_rows_for_baselines(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        fit_kernel_density(*arguments, **options)


@pytest.mark.slow
def test_scores_are_in_the_units_of_the_data():
    """All densities of a lognormal column, whose entropy is known, are per unit of the column itself."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"price": 1000 * rng.lognormal(sigma=0.5, size=2000)})
    found = measure(fit(table, max_steps=200), table)
    entropy = np.log(1000) + norm(scale=0.5).entropy()
    for score in found.scores:
        assert score.mean == pytest.approx(-entropy, abs=4 * score.error + 0.02), score.name
    assert found.scores[1].gain == pytest.approx(found.scores[0].mean - found.scores[1].mean, abs=1e-6)
    assert found.n_test == 200


@pytest.mark.slow
def test_baselines_do_not_collapse_onto_frequent_values(tmp_path):
    """A Gaussian mixture with a component on the zeros of a column has any density there, but no right to it."""
    rng = np.random.default_rng(0)
    size = rng.normal(size=1500)
    amount = np.where(rng.random(1500) < 0.3, 0.0, np.exp(size + 0.3 * rng.normal(size=1500)))
    table = pd.DataFrame({"size": size, "amount": amount})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        density = fit(table, max_steps=200, columns={"amount": "continuous"})
    found = report.write(density, table, tmp_path / "report.html")
    # the entropy of a row with a positive amount, and the probability of such a row
    exact = np.log(0.7) - norm.entropy() - norm(scale=0.3).entropy()
    for score in (found.compared, *found.scores[1:]):
        assert score.mean < exact + 1.0, score.name
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    if found.atomic:
        assert found.atomic == ("amount",)
        is_positive = table["amount"][density.validation_mask(table)] > 0
        assert found.n_compared == is_positive.sum()
        assert "left out of this comparison on both sides" in content
    assert "this model is" in content


def columns(real, sampled):
    pairs = zip(real.T, sampled.T, strict=True)
    return tuple(Column(f"x{k}", "continuous", a, b) for k, (a, b) in enumerate(pairs))


@pytest.mark.slow
def test_two_sample_test_of_a_perfect_and_a_terrible_model():
    rng = np.random.default_rng(0)
    real, same = rng.normal(size=(2, 500, 3))
    perfect = run_two_sample_test(columns(real, same), 0)
    assert perfect.auc == pytest.approx(0.5, abs=4 * perfect.error)
    assert 0.01 < perfect.error < 0.04
    other = same + np.array([0, 6, 0])
    terrible = run_two_sample_test(columns(real, other), 0)
    assert terrible.auc > 0.99
    assert terrible.top_columns[0][0] == "x1"
    dependence = run_two_sample_test(columns(np.column_stack([real[:, 0], np.abs(real[:, 0])]), same[:, :2]), 0)
    assert dependence.auc > 0.9
    assert run_two_sample_test(columns(real[:9], same[:9]), 0) is None


@pytest.mark.slow
def test_level_of_the_two_sample_test():
    """The AUC of equal distributions varies as its standard error says, with more samples than rows as well."""
    rng = np.random.default_rng(0)
    results = [
        run_two_sample_test(columns(rng.normal(size=(60, 2)), rng.normal(size=(60 * ratio, 2))), 0)
        for ratio in (1, 5)
        for _ in range(15)
    ]
    assert {(result.n_rows, result.n_sampled) for result in results} == {(60, 60), (60, 300)}
    z = np.array([(result.auc - 0.5) / result.error for result in results])
    # Folds that are taken for independent have a standard deviation of 1.4, which this many tests exceed 1.25 with.
    assert 0.6 < z.std() < 1.25
    assert abs(z.mean()) < 0.5
    assert np.mean([result.p_value < 0.1 for result in results]) <= 0.22


def test_two_sample_test_sees_categories_and_missing_values():
    rng = np.random.default_rng(0)
    labels = tuple(f"k{k}" for k in range(400))
    codes = rng.integers(0, 400, 600).astype(float)
    label = Column("label", "category", codes, rng.permutation(codes), labels)
    number = rng.normal(size=600)
    assert run_two_sample_test((label,), 0).auc < 0.6
    missing = Column("number", "continuous", number, np.where(rng.random(600) < 0.9, np.nan, number))
    assert run_two_sample_test((label, missing), 0).auc > 0.85


def test_area_under_the_curve():
    rng = np.random.default_rng(0)
    low, high = rng.integers(0, 10, 300).astype(float), rng.integers(2, 12, 500).astype(float)
    auc, variance = compute_auc(low, high)
    assert auc == pytest.approx(roc_auc_score(np.repeat([0, 1], [300, 500]), np.append(low, high)))
    again = [compute_auc(rng.choice(low, 300), rng.choice(high, 500))[0] for _ in range(300)]
    assert np.sqrt(variance) == pytest.approx(np.std(again), rel=0.2)


def test_pit_of_a_known_density():
    """A narrow conditional distribution of a Gaussian, values in its middle and far out."""
    covariance = torch.tensor([[1.0, 0.999], [0.999, 1.0]], dtype=torch.double)

    class Known(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("covariance", covariance)

        def forward(self, c=None):
            return torch.distributions.MultivariateNormal(self.covariance.new_zeros(2), self.covariance)

    model = SimpleNamespace(flow=Known())
    z = model.flow().sample((200,))
    z[0] = torch.tensor([2.0, 0.0])
    column = SimpleNamespace(z_range=(-10.0, 10.0))
    schema = SimpleNamespace(positions=lambda name: [0], column=lambda name: column)
    values = pit_values(model, schema, "x", z)
    exact = norm.cdf(((z[:, 0] - 0.999 * z[:, 1]) / np.sqrt(1 - 0.999**2)).numpy())
    np.testing.assert_allclose(values, exact, atol=5e-3)


@pytest.mark.slow
def test_pit_of_discrete_columns_is_uniform():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"count": rng.poisson(1.5, 1000), "kind": rng.choice(["a", "b"], 1000, p=[0.8, 0.2])})
    found = measure(fit(table, max_steps=200), table)
    assert [pit.name for pit in found.pits] == ["count", "kind"]
    for pit in found.pits:
        assert kstest(pit.values, "uniform").pvalue == pit.p_value > 1e-3


def test_columns_that_depend_on_each_other():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 8))
    x[:, 5] = x[:, 2] ** 2 + 0.1 * x[:, 5]  # no correlation
    x[:, 7] = x[:, 5] + 0.5 * x[:, 7]
    assert select_dependent(columns(x, x), 3) == (2, 5, 7)
    assert select_dependent(columns(x, x)[:2], 3) == (0, 1)


def test_marginals_and_correlations():
    real = np.array([0.0, 0.0, 1.0, np.nan])
    label = compare_marginal(Column("label", "category", real, np.array([0.0, 1.0, 1.0, 1.0]), ("a", "b")))
    assert label.missing == (0.25, 0.0)
    np.testing.assert_allclose(label.real, [2 / 3, 1 / 3])
    assert label.distance == pytest.approx(2 / 3 - 1 / 4)
    rng = np.random.default_rng(0)
    many = Column("many", "category", np.arange(40.0).repeat(2), np.arange(40.0), tuple(map(str, range(40))))
    assert (len(compare_marginal(many).labels), compare_marginal(many).n_others) == (15, 25)
    counts = compare_marginal(
        Column("count", "integer", rng.poisson(2, 500).astype(float), rng.poisson(2, 500).astype(float))
    )
    assert set(np.diff(counts.edges)) == {1.0}
    assert counts.distance < 0.1
    x = rng.normal(size=(500, 2)) @ [[1, 1], [0, 0.1]]
    both = compare_correlations(columns(x, rng.normal(size=(500, 2))))
    (pair,) = both.largest_differences(5)
    assert pair == both.worst
    assert pair.names == ("x0", "x1")
    assert pair.real == pytest.approx(spearmanr(*x.T).statistic)
    assert pair.real > 0.9
    assert abs(pair.sampled) < 0.2
    assert not pair.is_chance
    holes = np.where(rng.random((500, 2)) < 0.2, np.nan, x)
    expected = spearmanr(*holes.T, nan_policy="omit").statistic
    assert compare_correlations(columns(holes, x)).real[0, 1] == pytest.approx(expected)


def draw_pair(kind, count, rng):
    a, b = rng.normal(size=(2, count))
    return {
        "independent": (a, b),
        "dependent": (a, a + b),
        "spread of the other": (a, np.abs(a) * b),
        "zeros in the same rows": (np.where(a > 1, b, 0), np.where(a > 1, rng.normal(size=count), 0)),
        "rare": ((a > 2) * 1.0, ((a > 2) & (b > 0)) * 1.0),
        "counts": (np.floor(np.exp(a)), np.floor(np.exp(a + b))),
        "missing values": (np.where(b > 0.5, np.nan, a), a + rng.normal(size=count)),
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "independent", "dependent", "spread of the other", "zeros in the same rows", "rare", "counts", "missing values",
    ],
)  # fmt: skip
def test_limits_of_correlations(kind, monkeypatch):
    """Correlations of two samples of the same distribution differ by more than their limit at the stated rate."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(_correlations, "SIGNIFICANCE", 0.05)
    pairs = []
    for _ in range(200):
        (a, b), (other_a, other_b) = draw_pair(kind, 200, rng), draw_pair(kind, 1000, rng)
        both = (Column("a", "continuous", a, other_a), Column("b", "continuous", b, other_b))
        pairs.append(compare_correlations(both).worst)
    assert np.mean([not pair.is_chance for pair in pairs]) <= 0.1
    if kind != "rare":  # too few rows for any conclusion
        assert np.mean([abs(pair.difference) > 0.5 * pair.limit for pair in pairs]) > 0.1


def test_verdict_on_the_worst_pair(written):
    found, _ = written

    def judge_pairs(names, real, sampled, limit):
        matrices = (np.full((len(names), len(names)), value) for value in (real, sampled, limit))
        return verdict_on("Worst pair", dataclasses.replace(found, correlations=Correlations(names, *matrices)))

    assert judge_pairs(("a", "b"), 0.5, 0.4, 0.12).level == "good"
    assert judge_pairs(("a", "b"), 0.5, 0.46, 0.01).level == "good"
    assert judge_pairs(("a", "b"), 0.5, 0.4, 0.01).level == "fair"
    poor = judge_pairs(("a", "<b>"), 0.8, 0.5, 0.01)
    assert poor.level == "poor"
    assert poor.reading.startswith("a and <b>: 0.80 in real rows and 0.50 in sampled rows. Samples do not reproduce")
    assert judge_pairs(("a",), 1.0, 1.0, 0.0).level == ""
    many = compare_correlations([Column(name, "continuous", *np.eye(2)[[0, 0]]) for name in "abc"])
    assert many.worst.is_chance  # two rows


def test_limits_of_marginal_distances():
    """Two samples of the same distribution rarely exceed the limit, and the limit is not far above their distances."""
    rng = np.random.default_rng(0)
    labels = tuple("abcdefgh")
    for kind, draw in (("continuous", rng.normal), ("category", lambda size: rng.integers(0, 8, size).astype(float))):
        names = labels if kind == "category" else ()
        pairs = [Column("x", kind, draw(size=300), draw(size=200), names) for _ in range(300)]
        marginals = [compare_marginal(pair) for pair in pairs]
        assert np.mean([one.distance > one.limit for one in marginals]) <= 0.02
        assert np.mean([one.distance > 0.5 * one.limit for one in marginals]) > 0.1
    missing = compare_marginal(Column("x", "continuous", rng.normal(size=300), np.full(300, np.nan)))
    assert missing.distance == 1


@pytest.mark.slow
def test_limits_of_the_two_sample_test(written):
    """With few rows a high AUC may be chance; with many rows a small excess over 0.5 is found."""
    found, _ = written

    def rate(auc, error):
        result = dataclasses.replace(found.two_sample, auc=auc, error=error)
        return verdict_on("Two-sample test", dataclasses.replace(found, two_sample=result)).level

    assert rate(0.54, 0.005) == "good"
    assert rate(0.58, 0.005) == "fair"
    assert rate(0.58, 0.045) == "good"
    assert rate(0.6, 0.1) == ""
    assert rate(0.72, 0.03) == "poor"
    assert rate(0.95, 0.1) == "poor"


@pytest.mark.parametrize(
    ("transform", "reading"),
    [
        (lambda u: u, "may be chance"),
        (lambda u: u**2, "too high"),
        (lambda u: u**0.5, "too low"),
        (lambda u: norm.cdf(1.6 * norm.ppf(u)), "too narrow"),
        (lambda u: norm.cdf(0.6 * norm.ppf(u)), "too wide"),
    ],
)
def test_verdict_on_calibration(written, transform, reading):
    values = transform(np.random.default_rng(0).uniform(size=300))
    test = kstest(values, "uniform")
    pit = Pit("x", values, test.statistic, test.pvalue)
    verdict = verdict_on("Calibration", dataclasses.replace(written[0], pits=(pit,)))
    assert reading in verdict.reading
    assert (verdict.level == "good") == (reading == "may be chance")


def test_verdict_on_the_worst_column(written):
    found, _ = written
    rng = np.random.default_rng(0)
    same = compare_marginal(Column("same", "continuous", rng.normal(size=300), rng.normal(size=300)))
    other = compare_marginal(Column("<other>", "continuous", rng.normal(size=300), rng.normal(2, 1, size=300)))
    levels = [
        verdict_on("Worst column", dataclasses.replace(found, marginals=each)) for each in ((same,), (other, same))
    ]
    assert [verdict.level for verdict in levels] == ["good", "poor"]
    assert levels[1].reading.startswith("<other>")


def test_warnings_of_the_fit_are_repeated(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=50)})
    density = fit(frame)
    assert density.warnings_ == []
    density.warnings_ = ["column <b> is odd"]
    density.save(tmp_path / "model.elf")
    found = report.write(load(tmp_path / "model.elf"), frame, tmp_path / "report.html")
    assert found.warnings == ("column <b> is odd",)
    content = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Warnings of the fit" in content
    assert "column &lt;b&gt; is odd" in content


@pytest.mark.parametrize(
    ("value", "error", "signed", "expected"),
    [
        (-12.3456, 0.0123, False, "\N{MINUS SIGN}12.346 ± 0.012"),
        (3.0, 250.0, True, "+3 ± 250"),
        (-0.0001, np.nan, False, "0.00"),
        (-np.inf, np.nan, False, "\N{MINUS SIGN}∞"),
        (np.nan, np.nan, False, "undefined"),
    ],
)
def test_format_number(value, error, signed, expected):
    assert format_number(value, error, signed) == expected


def test_bad_input(table, density, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(TypeError, match=r"est must be a fitted elflow\.FlowDensity, got ELF"):
        report.write(ELF(features=2), table, path)
    with pytest.raises(NotFittedError):
        report.write(FlowDensity(), table, path)
    with pytest.raises(ValueError, match="X must have at least 10 rows for a report, got 3"):
        report.write(density, table[:3], path)
    with pytest.raises(ValueError, match="price"):
        report.write(density, table.drop(columns="price"), path)
    with pytest.raises(ValueError, match="max_rows must be at least 10, got 5"):
        report.write(density, table, path, max_rows=5)
    with pytest.raises(TypeError, match="random_state must be an integer"):
        report.write(density, table, path, random_state=None)
    with pytest.raises(FileNotFoundError, match="path must be in an existing folder"):
        report.write(density, table, tmp_path / "none" / "report.html")
    assert path.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_small_groups_are_judged(written):
    """A category of 5 % takes values of the others in 40 % of the samples, which columns and correlations hide."""
    rng = np.random.default_rng(0)
    kind, sampled_kind = ((rng.random(count) < 0.05).astype(float) for count in (900, 9000))
    kinds = Column("currency", "category", kind, sampled_kind, ("EUR", "JPY"))
    real = np.where(rng.random(900) < 0.3, 0.0, rng.lognormal(4 + 4.6 * kind, 0.7))
    leaks = (rng.random(9000) < 0.4) & (sampled_kind == 1)
    is_zero = rng.random(9000) < 0.3
    right, wrong = (
        rng.lognormal(4 + 4.6 * of_kind, 0.7) for of_kind in (sampled_kind, np.where(leaks, 0, sampled_kind))
    )
    good, bad = (Column("amount", "continuous", real, np.where(is_zero, 0.0, amounts)) for amounts in (right, wrong))

    def judge_groups(*columns):
        return verdict_on("Worst group", dataclasses.replace(written[0], groups=compare_groups(columns)))

    assert judge_groups(good, kinds).level == "good"
    verdict = judge_groups(bad, kinds)
    assert verdict.level == "poor"
    assert verdict.reading.startswith("amount where currency is JPY: samples do not reproduce")
    pair = dataclasses.replace(written[0], correlations=compare_correlations([bad, kinds]))
    assert verdict_on("Worst pair", pair).level == "good"
    assert judge_groups(kinds).level == judge_groups(good).level == ""


def test_categories_zeros_and_missing_values_are_judged_within_groups(written):
    """Shares that depend on the category, or on two together, while those of all rows are right."""
    rng = np.random.default_rng(0)
    first, second = (rng.integers(0, 2, 4000).astype(float) for _ in range(2))
    is_equal, by_chance = first == second, rng.random(4000) < 0.5
    labels = ("a", "b")
    columns = [Column(name, "category", x[:1000], x[1000:], labels) for name, x in (("x", first), ("y", second))]

    def judge(name, kind, real, sampled, *codes):
        values = Column(name, kind, real[:1000].astype(float), sampled[1000:].astype(float), *codes)
        groups = compare_groups([*columns, values])
        return verdict_on("Worst group", dataclasses.replace(written[0], groups=groups))

    numbers = rng.normal(size=4000)
    for name, kind, event, reading in (
        ("z", "category", None, r"[xz] = a where .*: samples do not reproduce"),
        ("rain", "continuous", 0.0, r"rain = 0 where x (is|and y are) .*: samples do not"),
        ("lactate", "continuous", np.nan, r"lactate = missing where x (is|and y are) .*: samples do not"),
    ):
        codes = [labels] if event is None else []
        right, wrong = (x if event is None else np.where(x, event, numbers) for x in (first == 1, by_chance))
        assert judge(name, kind, right, right, *codes).level == "good"
        verdict = judge(name, kind, right, wrong, *codes)
        assert verdict.level == "poor"
        assert re.match(reading, verdict.reading)
    verdict = judge("z", "category", is_equal, by_chance, labels)  # each category alone says nothing
    assert verdict.level == "poor"
    assert re.match("[xyz] = a where [xyz] and [xyz] are [ab] and [ab]: samples do not", verdict.reading)


def test_groups_rarely_differ_by_chance():
    """p-values of samples with the distribution of the real rows, in groups of 30 rows: at most 5 % are below 5 %."""
    rng = np.random.default_rng(0)
    p_values = []
    for _ in range(100):
        codes, sampled = rng.integers(0, 10, 300).astype(float), rng.integers(0, 10, 2000).astype(float)
        kinds = Column("kind", "category", codes, sampled, tuple("abcdefghij"))
        numbers = Column("x", "continuous", rng.normal(size=300), rng.normal(size=2000))
        p_values += [group.p_value for group in compare_groups([kinds, numbers])]
    assert len(p_values) > 800
    assert np.mean(np.array(p_values) < 0.05) < 0.06


def test_tails_of_groups_are_judged(written):
    """Amounts whose tails are right overall, but too heavy in each group, and the other way round."""
    rng = np.random.default_rng(0)
    group, sampled_group = rng.integers(0, 3, 3000).astype(float), rng.integers(0, 3, 6000).astype(float)
    labels = Column("group", "category", group, sampled_group, ("a", "b", "c"))
    real = rng.lognormal(2 * group, 0.5)
    good = Column("amount", "continuous", real, rng.lognormal(2 * sampled_group, 0.5))
    leaks = rng.random(6000) < 0.1  # these samples have amounts of another group
    other = np.where(leaks, rng.integers(0, 3, 6000), sampled_group)
    bad = Column("amount", "continuous", real, rng.lognormal(2 * other, 0.5))

    def judge_tails(*columns):
        return verdict_on("Worst tail", dataclasses.replace(written[0], tails=compare_tails(columns)))

    assert judge_tails(good, labels).level == "good"
    assert judge_tails(bad).level == "good"  # invisible without the groups
    verdict = judge_tails(bad, labels)
    assert verdict.level == "poor"
    assert re.match(
        r"amount given group: sampled values are [\d.]+ times as often among the (high|low)est 2%", verdict.reading
    )
    light = Column("amount", "continuous", real, np.clip(good.sampled, *np.quantile(real, [0.05, 0.95])))
    assert "times as rarely among" in judge_tails(light).reading
    assert judge_tails(labels).level == ""


@pytest.mark.parametrize("days", [0.02, 0.1, 1.97, 30, 690, 4000])
def test_histograms_of_dates_have_ticks(days):
    """Matplotlib had no interval for 19 to 23 months, and its warning was that of the command."""
    edges = 1_672_531_200 + np.linspace(0, days * 86400, 11)
    marginal = SimpleNamespace(kind="datetime", edges=edges, real=np.full(10, 0.1), sampled=np.full(10, 0.1))
    assert "<svg" in draw_histogram(marginal, "x")
