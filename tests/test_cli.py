"""The command line, in this process and in others: what it does, what it says about what is wrong, and crashes."""

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

import elflow
from elflow.cli import _sample, _score, main
from elflow.cli._options import column_options, seconds
from elflow.cli._terminal import error_line
from elflow.data.files import read_table

QUICK = ["--max-steps", "10"]


def run(*arguments):
    """The exit code, the standard output and the standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue(), err.getvalue()


def succeeds(*arguments):
    code, out, err = run(*arguments)
    assert code == 0, err
    return out, err


def fails(*arguments):
    """The one line that it says."""
    code, out, err = run(*arguments)
    assert code == 2, (code, out, err)
    *_, line = err.splitlines()
    assert line.startswith("elflow: error: ")
    assert "Traceback" not in err
    return line


def table(rows=300):
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 300, rows), "D")
    return pd.DataFrame(
        {
            "size": rng.lognormal(size=rows),
            "count": rng.poisson(3, rows),
            "kind": rng.choice(["a", "b", "c"], rows),
            "day": days,
            "ok": rng.random(rows) < 0.3,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With data.csv and the model of it, and one with a context."""
    folder = tmp_path_factory.mktemp("cli")
    table().to_csv(folder / "data.csv", index=False)
    succeeds("fit", folder / "data.csv", "-o", folder / "model.elf", *QUICK, "--quiet")
    options = ["--context", "kind", "--context", "count", "--drop", "ok", "--drop", "day"]
    succeeds("fit", folder / "data.csv", "-o", folder / "given.elf", *QUICK, *options, "--quiet")
    return folder


@pytest.fixture
def write(tmp_path):
    def write(content, name="data.csv"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else content.to_csv(index=False))
        return path

    return write


# What it does


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
    direct = elflow.estimator.FlowDensity(max_steps=10, random_state=0).fit(frame)
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
    assert "2 columns that the model does not know: 'day', 'ok'" in err


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
    for words in ["elf", "300 rows", "10 steps", "held-out likelihood", "3: ", "context", "modelled"]:
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


def test_report(folder, tmp_path, monkeypatch):
    seen = {}

    def page(est, rows, path, context):
        seen.update(est=est, rows=rows, path=path, context=context)

    from elflow import report

    monkeypatch.setattr(report, "write", page)
    succeeds("report", folder / "model.elf", folder / "data.csv", "-o", tmp_path / "r.html")
    assert seen["est"].held_out(seen["rows"]) is not None  # the very table, although it was read in another way
    assert seen["context"] is None
    succeeds("report", folder / "given.elf", folder / "data.csv", "-o", tmp_path / "r.html")
    assert list(seen["context"]) == ["kind", "count"]


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


# Bad input


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "data.csv is empty"),
        ("a,b\n", "data.csv has a header and no rows"),
        ("a,b\n1,2\n", "at least 5 rows"),
        ("a,b,a\n1,2,3\n", "data.csv must name each column once, got 'a' several times"),
        ("a,b\n1,2\n3\n", "data.csv must have 2 values in each row"),
        ("a,b\n" + "1,2\n3,inf\n" * 9, "column 'b' must be finite, got 9 infinite values"),
        ("a,b\n" + "1.5,\n3,2\n" * 9, "missing values (NaN), got some in 'b' (9)"),
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


@pytest.mark.parametrize("name", unusual())
def test_unusual_tables_have_sensible_results(write, tmp_path, name):
    frame = unusual()[name]
    succeeds("fit", write(frame), "-o", tmp_path / "m.elf", *QUICK, "-q")
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
        (lambda f: f[:0], "has a header and no rows"),
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
    assert "has 2 columns that the model does not know: 'more', 'others'" in err


