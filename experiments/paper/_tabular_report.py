"""Report of the tabular experiment: test likelihoods beside published ones, times, and learning curves."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import NamedTuple

from experiments.framework.experiment import Plan, Record, Report, Table
from experiments.framework.figure import ACCENT, GREEN, draw_figure
from experiments.paper.published import TABULAR

__all__ = ["report"]

TITLES = {
    "elf": "ELF-AR",
    "elf-paper": "ELF-AR (the paper's)",
    "nsf": "NSF",
    "maf": "MAF",
    "gaussian": "Gaussian",
}
COMPARED = {"bsds300-patches": "bsds300", "power-halfyear": None}
"""Data sets whose published figures are comparable with the redrawn data sets, if any."""
REMARKS = {
    "bsds300-patches": "8x8 patches drawn again from the same 200 training and 100 test images by the same recipe: the "
    "distribution is that of BSDS300, the patches are others.",
    "power-halfyear": "Half a year of the four years of POWER: published figures of POWER are not comparable.",
}
COLORS = {"elf": ACCENT, "nsf": "#4a5fa5", "maf": GREEN}


class Best(NamedTuple):
    """The best run of a model on a data set, by validation rows."""

    key: str
    record: Record


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    """Tables and figures of all data sets."""
    sets: dict[str, dict[str, Best]] = {}
    for key, record in _average_cells(records).items():
        models = sets.setdefault(record["set"], {})
        rival = models.get(record["model"])
        if rival is None or record.get("validation", 0) > rival.record.get("validation", 0):
            models[record["model"]] = Best(key, record)
    tables, sentences, pictures = [], [], {}
    for name, models in sets.items():
        tables.append(_tabulate_likelihoods(name, models))
        sentences.append(_describe_set(name, models))
        if any("curve" in best.record for best in models.values()):
            _draw(folder / f"{name}.png", models)
            pictures[f"{name}.png"] = f"{name}: validation log-likelihood in nats against seconds of training."
    tables.append(_tabulate_times(sets))
    return Report(" ".join(filter(None, sentences)), tables, pictures)


def _average_cells(records: dict[str, Record]) -> dict[str, Record]:
    """Records with the models of each cell of the paper's grid in one: their means, and their standard deviation."""
    cells: dict[str, list[Record]] = {}
    for key, record in records.items():
        cells.setdefault(f"{record['set']}, {record['cell']}" if record.get("cell") else key, []).append(record)
    averaged = {}
    for key, some in cells.items():
        averaged[key] = some[0]
        if len(some) > 1:
            tests = [record["test"] for record in some]
            validation = statistics.fmean(record["validation"] for record in some)
            means = {"test": statistics.fmean(tests), "error": statistics.stdev(tests), "validation": validation}
            averaged[key] = some[0] | means | {"models": len(some)}
    return averaged


def _tabulate_likelihoods(name: str, models: dict[str, Best]) -> Table:
    rows: list[tuple[float, tuple[str, ...]]] = []
    for model, best in models.items():
        record = best.record
        steps = f"{record['steps']:,}" if "steps" in record else ""
        batch = f"{record['batch_size']:,}" if "batch_size" in record else ""
        prepared = "whitened" if record.get("whitened") else "standardised"
        sizes = f"{record['parameters']:,}", prepared, steps, batch
        about = f", {record['cell']}" if record.get("cell") else ""
        about += f", {record['models']} models" if "models" in record else ""
        rows.append((record["test"], (f"{TITLES[model]}{about}", *sizes, _format_nats(record), "measured here")))
    compared = COMPARED.get(name, name)
    for published in TABULAR:
        if published.dataset == compared:
            reference = f"*published*: {published.reference}"
            value = f"{published.value:g}" + ("" if published.error is None else f" ± {published.error:g}")
            rows.append((published.value, (published.system, "", "", "", "", value, reference)))
    rows.sort(key=lambda row: -row[0])
    columns = ("model", "parameters", "preparation", "steps", "batch size", "test nats", "source")
    return Table(name, columns, [cells for _, cells in rows], REMARKS.get(name, ""))


def _format_nats(record: Record) -> str:
    return f"{record['test']:.3f} ± {record['error']:.3f}"


def _describe_set(name: str, models: dict[str, Best]) -> str:
    """ELF compared with the other models that were trained here."""
    if "elf" not in models or len(models) < 2:
        return ""
    ours = models["elf"].record
    others = []
    for model, best in models.items():
        if model in ("elf", "gaussian"):
            continue
        # Conservative: both score the same rows, so that the standard error of the difference is smaller.
        difference = ours["test"] - best.record["test"]
        error = math.hypot(ours["error"], best.record["error"])
        where = "ahead of" if difference > 2 * error else "behind" if difference < -2 * error else "from"
        others.append(f"{abs(difference):.2f} ± {error:.2f} nats {where} {TITLES[model]}")
    return f"On {name} ELF-AR has {_format_nats(ours)} nats" + (f": {', '.join(others)}." if others else ".")


def _tabulate_times(sets: dict[str, dict[str, Best]]) -> Table:
    rows = [
        (
            name,
            TITLES[model],
            f"{best.record['training']:.0f} s",
            f"{1e3 * best.record['training'] / best.record['steps']:.0f} ms",
        )
        for name, models in sets.items()
        for model, best in models.items()
        if "training" in best.record
    ]
    note = (
        "Training on one thread. At the scale of CPUs, steps are chosen such that models train for about the same time."
    )
    return Table("Time", ("data set", "model", "training", "per step"), rows, note)


def _draw(path: Path, models: dict[str, Best]) -> None:
    with draw_figure(path, figsize=(7, 4)) as (_, axes):
        place, ends = axes[0, 0], []
        for model, best in models.items():
            if "curve" not in best.record:
                continue
            curve = best.record["curve"]
            place.plot(curve["seconds"], curve["validation"], color=COLORS.get(model), label=TITLES[model])
            ends += [curve["validation"][len(curve["validation"]) // 10], max(curve["validation"])]
        low, high = min(ends), max(ends)
        margin = 0.1 * (high - low) + 1e-6
        place.set(xlabel="seconds of training", ylabel="validation nats", ylim=(low - margin, high + margin))
        place.legend(frameon=False)
