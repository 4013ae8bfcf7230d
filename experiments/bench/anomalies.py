"""Anomalies: `FlowDetector` beside detectors of PyOD, on tables with known anomalies.

Two protocols. *Unsupervised*: all rows are fitted, a tenth of which are anomalies, and the same rows are scored.
*Novelty*: ordinary rows are fitted, and other ordinary rows and the anomalies are scored.
"""

from __future__ import annotations

import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.preprocessing import StandardScaler

from elflow.tabular import FlowDensity
from experiments.data import describe_missing
from experiments.data.anomalies import ANOMALY_TABLES, MAX_ROWS, find_file, make_anomalies
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table, group_records
from experiments.framework.measure import mean_and_error
from experiments.framework.options import parse_choices, parse_count

__all__ = ["EXPERIMENT"]

N_SEEDS = 3
CONTAMINATION = 0.1
"""Share of anomalies in the fitted rows of the unsupervised protocol. The other protocol scores all anomalies."""
NOVELTY_SHARE = 0.7
"""Share of the ordinary rows that is fitted in the novelty protocol."""
ALONE = "density_"
"""Prefix of the measures of the density alone."""
PROTOCOLS = ["unsupervised", "novelty"]
SYSTEMS = {
    "elflow": "FlowDetector",
    "untrimmed": "FlowDetector, not trimmed",
    "density": "its density alone",
    "iforest": "IForest",
    "ecod": "ECOD",
    "knn": "KNN",
    "gmm": "GMM",
    "gmm10": "GMM, 10 components",
    "lof": "LOF",
}
FLOWS = ["elflow", "untrimmed"]
FITTED = [system for system in SYSTEMS if system != "density"]
"""Systems that are fitted: the density alone is a part of another one."""


def jobs(plan: Plan) -> list[Job]:
    if not find_spec("pyod"):
        return []
    rows = plan.options.get("rows", MAX_ROWS)
    sizes: Record = {
        "rows": rows,
        "effort": min(1.0, plan.effort),
        "max_steps": plan.scaled(1_000) if plan.effort < 1 else None,
    }
    return [
        Job(f"{name}-{protocol}-{system}-{seed}", _describe_job(plan, name, protocol, system, seed) | sizes)
        for seed in plan.seeds(plan.options.get("seeds", N_SEEDS))
        for name in plan.options.get("sets", ANOMALY_TABLES)
        if (file := find_file(name)) is None or plan.file(file) is not None
        for protocol in plan.options.get("protocols", PROTOCOLS)
        for system in plan.options.get("systems", FITTED)
        # Without anomalies in the fitted rows there is nothing to trim.
        if (protocol, system) != ("novelty", "untrimmed")
    ]


