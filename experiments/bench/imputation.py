"""Imputation of missing cells: errors, coverage and CRPS beside the imputers of scikit-learn.

All systems are fitted to the same complete training rows, and fill the same cells of test rows. A fifth of the cells
is removed, at random or more often where values are large.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer

from elflow.tabular import FlowDensity
from experiments.data.tables import FILES, find_table, list_missing, load_table
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table

__all__ = ["EXPERIMENT"]

SETS = ["california", "magic", "wine", "adult"]
MECHANISMS = ["random", "large values"]
SHARE = 0.2
"""Fraction of the cells that is removed."""
N_TRAINING, N_TEST = 4_000, 500
N_DRAWS = 39
"""Number of draws from which intervals and the CRPS are computed."""
N_CUT = 1
"""Number of draws beyond each end of the interval. If the true value and all draws have the same distribution, it is
between the second smallest and the second largest of 39 draws with a probability of 36 / 40: exactly 90 %. Its rank
among draws that equal it, as in columns of whole numbers, is drawn at random."""
SYSTEMS = ["elflow", "iterative", "knn", "trees"]
TITLES = {
    "elflow": "elflow",
    "iterative": "IterativeImputer",
    "knn": "KNNImputer",
    "trees": "IterativeImputer, extra trees",
}


def jobs(plan: Plan) -> list[Job]:
    names = [name for name in plan.options.get("sets", SETS) if find_table(plan, name) is not None]
    sizes = {
        "training_rows": plan.scaled(N_TRAINING),
        "test_rows": plan.scaled(N_TEST),
        "max_steps": plan.options.get("max_steps"),
    }
    same = {"seed": plan.seed, **sizes}
    return [
        Job(f"{name}-{system}", {"set": name, "system": system, **same, "stamp": plan.stamp(FILES[name])})
        for name in names
        for system in SYSTEMS
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Errors of one system on one table, for each mechanism."""
    seed = settings["seed"]
    training, test = load_table(plan, settings["set"], seed)
    training, test = (
        part.dropna().sample(min(count, len(part.dropna())), random_state=seed).reset_index(drop=True)
        for part, count in ((training, settings["training_rows"]), (test, settings["test_rows"]))
    )
    start = time.perf_counter()
    system = _System(settings["system"], training, settings["max_steps"], seed)
    record: Record = {"set": settings["set"], "system": settings["system"], "fit_seconds": time.perf_counter() - start}
    record |= {"training_rows": len(training), "test_rows": len(test)}
    for mechanism in MECHANISMS:
        mask = remove_cells(test, mechanism, np.random.default_rng(seed))
        start = time.perf_counter()
        points, draws = system.fill(test.mask(mask))
        seconds = time.perf_counter() - start
        record[mechanism] = {"seconds": seconds, **measure(training, test, mask, points, draws)}
    return record


def remove_cells(frame: pd.DataFrame, mechanism: str, rng: np.random.Generator) -> np.ndarray:
    """Mask of the cells to remove, `(N, columns)`: each with the same probability, or by its rank in its column.

    Example:
        >>> frame = pd.DataFrame({"a": range(1000)})
        >>> mask = remove_cells(frame, "large values", np.random.default_rng(0))
        >>> bool(mask[:500].mean() < 0.15 < 0.25 < mask[500:].mean())
        True
    """
    rank = np.full(frame.shape, 0.5)
    if mechanism == "large values":
        rank = np.stack([pd.factorize(frame[name], sort=True)[0] for name in frame], 1).astype(float)
        rank = np.stack([pd.Series(column).rank(pct=True).to_numpy() for column in rank.T], 1)
    return rng.random(frame.shape) < 2 * SHARE * rank


