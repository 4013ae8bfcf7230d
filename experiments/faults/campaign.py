"""The campaign: faults of all kinds in turn, in forked processes, for a given time."""

from __future__ import annotations

import gc
import json
import os
import random
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from experiments.faults.commands import fill_disk, is_hanging, kill_command, read_processor_time
from experiments.faults.files import damage_checkpoint, damage_model_bytes, damage_model_content
from experiments.faults.generated import draw_configurations, draw_tables
from experiments.faults.outcomes import Case, Tally
from experiments.faults.tables import damage_table
from experiments.faults.victims import Victims, make_victims
from experiments.framework.files import read_json, write_text
from experiments.framework.measure import describe_machine, find_commit

__all__ = ["KINDS", "run_campaign", "run_case"]

Inject = Callable[[random.Random, Victims], Case | list[Case]]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """A kind of fault."""

    inject: Inject
    share: float
    """Share of the time."""
    max_seconds: float = 30.0
    """Processor time after which a case hangs."""


KINDS = {
    "model-bytes": Kind(damage_model_bytes, 0.2),
    "model-content": Kind(damage_model_content, 0.25),
    "model-values": Kind(draw_configurations, 0.1, 120.0),
    "checkpoint-bytes": Kind(damage_checkpoint, 0.05),
    "table-bytes": Kind(damage_table, 0.1),
    "table-values": Kind(draw_tables, 0.05, 120.0),
    "kill": Kind(kill_command, 0.2, 900.0),
    "disk": Kind(fill_disk, 0.05, 900.0),
}
"""Kinds of faults; those with long limits run several cases, or several commands that have limits of their own."""
SLICE_SECONDS = 20.0
"""Time of a process, after which the next kind has its turn."""
STATE = "campaign.json"


def run_campaign(
    folder: Path, seconds: float, seed: int = 0, counts: dict[str, int] | None = None, log: Log = print
) -> Tally:
    """Inject faults for some time, counting from the first run with this folder, and write the counts after each slice.

    Arguments:
        folder: Folder for the victims and the counts. A campaign in it continues.
        seconds: Time of all runs together.
        seed: Seed of the faults.
        counts: Number of cases by kind, instead of a share of the time; other kinds are left out.
        log: Receives lines about the progress.
    """
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    tally = _read_state(folder / STATE, seed)
    victims = make_victims(folder / "victims")
    for model in victims.models:
        _ = model.data, model.scores
    _ = victims.checkpoint_data, victims.density
    spent, origin = dict.fromkeys(KINDS, 0.0), {"machine": describe_machine(), "commit": find_commit()}
    while tally.seconds < seconds:
        left = [kind for kind in KINDS if counts is None or tally.next.get(kind, 0) < counts.get(kind, 0)]
        if not left:
            break
        kind = min(left, key=lambda name: spent[name] / KINDS[name].share)
        start = time.monotonic()
        limit = None if counts is None else counts[kind]
        _run_slice(kind, victims, tally, folder, min(SLICE_SECONDS, seconds - tally.seconds), limit)
        spent[kind] += time.monotonic() - start
        tally.seconds += time.monotonic() - start
        _write_state(folder / STATE, tally, origin)
        bad = {name: count for name, count in tally.totals.items() if name not in ("refused", "harmless")}
        log(f"{tally.seconds:.0f} s: {tally.tried:,} cases, {bad or 'no defect'}")
    return tally


def run_case(folder: Path, kind: str, number: int, seed: int = 0) -> list[Case]:
    """Repeat one case of a campaign in this process."""
    torch.set_num_threads(1)
    return _inject(kind, number, seed, make_victims(folder / "victims"))


def _inject(kind: str, number: int, seed: int, victims: Victims) -> list[Case]:
    outcome = KINDS[kind].inject(random.Random(f"{seed}-{kind}-{number}"), victims)
    return outcome if isinstance(outcome, list) else [outcome]


def _run_slice(kind: str, victims: Victims, tally: Tally, folder: Path, seconds: float, limit: int | None) -> None:
    """Run cases of one kind in a process, and judge its end, too."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    number = tally.next.get(kind, 0)
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        _work(kind, number, victims, tally.seed, scratch, writer, seconds, limit)
    os.close(writer)
    buffer, is_hung = b"", False
    start, used = time.monotonic(), read_processor_time(pid)
    with os.fdopen(reader, "rb", buffering=0) as stream:
        while True:
            if not select.select([stream], [], [], 1.0)[0]:
                if is_hanging(pid, start, used, KINDS[kind].max_seconds):
                    os.kill(pid, signal.SIGKILL)
                    is_hung = True
                    break
                continue
            start, used = time.monotonic(), read_processor_time(pid)
            chunk = stream.read(2**16)
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                done = json.loads(line)
                number = done["number"] + 1
                for case in done["cases"]:
                    tally.add(kind, done["number"], Case(**case))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if is_hung:
        tally.add(kind, number, Case("unknown", "hung", f"no outcome within {KINDS[kind].max_seconds:.0f} s"))
    elif code:
        tally.add(kind, number, Case("unknown", "crashed", f"the process ended with {code}"))
    shutil.rmtree(scratch, ignore_errors=True)


def _work(
    kind: str, number: int, victims: Victims, seed: int, scratch: Path, writer: int, seconds: float, limit: int | None
) -> NoReturn:
    """Run cases until the time is over, and write their outcomes to a pipe."""
    try:
        tempfile.tempdir = str(scratch)
        gc.freeze()
        end = time.monotonic() + seconds
        while time.monotonic() < end and (limit is None or number < limit):
            cases = _inject(kind, number, seed, victims)
            line = json.dumps({"number": number, "cases": [vars(case) for case in cases]})
            os.write(writer, line.encode() + b"\n")
            number += 1
    except BaseException as error:
        case = Case("unknown", "crashed", f"the campaign itself failed: {type(error).__name__}: {error}"[:300])
        os.write(writer, json.dumps({"number": number, "cases": [vars(case)]}).encode() + b"\n")
    finally:
        os._exit(0)


def _read_state(path: Path, seed: int) -> Tally:
    state = read_json(path)
    if state is None:
        return Tally(seed)
    if state["seed"] != seed:
        raise ValueError(f"--seed must be that of the campaign in {path.parent}, {state['seed']}, got {seed}")
    return Tally(**{name: state[name] for name in asdict(Tally(0))})


def _write_state(path: Path, tally: Tally, origin: dict[str, Any]) -> None:
    """Write the counts, with the machine and the commit of the run."""
    content = asdict(tally) | {"tried": tally.tried, "totals": dict(tally.totals)} | origin
    write_text(path, json.dumps(content, indent=1) + "\n")
