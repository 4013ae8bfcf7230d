"""Tables in all formats, compressed, in folders, in Hive partitions, and on standard input."""

import io
import itertools
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elflow.io import TableWriter, open_stream, read_table, scan_table
from elflow.io._cast import infer_type
from elflow.io._types import TypeInference


def small_table(n=7):
    return pd.DataFrame(
        {
            "size": np.linspace(0.5, 3.5, n),
            "count": np.arange(n),
            "ok": np.arange(n) % 2 == 0,
            "text": [f"x{i % 3}" for i in range(n)],
            "day": pd.date_range("2024-01-01", periods=n).as_unit("us"),
        }
    )


FORMATS = [
    *("t.csv", "t.tsv", "t.csv.gz", "t.csv.bz2", "t.csv.zst", "t.csv.lz4", "t.tsv.xz"),
    *("t.jsonl", "t.jsonl.gz", "t.ndjson.zst", "t.feather", "t.arrow", "t.parquet", "t.xlsx"),
]


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_written_in_blocks_is_read(tmp_path, name):
    table, path = small_table(), tmp_path / name
    with TableWriter(path) as writer:
        writer.write(table.iloc[:4])
        writer.write(table.iloc[4:])
    again = read_table(path)
    again["day"] = again["day"].astype(table["day"].dtype)  # Excel has other units
    pd.testing.assert_frame_equal(again, table)
    assert read_table(path, columns=["text", "size"]).columns.tolist() == ["text", "size"]
    like = [SimpleNamespace(name="count", dtype="int64", kind="integer")]
    with pytest.warns(UserWarning, match="not in the model"):
        scan = scan_table(path, like, batch_rows=3)
    assert [block["count"].tolist() for block in scan] == [[0, 1, 2], [3, 4, 5], [6]]
    stream = open_stream(path)
    stream.prepare()
    assert stream.n_rows == 7
    frames = pd.concat(stream, ignore_index=True)
    frames["day"] = frames["day"].astype(table["day"].dtype)
    pd.testing.assert_frame_equal(frames, table)


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet", "t.feather", "t.xlsx", "t.csv.gz", "t.jsonl.xz"])
def test_standard_input(tmp_path, monkeypatch, name):
    table = small_table()
    with TableWriter(tmp_path / name) as writer:
        writer.write(table)
    stream = io.BytesIO((tmp_path / name).read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    first = read_table("-")
    assert first["count"].tolist() == table["count"].tolist()
    pd.testing.assert_frame_equal(read_table("-"), first)  # though the stream is at its end


def write_parts(folder, table, suffix, edges=(0, 3, 5, 7)):
    folder.mkdir(exist_ok=True)
    for i, (first, last) in enumerate(itertools.pairwise(edges)):
        with TableWriter(folder / f"part-{i}.{suffix}") as writer:
            writer.write(table.iloc[first:last])


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl", "feather", "csv.zst"])
def test_folders_and_patterns(tmp_path, suffix):
    table = small_table()
    write_parts(tmp_path / "data", table, suffix)
    (tmp_path / "data" / "_SUCCESS").touch()
    (tmp_path / "data" / ".hidden.csv").write_text("no table")
    (tmp_path / "data" / "notes.md").write_text("not a table either")
    for path in (tmp_path / "data", tmp_path / "data" / f"*.{suffix}", tmp_path / "*" / "part-?.*"):
        again = read_table(path)
        again["day"] = again["day"].astype(table["day"].dtype)
        pd.testing.assert_frame_equal(again, table)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_hive_partitions(tmp_path, suffix):
    table = small_table(6).drop(columns="day")
    places = ["New York", "a=b", None]
    for i, place in enumerate(["New%20York", "a%3Db", "__HIVE_DEFAULT_PARTITION__"]):
        folder = tmp_path / f"year={2020 + i}" / f"place={place}"
        folder.mkdir(parents=True)
        with TableWriter(folder / f"0.{suffix}") as writer:
            writer.write(table.iloc[2 * i : 2 * i + 2])
    again = read_table(tmp_path)
    assert again["year"].tolist() == [2020, 2020, 2021, 2021, 2022, 2022]
    assert again["year"].dtype == "int64"
    assert [None if pd.isna(p) else p for p in again["place"]] == [p for p in places for _ in range(2)]
    pd.testing.assert_frame_equal(again[table.columns.tolist()], table)
    like = [SimpleNamespace(name=name, dtype="int64", kind="integer") for name in ("year", "count")]
    with pytest.warns(UserWarning, match="not in the model"):
        blocks = list(scan_table(tmp_path, like, batch_rows=4))
    assert [block["year"].tolist() for block in blocks] == [[2020, 2020, 2021, 2021], [2022, 2022]]


def test_types_of_several_files_are_merged(tmp_path):
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int32()), "b": pa.nulls(2)}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"b": ["x", "y"], "a": [1.5, 2.5]}), tmp_path / "1.parquet")
    again = read_table(tmp_path)
    assert again["a"].tolist() == [1.0, 2.0, 1.5, 2.5]
    assert again["b"].isna().tolist() == [True, True, False, False]
    pq.write_table(pa.table({"b": ["x"], "a": ["text"]}), tmp_path / "2.parquet")
    with pytest.raises(ValueError, match=r"the same types, got double and string for column 'a', .*2\.parquet"):
        read_table(tmp_path)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("a,c\n1,2\n", r"the same columns, got 'b', 'c' only in some"),
        (None, r"files of one format"),
    ],
)
def test_files_that_do_not_fit_together(tmp_path, second, message):
    (tmp_path / "0.csv").write_text("a,b\n1,2\n")
    if second is None:
        pd.DataFrame({"a": [1], "b": [2]}).to_parquet(tmp_path / "1.parquet")
    else:
        (tmp_path / "1.csv").write_text(second)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path)