def test_categories_that_were_never_seen(folder, write):
    succeeds("score", folder / "model.elf", write(table().assign(kind="new")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit"], "Missing argument 'DATA'"),
        (["fit", "DATA"], "Missing option '--output'"),
        (["fot"], "No such command 'fot'"),
        (["fit", "nothing.csv", "-o", "NEW"], "nothing.csv must be a file, and there is none"),
        (["fit", "DATA", "-o", "DATA"], "must not be what is read"),
        (["fit", "DATA", "-o", "no/folder/m.elf"], "must be in a folder that exists"),
        (["fit", "DATA", "-o", "FOLDER"], "must be a file, got a folder"),
        (["fit", "DATA", "-o", "/dev/null"], "must be an ordinary file"),
        (["fit", "DATA", "-o", "NEW", "--drop", "nix"], "--drop must name a column"),
        (["fit", "DATA", "-o", "NEW", "--context", "nix"], "--context must name a column"),
        (["fit", "DATA", "-o", "NEW", "--context", "ok", "--drop", "ok"], "must be either dropped or the context"),
        (["fit", "DATA", "-o", "NEW", "--bounds", "size=5"], "--bounds must be COL=LOW:HIGH"),
        (["fit", "DATA", "-o", "NEW", "--bounds", "size=0:1"], "must hold all values between its bounds"),
        (["fit", "DATA", "-o", "NEW", "--bounds", "nix=0:1"], "columns must name columns of the table"),
        (["fit", "DATA", "-o", "NEW", "--kind", "size=large"], "must be one of ['continuous'"),
        (["fit", "DATA", "-o", "NEW", "--kind", "kind=integer"], "column 'kind' must hold numbers"),
        (["fit", "DATA", "-o", "NEW", "--flow", "nix"], "flow must be one of"),
        (["fit", "DATA", "-o", "NEW", "--validation", "2"], "validation must be a share"),
        (["fit", "DATA", "-o", "NEW", "--max-steps", "0"], "'--max-steps'"),
        (["fit", "DATA", "-o", "NEW", "--time-limit", "soon"], "--time-limit must be a duration"),
        (["fit", "DATA", "-o", "NEW", "--missing", "no"], "'--missing'"),
        (["score", "MODEL", "nothing.csv"], "nothing.csv must be a file"),
        (["score", "nothing.elf", "DATA"], "must be a file, got nothing.elf"),
        (["score", "DATA", "DATA"], "must be a model saved by elflow"),
        (["score", "MODEL", "DATA", "-o", "DATA"], "must not be what is read"),
        (["score", "MODEL", "DATA", "-o", "scores.xlsx"], "must be a table that ends in one of"),
        (["sample", "MODEL"], "Missing option '--output'"),
        (["sample", "MODEL", "-n", "0", "-o", "new.csv"], "'-n'"),
        (["report", "MODEL", "DATA", "-o", "no/folder.html"], "must be in a folder that exists"),
        (["info", "nothing.elf"], "must be a file, got nothing.elf"),
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
        assert "must be a model saved by elflow" in fails("score", tmp_path / "m.elf", folder / "data.csv")


def test_no_traceback_but_for_debugging(folder, monkeypatch):
    with pytest.raises(FileNotFoundError):
        main(["info", "nothing.elf", "--debug"])
    monkeypatch.setenv("ELFLOW_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        main(["info", "nothing.elf"])


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (MemoryError(), "there is not enough memory", 2),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "there is not enough memory", 2),
        (OSError(28, "No space left on device", "/x"), "/x: No space left on device", 2),
        (ValueError("two\n  lines"), "two lines", 2),
        (ValueError(), "ValueError", 2),
        (ZeroDivisionError("division by zero"), "something went wrong that should not, ZeroDivisionError", 1),
    ],
)
def test_errors_have_one_line(monkeypatch, error, line, code):
    text, found = error_line(error)
    assert text.startswith(f"elflow: error: {line}")
    assert "\n" not in text
    assert found == code

    def broken(path):
        raise error

    monkeypatch.setattr(elflow, "load", broken)
    assert run("info", "m.elf") == (code, "", text + "\n")


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


def test_help_does_not_wait_for_what_it_does_not_need():
    code = "import sys, elflow.cli; print(*{'pandas', 'pyarrow', 'lightning', 'sklearn', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


