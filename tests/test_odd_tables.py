"""Unusual tables: each has a sensible result, or an error that names the column."""

import datetime
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

import elflow
from elflow import FlowDensity
from elflow.tabular import Column, Schema

RNG = np.random.default_rng(0)


def small(**parameters):
    options = {"transforms": 1, "units": 4, "hidden_features": (8,)}
    return FlowDensity(**({"max_steps": 10, "flow_options": options, "random_state": 0} | parameters))


def round_trip(values, declared=None):
    """Encode values and decode the midpoints of their cells."""
    column = Column.fit(values.rename("c"), declared)
    return column.decode(column.encode_midpoints(values.rename("c")))


@pytest.mark.parametrize(
    "values",
    [
        pd.Series(pd.to_datetime(["2024-01-01 00:00:00.123457"] * 30)),
        pd.Series(pd.to_datetime(["2024-01-01", "9999-12-31", "2020-02-29"] * 10).astype("datetime64[us]")),
        pd.Series(pd.date_range("2024-01-01", periods=40, freq="37ns")),
        pd.Series(pd.date_range("2001-01-01", periods=40, freq="97D12h").astype("datetime64[s]")),
        pd.Series(pd.date_range("2021-01-01", periods=40, freq="h", tz="Asia/Tokyo")),
        pd.Series(1_700_000_000_000_000_000 + RNG.integers(0, 10**9, 50)),
        pd.Series(RNG.integers(0, 200, 50), dtype="uint8"),
        pd.Series(RNG.integers(0, 2**40, 50), dtype="uint64"),
        pd.Series(RNG.normal(size=50), dtype="float16"),
        pd.Series(RNG.choice([1, 2, 5], 50)).astype("category"),
        pd.Series(pd.Categorical(RNG.choice(["a", "b"], 50), categories=["b", "a"], ordered=True)),
        pd.Series(RNG.choice([True, False], 50), dtype="boolean"),
        pd.Series(RNG.normal(size=50), dtype="Float64"),
    ],
    ids=lambda values: f"{values.dtype}-{values.iloc[0]}",
)
def test_values_come_back(values):
    back = round_trip(values)
    assert back.dtype == values.dtype
    if values.dtype in ("float16", "Float64"):
        assert np.allclose(back.astype(float), values.astype(float), rtol=1e-3)
    else:
        assert (back == values).all()


def test_long_spans_of_precise_datetimes_are_rounded():
    values = pd.Series(pd.date_range("1900-01-01", "2100-01-01", periods=1001)).astype("datetime64[ns]")
    back = round_trip(values)
    assert (back - values).abs().max() < pd.Timedelta("1ms")


def test_bounds_of_integers_keep_them_integers():
    ages = pd.Series(RNG.integers(17, 90, 300), name="c")
    assert (round_trip(ages, (0, 120)) == ages).all()
    column = Column.fit(ages, (0, 120))
    assert column.kind == "integer"
    assert column.encode(pd.Series([-1, 50, 121], name="c"))[2].tolist() == [-np.inf, 0, -np.inf]
    assert (round_trip(ages, "continuous") == ages).all()


@pytest.mark.parametrize(
    ("values", "declared", "message"),
    [
        (pd.Series(pd.cut(RNG.normal(size=50), 3)), None, "categories of text or numbers, got Interval"),
        (pd.Series([2**63 + 5, 3] * 10, dtype="uint64"), None, "below 2"),
        (pd.Series([True, False] * 10), "continuous", "must be numeric to be declared continuous, got kind boolean"),
        (pd.Series(["a", "b"] * 10), "integer", "column 'c' must be numeric to be declared integer, got kind category"),
        (pd.Series(["a", "b"] * 10), "datetime", "must hold datetimes to be declared datetime, got kind category"),
        (pd.Series(["a", "b"] * 10), (0, 1), "must be numeric to have bounds, got kind category"),
        (pd.Series(RNG.integers(0, 9, 50)), (0, 5), r"must lie within its bounds \(0, 5\), got"),
    ],
)
def test_unsupported_columns(values, declared, message):
    with pytest.raises(ValueError, match=message):
        Column.fit(values.rename("c"), declared)


def test_names_that_are_not_strings():
    frame = pd.DataFrame(RNG.normal(size=(60, 3)))
    density = small(columns={0: (-100, 100)}).fit(frame)
    assert list(density.sample(3, random_state=0).columns) == [0, 1, 2]
    assert density.conditional_cdf(frame.head(3), 0).shape == (3,)
    paired = frame.set_axis(pd.MultiIndex.from_tuples([("a", 1), ("a", 2), ("b", 1)]), axis=1)
    assert small().fit(paired).sample(2, random_state=0).columns.tolist() == [("a", 1), ("a", 2), ("b", 1)]


