"""Quality by default: test likelihoods of `FlowDensity()` on seven tables beside splines, MAF, mixtures and kernels.

Every model has the same rows, validation rows and time limit, if any; each mixture has the limit for itself. Mixtures
and kernels work on the encoding of the columns by the estimator and on standardised ones: the better of the two by
validation counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from elflow._files import replacing
from elflow.report.baselines import N_COMPONENTS, fit_gaussian_mixture, fit_kernel_density
from elflow.tabular import N_DRAWS, FlowDensity
from experiments.data.tables import FILES, NUMERIC_SETS, find_table, list_missing, load_table
from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.measure import sample_mean_and_error
from experiments.framework.options import parse_choices, parse_count, parse_seconds

__all__ = ["EXPERIMENT", "score_baseline", "score_flow"]

FLOWS = {"elf": "ELF", "nsf": "NSF", "maf": "MAF"}
MODELS = {**FLOWS, "gmm": "Gaussian mixture", "kde": "kernel density"}
N_SEEDS, MAX_ROWS = 3, 200_000
SECONDS_OF_LITTLE_EFFORT = 60.0
"""Time limit, times the effort, if the effort is below one."""
MAX_VALIDATION_ROWS = 3_000
"""Maximum number of validation rows that choose between baselines: kernels are slow."""
KERNELS: dict[str, Any] = {
    "shapes": ("round", "covariance"),
    "bandwidths": tuple(np.geomspace(0.03, 1.5, 14)),
    "max_kernels": 50_000,
}
SCORES = "log_density.npy"
"""The log-densities of the test rows, which a job leaves in its folder."""

Encode = Callable[[pd.DataFrame, int], tuple[np.ndarray, np.ndarray]]
"""Encodes a table with a seed: numbers `(N, features)` and the logarithms of volumes to add to their log-density."""


def jobs(plan: Plan) -> list[Job]:
    sets = [name for name in plan.options.get("sets", NUMERIC_SETS) if find_table(plan, name) is not None]
    default = None if plan.effort >= 1 else plan.seconds(SECONDS_OF_LITTLE_EFFORT)
    same: dict[str, Any] = {"time_limit": plan.options.get("time_limit", default)}
    same |= {"rows": plan.options.get("rows", MAX_ROWS)}
    return [
        Job(
            f"{name}-{seed}-{model}",
            {"set": name, "seed": seed, "model": model, "stamp": plan.stamp(FILES[name]), **same},
        )
        for name in sets
        for seed in plan.seeds(plan.options.get("seeds", N_SEEDS))
        for model in plan.options.get("models", MODELS)
    ]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    """Fit a model and score the test rows. Leave their log-densities in the folder."""
    name, model = settings["set"], settings["model"]
    training, test = load_table(plan, name, settings["seed"], settings["rows"])
    score = score_flow if model in FLOWS else score_baseline
    record, log_density = score(model, training, test, settings["seed"], settings["time_limit"])
    mean, error = sample_mean_and_error(torch.from_numpy(log_density))
    with replacing(folder / SCORES) as temporary, temporary.open("wb") as file:
        np.save(file, log_density.astype(np.float32))
    record |= {"set": name, "seed": settings["seed"], "model": model, "test": mean, "error": error}
    return record | {"features": training.shape[1], "training_rows": len(training), "test_rows": len(test)}


def score_flow(
    model: str,
    training: pd.DataFrame,
    test: pd.DataFrame,
    seed: int,
    time_limit: float | None = None,
    max_steps: int | None = None,
    dequantization: str = "auto",
) -> tuple[Record, np.ndarray]:
    """A flow with default settings: costs of its fit, and log-densities of the test rows, `(N,)`."""
    start = time.perf_counter()
    est = FlowDensity(
        model, random_state=seed, time_limit=time_limit, max_steps=max_steps, dequantization=dequantization
    ).fit(training)
    fit_seconds = time.perf_counter() - start
    training_of = {"stopped": est.training_.stopped, "steps": est.training_.steps, "members": est.members_}
    return {"fit_seconds": fit_seconds, "parameters": est.n_parameters_, **training_of}, est.score_samples(test)


def score_baseline(
    model: str, training: pd.DataFrame, test: pd.DataFrame, seed: int, time_limit: float | None = None
) -> tuple[Record, np.ndarray]:
    """A mixture or kernels on the better of two encodings; the estimator's own needs one training step only."""
    est = FlowDensity(max_steps=1, random_state=seed).fit(training)
    is_held_out = est.validation_mask(training)
    assert is_held_out is not None  # it is the fitted table
    validation = np.random.default_rng(seed).permutation(np.flatnonzero(is_held_out))[:MAX_VALIDATION_ROWS]
    encodings: dict[str, Encode] = {"encoded": est.encode}
    # A density of the numbers themselves is infinite at atoms: only the encoding is comparable there.
    if not any(column.atoms for column in est.schema_.columns):
        encodings["standardised"] = _make_standardiser(est, training)
    start = time.perf_counter()
    fits = []
    for name, encode in encodings.items():
        z, log_volume = encode(training, seed)
        rows, others = z[~is_held_out], z[validation]
        if model in ("gaussian", "gmm"):
            counts = (1,) if model == "gaussian" else N_COMPONENTS
            fit = fit_gaussian_mixture(rows, others, n_components=counts, time_limit=time_limit, random_state=seed)
        else:
            fit = fit_kernel_density(rows, others, **KERNELS, random_state=seed)
        fits.append((fit.validation + log_volume[validation].mean(), name, fit))
    fit_seconds = time.perf_counter() - start
    value, name, best = max(fits, key=lambda each: each[0])
    record = {"fit_seconds": fit_seconds, "parameters": best.n_parameters, "rows": best.n_rows, "validation": value}
    # The probability of a cell is an average over points of it, as in `score_samples`.
    draws = [encodings[name](test, draw) for draw in range(N_DRAWS if est.schema_.cells else 1)]
    log_density = np.logaddexp.reduce([best.log_density(z) + volume for z, volume in draws]) - np.log(len(draws))
    return record | {"chosen": f"{best.detail}, {name}"}, log_density


