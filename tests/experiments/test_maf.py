"""MAF's data sets from files in the formats of its archive, made here: the recipes, and what is refused."""

import io
import pickle
import struct
import sys

import numpy as np
import pandas as pd
import pytest

from experiments.data.frames import read_frame
from experiments.data.maf import MAF_SETS, REDRAWN_SETS, find_maf, maf_files, read_maf

ran = []


def note(*args):
    """What a hostile pickle would run."""
    ran.append(args)


class Hostile:
    def __reduce__(self):
        return note, ("run",)


def equal(splits, train, val, test):
    """That the rows are these, in float32 and in the order of C."""
    for x, expected in zip(splits, (train, val, test), strict=True):
        assert x.dtype == np.float32
        assert x.flags.c_contiguous
        np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-6)
    return True


def tenths(x):
    """Rows for training, validation and test: the last tenth is for test, that of the rest for validation."""
    test = len(x) // 10
    val = (len(x) - test) // 10
    return x[: len(x) - test - val], x[len(x) - test - val : len(x) - test], x[len(x) - test :]


def saved(path, data):
    path.parent.mkdir(exist_ok=True)
    np.save(path, data)
    return path


# POWER


def test_power(tmp_path):
    data = np.random.default_rng(0).normal(3, 2, (1234, 8))
    saved(tmp_path / "power" / "data.npy", data)
    splits = read_maf("power", tmp_path)
    assert [len(x) for x in splits] == [1000, 111, 123]

    rng = np.random.RandomState(42)
    rng.shuffle(data)
    voltage, active, meters = rng.rand(1234, 1), rng.rand(1234, 1), rng.rand(1234, 3)
    data = data[:, [0, 2, 4, 5, 6, 7]]
    data += np.hstack([0.001 * active, 0.01 * voltage, meters, np.zeros((1234, 1))])
    known = data[:1111]
    assert equal(splits, *tenths((data - known.mean(0)) / known.std(0)))
    np.testing.assert_allclose(np.concatenate(splits[:2]).std(0), 1, rtol=1e-5)
    assert abs(np.concatenate(splits).std(0) - 1).max() > 1e-4  # not by all rows


def test_power_is_the_same_every_time_whatever_the_seed_and_the_dtype(tmp_path):
    data = np.random.default_rng(0).integers(0, 100, (50, 8))
    saved(tmp_path / "power" / "data.npy", data)
    first = read_maf("power", tmp_path, seed=0)
    saved(tmp_path / "power" / "data.npy", np.asfortranarray(data, np.float32))
    assert equal(read_maf("power", tmp_path, seed=1), *first)


# MINIBOONE


def test_miniboone(tmp_path):
    data = np.random.default_rng(0).gamma(2, 3, (100, 43))
    saved(tmp_path / "miniboone" / "data.npy", data)
    splits = read_maf("miniboone", tmp_path)
    assert [len(x) for x in splits] == [81, 9, 10]
    assert equal(splits, *tenths((data - data[:90].mean(0)) / data[:90].std(0)))


@pytest.mark.parametrize(("name", "width"), [("power", 8), ("miniboone", 43)])
def test_arrays_that_are_wrong(tmp_path, name, width):
    path = tmp_path / name / "data.npy"
    right = np.random.default_rng(0).normal(size=(40, width))
    for data, message in [
        (right[:, 1:], rf"must hold numbers of shape \(N, {width}\), got float64 of shape \(40, {width - 1}\)"),
        (right[0], rf"must hold numbers of shape \(N, {width}\), got float64 of shape \({width},\)"),
        (right.astype(str), rf"must hold numbers of shape \(N, {width}\), got <U32"),
        (right[:10], r"must have at least 11 rows, got 10"),
        (right[:0], r"must have at least 11 rows, got 0"),
        (np.where(np.arange(width) == 4, 1.0, right), r"finite values that differ in each column" if width > 8 else ""),
        (np.where(right == right[5, 4], np.nan, right), r"finite values that differ in each column, got others"),
        (np.where(right == right[5, 4], np.inf, right), r"finite values"),
    ]:
        saved(path, data)
        if message:
            with pytest.raises(ValueError, match=rf"{name}.*{message}"):
                read_maf(name, tmp_path)
        else:
            read_maf(name, tmp_path)  # a constant meter has noise all the same
    saved(path, right)
    assert len(read_maf(name, tmp_path).train) == 33
    for data in (b"", path.read_bytes()[:20], path.read_bytes()[:-3], b"nothing of the kind"):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"data\.npy cannot be read: it is damaged or has an unsupported"):
            read_maf(name, tmp_path)