def test_a_repeated_index_does_not_matter():
    frame = pd.DataFrame({"x": RNG.normal(size=60), "k": RNG.choice(["a", "b"], 60)}, index=[7] * 60)
    density = small().fit(frame)
    assert np.array_equal(density.score_samples(frame), density.score_samples(frame.reset_index(drop=True)))


def test_python_dates():
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=int(d)) for d in RNG.integers(0, 50, 60)]
    frame = pd.DataFrame({"day": pd.Series(days, dtype=object), "x": RNG.normal(size=60)})
    density = small().fit(frame)
    assert np.isfinite(density.score_samples(frame)).all()
    assert density.conditional_cdf(frame.head(4), "day").shape == (4,)
    assert small().fit(pl.DataFrame({"day": days, "x": frame["x"].to_numpy()})).sample(3).shape == (3, 2)


@pytest.mark.parametrize(
    ("values", "fill"),
    [
        (np.append(RNG.normal(size=299), 1e36), "1e\\+36"),
        (np.where(RNG.random(300) < 0.1, -999.0, RNG.normal(size=300)), "-999"),
        (np.where(RNG.random(300) < 0.1, 1e20, RNG.lognormal(size=300)), "1e\\+20"),
    ],
)
def test_fill_values_give_a_warning(values, fill):
    frame = pd.DataFrame({"rain": values})
    message = f"column 'rain' has values far from all others: {fill}. If they stand for missing values"
    for call in (lambda: Schema.fit(frame), lambda: small().fit(frame)):
        with pytest.warns(UserWarning, match=message) as caught:
            call()
        assert len(caught) == 1
        assert caught[0].filename == __file__  # the line of the caller, not one of elflow


def test_context_outside_the_fitted_range_is_not_clipped():
    c = RNG.random(300)
    x = (5 * c + 0.1 * RNG.normal(size=300))[:, None]
    density = small(max_steps=100).fit(x, context=c)
    schema = density.context_schema_
    numbers = schema.encode_context(pd.DataFrame({"x0": [0.5, 1.0, 7.0, -5.0]}))[:, 0]
    assert numbers[3] < numbers[0] < numbers[1] < numbers[2]


def test_context_passed_as_y_is_an_error():
    x = RNG.normal(size=(50, 2))
    with pytest.raises(ValueError, match="pass a context with context="):
        small().fit(x, x)


def test_quantiles_ignore_the_column_itself():
    """Its values have no effect, may be missing, and the whole column may be left out."""
    frame = pd.DataFrame({"t": RNG.choice(["a", "b", "c"], 300), "x": RNG.normal(size=300)})
    frame.loc[:20, "x"] = np.nan
    density = small(missing="model", max_steps=50).fit(frame)
    rows = frame.iloc[100:110]
    median = density.conditional_quantile(rows, "x", 0.5)
    assert np.array_equal(median, density.conditional_quantile(rows.assign(x=1e9), "x", 0.5))
    assert np.array_equal(median, density.conditional_quantile(rows.assign(x=np.nan), "x", 0.5))
    assert np.array_equal(median, density.conditional_quantile(rows.drop(columns="x"), "x", 0.5))
    with pytest.raises(ValueError, match="X must have values of 'x', got 10 missing values"):
        density.conditional_cdf(rows.drop(columns="x"), "x")


def test_a_column_may_have_any_name():
    frame = pd.DataFrame({"self": RNG.normal(size=60), "x y": RNG.normal(size=60)})
    density = small().fit(frame)
    assert density.conditional_quantile(frame.head(3), "self", 0.5).shape == (3,)


@pytest.mark.slow
def test_conditional_distribution_far_from_the_centre():
    """Two clusters, one of them far out: the conditional distribution sees both."""
    x = np.append(RNG.normal(size=900), RNG.normal(1e7, 1, size=100))[:, None]
    density = small(max_steps=300, flow_options={}).fit(x)
    share = density.conditional_cdf(np.array([[1e5]]), 0)[0]
    assert share == pytest.approx(0.9, abs=0.05)


