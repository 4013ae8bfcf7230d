"""The command line and bad input: one clear line and exit code 2, or a sensible result, and never a traceback."""

import os

import numpy as np
import pandas as pd
import pytest
from _command import QUICK, fails, run, succeeds, table

import elflow
from elflow.cli import main
from elflow.cli._terminal import format_error
from elflow.io.tables import read_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With data.csv and the model of it."""
    folder = tmp_path_factory.mktemp("cli")
    table().to_csv(folder / "data.csv", index=False)
    succeeds("fit", folder / "data.csv", "-o", folder / "model.elf", *QUICK, "--quiet")
    return folder


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "data.csv is empty"),
        ("a,b\n", "data.csv has a header but no rows"),
        ("a,b\n1,2\n", "at least 5 rows"),
        ("a,b,a\n1,2,3\n", "data.csv must name each column once, got 'a' several times"),
        ("a,b\n1,2\n3\n", "data.csv must have 2 values in each row"),
        ("a,b\n" + "1,2\n3,inf\n" * 9, "column 'b' must be finite, got 9 infinite values"),
        (
            "a,b\n" + "1.5,\n3,2\n" * 9,
            "missing values (NaN), got some in 'b' (9): fill them in or drop "
            "them, or model them with missing='model' (--missing model)",
        ),
        ("a,b\n" + "1.5,\n3,\n" * 9, "got some in 'b' (18)"),
    ],
)
def test_data_that_cannot_be_fitted(write, tmp_path, content, message):
    assert message in fails("fit", write(content), "-o", tmp_path / "m.elf", *QUICK)
    assert os.listdir(tmp_path) == ["data.csv"]


def unusual():
    rng = np.random.default_rng(0)
    normal = rng.normal(size=200)
    with_outlier = np.append(normal[1:], 1e12)
    return {
        "one column": pd.DataFrame({"a": normal}),
        "a constant column": pd.DataFrame({"a": normal, "b": 3.25}),
        "constant columns only": pd.DataFrame({"a": ["x"] * 200, "b": 7}),
        "outliers": pd.DataFrame({"a": with_outlier, "b": -with_outlier}),
        "numbers in text": pd.DataFrame({"a": [*map(str, normal[1:]), "unknown"], "b": normal}),
        "5 rows": pd.DataFrame({"a": normal[:5], "b": normal[5:10]}),
        "10,000 categories": pd.DataFrame({"a": [f"c{i}" for i in range(10_000)], "b": rng.normal(size=10_000)}),
    }


def test_unique_text_is_left_out(write, tmp_path):
    _, err = succeeds("fit", write(unusual()["numbers in text"]), "-o", tmp_path / "m.elf", *QUICK)
    words = " ".join(err.split())
    assert "column 'a' is left out, since most values are unique" in words
    assert (
        "Column 'a' holds numbers as text, but for values such as 'unknown': make these missing (--na unknown)" in words
    )
    succeeds("sample", tmp_path / "m.elf", "-n", 20, "-o", tmp_path / "new.csv")
    assert list(read_table(tmp_path / "new.csv")) == ["b"]


@pytest.mark.slow
@pytest.mark.parametrize("name", unusual())
def test_unusual_tables_have_sensible_results(write, tmp_path, name):
    frame = unusual()[name]
    kinds = ["--kind", "a=category"] if name in ("numbers in text", "10,000 categories") else []
    succeeds("fit", write(frame), "-o", tmp_path / "m.elf", *QUICK, *kinds, "-q")
    succeeds("score", tmp_path / "m.elf", write(frame[:200]), "-o", tmp_path / "s.csv")
    assert np.isfinite(read_table(tmp_path / "s.csv")["log_density"]).all()
    succeeds("sample", tmp_path / "m.elf", "-n", 20, "-o", tmp_path / "new.csv")
    new = read_table(tmp_path / "new.csv")
    assert list(new) == list(frame)
    if name == "a constant column":
        assert (new["b"] == 3.25).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns=["size", "ok"]), "data.csv must have the columns 'size', 'ok', got 'count'"),
        (lambda f: f.assign(size=["much", *f["size"][1:].astype(str)]), "column 'size' must hold numbers, as in the "
         "model, got 'much' in row 1"),
        (lambda f: f.assign(count=[*f["count"][1:].astype(str), "2.5"]), "column 'count' must hold whole numbers, as "
         "in the model, got '2.5' in row 300"),
        (lambda f: f.assign(size=[*f["size"][1:], np.inf]), "column 'size' must be finite"),
        (lambda f: f.assign(size=[*f["size"][1:], None], ok=[*f["ok"][1:], None]), "got some in 'size' (1), 'ok' (1)"),
        (lambda f: f.assign(day="yesterday"), "column 'day' must hold dates or times"),
        (lambda f: f[:0], "has a header but no rows"),
    ],
)  # fmt: skip
def test_data_that_cannot_be_scored(folder, write, tmp_path, change, message):
    data = write(change(table()))
    assert message in fails("score", folder / "model.elf", data, "-o", tmp_path / "s.parquet")
    assert os.listdir(tmp_path) == ["data.csv"]


def test_columns_in_another_order_and_more_of_them(folder, write):
    frame = table()
    expected, _ = succeeds("score", folder / "model.elf", folder / "data.csv")
    data = write(frame[frame.columns[::-1]].assign(more=1, others="x"))
    out, err = succeeds("score", folder / "model.elf", data)
    assert out == expected
    assert err.count("\n") == 1
    assert f"ignoring 2 columns of {data} that are not in the model: 'more', 'others'" in err


def test_categories_that_were_never_seen(folder, write):
    succeeds("score", folder / "model.elf", write(table().assign(kind="new")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit"], "Missing argument 'DATA'"),
        (["fit", "DATA"], "Missing option '--output'"),
        (["fot"], "No such command 'fot'"),
        (["fit", "nothing.csv", "-o", "NEW"], "DATA must be an existing file, got nothing.csv"),
        (["fit", "DATA", "-o", "DATA"], "--output must not be one of the input files"),
        (["fit", "DATA", "-o", "no/folder/m.elf"], "--output must be in an existing folder"),
        (["fit", "DATA", "-o", "FOLDER"], "--output must be a file, got the folder"),
        (["fit", "DATA", "-o", "/dev/null"], "--output must be a regular file"),
        (["fit", "DATA", "-o", "NEW", "--drop", "nix"], "--drop must name a column"),
        (["fit", "DATA", "-o", "NEW", "--context", "nix"], "--context must name a column"),
        (["fit", "DATA", "-o", "NEW", "--context", "ok", "--drop", "ok"], "must have either --drop or --context"),
        (["fit", "DATA", "-o", "NEW", "--bounds", "size=5"], "--bounds must be COL=LOW:HIGH"),
        (["fit", "DATA", "-o", "NEW", "--bounds", "size=0:1"], "column 'size' must lie within its bounds (0, 1), got"),
        (["fit", "DATA", "-o", "NEW", "--bounds", "nix=0:1"], "--bounds must name a column of"),
        (["fit", "DATA", "-o", "NEW", "--kind", "size=large"], "--kind must be COL=KIND, with a kind of ['continuous'"),
        (["fit", "DATA", "-o", "NEW", "--kind", "kind=integer"], "column 'kind' must be numeric to be declared"),
        (["fit", "DATA", "-o", "NEW", "--kind", "nix=integer"], "--kind must name a column of"),
        (["fit", "DATA", "-o", "NEW", "--kind", "size=integer", "--bounds", "size=0:"], "either --bounds or --kind"),
        (["fit", "DATA", "-o", "NEW", "--flow", "nix"], "--flow must be one of ['elf'"),
        (["fit", "DATA", "-o", "NEW", "--validation", "2"], "--validation must be a fraction in (0, 1), got 2"),
        (["fit", "DATA", "-o", "NEW", "--max-steps", "0"], "'--max-steps'"),
        (["fit", "DATA", "-o", "NEW", "--time-limit", "soon"], "--time-limit must be a duration"),
        (["fit", "DATA", "-o", "NEW", "--missing", "no"], "'--missing'"),
        (["fit", "none-*.csv", "-o", "NEW"], "DATA must be a pattern that matches files, got none-*.csv"),
        (["score", "MODEL", "nothing.csv"], "DATA must be an existing file, got nothing.csv"),
        (["score", "nothing.elf", "DATA"], "MODEL must be an existing file, got nothing.elf"),
        (["score", "DATA", "DATA"], "MODEL must be a model saved by elflow"),
        (["score", "MODEL", "DATA", "-o", "DATA"], "--output must not be one of the input files"),
        (["score", "MODEL", "DATA", "-o", "MODEL"], "--output must not be one of the input files"),
        (["sample", "MODEL", "-o", "MODEL"], "--output must not be one of the input files"),
        (["score", "MODEL", "DATA", "-o", "scores.pdf"], "has an unsupported format; supported: .csv"),
        (["score", "MODEL", "DATA", "-o", "no/scores.csv"], "--output must be in an existing folder, got no"),
        (["sample", "MODEL", "-o", "no/new.csv"], "--output must be in an existing folder, got no/new.csv"),
        (["sample", "MODEL"], "Missing option '--output'"),
        (["sample", "MODEL", "-n", "0", "-o", "new.csv"], "'-n'"),
        (["report", "MODEL", "DATA", "-o", "no/folder.html"], "--output must be in an existing folder"),
        (["report", "MODEL", "nothing.csv"], "DATA must be an existing file, got nothing.csv"),
        (["info", "nothing.elf"], "MODEL must be an existing file, got nothing.elf"),
    ],
)  # fmt: skip
def test_wrong_arguments(folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    names = {"DATA": folder / "data.csv", "MODEL": folder / "model.elf", "NEW": "m.elf", "FOLDER": folder}
    assert message in fails(*(names.get(argument, argument) for argument in arguments))
    assert os.listdir(tmp_path) == []


def test_damaged_models(folder, tmp_path):
    whole = (folder / "model.elf").read_bytes()
    for keep in [0, 100, len(whole) // 2]:
        (tmp_path / "m.elf").write_bytes(whole[:keep])
        assert "MODEL must be a model saved by elflow" in fails("score", tmp_path / "m.elf", folder / "data.csv")


def test_no_traceback_but_for_debugging(folder, monkeypatch):
    with pytest.raises(FileNotFoundError):
        main(["info", "nothing.elf", "--debug"])
    monkeypatch.setenv("ELFLOW_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        main(["info", "nothing.elf"])


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (MemoryError(), "not enough memory", 2),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "not enough memory", 2),
        (OSError(28, "No space left on device", "/x"), "/x: No space left on device", 2),
        (ValueError("two\n  lines"), "two lines", 2),
        (ValueError(), "ValueError", 2),
        (
            ZeroDivisionError("division by zero"),
            "internal error; please report it, with the output of --debug: ZeroDivisionError",
            1,
        ),
    ],
)
def test_errors_have_one_line(monkeypatch, error, line, code):
    text, found = format_error(error)
    assert text.startswith(f"elflow: error: {line}")
    assert "\n" not in text
    assert found == code

    def broken(path, device):
        raise error

    monkeypatch.setattr(elflow, "load", broken)
    assert run("info", "m.elf") == (code, "", text + "\n")
