"""Columns and schemas: inferred kinds, round trips of values, and volumes of cells."""

import json
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from _tables import mixed
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import norm

from elflow.tabular import COLUMN_KINDS, Column, FlowDensity, Schema, as_frame, fingerprint
from elflow.tabular.columns._steps import Steps
from elflow.tabular.columns._warps import Warp

UNBOUNDED = [(-np.inf, np.inf)]


# One column of each kind. A new kind costs one line here.
COLUMNS = {
    "continuous": pd.Series([0.5, 1.25, 7.0, 1.25], name="c"),
    "integer": pd.Series([3, 5, 3, 9], name="c"),
    "boolean": pd.Series([True, False, True, True], name="c"),
    "category": pd.Series(["a", "b", "a", "c"], name="c"),
    "datetime": pd.Series(pd.to_datetime(["2024-05-31", "2024-06-01", "2024-06-03", "2024-05-31"]), name="c"),
}


def place(schema, cells, seed=0):
    """Features of rows, with a random point of each cell, `(N, features)`."""
    rng = np.random.default_rng(seed)
    z = np.zeros((len(cells.offset), schema.features))
    z[:, schema.exact] = cells.exact
    noise = rng.random(cells.low.shape)
    u = np.clip(cells.low + cells.width * noise, 1e-15, 1 - 1e-15)
    z[:, schema.cells] = np.where(cells.width <= 0, cells.low - cells.width * noise, ndtri(u))
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
    pd.testing.assert_frame_equal(schema.decode(place(schema, schema.encode(frame))), frame)


@pytest.mark.parametrize("missing", ["error", "model"])
def test_a_row_is_encoded_alone_as_in_a_large_table(missing):
    """Bit by bit, though categories of few rows are looked up in another way, and numbers of one row have no stride."""
    frame = mixed()
    frame["rain"] = np.where(np.arange(600) % 3 == 0, 0.0, frame["positive"])
    frame = frame if missing == "model" else frame.drop(columns=["nullable", "float"]).fillna({"text": "a"})
    schema = Schema.fit(frame, missing=missing)
    assert any(column.atoms for column in schema.columns)
    large = pd.concat([frame] * 3, ignore_index=True)  # more than MAX_LOOKED_UP rows
    large["text"] = large["text"].where(large.index % 5 > 0, "never seen before")
    whole, context = schema.encode(large), schema.encode_context(large)
    for i in (0, 1, 30, 55, 600, 605, 1_799):
        row = large.iloc[i : i + 1]
        for part, of_row in zip(whole, schema.encode(row), strict=True):
            np.testing.assert_array_equal(of_row[0], part[i], strict=True)
        np.testing.assert_array_equal(schema.encode_context(row)[0], context[i], strict=True)


def test_equal_levels_of_different_types_are_not_mixed_up():
    """1 and True have one hash, so that a dictionary would hold one of them only: pandas says so as before."""
    mixed_levels = Column.fit(pd.Series(pd.Categorical([1, 2, 2]), name="c"))
    assert mixed_levels.to_integers(pd.Series([2, 1, 3])).tolist() == [1, 0, 2]
    twice = Column.from_dict(mixed_levels.to_dict() | {"levels": [1, True]})
    with pytest.raises(pd.errors.InvalidIndexError, match="uniquely valued"):
        twice.to_integers(pd.Series([1]))


def test_polars_and_arrow_come_back():
    frame = mixed().drop(columns="zone")
    for table in (pl.from_pandas(frame), pa.Table.from_pandas(frame, preserve_index=False)):
        schema = Schema.fit(table, missing="model")
        back = schema.decode(place(schema, schema.encode(table)))
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
        (lambda r: r.normal(size=4000), UNBOUNDED),
        (lambda r: 1e6 + 1e-3 * r.normal(size=4000), UNBOUNDED),
        (lambda r: r.standard_cauchy(4000) * 100, UNBOUNDED),
        (lambda r: r.lognormal(0, 2, 4000), [*UNBOUNDED, (0, np.inf)]),
        (lambda r: r.beta(0.5, 0.5, 4000), [*UNBOUNDED, (0, 1)]),
        (lambda r: -r.exponential(size=4000), [(-np.inf, 0)]),
        (lambda r: np.append(r.normal(size=4000), 1e12), UNBOUNDED),
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


