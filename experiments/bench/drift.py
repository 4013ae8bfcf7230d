"""Drift: how often `FlowDensity.compare` finds drift where there is none, and where there is a small one.

The level is that of 1,000 tables without drift, under 40 fits. One table of each fit is compared with the counts that
the fit has stored, the others with other held-out rows, so that each table has a reference of its own. Power is that of
tables in which one thing has changed. A comparison with samples of the density, instead of held-out rows, finds the
errors of the density instead of drift.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from elflow.tabular import Drift, FlowDensity
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.figure import ACCENT, GREEN, INK, SOFT, draw_figure

__all__ = ["EXPERIMENT"]

LEVEL = 0.05
N_LEVEL_JOBS, N_FITS, N_REFERENCES = 5, 8, 24
"""Number of jobs that measure the level, of fits in each, and of tables with other held-out rows for each fit."""
LEVEL_ROWS, LEVEL_NEW = 600, 300
N_POWER_JOBS, N_REPEATS = 8, 5
"""Number of fits for the power, and of new tables for each of them and each change."""
POWER_ROWS, POWER_NEW = 5_000, 1_000
VALIDATION = 0.2
MODEL: dict[str, Any] = {
    "flow_options": {"transforms": 1, "units": 4, "hidden_features": (16,)},
    "members": ["plain"],
    "missing": "model",
    "validation": VALIDATION,
}
CHANGES: dict[str, tuple[float, ...]] = {
    "mean": (0.05, 0.1, 0.2, 0.3),
    "scale": (0.05, 0.1, 0.2, 0.3),
    "correlation": (0.05, 0.1, 0.15, 0.2),
    "share": (0.03, 0.06, 0.09, 0.12),
    "missing": (0.01, 0.02, 0.04, 0.06),
}
"""Sizes of the changes: in standard deviations, factors less 1, differences of correlations and of shares."""
DRIFTED: dict[str, tuple[str, ...]] = {
    "none": ("nothing",),
    "mean": ("a",),
    "scale": ("a",),
    "correlation": ("a", "b"),
    "share": ("kind",),
    "missing": ("size",),
}
"""Columns, or the pair, that have drifted."""
ASPECTS = ("log-density", "PIT", "two-sample")
"""Tests of all columns together."""
MODEL_ROWS = (500, 5_000)
"""Numbers of new rows without drift that are compared with samples of the density, and with held-out rows."""


def make_table(n: int, rng: np.random.Generator, change: str = "", size: float = 0.0) -> pd.DataFrame:
    """Rows of five columns of all kinds, one of which may have changed.

    Example:
        >>> make_table(3, np.random.default_rng(0)).columns.tolist()
        ['a', 'b', 'count', 'kind', 'size']
    """
    a, noise = rng.normal(size=(2, n))
    correlation = 0.6 - size * (change == "correlation")
    b = correlation * a + np.sqrt(1 - correlation**2) * noise
    count = rng.poisson(np.exp(0.7 + 0.3 * b))
    moved = size * (change == "share")
    kind = rng.choice(["x", "y", "z"], n, p=[0.6 - moved, 0.3 + moved, 0.1])
    large = rng.lognormal(0.3 * a, 0.5)
    large[rng.random(n) < 0.05 + size * (change == "missing")] = np.nan
    a = a * (1 + size * (change == "scale")) + size * (change == "mean")
    return pd.DataFrame({"a": a, "b": b, "count": count, "kind": kind, "size": large})


def jobs(plan: Plan) -> list[Job]:
    level = [
        Job(f"level-{seed}", {"kind": "level", "seed": seed, "fits": plan.scaled(N_FITS)})
        for seed in plan.seeds(N_LEVEL_JOBS)
    ]
    power = [
        Job(f"power-{seed}", {"kind": "power", "seed": seed, "repeats": plan.scaled(N_REPEATS)})
        for seed in plan.seeds(N_POWER_JOBS)
    ]
    return [*level, *power]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    rng = np.random.default_rng([settings["seed"], settings["kind"] == "power"])
    return measure_level(settings, rng) if settings["kind"] == "level" else measure_power(settings, rng)


def measure_level(settings: Record, rng: np.random.Generator) -> Record:
    """p-values of tables without drift, each against held-out rows of its own."""
    names = ("all", "overall", "column", "pair", *ASPECTS)
    p_values: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in names} for kind in ("stored", "passed")}
    for _ in range(settings["fits"]):
        density = FlowDensity(**MODEL, max_steps=15, random_state=int(rng.integers(2**31)))
        density.fit(make_table(LEVEL_ROWS, rng))
        n_held_out = round(VALIDATION * LEVEL_ROWS)
        for kind in ("stored", *["passed"] * N_REFERENCES):
            reference = make_table(n_held_out, rng) if kind == "passed" else None
            found = density.compare(make_table(LEVEL_NEW, rng), reference=reference, level=LEVEL)
            _append(p_values[kind], found)
    return {"kind": "level", "p_values": p_values, "held_out": found.n_reference, "new": found.n_rows}


def _append(p_values: dict[str, list[float]], found: Drift) -> None:
    """Append the p-values of a comparison, those of groups adjusted for their own number of tests."""
    p_values["all"].append(found.p_value)
    for group in ("overall", "column", "pair"):
        tests = [test for test in found.tests if test.group == group]
        p_values[group].append(min(1.0, len(tests) * min(test.p_value for test in tests)))
    for aspect in ASPECTS:
        p_values[aspect] += [test.p_value for test in found.tests if test.aspect == aspect]


def measure_power(settings: Record, rng: np.random.Generator) -> Record:
    """Numbers of alarms for each change, and without one, against the counts of one fit."""
    density = FlowDensity(**MODEL, max_steps=200, random_state=settings["seed"]).fit(make_table(POWER_ROWS, rng))
    alarms: dict[str, dict[str, int]] = {}
    named: dict[str, dict[str, int]] = {}
    repeats = range(settings["repeats"])
    for change, sizes in {"none": (0.0,), **CHANGES}.items():
        for size in sizes:
            found = [density.compare(make_table(POWER_NEW, rng, change, size), level=LEVEL) for _ in repeats]
            alarms.setdefault(change, {})[f"{size:g}"] = sum(one.has_drift for one in found)
            named.setdefault(change, {})[f"{size:g}"] = sum(_is_named(one, DRIFTED[change]) for one in found)
    record: Record = {"kind": "power", "alarms": alarms, "named": named, "repeats": len(repeats)}
    record["against"] = {
        str(n): _compare_references(density, n, len(repeats), settings["seed"], rng) for n in MODEL_ROWS
    }
    return record | {"held_out": POWER_ROWS * VALIDATION, "new": POWER_NEW}


def _is_named(found: Drift, columns: tuple[str, ...]) -> bool:
    """Whether the tests that find drift include that of these columns."""
    return any(test.columns == columns for test in found.drifted)


def _compare_references(
    density: FlowDensity, n: int, repeats: int, seed: int, rng: np.random.Generator
) -> dict[str, int]:
    """Alarms without drift, against held-out rows and against as many samples of the density."""
    alarms = {"held-out rows": 0, "samples": 0}
    for k in range(repeats):
        new = make_table(n, rng)
        alarms["held-out rows"] += density.compare(new, level=LEVEL).has_drift
        samples = density.sample(n, random_state=1_000 * seed + k)
        alarms["samples"] += density.compare(new, reference=samples, level=LEVEL).has_drift
    return alarms


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    of_level = [record for record in records.values() if record["kind"] == "level"]
    of_power = [record for record in records.values() if record["kind"] == "power"]
    tables, failures, text = [], [], ""
    if of_level:
        table, rate, error = _report_level(of_level)
        tables.append(table)
        text = f"Drift was found in {100 * rate:.1f} ± {100 * error:.1f} % of the tables without drift."
        if rate - 2 * error > LEVEL:
            failures.append(f"false alarms: {rate:.3f} instead of at most {LEVEL}")
    if of_power:
        tables += [_report_power(of_power), _report_references(of_power)]
        _draw(folder / "drift-power.png", of_power)
    pictures = {"drift-power.png": "Power against the size of the change."} if of_power else {}
    return Report(text, tables, pictures, failures=failures)


def _report_level(records: list[Record]) -> tuple[Table, float, float]:
    rows, rate, error = [], 0.0, 0.0
    titles = {"all": "all tests together", "overall": "all columns together", "column": "columns", "pair": "pairs"}
    titles |= {aspect: f"{aspect} alone" for aspect in ASPECTS}
    cases: list[tuple[str, tuple[str, ...], str]] = [("all", ("stored",), "all tests together, counts of the fit")]
    cases += [(group, ("stored", "passed"), title) for group, title in titles.items()]
    for group, kinds, title in cases:
        p_values = np.concatenate([record["p_values"][kind][group] for record in records for kind in kinds])
        shares = [float((p_values <= level).mean()) for level in (0.01, LEVEL, 0.1)]
        rows.append([title, f"{len(p_values):,}", *(f"{100 * share:.1f} %" for share in shares)])
        if title == titles["all"]:
            rate, error = shares[1], float(np.sqrt(shares[1] * (1 - shares[1]) / len(p_values)))
    note = (
        f"Share of tables of {records[0]['new']} rows without drift in which it is found at a level, against "
        f"{records[0]['held_out']} held-out rows of their own: those of the fit, or others. The groups are adjusted "
        "for their own number of tests."
    )
    return Table("Level", ["tests", "tables", "1 %", "5 %", "10 %"], rows, note), rate, error


def _collect(records: list[Record], name: str, change: str) -> tuple[list[float], list[float]]:
    """Sizes of a change from none on, and the share of tables with an alarm."""
    n_tables = sum(record["repeats"] for record in records)
    cells = [("none", "0"), *((change, f"{size:g}") for size in CHANGES[change])]
    shares = [sum(record[name][key][size] for record in records) / n_tables for key, size in cells]
    return [0.0, *CHANGES[change]], shares


def _report_power(records: list[Record]) -> Table:
    rows = []
    for change in CHANGES:
        sizes, power = _collect(records, "alarms", change)
        named = _collect(records, "named", change)[1]
        cells = [f"{size:g}: {100 * p:.0f} % ({100 * q:.0f} %)" for size, p, q in zip(sizes, power, named, strict=True)]
        rows.append([change, f"{100 * power[0]:.0f} %", *cells[1:]])
    note = (
        f"Share of {sum(record['repeats'] for record in records)} tables of {records[0]['new']:,} rows in which drift "
        f"is found at 5 %, by the size of the change, against {records[0]['held_out']:,.0f} held-out rows; in "
        "brackets, the share in which the changed column or pair is named."
    )
    return Table("Power", ["change", "none", *(f"size {k}" for k in range(1, 5))], rows, note)


def _report_references(records: list[Record]) -> Table:
    n_tables = sum(record["repeats"] for record in records)
    rows = []
    for n in records[0]["against"]:
        rates = [sum(record["against"][n][name] for record in records) / n_tables for name in records[0]["against"][n]]
        rows.append([f"{int(n):,}", *(f"{100 * rate:.0f} %" for rate in rates)])
    note = "Share of tables without drift in which it is found at 5 %."
    return Table("False alarms by the reference", ["new rows", "held-out rows", "samples of the density"], rows, note)


def _draw(path: Path, records: list[Record]) -> None:
    labels = {
        "mean": "mean (standard deviations)",
        "scale": "scale (relative)",
        "correlation": "correlation, from 0.6 down",
        "share": "share of a category",
        "missing": "share of missing values",
    }
    with draw_figure(path, 1, len(CHANGES), figsize=(12, 2.6), sharey=True) as (_, axes):
        for place, change in zip(axes[0], CHANGES, strict=True):
            place.plot(*_collect(records, "alarms", change), "o-", color=GREEN, label="drift found")
            place.plot(*_collect(records, "named", change), "s--", color=INK, markersize=4, label="column named")
            place.axhline(LEVEL, color=ACCENT, linewidth=0.8, linestyle=":")
            place.set(xlabel=labels[change], ylim=(-0.03, 1.03))
            place.grid(color=SOFT, linewidth=0.3)
        axes[0, 0].set_ylabel("share of tables")
        axes[0, 0].legend(frameon=False, fontsize=7, loc="lower right")


EXPERIMENT = Experiment("drift", "Drift: level and power", jobs, work, report)
