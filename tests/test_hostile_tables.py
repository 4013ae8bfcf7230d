"""Hostile tables: a clear error, or finite scores and valid samples. `python tests/_hostile.py` tries thousands."""

import datetime
import decimal
import warnings

import numpy as np
import pandas as pd
import pytest
from _command import QUICK, run, succeeds
from _hostile import attack, check_columns, make_table

import elflow
from elflow.tabular import Column, Schema


@pytest.fixture(autouse=True)
def _ignore_advice():
    """Warnings about columns are advice; all others are errors."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        yield


def test_columns():
    outcomes = [check_columns(make_table(seed), ["error", "model"][seed % 2]) for seed in range(60)]
    assert set(outcomes) == {"refused", "fitted"}


@pytest.mark.slow
def test_fits():
    outcomes = [attack(make_table(seed), "model", seed) for seed in range(500, 505)]
    assert set(outcomes) == {"refused", "fitted"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 12])
def test_commands(tmp_path, seed):
    """No command has an internal error."""
    frame = make_table(seed)[:50]
    frame.columns = [str(name) for name in frame.columns]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        frame.to_csv(tmp_path / "data.csv", index=False)
    code, _, err = run("fit", tmp_path / "data.csv", "-o", tmp_path / "m.elf", "--missing", "model", *QUICK)
    assert code in (0, 2), err
    if code:
        return
    for command in (
        ["score", tmp_path / "m.elf", tmp_path / "data.csv", "-o", tmp_path / "scores.csv"],
        ["sample", tmp_path / "m.elf", "-n", 20, "-o", tmp_path / "new.csv"],
        ["info", tmp_path / "m.elf"],
        ["report", tmp_path / "m.elf", tmp_path / "data.csv", "-o", tmp_path / "r.html"],
    ):
        code, _, err = run(*command)
        assert code in (0, 2), err


RNG = np.random.default_rng(0)
SEVERAL = "must hold numbers, text, booleans or times, got "


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (RNG.uniform(0.5, 1, 120) * 1.7e308, r"must hold numbers up to 1e\+300 in absolute value, got 1\.\d+e\+308"),
        ([-1.7e308, 1.7e308] * 60, r"must hold numbers up to 1e\+300 in absolute value, got -1\.7e\+308"),
        ([10**30] * 100, "must hold integers that fit into 64 bits, got 1000000"),
        ([decimal.Decimal("sNaN")] * 100, "must hold numbers, got a signalling NaN"),
        ([[1, 2]] * 100, f"{SEVERAL}list"),
        ([{"a": 1}] * 100, f"{SEVERAL}dict"),
        ([np.zeros(2)] * 100, f"{SEVERAL}ndarray"),
        ([b"x", b"y"] * 50, f"{SEVERAL}bytes"),
        ([datetime.timedelta(1)] * 100, "must hold floats, integers, booleans, categories, strings or datetimes, got"),
        (pd.Series(["\ud800", "b"] * 50, dtype=object), "must hold text that UTF-8 can encode"),
        (np.full(100, "1e400", np.longdouble), "must hold numbers that fit into 64 bits, got float128|must be finite"),
        (
            [pd.Timestamp("2020-01-01", tz=zone) for zone in ("UTC", None)] * 50,
            "must hold times of one time zone, or all without one",
        ),
    ],
)
def test_values_that_cannot_be_modelled(values, message):
    frame = pd.DataFrame({"bad": pd.Series(values), "good": np.arange(len(values)) % 7})
    with pytest.raises(ValueError, match=f"column 'bad' {message}"):
        elflow.FlowDensity().fit(frame)
    if isinstance(values, list) and not isinstance(values[0], float):
        schema = Schema.fit(pd.DataFrame({"bad": RNG.normal(size=100)}))
        with pytest.raises(ValueError, match="column 'bad' must"):
            schema.encode(frame)


@pytest.mark.parametrize("name", ["self", "index", "columns", "", "\n"])
def test_names_of_arguments(name):
    times = pd.Timestamp("2020-01-01") + pd.to_timedelta(RNG.integers(0, 99, 100), "D")
    schema = Schema.fit(pd.DataFrame({name: times}))
    assert schema.decode(np.zeros((3, 1))).columns.tolist() == [name]
    assert schema.encode(pd.DataFrame({name: times})).low.shape == (100, 1)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (RNG.integers(0, 101, 3000), "int64"),
        (RNG.integers(0, 2**16, 3000), "uint16"),
        (RNG.integers(10**6, 2 * 10**6, 3000), "int64"),
    ],
)
def test_sampled_integers_are_in_the_range_of_the_data(values, dtype):
    """Hard ends are beyond the data by the mean distance of the rows next to them."""
    column = Column.fit(pd.Series(values, name="n").astype(dtype))
    sampled = column.decode(np.array([-1e3, -9.0, 9.0, 1e3]))
    assert sampled.dtype == dtype
    assert sampled.is_monotonic_increasing
    spacing = np.ptp(values) / len(values)
    assert (sampled[:2] == sampled[0]).all()
    assert (sampled[2:] == sampled[3]).all()
    assert 0 <= values.min() - sampled[0] <= 3 * spacing
    assert 0 <= sampled[3] - values.max() <= 3 * spacing


def test_sampled_integers_fit_into_their_dtype():
    """Integers without hard ends may be sampled beyond the range of the data."""
    column = Column.fit(pd.Series(RNG.normal(100, 9, 3000).round().clip(-128, 127), name="n").astype("int8"))
    sampled = column.decode(np.array([-1e3, -9.0, 9.0, 1e3]))
    assert sampled.dtype == "int8"
    assert sampled.between(0, 127).all()
    assert sampled.is_monotonic_increasing


def test_rows_of_warnings_are_counted_over_blocks(tmp_path, monkeypatch):
    """They are those of the file, not those of a block."""
    frame = pd.DataFrame({"a": np.random.default_rng(0).uniform(size=200)})
    frame.to_csv(tmp_path / "data.csv", index=False)
    succeeds("fit", tmp_path / "data.csv", "-o", tmp_path / "m.elf", "--bounds", "a=0:1", "-q", *QUICK)
    frame.loc[130, "a"] = 7.0
    frame.to_csv(tmp_path / "data.csv", index=False)
    monkeypatch.setattr("elflow.cli.tables.SCORE_BLOCK", 50)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        out, err = succeeds("score", tmp_path / "m.elf", tmp_path / "data.csv")
    assert "first 7 in row 131:" in err
    assert "the first is row 131" in out.replace("\n", " ")
    density = elflow.load(tmp_path / "m.elf")
    monkeypatch.setattr("elflow.tabular._inputs.MAX_ENCODED_ROWS", 50)

    def score_strictly():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            density.score_samples(frame)

    for _ in range(2):  # a warning that is an error leaves no count behind
        with pytest.raises(UserWarning, match="first 7 in row 130:"):
            score_strictly()
    with pytest.warns(UserWarning, match="first 7 in row 130:"):
        density.score_samples(frame)