@pytest.mark.parametrize("outlier", [1e6, 1e12, 1e13, 1e20, 1e36, -1e300])
def test_heavy_tails_do_not_ruin_the_rest(outlier):
    rng = np.random.default_rng(0)
    warp = Warp.fit(np.append(rng.normal(size=1000), outlier), UNBOUNDED)
    z = warp(rng.normal(size=1000))[0]
    assert 0.5 < z.std() < 2
    assert abs(warp(np.array([outlier]))[0][0]) < 20


@pytest.mark.parametrize(
    ("draw", "bounds", "base"),
    [
        (lambda r: np.where(r.random(2000) < 0.1, -1, 1) * r.lognormal(3, 2, 2000), UNBOUNDED, "asinh"),
        (lambda r: np.exp(2 * r.standard_t(2, 2000)), [(0, np.inf)], "log"),
        (lambda r: np.append(r.lognormal(size=999), 1e36), [(0, np.inf)], "log"),
        (lambda r: np.where(r.random(2000) < 0.05, 1e4, 1) * r.standard_t(2, 2000), UNBOUNDED, None),
        (lambda r: r.standard_cauchy(4000), UNBOUNDED, None),
    ],
)
def test_tails_of_logarithms_are_exponential_beyond_the_fitted_values(draw, bounds, base):
    """Not exponentials of exponentials, with which samples would be too large by orders of magnitude."""
    warp = Warp.fit(draw(np.random.default_rng(0)), bounds)
    assert warp.straight
    assert base in (None, warp.base)
    z = np.append(np.linspace(warp.first, warp.last, 50), warp.last + np.arange(1.0, 6.0))
    x = warp.inverse(z)
    assert np.allclose(np.diff(np.log(x[-5:]), 2), 0.0, atol=1e-6)
    again, log_slope = warp(x)
    assert np.allclose(again, z)
    numerical = np.log((warp(x * (1 + 1e-6))[0] - again) / (1e-6 * x))
    assert np.allclose(numerical[-4:], log_slope[-4:], atol=1e-3)


def test_scale_follows_the_bulk_of_the_values():
    rng = np.random.default_rng(0)
    warp = Warp.fit(1e6 + 1e-7 * rng.normal(size=2000), UNBOUNDED)
    assert warp.scale == pytest.approx(1e-7, rel=0.1)
    huge = rng.uniform(0.5, 1, 120) * 1.7e308
    warp = Warp.fit(huge, [*UNBOUNDED, (0, np.inf)])
    assert np.allclose(warp.inverse(warp(huge)[0]), huge)


def test_clusters_far_apart_keep_their_resolution():
    rng = np.random.default_rng(0)
    parts = [rng.normal(size=500), rng.normal(1e9, 1, 500), rng.normal(2e9, 1e-4, 500)]
    x = np.append(np.concatenate(parts), 1e20)
    warp = Warp.fit(x, UNBOUNDED)
    assert warp.base == "clusters"
    z = warp(x)[0].astype(np.float32)
    assert len(np.unique(z)) > 0.99 * len(np.unique(x))
    for part in parts:
        assert np.abs(warp.inverse(warp(part)[0]) - part).max() < 1e-5


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
    values = column.decode(np.array([-1e30, -50.0, -5, 0, 5, 50, 1e30]))
    low, high = (-np.inf if bounds[0] is None else 0), (np.inf if bounds[1] is None else 10)
    assert values.between(low, high).all()
    assert np.isfinite(values).all()
    assert values.dtype == "float32"
    assert column.encode(pd.Series([-1.0, 11.0], name="a"))[2].min() == -np.inf


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=60), st.lists(st.integers(-(2**60), 2**60), max_size=20))
def test_cells_of_integers(values, others):
    """Cells are in order and adjacent, contain the points of their values, and lie in (0, 1)."""
    values = np.array(values)
    steps = Steps.fit(values)
    near = np.arange(values.min() - 50, values.max() + 50)
    low, width = steps.encode(near)
    assert (width > 0).all()
    assert np.allclose(low[1:], (low + width)[:-1], atol=1e-12)
    assert low[0] >= 0
    assert low[-1] + width[-1] <= 1
    low, width = steps.encode(values)
    for share in (1e-6, 0.5, 1 - 1e-6):
        assert (steps.decode(low + share * width) == values).all()
    low, width = steps.encode(np.array(others, np.int64))
    assert ((low >= 0) & (width > 0) & (low + width <= 1)).all()


