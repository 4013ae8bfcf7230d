"""A small experiment for the tests of the runner. Worker processes import it, too.

A file `jobs/KEY-fails` in its folder makes a job fail, and so on: see `work`.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from experiments import Experiment, Group, Job, Option, Plan, Report, Table, run
from experiments.framework.options import parse_count

NAME = "tiny"


def jobs(plan):
    keys = "abcd" if plan.data is None else (plan.data / "keys").read_text()
    size = plan.options.get("size", 1)
    return [Job(key, {"key": key, "steps": plan.scaled(100), "size": size}, exclusive=key == "x") for key in keys]


def missing(plan):
    return [] if plan.data is None else ["half of the <data> are missing"]


def work(plan, settings, folder):
    key = settings["key"]
    with open(folder.parent / "calls", "a") as calls:
        calls.write(f"{key} {os.getpid()}\n")
    if (folder.parent / f"{key}-is-slow").exists():
        time.sleep(600)
    if (folder.parent / f"{key}-fails").exists():
        raise KeyError(f"no {key}\nat all")
    if (folder.parent / f"{key}-is-nan").exists():
        return {"value": float("nan")}
    if (folder.parent / f"{key}-is-killed").exists():
        os._exit(1)
    if (folder.parent / f"{key}-takes-a-second").exists():
        spend_cpu_time(1)
    start = time.time()
    spend_cpu_time(0.3 if plan.data is not None else 0)
    with open(folder / "steps", "a") as steps:  # as a checkpoint, it belongs to these settings
        steps.write(f"{settings['steps']} ")
    record = {"value": torch.randn(()).item() + ord(key), "threads": torch.get_num_threads()}
    return record if plan.data is None else record | {"span": [start, time.time()]}


def spend_cpu_time(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def report(plan, records, folder):
    if (folder / "jobs" / "report-fails").exists():
        raise ZeroDivisionError("no report")
    (folder / "tiny.png").write_bytes(b"\x89PNG of " + " ".join(records).encode())
    rows = [[f"ELF {key}", f"{record['value']:.6f}", ""] for key, record in records.items()]
    rows += [["NSF | <b>", "157.31", "*published*: Durkan et al. 2019"]]
    text = f"**{len(records)} jobs** were done. See [it](https://arxiv.org/abs/2112.06997).\n\n- `a < b`\n- 2 * 3 * 4"
    failures = ["a requirement is not met"] if (folder / "jobs" / "is-poor").exists() else []
    table = Table("Values & more", ["model", "nats", "from"], rows, "A note.")
    return Report(text, [table], {"tiny.png": "A <picture>"}, failures)


OPTIONS = {"size": Option(parse_count, "the size")}
EXPERIMENT = Experiment(NAME, "A tiny <experiment>", jobs, work, report, missing, OPTIONS)
OTHER = replace(EXPERIMENT, name="other")
GROUP = Group("tiny-group", "Tiny <experiments>", "They are *small*.", {NAME: f"{__name__}:EXPERIMENT"})


if __name__ == "__main__":  # a run that can be killed
    from _tiny_experiment import EXPERIMENT as IMPORTED  # workers find it by this name

    run(IMPORTED, Plan(), Path(sys.argv[1]), processes=int(sys.argv[2]))
