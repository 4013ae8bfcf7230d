"""A small experiment for the tests of what runs experiments. Processes that are spawned import it, too.

A file `jobs/KEY-fails` in its folder makes a job fail, and so on: see `work`.
"""

import os
import sys
import time
from pathlib import Path

import torch

import experiments
from experiments import Experiment, Job, Plan, Report, Table

NAME = "tiny"


def jobs(plan):
    keys = "abcd" if plan.data is None else (plan.data / "keys").read_text()
    return [Job(key, {"key": key, "steps": plan.steps(100)}) for key in keys]


def missing(plan):
    return [] if plan.data is None else ["half of the <data> are not there"]


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
    with open(folder / "steps", "a") as steps:  # as a checkpoint would be, it is of these settings only
        steps.write(f"{settings['steps']} ")
    return {"value": torch.randn(()).item() + ord(key), "threads": torch.get_num_threads()}


def report(plan, records, folder):
    if (folder / "jobs" / "report-fails").exists():
        raise ZeroDivisionError("no report")
    (folder / "tiny.png").write_bytes(b"\x89PNG of " + " ".join(records).encode())
    rows = [[f"ELF {key}", f"{record['value']:.6f}", ""] for key, record in records.items()]
    rows += [["NSF | <b>", "157.31", "*published*: Durkan et al. 2019"]]
    text = f"**{len(records)} jobs** were done. See [it](https://arxiv.org/abs/2112.06997).\n\n- `a < b`\n- 2 * 3 * 4"
    return Report(
        text, [Table("Values & more", ["model", "nats", "from"], rows, "A note.")], {"tiny.png": "A <picture>"}
    )


EXPERIMENTS = {NAME: Experiment(NAME, "A tiny <experiment>", jobs, work, report, missing)}


def register(setattr=setattr):  # noqa: A002
    """Makes it the only experiment there is."""
    sys.modules[f"experiments.{__name__}"] = sys.modules[__name__]
    setattr(experiments, "_MODULES", {NAME: __name__})
    setattr(experiments, "EXPERIMENTS", [NAME])


if __name__ == "__main__":  # a run that can be killed
    register()
    experiments.run([NAME], Plan(), Path(sys.argv[1]), processes=int(sys.argv[2]))