def test_frequent_integers_among_many_have_cells_of_their_own():
    rng = np.random.default_rng(0)
    values = np.append(np.zeros(9000, np.int64), rng.integers(0, 100_000, 1000))
    steps = Steps.fit(values)
    assert len(steps.edges) < 500
    assert steps.encode(np.array([0]))[1][0] == pytest.approx(0.9, abs=0.01)
    z = ndtri(np.clip(steps.encode(values)[0] + steps.encode(values)[1] * rng.random(len(values)), 1e-12, 1 - 1e-12))
    assert abs(z.mean()) < 0.05
    assert abs(z.std() - 1) < 0.05


def test_probabilities_sum_to_one():
    """Under the standard normal density of z, the probability of a value is the width of its cell."""
    column = Column.fit(pd.Series(["a"] * 70 + ["b"] * 30, name="t"))
    _, width, _ = column.encode(pd.Series(["a", "b", "never seen"], name="t"))
    assert width[0] == pytest.approx(0.7, abs=0.02)
    assert 0 < width[2] < 0.02
    assert width.sum() < 1


def test_rounded_numbers_have_a_density_in_their_units():
    """Of N(20, 2) rounded to tenths, the density under a standard normal z is close to that of N(20, 2)."""
    x = pd.Series(np.round(np.random.default_rng(0).normal(20, 2, 50_000), 1), name="x")
    column = Column.fit(x)
    assert column.step == 0.1
    assert column.dithered
    low, width, offset = column.encode(x)
    log_density = np.log(norm.cdf(low - width) - norm.cdf(low)) + offset
    assert log_density.mean() == pytest.approx(norm(20, 2).logpdf(x).mean(), abs=0.01)
    assert (column.decode(low - 0.999 * width) == x).all()


def test_rounded_numbers_with_gaps_have_cells_as_wide_as_frequent():
    """Prices of 4.99, 9.99, ...: the probability of a cell is the frequency, and its density is per unit."""
    x = pd.Series(np.random.default_rng(0).integers(1, 40, 20_000) * 5 - 0.01, name="x")
    column = Column.fit(x)
    assert column.step == 0.01
    assert column.is_discrete
    _, width, offset = column.encode(x)
    assert (np.log(width) + offset).mean() == pytest.approx(np.log(1 / 39) - np.log(0.01), abs=0.01)


def test_context_is_one_number_for_each_of_a_few_categories():
    frame = pd.DataFrame({"t": ["a", "b", None, "b"] * 10, "x": np.arange(40.0) ** 1.5})
    schema = Schema.fit(frame, missing="model")
    c = schema.encode_context(frame)
    assert c.shape == (40, schema.context_features) == (40, 4)
    assert c[:4, :3].tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert schema.encode_context(pd.DataFrame({"t": ["new"], "x": [3.0]}))[0, :3].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("table", "declared", "message"),
    [
        (pd.DataFrame({"a": [1.0, np.inf, 2.0]}), {}, "'a' must be finite"),
        (pd.DataFrame({"a": [1.0, np.nan, 2.0], "b": [1, 2, 3]}), {}, r"'a' \(1\).*missing='model'"),
        (pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]), {}, r"unique, got duplicates of \['a'\]"),
        (pd.DataFrame({"a": [1, "x", 2.5]}, dtype=object), {}, "'a' must hold values of one type"),
        (pd.DataFrame({"a": [1 + 2j, 3]}), {}, "Complex data not supported"),
        (pd.DataFrame({"a": pd.to_timedelta([1, 2], unit="D")}), {}, "'a' must hold floats"),
        (pd.DataFrame({"a": [0, 2**60]}), {}, "must span less than 2"),
        (pd.DataFrame({"a": [1.0, 2.0]}), {"b": "integer"}, r"columns must refer to columns of .*'a'.*, got \['b'\]"),
        (pd.DataFrame({"a": [1.0, 2.0]}), {"a": "number"}, "must be one of"),
        (pd.DataFrame({"a": [1.0, 2.0]}), {"a": (2, 1)}, "low bound below"),
        (pd.DataFrame({"a": [1.0, 2.0]}), {"a": (1.5, 3)}, r"must lie within its bounds \(1\.5, 3\), got 1 to 2"),
        (pd.DataFrame({"a": ["x", "y"]}), {"a": (0, 1)}, "'a' must be numeric to have bounds, got kind category"),
        (pd.DataFrame({"a": [1.5, 2.0]}), {"a": "integer"}, "must hold integers, got 1.5"),
        (np.zeros(3), {}, "two dimensions"),
        (pd.DataFrame(index=range(3)), {}, "at least one column"),
    ],
)
def test_bad_tables(table, declared, message):
    with pytest.raises(ValueError, match=message):
        Schema.fit(table, declared)


