"""Tables: what columns are taken for, that numbers come back as values, and that volumes are right."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import norm

from elflow.tabular._maps import Steps, Warp
from elflow.tabular.columns import Column
from elflow.tabular.schema import Schema, as_frame, fingerprint

ANY = [(-np.inf, np.inf)]


def mixed(n=600, seed=0):
    """One column of every kind, some with missing values."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "float": rng.normal(size=n),
            "positive": rng.lognormal(size=n),
            "share": rng.beta(0.5, 0.5, n),
            "rounded": rng.normal(170, 5, n).round(),
            "grid": np.round(rng.normal(20, 2, n), 1),
            "count": rng.poisson(4, n),
            "wide": rng.integers(0, 10**6, n),
            "flag": rng.random(n) < 0.3,
            "text": rng.choice(["a", "b", "<c>"], n),
            "category": pd.Categorical(rng.choice(["x", "y"], n), categories=["z", "y", "x"]),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 100, n), unit="D"),
            "zone": pd.date_range("2021-05-05", periods=n, freq="h", tz="Europe/Paris"),
            "levels": rng.choice([0.0, 1.0865, 2.173], n).astype("float32"),
            "constant": 1.5,
            "single": rng.normal(size=n).astype("float32"),
            "nullable": pd.array(rng.integers(0, 5, n), dtype="Int64"),
        }
    )
    frame.loc[:50, "nullable"] = pd.NA
    frame.loc[20:90, "float"] = np.nan
    frame.loc[7:20, "text"] = None
    return frame


def numbers(schema, cells, seed=0):
    """One point of each cell."""
    rng = np.random.default_rng(seed)
    z = np.zeros((len(cells.offset), schema.features))
    z[:, schema.exact] = cells.exact
    u = np.clip(cells.low + cells.width * rng.random(cells.low.shape), 1e-15, 1 - 1e-15)
    z[:, schema.cells] = np.where(cells.width == 0, cells.low, ndtri(u))
    return z


def test_kinds():
    kinds = {column.name: column.kind for column in Schema.fit(mixed(), missing="model").columns}
    assert kinds == {
        "float": "continuous",
        "positive": "continuous",
        "share": "continuous",
        "rounded": "integer",
        "grid": "continuous",
        "count": "integer",
        "wide": "integer",
        "flag": "boolean",
        "text": "category",
        "category": "category",
        "day": "datetime",
        "zone": "datetime",
        "levels": "category",
        "constant": "category",
        "single": "continuous",
        "nullable": "integer",
    }


def test_values_come_back_with_their_types():
    frame = mixed()
    schema = Schema.fit(frame, missing="model")
    schema = Schema.from_dict(json.loads(json.dumps(schema.to_dict())))
    pd.testing.assert_frame_equal(schema.decode(numbers(schema, schema.encode(frame))), frame)


def test_polars_and_arrow_come_back():
    frame = mixed().drop(columns="zone")
    for table in (pl.from_pandas(frame), pa.Table.from_pandas(frame, preserve_index=False)):
        schema = Schema.fit(table, missing="model")
        back = schema.decode(numbers(schema, schema.encode(table)))
        assert back.schema == table.schema
        pd.testing.assert_frame_equal(as_frame(back), as_frame(table))


def test_numpy_has_numbered_columns():
    x = np.random.default_rng(0).normal(size=(50, 2))
    schema = Schema.fit(x)
    assert schema.names == ["x0", "x1"]
    assert np.allclose(schema.decode(schema.encode(x).exact), x)