def test_values_that_are_not_finite_among_the_rows_for_test(tmp_path):
    data = np.random.default_rng(0).normal(size=(40, 43))
    data[-1, 3] = -np.inf
    saved(tmp_path / "miniboone" / "data.npy", data)
    with pytest.raises(ValueError, match=r"miniboone must have finite values, got others among the rows for test"):
        read_maf("miniboone", tmp_path)


def test_pickled_arrays_are_not_run(tmp_path):
    np.save(saved(tmp_path / "power" / "data.npy", 0), np.array([Hostile()], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"data\.npy cannot be read"):
        read_maf("power", tmp_path)
    np.savez(tmp_path / "power_halfyear_maf.npz", **dict.fromkeys(["train", "val", "test"], np.array([Hostile()])))
    with pytest.raises(ValueError, match=r"power_halfyear_maf\.npz cannot be read"):
        read_maf("power-halfyear", tmp_path)
    assert not ran


# GAS


def gases(n=200, seed=0):
    """A table like GAS: sensors 0 to 15, of which 2i and 2i + 1 are nearly the same, and three other columns."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 8)).repeat(2, axis=1) + 0.01 * rng.normal(size=(n, 16))
    table = pd.DataFrame(5 + 2 * x, columns=[f"s{i}" for i in range(16)])
    for i, name in enumerate(["Time", "Meth", "Eth"]):
        table.insert(5 * i, name, rng.normal(size=n))
    table["Meth"] = np.arange(n)  # of another type, and so in another block
    return table


def expected_of_gas(table):
    """The recipe in words of pandas."""
    table = table.drop(columns=["Time", "Meth", "Eth"])
    while True:
        many = (table.corr() > 0.98).sum(axis=1) > 1
        if not many.any():
            break
        table = table.drop(columns=many.idxmax())
    return tenths(((table - table.mean()) / table.std()).to_numpy()), list(table.columns)


def pickled(folder, table, protocol):
    path = folder / "gas" / "ethylene_CO.pickle"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(table if isinstance(table, bytes) else pickle.dumps(table, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_gas(tmp_path, protocol):
    table = gases().sample(frac=1, random_state=0)
    path = pickled(tmp_path, table, protocol)
    parts, kept = expected_of_gas(table)
    assert kept == [f"s{i}" for i in range(1, 16, 2)]  # of two that correlate the first goes
    splits = read_maf("gas", tmp_path)
    assert [len(x) for x in splits] == [162, 18, 20]
    assert equal(splits, *parts)
    np.testing.assert_allclose(np.concatenate(splits).std(0, ddof=1), 1, rtol=1e-5)  # by all rows
    frame = read_frame(path)
    assert list(frame) == list(table.columns)
    assert all(np.array_equal(frame[name], table[name]) and frame[name].dtype == table[name].dtype for name in table)


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize(
    "names",
    [
        lambda names: names.astype(object),
        lambda names: pd.Index(names.to_numpy(str).astype(object), dtype=pd.StringDtype("python", na_value=np.nan)),
        lambda names: names.astype("string[pyarrow]"),
        lambda names: names.insert(0, "x").astype("string[pyarrow]")[1:],  # which begins within its buffer
    ],
)
def test_names_in_every_form(tmp_path, protocol, names):
    table = gases()
    expected = list(table.columns)
    table.columns = names(table.columns)
    assert list(read_frame(pickled(tmp_path, table, protocol))) == expected


def test_columns_that_are_numbered_and_in_columns_of_memory(tmp_path):
    for table in (
        pd.DataFrame(np.eye(3)),
        pd.DataFrame(np.asfortranarray(np.arange(6.0).reshape(3, 2)), columns=[7, 3]),
    ):
        for protocol in (2, 5):
            frame = read_frame(pickled(tmp_path, table, protocol))
            assert list(frame) == [str(name) for name in table.columns]
            assert np.array_equal(np.stack(list(frame.values()), 1), table.to_numpy())


def test_chains_of_correlation(tmp_path):
    """What correlates with a column that has gone stays: a goes for b, and b, which was close to c, for c."""
    rng = np.random.default_rng(1)
    table = gases(2000)
    steps = 0.17 * rng.normal(size=(2000, 2)).cumsum(axis=1)
    base = rng.normal(size=2000)
    for i in range(8):
        table[f"s{i}"] = rng.normal(size=2000)
    table["s8"], table["s9"], table["s10"] = base, base + steps[:, 0], base + steps[:, 1]
    table["s11"], table["s12"], table["s13"] = table["s15"], table["s15"], table["s15"]
    table["s14"] = table["s15"]
    table = table.drop(columns=["s0", "s1"])
    correlation = table.corr()
    assert correlation.loc["s8", "s9"] > 0.98 > correlation.loc["s8", "s10"]
    assert correlation.loc["s9", "s10"] > 0.98
    parts, kept = expected_of_gas(table)
    assert kept == ["s2", "s3", "s4", "s5", "s6", "s7", "s10", "s15"]
    pickled(tmp_path, table, 5)
    assert equal(read_maf("gas", tmp_path), *parts)


def test_gas_as_text(tmp_path):
    table = gases()
    for index in (True, False):
        (tmp_path / "gas").mkdir(exist_ok=True)
        table.to_csv(tmp_path / "gas" / "ethylene_CO.csv", index=index)
        assert equal(read_maf("gas", tmp_path), *expected_of_gas(table)[0])
    (tmp_path / "gas" / "ethylene_CO.csv").write_text("Time,Meth,Eth,s\n1,2,3,four\n")
    with pytest.raises(ValueError, match=r"ethylene_CO\.csv cannot be read.*four"):
        read_maf("gas", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop(columns="Eth"), r"must have the columns 'Time', 'Meth', 'Eth', got 'Time', 's0'"),
        (lambda table: table.drop(columns=["s0", "s1"]), r"must have 8 sensors .* 0.98, got 7: this is not the file"),
        (lambda table: table.assign(s3=1.0), r"finite values that differ in each column, got others in 's3'"),
        (lambda table: table.assign(s3=np.inf), r"finite values that differ in each column, got others in 's3'"),
        (lambda table: table[:10], r"must have at least 11 rows, got 10"),
        (lambda table: table.assign(s3="text"), r"its columns must be of numbers, got ArrowTexts"),
        (lambda table: table.assign(s3=pd.Timestamp(0)), r"it refers to pandas\S+, which is refused"),
        (lambda table: table.assign(s3=table["s3"].astype(object)), r"its columns must be of numbers, got '\|O8'"),
        (lambda table: table.assign(s3=table["s3"] > 0), r"its columns must be of numbers, got '\|b1'"),
        (lambda table: table.rename(columns={"s1": "s2"}), r"it must have one column for each name, got 19 for"),
        (lambda table: table["s1"], r"it refers to pandas\S+, which is refused"),
        (lambda table: [1, 2], r"it must hold a pandas DataFrame, got list"),
        (lambda table: table.to_numpy(), r"it must hold a pandas DataFrame, got an array"),
        (lambda table: {"data": Hostile()}, r"it refers to \S*test_maf.note, which is refused because it could run"),
        (lambda table: table.assign(s3=[Hostile()] * len(table)), r"test_maf.note, which is refused"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickles_that_are_refused(tmp_path, change, message, protocol):
    pickled(tmp_path, change(gases()), protocol)
    with pytest.raises(ValueError, match=rf"ethylene_CO\.pickle .*({message})"):
        read_maf("gas", tmp_path)
    assert not ran


def test_hostile_attributes_of_a_frame_are_not_run(tmp_path):
    table = gases()
    table.attrs["note"] = Hostile()
    data = pickle.dumps(table)
    pickle.loads(data)  # which does run it
    assert ran.pop() == ("run",)
    pickled(tmp_path, data, None)
    with pytest.raises(ValueError, match=r"test_maf.note, which is refused because it could run code"):
        read_maf("gas", tmp_path)
    assert not ran


@pytest.mark.parametrize(
    "name",
    ["os system", "builtins eval", "__builtin__ eval", "pandas read_pickle", "pandas.io.common os", "numpy load"],
)
def test_names_that_are_refused(tmp_path, name):
    module, attribute = name.split()
    pickled(tmp_path, f"c{module}\n{attribute}\n(S'1/0'\ntR.".encode(), None)
    with pytest.raises(ValueError, match=rf"it refers to {module}\.{attribute}, which is refused"):
        read_maf("gas", tmp_path)


def test_damaged_pickles(tmp_path):
    data = pickle.dumps(gases(20), 5)
    for part in (b"", data[:1], data[:100], data[: len(data) // 2], data[:-1], b"text", b"\x80\x05N."):
        pickled(tmp_path, part, None)
        with pytest.raises(
            ValueError, match=r"ethylene_CO\.pickle cannot be read: it is damaged or has an unsupported format \(."
        ):
            read_maf("gas", tmp_path)


# The layout that pandas wrote before its version 1.3, and under Python 2. No such pandas runs here: the opcodes are put
# together by hand, after what its `BlockManager.__getstate__` and `Index.__reduce__` returned.


def text(value):
    return b"U" + bytes([len(value)]) + value.encode()


def name_of(module, name):
    return f"c{module}\n{name}\n".encode()


def integer(value):
    return b"J" + struct.pack("<i", value)


def tuple_of(*items):
    return b"(" + b"".join(items) + b"t"


def list_of(*items):
    return b"](" + b"".join(items) + b"e"


def dict_of(**items):
    return b"}(" + b"".join(text(key.lstrip("x")) + value for key, value in items.items()) + b"u"


def array_of(a):
    empty = tuple_of(name_of("numpy", "ndarray"), tuple_of(integer(0)), text("b"))
    kind = name_of("numpy", "dtype") + tuple_of(
        text(a.dtype.str[1:] + "8" * (a.dtype == object)), integer(0), integer(1)
    )
    order = text("|" if a.dtype == object else "<")
    kind += b"R" + tuple_of(integer(3), order, b"N", b"N", b"N", integer(-1), integer(-1), integer(0)) + b"b"
    by_column = a.flags.f_contiguous and not a.flags.c_contiguous
    raw = a.tobytes("F" if by_column else "C")
    data = list_of(*map(text, a)) if a.dtype == object else b"T" + struct.pack("<i", len(raw)) + raw
    state = tuple_of(integer(1), tuple_of(*map(integer, a.shape)), kind, b"\x88" if by_column else b"\x89", data)
    return name_of("numpy.core.multiarray", "_reconstruct") + empty + b"R" + state + b"b"


def index_of(modules, name, a):
    new, cls = name_of(f"{modules}.base", "_new_Index"), name_of(f"{modules}.{name[0]}", name[1])
    return new + tuple_of(cls, dict_of(data=array_of(a), name=b"N")) + b"R"


def old_pickle(blocks, names, rows, indexes, internals):
    """A DataFrame of blocks (values, places), as old pandas pickled it."""
    axes = list_of(
        index_of(indexes, ("base", "Index"), np.array(names, object)),
        index_of(indexes, ("numeric", "Int64Index"), rows),
    )
    newest = dict_of(
        axes=axes, blocks=list_of(*(dict_of(values=array_of(values), mgr_locs=places) for values, places in blocks))
    )
    values = list_of(*(array_of(values) for values, _ in blocks))
    state = tuple_of(axes, values, list_of(), b"}" + text("0.14.1") + newest + b"s")
    manager = name_of(internals, "BlockManager") + b")\x81" + state + b"b"
    frame = name_of("pandas.core.frame", "DataFrame") + b")\x81"
    return b"\x80\x02" + frame + dict_of(_metadata=b"]", _typ=text("dataframe"), _data=manager) + b"b."


@pytest.mark.parametrize(
    ("indexes", "internals"),
    [
        ("pandas.indexes", "pandas.core.internals"),
        ("pandas.core.indexes", "pandas.core.internals"),
        ("pandas.core.indexes", "pandas.core.internals.managers"),
    ],
)
def test_gas_as_old_pandas_pickled_it(tmp_path, indexes, internals):
    table = gases().sample(frac=1, random_state=0)
    names = list(table.columns)
    floats = [i for i, name in enumerate(names) if name != "Meth"]
    slice_of_one = name_of("__builtin__", "slice") + tuple_of(*map(integer, (names.index("Meth"), 6, 1))) + b"R"
    blocks = [
        (np.asfortranarray(table.iloc[:, floats].to_numpy().T), array_of(np.array(floats))),
        (table[["Meth"]].to_numpy().T, slice_of_one),
    ]
    data = old_pickle(blocks, names, table.index.to_numpy(), indexes, internals)
    path = pickled(tmp_path, data, None)
    frame = read_frame(path)
    assert list(frame) == names
    assert all(np.array_equal(frame[name], table[name]) for name in names)
    assert equal(read_maf("gas", tmp_path), *expected_of_gas(table)[0])
    pickled(tmp_path, data.replace(b"cpandas.core.frame\nDataFrame\n", b"cpandas.core.frame\nos\n"), None)
    with pytest.raises(ValueError, match=r"it refers to pandas.core.frame.os, which is refused"):
        read_maf("gas", tmp_path)
    pickled(tmp_path, data.replace(b"0.14.1", b"0.13.1"), None)
    with pytest.raises(ValueError, match=r"cannot be read: it is damaged or has an unsupported format \(.*0\.14\.1"):
        read_maf("gas", tmp_path)


# HEPMASS

COUNTED = [f"f{i}" for i in (5, 10, 15, 20, 25)]
"""Features that take few values."""
KEPT = [f"f{i}" for i in range(1, 27) if i % 5]


def collisions(n, seed=0):
    """A table like HEPMASS: a label, and features f0 to f26. Of f0 the smallest value comes often."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.normal(2, 3, (n, 27)), columns=[f"f{i}" for i in range(27)])
    table[COUNTED] = rng.integers(0, 3, (n, 5))
    table["f0"] = table["f0"].clip(lower=-1)
    table.insert(0, "# label", rng.integers(0, 2, n).astype(float))
    return table


def written(folder, train, test):
    (folder / "hepmass").mkdir(exist_ok=True)
    for name, table in [("train", train), ("test", test)]:
        content = table if isinstance(table, str) else table.to_csv(index=False, float_format="%.18e")
        (folder / "hepmass" / f"1000_{name}.csv").write_text(content)


def equal_to_hepmass(splits, train, test):
    """That these are the features of class 1 that are kept, standardised by all rows but those for test."""
    train, test = (table[table["# label"] == 1][KEPT] for table in (train, test))
    n = int(0.1 * len(train))
    assert [len(x) for x in splits] == [len(train) - n, n, len(test)]
    test = (test - train.mean()) / train.std()
    train = (train - train.mean()) / train.std()
    return equal(splits, train[:-n], train[-n:], test)


def test_hepmass(tmp_path):
    train, test = collisions(600), collisions(300, seed=1)
    train["f2"] = train["f2"].clip(upper=3)  # a greatest value that comes often is not looked at
    train.loc[:5, "f3"] = -99.0
    train.loc[:5, "# label"] = 1.0, 1.0, 1.0, 1.0, 1.0, 0.0
    assert sum(train["f3"][train["# label"] == 1] == -99) == 5  # as often as may be
    written(tmp_path, train, test.assign(mass=1000.0))
    assert equal_to_hepmass(read_maf("hepmass", tmp_path), train, test)
    train.loc[5, "# label"] = 1.0  # once too often
    written(tmp_path, train, test)
    with pytest.raises(
        ValueError, match=r"1000_train\.csv must have 21 features .* at most 5 times, got 20: this is not"
    ):
        read_maf("hepmass", tmp_path)


def test_headers_of_hepmass_that_name_more_or_less_than_there_is(tmp_path):
    train, test = collisions(100), collisions(50, seed=1)
    header, rows = test.to_csv(index=False).split("\n", 1)
    for content in (f"{header}\n{rows}", f"{header},mass\n{rows}", header + "\n" + rows.replace("\n", ",\n")):
        written(tmp_path, train, content)
        assert equal_to_hepmass(read_maf("hepmass", tmp_path), train, test)


def test_hepmass_that_is_wrong(tmp_path):
    train, test = collisions(100), collisions(50)
    lines = test.to_csv(index=False)
    for one, other, message in [
        (
            train,
            test.drop(columns="f7"),
            r"1000_test\.csv must have the columns of 1000_train.*, got .* without 'f7'",
        ),
        (train.drop(columns="f7"), test, r"1000_train\.csv must have 21 features .*, got 20"),
        (train[train["# label"] == 0], test, r"1000_train\.csv must have at least 10 rows of class 1, got 0"),
        (train, test[test["# label"] == 0], r"hepmass must have rows for test, got none"),
        (train.assign(f7=np.nan), test, r"1000_train\.csv cannot be read"),
        (train, lines.rstrip("\n") + ",7\n", r"1000_test\.csv must have 28 values in each row, .* got 29 in row 50"),
        (
            train,
            lines.replace("\n0", "\nzero"),
            r"1000_test\.csv cannot be read: it is damaged or has an unsupported format \(.*zero",
        ),
        (train, "", r"1000_test\.csv is empty"),
        (train, lines[: lines.index("\n") + 1], r"1000_test\.csv has a header but no rows"),
    ]:
        written(tmp_path, one, other)
        with pytest.raises(ValueError, match=message):
            read_maf("hepmass", tmp_path)


# BSDS300


def patches(dtype, n=(30, 20, 10)):
    rng = np.random.default_rng(0)
    return {
        part: rng.normal(size=(k, 63)).astype(dtype) for part, k in zip(["train", "validation", "test"], n, strict=True)
    }


def written_hdf5(folder, parts):
    import h5py

    folder.mkdir(exist_ok=True)
    with h5py.File(folder / "BSDS300.hdf5", "w") as file:
        for part, x in parts.items():
            file[part] = x
    return folder / "BSDS300.hdf5"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["BSDS300", "bsds300"])