def test_columns_at_score_time():
    frame = pd.DataFrame({"a": np.arange(20.0) ** 1.5, "b": np.arange(20), "c": ["x", "y"] * 10})
    schema = Schema.fit(frame)
    plain = schema.encode(frame)
    other = schema.encode(frame[["c", "a", "b"]].assign(extra=1))
    assert all(np.array_equal(a, b) for a, b in zip(plain, other, strict=True))
    with pytest.raises(ValueError, match=r"the table must have the columns .*, got none named \['b'\]"):
        schema.encode(frame[["a", "c"]])
    with pytest.raises(ValueError, match=r"'a' must hold numbers, got .*'oops' in row 1"):
        schema.encode(frame.assign(a=["1", "oops"] * 10))
    with pytest.raises(ValueError, match="missing values"):
        schema.encode(frame.assign(b=np.nan))
    with pytest.raises(ValueError, match="must have at least one value, got only missing values in"):
        Schema.fit(frame.assign(b=np.nan), missing="model")
    with pytest.raises(TypeError, match=r"must be a pandas, polars or pyarrow table or a NumPy array, got .*Path"):
        as_frame(Path("data.csv"))


@pytest.mark.parametrize("kind", COLUMN_KINDS)
def test_every_kind_makes_the_round_trip(kind):
    """A column of a declared kind, its file and its values; a kind that is only half supported fails."""
    values = COLUMNS[kind]
    fitted = Column.fit(values, kind)
    assert fitted.kind == fitted.describe()["kind"] == kind
    column = Column.from_dict(json.loads(json.dumps(fitted.to_dict())))
    assert column.to_dict() == fitted.to_dict()
    assert all(np.isfinite(part).all() for part in column.encode(values))
    pd.testing.assert_series_equal(column.decode(column.encode_midpoints(values)), values)


@pytest.mark.parametrize("kind", COLUMN_KINDS)
def test_every_kind_is_documented(kind):
    assert f'`"{kind}"`' in str(FlowDensity.__doc__)


def test_kinds_that_are_only_named(monkeypatch):
    """A name in the list of kinds is not enough: errors say so, rather than blame the values."""
    monkeypatch.setattr("elflow.tabular.columns._kinds.COLUMN_KINDS", [*COLUMN_KINDS, "duration"])
    with pytest.raises(KeyError, match="duration"):
        Column.fit(COLUMNS["integer"], "duration")
    monkeypatch.setattr("elflow.tabular.columns._kinds.infer_kind", lambda name, present: "duration")
    with pytest.raises(AssertionError, match=r"Column\.fit must support every kind of column, got 'duration'"):
        Column.fit(COLUMNS["integer"])


@dataclass(frozen=True, repr=False)
class ExtendedColumn(Column):
    """A column with new fields."""

    origin: str = "unknown"
    marks: tuple[int, ...] | None = None


def test_new_fields_are_saved():
    state = Column.fit(COLUMNS["integer"]).to_dict()
    column = ExtendedColumn.from_dict(state | {"origin": "survey", "marks": [1, 2]})
    assert (column.origin, column.marks) == ("survey", (1, 2))
    assert list(column.to_dict()) == [field.name for field in fields(ExtendedColumn)]
    again = ExtendedColumn.from_dict(json.loads(json.dumps(column.to_dict())))
    assert (again.origin, again.marks) == ("survey", (1, 2))


def test_description_of_columns():
    described = {facts["name"]: facts for facts in Schema.fit(mixed(), missing="model").describe()}
    values = {name: facts["values"] for name, facts in described.items()}
    assert values["float"] == "any, or missing"
    assert values["positive"] == "at least 0"
    assert values["share"] == "between 0 and 1"
    assert values["count"].startswith("0 to ")
    assert values["grid"].endswith(" in steps of 0.1")
    assert values["flag"] == "2: False, True"
    assert values["category"] == "3: z, y, x"
    assert values["day"] == "2020-01-01 to 2020-04-09"
    assert described["text"] == {
        "name": "text",
        "kind": "category",
        "dtype": str(mixed()["text"].dtype),
        "values": f"3: {', '.join(mixed()['text'].value_counts().index)}, or missing",
        "missing": True,
    }


def test_text_of_a_schema_is_short():
    schema = Schema.fit(mixed(), missing="model")
    lines = str(schema).splitlines()
    assert lines[0] == "Schema of 16 columns"
    assert lines[1].split() == ["column", "kind", "dtype", "values"]
    assert [line.split()[0] for line in lines[2:]] == schema.names
    rng = np.random.default_rng(0)
    wide = pd.DataFrame({f"{i} with a rather long name\n": rng.choice(["x" * 200, "y"], 30) for i in range(100)})
    lines = repr(Schema.fit(wide)).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 120
    assert lines[-1] == "and 84 more"
    assert "\n" not in repr(Schema.fit(wide).columns[0])
    assert len(repr(Schema.fit(wide).columns[0])) < 200


