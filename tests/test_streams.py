"""Fits of tables in files: the same as in memory, in bounded memory, and resumable."""

import io
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import torch
from _command import QUICK, fails, run, succeeds, table
from _tables import mixed

import elflow
import elflow.cli._data
import elflow.io.streams
import elflow.serialization
import elflow.tabular.columns._survey
from elflow.io import open_stream, read_table
from elflow.tabular.columns._survey import survey_stream
from elflow.tabular.fitting._blocks import StreamBlocks
from elflow.tabular.fitting._encoded import count_training_rows, encode_table, read_encoded, write_encoded
from elflow.tabular.fitting._split import Split
from elflow.tabular.schema import Schema

SMALL = {"transforms": 1, "units": 4, "hidden_features": (8,)}


def density(**options):
    return elflow.FlowDensity(**{"flow_options": SMALL, "max_steps": 20, "random_state": 0} | options)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that small tables have many."""
    monkeypatch.setattr(elflow.io.streams, "MAX_STREAM_ROWS", 64)


def write_parts(folder, frame, suffix="parquet", n_parts=3):
    folder.mkdir(exist_ok=True)
    for i, rows in enumerate(np.array_split(np.arange(len(frame)), n_parts)):
        part = frame.iloc[rows]
        path = folder / f"{i}.{suffix}"
        part.to_parquet(path, index=False) if suffix == "parquet" else part.to_csv(path, index=False)
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:column")
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_streamed_fit_is_the_fit_in_memory(tmp_path, small_blocks, suffix):
    """A table of fewer rows than the sample of the survey: bit for bit, for every kind of column."""
    folder = write_parts(tmp_path / "data", mixed(600), suffix)
    frame = read_table(folder)
    ours, theirs = (density(missing="model", max_steps=10).fit(X) for X in (str(folder), frame))
    assert ours.schema_.to_dict() == theirs.schema_.to_dict()
    assert ours.warnings_ == theirs.warnings_
    assert ours.feature_names_in_.tolist() == theirs.feature_names_in_.tolist()
    assert np.array_equal(ours.row_hashes_.codes, theirs.row_hashes_.codes)
    assert np.array_equal(ours.reference_scores_, theirs.reference_scores_)
    assert np.array_equal(ours.score_samples(frame[:100]), theirs.score_samples(frame[:100]))
    assert ours.sample(5, random_state=0).equals(theirs.sample(5, random_state=0))


@pytest.mark.slow
def test_datasets_with_a_context(tmp_path, small_blocks):
    frame = table(400).drop(columns="day")
    folder = write_parts(tmp_path / "data", frame)
    given = frame[["kind", "ok"]]
    theirs = density().fit(frame.drop(columns=["kind", "ok"]), context=given)
    scores = theirs.score_samples(frame, context=given)
    for X in (ds.dataset(folder), ds.dataset(pa.Table.from_pandas(frame))):
        ours = density().fit(X, context=["kind", "ok"])
        assert np.array_equal(ours.score_samples(frame, context=given), scores)


def rare_features(n=5000):
    """A table whose columns are of another kind without one or two of the rows."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "outlier": rng.normal(size=n),
            "missing": rng.normal(size=n),
            "fraction": rng.integers(0, 200, n).astype(float),
            "grid": np.round(rng.normal(size=n), 1),
            "even": 2 * rng.poisson(300, n),
            "hour": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 400, n), "D"),
            "level": rng.choice([0.5, 1.25], n),
            "text": rng.choice(["a", "b"], n),
            "category": pd.Categorical(rng.choice(["x", "y"], n), categories=["x", "y", "z"]),
            "flag": False,
            "code": rng.choice([3, 5], n),
            "nullable": rng.poisson(3, n),
        }
    )
    frame.loc[4321, "outlier"] = 1e6
    frame.loc[1234, "missing"] = np.nan
    frame.loc[4000, "fraction"] = 7.5
    frame.loc[77, "grid"] = 0.123
    frame.loc[2000, "even"] = 601
    frame.loc[3000, "hour"] = pd.Timestamp("2024-01-05 13:00")
    frame.loc[4999, "level"] = 9.75
    frame.loc[2500, "text"] = "rare"
    frame.loc[2501, "category"] = "z"
    frame.loc[4444, "flag"] = True
    frame.loc[4445, "code"] = 1
    frame["nullable"] = frame["nullable"].astype("Int64")
    frame.loc[10, "nullable"] = pd.NA
    return frame


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_sample_does_not_hide_rare_values(tmp_path, monkeypatch, small_blocks, suffix):
    monkeypatch.setattr(elflow.tabular.columns._survey, "MAX_SAMPLED_ROWS", 300)
    monkeypatch.setattr(elflow.tabular.columns._survey, "MIN_SAMPLED_ROWS", 300)
    folder = write_parts(tmp_path / "data", rare_features(), suffix)
    frame, stream = read_table(folder), open_stream(folder)
    declared = {"code": "category"}
    survey = survey_stream(stream, declared, lambda share: None)
    assert 300 <= len(survey.frame) < 500
    assert survey.frame.dtypes.to_dict() == frame.dtypes.to_dict()
    ours = Schema.fit(survey.frame, declared, "model", survey=survey)
    theirs = Schema.fit(frame, declared, "model")
    for one, other in zip(ours.columns, theirs.columns, strict=True):
        for name in ("kind", "dtype", "step", "levels", "ordered", "unit", "local"):
            assert getattr(one, name) == getattr(other, name), (one.name, name)
        assert bool(one.missing) == bool(other.missing)
    outlier = ours.column("outlier").map
    assert np.isclose(outlier.inverse(np.array([outlier.last]))[0], 1e6)
    # The frequencies of the training rows are exact.
    split = Split(len(frame), 0.1, 0)
    recounted = theirs.recount(frame[~split.is_validation(0, len(frame))])
    ours = count_training_rows(StreamBlocks(stream), ours, split)
    for name in ("text", "category", "flag", "code", "level"):
        assert ours.column(name).to_dict() == recounted.column(name).to_dict()
    assert ours.column("missing").shares == recounted.column("missing").shares


