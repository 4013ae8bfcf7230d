"""Recovery from crashes: `elflow fit` is killed at random moments and resumed, and compared with an uninterrupted fit.

Both models must be equal bit for bit on one thread, and no file may have the model's name before it is complete. A fit
that is done before its kill is compared, and the next kill hits a new one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file

import elflow
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table

__all__ = ["EXPERIMENT"]

N_KILLS, N_ROWS, STEPS = 30, 2_000, 1_000


@dataclass
class Outcome:
    """Counts of a run."""

    kills: int = 0
    fits: int = 0
    """Number of fits that were finished and compared."""
    resumed: int = 0
    """Number of kills that left a checkpoint."""
    partial: int = 0
    """Number of kills that left an incomplete model."""
    different: list[str] = field(default_factory=list)
    """Names of tensors that differed."""
    leftovers: int = 0
    """Number of files of finished fits besides the model."""
    fit_seconds: float = 0.0
    """Duration of the uninterrupted fit."""


def jobs(plan: Plan) -> list[Job]:
    sizes = {"kills": plan.scaled(N_KILLS), "rows": max(300, plan.scaled(N_ROWS)), "steps": plan.scaled(STEPS)}
    return [Job("kills", sizes | {"seed": plan.seed})]


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    with TemporaryDirectory() as name:
        outcome = _kill_and_resume(Path(name), **settings)
    return asdict(outcome) | {"rows": settings["rows"], "steps": settings["steps"]}


def _kill_and_resume(folder: Path, kills: int, rows: int, steps: int, seed: int) -> Outcome:
    """Kill and resume fits in a folder until all kills are done and the last fit is finished."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    data, reference = folder / "data.csv", folder / "reference" / "model.elf"
    table = _make_table(rows, seed)
    table.to_csv(data, index=False)
    reference.parent.mkdir()
    start = time.perf_counter()
    _finish(_start_fit(data, reference, steps, seed), reference)
    outcome.fit_seconds = time.perf_counter() - start
    while not outcome.fits or outcome.kills < kills:
        model = folder / f"fit-{outcome.fits}" / "model.elf"
        model.parent.mkdir()
        while not model.exists():
            process = _start_fit(data, model, steps, seed)
            try:
                process.wait(timeout=rng.uniform(0, outcome.fit_seconds) if outcome.kills < kills else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                outcome.kills += 1
                outcome.resumed += model.with_name("model.elf.checkpoint").exists()
                # A kill between the last rename and the end of the process leaves a complete model, which is fine.
                if model.exists() and _find_differences(reference, model, table):
                    outcome.partial += 1
                    model.unlink()
            else:
                _finish(process, model)
        outcome.fits += 1
        outcome.different += _find_differences(reference, model, table)
        left = {path.name for path in model.parent.iterdir()} - {"model.elf", "log"}
        outcome.leftovers += len([name for name in left if not name.startswith(".")])
    return outcome


def _make_table(rows: int, seed: int) -> pd.DataFrame:
    """Columns of several kinds, so that their encodings are resumed, too."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, rows)
    x = np.cos(angle) + rng.normal(0, 0.1, rows)
    y = np.sin(angle) + rng.normal(0, 0.1, rows)
    count, word = rng.poisson(2 + np.abs(x)), np.where(y > 0, "up", "down")
    return pd.DataFrame({"x": x, "y": y, "count": count, "word": word})


def _start_fit(data: Path, model: Path, steps: int, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "elflow", "fit", str(data), "-o", str(model), "--resume"]
    command += ["--seed", str(seed), "--threads", "1", "--max-steps", str(steps)]
    with (model.parent / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": "1"})


def _finish(process: subprocess.Popen[bytes], model: Path) -> None:
    if process.wait() != 0:
        log = (model.parent / "log").read_text()[-2000:]
        raise RuntimeError(f"elflow fit must end with exit code 0, got {process.returncode}: {log}")


def _find_differences(one: Path, other: Path, data: pd.DataFrame) -> list[str]:
    """Tensors that are not equal bit for bit, and densities. The files also contain durations, which differ."""
    try:
        ours, theirs = load_file(one), load_file(other)
    except SafetensorError as error:
        return [f"not a model: {error}"]
    if ours.keys() != theirs.keys():
        return ["names of tensors"]
    tensors = [key for key in ours if ours[key].tobytes() != theirs[key].tobytes()]
    scores = [elflow.load(path).score_samples(data) for path in (one, other)]
    return tensors + ([] if np.array_equal(*scores) else ["densities"])


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    (record,) = records.values()
    failures = []
    if record["different"]:
        failures.append(f"resumed models differ in {', '.join(record['different'])}")
    if record["partial"]:
        failures.append(f"{record['partial']} kills left an incomplete model")
    if record["leftovers"]:
        failures.append(f"{record['leftovers']} files were left besides models")
    verdict = "; ".join(failures) or "all models are equal bit for bit, and none was incomplete"
    text = f"After {record['kills']} kills of {record['fits']} fits, {verdict}."
    rows = [
        ["kills", str(record["kills"])],
        ["kills that left a checkpoint", str(record["resumed"])],
        ["finished fits", str(record["fits"])],
        ["incomplete models", str(record["partial"])],
        ["different models", str(len(record["different"]))],
        ["leftover files", str(record["leftovers"])],
        ["seconds of an uninterrupted fit", f"{record['fit_seconds']:.0f}"],
    ]
    note = f"A table of {record['rows']:,} rows, {record['steps']:,} training steps, one thread."
    return Report(text, [Table("Kills", ["", "number"], rows, note)], failures=failures)


EXPERIMENT = Experiment("crash", "Recovery from crashes", jobs, work, report, exclusive=True)
