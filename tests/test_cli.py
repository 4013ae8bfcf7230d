"""The command line: what it does, and what it says."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from _command import QUICK, fails, run, succeeds, table

import elflow
from elflow.cli import _sample, _score, main
from elflow.cli._options import column_options, seconds
from elflow.io.tables import read_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With data.csv and the model of it, and one with a context."""
    folder = tmp_path_factory.mktemp("cli")
    table().to_csv(folder / "data.csv", index=False)
    succeeds("fit", folder / "data.csv", "-o", folder / "model.elf", *QUICK, "--quiet")
    options = ["--context", "kind", "--context", "count", "--drop", "ok", "--drop", "day"]
    succeeds("fit", folder / "data.csv", "-o", folder / "given.elf", *QUICK, *options, "--quiet")
    return folder


def test_fit_says_what_it_found_and_how_it_went(write, tmp_path):
    out, err = succeeds("fit", write(table()), "-o", tmp_path / "m.elf", *QUICK, "--bounds", "size=0:")
    for words in ["300", "category", "3: ", "2024-01-01 to 2024-10-", "at least 0", "held-out likelihood", "all steps"]:
        assert words in out
    assert not err
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "m.elf"]


def test_quiet(write, tmp_path):
    assert succeeds("fit", write(table()), "-o", tmp_path / "m.elf", *QUICK, "-q") == ("", "")


def test_fit_equals_the_estimator(folder):
    frame = read_table(folder / "data.csv")
    direct = elflow.tabular.estimator.FlowDensity(max_steps=10, random_state=0).fit(frame)
    loaded = elflow.load(folder / "model.elf")
    np.testing.assert_array_equal(loaded.score_samples(frame), direct.score_samples(frame))


def test_score(folder, tmp_path):
    out, _ = succeeds("score", folder / "model.elf", folder / "data.csv", "-o", tmp_path / "s.parquet")
    scores = pd.read_parquet(tmp_path / "s.parquet")
    expected = elflow.load(folder / "model.elf").score_samples(read_table(folder / "data.csv"))
    assert list(scores) == ["log_density"]
    np.testing.assert_array_equal(scores["log_density"], expected)
    error = expected.std(ddof=1) / len(expected) ** 0.5
    assert f"{expected.mean():.4f} +- {error:.4f} nats" in out


def test_score_in_blocks(folder, tmp_path, monkeypatch):
    whole, _ = succeeds("score", folder / "model.elf", folder / "data.csv")
    monkeypatch.setattr(_score, "BLOCK", 70)
    arguments = ["score", folder / "model.elf", folder / "data.csv", "-o", tmp_path / "s.csv", "--anomaly", "--append"]
    out, _ = succeeds(*arguments)
    assert whole.splitlines()[1].strip() == out.splitlines()[1].strip()
    scores = read_table(tmp_path / "s.csv")
    assert list(scores) == [*table().columns, "log_density", "anomaly_score"]
    assert scores["anomaly_score"].between(0, 100).all()
    pd.testing.assert_frame_equal(scores[table().columns], read_table(folder / "data.csv"))
    assert "must not have a column 'log_density' already" in fails(
        "score", folder / "model.elf", tmp_path / "s.csv", "-o", tmp_path / "t.csv", "--append"
    )


def test_score_given_a_context(folder):
    est = elflow.load(folder / "given.elf")
    frame = read_table(folder / "data.csv")
    mean = est.score(frame[["size"]], context=frame[["kind", "count"]])
    out, err = succeeds("score", folder / "given.elf", folder / "data.csv")
    assert f"{mean:.4f}" in out
    assert "2 columns that the model does not have: 'day', 'ok'" in err


def test_impossible_rows(folder, write):
    frame = table().assign(size=-1.0)
    out, _ = succeeds("score", folder / "model.elf", write(frame))
    assert "-inf nats" in out or "+-" in out