@pytest.mark.slow
def test_a_sample_gives_nearly_the_same_density(tmp_path, monkeypatch, small_blocks):
    """The columns from a tenth of the rows: the held-out log-likelihood differs by less than 0.05 nats."""
    monkeypatch.setattr(elflow.tabular.columns._survey, "MAX_SAMPLED_ROWS", 400)
    monkeypatch.setattr(elflow.tabular.columns._survey, "MIN_SAMPLED_ROWS", 400)
    frame, new = table(4000).drop(columns="day"), table(6000).drop(columns="day")[4000:]
    folder = write_parts(tmp_path / "data", frame)
    ours, theirs = (density(max_steps=60).fit(X).score_samples(new) for X in (folder, frame))
    assert abs((ours - theirs).mean()) < 0.05


def test_limits_of_categories(tmp_path, monkeypatch):
    monkeypatch.setattr(elflow.tabular.columns._survey, "MAX_COUNTED", 20)
    frame = table(200).assign(many=[f"t{i % 30}" for i in range(200)])[["size", "many"]]
    folder = write_parts(tmp_path / "data", frame)
    with pytest.warns(UserWarning, match="columns 'many' are left out, since they have more than"):
        schema = density().fit_schema(folder).schema_
    assert schema.names == ["size"]
    assert schema.ignored == ("many",)
    with pytest.raises(ValueError, match=r"columns \['many'\] must have at most .* categories"):
        density(columns={"many": "category"}).fit_schema(folder)