def test_conditioning_on_impossible_values_is_an_error():
    frame = pd.DataFrame({"x": RNG.random(100), "y": RNG.normal(size=100)})
    density = small(columns={"x": (0, 1)}).fit(frame)
    with pytest.raises(ValueError, match="bounds of the columns conditioned on, got 1 rows outside"):
        density.conditional_quantile(frame.head(5).assign(x=[0.5, 2.0, 0.5, 0.5, 0.5]), "y", 0.5)
    message = r"column 'x' has 1 value outside its declared bounds \(0.0, 1.0\), first 2 in row 1: the density"
    with pytest.warns(UserWarning, match=message) as caught:
        assert density.score_samples(frame.head(2).assign(x=[0.5, 2.0])).tolist()[1] == -np.inf
    assert len(caught) == 1


def test_identifiers_and_free_text_are_left_out(tmp_path):
    frame = pd.DataFrame(
        {
            "id": [f"customer-{i}" for i in range(200)],
            "x": RNG.normal(size=200),
            "note": [f"said {i % 90} words about the weather, and then went home" for i in range(200)],
            "city": RNG.choice(["Bonn", "Kiel"], 200),
        }
    )
    message = (
        r"columns 'id', 'note' are left out, .* declare columns=\{'id': 'category', 'note': 'category'\} \(--kind id="
    )
    with pytest.warns(UserWarning, match=message):
        density = small().fit(frame)
    assert density.schema_.names == ["x", "city"]
    assert density.sample(3, random_state=0).columns.tolist() == ["x", "city"]
    scores = density.score_samples(frame)
    assert np.array_equal(scores, density.score_samples(frame[["city", "x"]]))
    density.save(tmp_path / "model.elf")
    content = (tmp_path / "model.elf").read_bytes()
    assert b"customer-1" not in content
    assert b"weather" not in content
    again = elflow.load(tmp_path / "model.elf")
    assert again.schema_.ignored == ("id", "note")
    assert np.array_equal(scores, again.score_samples(frame))
    assert "left out: id, note" in repr(again.schema_)
    kept = small(columns={"id": "category", "note": "category"}).fit(frame)
    assert kept.schema_.names == list(frame.columns)
    with (
        pytest.raises(ValueError, match="must have a column that does not identify rows"),
        pytest.warns(match="left out"),
    ):
        Schema.fit(frame[["id"]])


def test_dates_across_daylight_saving_come_back_at_midnight():
    days = pd.Series(pd.date_range("2023-01-01", periods=700, tz="Europe/Berlin"), name="c")
    column = Column.fit(days)
    assert column.local
    assert (round_trip(days) == days).all()
    sampled = column.decode(RNG.normal(size=1000))
    assert sampled.dtype == days.dtype
    assert (sampled.dt.hour == 0).all()
    assert sampled.between(days.min(), days.max()).all()
    hours = pd.Series(pd.date_range("2023-03-01", periods=2000, freq="h", tz="Europe/Berlin"), name="c")
    assert not Column.fit(hours).local
    assert (round_trip(hours) == hours).all()


def test_iso_strings_are_datetimes_when_scoring():
    for zone in (None, "Europe/Berlin"):
        days = pd.date_range("2023-01-01", periods=300, tz=zone)
        frame = pd.DataFrame({"day": days, "x": RNG.normal(size=300)})
        density = small().fit(frame)
        scores = density.score_samples(frame)
        for text in (frame["day"].astype(str), days.map(lambda day: day.isoformat())):
            for dtype in (object, "str", "category"):
                other = frame.assign(day=pd.Series(list(text), dtype=dtype))
                assert np.array_equal(scores, density.score_samples(other))
                assert np.array_equal(density.row_origin(frame), density.row_origin(other))
                cdf = density.conditional_cdf(frame.head(5), "x")
                assert np.array_equal(cdf, density.conditional_cdf(other.head(5), "x"))


def test_dates_and_times_in_one_column_of_strings_are_recognised():
    """pandas would infer the format from the first string, and miss the others."""
    times = pd.Series(pd.date_range("2023-01-01", periods=300, freq="6h"))
    frame = pd.DataFrame({"time": times, "x": RNG.normal(size=300)})
    density = small().fit(frame)
    other = frame.assign(time=[str(time).removesuffix(" 00:00:00") for time in times])
    assert (density.row_origin(other) == density.row_origin(frame)).all()


