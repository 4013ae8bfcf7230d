"""The commands `impute` and `conditional`, and conditions and reasons in `sample` and `score`."""

import numpy as np
import pandas as pd
import pytest
from _command import fails, succeeds, table

import elflow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With data.csv, holes.csv and a model."""
    folder = tmp_path_factory.mktemp("questions")
    frame = table()
    frame.to_csv(folder / "data.csv", index=False)
    holes = frame.head(30).astype(object)
    holes = holes.mask(np.random.default_rng(0).random(holes.shape) < 0.3)
    holes.assign(id=range(30)).to_csv(folder / "holes.csv", index=False)
    small = {"flow_options": {"transforms": 1, "units": 4, "hidden_features": (8,)}, "max_steps": 5, "random_state": 0}
    elflow.FlowDensity(**small).fit(frame).save(folder / "model.elf")
    return folder


def test_sample_given_conditions(folder):
    path = folder / "new.csv"
    options = ["--given", "kind=a,c", "--given", "size=0.5..2", "--given", "ok=true", "--given", "day=2024-02-01.."]
    succeeds("sample", folder / "model.elf", "-n", 50, "-o", path, "--seed", 3, *options)
    rows = pd.read_csv(path, parse_dates=["day"])
    assert len(rows) == 50
    assert rows["kind"].isin(["a", "c"]).all()
    assert rows["size"].between(0.5, 2).all()
    assert rows["ok"].all()
    assert (rows["day"] >= "2024-02-01").all()
    given = {"kind": ["a", "c"], "size": (0.5, 2.0), "ok": True, "day": ("2024-02-01", None)}
    expected = elflow.load(folder / "model.elf").sample(50, given=given, random_state=3)
    assert np.allclose(expected["size"], rows["size"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nope=1", "--given must be COLUMN=CONDITION"),
        ("kind", "--given must be COLUMN=CONDITION"),
        ("kind=z", "known values of 'kind'"),
        ("size=big", "numbers for 'size', got 'big'"),
        ("size=", "error: --given must not ask for missing values of 'size'"),
        ("size=3..2", "low <= high"),
    ],
)
def test_wrong_conditions(folder, text, message):
    assert message in fails("sample", folder / "model.elf", "-o", folder / "x.csv", "--given", text)
    assert not (folder / "x.csv").exists()


def test_impute(folder):
    succeeds("impute", folder / "model.elf", folder / "holes.csv", "-o", folder / "full.csv")
    holes, full = pd.read_csv(folder / "holes.csv"), pd.read_csv(folder / "full.csv")
    assert not full.isna().any().any()
    assert full["id"].tolist() == list(range(30))
    is_known = holes["size"].notna()
    assert np.allclose(full["size"][is_known], holes["size"][is_known])
    succeeds("impute", folder / "model.elf", folder / "holes.csv", "-o", folder / "draws.parquet", "--draws", 2)
    draws = pd.read_parquet(folder / "draws.parquet")
    assert draws["draw"].tolist() == [0] * 30 + [1] * 30
    line = fails(
        *("impute", folder / "model.elf", folder / "holes.csv", "-o", folder / "no.csv"),
        *("--draws", 2, "--method", "mode"),
    )
    assert "--draws must be 1" in line


def test_conditional(folder):
    path = folder / "q.csv"
    options = ["--column", "size", "--quantiles", "0.05,0.5,0.95", "--cdf"]
    succeeds("conditional", folder / "model.elf", folder / "data.csv", *options, "-o", path, "--append")
    rows = pd.read_csv(path)
    assert (rows["q0.05"] < rows["q0.95"]).all()
    assert ((rows["size"] < rows["q0.5"]) == (rows["cdf"] < 0.5)).mean() > 0.98
    # Missing cells are integrated out.
    options = ["--column", "kind", "--proba"]
    succeeds("conditional", folder / "model.elf", folder / "holes.csv", *options, "-o", path)
    rows = pd.read_csv(path)
    assert rows.columns.tolist() == [
        f"p_{level}" for level in elflow.load(folder / "model.elf").schema_.column("kind").levels
    ]
    assert rows.sum(axis=1).to_numpy() == pytest.approx(1)
    succeeds(
        *("conditional", folder / "model.elf", folder / "data.csv", "--column", "size", "--quantiles", "0.5"),
        *("--given", "kind,ok", "-o", path),
    )
    assert len(pd.read_csv(path)) == 300


def test_wrong_questions(folder):
    same = ["conditional", folder / "model.elf", folder / "data.csv", "-o", folder / "no.csv", "--column"]
    assert "--quantiles, --cdf or --proba" in fails(*same, "size")
    assert "--column must be one of" in fails(*same, "nope", "--cdf")
    assert "probabilities in (0, 1)" in fails(*same, "size", "--quantiles", "5")
    assert "--quantiles must be different" in fails(*same, "size", "--quantiles", "0.5,0.50")
    assert "--given must have other columns" in fails(*same, "size", "--cdf", "--given", "size")


def test_score_with_reasons(folder):
    path = folder / "scores.csv"
    succeeds("score", folder / "model.elf", folder / "data.csv", "-o", path, "--explain")
    rows = pd.read_csv(path)
    assert rows["odd_column"].isin(table().columns).all()
    assert rows["odd_tail_probability"].between(0, 1).all()
    assert "--explain must have a file" in fails("score", folder / "model.elf", folder / "data.csv", "--explain")