def test_sample(folder, tmp_path, monkeypatch):
    succeeds("sample", folder / "model.elf", "-n", 50, "-o", tmp_path / "a.csv", "--seed", 3)
    succeeds("sample", folder / "model.elf", "-n", 50, "-o", tmp_path / "b.csv", "--seed", 3)
    succeeds("sample", folder / "model.elf", "-n", 50, "-o", tmp_path / "c.csv", "--seed", 4)
    a, b, c = ((tmp_path / f"{name}.csv").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    frame = read_table(tmp_path / "a.csv")
    pd.testing.assert_series_equal(frame.dtypes, read_table(folder / "data.csv").dtypes)
    expected = elflow.load(folder / "model.elf").sample(50, random_state=3)
    pd.testing.assert_frame_equal(frame, expected, check_exact=True)
    monkeypatch.setattr(_sample, "BLOCK", 20)
    out, _ = succeeds("sample", folder / "model.elf", "-n", 50, "-o", tmp_path / "d.parquet")
    blocks = pd.read_parquet(tmp_path / "d.parquet")
    assert len(blocks.drop_duplicates()) == 50
    assert "50" in out


def test_sample_given_contexts(folder, write, tmp_path, monkeypatch):
    contexts = write("count,kind\n3,b\n0,a\n", "contexts.csv")
    options = ["sample", folder / "given.elf", "--context", contexts, "-o", tmp_path / "new.csv", "-n"]
    succeeds(*options, 3)
    new = read_table(tmp_path / "new.csv")
    assert list(new) == ["size", "kind", "count"]
    assert new["kind"].to_list() == ["b"] * 3 + ["a"] * 3
    monkeypatch.setattr(_sample, "BLOCK", 4)
    succeeds(*options, 10)  # more for each context than a block holds
    new = read_table(tmp_path / "new.csv")
    assert new["count"].to_list() == [3] * 10 + [0] * 10
    assert "has a context" in fails("sample", folder / "given.elf", "-o", tmp_path / "n.csv")
    assert "has no context" in fails("sample", folder / "model.elf", "-o", tmp_path / "n.csv", "--context", contexts)


def test_standard_output_has_results_only(folder):
    out, err = succeeds("sample", folder / "model.elf", "-n", 5, "-o", "-")
    assert len(pd.read_csv(io.StringIO(out))) == 5
    assert "rows" in err
    out, err = succeeds("score", folder / "model.elf", folder / "data.csv", "-o", "-")
    assert len(pd.read_csv(io.StringIO(out))) == 300
    assert "mean log-density" in err


def test_info(folder, tmp_path):
    out, _ = succeeds("info", folder / "given.elf")
    for words in ["elf", "300 rows", "10 steps", "best held-out bound", "3: ", "context", "modelled"]:
        assert words in out
    facts = json.loads(succeeds("info", folder / "model.elf", "--json")[0])
    kinds = [column["kind"] for column in facts["columns"]]
    assert kinds == ["continuous", "integer", "category", "datetime", "boolean"]
    assert facts["rows"] == 300
    assert facts["history"]["steps"] == 10
    elflow.save(elflow.ELF(3, 2), tmp_path / "flow.elf")
    assert json.loads(succeeds("info", tmp_path / "flow.elf", "--json")[0])["features"] == 3
    assert "features" in succeeds("info", tmp_path / "flow.elf")[0]
    assert "got a flow without columns" in fails("score", tmp_path / "flow.elf", folder / "data.csv")


def test_report(folder, tmp_path):
    out, _ = succeeds("report", folder / "given.elf", folder / "data.csv", "-o", tmp_path / "r.html")
    assert "Held-out log-likelihood" in out
    assert "Two-sample test" in out
    page = (tmp_path / "r.html").read_text()
    assert "did choose when the training" in " ".join(page.split())  # known to be the very table
    assert page.rstrip().endswith("</html>")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_a_table_nobody_has_seen(write, tmp_path, separator):
    """Decimal commas, question marks, dates, an index, blanks and words outside of ASCII."""
    rng = np.random.default_rng(1)
    lines = [separator.join(["", "größe", "wann", "wer", "n"])]
    for i in range(60):
        size = f"{rng.normal():.5f}".replace(".", ",")
        who = rng.choice(["Jürgen ", "Ana", "?"])
        lines.append(separator.join([str(i), size, f"2024-01-{i % 28 + 1:02}", who, str(i % 5) if i % 7 else "?"]))
    data = write("\n".join(lines))
    arguments = ["--na", "?", "--missing", "model", "--drop", "Unnamed: 0"]
    succeeds("fit", data, "-o", tmp_path / "m.elf", *QUICK, *arguments)
    succeeds("score", tmp_path / "m.elf", data, "-o", tmp_path / "s.csv", "--na", "?")
    succeeds("sample", tmp_path / "m.elf", "-n", 30, "-o", tmp_path / "new.csv")
    new = read_table(tmp_path / "new.csv")
    assert set(new["wer"].dropna()) <= {"Jürgen", "Ana"}
    assert set(new["n"].dropna()) <= set(range(5))


# Durations, bounds, kinds, help


@pytest.mark.parametrize("text", ["", "m", "10x", "1m30", "-5s", "0", "1 h"])
def test_durations_that_are_none(text):
    with pytest.raises(ValueError, match="--time-limit must be a duration"):
        seconds(text)


def test_columns_of_options():
    found = column_options(["a=b=:5", "c=-1e3:2"], ["d=category"])
    assert found == {"a=b": (None, 5), "c": (-1000, 2), "d": "category"}


@pytest.mark.parametrize(
    ("bounds", "kinds"),
    [(["a"], []), (["a=:"], []), (["a=x:1"], []), (["=0:1"], []), ([], ["a"]), ([], ["a="]), (["a=0:"], ["a=integer"])],
)
def test_options_that_are_none(bounds, kinds):
    with pytest.raises(ValueError, match="must"):
        column_options(bounds, kinds)


def test_a_column_that_counts_rows(write, tmp_path):
    frame = table(30).reset_index()
    _, err = succeeds("fit", write(frame), "-o", tmp_path / "m.elf", *QUICK, "-q")
    assert err == "elflow: column 'index' counts the rows: leave it out with --drop 'index' if it says nothing else\n"


def test_other_flows(write, tmp_path):
    data = write(table(50))
    succeeds("fit", data, "-o", tmp_path / "m.elf", *QUICK, "--flow", "maf", "--dequantization", "variational", "-q")
    assert json.loads(succeeds("info", tmp_path / "m.elf", "--json")[0])["flow"] == "maf"


def test_time_limit_threads_and_log(write, tmp_path):
    threads = torch.get_num_threads()
    options = ["--time-limit", "1s", "--threads", "1", "--log", tmp_path / "log", "--seed", "5"]
    out, _ = succeeds("fit", write(table()), "-o", tmp_path / "m.elf", *options)
    torch.set_num_threads(threads)
    assert "the time was up" in out or "all steps" in out or "no more" in out
    assert list((tmp_path / "log").rglob("*.csv"))


def test_help_has_examples():
    assert run()[1] == run("--help")[1]
    assert "elflow fit data.csv -o model.elf" in run()[1]
    for command in ["fit", "score", "sample", "report", "info"]:
        out, _ = succeeds(command, "--help")
        assert f"elflow {command} " in out.replace("\n", " ").split("Usage")[1][40:]
    assert run("--version")[1] == f"elflow {elflow.__version__}\n"


def test_nobody_reads_any_more(folder, monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["sample", str(folder / "model.elf"), "-n", "5000", "-o", "-"]) == 141
        monkeypatch.undo()
    assert "Traceback" not in capfd.readouterr().err


def test_as_a_module_without_waiting_for_what_it_does_not_need():
    command = [sys.executable, "-X", "importtime", "-m", "elflow", "--version"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == f"elflow {elflow.__version__}\n"
    imported = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "elflow.cli" in imported
    assert not imported & {"pandas", "pyarrow", "lightning", "sklearn", "matplotlib"}