def _describe_job(plan: Plan, name: str, protocol: str, system: str, seed: int) -> Record:
    file = find_file(name)
    stamp = [] if file is None else plan.stamp(file)
    return {"set": name, "protocol": protocol, "system": system, "seed": seed, "stamp": stamp}


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Fit one detector to one table, and compare its scores with the labels."""
    seed = settings["seed"]
    table = make_anomalies(plan, settings["set"], seed, settings["effort"], settings["rows"])
    ordinary, anomalies = table.ordinary, table.anomalies
    if settings["protocol"] == "unsupervised":
        n_odd = min(len(anomalies), round(CONTAMINATION / (1 - CONTAMINATION) * len(ordinary)))
        anomalies = anomalies[:n_odd]
        fitted = scored = pd.concat([ordinary, anomalies], ignore_index=True)
        n_ordinary = len(ordinary)
    else:
        cut = round(NOVELTY_SHARE * len(ordinary))
        fitted, others = ordinary[:cut], ordinary[cut:]
        scored, n_ordinary = pd.concat([others, anomalies], ignore_index=True), len(others)
    labels = (np.arange(len(scored)) >= n_ordinary).astype(int)
    order = np.random.default_rng(seed).permutation(len(fitted))
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of columns, and of EM that has not converged
        scores = _score(settings, fitted.iloc[order].reset_index(drop=True), scored)
    seconds = time.perf_counter() - start
    measures: Record = {}
    for prefix, of_system in scores.items():
        measures[f"{prefix}auc"] = float(roc_auc_score(labels, of_system))
        measures[f"{prefix}precision"] = float(average_precision_score(labels, of_system))
    return measures | {
        "set": settings["set"],
        "rows": len(fitted),
        "columns": fitted.shape[1],
        "anomalies": int(labels.sum()),
        "seconds": seconds,
    }


def _score(settings: Record, fitted: pd.DataFrame, scored: pd.DataFrame) -> dict[str, np.ndarray]:
    """Scores of rows by a detector that is fitted to others, or to the same ones, and by its density alone.

    The prefix of the measures of the scores is the key: empty for the detector.
    """
    system, seed = settings["system"], settings["seed"]
    if system in FLOWS:
        from elflow.integrations.pyod import FlowDetector  # needs PyOD

        density = FlowDensity(max_steps=settings["max_steps"])
        n_rounds = 2 if system == "elflow" and settings["protocol"] == "unsupervised" else 0
        flow = FlowDetector(contamination=CONTAMINATION, density=density, n_rounds=n_rounds, random_state=seed)
        scores = flow.fit(fitted).decision_function(scored)
        return {"": np.asarray(scores), ALONE: flow.density_.anomaly_score(scored)}
    encode = _Encoder(fitted)
    detector = _make_detector(system, seed).fit(encode(fitted))
    return {"": np.asarray(detector.decision_function(encode(scored)))}


class _Encoder:
    """Standardised numbers for detectors that take nothing else: an indicator for each category."""

    def __init__(self, fitted: pd.DataFrame) -> None:
        self.names = list(pd.get_dummies(fitted, dtype=float))
        self.scaler = StandardScaler().fit(pd.get_dummies(fitted, dtype=float).to_numpy())

    def __call__(self, frame: pd.DataFrame) -> np.ndarray:
        matrix = pd.get_dummies(frame, dtype=float).reindex(columns=self.names, fill_value=0.0)
        return np.asarray(self.scaler.transform(matrix.to_numpy()))


def _make_detector(system: str, seed: int) -> Any:
    """A detector of PyOD with its default settings."""
    if system == "iforest":
        from pyod.models.iforest import IForest

        return IForest(contamination=CONTAMINATION, random_state=seed)
    if system == "ecod":
        from pyod.models.ecod import ECOD

        return ECOD(contamination=CONTAMINATION)
    if system == "knn":
        from pyod.models.knn import KNN

        return KNN(contamination=CONTAMINATION)
    if system == "lof":
        from pyod.models.lof import LOF

        return LOF(contamination=CONTAMINATION)
    from pyod.models.gmm import GMM

    return GMM(n_components=10 if system == "gmm10" else 1, contamination=CONTAMINATION, random_state=seed)


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    tables, texts = [], []
    for protocol in plan.options.get("protocols", PROTOCOLS):
        for measure, title in (("auc", "ROC AUC"), ("precision", "average precision")):
            found = _collect(plan, records, protocol, measure)
            systems = [system for system in SYSTEMS if any(system in of_set for of_set in found.values())]
            rows = [[name, *(_format(of_set.get(system)) for system in systems)] for name, of_set in found.items()]
            if not rows:
                continue
            means = {system: float(np.mean([of_set[system] for of_set in found.values()])) for system in systems}
            rows.append(["mean", *(_format(means[system]) for system in systems)])
            columns = ["table", *(SYSTEMS[system] for system in systems)]
            tables.append(Table(f"{protocol.capitalize()}: {title}", columns, rows, "Means over seeds."))
            if measure == "auc":
                best = max(means, key=lambda system: means[system])
                texts.append(f"{protocol}: the highest mean ROC AUC is that of {SYSTEMS[best]}, {means[best]:.3f}.")
    return Report(" ".join(texts).capitalize(), tables)


def _collect(plan: Plan, records: dict[str, Record], protocol: str, measure: str) -> dict[str, dict[str, float]]:
    """Means over seeds by table and system."""
    found = {}
    for name in ANOMALY_TABLES:
        keys = {system: f"{name}-{protocol}-{system}-" for system in SYSTEMS}
        groups = group_records(records, keys.values())
        means = {s: mean_and_error([r[measure] for r in groups[key]])[0] for s, key in keys.items() if key in groups}
        main = groups.get(keys["elflow"], [])
        if main:
            means["density"] = mean_and_error([r[ALONE + measure] for r in main])[0]
        if means:
            found[name] = means
    return found


def _format(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def missing(plan: Plan) -> list[str]:
    if not find_spec("pyod"):
        return ["PyOD not found: pip install 'elflow[pyod]'"]
    files = {file: name for name in ANOMALY_TABLES if (file := find_file(name)) is not None}
    return [describe_missing(name, file) for file, name in files.items() if plan.file(file) is None]


EXPERIMENT = Experiment(
    "anomalies",
    "Anomalies beside detectors of PyOD",
    jobs,
    work,
    report,
    missing,
    options={
        "sets": Option(parse_choices(ANOMALY_TABLES), f"tables (default: {','.join(ANOMALY_TABLES)})"),
        "systems": Option(parse_choices(FITTED), f"detectors (default: {','.join(FITTED)})"),
        "protocols": Option(parse_choices(PROTOCOLS), f"protocols (default: {','.join(PROTOCOLS)})"),
        "rows": Option(parse_count, f"maximum number of ordinary rows (default: {MAX_ROWS:,})"),
        "seeds": Option(parse_count, f"number of seeds (default: {N_SEEDS})"),
    },
)
