"""The tables of the benchmarks: real data in a folder, each as a training and a test DataFrame for a seed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

DATA = Path(os.environ["ELFLOW_DATA"]) if "ELFLOW_DATA" in os.environ else None
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
SETS = [name for name in FILES if name != "adult"]
"""The sets of numbers; Adult has columns of every kind, and a benchmark of its own."""
BSDS_TEST = 20_000

Split = tuple[pd.DataFrame, pd.DataFrame]


def add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=DATA, help="the folder with the data (default: ELFLOW_DATA)")


def folder(parser: argparse.ArgumentParser, data: Path | None, names: list[str]) -> Path:
    """The folder, or the end of the program with a line that says what is missing there."""
    unknown = [name for name in names if name not in FILES]
    if unknown:
        parser.error(f"a set must be one of {', '.join(FILES)}, got {', '.join(unknown)}")
    needed = ", ".join(FILES[name] for name in names)
    if data is None:
        parser.error(f"--data, or ELFLOW_DATA, must be a folder with {needed}")
    missing = [FILES[name] for name in names if not (data / FILES[name]).is_file()]
    if missing:
        parser.error(f"--data, or ELFLOW_DATA, must be a folder with {needed}; {data} lacks {', '.join(missing)}")
    return data


def load(name: str, data: Path, seed: int, rows: int = 200_000) -> Split:
    """Training and test rows: by the seed at random, four to one, or as published where a split is.

    `rows` limits the training rows of the image patches, of which there are a million.
    """
    if name == "adult":
        return _adult(data / FILES[name])
    with np.load(data / FILES[name], allow_pickle=False) as file:
        if name == "power":
            return _power(file)
        if name == "bsds":
            return _bsds(file, seed, rows)
        return shuffled(_READERS[name](file), seed)


def returns(data: Path) -> pd.DataFrame:
    """Daily log-returns of twenty stocks, in the order of time."""
    with np.load(data / FILES["stocks"], allow_pickle=False) as file:
        return _stocks(file)


def shuffled(table: pd.DataFrame, seed: int, share: float = 0.8) -> Split:
    order = np.random.default_rng(seed).permutation(len(table))
    cut = round(share * len(table))
    return tuple(table.iloc[part].reset_index(drop=True) for part in (order[:cut], order[cut:]))


Archive = np.lib.npyio.NpzFile


def _frame(values: np.ndarray, columns: np.ndarray | None = None) -> pd.DataFrame:
    names = [f"x{i}" for i in range(values.shape[1])] if columns is None else [str(c) for c in columns]
    return pd.DataFrame(values.astype(np.float64), columns=names)


def _named(file: Archive) -> pd.DataFrame:
    return _frame(file["X"], file["columns"])


def _higgs(file: Archive) -> pd.DataFrame:
    return _frame(file["X"])


def _stocks(file: Archive) -> pd.DataFrame:
    return _frame(file["log_returns"], file["tickers"])


_READERS: dict[str, Callable[[Archive], pd.DataFrame]] = {
    "magic": _named,
    "higgs": _higgs,
    "california": _named,
    "wine": _named,
    "stocks": _stocks,
}


def _power(file: Archive) -> Split:
    """Validation rows go to the training table: every estimator holds out its own."""
    return _frame(np.concatenate([file["train"], file["val"]]), file["columns"]), _frame(file["test"], file["columns"])


def _bsds(file: Archive, seed: int, rows: int) -> Split:
    """8x8 patches: dequantised, without each patch's own mean and without the last pixel, nothing else."""
    rng = np.random.default_rng(seed)
    training, test = file["train"], file["test"]
    if rows < len(training):
        training = training[rng.choice(len(training), rows, replace=False)]
    test = test[np.linspace(0, len(test) - 1, BSDS_TEST).astype(int)]

    def patches(levels: np.ndarray) -> pd.DataFrame:
        x = (levels + rng.random(levels.shape)) / 256
        return _frame((x - x.mean(1, keepdims=True))[:, :-1])

    return patches(training), patches(test)


def _adult(path: Path) -> Split:
    """The published split; `?` is a missing value, and strings are categories."""
    table = pd.read_csv(path, na_values="?")
    for column in table.select_dtypes(exclude="number").columns.drop("split"):
        table[column] = table[column].astype("category")
    parts = (table[table.split == part].drop(columns="split").reset_index(drop=True) for part in ("train", "test"))
    return tuple(parts)