def test_numbers_of_rows_are_noticed_over_blocks(tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(elflow.tabular.columns._survey, "MAX_SAMPLED_ROWS", 100)
    monkeypatch.setattr(elflow.tabular.columns._survey, "MIN_SAMPLED_ROWS", 100)
    frame = table(400)[["size"]].assign(row=np.arange(400) * 3, nearly=np.append(np.arange(399), 1000))
    folder = write_parts(tmp_path / "data", frame)
    with pytest.warns(UserWarning, match="column 'row' numbers the rows|'nearly' has a different integer in each row"):
        warnings = density().fit_schema(folder).warnings_
    assert sum("numbers the rows" in text for text in warnings) == 1
    assert len(warnings) == 2


def test_missing_values_are_counted_in_all_rows(tmp_path, small_blocks, monkeypatch):
    monkeypatch.setattr(elflow.tabular.columns._survey, "MAX_SAMPLED_ROWS", 50)
    monkeypatch.setattr(elflow.tabular.columns._survey, "MIN_SAMPLED_ROWS", 50)
    frame = table(400)[["size", "count"]]
    frame.loc[100:199, "size"] = np.nan
    with pytest.raises(ValueError, match=r"must not have missing values \(NaN\), got some in 'size' \(100\)"):
        density().fit_schema(write_parts(tmp_path / "data", frame))


@pytest.mark.filterwarnings("ignore:column")
def test_files_of_encoded_rows(tmp_path, small_blocks):
    frame = mixed(300)
    folder = write_parts(tmp_path / "data", frame)
    blocks = StreamBlocks(open_stream(folder), ["flag", "single"])
    survey, context_survey = blocks.survey(None)
    schema = Schema.fit(survey.frame, None, "model")
    context_schema = Schema.fit(context_survey.frame, None, infer_bounds=False)
    split = Split(300, 0.1, 0)
    path = tmp_path / "rows"
    assert read_encoded(path, "key") is None
    write_encoded(path, blocks, schema, context_schema, split, "key", {"a": 1})
    assert read_encoded(path, "another key") is None
    stored = read_encoded(path, "key")
    expected = encode_table(blocks, schema, context_schema, split)
    for name in ("training", "validation", "reference"):
        ours, theirs = getattr(stored.table, name), getattr(expected, name)
        for one, other in zip([*ours.x, ours.context], [*theirs.x, theirs.context], strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
    assert stored.schema.to_dict() == schema.to_dict()
    assert stored.context_schema.to_dict() == context_schema.to_dict()
    assert stored.facts == {"a": 1}
    assert np.array_equal(stored.table.hashes.codes, expected.hashes.codes)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"rows_file must be a file of encoded rows, got .*, which is none"):
        read_encoded(path, "key")


@pytest.mark.slow
def test_encoded_rows_are_used_again_unless_files_change(tmp_path):
    folder = write_parts(tmp_path / "data", table(200)[["size", "count"]])
    rows = tmp_path / "rows"
    first = density().fit(folder, rows_file=rows)
    before = rows.stat().st_mtime_ns
    again = density().fit(folder, rows_file=rows)
    assert rows.stat().st_mtime_ns == before
    assert np.array_equal(first.reference_scores_, again.reference_scores_)
    assert again.schema_.to_dict() == first.schema_.to_dict()
    assert again.n_rows_ == 200
    density(random_state=1).fit(folder, rows_file=rows)  # another split
    assert rows.stat().st_mtime_ns > before
    before = rows.stat().st_mtime_ns
    table(210)[["size", "count"]][200:].to_parquet(folder / "9.parquet", index=False)
    assert density(random_state=1).fit(folder, rows_file=rows).n_rows_ == 210
    assert rows.stat().st_mtime_ns > before


@pytest.mark.slow
def test_resume_of_a_streamed_fit(tmp_path, monkeypatch):
    folder = write_parts(tmp_path / "data", table(300)[["size", "count"]])
    files = {"checkpoint": tmp_path / "checkpoint", "rows_file": tmp_path / "rows"}
    whole = density(max_steps=30).fit(folder)
    monkeypatch.setattr("elflow.tabular.estimator.stack_members", interrupt)
    with pytest.raises(KeyboardInterrupt):
        density(max_steps=30).fit(folder, **files)
    monkeypatch.undo()
    resumed = density(max_steps=30).fit(folder, **files)
    assert np.array_equal(whole.reference_scores_, resumed.reference_scores_)
    table(400)[["size", "count"]][300:].to_parquet(folder / "9.parquet", index=False)
    with pytest.raises(ValueError, match="checkpoint must belong to the same data and settings"):
        density(max_steps=30).fit(folder, **files)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_arguments_that_do_not_suit_files(tmp_path):
    folder = write_parts(tmp_path / "data", table(50)[["size", "count"]])
    with pytest.raises(ValueError, match="sample_weight must be None if X is in files"):
        density().fit(folder, sample_weight=np.ones(50))
    with pytest.raises(TypeError, match="context must be a list of column names if X is in files, got DataFrame"):
        density().fit(folder, context=table(50)[["ok"]])
    with pytest.raises(ValueError, match=r"context must be names of columns of .*, got \['none'\]"):
        density().fit(folder, context=["none"])
    with pytest.raises(ValueError, match="must have a column to model besides the context"):
        density().fit(folder, context=["size", "count"])
    table(4)[["size"]].to_parquet(tmp_path / "few.parquet")
    with pytest.raises(ValueError, match="X must have at least 5 rows"):
        density().fit(tmp_path / "few.parquet")


# The command line


@pytest.mark.slow
def test_large_tables_on_the_command_line(tmp_path, monkeypatch):
    frame = table(300)
    folder, model = write_parts(tmp_path / "data", frame), tmp_path / "m.elf"
    arguments = ["fit", folder / "*.parquet", "-o", model, *QUICK, "--context", "ok", "--drop", "count"]
    plain = succeeds(*arguments)[0]
    expected = elflow.load(model).score_samples(frame, context=frame[["ok"]])
    monkeypatch.setattr(elflow.cli._data, "MAX_LOADED_BYTES", 0)
    streamed = succeeds(*arguments)[0]
    assert [line for line in streamed.split("\n") if "training" not in line] == [
        line for line in plain.split("\n") if "training" not in line
    ]
    assert np.array_equal(elflow.load(model).score_samples(frame, context=frame[["ok"]]), expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "m.elf"]

    monkeypatch.setattr(elflow.serialization, "save", interrupt)
    assert run(*arguments, "--seed", "1")[0] == 130
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "m.elf", "m.elf.checkpoint", "m.elf.rows"]
    monkeypatch.undo()
    monkeypatch.setattr(elflow.cli._data, "MAX_LOADED_BYTES", 0)
    succeeds(*arguments, "--seed", "1", "--resume")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "m.elf"]
    assert "is complete" in succeeds(*arguments, "--seed", "1", "--resume")[1]


