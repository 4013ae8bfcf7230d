"""Conditional quantiles: one stock's daily return given nineteen others, and how often it falls below each quantile.

python -m experiments.bench.quantiles --data FOLDER

Held-out rows are drawn at random. The same with the last fifth of the days held out comes along: volatility changes
over the decades, which no density without time can know, so that its coverage is reported and not judged.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from experiments.bench._measure import RESULTS, machine, write
from experiments.bench._tables import add_data, folder, returns, shuffled
from elflow.tabular import FlowDensity

LEVELS = (0.01, 0.05, 0.95, 0.99)


def coverage(
    training: pd.DataFrame, test: pd.DataFrame, seed: int, limit: float, weight_decay: float | None
) -> dict[str, Any]:
    """For each level the share of test rows below the quantile, with its standard error were the model right."""
    column = training.columns[-1]
    start = time.perf_counter()
    est = FlowDensity(random_state=seed, time_limit=limit, weight_decay=weight_decay).fit(training)
    fitted = time.perf_counter()
    quantiles = est.conditional_quantile(test, column, list(LEVELS))
    below = test[column].to_numpy()[:, None] <= quantiles
    # The quantile and the distribution function are one map and its inverse: they must tell the same story.
    agree = below == (est.conditional_cdf(test, column=column)[:, None] <= np.array(LEVELS))
    levels = {}
    for level, share in zip(LEVELS, below.mean(0), strict=True):
        error = (level * (1 - level) / len(test)) ** 0.5
        levels[f"{level:g}"] = {"coverage": float(share), "error": error, "z": float((share - level) / error)}
    return {
        "levels": levels,
        "seed": seed,
        "column": column,
        "worst_z": max(abs(each["z"]) for each in levels.values()),
        "rows": len(test),
        "agreement": float(agree.mean()),
        "test": float(est.score(test)),
        "seconds": {"fit": fitted - start, "quantiles and distribution": time.perf_counter() - fitted},
    }


def describe(name: str, result: dict[str, Any]) -> str:
    cells = [f"{100 * r['coverage']:.2f} % ({r['z']:+.1f})" for r in result["levels"].values()]
    return f"| {name}, seed {result['seed']} | " + " | ".join(cells) + f" | {result['worst_z']:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for results (%(default)s)")
    parser.add_argument("--seeds", default="0,1,2", help="of splits and models (%(default)s)")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for each fit (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(%(default)s)")
    parser.add_argument("--weight-decay", type=float, help="of the fits; by default what fits the table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = returns(folder(parser, options.data, ["stocks"]))
    seeds = [int(seed) for seed in options.seeds.split(",")]
    print("| held out | " + " | ".join(f"{100 * level:g} % (z)" for level in LEVELS) + " | worst z |")
    print("| --- |" + " --- |" * (len(LEVELS) + 1))
    runs = []
    for seed in seeds:
        runs.append(coverage(*shuffled(table, seed), seed, options.time_limit, options.weight_decay))
        print(describe("at random", runs[-1]), flush=True)
    cut = round(0.8 * len(table))
    last = coverage(table[:cut], table[cut:].reset_index(drop=True), seeds[0], options.time_limit, options.weight_decay)
    print(describe("last fifth", last))
    within = all(run["worst_z"] <= 3 for run in runs)
    print(f"\nWithin three standard errors at every level and seed: {'yes' if within else 'no'}.")
    settings = {"time_limit": options.time_limit, "threads": options.threads, "weight_decay": options.weight_decay}
    settings |= {"within_three_errors": within}
    results = {"machine": machine(), **settings, "at random": runs, "last fifth": last}
    write(options.output / "quantiles.json", results)


if __name__ == "__main__":
    main()
