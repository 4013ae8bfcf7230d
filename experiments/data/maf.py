"""The five density estimation data sets of the MAF paper, prepared from its archive by its recipes.

[Papamakarios et al. (2017)](https://arxiv.org/abs/1705.07057) published them as
[`data.tar.gz`](https://zenodo.org/records/1161203); nearly every flow since then has been evaluated on them. The
recipes are those of the paper's own code, including their peculiarities, so that likelihoods are comparable.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elflow._checks import check_choice, check_count, join_names
from elflow.io.archives import reading
from experiments.data._maf_files import PARTS, check_shape, iter_arrays, map_array, read_columns
from experiments.data.frames import read_frame

__all__ = ["MAF_SETS", "REDRAWN_SETS", "Splits", "find_maf", "maf_files", "prepare_patches", "read_maf"]

MAF_SETS = ("power", "gas", "hepmass", "miniboone", "bsds300")
"""Data sets of the archive."""
REDRAWN_SETS = ("bsds300-patches", "power-halfyear")
"""Similar data sets from the same sources."""
NOT_SENSORS = ("Time", "Meth", "Eth")
"""Columns of GAS that are dropped: the time and the two gas concentrations."""
MAX_CORRELATION = 0.98
MAX_REPEATS = 5
PATCHES_PER_BLOCK = 1 << 14


class Splits(NamedTuple):
    """Rows of a data set in float32, `(N, features)` each.

    Example:
        >>> splits = Splits(*(np.zeros((n, 6), np.float32) for n in (80, 10, 10)))
        >>> len(splits.train), splits.test.shape
        (80, (10, 6))
    """

    train: np.ndarray
    """Rows for training."""
    val: np.ndarray
    """Rows for validation."""
    test: np.ndarray
    """Rows for test."""


def maf_files(name: str) -> list[str]:
    """File names of a data set, relative to the folder of all data sets.

    Arguments:
        name: One of `MAF_SETS` or `REDRAWN_SETS`.

    Returns:
        The file names, with `/` between folders.

    Example:
        >>> maf_files("hepmass")
        ['hepmass/1000_train.csv', 'hepmass/1000_test.csv']
    """
    check_choice("name", name, SETS)
    return [str(PurePosixPath(SETS[name].folders[0], file)) for file in SETS[name].files]


def find_maf(name: str, folder: str | os.PathLike[str]) -> Path | None:
    """Find the folder of a data set.

    Arguments:
        name: One of `MAF_SETS` or `REDRAWN_SETS`.
        folder: The folder of all data sets, or that of this one.

    Returns:
        The folder with all of its files, or None.

    Example:
        >>> find_maf("gas", "nowhere") is None
        True
    """
    check_choice("name", name, SETS)
    wanted, root = SETS[name], Path(folder)
    others = {other for one in SETS.values() for other in one.folders} - set(wanted.folders)
    own = [] if root.resolve().name in others else [root]  # two data sets have a file data.npy
    for place in [*(root / below for below in wanted.folders), *own]:
        if wanted.is_in(place):
            return place
    return None


def read_maf(name: str, folder: str | os.PathLike[str], seed: int = 0) -> Splits:
    """Read a data set and prepare it by MAF's recipe.

    | name | features | recipe |
    | --- | --- | --- |
    | `power` | 6 | shuffled, the second and fourth column dropped, uniform noise of width 0.001, 0.01, 1, 1, 1 and 0 added; standardised by the rows for training and validation |
    | `gas` | 8 | the sensors, without those that correlate with a later one above 0.98; standardised by all rows |
    | `hepmass` | 21 | the rows of class 1, without the features whose smallest value occurs more than five times; standardised by the rows for training and validation |
    | `miniboone` | 43 | standardised by the rows for training and validation |
    | `bsds300` | 63 | as in the file, which needs h5py |
    | `bsds300-patches` | 63 | patches of 8 by 8 bytes: noise from [0, 1) added, divided by 256, each patch's mean subtracted, the last pixel dropped |
    | `power-halfyear` | 6 | as in the file |

    Of `power`, `gas` and `miniboone` the last tenth is for test, and the last tenth of the rest for validation; `hepmass`
    has a test file. `gas` may also be `ethylene_CO.csv`, with a header line. No code in its pickle is run.

    Arguments:
        name: One of `MAF_SETS` or `REDRAWN_SETS`.
        folder: The folder of all data sets (with folders `power`, `gas`, ...), or that of this one.
        seed: The seed for the noise of `bsds300-patches`. The noise of `power` is always that of MAF's code.

    Returns:
        The rows for training, validation and test.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     patches = np.zeros((10, 64), np.uint8)
        ...     np.savez(f"{folder}/bsds300_patches_u8.npz", train=patches, val=patches, test=patches)
        ...     splits = read_maf("bsds300-patches", folder)
        >>> splits.train.shape, splits.train.dtype
        ((10, 63), dtype('float32'))
    """  # noqa: E501
    check_count("seed", seed, least=0)
    place = find_maf(name, folder)
    if place is None:
        raise FileNotFoundError(f"folder must contain {join_names(maf_files(name))} for name={name!r}, got {folder}")
    splits = SETS[name].read(place, seed)
    for part, x in zip(PARTS, splits, strict=True):
        if not len(x):
            raise ValueError(f"{place} must have rows for {part}, got none")
        with np.errstate(invalid="ignore"):  # in float64 no sum of float32 overflows
            total = x.sum(dtype=np.float64)
        if not math.isfinite(total):
            raise ValueError(f"{place} must have finite values, got others among the rows for {part}")
    return splits


def prepare_patches(patches: np.ndarray, rng: np.random.Generator, dtype: type = np.float32) -> np.ndarray:
    """Dequantise image patches `(N, 64)` of bytes, subtract the mean of each and drop the last pixel, `(N, 63)`.

    Example:
        >>> prepare_patches(np.zeros((10, 64), np.uint8), np.random.default_rng(0)).shape
        (10, 63)
    """
    x = np.empty((len(patches), patches.shape[1] - 1), dtype)
    for start in range(0, len(x), PATCHES_PER_BLOCK):
        rows = patches[start : start + PATCHES_PER_BLOCK]
        noisy = (rows + rng.random(rows.shape)) / 256
        noisy -= noisy.mean(axis=1, keepdims=True)
        x[start : start + PATCHES_PER_BLOCK] = noisy[:, :-1]
    return x


# Recipes of the data sets


def _read_power(place: Path, seed: int) -> Splits:
    path = place / "data.npy"
    data = map_array(path, 8)
    n = len(data)
    rng = np.random.RandomState(42)  # generator and seed of MAF's code
    order = rng.permutation(n)
    voltage, active, meters = 0.01 * rng.rand(n), 0.001 * rng.rand(n), rng.rand(n, 3)
    noises: dict[int, Any] = {0: active, 2: voltage, 4: meters[:, 0], 5: meters[:, 1], 6: meters[:, 2], 7: 0.0}
    columns = (data[:, i].astype(np.float64)[order] + noise for i, noise in noises.items())
    return _standardize(path, columns, 6, _count_parts(path, n), ddof=0)


def _read_gas(place: Path, seed: int) -> Splits:
    path = place / "ethylene_CO.pickle"
    if path.is_file():
        table = read_frame(path)
    else:
        path = place / "ethylene_CO.csv"
        table = read_columns(path)
        table.pop("Unnamed: 0", None)  # the index that pandas writes
    absent = [name for name in NOT_SENSORS if name not in table]
    if absent:
        raise ValueError(f"{path} must have the columns {join_names(NOT_SENSORS)}, got {join_names(list(table))}")
    sensors = [name for name in table if name not in NOT_SENSORS]
    sizes = _count_parts(path, len(table["Time"]))
    z = np.empty((len(sensors), sum(sizes)))  # sensors first, so that their products need no copy
    for row, name in zip(z, sensors, strict=True):
        row[:] = table.pop(name)
        with np.errstate(invalid="ignore"):  # values that are not finite are refused below
            row -= row.mean()
            norm = np.linalg.norm(row)
        if not norm > 0:
            raise ValueError(f"{path} must have finite values that differ in each column, got others in {name!r}")
        row *= math.sqrt(len(row) - 1) / norm
    kept = _drop_correlated(z @ z.T / (z.shape[1] - 1))
    _check_width(path, len(kept), 8, f"sensors that do not correlate above {MAX_CORRELATION}")
    x = np.empty((z.shape[1], len(kept)), np.float32)
    for j, i in enumerate(kept):
        x[:, j] = z[i]
    return _split(x, sizes)


def _drop_correlated(correlation: np.ndarray) -> list[int]:
    """Remove the first column that correlates with another until none is left; return the remaining columns."""
    close = correlation > MAX_CORRELATION
    np.fill_diagonal(close, False)
    kept = list(range(len(close)))
    while (again := close[np.ix_(kept, kept)].any(axis=1)).any():
        del kept[int(again.argmax())]
    return kept


def _read_hepmass(place: Path, seed: int) -> Splits:
    path, path_of_test = place / "1000_train.csv", place / "1000_test.csv"
    fitted, tested = _read_signal(path), _read_signal(path_of_test)
    absent = [name for name in fitted if name not in tested]  # the header of MAF's test file has one name too many
    if absent:
        raise ValueError(
            f"{path_of_test} must have the columns of {path.name}, got a file without {join_names(absent)}"
        )
    n, n_test = (len(next(iter(table.values()), ())) for table in (fitted, tested))
    n_val = int(0.1 * n)
    if not n_val:
        raise ValueError(f"{path} must have at least 10 rows of class 1, got {n}")
    kept = [name for name, column in fitted.items() if (column == column.min()).sum() <= MAX_REPEATS]
    _check_width(path, len(kept), 21, f"features whose smallest value occurs at most {MAX_REPEATS} times")
    columns = (np.concatenate([fitted[name], tested[name]]) for name in kept)
    return _standardize(path, columns, 21, (n - n_val, n_val, n_test), ddof=1)


def _read_signal(path: Path) -> dict[str, np.ndarray]:
    """Features of the rows whose first column is 1."""

    def of_class_one(table: pa.Table) -> pa.Table:
        label = pc.cast(table.column(0), pa.float64())
        return table.remove_column(0).filter(pc.equal(label, 1.0))

    return read_columns(path, of_class_one)


def _read_miniboone(place: Path, seed: int) -> Splits:
    path = place / "data.npy"
    data = map_array(path, 43)
    return _standardize(
        path, (column.astype(np.float64) for column in data.T), 43, _count_parts(path, len(data)), ddof=0
    )


def _read_bsds300(place: Path, seed: int) -> Splits:
    path = place / "BSDS300.hdf5"
    try:
        import h5py  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError as error:
        raise ImportError(f"{path} needs h5py: pip install 'elflow[experiments]' in a checkout") from error
    parts = []
    with reading(path), h5py.File(path, "r") as file:
        for part in ("train", "validation", "test"):
            if part not in file:
                raise ValueError(f"it must have a data set {part!r}, got {join_names(list(file))}")
            check_shape(f"{part!r} in it", file[part], 63)
            x = np.empty(file[part].shape, np.float32)
            if len(x):
                file[part].read_direct(x)  # HDF5 converts as it reads
            parts.append(x)
    return Splits(*parts)


def _read_patches(place: Path, seed: int) -> Splits:
    path = place / "bsds300_patches_u8.npz"
    parts = []
    for i, (part, patches) in enumerate(iter_arrays(path)):
        check_shape(f"{part!r} of {path}", patches, 64)
        if patches.dtype != np.uint8:
            raise ValueError(f"{part!r} of {path} must be of uint8, got {patches.dtype}")
        parts.append(prepare_patches(patches, np.random.default_rng([seed, i])))
    return Splits(*parts)


def _read_power_halfyear(place: Path, seed: int) -> Splits:
    path = place / "power_halfyear_maf.npz"
    parts = []
    for part, x in iter_arrays(path):
        check_shape(f"{part!r} of {path}", x, 6)
        parts.append(np.ascontiguousarray(x, np.float32))
    return Splits(*parts)


@dataclass(frozen=True)
class _Set:
    """Files and reader of a data set."""

    folders: tuple[str, ...]
    """Possible names of its folder."""
    files: tuple[str, ...]
    read: Callable[[Path, int], Splits]
    instead: tuple[str, ...] = ()
    """Alternative files."""

    def is_in(self, place: Path) -> bool:
        """Whether a folder has all files of the set."""
        return any(files and all((place / file).is_file() for file in files) for files in (self.files, self.instead))


SETS = {
    "power": _Set(("power",), ("data.npy",), _read_power),
    "gas": _Set(("gas",), ("ethylene_CO.pickle",), _read_gas, instead=("ethylene_CO.csv",)),
    "hepmass": _Set(("hepmass",), ("1000_train.csv", "1000_test.csv"), _read_hepmass),
    "miniboone": _Set(("miniboone",), ("data.npy",), _read_miniboone),
    "bsds300": _Set(("BSDS300", "bsds300"), ("BSDS300.hdf5",), _read_bsds300),
    "bsds300-patches": _Set(("",), ("bsds300_patches_u8.npz",), _read_patches),
    "power-halfyear": _Set(("",), ("power_halfyear_maf.npz",), _read_power_halfyear),
}
"""Data sets by name."""


# Helpers of the recipes


def _count_parts(path: Path, n: int) -> tuple[int, int, int]:
    """Numbers of rows for training, validation and test."""
    test = int(0.1 * n)
    val = int(0.1 * (n - test))
    if not val:
        raise ValueError(f"{path} must have at least 11 rows, got {n}")
    return n - test - val, val, test


def _standardize(path: Path, columns: Iterable[np.ndarray], features: int, sizes: Sequence[int], ddof: int) -> Splits:
    """Splits of float64 columns, standardised by the training and validation rows."""
    x = np.empty((sum(sizes), features), np.float32)
    for j, column in enumerate(columns):
        known = column[: len(x) - sizes[-1]]
        with np.errstate(invalid="ignore"):  # values that are not finite are refused below
            mean, deviation = known.mean(), known.std(ddof=ddof)
        if not (math.isfinite(mean) and deviation > 0):
            raise ValueError(f"{path} must have finite values that differ in each column, got others in column {j}")
        column -= mean
        column /= deviation
        x[:, j] = column
    return _split(x, sizes)


def _split(x: np.ndarray, sizes: Sequence[int]) -> Splits:
    train, val, _ = sizes
    return Splits(x[:train], x[train : train + val], x[train + val :])


def _check_width(path: Path, count: int, expected: int, what: str) -> None:
    if count != expected:
        raise ValueError(f"{path} must have {expected} {what}, got {count}: this is not the file of MAF's archive")