def test_bsds300(tmp_path, dtype, name):
    parts = patches(dtype)
    written_hdf5(tmp_path / name, parts)
    for folder in (tmp_path, tmp_path / name):
        splits = read_maf("bsds300", folder)
        assert all(np.array_equal(x, np.float32(part)) for x, part in zip(splits, parts.values(), strict=True))
        assert equal(splits, *parts.values())


def test_bsds300_that_is_wrong(tmp_path, monkeypatch):
    folder = tmp_path / "BSDS300"
    right = patches(np.float32)
    for parts, message in [
        ({"train": right["train"]}, r"it must have a data set 'validation', got 'train'"),
        (
            right | {"test": right["test"][:, 1:]},
            r"'test' in it must hold numbers of shape \(N, 63\), got .* \(10, 62\)",
        ),
        (right | {"test": right["test"][:0]}, r"must have rows for test, got none"),
        (
            right | {"validation": np.full((4, 63), np.nan)},
            r"must have finite values, got others among the rows for val",
        ),
    ]:
        path = written_hdf5(folder, parts)
        with pytest.raises(ValueError, match=rf"BSDS300.*{message}"):
            read_maf("bsds300", tmp_path)
    data = written_hdf5(folder, right).read_bytes()
    for damaged in (b"", b"text", data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=r"BSDS300\.hdf5 cannot be read: it is damaged or has an unsupported format"
        ):
            read_maf("bsds300", tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"BSDS300\.hdf5 needs h5py: pip install 'elflow\[experiments\]'"):
        read_maf("bsds300", tmp_path)