@pytest.mark.parametrize(
    ("draw", "bounds"),
    [
        (lambda r: r.normal(size=4000), ANY),
        (lambda r: 1e6 + 1e-3 * r.normal(size=4000), ANY),
        (lambda r: r.standard_cauchy(4000) * 100, ANY),
        (lambda r: r.lognormal(0, 2, 4000), [*ANY, (0, np.inf)]),
        (lambda r: r.beta(0.5, 0.5, 4000), [*ANY, (0, 1)]),
        (lambda r: -r.exponential(size=4000), [(-np.inf, 0)]),
        (lambda r: np.append(r.normal(size=4000), 1e12), ANY),
        (lambda r: np.append(np.zeros(2500), r.exponential(size=1500)), [(0, np.inf)]),
        (lambda r: r.integers(0, 2, 4000) * 1.0, [(0, 1)]),
    ],
)
def test_warp_is_increasing_and_its_slope_right(draw, bounds):
    x = np.unique(draw(np.random.default_rng(0)))
    warp = Warp.fit(x, bounds)
    z, log_slope = warp(x)
    assert (np.diff(z) > 0).all()
    assert np.isfinite(z).all()
    assert np.allclose(warp.inverse(z), x, rtol=1e-9, atol=1e-9)
    h = 1e-6 * (1e-3 + np.abs(x - warp.loc if warp.base == "identity" else x))
    ends = np.minimum(x + h, warp.high), np.maximum(x - h, warp.low)
    numerical = np.log((warp(ends[0])[0] - warp(ends[1])[0]) / (ends[0] - ends[1]))
    inner = slice(len(x) // 10, -len(x) // 10) if len(x) > 20 else slice(0, 0)
    assert np.allclose(numerical[inner], log_slope[inner], atol=1e-3)


def test_heavy_tails_do_not_ruin_the_rest():
    rng = np.random.default_rng(0)
    warp = Warp.fit(np.append(rng.normal(size=1000), 1e12), ANY)
    z = warp(rng.normal(size=1000))[0]
    assert 0.5 < z.std() < 2
    assert abs(warp(np.array([1e12]))[0][0]) < 50


def test_bounds_are_found_only_where_they_help():
    rng = np.random.default_rng(0)
    assert Column.fit(pd.Series(rng.lognormal(size=1000), name="a")).map.low == 0
    assert Column.fit(pd.Series(rng.normal(5, 1, size=1000), name="a")).map.low == -np.inf
    share = Column.fit(pd.Series(rng.beta(0.3, 0.3, size=1000), name="a")).map
    assert (share.low, share.high) == (0, 1)


@pytest.mark.parametrize("bounds", [(0, None), (None, 10), (0, 10)])
def test_declared_bounds_hold(bounds):
    rng = np.random.default_rng(0)
    column = Column.fit(pd.Series(rng.uniform(0, 10, 500), name="a", dtype="float32"), bounds)
    values = column.values(np.array([-1e30, -50.0, -5, 0, 5, 50, 1e30]))
    low, high = (-np.inf if bounds[0] is None else 0), (np.inf if bounds[1] is None else 10)
    assert values.between(low, high).all()
    assert np.isfinite(values).all()
    assert values.dtype == "float32"
    assert column.cells(pd.Series([-1.0, 11.0], name="a"))[2].min() == -np.inf


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=60), st.lists(st.integers(-(2**60), 2**60), max_size=20))
def test_cells_of_integers(values, others):
    """Cells are in order, side by side, and hold what they should; all together they fill (0, 1)."""
    values = np.array(values)
    steps = Steps.fit(values)
    near = np.arange(values.min() - 50, values.max() + 50)
    low, width = steps.cells(near)
    assert (width > 0).all()
    assert np.allclose(low[1:], (low + width)[:-1], atol=1e-12)
    assert low[0] >= 0
    assert low[-1] + width[-1] <= 1
    low, width = steps.cells(values)
    for share in (1e-6, 0.5, 1 - 1e-6):
        assert (steps.values(low + share * width) == values).all()
    low, width = steps.cells(np.array(others, np.int64))
    assert ((low >= 0) & (width > 0) & (low + width <= 1)).all()


def test_frequent_integers_among_many_have_cells_of_their_own():
    rng = np.random.default_rng(0)
    values = np.append(np.zeros(9000, np.int64), rng.integers(0, 100_000, 1000))
    steps = Steps.fit(values)
    assert len(steps.edges) < 500
    assert steps.cells(np.array([0]))[1][0] == pytest.approx(0.9, abs=0.01)
    z = ndtri(np.clip(steps.cells(values)[0] + steps.cells(values)[1] * rng.random(len(values)), 1e-12, 1 - 1e-12))
    assert abs(z.mean()) < 0.05
    assert abs(z.std() - 1) < 0.05


def test_probabilities_sum_to_one():
    """Under the standard normal density of z, the probability of a value is the width of its cell."""
    column = Column.fit(pd.Series(["a"] * 70 + ["b"] * 30, name="t"))
    _, width, _ = column.cells(pd.Series(["a", "b", "never seen"], name="t"))
    assert width[0] == pytest.approx(0.7, abs=0.02)
    assert 0 < width[2] < 0.02
    assert width.sum() < 1


