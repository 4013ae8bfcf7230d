"""Conditional quantiles: the daily return of one stock given nineteen others, and how often it is below each quantile.

Test rows are chosen at random. The last fifth of the days as test rows is reported, too, but not judged: volatility
changes over the decades, and a density without time cannot predict that.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from elflow.tabular import FlowDensity
from experiments.data.tables import FILES, find_table, list_missing, load_returns, split_rows
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.options import parse_seconds

__all__ = ["EXPERIMENT"]

LEVELS = (0.01, 0.05, 0.95, 0.99)
TIME_LIMIT, N_SEEDS = 60.0, 3
MAX_ERRORS = 3
"""Maximum deviation of a coverage in standard errors."""


def jobs(plan: Plan) -> list[Job]:
    if find_table(plan, "stocks") is None:
        return []
    same = {"time_limit": plan.options.get("time_limit", plan.seconds(TIME_LIMIT))}
    same |= {"weight_decay": plan.options.get("weight_decay"), "stamp": plan.stamp(FILES["stocks"])}
    seeds = plan.seeds(N_SEEDS)
    jobs = [Job(f"random-{seed}", {"test_rows": "random", "seed": seed, **same}) for seed in seeds]
    return [*jobs, Job("last-fifth", {"test_rows": "last fifth", "seed": seeds[0], **same})]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """For each level the share of test rows below the quantile, with its standard error if the model is right."""
    table, seed = load_returns(plan), settings["seed"]
    if settings["test_rows"] == "random":
        training, test = split_rows(table, seed)
    else:
        cut = round(0.8 * len(table))
        training, test = table[:cut], table[cut:].reset_index(drop=True)
    column = training.columns[-1]
    start = time.perf_counter()
    time_limit, weight_decay = settings["time_limit"], settings["weight_decay"]
    est = FlowDensity(random_state=seed, time_limit=time_limit, weight_decay=weight_decay).fit(training)
    fitted = time.perf_counter()
    quantiles = est.conditional_quantile(test, column, list(LEVELS))
    is_below = test[column].to_numpy()[:, None] <= quantiles
    # The quantile and the distribution function are a map and its inverse: they must agree.
    agrees = is_below == (est.conditional_cdf(test, column)[:, None] <= np.array(LEVELS))
    levels = {}
    for level, share in zip(LEVELS, is_below.mean(0), strict=True):
        error = (level * (1 - level) / len(test)) ** 0.5
        levels[f"{level:g}"] = {"coverage": float(share), "error": error, "z": float((share - level) / error)}
    return {
        "test_rows": settings["test_rows"],
        "seed": seed,
        "column": column,
        "levels": levels,
        "rows": len(test),
        "agreement": float(agrees.mean()),
        "test": float(est.score(test)),
        "fit_seconds": fitted - start,
        "quantile_seconds": time.perf_counter() - fitted,
    }


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows, largest, failures = [], 0.0, []
    for key, record in records.items():
        levels = record["levels"].values()
        worst = max(abs(level["z"]) for level in levels)
        cells = [f"{100 * level['coverage']:.2f} % ({level['z']:+.1f})" for level in levels]
        rows.append([f"{record['test_rows']}, seed {record['seed']}", f"{record['rows']:,}", *cells, f"{worst:.1f}"])
        if record["test_rows"] == "random":
            largest = max(largest, worst)
        if record["agreement"] < 1:
            failures.append(f"{key}: quantiles and distribution function agree for {record['agreement']:.2%} only")
    verdict = "within" if largest <= MAX_ERRORS else "not within"
    text = (
        f"Coverage of random test rows is {verdict} {MAX_ERRORS} standard errors at every level and seed; the largest "
        f"deviation is {largest:.1f}."
    )
    columns = ["test rows", "number", *(f"{100 * level:g} %" for level in LEVELS), "largest deviation"]
    note = "Fraction of test rows below each quantile, and its deviation in standard errors."
    return Report(text, [Table("Coverage of conditional quantiles", columns, rows, note)], failures=failures)


def missing(plan: Plan) -> list[str]:
    return list_missing(plan, ["stocks"])


EXPERIMENT = Experiment(
    "quantiles",
    "Conditional quantiles of stock returns",
    jobs,
    work,
    report,
    missing,
    options={
        "time_limit": Option(parse_seconds, f"seconds for each fit (default: {TIME_LIMIT:g} times the effort)"),
        "weight_decay": Option(float, "weight decay (default: chosen for the table)"),
    },
)