def test_fingerprint_sees_every_value():
    frame = mixed(50)
    assert fingerprint(frame) == fingerprint(frame.copy())
    assert fingerprint(frame) != fingerprint(frame.iloc[::-1].reset_index(drop=True))
    changed = frame.copy()
    changed.loc[3, "count"] += 1
    assert fingerprint(frame) != fingerprint(changed)


def test_the_widths_of_cells_do_not_depend_on_validation_rows():
    """Otherwise a level that only a validation row has would look as if training rows had it, unlike in new rows."""
    table = pd.DataFrame({"id": [f"level {i}" for i in range(200)] * 2, "x": np.arange(400.0)})
    density = FlowDensity(columns={"id": "category"}, max_steps=2, random_state=0).fit(table)
    is_validation = density.validation_mask(table)
    in_training = set(table.id[~is_validation])
    only_held_out = [level for level in table.id[is_validation] if level not in in_training]
    assert only_held_out, "this seed must put both rows of some level into the validation rows"
    column = density.schema_.column("id")
    width = dict(zip(table.id, column.encode(table.id)[1], strict=True))
    assert max(width[level] for level in only_held_out) < 0.01 * min(width[level] for level in in_training)
    assert sum(width.values()) == pytest.approx(1, abs=0.01)


def test_recounting_keeps_cells_and_states():
    rng = np.random.default_rng(0)
    rain = np.where(rng.random(1000) < 0.3, 0.0, rng.lognormal(size=1000))
    frame = pd.DataFrame({"rain": rain, "count": rng.poisson(3, size=1000).astype(float)})
    frame.loc[5, "count"] = np.nan
    schema = Schema.fit(frame, missing="model")
    other = schema.recount(frame[100:])
    for before, after in zip(schema.columns, other.columns, strict=True):
        assert (after.atoms, after.position, len(after.shares)) == (before.atoms, before.position, len(before.shares))
    assert other.column("count").missing == pytest.approx(0.5 / 901)
    assert other.column("rain").shares[0] == pytest.approx((rain[100:] == 0).mean(), abs=1e-3)


def test_unique_measurements_are_smooth_even_with_ties():
    """Four significant digits have more ties where there are fewer decimals, but frequencies predict no new value."""
    x = np.random.default_rng(0).lognormal(2.2, 0.4, size=450)
    column = Column.fit(pd.Series([float(f"{value:.4g}") for value in x], name="x"))
    assert column.step == 0.001
    assert not column.is_discrete


@pytest.mark.parametrize("kind", ["dates", "counter"])
def test_cells_of_unique_values_predict_new_ones(kind):
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 5000, size=900) if kind == "dates" else rng.permutation(900)
    values = pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta(numbers, unit="D") if kind == "dates" else numbers)
    column = Column.fit(values.rename("x"))
    fitted, new = (np.log(column.recount(values[:450]).encode(part)[1]).mean() for part in (values[:450], values[450:]))
    assert column.is_discrete
    assert new > fitted - 0.2


def test_frequent_values_among_rare_ones_have_cells():
    rng = np.random.default_rng(0)
    prices = np.where(
        rng.random(4000) < 0.5, rng.choice([999, 1999, 4999], size=4000), rng.integers(0, 9000, size=4000)
    )
    steps = Steps.fit(prices)
    assert steps.encode(np.array([999]))[1] == pytest.approx(1 / 6, rel=0.1)
    assert steps.encode(np.array([3210]))[1] == pytest.approx(0.5 / 9000, rel=0.5)


@pytest.mark.parametrize("value", ["True", 2])
def test_other_values_in_a_column_of_booleans_are_an_error(value):
    """They were unknown categories, with a low density and without a word."""
    schema = Schema.fit(pd.DataFrame({"ok": [True, False, True, True]}))
    with pytest.raises(ValueError, match=f"column 'ok' must hold booleans, got .*{value}"):
        schema.encode(pd.DataFrame({"ok": [value, value]}))
    expected = schema.encode(pd.DataFrame({"ok": [True, True]}))
    for same in (1, 1.0, np.bool_(True)):
        np.testing.assert_array_equal(schema.encode(pd.DataFrame({"ok": [same, same]})).low, expected.low)
