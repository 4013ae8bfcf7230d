"""Tables with known anomalies: of scikit-learn, generated, and of a data folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from sklearn import datasets

from elflow._checks import check_choice
from experiments.data.small_tables import make_table
from experiments.data.tables import FILES, find_table, load_table
from experiments.framework.experiment import Plan

__all__ = ["ANOMALY_TABLES", "AnomalyTable", "find_file", "make_anomalies"]

MAX_ROWS = 2_000
"""Maximum number of ordinary rows of a table."""
Rng = np.random.Generator


@dataclass(frozen=True)
class AnomalyTable:
    """Ordinary rows, and anomalies in a table of the same columns."""

    ordinary: pd.DataFrame
    anomalies: pd.DataFrame


Generate = Callable[[Plan, int, Rng], tuple[pd.DataFrame, pd.DataFrame]]


def make_anomalies(plan: Plan, name: str, seed: int, effort: float = 1.0, rows: int = MAX_ROWS) -> AnomalyTable:
    """A table by its name, with at most `rows` ordinary rows, and about `effort` times as many.

    Example:
        >>> table = make_anomalies(Plan(), "ring", seed=0, effort=0.1)
        >>> len(table.ordinary), list(table.anomalies)
        (200, ['x0', 'x1'])
    """
    check_choice("name", name, ANOMALY_TABLES)
    ordinary, anomalies = ANOMALY_TABLES[name](plan, seed, np.random.default_rng([seed, *name.encode()]))
    count = max(60, round(min(1.0, effort) * min(rows, len(ordinary))))
    parts = [part.sample(min(count, len(part)), random_state=seed) for part in (ordinary, anomalies)]
    return AnomalyTable(*(part.reset_index(drop=True) for part in parts))


def find_file(name: str) -> str | None:
    """The name of the file of a table in a data folder, or None for a table that needs none."""
    return FILES.get(name.partition("-")[0]) if name in FILE_TABLES else None


def swap_cells(frame: pd.DataFrame, share: float, rng: Rng) -> pd.DataFrame:
    """Rows in which a share of the cells is that of another row: ordinary values, but unusual combinations.

    Example:
        >>> frame = pd.DataFrame({"a": range(100), "b": range(100)})
        >>> odd = swap_cells(frame, 0.5, np.random.default_rng(0))
        >>> int((odd["a"] == odd["b"]).sum()) < 20
        True
    """
    swapped = frame.copy()
    names = list(frame.columns)
    n_swapped = max(1, round(share * len(names)))
    order = np.argsort(rng.random(frame.shape), 1)[:, :n_swapped]
    for k, name in enumerate(names):
        is_swapped = (order == k).any(1)
        others = frame[name].sample(len(frame), random_state=int(rng.integers(2**31))).to_numpy()
        swapped[name] = frame[name].mask(is_swapped, pd.Series(others, frame.index).astype(frame[name].dtype))
    return swapped


def _make_of_classes(load: Callable[..., object], rare: int) -> Generate:
    """A table of scikit-learn with one class as the anomalies."""

    def generate(plan: Plan, seed: int, rng: Rng) -> tuple[pd.DataFrame, pd.DataFrame]:
        bunch = load(as_frame=True)
        frame, is_rare = bunch.data, bunch.target == rare  # type: ignore[attr-defined]
        return frame[~is_rare], frame[is_rare]

    return generate


def _make_swapped(name: str, share: float) -> Generate:
    """A generated table, and rows of it with cells of other rows."""

    def generate(plan: Plan, seed: int, rng: Rng) -> tuple[pd.DataFrame, pd.DataFrame]:
        table = make_table(name, seed)
        return table.training, swap_cells(table.test, share, rng)

    return generate


def _make_scattered(name: str) -> Generate:
    """A generated table of numbers, and points spread evenly over its range."""

    def generate(plan: Plan, seed: int, rng: Rng) -> tuple[pd.DataFrame, pd.DataFrame]:
        table = make_table(name, seed)
        low, high = table.training.min().to_numpy(), table.training.max().to_numpy()
        points = rng.uniform(low, high, size=table.test.shape)
        return table.training, pd.DataFrame(points, columns=table.test.columns)

    return generate


def _make_of_file_classes(name: str, labels: str, rare: int) -> Generate:
    """A table of a data folder with one class as the anomalies."""

    def generate(plan: Plan, seed: int, rng: Rng) -> tuple[pd.DataFrame, pd.DataFrame]:
        path = find_table(plan, name)
        if path is None:
            raise FileNotFoundError(f"--data must be a folder with {FILES[name]}")
        with np.load(path, allow_pickle=False) as file:
            frame = pd.DataFrame(file["X"].astype(np.float64), columns=[str(c) for c in file["columns"]])
            is_rare = np.asarray(file[labels]).astype(int) == rare
        return frame[~is_rare], frame[is_rare]

    return generate


def _make_swapped_adult(plan: Plan, seed: int, rng: Rng) -> tuple[pd.DataFrame, pd.DataFrame]:
    training, test = (part.dropna() for part in load_table(plan, "adult", seed))
    return training, swap_cells(test, 0.3, rng)


FILE_TABLES: dict[str, Generate] = {
    "magic": _make_of_file_classes("magic", "y", 0),
    "wine-red": _make_of_file_classes("wine", "is_white", 0),
    "adult-swapped": _make_swapped_adult,
}
ANOMALY_TABLES: dict[str, Generate] = {
    "breast-cancer": _make_of_classes(datasets.load_breast_cancer, 0),
    "cultivars": _make_of_classes(datasets.load_wine, 0),
    "digits-4": _make_of_classes(datasets.load_digits, 4),
    "digits-9": _make_of_classes(datasets.load_digits, 9),
    "ring": _make_scattered("ring"),
    "clusters": _make_scattered("clusters"),
    "factors-swapped": _make_swapped("factor-0.3", 0.1),
    "nonlinear-swapped": _make_swapped("nonlinear", 0.4),
    "categories-swapped": _make_swapped("categories", 0.34),
    **FILE_TABLES,
}
"""Generators by name. Those at the end need a data folder."""
