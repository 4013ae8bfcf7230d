"""Tables in files: every format of text, types inferred or as a model has them, whole or in blocks."""

import gzip
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elflow.io.tables import read_table, scan_table
from elflow.tabular import COLUMN_KINDS, Column


def column(name, dtype="float64", kind="continuous", **more):
    return SimpleNamespace(name=name, dtype=dtype, kind=kind, **more)


def scanned(path, *like, **options):
    return pd.concat(scan_table(path, like, **options), ignore_index=True)


# Reading whole


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", ", ", "  ;  "])
def test_separators(write, separator):
    rows = [["a", "b", "some text"], ["1", "2.5", "x y"], ["3", "-4e2", "z"]]
    frame = read_table(write("\n".join(separator.join(row) for row in rows)))
    expected = pd.DataFrame({"a": [1, 3], "b": [2.5, -400.0], "some text": ["x y", "z"]})
    pd.testing.assert_frame_equal(frame, expected)


def test_types_are_found_out(write):
    text = """i,n,f,b,c,day,moment,utc,word,code,none,big
1,1,1,true,True,2024-02-29,2024-02-29 12:30:00.25,2024-02-29T12:30:00Z,a,007,,99999999999999999999
-2,NA,2.5,false,,1999-12-31,1999-12-31 23:59:59,1999-12-31T23:59:59+01:00,NULL,010,,1
"""
    frame = read_table(write(text))
    assert frame.dtypes.astype(str).to_dict() == {
        "i": "int64",
        "n": "Int64",
        "f": "float64",
        "b": "bool",
        "c": "boolean",
        "day": "datetime64[us]",
        "moment": "datetime64[us]",
        "utc": "datetime64[us, UTC]",
        "word": "str",
        "code": "str",
        "none": "float64",
        "big": "float64",
    }
    assert frame["utc"][1] == pd.Timestamp("1999-12-31T22:59:59Z")
    assert frame["code"].to_list() == ["007", "010"]
    assert frame["word"].isna().to_list() == [False, True]


def test_one_value_that_is_not_a_number_far_down_makes_a_column_text(write):
    frame = read_table(write("a\n" + "1\n" * 2_000_000 + "x\n"))
    assert frame["a"].iloc[-1] == "x"
    assert frame["a"].iloc[0] == "1"


def test_what_stands_for_missing(write, tmp_path):
    frame = read_table(write("a, b\n1, ?\n?, x\n3, -\n"), na_values=["?", "-"])
    assert frame["a"].dtype == "Int64"
    assert frame.isna().sum().to_dict() == {"a": 1, "b": 2}
    pq.write_table(pa.table({"b": ["?", "x"]}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", na_values=["?"])["b"].isna().to_list() == [True, False]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a;b\n1,5;x\n-2,25;y\n", {"a": [1.5, -2.25], "b": ["x", "y"]}),  # decimal commas
        ("a\n1,5\n2,5\n", {"a": [1.5, 2.5]}),
        ("\n\n a,b\n1,2\n\n3,4\n\n", {"a": [1, 3], "b": [2, 4]}),  # blank lines
        ("\ufeffa,b\r\n1,2\r\n", {"a": [1], "b": [2]}),  # as a spreadsheet writes it
        ('"a, b",c\n1,"x\ny"\n2,"say ""no"""\n', {"a, b": [1, 2], "c": ["x\ny", 'say "no"']}),
        ('"a\nb",c\n1,2\n', {"a\nb": [1], "c": [2]}),  # a header of two lines
        ('a, "b, c"\n1, "x, y"\n2, z\n', {"a": [1, 2], "b, c": ["x, y", "z"]}),  # quotes after blanks
        ("a,b,\n1,2,\n3,4,\n", {"a": [1, 3], "b": [2, 4]}),  # lines that end in a separator
        (",a\n0,5\n1,6\n", {"Unnamed: 0": [0, 1], "a": [5, 6]}),
        ("0,1\n5,6\n", {"0": [5], "1": [6]}),  # numbers as names, as pandas writes them
        ("é,名\nü,1\n", {"é": ["ü"], "名": [1]}),
        ("a,b\n+1,1.\n+2,.5", {"a": [1.0, 2.0], "b": [1.0, 0.5]}),
    ],
)
def test_texts_as_people_have_them(write, text, expected):
    pd.testing.assert_frame_equal(read_table(write(text)), pd.DataFrame(expected), check_dtype=False)


