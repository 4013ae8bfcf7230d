"""A table with columns of every kind: Adult, with missing values, sampled as large as it is.

python -m experiments.bench.mixed --data FOLDER

The samples must have the dtypes, categories and ranges of the training rows. A gradient-boosting classifier of income
learns from samples instead of real rows; its AUC on the real test rows says what the samples are worth.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score

from experiments.bench._measure import RESULTS, machine, write
from experiments.bench._tables import add_data, folder, load
from elflow.tabular import FlowDensity

TARGET, POSITIVE = "income", ">50K"
BINS = 20


def check(samples: pd.DataFrame, real: pd.DataFrame) -> dict[str, Any]:
    """What of the samples is not as in the real rows: nothing, it is hoped."""
    numbers = list(real.select_dtypes("number").columns)
    categories = [c for c in real.columns if isinstance(real[c].dtype, pd.CategoricalDtype)]
    outside = {c: int(((samples[c] < real[c].min()) | (samples[c] > real[c].max())).sum()) for c in numbers}
    unseen = {c: int((~samples[c].dropna().isin(real[c].dropna().unique())).sum()) for c in categories}
    never = [c for c in real.columns if not real[c].isna().any() and samples[c].isna().any()]
    return {
        "columns_differ": list(samples.columns) != list(real.columns),
        "dtypes_differ": [c for c in real.columns if samples[c].dtype != real[c].dtype],
        "categories_differ": [c for c in categories if list(samples[c].cat.categories) != list(real[c].cat.categories)],
        "out_of_range": {c: count for c, count in outside.items() if count},
        "unseen_categories": {c: count for c, count in unseen.items() if count},
        "missing_where_nothing_is": never,
    }


def total_variation(a: pd.Series, b: pd.Series) -> float:
    """Half the sum of absolute differences of shares; numbers of many values are in bins, missing is a value."""
    if pd.api.types.is_numeric_dtype(b) and b.nunique() > 100:
        shares = np.linspace(0, 1, BINS + 1)[1:-1]
        # Quantiles of the distinct values as well, for a column that is mostly one value.
        edges = np.unique(np.concatenate([b.quantile(shares), np.quantile(b.unique(), shares)]))
        a, b = (pd.Series(np.searchsorted(edges, x, side="right")) for x in (a, b))
    counts = [x.astype(object).fillna("missing").value_counts(normalize=True) for x in (a, b)]
    return float(counts[0].sub(counts[1], fill_value=0).abs().sum() / 2)


def auc(training: pd.DataFrame, test: pd.DataFrame, seed: int) -> float:
    classifier = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=seed)
    classifier.fit(training.drop(columns=TARGET), training[TARGET] == POSITIVE)
    scores = classifier.predict_proba(test.drop(columns=TARGET))[:, 1]
    return float(roc_auc_score(test[TARGET] == POSITIVE, scores))


def measure(data: Path, seed: int, limit: float, count: int) -> dict[str, Any]:
    real, test = load("adult", data, seed)
    start = time.perf_counter()
    est = FlowDensity(missing="model", random_state=seed, time_limit=limit).fit(real)
    fitted = time.perf_counter()
    samples = est.sample(count, random_state=seed)
    sampled = time.perf_counter()
    variation = {c: total_variation(samples[c], real[c]) for c in real.columns}
    floor = {c: total_variation(test[c], real[c]) for c in real.columns}
    scores = est.score_samples(test)
    aucs = {"samples": auc(samples, test, seed), "real": auc(real, test, seed)}
    return {
        "seed": seed,
        "rows": len(samples),
        "checks": check(samples, real),
        "auc": aucs | {"points_lost": 100 * (aucs["real"] - aucs["samples"])},
        "total_variation": {c: {"samples": variation[c], "test_rows": floor[c]} for c in real.columns},
        "missing": {c: {"samples": samples[c].isna().mean(), "real": real[c].isna().mean()} for c in real.columns},
        "positive": {"samples": (samples[TARGET] == POSITIVE).mean(), "real": (real[TARGET] == POSITIVE).mean()},
        "test": {"nats": scores.mean(), "error": scores.std(ddof=1) / len(scores) ** 0.5},
        "seconds": {"fit": fitted - start, "sample": sampled - fitted},
        "parameters": est.n_parameters_,
        "stopped": est.stopped_,
    }


def markdown(result: dict[str, Any]) -> str:
    lines = ["| column | total variation of samples | of real test rows | missing, samples | missing, real |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for column, tv in result["total_variation"].items():
        missing = result["missing"][column]
        shares = f"{missing['samples']:.3f} | {missing['real']:.3f}"
        lines.append(f"| {column} | {tv['samples']:.3f} | {tv['test_rows']:.3f} | {shares} |")
    values, seconds = result["auc"], result["seconds"]
    wrong = {name: found for name, found in result["checks"].items() if found}
    lines += ["", f"Not as in the real rows: {json.dumps(wrong) if wrong else 'nothing'}."]
    lost = f"{values['points_lost']:.1f} points lost"
    lines.append(f"AUC {values['samples']:.4f} from samples, {values['real']:.4f} from real rows: {lost}.")
    lines.append(f"Fit {seconds['fit']:.0f} s, {result['rows']:,} samples {seconds['sample']:.0f} s.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for results (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--time-limit", type=float, default=300, help="seconds for the fit (%(default)s)")
    parser.add_argument("--samples", type=int, default=48_842, help="how many (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = folder(parser, options.data, ["adult"])
    result = measure(data, options.seed, options.time_limit, options.samples)
    settings = {"time_limit": options.time_limit, "threads": options.threads}
    write(options.output / "mixed.json", {"machine": machine(), **settings, **result})
    print(markdown(result))


if __name__ == "__main__":
    main()
