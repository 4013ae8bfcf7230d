"""Text files that are damaged, huge or misleading: the true reason, with row and column, or the right values."""

import gzip
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from _command import QUICK, fails, run, succeeds

from elflow.cli._data import open_data
from elflow.io import open_stream
from elflow.io.tables import TableWriter, TooLargeError, read_names, read_table, scan_table
from elflow.tabular import Schema

MEGABYTE = 1 << 20


def scan(path, frame):
    """The whole table, read block by block as the columns of another one."""
    return pd.concat(scan_table(path, Schema.fit(frame).columns, batch_rows=1000), ignore_index=True)


def test_long_values(write):
    """A value may be longer than what is read to detect the format, but not longer than a block."""
    long = "x" * 5_000_000
    for text in (f"a,b\n1,{long}\n2,y\n", f'a,b\n1,"{long}"\n2,y\n', f'a, "b"\n1, "{long}"\n2, "y"\n'):
        assert read_table(write(text))["b"].tolist() == [long, "y"]
    for cell in ("x" * 9_000_000, '"' + "x\n" * 4_500_000 + '"'):
        with pytest.raises(
            ValueError, match=r"at most 4,194,304 bytes in a row, got more (in|after) row [01]: a quotation"
        ):
            read_table(write(f"a,b\n1,{cell}\n2,y\n"))
        with pytest.raises(ValueError, match=r"at most 4,194,304 bytes in a row, got more after row \d+: a quotation"):
            read_table(write("a,b\n" + "1,x\n" * 300_000 + f"1,{cell}\n2,y\n"))
    with pytest.raises(ValueError, match=r"at most 4,194,304 bytes in a row, got more after row 0"):
        read_table(write(f'a, "b"\n1, "x"\n1, "y"\n1, "{"x" * 9_000_000}"\n'))


def test_unclosed_quotation_marks(write):
    """They swallow all rows after them."""
    rows = "1,x\n" * 1000
    with pytest.raises(ValueError, match="must close every quotation mark, got an open one in row 1001"):
        read_table(write(f'a,b\n{rows}1,"x\n{rows}'))
    with pytest.raises(ValueError, match="must close every quotation mark, got an open one in row 2"):
        read_table(write('a, "b"\n1, "x"\n1, "y\n2, z\n'))
    assert read_table(write('a,b\n1,"x\nz"\n2,"y"')).to_dict("list") == {"a": [1, 2], "b": ["x\nz", "y"]}


@pytest.mark.parametrize("header", ["a,b", 'a, "b"'])
def test_bytes_that_are_no_text(write, header):
    """After the first megabyte, which is read to detect the format; the row is known."""
    row = b"1," + 38 * b"x" + b"\n"  # few long rows, since each of them takes time
    rows = (header + "\n").encode() + row * 30_000
    for content, message in [
        (b"1,a\0b\n", "got a NUL byte in row 30001, column 'b': convert"),
        (b"1,caf\xe9\n", "got invalid bytes "),
        ("1,x\n".encode("utf-16-le"), "got a NUL byte in row 30001, column"),
    ]:
        with pytest.raises(ValueError, match=f"must be text in UTF-8, {message}"):
            read_table(write(rows + content + b"2,y\n"))
    with pytest.raises(ValueError, match="got invalid bytes in row 30001, column 'b'"):
        read_table(write(b"a,b\n" + row * 30_000 + b"1,caf\xe9\n"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n".encode("utf-16"), "got UTF-16 in its first lines"),
        ("a,b\n1,2\n".encode("utf-16-le"), "got NUL bytes in its first lines"),
        ("a,b\n1,2\n".encode("utf-32"), "got "),
        ("a,b\n1,caf\xe9\n".encode("latin-1"), "got invalid bytes in its first lines"),
    ],
)
def test_other_encodings(write, content, message):
    with pytest.raises(ValueError, match=f"must be text in UTF-8, {message}"):
        read_table(write(content))


@pytest.mark.parametrize("header", ["a,b", '"a","b"', 'a, "b"', "\na,b"])
def test_byte_order_mark(write, header):
    path = write(f"\ufeff{header}\n1,2\n".encode())
    assert read_table(path).to_dict("list") == {"a": [1], "b": [2]}
    assert read_names(path) == ["a", "b"]


def test_decimal_commas_far_down(write):
    """The first rows, from which the format is detected, have none."""
    path = write("a;b\n" + "1;2\n" * 5000 + "1,5;3\n")
    frame = read_table(path)
    assert frame["a"].tolist() == [1.0] * 5000 + [1.5]
    assert frame["b"].tolist() == [2] * 5000 + [3]
    pd.testing.assert_frame_equal(scan(path, frame), frame)
    # points decide, too
    path = write("a;b\n" + "1;2\n" * 5000 + "1.5;3\n")
    assert read_table(path)["a"].iloc[-1] == 1.5
    # in one file, commas and points cannot both be decimal signs: 1.234 might be 1234
    mixed = write("a;b\n" + "1,5;2\n" * 5000 + "1.234;3\n")
    assert pd.api.types.is_string_dtype(read_table(mixed)["a"].dtype)
    with pytest.raises(ValueError, match=r"column 'a' must hold numbers, as in the model, got '1\.234' in row 5001"):
        scan(mixed, frame)
    with pytest.warns(UserWarning, match="column 'a' of .* is read as text: its numbers have decimal commas"):
        frame = read_table(write("a;b\n" + "1,5;2.5\n" * 300))
    assert frame["a"].tolist() == ["1,5"] * 300


