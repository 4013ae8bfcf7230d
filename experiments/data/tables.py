"""Tables of the benchmarks: real data from a folder, split into training and test rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from elflow._checks import check_choice
from experiments.data import describe_missing
from experiments.data.maf import prepare_patches
from experiments.framework.experiment import Plan

__all__ = ["FILES", "NUMERIC_SETS", "find_table", "list_missing", "load_returns", "load_table", "split_rows"]

FILES = {
    "magic": "magic_gamma.npz",
    "higgs": "higgs_small.npz",
    "california": "california_housing.npz",
    "wine": "wine_quality.npz",
    "power": "power_halfyear_maf.npz",
    "stocks": "sp500_20stocks_daily.npz",
    "bsds": "bsds300_patches_u8.npz",
    "adult": "adult.csv.gz",
}
"""File names of the tables in a data folder."""
NUMERIC_SETS = [name for name in FILES if name != "adult"]
"""Tables of numbers. Adult also has categories and missing values."""
BSDS_TEST_ROWS = 20_000

Split = tuple[pd.DataFrame, pd.DataFrame]
Archive = np.lib.npyio.NpzFile


def find_table(plan: Plan, name: str) -> Path | None:
    """The file of a table in the data folder, or None.

    Example:
        >>> find_table(Plan(), "adult") is None
        True
    """
    check_choice("name", name, FILES)
    return plan.file(FILES[name])


def list_missing(plan: Plan, names: list[str]) -> list[str]:
    """A line for each of these tables that is not in the data folder."""
    return [describe_missing(name, FILES[name]) for name in names if find_table(plan, name) is None]


def load_table(plan: Plan, name: str, seed: int, max_rows: int = 200_000) -> Split:
    """Training and test rows: the published split, or a random one of four to one.

    Arguments:
        plan: The plan with the data folder.
        name: One of `FILES`.
        seed: The seed of a random split.
        max_rows: The maximum number of training rows of the image patches, of which there are a million.
    """
    path = _find_or_raise(plan, name)
    if name == "adult":
        return _read_adult(path)
    with np.load(path, allow_pickle=False) as file:
        if name == "power":
            return _read_power(file)
        if name == "bsds":
            return _read_bsds(file, seed, max_rows)
        return split_rows(_READERS[name](file), seed)


def load_returns(plan: Plan) -> pd.DataFrame:
    """Daily log-returns of twenty stocks in the order of time."""
    with np.load(_find_or_raise(plan, "stocks"), allow_pickle=False) as file:
        return _read_stocks(file)


def split_rows(table: pd.DataFrame, seed: int, share: float = 0.8) -> Split:
    """A random split of rows into two tables, the first with this share of them.

    Example:
        >>> training, test = split_rows(pd.DataFrame({"x": range(10)}), seed=0)
        >>> len(training), len(test)
        (8, 2)
    """
    order = np.random.default_rng(seed).permutation(len(table))
    cut = round(share * len(table))
    training, test = (table.iloc[part].reset_index(drop=True) for part in (order[:cut], order[cut:]))
    return training, test


def _find_or_raise(plan: Plan, name: str) -> Path:
    path = find_table(plan, name)
    if path is None:
        raise FileNotFoundError(describe_missing(name, FILES[name]))
    return path


def _make_frame(values: np.ndarray, columns: np.ndarray | None = None) -> pd.DataFrame:
    names = [f"x{i}" for i in range(values.shape[1])] if columns is None else [str(c) for c in columns]
    return pd.DataFrame(values.astype(np.float64), columns=names)


def _read_named(file: Archive) -> pd.DataFrame:
    return _make_frame(file["X"], file["columns"])


def _read_higgs(file: Archive) -> pd.DataFrame:
    return _make_frame(file["X"])


def _read_stocks(file: Archive) -> pd.DataFrame:
    return _make_frame(file["log_returns"], file["tickers"])


_READERS: dict[str, Callable[[Archive], pd.DataFrame]] = {
    "magic": _read_named,
    "higgs": _read_higgs,
    "california": _read_named,
    "wine": _read_named,
    "stocks": _read_stocks,
}


def _read_power(file: Archive) -> Split:
    """Validation rows belong to the training table, because every estimator holds out its own."""
    training = np.concatenate([file["train"], file["val"]])
    return _make_frame(training, file["columns"]), _make_frame(file["test"], file["columns"])


def _read_bsds(file: Archive, seed: int, max_rows: int) -> Split:
    """Patches of 8x8 pixels as of `prepare_patches`."""
    rng = np.random.default_rng(seed)
    training, test = file["train"], file["test"]
    if max_rows < len(training):
        training = training[rng.choice(len(training), max_rows, replace=False)]
    test = test[np.linspace(0, len(test) - 1, min(BSDS_TEST_ROWS, len(test))).astype(int)]
    training, test = (prepare_patches(part, rng, np.float64) for part in (training, test))
    return _make_frame(training), _make_frame(test)


def _read_adult(path: Path) -> Split:
    """The published split. `?` is a missing value, and strings are categories."""
    table = pd.read_csv(path, na_values="?")
    for column in table.select_dtypes(exclude="number").columns.drop("split"):
        table[column] = table[column].astype("category")
    training, test = (
        table[table.split == part].drop(columns="split").reset_index(drop=True) for part in ("train", "test")
    )
    return training, test