def test_gzip_and_tsv(write):
    text = b"a\tb\n1\tx, y\n"
    for name, content in [
        ("t.tsv", text),
        ("t.TSV.gz", gzip.compress(text, mtime=0)),
        ("t.csv.gz", gzip.compress(text)),
    ]:
        assert read_table(write(content, name)).to_dict("list") == {"a": [1], "b": ["x, y"]}


def test_a_choice_of_columns(write):
    path = write("a,b,c\n1,2,3\n")
    assert list(read_table(path, columns=["c", "a"])) == ["c", "a"]
    with pytest.raises(ValueError, match=r"data.csv must have the columns 'x', 'y', got 'a', 'b', 'c'"):
        read_table(path, columns=["x", "a", "y"])


def test_parquet_keeps_types(tmp_path):
    frame = pd.DataFrame(
        {
            "a.b": np.array([1.5, 2], dtype="float32"),
            "i": pd.array([1, None], dtype="Int16"),
            "c": pd.Categorical(["x", "y"], categories=["y", "x", "z"]),
            "t": pd.to_datetime(["2020-01-01", "2021-01-01"]).astype("datetime64[ns]"),
            "s": ["x", None],
            "b": [True, False],
        },
        index=[5, 3],
    )
    frame.to_parquet(tmp_path / "t.parquet")
    read = read_table(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read, frame.reset_index(drop=True))


