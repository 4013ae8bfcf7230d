"""Safe against crashes: `elflow fit` killed at random moments and resumed, against one that ran through.

python -m experiments.bench.crash

Both models must be equal bit for bit on one thread, and nothing may stand under the model's name before it is done.
A fit that is done before its kill is compared, and the next kill falls on a new one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors import SafetensorError
from safetensors.numpy import load_file

import elflow
from experiments.bench._measure import RESULTS, machine, write


@dataclass
class Outcome:
    kills: int = 0
    fits: int = 0
    """How many were finished and compared."""
    resumed: int = 0
    """How many kills left a checkpoint to go on from."""
    partial: int = 0
    """How often something stood under the final name after a kill."""
    different: list[str] = field(default_factory=list)
    """What of the models differed."""
    leftovers: int = 0
    """Files of finished fits besides the model."""
    seconds: float = 0.0
    """Of the fit that ran through."""


def table(path: Path, rows: int, seed: int) -> None:
    """Columns of several kinds, so that their encodings are part of what is resumed."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 2 * np.pi, rows)
    x = np.cos(angle) + rng.normal(0, 0.1, rows)
    y = np.sin(angle) + rng.normal(0, 0.1, rows)
    count, word = rng.poisson(2 + np.abs(x)), np.where(y > 0, "up", "down")
    pd.DataFrame({"x": x, "y": y, "count": count, "word": word}).to_csv(path, index=False)


def start(data: Path, model: Path, steps: int, seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "elflow", "fit", str(data), "-o", str(model), "--resume"]
    command += ["--seed", str(seed), "--threads", "1", "--max-steps", str(steps)]
    with (model.parent / "log").open("ab") as log:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def finish(process: subprocess.Popen[bytes], model: Path) -> None:
    if process.wait() != 0:
        raise RuntimeError(f"elflow fit ended with {process.returncode}: {(model.parent / 'log').read_text()[-2000:]}")


def differences(one: Path, other: Path, data: pd.DataFrame) -> list[str]:
    """Tensors that are not the same bit for bit, and densities; the files also hold how long training took."""
    try:
        ours, theirs = load_file(one), load_file(other)
    except SafetensorError as error:
        return [f"not a model: {error}"]
    if ours.keys() != theirs.keys():
        return ["names of tensors"]
    wrong = [key for key in ours if ours[key].tobytes() != theirs[key].tobytes()]
    scores = [elflow.load(path).score_samples(data) for path in (one, other)]
    return wrong + ([] if np.array_equal(*scores) else ["densities"])


def crash(folder: Path, kills: int, rows: int, steps: int, seed: int) -> Outcome:
    """Kills and resumes in that folder until so many kills are done and the last fit is finished."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    data, whole = folder / "data.csv", folder / "whole" / "model.elf"
    table(data, rows, seed)
    frame = pd.read_csv(data)
    whole.parent.mkdir()
    begin = time.perf_counter()
    finish(start(data, whole, steps, seed), whole)
    outcome.seconds = time.perf_counter() - begin
    while not outcome.fits or outcome.kills < kills:
        model = folder / f"fit-{outcome.fits}" / "model.elf"
        model.parent.mkdir()
        while not model.exists():
            process = start(data, model, steps, seed)
            try:
                process.wait(timeout=rng.uniform(0, outcome.seconds) if outcome.kills < kills else None)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                outcome.kills += 1
                outcome.resumed += model.with_name("model.elf.checkpoint").exists()
                # A kill between the last rename and the end of the process finds a whole model, which is as good.
                if model.exists() and differences(whole, model, frame):
                    outcome.partial += 1
                    model.unlink()
            else:
                finish(process, model)
        outcome.fits += 1
        outcome.different += differences(whole, model, frame)
        left = {path.name for path in model.parent.iterdir()} - {"model.elf", "log"}
        outcome.leftovers += len([name for name in left if not name.startswith(".")])
        print(f"{outcome.kills} kills, {outcome.fits} fits, differences: {outcome.different or 'none'}", flush=True)
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for results (%(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="(%(default)s)")
    parser.add_argument("--rows", type=int, default=2_000, help="of the table (%(default)s)")
    parser.add_argument("--steps", type=int, default=1_000, help="training steps (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of table, model and kills (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        outcome = crash(Path(name), options.kills, options.rows, options.steps, options.seed)
    settings = {"rows": options.rows, "steps": options.steps, "seed": options.seed}
    results: dict[str, Any] = asdict(outcome)
    good = not (outcome.different or outcome.partial or outcome.leftovers)
    print(f"{outcome.kills} kills, {outcome.resumed} with a checkpoint to go on from, {outcome.fits} fits: ", end="")
    print("all equal bit for bit, nothing partial" if good else results)
    write(options.output / "crash.json", {"machine": machine(), **settings, **results})
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
