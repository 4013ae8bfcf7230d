"""A floor under the likelihood: `FlowDensity()` on many small tables, beside simple models and other flows.

On no table should the default be worse than the best of all compared models, by more than 0.05 nats or two standard
errors of the difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from elflow._files import replacing
from experiments.bench.tables import score_baseline, score_flow
from experiments.data.small_tables import SMALL_TABLES, SmallTable, make_table
from experiments.data.tables import FILES, NUMERIC_SETS, find_table, load_table
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.figure import ACCENT, INK, SOFT, draw_figure
from experiments.framework.measure import sample_mean_and_error
from experiments.framework.options import parse_choices

__all__ = ["EXPERIMENT"]

FLOWS = {"elf": "ELF", "nsf": "NSF", "maf": "MAF"}
MODELS = {**FLOWS, "gaussian": "Gaussian", "gmm": "Gaussian mixture", "kde": "kernel density"}
MAX_ROWS = 5_000
"""Maximum number of rows of a table of the data folder."""
STEPS_OF_LITTLE_EFFORT = 2_000
"""Number of training steps, times the effort, if the effort is below one."""
TOLERANCE = 0.05
"""Nats by which the default may be behind the best model of a table, if two standard errors are less."""
MIN_TIES = 0.9
"""Share of the tables on which the default is to be ahead of NSF and MAF, or tied."""
MAX_GAPS = {"nearly-gaussian-6000": 0.1}
"""Maximum gaps to the truth."""
MAX_BEHIND_GAUSSIAN = 0.1
"""Nats by which the default may be behind the Gaussian on a table of a factor model."""
SCORES = "log_density.npy"
"""The log-densities of the test rows, which a job leaves in its folder."""


def jobs(plan: Plan) -> list[Job]:
    files = [name for name in NUMERIC_SETS if find_table(plan, name) is not None]
    sets = plan.options.get("sets", [*SMALL_TABLES, *files])
    same = {"seed": plan.seed, "effort": plan.effort}
    if "dequantization" in plan.options:
        same["dequantization"] = plan.options["dequantization"][0]
    return [
        Job(f"{name}-{model}", {"set": name, "model": model, "stamp": plan.stamp(FILES.get(name, name)), **same})
        for name in sets
        if name in SMALL_TABLES or name in files
        for model in plan.options.get("models", MODELS)
    ]


def _load(plan: Plan, settings: Record) -> SmallTable:
    name, seed = settings["set"], settings["seed"]
    if name in SMALL_TABLES:
        return make_table(name, seed, settings["effort"])
    training, test = load_table(plan, name, seed, MAX_ROWS)
    count = max(60, round(min(1.0, settings["effort"]) * MAX_ROWS))
    return SmallTable(
        training.sample(min(count, len(training)), random_state=seed).reset_index(drop=True), test[:count]
    )


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Fits a model and scores the test rows, whose log-densities it leaves in the folder."""
    table, model = _load(plan, settings), settings["model"]
    if model in FLOWS:
        steps = None if settings["effort"] >= 1 else max(2, round(STEPS_OF_LITTLE_EFFORT * settings["effort"]))
        noise = settings.get("dequantization", "auto")
        record, log_density = score_flow(
            model, table.training, table.test, settings["seed"], max_steps=steps, dequantization=noise
        )
    else:
        record, log_density = score_baseline(model, table.training, table.test, settings["seed"])
    with replacing(folder / SCORES) as temporary, temporary.open("wb") as file:
        np.save(file, log_density)
    finite = log_density[np.isfinite(log_density)]
    mean, error = sample_mean_and_error(torch.from_numpy(finite)) if len(finite) > 1 else (-1e300, 0.0)
    record |= {"set": settings["set"], "model": model, "test": mean, "error": error}
    record |= {"impossible_rows": len(log_density) - len(finite)}
    if table.truth is not None:
        record["gap"] = float((table.truth - log_density)[np.isfinite(log_density)].mean())
    return record | {"features": table.training.shape[1], "training_rows": len(table.training)}


