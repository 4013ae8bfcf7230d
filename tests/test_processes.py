"""Training in several processes: real ones, connected by gloo on this machine."""

import contextlib
import io
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from _command import fails, succeeds
from _fork_server import launch_two, start_command

import elflow
from elflow.cli import _processes
from elflow.flows.dequantization import Cells, Dequantized
from elflow.flows.mixture import FlowMixture
from elflow.flows.whitening import Whitened
from elflow.training import LostProcessError, Recipe, Rows, fit, make_fabric, processes
from elflow.training.checkpoint import MAGIC

RECIPE = Recipe(
    learning_rate=5e-3, schedule="cosine", batch_size=33, max_steps=100, round_steps=5, patience=1000, race_steps=30
)
"""An odd batch size, whose shares differ, and a race, after which one part has no gradients."""
SHORT = replace(RECIPE, max_steps=6, batch_size=7, round_steps=3, race_steps=None)


def make_flow():
    torch.manual_seed(1)
    members = [
        Whitened(elflow.ELF(3, transforms=1, units=4, hidden_features=(8,)), 3, 0, start)
        for start in ("cholesky", "identity")
    ]
    return Dequantized(FlowMixture(members), exact=[0, 1], cells=[2])


def make_rows():
    """Two correlated columns, and a coin that depends on them, with weights."""
    generator = torch.Generator().manual_seed(2)
    exact = torch.randn(700, 2, generator=generator) @ torch.tensor([[2.0, 1.0], [0.0, 0.3]])
    low = torch.where(exact[:, :1] > 0, 0.5, 0.0).double()
    cells = Cells(exact, low, torch.full_like(low, 0.5), torch.zeros(700))
    rows = Rows(cells, weight=0.5 + torch.rand(700, generator=generator))
    return rows.take(slice(600)), rows.take(slice(600, None))


def make_image_flow():
    torch.manual_seed(1)
    sizes = {"transforms": 1, "units": 4, "channels": 4, "blocks": 1}
    return elflow.ImageELF((1, 4, 4), levels=4, scales=1, dequantization="variational", **sizes)


def make_images():
    x = torch.randint(4, (90, 1, 4, 4), generator=torch.Generator().manual_seed(3))
    return Rows(x[:70]), Rows(x[70:])


def train_in_processes(fabric, path):
    """What each process does: a mixture with a race, images, a stream, and the first half of the first training."""
    torch.set_num_threads(1)
    calls, seen, forward = [], [], processes.LogLikelihood.forward
    best, training = fit(
        make_flow(), *make_rows(), RECIPE, seed=4, fabric=fabric, on_round_end=lambda *_: calls.append(1)
    )
    images, image_training = fit(make_image_flow(), *make_images(), SHORT, seed=4, fabric=fabric)

    def record(self, rows):
        seen.append(rows.x)
        return forward(self, rows)

    processes.LogLikelihood.forward = record
    fit(make_flow().flow.flows[0], lambda: torch.randn(9, 3), recipe=SHORT, seed=4, fabric=fabric)
    processes.LogLikelihood.forward = forward
    half = {"checkpoint": f"{path}/checkpoint", "on_round_end": stop_half_way}
    with contextlib.suppress(KeyboardInterrupt, LostProcessError):
        fit(make_flow(), *make_rows(), RECIPE, seed=4, fabric=fabric, **half)
    torch.save(
        {
            "states": [flow.state_dict() for flow in (best, images)],
            "histories": [record.history for record in (training, image_training)],
            "calls": len(calls),
            "seen": seen,
        },
        f"{path}/{fabric.global_rank}",
    )