class _System:
    """A fitted imputer.

    Arguments:
        name: One of `SYSTEMS`.
        training: The training rows.
        max_steps: Number of training steps of elflow; None for its default.
        seed: The random seed.
    """

    def __init__(self, name: str, training: pd.DataFrame, max_steps: int | None, seed: int) -> None:
        self.name, self.seed, self.columns = name, seed, list(training.columns)
        self.is_number = [pd.api.types.is_numeric_dtype(training[c]) for c in training]
        if name == "elflow":
            self.density = FlowDensity(random_state=seed, max_steps=max_steps).fit(training)
            return
        labels = [c for c, number in zip(training, self.is_number, strict=True) if not number]
        self.levels = {name: sorted(training[name].unique()) for name in labels}
        matrix = self._encode(training)
        self.mean, self.scale = matrix.mean(0), matrix.std(0) + 1e-12
        self.training = (matrix - self.mean) / self.scale

    def _make(self, is_drawing: bool = False) -> Any:
        if self.name == "knn":
            return KNNImputer(n_neighbors=10)
        if self.name == "trees":
            trees = ExtraTreesRegressor(30, min_samples_leaf=3, random_state=self.seed, n_jobs=1)
            return IterativeImputer(trees, max_iter=3, random_state=self.seed)
        return IterativeImputer(sample_posterior=is_drawing, max_iter=10, random_state=self.seed)

    def fill(self, holes: pd.DataFrame) -> tuple[dict[str, pd.DataFrame], list[pd.DataFrame]]:
        """Point estimates by kind, and draws if the system has any."""
        if self.name == "elflow":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of rows with a small effective sample size
                points = {method: self.density.impute(holes, method=method) for method in ("median", "mean", "mode")}
                return points, self.density.impute(holes, n_draws=N_DRAWS, random_state=self.seed)
        matrix = (self._encode(holes) - self.mean) / self.scale
        fitted = self._fit(self._make(), matrix)
        points = dict.fromkeys(("median", "mean", "mode"), self._decode(fitted.transform(matrix)))
        if self.name != "iterative":
            return points, []
        # Each call draws from the posterior of every regression again, in as many rounds as the fit had.
        drawing = self._fit(self._make(is_drawing=True), matrix)
        return points, [self._decode(drawing.transform(matrix)) for _ in range(N_DRAWS)]

    def _fit(self, imputer: Any, holes: np.ndarray) -> Any:
        """Fit an imputer to the training rows.

        An iterative imputer that is fitted to complete rows stops after one round, and then fills holes in one round:
        it never sees its own values in place of other holes. So it is fitted to both.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of iterations that have not converged
            return imputer.fit(self.training if self.name == "knn" else np.concatenate([self.training, holes]))

    def _encode(self, frame: pd.DataFrame) -> np.ndarray:
        """Numbers, and an indicator for each category."""
        parts = []
        for name, number in zip(self.columns, self.is_number, strict=True):
            if number:
                parts.append(frame[[name]].to_numpy(float))
                continue
            one_hot = np.stack([(frame[name] == level).to_numpy(float) for level in self.levels[name]], 1)
            one_hot[frame[name].isna().to_numpy()] = np.nan
            parts.append(one_hot)
        return np.concatenate(parts, 1)

    def _decode(self, matrix: np.ndarray) -> pd.DataFrame:
        matrix, start, columns = matrix * self.scale + self.mean, 0, {}
        for name, number in zip(self.columns, self.is_number, strict=True):
            size = 1 if number else len(self.levels[name])
            part = matrix[:, start : start + size]
            columns[name] = part[:, 0] if number else np.array(self.levels[name], object)[part.argmax(1)]
            start += size
        return pd.DataFrame(columns)


def measure(
    training: pd.DataFrame,
    test: pd.DataFrame,
    mask: np.ndarray,
    points: dict[str, pd.DataFrame],
    draws: list[pd.DataFrame],
) -> Record:
    """Errors over the removed cells; those of numbers in units of the median absolute deviation of each column.

    RMSE has heavy tails: large errors are cut at ten units, for every system alike.
    """
    squares, absolute, crps, inside, correct = [], [], [], [], []
    rng = np.random.default_rng(0)
    for k, name in enumerate(test.columns):
        rows = mask[:, k]
        if not rows.any():
            continue
        truth = test[name][rows]
        if not pd.api.types.is_numeric_dtype(truth):
            correct.append((points["mode"][name][rows] == truth).mean())
            continue
        x = truth.to_numpy(float)
        centre = training[name].median()
        unit = float((training[name] - centre).abs().mean())
        errors = (points["mean"][name][rows].to_numpy(float) - x) / unit
        squares.append(np.sqrt(np.minimum(errors**2, 100).mean()))
        from_median = np.abs(points["median"][name][rows].to_numpy(float) - x) / unit
        absolute.append(from_median.mean())
        if not draws:
            crps.append(from_median.mean())
            continue
        values = np.sort(np.stack([draw[name][rows].to_numpy(float) for draw in draws]), 0) / unit
        count = len(values)
        weights = (2 * np.arange(1, count + 1) - count - 1)[:, None]
        spread = (weights * values).sum(0) / (count * (count - 1))
        crps.append((np.abs(values - x / unit).mean(0) - spread).mean())
        is_equal = np.abs(values - x / unit) < 1e-9
        rank = ((values < x / unit) & ~is_equal).sum(0) + rng.integers(is_equal.sum(0) + 1)
        inside.append(((rank > N_CUT) & (rank < count - N_CUT)).mean())
    return {
        "rmse": float(np.mean(squares)),
        "mae": float(np.mean(absolute)),
        "crps": float(np.mean(crps)),
        "coverage": float(np.mean(inside)) if inside else None,
        "accuracy": float(np.mean(correct)) if correct else None,
        "cells": int(mask.sum()),
    }


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    tables = []
    for mechanism in MECHANISMS:
        rows = []
        for record in records.values():
            found = record[mechanism]
            shares = [found[name] for name in ("coverage", "accuracy")]
            optional = ["-" if share is None else f"{100 * share:.1f} %" for share in shares]
            numbers = [f"{found[name]:.3f}" for name in ("rmse", "mae", "crps")]
            rows.append([record["set"], TITLES[record["system"]], *numbers, *optional, f"{found['seconds']:.1f}"])
        columns = ["table", "imputer", "RMSE of mean", "MAE of median", "CRPS", "coverage of 90 %", "accuracy", "s"]
        note = "Errors in units of each column's mean absolute deviation; CRPS of a single value is its absolute error."
        tables.append(Table(f"A fifth of the cells removed: {mechanism}", columns, rows, note))
    best = sum(_is_best(records, name, m) for name in {r["set"] for r in records.values()} for m in MECHANISMS)
    total = len({r["set"] for r in records.values()}) * len(MECHANISMS)
    return Report(f"elflow has the lowest CRPS in {best} of {total} comparisons.", tables)


def _is_best(records: dict[str, Record], name: str, mechanism: str) -> bool:
    crps = {r["system"]: r[mechanism]["crps"] for r in records.values() if r["set"] == name}
    return min(crps, key=lambda system: crps[system]) == "elflow"


def missing(plan: Plan) -> list[str]:
    return list_missing(plan, SETS)


def _parse_sets(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SETS]:
        raise ValueError(f"sets must be some of {SETS}, got {unknown[0]!r}")
    return names


EXPERIMENT = Experiment(
    "imputation",
    "Imputation of missing cells",
    jobs,
    work,
    report,
    missing,
    options={
        "sets": Option(_parse_sets, f"tables with commas between them (default: {','.join(SETS)})"),
        "max_steps": Option(int, "training steps of elflow (default: that of FlowDensity)"),
    },
)
