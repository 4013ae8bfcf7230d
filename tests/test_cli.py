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
from typer.main import get_command

import elflow
from elflow.cli import app, main, tables
from elflow.cli._options import parse_bounds, parse_duration, parse_kinds
from elflow.io.tables import read_table
from elflow.tabular import COLUMN_KINDS, SAMPLE_BLOCK, Schema


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With data.csv and the model of it, and one with a context."""
    folder = tmp_path_factory.mktemp("cli")
    table().to_csv(folder / "data.csv", index=False)
    succeeds("fit", folder / "data.csv", "-o", folder / "model.elf", *QUICK, "--quiet")
    options = ["--context", "kind", "--context", "count", "--drop", "ok", "--drop", "day"]
    succeeds("fit", folder / "data.csv", "-o", folder / "given.elf", *QUICK, *options, "--quiet")
    sizes = table()[["size"]]
    small = {"max_steps": 10, "flow_options": {"transforms": 1, "units": 4, "hidden_features": (8,)}, "random_state": 0}
    elflow.FlowDensity(**small).fit(sizes).save(folder / "small.elf")
    elflow.FlowDensity(**small).fit(sizes, context=table()[["count"]]).save(folder / "small-given.elf")
    return folder


def test_fit_says_what_it_found_and_how_it_went(write, tmp_path):
    out, err = succeeds("fit", write(table()), "-o", tmp_path / "m.elf", *QUICK, "--bounds", "size=0:")
    for words in [
        "300",
        "category",
        "3: ",
        "2024-01-01 to 2024-10-",
        "at least 0",
        "held-out log-likelihood",
        "10 steps in",
    ]:
        assert words in out
    assert not err
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "m.elf"]


def test_quiet(write, tmp_path):
    assert succeeds("fit", write(table()), "-o", tmp_path / "m.elf", *QUICK, "-q") == ("", "")


@pytest.mark.slow
def test_fit_equals_the_estimator(folder):
    frame = read_table(folder / "data.csv")
    direct = elflow.FlowDensity(max_steps=10, random_state=0).fit(frame)
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
    monkeypatch.setattr(tables, "SCORE_BLOCK", 70)
    arguments = ["score", folder / "model.elf", folder / "data.csv", "-o", tmp_path / "s.csv", "--anomaly", "--append"]
    out, _ = succeeds(*arguments)
    assert whole.splitlines()[1].strip() == out.splitlines()[1].strip()
    scores = read_table(tmp_path / "s.csv")
    assert list(scores) == [*table().columns, "log_density", "anomaly_score"]
    assert scores["anomaly_score"].rank().equals((-scores["log_density"]).rank())
    pd.testing.assert_frame_equal(scores[table().columns], read_table(folder / "data.csv"))
    assert "must not have a column 'log_density'" in fails(
        "score", folder / "model.elf", tmp_path / "s.csv", "-o", tmp_path / "t.csv", "--append"
    )


def test_score_given_a_context(folder):
    est = elflow.load(folder / "given.elf")
    frame = read_table(folder / "data.csv")
    mean = est.score(frame[["size"]], context=frame[["kind", "count"]])
    out, err = succeeds("score", folder / "given.elf", folder / "data.csv")
    assert f"{mean:.4f}" in out
    assert f"ignoring 2 columns of {folder / 'data.csv'} that are not in the model: 'day', 'ok'" in err


def test_rows_of_density_zero(folder, write, monkeypatch):
    """They are counted and the first is named, whichever block it is in; the mean of the others is printed as well."""
    frame = table()
    frame.loc[[154, 200], "size"] = -1.0
    model = folder / "bounded.elf"
    succeeds("fit", folder / "data.csv", "-o", model, *QUICK, "--bounds", "size=0:", "--quiet")
    with pytest.warns(UserWarning, match="column 'size' has 2 values outside its declared bounds"):
        scores = elflow.load(model).score_samples(frame)
    zeros = np.isneginf(scores)
    assert zeros[[154, 200]].all()
    first, others = np.flatnonzero(zeros)[0] + 1, scores[~zeros]
    monkeypatch.setattr(tables, "SCORE_BLOCK", 70)
    out, _ = succeeds("score", model, write(frame))
    words = " ".join(out.split())
    assert f"-inf nats: {zeros.sum()} of 300 rows have density zero, the first is row {first};" in words
    assert f"mean of the others: {others.mean():.4f} +- {others.std(ddof=1) / len(others) ** 0.5:.4f} nats" in words
    out, _ = succeeds("score", model, write(frame[154:155]))
    assert "-inf nats: 1 of 1 rows has density zero, the first is row 1 " in " ".join(out.split()) + " "


def test_sample(folder, tmp_path):
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


@pytest.mark.parametrize("number", [1, SAMPLE_BLOCK, 70_000])
def test_samples_are_those_of_the_estimator(folder, tmp_path, number):
    """Row for row, for any number of blocks."""
    succeeds("sample", folder / "small.elf", "-n", number, "-o", tmp_path / "new.parquet", "--seed", 0)
    expected = elflow.load(folder / "small.elf").sample(number, random_state=0)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "new.parquet"), expected, check_exact=True)


@pytest.mark.parametrize(("contexts", "number"), [(2, 40_000), (SAMPLE_BLOCK + 1_000, 1)])
def test_samples_given_contexts_are_those_of_the_estimator(folder, tmp_path, contexts, number):
    given = pd.DataFrame({"count": np.random.default_rng(0).poisson(3, contexts)})
    given.to_parquet(tmp_path / "contexts.parquet")
    arguments = ["-n", number, "--context", tmp_path / "contexts.parquet", "-o", tmp_path / "new.parquet"]
    succeeds("sample", folder / "small-given.elf", *arguments, "--seed", 7)
    new = pd.read_parquet(tmp_path / "new.parquet")
    expected = elflow.load(folder / "small-given.elf").sample(number, context=given, random_state=7)
    pd.testing.assert_frame_equal(new[["size"]], expected, check_exact=True)
    np.testing.assert_array_equal(new["count"], given["count"].repeat(number))


def test_sample_given_contexts(folder, write, tmp_path):
    contexts = write("count,kind\n3,b\n0,a\n", "contexts.csv")
    options = ["sample", folder / "given.elf", "--context", contexts, "-o", tmp_path / "new.csv", "-n"]
    succeeds(*options, 3)
    new = read_table(tmp_path / "new.csv")
    assert list(new) == ["size", "kind", "count"]
    assert new["kind"].to_list() == ["b"] * 3 + ["a"] * 3
    succeeds(*options, 10)
    new = read_table(tmp_path / "new.csv")
    assert new["count"].to_list() == [3] * 10 + [0] * 10
    assert "--context must be a table of ['kind', 'count'], the context of" in fails(
        "sample", folder / "given.elf", "-o", tmp_path / "n.csv"
    )
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
    for words in ["elf", "300 rows", "10 steps in", "best validation log-likelihood", "3: ", "context", "modelled"]:
        assert words in out
    facts = json.loads(succeeds("info", folder / "model.elf", "--json")[0])
    kinds = [column["kind"] for column in facts["columns"]]
    assert kinds == ["continuous", "integer", "category", "datetime", "boolean"]
    assert facts["rows"] == 300
    assert facts["training"]["steps"] == 10
    assert 1 <= facts["training"]["best_round"] <= facts["training"]["rounds"] == 10
    assert {name for name, _ in facts["members"]} <= {"cholesky", "identity", "gaussian"}
    elflow.save(elflow.ELF(3, 2), tmp_path / "flow.elf")
    assert json.loads(succeeds("info", tmp_path / "flow.elf", "--json")[0])["features"] == 3
    assert "features" in succeeds("info", tmp_path / "flow.elf")[0]
    assert "a flow without columns" in fails("score", tmp_path / "flow.elf", folder / "data.csv")


@pytest.mark.slow
def test_report(folder, tmp_path):
    out, _ = succeeds("report", folder / "given.elf", folder / "data.csv", "-o", tmp_path / "r.html")
    first, *verdicts = out.splitlines()
    assert first.split() == ["report", str(tmp_path / "r.html")]
    titles = (
        "Held-out log-likelihood",
        "Gain over",
        "Worst column",
        "Worst pair",
        "Worst group",
        "Worst tail",
        "Calibration",
        "Two-sample test",
    )
    for title in (*titles, "Inverse residual"):
        (line,) = (line for line in verdicts if line.startswith(title))
        assert any(f"  {level}: " in line for level in ("Good", "Fair", "Poor", "Not rated"))
    page = (tmp_path / "r.html").read_text()
    assert "trained on 270 and validated on 30; 0 are new" in " ".join(page.split())  # known to be the very table
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
def test_invalid_durations(text):
    with pytest.raises(ValueError, match="--time-limit must be a duration"):
        parse_duration(text)


def test_bounds_and_kinds():
    assert parse_bounds(["a=b=:5", "c=-1e3:2"]) == {"a=b": (None, 5), "c": (-1000, 2)}
    assert parse_kinds(["a=b=category"]) == {"a=b": "category"}
    assert parse_bounds(None) == parse_kinds([]) == {}


@pytest.mark.parametrize("text", ["a", "a=:", "a=x:1", "=0:1", "a=1:1", "a=2:1"])
def test_invalid_bounds(text):
    with pytest.raises(ValueError, match="--bounds must"):
        parse_bounds([text])


@pytest.mark.parametrize("text", ["a", "a=", "=integer", "a=large"])
def test_invalid_kinds(text):
    with pytest.raises(ValueError, match=r"--kind must be COL=KIND, with a kind of .*'datetime'"):
        parse_kinds([text])


@pytest.mark.parametrize("kind", COLUMN_KINDS)
def test_help_lists_every_kind(kind):
    help_of_fit = {param.name: getattr(param, "help", "") for param in get_command(app).commands["fit"].params}
    assert kind in help_of_fit["kind"]


def test_columns_by_commas(write, tmp_path):
    """Repeated options and lists; a name with a comma wins over the list that it looks like."""
    frame = table(30).assign(**{"kind,day": range(0, 60, 2)})
    arguments = ["fit", write(frame), "-o", tmp_path / "m.elf", *QUICK]
    succeeds(*arguments, "-q", "--drop", "kind, ok", "--drop", "day", "--context", "size")
    est = elflow.load(tmp_path / "m.elf")
    assert (est.schema_.names, est.context_schema_.names) == (["count", "kind,day"], ["size"])
    succeeds(*arguments, "-q", "--drop", "kind,day", "--context", "kind,ok")
    est = elflow.load(tmp_path / "m.elf")
    assert (est.schema_.names, est.context_schema_.names) == (["size", "count", "day"], ["kind", "ok"])
    assert "--drop must name a column of" in fails(*arguments, "--drop", "kind,nix")
    assert "got 'nix'" in fails(*arguments, "--drop", "kind,nix")


def test_a_column_that_counts_rows(write, tmp_path):
    arguments = ["fit", write(table(60).reset_index()), "-o", tmp_path / "m.elf", *QUICK]
    _, err = succeeds(*arguments)
    line = "column 'index' numbers the rows: drop it unless it has another meaning"
    assert err == f"elflow: {line}\n"
    assert succeeds(*arguments, "-q") == ("", "")


def test_warnings_are_shown_once_and_not_when_quiet(write, tmp_path):
    frame = table().assign(size=lambda f: f["size"].where(f.index >= 60, -999.0))
    arguments = ["fit", write(frame), "-o", tmp_path / "m.elf", *QUICK]
    _, err = succeeds(*arguments)
    assert err.count("\n") == 1
    assert "column 'size' has values far from all others: -999" in err
    assert succeeds(*arguments, "-q") == ("", "")


def test_the_columns_shown_are_those_of_the_model(write, tmp_path, monkeypatch):
    """They come of the schema that is fitted, which is so once: that of a context has no bounds."""
    count, fit = [], Schema.fit
    monkeypatch.setattr(Schema, "fit", lambda *arguments, **options: count.append(1) or fit(*arguments, **options))
    frame = table().assign(weight=table()["size"] + 1)
    out, _ = succeeds("fit", write(frame), "-o", tmp_path / "m.elf", *QUICK, "--context", "size")
    assert len(count) == 2  # of the rows, and of their context
    shown = [line for line in out.splitlines() if line.split()[1:2] in (["continuous"], ["integer"], ["category"])]
    described = succeeds("info", tmp_path / "m.elf")[0].splitlines()
    assert len(shown) == 4
    assert set(shown) < set(described)
    assert "any" in next(line for line in shown if line.split()[0] == "size")


def test_other_flows(write, tmp_path):
    data = write(table(50))
    succeeds("fit", data, "-o", tmp_path / "m.elf", *QUICK, "--flow", "maf", "--dequantization", "variational", "-q")
    assert json.loads(succeeds("info", tmp_path / "m.elf", "--json")[0])["flow"] == "maf"


@pytest.mark.slow
def test_time_limit_threads_and_log(write, tmp_path):
    threads = torch.get_num_threads()
    options = ["--time-limit", "1s", "--threads", "1", "--log-dir", tmp_path / "log", "--seed", "5"]
    out, _ = succeeds("fit", write(table()), "-o", tmp_path / "m.elf", *options)
    torch.set_num_threads(threads)
    assert "stopped at the time limit" in out or "completed all steps" in out or "no longer improved" in out
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