# --- the report -------------------------------------------------------------------------------------------------------


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    by_set: dict[str, dict[str, Record]] = {}
    for record in records.values():
        by_set.setdefault(record["set"], {})[record["model"]] = record
    models = [model for model in MODELS if any(model in runs for runs in by_set.values())]
    rows, gaps, behind, ties, near_ties, failures = [], {}, [], [], [], []
    for name, runs in by_set.items():
        elf = runs.get("elf")
        rows.append([name, *(_format(runs.get(model)) for model in models), _format_gap(elf), _format_weight(elf)])
        if "elf" not in runs or len(runs) < 2:
            continue
        best = max(runs, key=lambda model: runs[model]["test"])
        shortfall, error = (0.0, 0.0) if best == "elf" else _compare(folder, name, best)
        gaps[name] = {model: runs[model]["test"] - runs[best]["test"] for model in runs}
        if shortfall > max(TOLERANCE, 2 * error):
            behind.append(f"{name}: {shortfall:.3f} ± {error:.3f} nats behind {MODELS[best]}")
        if name.startswith("factor") and "gaussian" in runs:
            lost = _compare(folder, name, "gaussian")[0]
            failures += [f"{name}: {lost:.3f} nats behind the Gaussian"] * (lost > MAX_BEHIND_GAUSSIAN)
        if name in MAX_GAPS and elf is not None and elf["gap"] > MAX_GAPS[name]:
            failures.append(f"{name}: {elf['gap']:.3f} nats from the truth")
        flows = [_compare(folder, name, model) for model in ("nsf", "maf") if model in runs]
        ties.append(all(difference <= 2 * error for difference, error in flows))
        near_ties.append(all(difference <= max(TOLERANCE, 2 * error) for difference, error in flows))
        if runs["elf"]["impossible_rows"]:
            behind.append(f"{name}: {runs['elf']['impossible_rows']} test rows have the density zero")
    text = f"The default is within {TOLERANCE} nats or two standard errors of the best model on "
    text += f"{len(gaps) - len({line.split(':')[0] for line in behind})} of {len(gaps)} tables."
    if ties:
        if sum(ties) < MIN_TIES * len(ties):
            failures.append(f"ahead of NSF and MAF, or tied, on less than {MIN_TIES:.0%} of the tables")
        text += f" It is ahead of NSF and MAF, or tied within two standard errors, on {sum(ties)} of {len(ties)}"
        text += f" ({sum(near_ties)} of {len(ties)}, if differences of less than {TOLERANCE} nats are ties, too)."
    note = (
        "Means over test rows with their standard errors. ELF, NSF and MAF are `FlowDensity` with this flow: a mixture "
        "of flows and Gaussians. The last columns are of ELF: the gap to the true density, the weight of the flows."
    )
    columns = ["table", *(MODELS[model] for model in models), "gap to the truth", "weight of the flows"]
    pictures = {}
    if gaps:
        _draw(gaps, models, folder / "gaps.png")
        pictures["gaps.png"] = "Difference to the best model of each table, in nats"
    return Report(
        text, [Table("Test log-likelihood in nats", columns, rows, note)], pictures, failures=behind + failures
    )


def _compare(folder: Path, name: str, other: str) -> tuple[float, float]:
    """Mean over test rows of the other's log-density minus that of ELF, and its standard error."""
    ours, theirs = (np.load(folder / "jobs" / f"{name}-{model}" / SCORES) for model in ("elf", other))
    is_finite = np.isfinite(ours) & np.isfinite(theirs)
    if is_finite.sum() < 2:
        return 0.0, 0.0
    return sample_mean_and_error(torch.from_numpy((theirs - ours)[is_finite]))


def _format(record: Record | None) -> str:
    return "" if record is None else f"{record['test']:.3f} ± {record['error']:.3f}"


def _format_gap(record: Record | None) -> str:
    return "" if record is None or "gap" not in record else f"{record['gap']:.3f}"


def _format_weight(record: Record | None) -> str:
    return "" if record is None else f"{sum(w for name, w in record['members'] if name != 'gaussian'):.1%}"


def _draw(gaps: dict[str, dict[str, float]], models: list[str], path: Path) -> None:
    colours: dict[str, Any] = {"elf": ACCENT, "nsf": INK}
    with draw_figure(path, figsize=(7, 1 + 0.22 * len(gaps))) as (_, axes):
        place = axes[0, 0]
        for model in reversed(models):
            points = [(gap[model], y) for y, gap in enumerate(gaps.values()) if model in gap]
            x, y = zip(*points, strict=True)
            place.scatter(
                x, y, s=22, color=colours.get(model, SOFT), label=MODELS[model], zorder=3 if model == "elf" else 2
            )
        place.set_yticks(range(len(gaps)), list(gaps))
        place.set(xlabel="difference to the best model in nats")
        place.set_xscale("symlog", linthresh=0.1)
        place.axvline(-TOLERANCE, color=SOFT, lw=0.8, ls=":")
        place.invert_yaxis()
        place.legend(frameon=False, fontsize=8)


EXPERIMENT = Experiment(
    "floor",
    "Small tables of many kinds with default settings",
    jobs,
    work,
    report,
    options={
        "models": Option(parse_choices(MODELS), f"models (default: {','.join(MODELS)})"),
        "dequantization": Option(parse_choices(["uniform", "gaussian"]), "noise of the flows (default: uniform)"),
        "sets": Option(parse_choices([*SMALL_TABLES, *NUMERIC_SETS]), "tables (default: all)"),
    },
)