def _make_standardiser(est: FlowDensity, training: pd.DataFrame) -> Encode:
    """Standardise columns; values of cells are spread uniformly over a width of one step."""

    def to_numbers(table: pd.DataFrame, seed: int) -> np.ndarray:
        rng, columns = np.random.default_rng(seed), []
        for column in est.schema_.columns:
            values = table[column.name].to_numpy()
            if column.levels is not None:
                values = pd.Index(column.levels).get_indexer(values)
            width = 1.0 if column.levels is not None else column.step or 0.0
            columns.append(values + width * (rng.random(len(values)) - 0.5))
        return np.stack(columns, 1)

    x = to_numbers(training, 0)
    centre, scale = x.mean(0), x.std(0)
    volume = -np.log(scale).sum()
    return lambda table, seed: ((to_numbers(table, seed) - centre) / scale, np.full(len(table), volume))


# --- the report -------------------------------------------------------------------------------------------------------


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    runs = pd.DataFrame(records.values())
    models = [model for model in MODELS if model in set(runs["model"])]
    likelihoods, times, differences, leads = [], [], [], {}
    for name in [name for name in FILES if name in set(runs["set"])]:
        by_seed = runs[runs["set"] == name].pivot(index="seed", columns="model")
        by_seed = by_seed[by_seed["test"].notna().all(axis=1)]  # seeds that all models of this table have
        if by_seed.empty:
            continue
        mean = by_seed["test"].mean()
        error = (by_seed["error"] ** 2).sum() ** 0.5 / len(by_seed)
        likelihoods.append([name, *(_format(mean.get(model), error.get(model)) for model in models), str(len(by_seed))])
        columns = by_seed[["fit_seconds", "parameters"]].mean()
        times.append([name, *(_format_costs(columns, model) for model in models)])
        others = mean.drop("elf", errors="ignore")
        if "elf" in mean and len(others):
            leads[name] = float(mean["elf"] - others.max())
            differences += [_compare(name, other, by_seed.index, folder) for other in others.index]
    titles = [MODELS[model] for model in models]
    tables = [
        Table(
            "Test log-likelihood in nats",
            ["table", *titles, "seeds"],
            likelihoods,
            "Means over seeds, with the standard error over test rows.",
        ),
        Table("Seconds of the fit and parameters", ["table", *titles], times),
    ]
    if differences:
        note = "Mean over test rows of ELF minus the other, and its standard error, for each seed."
        tables.append(Table("Paired differences", ["table", "other model", "ELF minus the other"], differences, note))
    return Report(_describe(leads), tables)


def _format(mean: float | None, error: float | None) -> str:
    return "" if mean is None or np.isnan(mean) else f"{mean:.3f} ± {error:.3f}"


def _format_costs(columns: pd.Series, model: str) -> str:
    if ("fit_seconds", model) not in columns:
        return ""
    return f"{columns['fit_seconds', model]:.0f} s, {columns['parameters', model]:,.0f}"


def _compare(name: str, other: str, seeds: Iterable[int], folder: Path) -> list[str]:
    """Paired differences of ELF and another model on the test rows of each seed."""
    cells = []
    for seed in seeds:
        ours, theirs = (
            np.load(folder / "jobs" / f"{name}-{seed}-{model}" / SCORES).astype(np.float64) for model in ("elf", other)
        )
        mean, error = sample_mean_and_error(torch.from_numpy(ours - theirs))
        cells.append(f"{mean:+.3f} ± {error:.3f}")
    return [name, MODELS[other], ", ".join(cells)]


def _describe(leads: dict[str, float]) -> str:
    if not leads:
        return "ELF was not compared with another model."
    wins = sum(lead > 0 for lead in leads.values())
    worst = min(leads, key=lambda name: leads[name])
    text = f"ELF is best on {wins} of {len(leads)} tables."
    return text if leads[worst] >= 0 else f"{text} Its largest shortfall is {-leads[worst]:.3f} nats, on {worst}."


def missing(plan: Plan) -> list[str]:
    return list_missing(plan, plan.options.get("sets", NUMERIC_SETS))


EXPERIMENT = Experiment(
    "tables",
    "Likelihoods of tables with default settings",
    jobs,
    work,
    report,
    missing,
    options={
        "time_limit": Option(parse_seconds, "seconds for each fit (default: no limit)"),
        "models": Option(parse_choices(MODELS), f"models (default: {','.join(MODELS)})"),
        "sets": Option(parse_choices(NUMERIC_SETS), f"tables (default: {','.join(NUMERIC_SETS)})"),
        "seeds": Option(parse_count, f"number of seeds (default: {N_SEEDS})"),
        "rows": Option(parse_count, f"maximum number of training rows of bsds (default: {MAX_ROWS})"),
    },
)
