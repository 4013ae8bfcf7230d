"""Tables written in blocks, to files that appear only when they are complete."""

import os

import numpy as np
import pandas as pd
import pytest

from elflow.io.tables import TableWriter, read_table

FRAME = pd.DataFrame(
    {
        "f": [0.1, 1.0, np.nan],
        "i": pd.array([1, None, 3], dtype="Int64"),
        "b": [True, False, True],
        "s": ["x, y", 'say "no"', None],
        "t": pd.to_datetime(["2020-01-01 00:00:00", "2020-01-02 03:04:05", "1999-12-31 00:00:00"]),
    }
)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz", "t.parquet", "t.pq"])
def test_what_is_written_can_be_read(tmp_path, name):
    with TableWriter(tmp_path / name) as writer:
        writer.write(FRAME[:2])
        writer.write(FRAME[2:])
        assert os.listdir(tmp_path) != [name]
    assert os.listdir(tmp_path) == [name]
    assert writer.rows == 3
    pd.testing.assert_frame_equal(read_table(tmp_path / name), FRAME)


def test_times_in_the_hour_in_which_clocks_go_back(tmp_path):
    hours = pd.date_range("2022-11-06 00:30", periods=4, freq="h", tz="America/New_York")
    with TableWriter(tmp_path / "t.csv") as writer:
        writer.write(pd.DataFrame({"t": hours}))
    assert [line[11:] for line in (tmp_path / "t.csv").read_text().split("\n")[1:-1]] == [
        "00:30:00-0400",
        "01:30:00-0400",
        "01:30:00-0500",
        "02:30:00-0500",
    ]


def test_same_content_same_bytes(tmp_path):
    for name in ["a.csv.gz", "b.csv.gz"]:
        with TableWriter(tmp_path / name) as writer:
            writer.write(FRAME)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_whole_or_not_at_all(tmp_path, name):
    (tmp_path / name).write_bytes(b"before")

    def fail():
        with TableWriter(tmp_path / name) as writer:
            writer.write(FRAME)
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    with pytest.raises(ValueError, match="must have rows, but none were written"), TableWriter(tmp_path / name):
        pass
    assert os.listdir(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"before"


def test_first_values_all_missing(tmp_path):
    with TableWriter(tmp_path / "t.parquet") as writer:
        writer.write(pd.DataFrame({"s": pd.Series([None], dtype=object)}))
        writer.write(pd.DataFrame({"s": ["x"]}))
    assert read_table(tmp_path / "t.parquet")["s"].iloc[1] == "x"


def test_standard_output(capsys):
    with TableWriter("-") as writer:
        writer.write(FRAME[["i"]])
    assert capsys.readouterr().out == "i\n1\n\n3\n".replace("\n\n", '\n""\n')


def test_times_look_alike_in_all_blocks(tmp_path):
    days, seconds = pd.to_datetime(["2020-01-01", "2020-01-02"]), pd.to_datetime(["2020-01-01 01:02:03"])
    with TableWriter(tmp_path / "t.csv") as writer:
        writer.write(pd.DataFrame({"day": days[:1], "moment": seconds, "zoned": seconds.tz_localize("UTC")}))
        writer.write(pd.DataFrame({"day": days[1:], "moment": days[1:], "zoned": days[1:].tz_localize("UTC")}))
    rows = (tmp_path / "t.csv").read_text().split("\n")
    assert rows[1] == "2020-01-01,2020-01-01 01:02:03,2020-01-01 01:02:03+0000"
    assert rows[2] == "2020-01-02,2020-01-02 00:00:00,2020-01-02 00:00:00+0000"
    assert str(read_table(tmp_path / "t.csv")["zoned"].dtype) == "datetime64[us, UTC]"


def test_times_in_a_column_named_like_an_argument(tmp_path):
    frame = pd.DataFrame({"self": pd.to_datetime(["2020-01-01"])})
    with TableWriter(tmp_path / "t.csv") as writer:
        writer.write(frame)
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.csv"), frame, check_dtype=False)


def test_devices_are_not_replaced(tmp_path):
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with TableWriter(pipe) as writer:
        writer.write(FRAME[["b"]])
    assert os.read(reader, 100) == b"b\nTrue\nFalse\nTrue\n"
    os.close(reader)
    assert pipe.is_fifo()


def test_targets_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match=r"has an unsupported format; supported: \.csv"):
        TableWriter(tmp_path / "t.docx")
    with pytest.raises(FileNotFoundError, match=r"path must be in an existing folder, got .*t\.csv"):
        TableWriter(tmp_path / "no" / "t.csv")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(IsADirectoryError, match=r"path must be a file, got the folder .*d\.csv"):
        TableWriter(tmp_path / "d.csv")
