"""Quality by default: the test likelihood of `FlowDensity()` on seven tables beside splines, MAF, mixtures and kernels.

python -m experiments.bench.tables --data FOLDER

Every model sees the same rows, holds out the same ones and has the same time limit; each mixture has it to itself.
Mixtures and kernels work on the estimator's own encoding of the columns and on plainly standardised ones: the better of
the two by validation counts. A run that is interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import multiprocessing

from experiments.bench._baselines import best_kernel, best_mixture
from experiments.bench._measure import RESULTS, machine, write
from experiments.bench._tables import SETS, add_data, folder, load
from elflow._files import replacing
from elflow.tabular import N_DRAWS, FlowDensity

FLOWS = ("elf", "nsf", "maf")
MODELS = (*FLOWS, "gmm", "kde")
HELD_OUT = 3_000
"""As many validation rows choose between baselines, at most: kernels take long."""
Task = tuple[str, int, str]
"""Set, seed and model."""


def run(job: tuple[Task, argparse.Namespace]) -> tuple[Task, dict[str, Any], np.ndarray]:
    """One fit: its record, and the log-density of every test row."""
    (name, seed, model), options = job
    torch.set_num_threads(1)
    training, test = load(name, options.data, seed, options.rows)
    measure = flow if model in FLOWS else baseline
    record, log_density = measure(model, training, test, seed, options.time_limit)
    mean, error = average(log_density)
    record |= {"set": name, "seed": seed, "model": model, "test": mean, "error": error}
    record |= {"features": training.shape[1], "training_rows": len(training), "test_rows": len(test)}
    return (name, seed, model), record, log_density


def average(values: np.ndarray) -> tuple[float, float]:
    """The mean and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)


Measured = tuple[dict[str, Any], np.ndarray]
Encode = Callable[[pd.DataFrame, int], tuple[np.ndarray, np.ndarray]]
"""Of a table and a seed, numbers and what to add to their log-density so that it is one of rows."""


def flow(model: str, training: pd.DataFrame, test: pd.DataFrame, seed: int, limit: float) -> Measured:
    start = time.perf_counter()
    est = FlowDensity(flow=model, random_state=seed, time_limit=limit).fit(training)
    seconds = time.perf_counter() - start
    last = est.history_[-1]["step"] if est.history_ else None
    record = {"seconds": seconds, "parameters": est.n_parameters_, "stopped": est.stopped_, "steps": last}
    return record, est.score_samples(test)


def baseline(model: str, training: pd.DataFrame, test: pd.DataFrame, seed: int, limit: float) -> Measured:
    """A mixture or kernels on the better of two encodings; one step of training is enough for the estimator's own."""
    est = FlowDensity(max_steps=1, random_state=seed).fit(training)
    out = est.validation_mask(training)
    assert out is not None  # it is the very table
    held_out = np.random.default_rng(seed).permutation(np.flatnonzero(out))[:HELD_OUT]
    encodings = {"encoded": est.encode, "standardised": standardised(est, training)}
    start = time.perf_counter()
    found = []
    for name, encode in encodings.items():
        z, log_volume = encode(training, seed)
        rows, others = z[~out], z[held_out]
        fit = best_mixture(rows, others, limit, seed) if model == "gmm" else best_kernel(rows, others, seed)
        found.append((fit.validation + log_volume[held_out].mean(), name, fit))
    seconds = time.perf_counter() - start
    validation, name, best = max(found, key=lambda each: each[0])
    record = {"seconds": seconds, "parameters": best.parameters, "rows": best.rows, "validation": validation}
    # Probabilities of cells are averages over points of them, as those of `score_samples` are.
    draws = [encodings[name](test, draw) for draw in range(N_DRAWS if est.schema_.cells else 1)]
    log_density = np.logaddexp.reduce([best.log_density(z) + volume for z, volume in draws]) - np.log(len(draws))
    return record | {"chosen": f"{best.chosen}, {name}"}, log_density


def standardised(est: FlowDensity, training: pd.DataFrame) -> Encode:
    """Columns minus their mean, over their deviation; values of cells are spread evenly, a step wide."""

    def numbers(table: pd.DataFrame, seed: int) -> np.ndarray:
        rng, columns = np.random.default_rng(seed), []
        for column in est.schema_.columns:
            values = table[column.name].to_numpy()
            if column.levels is not None:
                values = pd.Index(column.levels).get_indexer(values)
            width = 1.0 if column.levels is not None else column.step or 0.0
            columns.append(values + width * (rng.random(len(values)) - 0.5))
        return np.stack(columns, 1)

    x = numbers(training, 0)
    centre, scale = x.mean(0), x.std(0)
    volume = -np.log(scale).sum()
    return lambda table, seed: ((numbers(table, seed) - centre) / scale, np.full(len(table), volume))


class Store:
    """Records in one JSON file, rewritten whole after each, and the log-densities of test rows beside it."""

    def __init__(self, output: Path, settings: dict[str, Any]) -> None:
        self.path, self.folder = output / "tables.json", output / "tables"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.content: dict[str, Any] = {"settings": settings, "runs": {}}
        if self.path.is_file():
            self.content = json.loads(self.path.read_text())
        if self.content["settings"] != settings:
            was = self.content["settings"]
            raise ValueError(f"{self.path} was measured with {was}, not {settings}: choose another --output")
        self.runs = self.content["runs"]

    def has(self, task: Task) -> bool:
        return self.key(task) in self.runs and self.rows(task).is_file()

    def add(self, task: Task, record: dict[str, Any], log_density: np.ndarray) -> None:
        with replacing(self.rows(task)) as temporary, temporary.open("wb") as file:
            np.save(file, log_density.astype(np.float32))
        self.runs[self.key(task)] = record
        self.write()

    def write(self) -> None:
        write(self.path, self.content | {"machine": machine()})

    def paired(self, name: str, seed: int, other: str) -> tuple[float, float]:
        """ELF's mean log-density minus the other's, with the standard error of that difference over test rows."""
        ours, theirs = (np.load(self.rows((name, seed, model))).astype(np.float64) for model in ("elf", other))
        return average(ours - theirs)

    def key(self, task: Task) -> str:
        return "-".join(map(str, task))

    def rows(self, task: Task) -> Path:
        return self.folder / f"{self.key(task)}.npy"


