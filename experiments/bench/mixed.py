"""A table with columns of every kind: samples of Adult, which has categories and missing values.

The samples must have the dtypes, categories and ranges of the training rows. A gradient-boosting classifier of income
is trained on samples instead of real rows; its AUC on the real test rows measures the quality of the samples.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from elflow.tabular import FlowDensity
from experiments.data.tables import FILES, find_table, list_missing, load_table
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.measure import sample_mean_and_error
from experiments.framework.options import parse_seconds

__all__ = ["EXPERIMENT"]

TARGET, POSITIVE = "income", ">50K"
N_BINS = 20
TIME_LIMIT, N_SAMPLES = 300.0, 48_842


def jobs(plan: Plan) -> list[Job]:
    if find_table(plan, "adult") is None:
        return []
    time_limit = plan.options.get("time_limit", plan.seconds(TIME_LIMIT))
    sizes = {"time_limit": time_limit, "samples": plan.scaled(N_SAMPLES)}
    return [Job("adult", {"seed": plan.seed, "stamp": plan.stamp(FILES["adult"]), **sizes})]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    seed = settings["seed"]
    real, test = load_table(plan, "adult", seed)
    start = time.perf_counter()
    est = FlowDensity(missing="model", random_state=seed, time_limit=settings["time_limit"]).fit(real)
    fitted = time.perf_counter()
    samples = est.sample(settings["samples"], random_state=seed)
    sampled = time.perf_counter()
    aucs = {"samples": _measure_auc(samples, test, seed), "real": _measure_auc(real, test, seed)}
    mean, error = sample_mean_and_error(torch.from_numpy(est.score_samples(test)))
    return {
        "rows": len(samples),
        "differences": _find_differences(samples, real),
        "auc": aucs | {"points_lost": 100 * (aucs["real"] - aucs["samples"])},
        "total_variation": {
            c: {
                "samples": _measure_total_variation(samples[c], real[c]),
                "test_rows": _measure_total_variation(test[c], real[c]),
            }
            for c in real.columns
        },
        "missing": {
            c: {"samples": float(samples[c].isna().mean()), "real": float(real[c].isna().mean())} for c in real.columns
        },
        "test": mean,
        "error": error,
        "fit_seconds": fitted - start,
        "sample_seconds": sampled - fitted,
        "parameters": est.n_parameters_,
        "stopped": est.training_.stopped,
    }


def _find_differences(samples: pd.DataFrame, real: pd.DataFrame) -> dict[str, Any]:
    """Differences in columns, dtypes, categories, ranges and missing values between samples and real rows."""
    numbers = list(real.select_dtypes("number").columns)
    categories = [c for c in real.columns if isinstance(real[c].dtype, pd.CategoricalDtype)]
    outside = {c: int(((samples[c] < real[c].min()) | (samples[c] > real[c].max())).sum()) for c in numbers}
    unseen = {c: int((~samples[c].dropna().isin(real[c].dropna().unique())).sum()) for c in categories}
    differences = {
        "columns": list(samples.columns) if list(samples.columns) != list(real.columns) else [],
        "dtypes": [c for c in real.columns if samples[c].dtype != real[c].dtype],
        "categories": [c for c in categories if list(samples[c].cat.categories) != list(real[c].cat.categories)],
        "out of range": {c: count for c, count in outside.items() if count},
        "unseen categories": {c: count for c, count in unseen.items() if count},
        "missing values": [c for c in real.columns if not real[c].isna().any() and samples[c].isna().any()],
    }
    return {name: value for name, value in differences.items() if value}


def _measure_total_variation(a: pd.Series, b: pd.Series) -> float:
    """Total variation distance of two columns; numbers of many values are binned, missing is a value."""
    if pd.api.types.is_numeric_dtype(b) and b.nunique() > 100:
        shares = np.linspace(0, 1, N_BINS + 1)[1:-1]
        # Quantiles of the distinct values as well, for a column that mostly has one value.
        edges = np.unique(np.concatenate([b.quantile(shares), np.quantile(b.unique(), shares)]))
        a, b = (pd.Series(np.searchsorted(edges, x, side="right")) for x in (a, b))
    counts = [x.astype(object).fillna("missing").value_counts(normalize=True) for x in (a, b)]
    return float(counts[0].sub(counts[1], fill_value=0).abs().sum() / 2)


def _measure_auc(training: pd.DataFrame, test: pd.DataFrame, seed: int) -> float:
    classifier = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed)
    classifier.fit(training.drop(columns=TARGET), training[TARGET] == POSITIVE)
    scores = classifier.predict_proba(test.drop(columns=TARGET))[:, 1]
    return float(roc_auc_score(test[TARGET] == POSITIVE, scores))


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    (record,) = records.values()
    rows = []
    for column, distances in record["total_variation"].items():
        shares = record["missing"][column]
        distance = [f"{distances[key]:.3f}" for key in ("samples", "test_rows")]
        rows.append([column, *distance, f"{shares['samples']:.3f}", f"{shares['real']:.3f}"])
    auc = record["auc"]
    text = (
        f"A classifier trained on samples has an AUC of {auc['samples']:.4f}, one trained on real rows "
        f"{auc['real']:.4f}: {auc['points_lost']:.1f} points are lost. The test log-likelihood is {record['test']:.3f} "
        f"± {record['error']:.3f} nats. The fit took {record['fit_seconds']:.0f} s, {record['rows']:,} samples "
        f"{record['sample_seconds']:.0f} s."
    )
    columns = [
        "column",
        "total variation of samples",
        "of real test rows",
        "missing in samples",
        "missing in real rows",
    ]
    differences = dict(record["differences"])
    if outside := differences.pop("out of range", None):  # allowed: the bounds of columns are soft
        text += f" Samples outside the range of the real rows: {json.dumps(outside)}."
    failures = [f"samples differ from the real rows: {json.dumps(differences)}"] if differences else []
    return Report(text, [Table("Columns of Adult", columns, rows)], failures=failures)


def missing(plan: Plan) -> list[str]:
    return list_missing(plan, ["adult"])


EXPERIMENT = Experiment(
    "mixed",
    "Samples of a mixed-type table",
    jobs,
    work,
    report,
    missing,
    options={"time_limit": Option(parse_seconds, f"seconds for the fit (default: {TIME_LIMIT:g} times the effort)")},
)