@pytest.mark.slow
def test_commands_in_all_formats(tmp_path, monkeypatch):
    frame = table(200)[["size", "count", "kind"]]
    write_parts(tmp_path / "data", frame)
    model = tmp_path / "m.elf"
    text = frame.to_csv(index=False).encode()

    def set_input(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    set_input(text)
    succeeds("fit", "-", "-o", model, *QUICK)
    expected = elflow.load(model).score_samples(frame)
    set_input(text)
    out, _err = succeeds("score", model, "-", "-o", "-")
    assert np.allclose(pd.read_csv(io.StringIO(out))["log_density"], expected, rtol=1e-12)
    succeeds("score", model, tmp_path / "data", "-o", tmp_path / "scores.jsonl.gz", "--append")
    assert np.allclose(read_table(tmp_path / "scores.jsonl.gz")["log_density"], expected, rtol=1e-9)
    for name in ("new.feather", "new.xlsx", "new.csv.zst"):
        succeeds("sample", model, "-n", "20", "-o", tmp_path / name)
        assert read_table(tmp_path / name).columns.tolist() == ["size", "count", "kind"]
    assert "--output must not be one of the input files" in fails(
        "score", model, tmp_path / "data", "-o", tmp_path / "data" / "0.parquet"
    )
    assert "DATA must be a file for several processes, got -" in fails(
        "fit", "-", "-o", model, "--devices", "2", "--device", "cpu"
    )