def summary(store: Store) -> dict[str, Any]:
    """By set: means over the seeds that all its models have, the best model, and how far ELF is ahead of the others."""
    runs = pd.DataFrame(store.runs.values())
    tables: dict[str, Any] = {}
    for name in [name for name in SETS if name in set(runs["set"])]:
        found = runs[runs["set"] == name].pivot(index="seed", columns="model")
        found = found[found["test"].notna().all(axis=1)]
        mean = found["test"].mean()
        others = mean.drop("elf", errors="ignore")
        if found.empty or len(others) in (0, len(mean)):
            continue
        tables[name] = {
            "seeds": [int(seed) for seed in found.index],
            "test": mean.to_dict(),
            "error": ((found["error"] ** 2).sum() ** 0.5 / len(found)).to_dict(),
            "seconds": found["seconds"].mean().to_dict(),
            "parameters": found["parameters"].mean().round().astype(int).to_dict(),
            "best": str(mean.idxmax()),
            "lead": float(mean["elf"] - others.max()),
            "elf_minus": {
                other: [store.paired(name, int(seed), other) for seed in found.index] for other in others.index
            },
        }
    ratios = {name: t["seconds"]["elf"] / t["seconds"]["nsf"] for name, t in tables.items() if "nsf" in t["seconds"]}
    shortfall = max([0.0] + [-table["lead"] for table in tables.values()])
    wins = [name for name, table in tables.items() if table["best"] == "elf"]
    return {"tables": tables, "wins": wins, "worst_shortfall": shortfall, "seconds_over_nsf": ratios}


def markdown(results: dict[str, Any]) -> str:
    """Mean test nats (standard error), seconds and parameters of every model, a row for each set; then differences."""
    lines = ["| set | " + " | ".join(MODELS) + " | best | ELF ahead by |", "| --- |" + " --- |" * (len(MODELS) + 2)]
    for name, table in results["tables"].items():
        cells = []
        for model in MODELS:
            mean, error, seconds, parameters = (table[k].get(model) for k in ("test", "error", "seconds", "parameters"))
            cells.append(f"{mean:.3f} ({error:.3f}), {seconds:.0f} s, {parameters:,}" if mean is not None else "")
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {table['best']} | {table['lead']:+.3f} |")
    lines += ["", "ELF minus the other, row by row, with the standard error of that, for each seed:", ""]
    for name, table in results["tables"].items():
        pairs = {
            other: ", ".join(f"{d:+.3f} ± {e:.3f}" for d, e in found) for other, found in table["elf_minus"].items()
        }
        lines.append(f"* {name}: " + "; ".join(f"{other} {values}" for other, values in pairs.items()))
    wins, count, ratios = len(results["wins"]), len(results["tables"]), results["seconds_over_nsf"]
    lines += ["", f"ELF is best on {wins} of {count}; its worst shortfall is {results['worst_shortfall']:.3f} nats."]
    if ratios:
        slowest = max(ratios, key=lambda name: ratios[name])
        lines.append(f"Its fit takes at most {ratios[slowest]:.2f} times as long as NSF's ({slowest}).")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data(parser)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for results (%(default)s)")
    parser.add_argument("--sets", default=",".join(SETS), help="which tables (%(default)s)")
    parser.add_argument("--seeds", default="0,1,2", help="of splits and models (%(default)s)")
    parser.add_argument("--models", default=",".join(MODELS), help="(%(default)s)")
    parser.add_argument("--time-limit", type=float, default=60, help="seconds for each fit (%(default)s)")
    parser.add_argument("--rows", type=int, default=200_000, help="training rows of bsds (%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="how many fits at a time (%(default)s)")
    parser.add_argument("--again", action="store_true", help="measure what has been measured before, too")
    options = parser.parse_args()
    names, models = options.sets.split(","), options.models.split(",")
    if not set(models) <= set(MODELS):
        parser.error(f"--models must be among {', '.join(MODELS)}, got {options.models}")
    options.data = folder(parser, options.data, names)
    try:
        store = Store(options.output, {"time_limit": options.time_limit, "rows": options.rows})
    except ValueError as error:
        parser.error(str(error))
    tasks: list[Task] = list(product(names, map(int, options.seeds.split(",")), models))
    jobs = [(task, options) for task in tasks if options.again or not store.has(task)]
    print(f"{len(jobs)} of {len(tasks)} runs to do", flush=True)
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=1) as pool:
        for task, record, log_density in pool.imap_unordered(run, jobs):
            store.add(task, record, log_density)
            name, seed, model = task
            value = f"{record['test']:9.3f} ± {record['error']:.3f} nats, {record['seconds']:.0f} s"
            print(f"{name:10} seed {seed} {model:4} {value}, {record['parameters']:,} parameters", flush=True)
    store.content["summary"] = summary(store)
    store.write()
    print(markdown(store.content["summary"]))


if __name__ == "__main__":
    main()
