"""Killed commands and full disks: `elflow` in processes of their own, forked from this one."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from safetensors.torch import load_file

import elflow
from elflow.cli import main
from experiments.faults.outcomes import Case
from experiments.faults.victims import Victims

__all__ = ["fill_disk", "is_hanging", "kill_command", "read_processor_time"]

SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
MAX_WAIT = 30.0
"""Seconds of processor time after which a command hangs; on a busy machine, they take longer."""
MAX_PATIENCE = 20.0
"""Ratio of the time after which a command hangs in any case, waiting for something, to `MAX_WAIT`."""
OUTPUTS = {
    "fit": "model.elf",
    "score": "scores.csv",
    "sample": "new.parquet",
    "report": "report.html",
    "impute": "full.csv",
}
"""Output of each command that is killed, or whose disk is full."""
FIT = ["--max-steps", "120", "--threads", "1", "--quiet", "--resume"]


def make_command(name: str, folder: Path, victims: Victims, output: Path | None = None) -> tuple[list[str], Path]:
    """Arguments of a command whose files are in a folder, and its output."""
    data, model = folder / "data.csv", folder / "table.elf"
    if not data.exists():
        victims.table.to_csv(data, index=False)
    if name != "fit" and not model.exists():
        shutil.copy(victims.models[0].path, model)
    holes = folder / "holes.csv"
    if name == "impute" and not holes.exists():
        victims.table.mask(np.random.default_rng(0).random(victims.table.shape) < 0.1).to_csv(holes, index=False)
    target = output or folder / OUTPUTS[name]
    arguments = {
        "fit": ["fit", str(data), *FIT],
        "score": ["score", str(model), str(data), "--anomaly"],
        "sample": ["sample", str(model), "-n", "3000"],
        "report": ["report", str(model), str(data)],
        "impute": ["impute", str(model), str(holes)],
    }
    return [*arguments[name], "-o", str(target)], target


def start_command(arguments: Sequence[str], log: Path, max_file_bytes: int | None = None) -> int:
    """Run `elflow` in a forked process, and return its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        # A test runner has replaced Python's streams, which would not write to these descriptors.
        sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        if max_file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, resource.RLIM_INFINITY))
        torch.set_num_threads(1)
        code = main(list(arguments))
    except BaseException as error:  # SystemExit of typer
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait_for(pid: int, seconds: float) -> int | None:
    """Exit code of a process, negative for a signal; None if it does not end in time, and is killed."""
    start, used = time.monotonic(), read_processor_time(pid)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if is_hanging(pid, start, used, seconds):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.01)


def is_hanging(pid: int, start: float, used: float, seconds: float) -> bool:
    """Whether a process has used so much processor time since a moment, or has waited for much longer.

    Arguments:
        pid: The process.
        start: The moment, of `time.monotonic`.
        used: Its processor time at that moment.
        seconds: The limit.
    """
    waited = time.monotonic() - start
    return waited > seconds and (read_processor_time(pid) - used > seconds or waited > MAX_PATIENCE * seconds)


