"""Hints about columns that a density should not have: found where they are, and nowhere else."""

import warnings

import numpy as np
import pandas as pd
import pytest

from elflow import FlowDensity, load
from elflow.tabular import Schema
from elflow.tabular.columns._identifiers import is_integer_identifier, is_row_number
from elflow.tabular.hints._dependences import find_linear_dependences, find_products
from elflow.tabular.hints._functions import find_functions

N = 2000
RNG = np.random.default_rng(0)
A, B, C = RNG.normal(size=(3, N))
NET = RNG.lognormal(3, 1, N).round(2)
TAX = (NET * RNG.choice([0.07, 0.19], N)).round(2)
DAYS = pd.to_datetime("2024-01-01") + pd.to_timedelta(RNG.integers(0, 700, N), unit="D")
PRICE, ITEMS = RNG.lognormal(2, 1, N).round(2), RNG.integers(1, 9, N)
HEIGHT, WEIGHT = RNG.normal(170, 9, N).round(), RNG.normal(75, 12, N).round(1)
AGE = RNG.integers(18, 90, N)
IS_FILLED = RNG.random(N) < 0.05


def warnings_of(frame, **options):
    """Texts of the warnings about the columns of a table."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        density = FlowDensity(**options).fit_schema(frame)
    assert density.warnings_ == [str(one.message) for one in caught]
    return density.warnings_


def dependences(columns):
    frame = pd.DataFrame(columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = Schema.fit(frame, missing="model")
    numbers = [column for column in schema.columns if column.kind in ("continuous", "integer", "datetime")]
    return {one.name: one.others for one in find_linear_dependences(frame, numbers)}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"net": NET, "tax": TAX, "gross": (NET + TAX).round(2)}, {"gross": ("net", "tax")}),
        ({"net": NET, "c": C, "tax": (0.19 * NET).round(2)}, {"tax": ("net",)}),
        ({"celsius": A.round(3), "fahrenheit": (A * 1.8 + 32).round(3), "c": C}, {"fahrenheit": ("celsius",)}),
        ({"a": A, "b": B, "c": C, "sum": A + B, "difference": A - B}, {"sum": ("a", "b"), "difference": ("a", "b")}),
        ({"a": A, "c": C, "copy": A}, {"copy": ("a",)}),
        ({"a": 1e299 * A, "small": 1e-250 * A + 1}, {}),
        ({"a": 1e-300 * A, "large": 1e299 * A}, {"large": ("a",)}),
        ({"i": RNG.poisson(50, N), "j": RNG.poisson(50, N)}, {}),
        ({"a": np.where(IS_FILLED, np.nan, A), "b": B, "sum": A + B}, {"sum": ("a", "b")}),
        ({"constant": 1.5, "a": A, "twice": 2 * A}, {"twice": ("a",)}),
        ({"ordered": DAYS, "c": C, "due": DAYS + pd.Timedelta(days=30)}, {"due": ("ordered",)}),
        ({"seconds": DAYS.view("int64") // 10**9, "day": DAYS}, {"day": ("seconds",)}),
    ],
    ids=[
        "sum", "rounded product", "both are rounded", "two functions", "copy", "lost digits", "any scale",
        "independent integers", "missing values", "constant", "dates", "seconds",
    ],
)  # fmt: skip
def test_linear_functions_are_found(columns, expected):
    assert dependences(columns) == expected


@pytest.mark.parametrize(
    "columns",
    [
        {"a": A, "b": A + 1e-4 * B},
        {"a": A.round(3), "b": (A + 0.003 * B).round(3)},
        {"a": np.where(IS_FILLED, -1e9, A), "b": np.where(IS_FILLED, -1e9, B)},
        {"a": np.append(A, 1e13), "b": np.append(B, 1e13)},
        {f"is {k}": (np.arange(N) % 3 == k).astype(int) for k in range(3)},
        {f"rare {k}": np.where(np.arange(N) < 3, A + k, 0.0) for k in range(4)},
        {f"column {k}": values for k, values in enumerate(RNG.normal(size=(70, 60)))},
        {f"heavy {k}": values for k, values in enumerate(RNG.standard_cauchy((4, N)))},
        {"a": A, "square": A**2},
    ],
    ids=[
        "noise",
        "more than rounding",
        "fill values",
        "outliers",
        "indicators",
        "rare",
        "few rows",
        "heavy tails",
        "not linear",
    ],
)
def test_other_columns_are_not_taken_for_linear_functions(columns):
    assert dependences(columns) == {}


def test_wide_tables_are_searched():
    x = RNG.normal(size=(6000, 120)) @ RNG.normal(size=(120, 120))
    x[:, 50], x[:, 90] = x[:, 3] - x[:, 7], 2 * x[:, 51] + 1
    names = [f"x{k}" for k in range(120)]
    assert dependences(dict(zip(names, x.T, strict=True))) == {"x50": ("x3", "x7"), "x90": ("x51",)}


def test_row_numbers():
    assert is_row_number(pd.Series(range(100)))
    assert is_row_number(pd.Series(range(1000, 0, -10)))
    for values in (range(40), [1] * 100, [*range(99), 100], RNG.permutation(100), np.arange(100.0)):
        assert not is_row_number(pd.Series(values))
    assert not is_row_number(pd.Series([*range(99), None], dtype="Int64"))


def test_warnings_name_the_columns():
    frame = pd.DataFrame({"index": range(N), "a": A, "b": B, "sum": A + B, "unit": "kg", "year": 2024})
    numbered, constant, linear = warnings_of(frame)
    assert numbered == "column 'index' numbers the rows: drop it unless it has another meaning"
    assert constant == "columns 'unit', 'year' are constant and add nothing to the density: drop them"
    assert linear.startswith("column 'sum' is a linear function of 'a', 'b', up to rounding")
    assert warnings_of(frame[["index", "a"]], columns={"index": "integer"}) == []
    assert warnings_of(frame[["a", "b"]]) == []
    assert warnings_of(frame[["a", "unit"]]) == [
        "column 'unit' is constant and adds nothing to the density: drop it",
    ]
    holes = frame[["a", "unit"]].assign(unit=frame["unit"].where(C > 0))
    assert warnings_of(holes, missing="model") == []  # whether the unit is known is not constant
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FlowDensity().fit_schema(frame[["a"]], context=frame[["b", "sum", "unit", "index"]].assign(a=A))


def test_files_keep_the_warnings(tmp_path):
    frame = pd.DataFrame({"a": A[:60], "same": 1.0})
    with pytest.warns(UserWarning, match="column 'same' is constant"):
        density = FlowDensity(max_steps=2, random_state=0).fit(frame)
    density.save(tmp_path / "m.elf")
    assert load(tmp_path / "m.elf").warnings_ == density.warnings_


def test_small_differences_are_no_rounding():
    """Ends of intervals are nearly linear functions of their starts, but durations are information."""
    rng = np.random.default_rng(0)
    start = rng.uniform(1.4e9, 1.7e9, size=N)
    assert dependences({"start": start, "end": start + rng.exponential(600, size=N)}) == {}
    whole = rng.integers(0, 1000, size=N)
    assert dependences({"a": whole, "b": whole + rng.integers(-1, 2, size=N)}) == {}


PLAN = RNG.choice(["free", "basic", "pro"], N)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"plan": PLAN, "price": pd.Series(PLAN).map({"free": 0, "basic": 9, "pro": 29})}, {"price": ("plan",)}),
        ({"plan": PLAN, "paid": PLAN != "free"}, {"paid": ("plan",)}),
        ({"plan": PLAN, "copy": [plan.upper() for plan in PLAN]}, {"copy": ("plan",)}),
        ({"plan": PLAN, "city": RNG.choice(["x", "y"], N)}, {}),
        ({"plan": PLAN, "paid": (PLAN != "free") ^ (RNG.random(N) < 0.01)}, {}),
        ({"age": AGE, "group": pd.cut(AGE, [0, 30, 50, 70, 99]).astype(str)}, {"group": ("age",)}),
        ({"x": A, "is high": A > 1}, {"is high": ("x",)}),
        ({"x": A, "is middle": np.abs(A) < 1}, {}),
        ({"day": DAYS, "year": DAYS.year, "month": DAYS.month_name()}, {"year": ("day",), "month": ("day",)}),
        ({"day": DAYS, "weekend": DAYS.day_of_week > 4, "c": RNG.integers(0, 3, N)}, {"weekend": ("day",)}),
        # one odd row among few is no evidence
        ({"plan": PLAN[:60], "odd": np.arange(60) == 3}, {}),
    ],
)
def test_functions_of_discrete_columns(columns, expected):
    frame = pd.DataFrame(columns)
    found = find_functions(frame, Schema.fit(frame).columns)
    assert {one.name: one.others for one in found} == expected
    texts = [text for text in warnings_of(frame) if "is determined by" in text]
    assert len(texts) == len(expected)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"price": PRICE, "items": ITEMS, "total": (PRICE * ITEMS).round(2)}, {"total": ("price", "items")}),
        ({"cm": HEIGHT, "kg": WEIGHT, "bmi": (WEIGHT / (HEIGHT / 100) ** 2).round(1)}, {"bmi": ("cm", "kg")}),
        ({"cm": HEIGHT, "kg": WEIGHT, "c": np.exp(C), "bmi": WEIGHT / HEIGHT**2}, {"bmi": ("cm", "kg")}),
        ({"side": np.exp(A), "area": np.exp(2 * A)}, {"area": ("side",)}),
        ({"price": PRICE, "items": ITEMS, "total": (PRICE * ITEMS * np.exp(0.05 * A)).round(2)}, {}),
        ({"price": PRICE, "double": 2 * PRICE}, {}),
        ({f"x{k}": np.exp(RNG.normal(size=90)) for k in range(70)}, {}),
    ],
    ids=["total", "index", "exact index", "square", "noise", "linear", "few rows"],
)
def test_products(columns, expected):
    frame = pd.DataFrame(columns)
    found = find_products(frame, Schema.fit(frame).columns)
    assert {one.name: one.others for one in found} == expected


def test_integers_that_identify_rows():
    rng = np.random.default_rng(0)
    large = rng.integers(10**9, 10**10, N)
    increasing = 10_000 + np.cumsum(rng.integers(1, 6, N))
    for values in (rng.permutation(N), increasing, rng.permutation(increasing)):
        assert is_integer_identifier(pd.Series(values, name="number"))
    for name in ("id", "customer_id", "userId", "orderID", "KEY", "row id"):
        assert is_integer_identifier(pd.Series(large, name=name)), name
    # Measurements are different by chance if they are far apart, and ranks of few rows prove nothing.
    for name in ("income", "paid", "humidity", "Identity", "monkey"):
        assert not is_integer_identifier(pd.Series(large, name=name)), name
    assert not is_integer_identifier(pd.Series(rng.permutation(40)))
    assert not is_integer_identifier(pd.Series(rng.lognormal(10, 1, N).astype(int), name="id"))  # some coincide
    frame = pd.DataFrame({"customer": rng.permutation(N), "a": A})
    (text,) = warnings_of(frame)
    assert "--drop customer" in text
    assert "columns={'customer': 'integer'}" in text
    assert warnings_of(frame, columns={"customer": "integer"}) == []


def test_cycles_of_times():
    rng = np.random.default_rng(0)
    noon = DAYS + pd.Timedelta(hours=12)
    any_time = DAYS + pd.to_timedelta(rng.integers(0, 86_400, N), unit="s")
    opening = pd.DatetimeIndex(np.where((any_time.hour >= 8) & (any_time.hour < 20), any_time, noon))
    workdays = DAYS[DAYS.day_of_week < 5]
    cases = [
        (DAYS, []),
        (any_time, []),
        (opening, ["hour"]),
        (workdays, ["day"]),
        (opening.tz_localize("Asia/Tokyo"), ["hour"]),
    ]
    for times, cycles in cases:
        texts = warnings_of(pd.DataFrame({"when": times, "a": A[: len(times)]}))
        assert len(texts) == len(cycles)
        assert all(f"'when' depends on the {cycle} of the" in text for cycle, text in zip(cycles, texts, strict=True))
    few_days = pd.to_datetime("2024-01-01 08:00") + pd.to_timedelta(rng.integers(0, 50, N), unit="h")
    assert warnings_of(pd.DataFrame({"when": few_days, "a": A})) == []
    with pytest.raises(ValueError, match=r"convert it with .dt.total_seconds\(\)"):
        FlowDensity().fit_schema(pd.DataFrame({"stay": DAYS - DAYS[0], "a": A}))


def test_products_of_a_few_prices_are_found():
    """Eight prices are categories; the warning said that the total determines them, and to drop the price."""
    price = RNG.choice([4.99, 9.99, 19.99, 29.5, 49.0, 99.99, 100.0, 250.0], N)
    frame = pd.DataFrame({"price": price, "items": ITEMS, "total": (price * ITEMS).round(2)})
    (text,) = warnings_of(frame)
    assert text.startswith("column 'total' is a product of powers of 'price', 'items'")


def test_spellings_of_categories_are_named():
    frame = pd.DataFrame({"sex": RNG.choice(["m", "f", "M", " f", "x y"], N), "x": A})
    (text,) = warnings_of(frame)
    assert text.startswith("column 'sex' has categories that differ only in case or white space: ")
    assert {"'m'", "'M'", "'f'", "' f'"} == set(text.split(": ")[1].split(". ")[0].replace("; ", ", ").split(", "))
    assert warnings_of(frame.assign(sex=RNG.choice(["a b", "ab", "c"], N))) == []