def test_rounded_numbers_have_a_density_in_their_units():
    """Of N(20, 2) rounded to tenths, the density that the cells say is close to that of N(20, 2)."""
    x = pd.Series(np.round(np.random.default_rng(0).normal(20, 2, 50_000), 1), name="x")
    column = Column.fit(x)
    assert column.step == 0.1
    _, width, offset = column.cells(x)
    assert (np.log(width) + offset).mean() == pytest.approx(norm(20, 2).logpdf(x).mean(), abs=0.01)


def test_context_is_one_number_for_each_of_a_few_categories():
    frame = pd.DataFrame({"t": ["a", "b", None, "b"] * 10, "x": np.arange(40.0) ** 1.5})
    schema = Schema.fit(frame, missing="model")
    c = schema.context(frame)
    assert c.shape == (40, schema.context_features) == (40, 4)
    assert c[:4, :3].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert schema.context(pd.DataFrame({"t": ["new"], "x": [3.0]}))[0, :3].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("table", "how", "message"),
    [
        (pd.DataFrame({"a": [1.0, np.inf, 2.0]}), {}, "'a' must be finite"),
        (pd.DataFrame({"a": [1.0, np.nan, 2.0], "b": [1, 2, 3]}), {}, r"'a' \(1\).*missing='model'"),
        (pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]), {}, r"several of \['a'\]"),
        (pd.DataFrame({"a": [1, "x", 2.5]}, dtype=object), {}, "'a' must hold values of one type"),
        (pd.DataFrame({"a": [1 + 2j, 3]}), {}, "Complex data not supported"),
        (pd.DataFrame({"a": pd.to_timedelta([1, 2], unit="D")}), {}, "'a' must be of floats"),
        (pd.DataFrame({"a": [0, 2**60]}), {}, "must span less than 2"),
        (pd.DataFrame({"a": [1.0, 2.0]}), {"b": "integer"}, r"columns must name columns .* got \['b'\]"),
        (pd.DataFrame({"a": [1.0, 2.0]}), {"a": "number"}, "must be one of"),
        (pd.DataFrame({"a": [1.0, 2.0]}), {"a": (2, 1)}, "low bound below"),
        (pd.DataFrame({"a": [1.0, 2.0]}), {"a": (1.5, 3)}, "between its bounds"),
        (pd.DataFrame({"a": ["x", "y"]}), {"a": (0, 1)}, "must hold numbers"),
        (pd.DataFrame({"a": [1.5, 2.0]}), {"a": "integer"}, "must hold integers, got 1.5"),
        (np.zeros(3), {}, "two dimensions"),
        (pd.DataFrame(index=range(3)), {}, "at least one column"),
    ],
)
def test_bad_tables(table, how, message):
    with pytest.raises(ValueError, match=message):
        Schema.fit(table, how)


def test_columns_at_score_time():
    frame = pd.DataFrame({"a": np.arange(20.0) ** 1.5, "b": np.arange(20), "c": ["x", "y"] * 10})
    schema = Schema.fit(frame)
    plain = schema.encode(frame)
    other = schema.encode(frame[["c", "a", "b"]].assign(extra=1))
    assert all(np.array_equal(a, b) for a, b in zip(plain, other, strict=True))
    with pytest.raises(ValueError, match=r"\['b'\] are missing"):
        schema.encode(frame[["a", "c"]])
    with pytest.raises(ValueError, match=r"'a' must hold numbers, got .*'oops' in row 1"):
        schema.encode(frame.assign(a=["1", "oops"] * 10))
    with pytest.raises(ValueError, match="missing values"):
        schema.encode(frame.assign(b=np.nan))
    with pytest.raises(ValueError, match="only missing ones"):
        Schema.fit(frame.assign(b=np.nan), missing="model")
    with pytest.raises(TypeError, match=r"must be of pandas, polars, pyarrow or numpy, got .*Path"):
        as_frame(Path("data.csv"))


def test_fingerprint_sees_every_value():
    frame = mixed(50)
    assert fingerprint(frame) == fingerprint(frame.copy())
    assert fingerprint(frame) != fingerprint(frame.iloc[::-1].reset_index(drop=True))
    changed = frame.copy()
    changed.loc[3, "count"] += 1
    assert fingerprint(frame) != fingerprint(changed)