# The sets that are redrawn


def written_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_patches(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    parts = {
        part: rng.integers(256, size=(n, 64), dtype=np.uint8) for part, n in [("train", 50), ("val", 7), ("test", 9)]
    }
    written_npz(tmp_path / "bsds300_patches_u8.npz", **parts)
    splits = read_maf("bsds300-patches", tmp_path, seed=3)
    for x, part in zip(splits, parts.values(), strict=True):
        assert x.dtype == np.float32
        assert x.shape == (len(part), 63)
        last = -x.astype(np.float64).sum(1)  # the pixels of a patch sum to zero
        whole = 256 * np.column_stack([x, last])
        # Up to what a patch has in common, every pixel is its byte and a number in [0, 1).
        noise = whole - part
        assert (np.ptp(noise, axis=1) < 1.0001).all()
        assert np.ptp(noise, axis=1).min() > 0.5
        exact = part - part.mean(1, keepdims=True)
        assert abs(whole - exact).max() < 1
    again = read_maf("bsds300-patches", tmp_path, seed=3)
    other = read_maf("bsds300-patches", tmp_path)
    assert all(np.array_equal(x, y) and not np.array_equal(x, z) for x, y, z in zip(splits, again, other, strict=True))
    noise = [256 * x[0, :60] - part[0, :60] for x, part in zip(splits, parts.values(), strict=True)]
    assert abs(np.corrcoef(noise) - np.eye(3)).max() < 0.5  # the parts have noise of their own
    monkeypatch.setattr("experiments.data.maf.PATCHES_PER_BLOCK", 8)
    assert all(np.array_equal(x, y) for x, y in zip(splits, read_maf("bsds300-patches", tmp_path, seed=3), strict=True))


def test_half_a_year(tmp_path):
    rng = np.random.default_rng(0)
    parts = {part: rng.normal(size=(n, 6)) for part, n in [("train", 50), ("val", 7), ("test", 9)]}
    written_npz(tmp_path / "power_halfyear_maf.npz", **parts)
    assert equal(read_maf("power-halfyear", tmp_path), *parts.values())


@pytest.mark.parametrize(
    ("name", "width", "dtype"), [("bsds300-patches", 64, np.uint8), ("power-halfyear", 6, np.float32)]
)
def test_redrawn_sets_that_are_wrong(tmp_path, name, width, dtype):
    path = tmp_path / maf_files(name)[0]
    right = dict.fromkeys(["train", "val", "test"], np.ones((30, width), dtype))
    for parts, message in [
        ({"train": right["train"]}, r"it must have the arrays 'train', 'val', 'test', got 'train'"),
        (
            right | {"val": right["val"][:, 1:]},
            rf"must hold numbers of shape \(N, {width}\), got .* \(30, {width - 1}\)",
        ),
        (right | {"test": right["test"][:0]}, r"must have rows for test, got none"),
    ]:
        written_npz(path, **parts)
        with pytest.raises(ValueError, match=message):
            read_maf(name, tmp_path)
    data = written_npz(path, **right).read_bytes()
    array = io.BytesIO()
    np.save(array, right["train"])
    other = data.replace(right["train"].tobytes(), np.zeros_like(right["train"]).tobytes())  # than the checksums say
    for damaged in (b"", data[:50], data[:-200], other, array.getvalue()):
        path.write_bytes(damaged)
        with pytest.raises(
            ValueError, match=rf"{path.name} cannot be read: it is damaged or has an unsupported format"
        ):
            read_maf(name, tmp_path)


def test_patches_must_be_bytes(tmp_path):
    parts = dict.fromkeys(["train", "val", "test"], np.ones((30, 64)))
    written_npz(tmp_path / "bsds300_patches_u8.npz", **parts)
    with pytest.raises(ValueError, match=r"'train' of .*bsds300_patches_u8\.npz must be of uint8, got float64"):
        read_maf("bsds300-patches", tmp_path)


# Where they are


@pytest.mark.parametrize("name", [*MAF_SETS, *REDRAWN_SETS])
def test_finding_sets(tmp_path, name):
    files = maf_files(name)
    assert find_maf(name, tmp_path / "nowhere") is None
    for file in files:
        assert find_maf(name, tmp_path) is None
        with pytest.raises(FileNotFoundError, match=rf"folder must contain '{files[0]}'.* for name='{name}', got "):
            read_maf(name, tmp_path)
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    assert find_maf(name, str(tmp_path)) == path.parent
    assert find_maf(name, path.parent) == path.parent
    with pytest.raises(ValueError, match=path.parent.name):
        read_maf(name, tmp_path)


def test_a_folder_of_another_set_is_not_taken_for_its_own(tmp_path):
    saved(tmp_path / "power" / "data.npy", np.zeros((20, 8)))
    assert find_maf("miniboone", tmp_path / "power") is None
    (tmp_path / "power").rename(tmp_path / "mine")
    assert find_maf("miniboone", tmp_path / "mine") == tmp_path / "mine"


def test_arguments(tmp_path):
    for call in (read_maf, find_maf):
        with pytest.raises(ValueError, match=r"name must be one of \['power', 'gas', .*, got 'POWER'"):
            call("POWER", tmp_path)
    with pytest.raises(ValueError, match=r"name must be one of"):
        maf_files("mnist")
    with pytest.raises(ValueError, match=r"seed must be"):
        read_maf("power", tmp_path, seed=-1)
    assert maf_files("bsds300") == ["BSDS300/BSDS300.hdf5"]
    assert maf_files("power-halfyear") == ["power_halfyear_maf.npz"]