def read_processor_time(pid: int) -> float:
    """Processor time of a process in seconds; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@cache
def _measure(name: str, models: str) -> tuple[float, bytes]:
    """Duration of an undisturbed command, and its output."""
    from experiments.faults.victims import make_victims

    with TemporaryDirectory() as folder:
        arguments, output = make_command(name, Path(folder), make_victims(Path(models)))
        start = time.monotonic()
        code = wait_for(start_command(arguments, Path(folder, "log")), 4 * MAX_WAIT)
        if code != 0:
            raise RuntimeError(f"elflow {name} must end with 0, got {code}: {Path(folder, 'log').read_text()[-500:]}")
        return time.monotonic() - start, output.read_bytes()


def kill_command(rng: random.Random, victims: Victims) -> Case:
    """A command that gets a signal at a random moment, and then runs once more to its end."""
    name, number = rng.choice(["fit", "fit", *OUTPUTS]), rng.choice(SIGNALS)
    seconds, expected = _measure(name, str(victims.models[0].path.parent))
    moment = rng.uniform(0, 1.1 * seconds)
    fault = f"{name} {number.name} after {moment / seconds:.0%}"
    with TemporaryDirectory() as parent:
        folder, log = Path(parent, "files"), Path(parent, "log")
        folder.mkdir()
        arguments, output = make_command(name, folder, victims)
        inputs = set(os.listdir(folder))
        pid = start_command(arguments, log)
        time.sleep(moment)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return Case(fault, "crashed", "the process has ended")  # a zombie still gets signals
        code = wait_for(pid, MAX_WAIT)
        if code is None:
            return Case(fault, "hung", f"the process has not ended after {MAX_WAIT:.0f} s")
        if code not in (0, -number, 128 + number):
            return Case(fault, "crashed", f"exit code {code}: {log.read_text()[-300:]}")
        left = set(os.listdir(folder)) - inputs - {output.name}
        if number != signal.SIGKILL and left - {f"{output.name}.checkpoint"}:
            return Case(fault, "leaked", f"files {sorted(left)}")
        if output.exists() and not _is_same(name, output, expected):
            return Case(fault, "wrong", "an incomplete output has the name of the output")
        code = wait_for(start_command(arguments, log), 4 * MAX_WAIT)
        if code != 0:
            return Case(fault, "crashed", f"the next run ended with {code}: {log.read_text()[-300:]}")
        if not _is_same(name, output, expected):
            return Case(fault, "wrong", "the next run has another output")
        if left := set(os.listdir(folder)) - inputs - {output.name}:
            return Case(fault, "leaked", f"files {sorted(left)} after the next run")
    return Case(fault, "harmless")


def _is_same(name: str, output: Path, expected: bytes) -> bool:
    """Whether an output is that of an undisturbed command: models and reports also hold durations."""
    if name == "report":
        return output.read_bytes().rstrip().endswith(b"</html>")
    if name != "fit":
        return output.read_bytes() == expected
    with TemporaryDirectory() as folder:
        whole = Path(folder, "model.elf")
        whole.write_bytes(expected)
        ours, theirs = load_file(whole), load_file(output)
        scores = [elflow.load(path).score_fixed_rows() for path in (whole, output)]
    is_equal = ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    return is_equal and scores[0] == scores[1]


def fill_disk(rng: random.Random, victims: Victims) -> Case:
    """A command whose output does not fit on the disk, or barely."""
    name = rng.choice(list(OUTPUTS))
    with TemporaryDirectory() as parent:
        folder, log = Path(parent, "files"), Path(parent, "log")
        folder.mkdir()
        size = rng.choice([1, 4, 8, 16, 32, 64, 128, 512]) * 1024
        with small_disk(Path(parent, "disk"), size) as (disk, limit):
            arguments, output = make_command(name, folder, victims)
            output = disk / output.name
            arguments[-1] = str(output)
            old = b"old content" if rng.random() < 0.5 and name != "fit" else None
            if old is not None:
                output.write_bytes(old)
            before = set(os.listdir(disk))
            fault = f"{name} on {size // 1024} KiB ({'limit of file size' if limit else 'disk'})"
            code, text = wait_for(start_command(arguments, log, limit), 4 * MAX_WAIT), log.read_text()
            left = set(os.listdir(disk)) - before
            if code is None:
                return Case(fault, "hung", text[-200:])
            if code == 0:
                ok = left <= {output.name}
                return Case(fault, "harmless" if ok else "leaked", f"files {sorted(left)}")
            if code != 2 or "error:" not in text:
                return Case(fault, "crashed", f"exit code {code}: {text[-300:]}")
            if str(output) not in text:
                return Case(fault, "crashed", f"the error does not name the output: {text[-300:]}")
            if left - {f"{output.name}.checkpoint"}:
                return Case(fault, "leaked", f"files {sorted(left)}")
            if old is not None and output.read_bytes() != old:
                return Case(fault, "wrong", "the old file has changed")
            return Case(fault, "refused", text[-200:])


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[tuple[Path, int | None]]:
    """A folder on a file system of a few bytes, if this user can mount one, or else a limit on the size of files."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield folder, None if is_mounted else size
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
