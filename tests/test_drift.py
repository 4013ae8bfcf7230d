"""Drift: tests on counts hold their level, and new rows are compared with held-out rows."""

from __future__ import annotations

import copy
import json

import numpy as np
import pandas as pd
import pytest
from _command import fails, run

import elflow
from elflow import FlowDensity
from elflow.report import write_drift
from elflow.tabular.drift._statistics import (
    Moments,
    adjust_p_values,
    compare_association,
    compare_frequencies,
    compare_means,
    compare_order,
    compare_vectors,
)
from elflow.tabular.fitting._row_hashes import N_HASHES, RowHashes

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def table(n, seed, shift=0.0, correlation=0.7, share=0.3, missing=0.05):
    """A column of each kind: numbers, integers, an atom, categories, missing values."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=n)
    frame = pd.DataFrame({"a": a + shift, "b": correlation * a + np.sqrt(1 - correlation**2) * rng.normal(size=n)})
    frame["count"] = rng.poisson(np.exp(0.7 + 0.3 * a))
    frame["kind"] = rng.choice(["x", "y", "z"], n, p=[0.9 - share, share, 0.1])
    frame["rain"] = np.where(rng.random(n) < 0.3, 0.0, rng.lognormal(size=n))
    frame["size"] = np.where(rng.random(n) < missing, np.nan, rng.lognormal(size=n))
    return frame


@pytest.fixture(scope="module")
def density():
    model = FlowDensity(
        flow_options=SMALL, members=["plain"], max_steps=40, missing="model", validation=0.3, random_state=0
    )
    return model.fit(table(2000, 0))


def draw_p_values(test, n, m, probabilities, count=300):
    rng = np.random.default_rng(0)
    return np.array([test(rng.multinomial(n, probabilities), rng.multinomial(m, probabilities)) for _ in range(count)])


@pytest.mark.slow
def test_tests_of_counts_hold_their_level():
    """Also where the number of rows is small, bins are rare, and dependence is nearly perfect."""
    skewed = np.array([0.7, 0.2, 0.06, 0.03, 0.01])
    strong = np.exp(12 * np.outer(np.linspace(-1, 1, 6), np.linspace(-1, 1, 6))).reshape(-1)

    def associate(reference, new):
        found = compare_association(reference.reshape(6, 6), new.reshape(6, 6), (True, True))
        return 1.0 if found is None else found.p_value

    cases = [
        (compare_order, np.full(32, 1 / 32)),
        (compare_order, skewed),
        (compare_frequencies, skewed),
        (associate, strong / strong.sum()),
    ]
    for test, probabilities in cases:
        p_values = draw_p_values(test, 60, 300, probabilities)
        assert (p_values <= 0.05).mean() < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 300), test
        assert (p_values <= 0.005).mean() < 0.005 + 5 * np.sqrt(0.005 * 0.995 / 300), test
        assert p_values.min() > 1e-5


def test_power_of_tests_of_counts():
    flat = np.full(8, 50)
    assert compare_order(flat, flat) == 1.0
    assert compare_order(flat, flat + 2 * np.arange(-4, 4)) > 0.001
    assert compare_order(flat, np.arange(15, 95, 10)) == 1 / 20_001
    assert compare_order(flat, np.array([80, 50, 35, 35, 35, 35, 50, 80])) < 1e-3  # scale
    assert compare_frequencies(np.array([0, 100]), np.array([12, 88])) < 0.001
    assert compare_frequencies(np.array([300, 100, 0]), np.array([300, 70, 30])) < 1e-4
    assert compare_association(np.eye(3, dtype=int) * 4, np.eye(3, dtype=int) * 4, (True, True)) is None  # few rows
    constant = np.array([[100, 100]])
    assert compare_association(constant, constant, (True, True)) is None
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)), rng.normal(size=(300, 3))
    near, far = ((len(part), part.sum(0), part.T @ part) for part in (y, y + 0.5))
    reference = (len(x), x.sum(0), x.T @ x)
    assert compare_vectors(reference, near) > 0.01
    assert compare_vectors(reference, far) < 1e-6
    assert compare_means(Moments.of(x[:, 0]), Moments.of(y[:, 0])) > 0.01
    merged = Moments.of(x[:50, 0]).merge(Moments.of(x[50:, 0]))
    np.testing.assert_allclose(merged, Moments.of(x[:, 0]))


def test_p_values_are_not_extrapolated():
    """p-values below those of all exchanges are not made up: more exchanges are drawn."""
    few, many = np.array([0, 2, 58]), np.array([40, 8, 12])
    assert compare_order(few, many, 1e-3) == 1 / 20_001
    assert compare_order(few, many, 5e-5) == 1 / 40_001


def test_adjusted_p_values_are_those_of_holm():
    p_values = np.array([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjust_p_values(p_values, np.full(4, 0.25)), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(adjust_p_values(np.array([0.5, 0.9]), np.array([0.1, 0.9])), [1.0, 1.0])
    np.testing.assert_allclose(adjust_p_values(np.array([0.09, 0.02]), np.array([0.9, 0.1])), [0.1, 0.1])


@pytest.mark.slow
def test_finds_what_has_drifted_and_nothing_else(density):
    assert not density.compare(table(1500, 1)).has_drift
    found = {
        "a": density.compare(table(1500, 2, shift=0.5)),
        "kind": density.compare(table(1500, 3, share=0.5)),
        "size": density.compare(table(1500, 4, missing=0.2)),
    }
    for name, one in found.items():
        assert one.has_drift
        assert {test.name for test in one.drifted if test.group == "column"} == {name}
    missing = next(test for test in found["size"].drifted if test.group == "column")
    assert missing.aspect == "missing"
    assert missing.effect == pytest.approx(0.15, abs=0.05)
    change = next(test.change for test in found["kind"].drifted if test.group == "column")
    assert change.startswith("y: ")
    assert " -> 4" in change or " -> 5" in change
    pair = density.compare(table(1500, 5, correlation=-0.3))
    names = {test.name for test in pair.drifted if test.group != "overall"}
    assert "a and b" in names
    assert not names & {"a", "b", "kind", "rain", "size"}


@pytest.mark.slow
def test_pairs_of_drifted_columns_are_not_judged(density, tmp_path):
    """A shifted column changes the correlations of its groups."""
    found = density.compare(table(3000, 2, shift=2.5))
    pair = next(test for test in found.tests if test.name == "a and b")
    assert pair.adjusted_p_value < 0.05
    assert not pair.is_judged
    assert not pair.has_drifted
    assert pair.change.endswith(", not judged: a has drifted")
    assert [test.name for test in found.drifted if test.group == "pair"] == []
    write_drift(found, tmp_path / "drift.html")
    assert "not judged" in (tmp_path / "drift.html").read_text(encoding="utf-8")


def test_impossible_rows_have_no_mean(tmp_path):
    rng = np.random.default_rng(0)
    model = FlowDensity(
        columns={"a": (0.0, 1.0)}, flow_options=SMALL, members=["plain"], max_steps=5, random_state=0
    ).fit(pd.DataFrame({"a": rng.random(400)}))
    with pytest.warns(UserWarning, match="bounds"):
        found = model.compare(pd.DataFrame({"a": 2 + rng.random(100)}))
    assert found.n_impossible == 100
    assert np.isnan(found.log_density[1])
    test = found.tests[0]
    assert test.change == "no new row has a positive density"
    assert test.has_drifted
    state = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert state["log_density"][1] is None
    write_drift(found, tmp_path / "drift.html")
    assert "No new row has a positive density" in (tmp_path / "drift.html").read_text(encoding="utf-8")


def test_missing_values_of_complete_columns_are_drift(density, tmp_path, write):
    rows = table(400, 1)
    rows.loc[:59, "a"] = np.nan
    rows.loc[50:79, "count"] = np.nan
    found = density.compare(rows)
    assert (found.n_rows, found.n_incomplete) == (320, 80)
    assert {(test.name, test.aspect) for test in found.drifted if test.group == "column"} == {
        ("a", "missing"),
        ("count", "missing"),
    }
    assert found.tests[3].change == "missing 0.0% -> 15.0%"
    assert found.shares[0].missing == (0.0, 0.15)
    nothing = density.compare(rows.assign(kind=None))  # no row has a density
    assert next(test.name for test in nothing.drifted) == "kind"
    assert nothing.n_rows == 0
    write_drift(nothing, tmp_path / "drift.html")
    with pytest.raises(ValueError, match="reference must not have missing values in columns that were fitted without"):
        density.compare(table(400, 1), reference=rows)
    density.save(tmp_path / "model.elf")
    code, out, _ = run("drift", tmp_path / "model.elf", write(rows, "rows.csv"))
    assert code == 3
    assert "80 other new rows" in out


def test_result_is_a_table_and_json_and_text(density):
    found = density.compare(table(500, 2, shift=1.0))
    frame = found.to_frame()
    assert len(frame) == len(found.tests)
    assert frame["p_value"].between(0, 1).all()
    assert (frame["adjusted_p_value"] >= frame["p_value"] * (1 - 1e-12)).all()
    assert found.p_value == frame["adjusted_p_value"].min()
    state = json.loads(json.dumps(found.to_dict()))
    assert state["has_drift"] is True
    assert state["n_reference"] == 600
    assert sum(state["shares"][0]["new"]) == pytest.approx(1.0)
    assert repr(found).startswith(("Drift (p = ", "Drift (p < 1e-16)"))
    assert "median" in repr(found)
    assert repr(density.compare(table(500, 1))).startswith("No drift")


def test_blocks_add_up(density):
    rows = table(900, 6, shift=0.1)
    monitor = density.monitor()
    for start in range(0, 900, 250):
        monitor.add(rows[start : start + 250])
    together, apart = density.compare(rows), monitor.compare()
    assert monitor.n_rows == 900
    for one, other in zip(together.tests, apart.tests, strict=True):
        assert one.p_value == pytest.approx(other.p_value, rel=1e-9)


@pytest.fixture(scope="module")
def discrete():
    """Rows of which about half are equal to others, and a density of them."""
    rng = np.random.default_rng(0)
    draw = lambda n: pd.DataFrame(rng.poisson(4, size=(n, 4)), columns=list("abcd"))  # noqa: E731
    rows, others = draw(1500), draw(1500)
    model = FlowDensity(flow_options=SMALL, members=["plain"], max_steps=5, validation=0.3, random_state=0).fit(rows)
    return model, rows, others


def test_blocks_of_discrete_rows_add_up(discrete):
    """Equal rows of several blocks are not the same fitted row, and all rows decide together about chance."""
    model, rows, others = discrete
    assert 0.2 < model.row_hashes_.share_repeated < 0.5
    for new, n_fitted in ((pd.concat([rows, others]), 1500), (others, 0)):
        shuffled = new.sample(frac=1, random_state=0)
        together, monitor = model.compare(shuffled), model.monitor()
        for start in range(0, len(new), 300):
            monitor.add(shuffled[start : start + 300])
        apart = monitor.compare()
        assert (apart.n_rows, apart.n_fitted) == (together.n_rows, together.n_fitted) == (1500, n_fitted)
        assert not apart.has_drift
        for one, other in zip(together.tests, apart.tests, strict=True):
            assert one.p_value == pytest.approx(other.p_value, rel=1e-9)


def test_rows_of_unknown_origin_are_left_out_beside_fitted_ones(density):
    """Very large fits store a part of the hashes."""
    part = copy.copy(density)
    hashes = density.row_hashes_
    part.row_hashes_ = RowHashes(hashes.codes[hashes.codes >> 1 < N_HASHES // 2], N_HASHES // 2)
    both = pd.concat([table(2000, 0), table(1000, 1)])
    found = part.compare(both)
    assert 400 < found.n_rows < 600
    assert found.n_rows + found.n_fitted == 3000
    assert part.compare(table(1000, 1)).n_rows == 1000


def test_fitted_rows_are_left_out(density):
    both = pd.concat([table(2000, 0), table(300, 1)])
    found = density.compare(both)
    assert (found.n_rows, found.n_fitted) == (300, 2000)
    with pytest.raises(ValueError, match="X must have at least 20 new rows, got 0 besides 2,000 rows"):
        density.compare(table(2000, 0))
    reference = density.compare(table(300, 1), reference=both)  # validation rows and new rows
    assert reference.n_reference == 600 + 300
    with pytest.raises(ValueError, match="reference must have at least 20 rows that the density was not trained on"):
        density.compare(table(300, 1), reference=table(2000, 0)[:10])


def test_equal_rows_of_few_categories_are_not_left_out():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.choice(["x", "y"], 600), "b": rng.random(600) < 0.5})
    model = FlowDensity(flow_options=SMALL, members=["plain"], max_steps=5, random_state=0).fit(frame)
    new = pd.DataFrame({"a": rng.choice(["x", "y"], 100), "b": rng.random(100) < 0.5})
    assert model.compare(new).n_rows == 100
    unknown = new.assign(a=np.where(np.arange(100) < 40, "w", new["a"]))
    change = {test.name: test.change for test in model.compare(unknown).drifted}
    assert change["a"].startswith("unknown categories: 0.0% -> 40.0%")


def test_context_is_compared():
    rng = np.random.default_rng(1)

    def draw(n, shift=0.0):
        context = pd.DataFrame({"c": rng.normal(size=n) + shift, "g": rng.choice(["u", "v"], n)})
        return pd.DataFrame({"x": context["c"] + rng.normal(size=n)}), context

    x, c = draw(1000)
    model = FlowDensity(flow_options=SMALL, members=["plain"], max_steps=20, random_state=0).fit(x, context=c)
    x, c = draw(500)
    assert not model.compare(x, context=c).has_drift
    x, c = draw(500, shift=1.0)
    found = model.compare(x, context=c)
    assert {test.name for test in found.drifted if test.group == "column"} == {"x", "c"}
    assert [part.is_context for part in found.shares] == [False, True, True]


def test_wrong_arguments(density):
    with pytest.raises(ValueError, match=r"level must be a probability in \(0, 1\), got 2"):
        density.compare(table(100, 1), level=2)
    with pytest.raises(ValueError, match="X must have at least 20 new rows, got 5"):
        density.compare(table(5, 1))
    with pytest.raises(ValueError, match="reference_context must be None without reference"):
        density.compare(table(100, 1), reference_context=table(100, 1))


def test_files_keep_the_counts(density, tmp_path):
    density.save(tmp_path / "model.elf")
    loaded = elflow.load(tmp_path / "model.elf")
    assert loaded.compare(table(300, 1)) == density.compare(table(300, 1))
    loaded.held_out_ = None
    loaded.save(tmp_path / "without.elf")
    without = elflow.load(tmp_path / "without.elf")
    with pytest.raises(ValueError, match=r"at least 20 validation rows to compare with, got none: pass reference="):
        without.compare(table(300, 1))
    assert not without.compare(table(300, 1), reference=table(300, 7)).has_drift
    loaded.held_out_ = json.loads(json.dumps(density.held_out_)) | {"scores": [1, 2]}
    loaded.save(tmp_path / "damaged.elf")
    with pytest.raises(ValueError, match=r"damaged.elf.*held_out must have counts"):
        elflow.load(tmp_path / "damaged.elf")
    loaded.held_out_ = density.held_out_ | {"columns": "x"}
    loaded.save(tmp_path / "damaged.elf")
    with pytest.raises(ValueError, match=r"held_out.columns must be a list"):
        elflow.load(tmp_path / "damaged.elf")
    loaded.held_out_ = {"version": 99}
    loaded.save(tmp_path / "newer.elf")
    assert elflow.load(tmp_path / "newer.elf").held_out_ is None


@pytest.mark.slow
def test_command_line(density, tmp_path, write):
    model = tmp_path / "model.elf"
    density.save(model)
    same, drifted = write(table(400, 1), "same.csv"), write(table(400, 2, shift=1.0), "drifted.csv")
    code, out, _ = run("drift", model, same)
    assert code == 0
    assert "No drift" in out
    code, out, _ = run("drift", model, drifted, "-o", tmp_path / "drift.html")
    assert code == 3
    assert "Drift (p" in out
    assert "The new rows have drifted" in (tmp_path / "drift.html").read_text(encoding="utf-8")
    code, out, _ = run("drift", model, drifted, "-o", tmp_path / "drift.json", "--reference", same)
    assert code == 3
    assert json.loads((tmp_path / "drift.json").read_text())["n_reference"] == 400
    code, out, err = run("drift", model, same, "-o", "-")
    assert json.loads(out)["has_drift"] is False
    assert "No drift" in err
    assert "--output must end with .html or .json" in fails("drift", model, same, "-o", tmp_path / "drift.txt")
    assert "--level must be a probability" in fails("drift", model, same, "--level", "2")
    assert "DATA must have at least 20 new rows, got 5" in fails("drift", model, write(table(5, 1), "few.csv"))


def test_page_escapes_names(tmp_path):
    rng = np.random.default_rng(0)
    name = "<script>alert(1)</script>"
    frame = pd.DataFrame({name: rng.normal(size=400), "k": rng.choice(["<b>", "c"], 400)})
    model = FlowDensity(flow_options=SMALL, members=["plain"], max_steps=5, random_state=0).fit(frame)
    found = model.compare(pd.DataFrame({name: rng.normal(2, 1, size=100), "k": ["<b>"] * 100}))
    write_drift(found, tmp_path / "drift.html")
    page = (tmp_path / "drift.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "<b>:" not in page
    assert "&lt;script&gt;" in page
