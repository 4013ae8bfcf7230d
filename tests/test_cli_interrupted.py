"""The command line, interrupted: what was done is kept, and going on leads to the same model."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from _command import QUICK, fails, run, succeeds, table

import elflow
import elflow.serialization


def test_a_checkpoint_is_never_lost(write, tmp_path):
    data, model = write(table()), tmp_path / "m.elf"
    checkpoint = tmp_path / "m.elf.checkpoint"
    checkpoint.write_bytes(b"hours of work")
    assert "is left from an interrupted run: add --resume to continue, or delete it" in fails(
        "fit", data, "-o", model, *QUICK
    )
    assert "checkpoint must be a file written by elflow" in fails("fit", data, "-o", model, *QUICK, "--resume")
    assert checkpoint.read_bytes() == b"hours of work"


@pytest.mark.slow
def test_resume_with_nothing_to_go_on_from(write, tmp_path):
    data, model = write(table()), tmp_path / "m.elf"
    arguments = ["fit", data, "-o", model, *QUICK, "--bounds", "size=0:"]
    _, err = succeeds(*arguments, "--resume")
    assert err == f"elflow: no checkpoint {model}.checkpoint to resume from: starting a new run\n"
    before = model.read_bytes()
    assert succeeds(*arguments, "--resume") == ("", f"elflow: {model} is complete: nothing to resume\n")
    assert succeeds(*arguments, "--resume", "--time-limit", "1h")[1].endswith("nothing to resume\n")
    assert succeeds(*arguments, "--resume", "-q") == ("", "")
    assert model.read_bytes() == before
    for changed in [["--seed", "1"], ["--context", "ok"]]:  # what is there is another model
        _, err = succeeds(*arguments, *changed, "--resume")
        assert "starting a new run" in err
    assert model.read_bytes() != before


def test_resume_beside_a_file_that_is_no_model(write, tmp_path):
    arguments = ["fit", write(table()), "-o", tmp_path / "m.elf", *QUICK, "--resume"]
    (tmp_path / "m.elf").write_bytes(b"something else")
    assert "starting a new run" in succeeds(*arguments)[1]
    assert "is complete" in succeeds(*arguments)[1]


@pytest.mark.slow
def test_a_model_stopped_by_the_time_limit_is_complete_for_that_limit_only(write, tmp_path):
    arguments = ["fit", write(table()), "-o", tmp_path / "m.elf", "--resume", "--time-limit"]
    assert "stopped at the time limit" in succeeds(*arguments, "0.2s")[0]
    assert "is complete" in succeeds(*arguments, "0.2s")[1]
    assert "starting a new run" in succeeds(*arguments, "0.3s")[1]


def test_a_checkpoint_of_other_data(write, tmp_path, monkeypatch):
    data, model = write(table()), tmp_path / "m.elf"
    monkeypatch.setattr(elflow.serialization, "save", interrupt)
    assert run("fit", data, "-o", model, *QUICK)[0] == 130
    monkeypatch.undo()
    write(table()[::-1])
    assert "checkpoint must belong to the same data and settings" in fails("fit", data, "-o", model, *QUICK, "--resume")
    assert (tmp_path / "m.elf.checkpoint").exists()


def interrupt(*_, **__):
    raise KeyboardInterrupt


SERVER = """
import os, signal, sys, lightning_fabric, elflow.cli.tables, elflow.serialization, elflow.tabular
from elflow.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background inherits none
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and one that nohup has started ignores it
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if not pid:
        with open(line.split("\\t")[0], "w") as err:
            os.dup2(err.fileno(), 2)
        os._exit(main(line.strip().split("\\t")[1:]))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Start commands in processes of their own, forked from one that has imported torch and Lightning already."""
    err = tmp_path_factory.mktemp("server") / "err"
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:

        def start(*arguments):
            print(err, *arguments, sep="\t", file=server.stdin, flush=True)
            return SimpleNamespace(
                pid=int(server.stdout.readline()),
                wait=lambda: int(server.stdout.readline()),
                err=err,
            )

        assert server.stdout.readline() == "ready\n"
        yield start
        server.stdin.close()


def killed(process, checkpoint, renewed, rest):
    """Whether a process was killed: once its checkpoint has been renewed, if that is waited for, and after a while."""
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    for _ in range(1000):
        if not renewed or (checkpoint.exists() and checkpoint.stat().st_mtime_ns != before):
            break
        time.sleep(0.02)
    time.sleep(rest)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_killed_and_resumed(command, write, tmp_path):
    """The weights are those of a run that nobody killed, bit for bit."""
    data, model, whole = write(table()[["size", "count"]]), tmp_path / "m.elf", tmp_path / "whole.elf"
    options = ["--max-steps", "300", "--threads", "1", "--quiet"]  # six rounds
    assert command("fit", data, "-o", whole, *options).wait() == 0
    expected = elflow.load(whole)
    pause = expected.training_.seconds / len(expected.training_.history)
    kills = 0
    for renewed in [False, True, True]:
        process = command("fit", data, "-o", model, *options, "--resume")
        kills += killed(process, tmp_path / "m.elf.checkpoint", renewed, random.uniform(0, pause))
        assert not model.exists()
    assert kills == 3
    process = command("fit", data, "-o", model, *options, "--resume")
    assert process.wait() == 0, process.err.read_text()
    assert not (tmp_path / "m.elf.checkpoint").exists()
    tensors, others = (safetensors.torch.load_file(path) for path in (whole, model))
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[key], others[key]) for key in tensors)
    got = elflow.load(model)
    np.testing.assert_array_equal(got.reference_scores_, expected.reference_scores_)
    histories = [[entry["validation"] for entry in est.training_.history] for est in (got, expected)]
    assert histories[0] == histories[1]


@pytest.mark.slow
def test_interrupted_from_the_keyboard(command, write, tmp_path):
    process = command("fit", write(table()), "-o", tmp_path / "m.elf", "--max-steps", "100000", "--quiet")
    checkpoint = tmp_path / "m.elf.checkpoint"
    for _ in range(600):
        if checkpoint.exists():
            break
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130, process.err.read_text()
    assert process.err.read_text() == f"elflow: interrupted; continue from {checkpoint} with --resume\n"
    assert not (tmp_path / "m.elf").exists()
    assert checkpoint.exists()


@pytest.mark.slow
def test_terminated_in_training(command, write, tmp_path):
    """SIGTERM saves the present step at once, and leaves nothing but the checkpoint."""
    arguments = ["fit", write(table()), "-o", tmp_path / "m.elf", "--max-steps", "100000", "--quiet", "--resume"]
    process = command(*arguments)
    for _ in range(3000):
        if (tmp_path / ".m.elf.checkpoint.lock").exists():
            break
        time.sleep(0.02)
    assert "m.elf must have one writer, got a second one" in fails(*arguments)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    if (tmp_path / "m.elf.checkpoint").exists():
        assert "interrupted; continue from" in process.err.read_text()
    assert set(os.listdir(tmp_path)) - {"m.elf.checkpoint"} == {"data.csv"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_while_it_samples(command, write, tmp_path, number):
    succeeds("fit", write(table()), "-o", tmp_path / "m.elf", *QUICK)
    process = command("sample", tmp_path / "m.elf", "-n", "100000000", "-o", tmp_path / "new.csv")
    for _ in range(3000):
        if len(os.listdir(tmp_path)) > 2:
            break
        time.sleep(0.02)
    os.kill(process.pid, number)
    assert process.wait() == 128 + number
    assert process.err.read_text() == f"elflow: interrupted by {number.name}\n"
    assert sorted(os.listdir(tmp_path)) == ["data.csv", "m.elf"]


def test_verify(write, tmp_path):
    model = tmp_path / "m.elf"
    succeeds("fit", write(table()), "-o", model, *QUICK)
    out, _ = succeeds("verify", model)
    assert "format version 2" in out
    assert "8 as stored" in out
    data = model.read_bytes()
    model.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert "does not match its digest" in fails("verify", model)
    assert "MODEL must be an existing file" in fails("verify", tmp_path / "none")