def test_other_types_of_parquet(tmp_path):
    from datetime import date, time
    from decimal import Decimal

    table = pa.table(
        {
            "decimal": [Decimal("1.25")],
            "day": [date(2024, 1, 2)],
            "hour": [time(12, 30)],
            "half": pa.array([np.float16(1.5)]),
            "null": pa.nulls(1),
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    frame = read_table(tmp_path / "t.parquet")
    expected = {"decimal": "float64", "day": "datetime64[us]", "hour": "str", "half": "float32", "null": "float64"}
    assert frame.dtypes.astype(str).to_dict() == expected
    pq.write_table(pa.table({"l": [[1, 2]]}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match="column 'l' must hold numbers, text, booleans or times, got list"):
        read_table(tmp_path / "t.parquet")


# What is wrong with a file


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("d.csv", b"", "d.csv is empty"),
        ("d.csv", b"\n \n", "d.csv is empty"),
        ("d.csv", b"a,b\n", "d.csv has a header but no rows"),
        ("d.csv", b"a,b", "d.csv has a header but no rows"),
        ("d.csv", b"a,b,a\n1,2,3\n", "d.csv must name each column once, got 'a' several times"),
        ("d.csv", b"a,b\n1,2\n1\n", "d.csv must have 2 values in each row, as in its header, got 1 in row 2"),
        ("d.csv", b"a,b\n1,2\n1,2,3\n", "d.csv must have 2 values in each row, as in its header, got 3 in row 2"),
        ("d.csv", b'a, "b"\n1, 2\n1\n', "d.csv must have 2 values in each row, as in its header, got 1 in row 2"),
        ("d.csv", b"a,b\n1,\xff\n", "d.csv must be text in UTF-8, got invalid bytes in its first lines"),
        ("d.csv", "a,b\n1,2\n".encode("utf-16"), "d.csv must be text in UTF-8"),
        ("d.csv", b"1.5,2\n3,4\n", "d.csv must begin with a header of column names, got '1.5,2'"),
        ("d.csv", b'a,b\n1,"' + b"x" * 200_000, "d.csv must close every quotation mark"),
        ("d.csv.gz", b"not gzip", "d.csv.gz is damaged"),
        ("d.csv.gz", gzip.compress(b"a,b\n1,2\n", mtime=0)[:-9], "d.csv.gz is damaged"),
        ("d.parquet", b"a,b\n1,2\n", "d.parquet is damaged or not a Parquet file"),
        ("d.parquet", b"", "d.parquet is empty"),
        ("d.xlsx", b"PK", "d.xlsx is damaged or not an Excel workbook"),
        ("d.docx", b"PK", "d.docx has an unsupported format; supported: .csv"),
        ("data", b"a\n1\n", "data has an unsupported format; supported: .csv"),
    ],
)
def test_files_that_are_not_tables(write, name, content, message):
    path = write(content, name)
    with pytest.raises(ValueError, match=message):
        read_table(path)
    with pytest.raises(ValueError, match=message):
        scanned(path, column("a"), column("b"))


def test_bad_rows_far_down(write):
    path = write(b"a,b\n" + b"1,2\n" * 1_000_000 + b"1\n")
    with pytest.raises(ValueError, match="got 1 in row 1000001"):
        read_table(path)
    path = write(b"a,b\n" + b"1,2\n" * 1_000_000 + b"1,\xff\n")
    with pytest.raises(ValueError, match="must be text in UTF-8"):
        read_table(path)
    whole = np.random.default_rng(0).bytes(3_000_000).hex().encode()
    path = write(
        gzip.compress(b"a\n" + b"\n".join(whole[i : i + 50] for i in range(0, len(whole), 50)))[:-100_000], "d.csv.gz"
    )
    with pytest.raises(ValueError, match="is damaged"):
        read_table(path)


@pytest.mark.parametrize("kind", COLUMN_KINDS)
def test_every_kind_of_objects(write, kind):
    """Text of a column of Python objects becomes the dtype that suits its kind."""
    text = {"continuous": "1.5", "integer": "3", "boolean": "true", "category": "a", "datetime": "2024-05-31"}[kind]
    block = next(iter(scan_table(write(f"a\n{text}\n"), [column("a", "object", kind)])))
    assert Column.fit(pd.concat([block["a"]] * 3), kind).kind == kind


def test_unknown_kinds(write):
    with pytest.raises(ValueError, match=r"column 'a' must be of a kind in \['continuous', .*\], got 'duration'"):
        next(iter(scan_table(write("a\n1\n"), [column("a", "object", "duration")])))


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path must be an existing file, got .*nothing\.csv"):
        read_table(tmp_path / "nothing.csv")
    with pytest.raises(FileNotFoundError, match="path must be a folder with tables, got "):
        read_table(tmp_path)
    with pytest.raises(TypeError, match="na_values must be a sequence of strings"):
        read_table("data.csv", na_values="?")


@pytest.mark.parametrize("place", [10, 300, 2000, -300, -20])
def test_damaged_parquet(tmp_path, place):
    pq.write_table(pa.table({"a": np.random.default_rng(0).normal(size=5000)}), tmp_path / "t.parquet")
    whole = bytearray((tmp_path / "t.parquet").read_bytes())
    whole[place : place + 8 or None] = b"\xff" * 8
    (tmp_path / "t.parquet").write_bytes(whole)
    try:
        read_table(tmp_path / "t.parquet")
    except ValueError as error:
        assert "t.parquet" in str(error)  # noqa: PT017


# Block by block, as a model knows it


def test_blocks_have_the_types_of_the_model(write):
    path = write("s,n,f,b,t,c\n" + "7,1,1,true,2024-01-01,5\n" * 5 + "x,,,,,\n")
    like = [
        column("f"),
        column("n", "int64", "integer"),
        column("s", "str", "category"),
        column("b", "bool", "boolean"),
        column("t", "datetime64[s]", "datetime"),
        column("c", "category", "category", levels=(5, 6)),
    ]
    blocks = list(scan_table(path, like, batch_rows=2))
    assert [len(block) for block in blocks] == [2, 2, 2]
    types = [block.dtypes.astype(str).to_list() for block in blocks]
    assert types[0] == types[1] == ["float64", "int64", "str", "bool", "datetime64[s]", "int64"]
    assert types[2] == ["float64", "Int64", "str", "boolean", "datetime64[s]", "Int64"]
    assert blocks[0]["s"].to_list() == ["7", "7"]
    assert blocks[2].isna().iloc[1].to_list() == [True, True, False, True, True, True]


@pytest.mark.parametrize("dtype", ["float32", "int8", "Int64", "uint16", "boolean", "datetime64[ns, UTC]", "string"])
def test_dtypes_as_the_model_has_them(write, dtype):
    text = {"boolean": "0", "datetime64[ns, UTC]": "2024-01-01T00:00:00Z"}.get(dtype, "5")
    frame = scanned(write(f"a\n{text}\n"), column("a", dtype, "other"))
    assert str(frame["a"].dtype) == ("str" if dtype == "string" else dtype)


def test_whole_numbers_written_as_decimals(write):
    assert scanned(write("a\n3.0\n4\n"), column("a", "int64", "integer"))["a"].to_list() == [3, 4]


@pytest.mark.parametrize(
    ("text", "dtype", "message"),
    [
        ("1.5\n2\nabc\n", "float64", "column 'a' must hold numbers, as in the model, got 'abc' in row 3"),
        ("1\n2.5\n", "int64", "column 'a' must hold whole numbers, as in the model, got '2.5' in row 2"),
        ("300\n1\n", "int8", "column 'a' must hold int8, as in the model, got 1 to 300"),
        ("true\nyes\n", "bool", "column 'a' must hold true or false, as in the model, got 'yes' in row 2"),
        ("2024-01-01\n31.1.2024\n", "datetime64[us]", "column 'a' must hold dates or times.* got '31.1.2024' in row 2"),
        ("2024-01-01T00:00Z\n", "datetime64[us]", "column 'a' must hold dates or times"),
        ("2024-01-01\n", "datetime64[us, UTC]", "column 'a' must hold times with an offset from UTC"),
    ],
)
def test_values_that_the_model_cannot_have(write, tmp_path, text, dtype, message):
    with pytest.raises(ValueError, match=message):
        scanned(write("a\n" + text), column("a", dtype, "other"))
    pq.write_table(pa.table({"a": text.split()}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=message):
        scanned(tmp_path / "t.parquet", column("a", dtype, "other"))


def test_the_row_of_a_bad_value_is_counted_over_blocks(write):
    path = write("a\n" + "1\n" * 1234 + "?\n" + "1\n" * 10)
    with pytest.raises(ValueError, match=r"got '\?' in row 1235"):
        scanned(path, column("a"), batch_rows=100)
    assert scanned(path, column("a"), batch_rows=100, na_values=["?"])["a"].isna().sum() == 1


def test_columns_that_are_missing_reordered_or_too_many(write):
    path = write("b,x,a\n1,2,3\n")
    with pytest.raises(ValueError, match="must have the columns 'c', 'd', got 'b', 'x', 'a'"):
        scan_table(path, [column("a"), column("c"), column("d")])
    with pytest.warns(UserWarning, match="ignoring 1 column of .* that is not in the model: 'x'"):
        frame = scanned(path, column("a"), column("b"))
    assert frame.to_dict("list") == {"a": [3.0], "b": [1.0]}
    frame = scanned(path, column("a"), column("b"), extra=True)
    assert frame.to_dict("list") == {"a": [3.0], "b": [1.0], "x": ["2"]}


def test_progress(write, tmp_path):
    scan = scan_table(write("a\n" + "1\n" * 5000), [column("a")], batch_rows=1000)
    assert scan.rows is None
    assert scan.total == 10_002
    assert sum(len(block) for block in scan) == 5000
    assert scan.done == scan.total
    pq.write_table(pa.table({"a": np.arange(5000)}), tmp_path / "t.parquet")
    scan = scan_table(tmp_path / "t.parquet", [column("a")], batch_rows=1000)
    assert scan.rows == scan.total == 5000
    done = [scan.done for _ in scan]
    assert done == [0, 1000, 2000, 3000, 4000]
    assert scan.done == 5000
    assert sum(len(block) for block in scan) == 5000  # a second time


def test_categories_of_parquet_are_text(tmp_path):
    table = pa.table({"a": pa.array(["x", "y"]).dictionary_encode(), "n": [1, 2]})
    pq.write_table(table, tmp_path / "t.parquet")
    frame = scanned(tmp_path / "t.parquet", column("a", "category", "category"), column("n", "str", "category"))
    assert frame.to_dict("list") == {"a": ["x", "y"], "n": ["1", "2"]}


def test_memory_is_bounded(tmp_path):
    """Blocks of a row group of many rows, one at a time."""
    rows = 3_000_000
    table = pa.table({f"x{i}": np.random.default_rng(i).normal(size=rows) for i in range(4)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=rows)
    del table
    before, peak = pa.total_allocated_bytes(), 0
    for _ in scan_table(tmp_path / "t.parquet", [column(f"x{i}") for i in range(4)]):
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 30e6  # of 96 MB


def test_white_space_around_categories_of_a_model_is_kept(write):
    """A model of a table in memory has both; they were read as the same category, or as an unknown one."""
    path = write("size,kind\n1,Travel \n2, Travel\n3,Travel\n4, NA \n")
    like = column("kind", "str", "category", levels=("Travel ", "Travel"))
    assert scanned(path, column("size"), like)["kind"].fillna("missing").tolist() == [
        "Travel ",
        "Travel",
        "Travel",
        "missing",
    ]