def test_memory_is_limited(write):
    """A small compressed file may hold a table that does not fit into memory."""
    content = b"a,b\n" + b"0,0\n" * 5_000_000
    path = write(gzip.compress(content), "d.csv.gz")
    assert path.stat().st_size < 30_000
    tracemalloc.start()
    for read in (read_table, lambda path, **limits: scan_table(path, [], extra=True).read(**limits)):
        with pytest.raises(ValueError, match=r"max_memory must be at least .* got 2,000,000 bytes, which its first"):
            read(path, max_memory=2_000_000)
    assert tracemalloc.get_traced_memory()[1] < 100 * MEGABYTE
    tracemalloc.stop()
    with pytest.raises(ValueError, match="max_memory must be at least 1, got 0"):
        read_table(path, max_memory=0)


def test_large_tables_in_small_files_are_streamed(write, monkeypatch):
    """The size of a compressed file does not tell how much memory its table needs."""
    path = write(gzip.compress(b"a,b\n" + b"1,2\n" * 5000), "d.csv.gz")
    assert open_data(path, None, None, None, 1).stream is None
    monkeypatch.setattr("elflow.cli._data.MAX_LOADED_MEMORY", 10_000)
    data = open_data(path, None, ["b"], None, 1)
    assert data.stream is not None
    assert data.names == ["a"]


def test_decimal_commas_of_streams(write):
    stream = open_stream(write("a;b\n" + "1;2\n" * 5000 + "1,5;3\n"))
    assert pd.concat(stream)["a"].tolist() == [1.0] * 5000 + [1.5]


def test_dropped_columns_are_not_read(write, tmp_path):
    """They may be what exceeds the memory, or what cannot be read."""
    rng = np.random.default_rng(0)
    rows = [f"{x},{y},{'z' * 1000}" for x, y in rng.normal(size=(500, 2))]
    path = write("a,b,text\n" + "\n".join(rows))
    with pytest.raises(TooLargeError, match="max_memory must be at least the size"):
        read_table(path, max_memory=100_000)
    assert list(read_table(path, drop=["text"], max_memory=100_000)) == ["a", "b"]
    succeeds("fit", path, "-o", tmp_path / "m.elf", "--drop", "text", "--drop", "b", "-q", *QUICK)
    report = ["report", tmp_path / "m.elf", path, "-o", tmp_path / "r.html", "--max-memory"]
    code, _, err = run(*report, "1kB")  # after a warning about other columns
    assert (code, "--max-memory must be at least the size of the values of" in err) == (2, True)
    assert "--max-memory must be a size such as 500MB or 8GB, got 'much'" in fails(*report, "much")
    assert list(read_table(path, drop=["text", "b"])) == ["a"]
    with pytest.raises(ValueError, match=r"must have the columns 'c', got 'a', 'b', 'text'"):
        read_table(path, drop=["c"])


# Formulas in text


@pytest.mark.parametrize("name", ["new.csv", "new.tsv", "new.csv.gz"])
def test_formulas_are_disarmed(tmp_path, name):
    frame = pd.DataFrame(
        {
            "=cmd": ["=HYPERLINK()", "+1", "-x", "@a", "plain", None],
            "n": [-1, 2, 3, 4, 5, 6],
            "time": pd.to_datetime(["2024-01-01 00:00:00.5"] * 6),
            "category": pd.Categorical(["=1", "b", "b", "b", "b", "b"]),
        }
    )
    with TableWriter(tmp_path / name, csv_safe=True) as writer:
        writer.write(frame)
    safe = read_table(tmp_path / name)
    assert list(safe) == ["'=cmd", "n", "time", "category"]
    assert safe["'=cmd"].tolist()[:5] == ["'=HYPERLINK()", "'+1", "'-x", "'@a", "plain"]
    assert safe["'=cmd"].isna().tolist() == [False] * 5 + [True]
    assert safe["n"].tolist() == frame["n"].tolist()
    assert safe["time"].tolist() == frame["time"].tolist()
    assert safe["category"].tolist() == ["'=1", "b", "b", "b", "b", "b"]
    with pytest.raises(ValueError, match="csv_safe must be False unless a text file is written, got True"):
        TableWriter(tmp_path / "new.parquet", csv_safe=True)


def test_formulas_of_samples_are_disarmed(write, tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=200), "+b": rng.choice(["=1+1", "x"], 200)})
    path = write(frame)
    succeeds("fit", path, "-o", tmp_path / "m.elf", "-q", *QUICK)
    for arguments in (
        ["sample", tmp_path / "m.elf", "-n", 50, "-o", tmp_path / "new.csv"],
        ["score", tmp_path / "m.elf", path, "--append", "-o", tmp_path / "new.csv"],
    ):
        succeeds(*arguments)
        assert set(read_table(tmp_path / "new.csv")["+b"]) == {"=1+1", "x"}
        succeeds(*arguments, "--csv-safe")
        assert set(read_table(tmp_path / "new.csv")["'+b"]) == {"'=1+1", "x"}
    message = fails("sample", tmp_path / "m.elf", "-o", tmp_path / "new.parquet", "--csv-safe")
    assert "--csv-safe must be False unless a text file is written" in message