def test_nobody_reads_any_more(folder, monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(["sample", str(folder / "model.elf"), "-n", "5000", "-o", "-"]) == 141
        monkeypatch.undo()
    assert "Traceback" not in capfd.readouterr().err


# Interrupted


def test_a_checkpoint_is_never_lost(write, tmp_path):
    data, model = write(table()), tmp_path / "m.elf"
    checkpoint = tmp_path / "m.elf.checkpoint"
    checkpoint.write_bytes(b"hours of work")
    assert "add --resume to go on, or delete it" in fails("fit", data, "-o", model, *QUICK)
    assert "checkpoint must be one that elflow wrote" in fails("fit", data, "-o", model, *QUICK, "--resume")
    assert checkpoint.read_bytes() == b"hours of work"


def test_resume_with_nothing_to_go_on_from(write, tmp_path):
    data, model = write(table()), tmp_path / "m.elf"
    arguments = ["fit", data, "-o", model, *QUICK, "-q", "--bounds", "size=0:"]
    _, err = succeeds(*arguments, "--resume")
    assert "the training begins anew" in err
    before = model.read_bytes()
    _, err = succeeds(*arguments, "--resume")
    assert "m.elf is complete" in err
    assert model.read_bytes() == before
    for changed in [["--seed", "1"], ["--context", "ok"]]:  # what is there is another model
        _, err = succeeds(*arguments, *changed, "--resume")
        assert "begins anew" in err
    assert model.read_bytes() != before


def test_a_checkpoint_of_other_data(write, tmp_path, monkeypatch):
    data, model = write(table()), tmp_path / "m.elf"
    monkeypatch.setattr(elflow.estimator.FlowDensity, "save", interrupt)
    assert run("fit", data, "-o", model, *QUICK)[0] == 130
    monkeypatch.undo()
    write(table()[::-1])
    assert "checkpoint must be of the same data and settings" in fails("fit", data, "-o", model, *QUICK, "--resume")
    assert (tmp_path / "m.elf.checkpoint").exists()


def interrupt(*_, **__):
    raise KeyboardInterrupt


SERVER = """
import os, sys, elflow.estimator, elflow.training.callbacks
from elflow.cli import main
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        with open(line.split("\\t")[0], "w") as err:
            os.dup2(err.fileno(), 2)
        os._exit(main(line.strip().split("\\t")[1:]))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Starts commands in processes of their own. Each is forked from one that has imported torch already."""
    err = tmp_path_factory.mktemp("server") / "err"
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:

        def start(*arguments):
            print(err, *arguments, sep="\t", file=server.stdin, flush=True)
            return SimpleNamespace(
                pid=int(server.stdout.readline()),
                wait=lambda: int(server.stdout.readline()),
                err=err,
            )

        assert server.stdout.readline() == "ready\n"
        yield start
        server.stdin.close()


def killed(process, checkpoint, renewed, rest):
    """Whether a process was killed: once its checkpoint has been renewed, if that is waited for, and after a while."""
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    for _ in range(1000):
        if not renewed or (checkpoint.exists() and checkpoint.stat().st_mtime_ns != before):
            break
        time.sleep(0.02)
    time.sleep(rest)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def test_killed_and_resumed(command, write, tmp_path):
    """The weights are those of a training that nobody killed, bit for bit."""
    data, model, whole = write(table()[["size", "count"]]), tmp_path / "m.elf", tmp_path / "whole.elf"
    options = ["--max-steps", "300", "--threads", "1", "--quiet"]  # six rounds
    assert command("fit", data, "-o", whole, *options).wait() == 0
    expected = elflow.load(whole)
    pause = expected.seconds_ / len(expected.history_)
    kills = 0
    for renewed in [False, True, True]:
        process = command("fit", data, "-o", model, *options, "--resume")
        kills += killed(process, tmp_path / "m.elf.checkpoint", renewed, random.uniform(0, pause))
        assert not model.exists()
    assert kills == 3
    process = command("fit", data, "-o", model, *options, "--resume")
    assert process.wait() == 0, process.err.read_text()
    assert not (tmp_path / "m.elf.checkpoint").exists()
    tensors, others = (safetensors.torch.load_file(path) for path in (whole, model))
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[key], others[key]) for key in tensors)
    got = elflow.load(model)
    np.testing.assert_array_equal(got.training_scores_, expected.training_scores_)
    assert [entry["validation"] for entry in got.history_] == [entry["validation"] for entry in expected.history_]


def test_interrupted_from_the_keyboard(command, write, tmp_path):
    process = command("fit", write(table()), "-o", tmp_path / "m.elf", "--max-steps", "100000", "--quiet")
    checkpoint = tmp_path / "m.elf.checkpoint"
    for _ in range(600):
        if checkpoint.exists():
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130
    assert process.err.read_text() == f"elflow: interrupted; {checkpoint} is kept: --resume goes on from it\n"
    assert not (tmp_path / "m.elf").exists()
    assert checkpoint.exists()


def test_as_a_module():
    command = [sys.executable, "-m", "elflow", "fit", "nothing.csv", "-o", "m.elf"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "elflow: error: nothing.csv must be a file, and there is none\n"