@pytest.mark.parametrize("wrong", ["yesterday", "2021-13-45", "2021-01-01 25:00", "05/31/2024", ""])
def test_strings_that_are_no_datetimes(wrong):
    """The error is elflow's own, without the advice of pandas about its arguments."""
    column = Column.fit(pd.Series(pd.date_range("2023-01-01", periods=30), name="day"))
    with pytest.raises(ValueError, match="column 'day' must hold datetimes, or strings in ISO format like") as caught:
        column.encode(pd.Series(["2023-01-02", wrong]))
    assert str(caught.value).endswith(f"got {wrong!r} in row 1")


def test_strings_with_and_without_offset():
    column = Column.fit(pd.Series(pd.date_range("2023-01-01", periods=30, tz="Europe/Berlin"), name="day"))
    for texts in (["2023-01-02", "2023-01-02T00:00Z"], ["2023-01-02T00:00+01:00", "2023-01-02"]):
        with pytest.raises(ValueError, match="that all have an offset from UTC or all have none, got '2023"):
            column.encode(pd.Series(texts))


def test_the_range_of_datetimes_is_in_local_time():
    hours = pd.Series(pd.date_range("2024-03-01", "2024-07-01", freq="h", tz="Europe/Berlin"), name="hour")
    for values in (hours, hours[hours.dt.hour == 0]):
        assert Column.fit(values).describe()["values"] == "2024-03-01 to 2024-07-01 Europe/Berlin"
    assert Column.fit(hours.dt.tz_localize(None)).describe()["values"] == "2024-03-01 to 2024-07-01"


def test_quantiles_of_categories_without_an_order():
    texts = RNG.choice(["b", "a", "c"], 60)
    frame = pd.DataFrame({"text": texts, "code": RNG.choice([7, 5, 9], 60), "x": RNG.normal(size=60)})
    frame["size"] = pd.Categorical(RNG.permutation(texts), ["b", "a", "c"], ordered=True)
    frame["level"] = RNG.choice([1.5, 2.25], 60)
    density = small(columns={"code": "category"}).fit(frame)
    some = frame.head(3)
    for name in ("text", "code"):
        with pytest.warns(UserWarning, match=f"column '{name}' has categories without an order: its quantiles depend"):
            values = density.conditional_quantile(some, name, 0.5)
        assert set(values) <= set(frame[name])
    for name in ("size", "level", "x"):  # a warning would be an error
        assert len(density.conditional_quantile(some, name, 0.5)) == 3


def test_masked_arrays_and_tensors():
    x = RNG.normal(size=(60, 2))
    masked = np.ma.array(x, mask=RNG.random((60, 2)) < 0.2)
    holes = masked.filled(np.nan)
    density = small(missing="model").fit(masked)
    assert np.array_equal(density.score_samples(masked), small(missing="model").fit(holes).score_samples(holes))
    with pytest.raises(ValueError, match="NaN"):
        small().fit(masked)
    tensor = torch.from_numpy(x).requires_grad_()
    assert np.array_equal(small().fit(tensor).score_samples(tensor), small().fit(x).score_samples(x))


def test_huge_integers_have_a_clear_error():
    frame = pd.DataFrame({"n": pd.Series([10**30 + i for i in range(40)], dtype=object)})
    with pytest.raises(
        ValueError, match=r"column 'n' must hold integers that fit into 64 bits, got 10000.*\.astype\(float\)"
    ):
        Schema.fit(frame)


def test_five_rows_have_moderate_scores():
    frame = pd.DataFrame({"x": [1.234567, 2.1, 2.9, 4.2, 5.3], "y": [0.1, 0.7, 0.3, 0.9, 0.2]})
    scores = small().fit(frame).score_samples(frame)
    assert (np.abs(scores) < 50).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column 'b' is a linear function of 'a'")
def test_a_member_that_overflows_is_left_out():
    """A flow of exactly collinear columns without a linear layer diverges: others go on, or a warning says so."""
    rng = np.random.default_rng(1)
    a = rng.gamma(3, 2, 1400)
    frame = pd.DataFrame({"a": a, "b": 2 * a, "c": rng.normal(size=1400), "d": rng.normal(size=1400).clip(-1, 1)})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        density = FlowDensity(random_state=1, max_steps=60).fit(frame)
    is_gaussian = [name for name, _ in density.members_] == ["gaussian"]
    assert any("the flows were left out" in str(one.message) for one in caught) == is_gaussian
    assert any("the flows were left out" in text for text in density.warnings_) == is_gaussian
    assert density.training_.stopped == "max_steps"
    assert np.isfinite(density.score_samples(frame)).all()
    drawn = density.sample(500, random_state=0)
    assert np.abs(drawn["b"] - 2 * drawn["a"]).max() < 0.1