def stop_half_way(flow, entry):
    if entry["step"] == 55:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder and the results of two processes."""
    path = tmp_path_factory.mktemp("processes")
    launch_two(train_in_processes, str(path))
    return path, [torch.load(path / str(rank), weights_only=True) for rank in range(2)]


def compare_histories(ours, theirs):
    assert [entry["step"] for entry in ours] == [entry["step"] for entry in theirs]
    for name in ("training", "validation"):
        got, expected = ([entry[name] for entry in history] for history in (ours, theirs))
        assert got == pytest.approx(expected, abs=1e-4), name


@pytest.mark.slow
def test_two_processes_follow_one(trained):
    """Also when the training of a part ends, and when one process continues what two have begun."""
    path, (first, second) = trained
    _, training = fit(make_flow(), *make_rows(), RECIPE, seed=4)
    compare_histories(first["histories"][0], training.history)
    assert first["histories"][0][-1]["validation"] == pytest.approx(training.history[-1]["validation"], abs=0.01)
    assert (first["calls"], second["calls"]) == (20, 0)  # only the first process reports
    _, continued = fit(make_flow(), *make_rows(), RECIPE, seed=4, checkpoint=path / "checkpoint")
    compare_histories(continued.history, training.history)
    stored = io.BytesIO((path / "checkpoint").read_bytes()[len(MAGIC) + 64 :])  # after the digest
    assert continued.history[:10] == torch.load(stored, weights_only=True)["state"]["history"][:10]


@pytest.mark.slow
def test_two_processes_share_the_noise_of_images(trained):
    _, (first, _) = trained
    _, training = fit(make_image_flow(), *make_images(), SHORT, seed=4)
    compare_histories(first["histories"][1], training.history)


@pytest.mark.slow
def test_batches_are_shared_and_never_repeated(trained):
    _, results = trained
    shares = [torch.cat(result["seen"]) for result in results]
    assert [len(share) for share in shares] == [30, 24]  # six batches of nine rows
    assert len(torch.unique(torch.cat(shares), dim=0)) == 54


@pytest.mark.slow
def test_processes_end_with_the_same_weights(trained):
    _, (first, second) = trained
    for state, other in zip(first["states"], second["states"], strict=True):
        assert all(torch.equal(value, other[key]) for key, value in state.items())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    size = rng.lognormal(size=200)
    path = tmp_path_factory.mktemp("processes") / "data.csv"
    pd.DataFrame({"size": size, "count": rng.poisson(size)}).to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def alone(data):
    """The density that one process fits."""
    return elflow.FlowDensity(max_steps=15, random_state=0, device="cpu").fit(pd.read_csv(data))


def start(*arguments, launcher=()):
    command = [sys.executable, *launcher, "-m", "elflow", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["first", "second"])
def test_a_killed_process_ends_the_others(victim, data, tmp_path):
    model, checkpoint = tmp_path / "m.elf", tmp_path / "m.elf.checkpoint"
    arguments = ["fit", data, "-o", model, "--max-steps", "150", "--device", "cpu"]
    process = start(*arguments, "--devices", 2, "--quiet")
    while not checkpoint.exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True).stdout
    os.kill(process.pid if victim == "first" else int(children), signal.SIGKILL)
    begin = time.monotonic()
    _, err = process.communicate()  # waits for both, which have the same standard error
    assert time.monotonic() - begin < 30
    assert process.returncode == (-signal.SIGKILL if victim == "first" else 1)
    assert "of 2 has lost the connection to another, which may have ended; continue from" in err
    assert not model.exists()
    assert checkpoint.exists()
    if victim == "second":
        out, _ = succeeds(*arguments, "--resume")
        assert "held-out log-likelihood" in out
        assert not checkpoint.exists()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["torchrun", "nodes"])
def test_processes_of_torchrun_and_of_two_machines(way, data, alone, tmp_path):
    """They end with the model of one process, which only the first of them prints."""
    command = ["fit", data, "-o", tmp_path / "m.elf", "--max-steps", "15", "--device", "cpu"]
    if way == "torchrun":
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        process = start(*command, launcher=launcher)
        done = [(*process.communicate(), process.returncode)]
    else:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
        folders = [tmp_path / str(rank) for rank in range(2)]
        for folder in folders:
            folder.mkdir()
        nodes = [start_command(each, *command, "--nodes", 2, NODE_RANK=each.name, **address) for each in folders]
        done = [wait() for wait in nodes]
    assert [code for *_, code in done] == [0] * len(done), done
    assert sum(out.count(" parameters") for out, *_ in done) == 1
    rows, model = pd.read_csv(data), elflow.load(tmp_path / "m.elf")
    compare_histories(model.training_.history, alone.training_.history)
    assert model.score(rows) == pytest.approx(alone.score(rows), abs=1e-3)


def test_lightning_ends_processes_that_wait_with_a_message(tmp_path, capsys):
    """With NCCL, processes wait for one that has ended until a thread of Lightning ends them."""
    with _processes.start(make_fabric("cpu"), tmp_path / "m.elf.checkpoint", None):
        logging.getLogger(_processes.OBSERVER).info("Child process with PID 1 terminated with code -9.")
    expected = "elflow: error: a process has ended, and so do all others; there is no checkpoint yet\n"
    assert capsys.readouterr().err == expected


def test_options_of_processes(data, tmp_path, monkeypatch):
    arguments = ["fit", data, "-o", tmp_path / "m.elf"]
    assert "--nodes must be 1, unless each machine has the environment" in fails(*arguments, "--nodes", 2)
    for name, value in {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert "--devices must be left out, or be 2 as for torchrun, got 3" in fails(*arguments, "--devices", 3)
    assert "--nodes must be left out, or be 2 as for torchrun, got 1" in fails(*arguments, "--nodes", 1)


def test_batches_are_not_smaller_than_the_number_of_processes():
    class Three:
        device, world_size, global_rank = torch.device("cpu"), 3, 0

    with pytest.raises(ValueError, match="batch_size must be at least the number of processes, 3, got 2"):
        fit(make_flow(), make_rows()[0], recipe=replace(SHORT, batch_size=2), fabric=Three())
