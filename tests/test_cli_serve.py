"""`elflow serve` as a process: workers share a socket, a killed one is replaced, and SIGTERM waits for answers."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from _command import fails, succeeds
from _service import Client

import elflow
from elflow.serve.server import Supervisor

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def density():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(200, 3)), columns=["a", "b", "c"])
    options = {"transforms": 1, "units": 4, "hidden_features": (8,)}
    members = ["cholesky", "gaussian"]
    return elflow.FlowDensity(max_steps=5, members=members, flow_options=options, random_state=0).fit(table)


def list_children(process):
    path = Path(f"/proc/{process}/task/{process}/children")
    return {int(child) for child in path.read_text().split()}


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find the workers")
def test_workers_are_replaced_and_end_gracefully(density, tmp_path):
    density.save(tmp_path / "model.elf")
    command = [sys.executable, "-m", "elflow", "serve", str(tmp_path / "model.elf"), "--port", "0", "--workers", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        line = process.stderr.readline()
        client = Client(int(re.search(r"http://127\.0\.0\.1:(\d+)", line)[1]))
        rows = density.sample(300, random_state=0)
        content = {"rows": rows.to_dict("records")}
        expected = density.score_samples(rows).tolist()
        assert client.post("/score", content).json["log_density"] == expected
        before = list_children(process.pid)
        assert len(before) == 2
        os.kill(min(before), signal.SIGKILL)
        wait_until(lambda: len(list_children(process.pid) - before) == 1)
        assert client.post("/score", content).json["log_density"] == expected
        assert "elflow_workers 2" in client.get("/metrics").body.decode()

        replies = []
        thread = threading.Thread(target=lambda: replies.append(client.post("/explain", content)))
        thread.start()
        wait_until(lambda: b"elflow_requests_under_way 1" in client.get("/metrics").body)
        process.send_signal(signal.SIGTERM)
        thread.join()
        assert replies[0].status == 200
        assert len(replies[0].json["cells"]) == 900
        assert process.wait(60) == 0
        assert "starting another one" in process.stderr.read()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.parametrize("at", [1, 2])
def test_a_signal_during_the_start_of_workers_ends_all_of_them(at, monkeypatch):
    """It arrives between the fork and the moment in which the supervisor knows the worker."""
    workers, fork = [], os.fork

    def fork_and_end():
        process = fork()
        if process:
            workers.append(process)
            if len(workers) == at:
                os.kill(os.getpid(), signal.SIGTERM)
        return process

    monkeypatch.setattr(os, "fork", fork_and_end)
    start = time.monotonic()
    Supervisor(lambda number: time.sleep(30), 3).run()
    assert time.monotonic() < start + 15
    assert len(workers) == at  # no further ones are started
    for process in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_errors_of_the_command(density, tmp_path):
    density.save(tmp_path / "model.elf")
    model = str(tmp_path / "model.elf")
    assert "MODEL must have different names" in fails("serve", model, model)
    assert "--max-bytes must be a size" in fails("serve", model, "--max-bytes", "many")
    (tmp_path / "token").write_text("")
    assert "--token-file must have a secret" in fails("serve", model, "--token-file", str(tmp_path / "token"))


@pytest.mark.parametrize("command", ["serve", "explore"])
def test_both_commands_read_the_token_and_warn_without(command, density, tmp_path, monkeypatch):
    density.save(tmp_path / "model.elf")
    started = []
    monkeypatch.setattr("elflow.serve.server.run", lambda models, settings, on_ready: started.append(settings))
    monkeypatch.delenv("ELFLOW_TOKEN", raising=False)
    warning = "warning: everybody who reaches 0.0.0.0 can use the service; set ELFLOW_TOKEN"
    assert warning in succeeds(command, tmp_path / "model.elf", "--host", "0.0.0.0")[1]
    assert "warning" not in succeeds(command, tmp_path / "model.elf")[1]
    monkeypatch.setenv("ELFLOW_TOKEN", "correct horse")
    assert "warning" not in succeeds(command, tmp_path / "model.elf", "--host", "0.0.0.0")[1]
    assert [settings.token for settings in started] == [None, None, "correct horse"]