def test_nothing_to_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="path must be a folder with tables"):
        read_table(tmp_path)
    with pytest.raises(FileNotFoundError, match="path must be a pattern that matches files"):
        read_table(tmp_path / "*.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1}\n{"a": "x"}\n', "cannot be parsed as JSON Lines"),
        ('{"a": 1}\n{"a": \n', "cannot be parsed as JSON Lines"),
        ("\n", "has no rows"),
        ('{"a": [1, 2]}\n', "column 'a' must hold numbers, text, booleans or times"),
    ],
)
def test_json_that_is_no_table(tmp_path, text, message):
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "t.jsonl")


def test_json_types_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("elflow.io._other_sources.MAX_JSON_BYTES", 64)
    lines = [f'{{"a": {i}, "code": "00{i}", "day": "2024-01-0{i + 1}"}}' for i in range(8)]
    lines += ['{"a": 0.5, "code": "x"}', '{"day": null, "b": true, "code": "2024-01-01"}']
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    frame = read_table(tmp_path / "t.jsonl")
    assert frame["a"].tolist()[:9] == [*range(8), 0.5]
    assert frame["code"].tolist()[7:] == ["007", "x", "2024-01-01"]
    assert frame["day"].dt.day.tolist()[:8] == list(range(1, 9))
    assert frame["b"].dtype == "boolean"


def test_damaged_files(tmp_path):
    for name in ("t.feather", "t.xlsx", "t.csv.zst", "t.csv.xz", "t.csv.bz2", "t.jsonl.gz"):
        (tmp_path / name).write_bytes(b"nothing of this kind")
        with pytest.raises(ValueError, match=rf"{name} is damaged"):
            read_table(tmp_path / name)


def test_datasets(tmp_path):
    table = small_table()
    write_parts(tmp_path / "data", table, "parquet")
    stream = open_stream(ds.dataset(tmp_path / "data"), columns=["count", "text"])
    assert stream.n_rows == 7
    pd.testing.assert_frame_equal(pd.concat(stream, ignore_index=True), table[["count", "text"]])
    assert len(stream.stamps) == 3
    in_memory = open_stream(ds.dataset(pa.Table.from_pandas(table)))
    assert in_memory.stamps == []
    assert pd.concat(in_memory)["count"].tolist() == table["count"].tolist()
    with pytest.raises(ValueError, match="must have the columns 'none'"):
        open_stream(ds.dataset(tmp_path / "data"), columns=["none"])


def test_files_that_change_while_they_are_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a\n1\n2\n")
    stream = open_stream(path)
    stream.prepare()
    path.write_text("a\n1\n2\n3\n")
    with pytest.raises(ValueError, match=r"must not change while it is read, got a change of .*t\.csv from 6 to 8"):
        list(stream)
    path.unlink()
    with pytest.raises(ValueError, match=r"must not change while it is read, got no file"):
        list(stream)


VALUES = st.sampled_from(
    ["1", "2.5", "007", "true", "0", "x", "2024-01-01", "2024-01-01 10:00:00.123456789", "2024-01-01T00:00:00Z", None]
)


@given(st.lists(st.lists(VALUES, max_size=4), min_size=1, max_size=4))
def test_types_do_not_depend_on_blocks(blocks):
    inference = TypeInference()
    for block in blocks:
        inference.add(pa.chunked_array([pa.array(block, pa.string())]))
    values = [value for block in blocks for value in block]
    whole = infer_type(pa.chunked_array([pa.array(values, pa.string())]))
    again = [inference.convert(pa.chunked_array([pa.array(block, pa.string())])) for block in blocks]
    assert {chunk.type for chunk in again} == {whole.type}
    assert [value for chunk in again for value in chunk.to_pylist()] == whole.to_pylist()
