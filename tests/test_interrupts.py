"""Training that signals interrupt between two steps, and checkpoints that are damaged or in use."""

import io
import os
import signal

import pytest
import torch
from test_training import TINY, have_same_state, make_data, make_flow

import elflow
from elflow._files import locking
from elflow._interrupts import Interrupted, raising_interrupts
from elflow.flows.dequantization import Cells, Dequantized
from elflow.training import Rows, fit, run
from elflow.training.checkpoint import MAGIC, read_checkpoint, write_checkpoint


@pytest.fixture
def signal_at(monkeypatch):
    """A function that runs another one, in which SIGTERM arrives in the midst of a step, or of a validation."""

    def run_until(step, function, method="train_step", times=1):
        original = getattr(run.Run, method)

        def interrupted(self, *arguments):
            if self.step == step:
                for _ in range(times):
                    signal.raise_signal(signal.SIGTERM)
            return original(self, *arguments)

        monkeypatch.setattr(run.Run, method, interrupted)
        with pytest.raises(Interrupted), raising_interrupts():
            function()
        monkeypatch.setattr(run.Run, method, original)

    return run_until


def make_cells():
    """Rows with cells, whose noise is drawn anew in each step, and a flow for them."""
    generator = torch.Generator().manual_seed(0)
    low = torch.randint(4, (300, 1), generator=generator).double() / 4
    exact = torch.randn(300, 1, generator=generator)
    rows = Rows(Cells(exact, low, torch.full_like(low, 0.25), torch.zeros(300)))
    torch.manual_seed(0)
    flow = Dequantized(elflow.ELF(2, transforms=1, units=4, hidden_features=(8,)), exact=[0], cells=[1])
    return flow, rows.take(slice(250)), rows.take(slice(250, None))


@pytest.mark.parametrize("step", [0, 4, 9, 10, 33, 39])
@pytest.mark.parametrize("kind", ["numbers", "cells"])
def test_a_signal_saves_the_present_step(step, kind, tmp_path, signal_at):
    flow, *rows = make_cells() if kind == "cells" else (make_flow(), *make_data())
    whole, expected = fit(flow, *rows, TINY)
    path = tmp_path / "c"
    signal_at(step, lambda: fit(flow, *rows, TINY, checkpoint=path))
    assert os.listdir(tmp_path) == ["c"]
    resumed, training = fit(flow, *rows, TINY, checkpoint=path)
    assert have_same_state(resumed, whole)
    histories = [[(e["step"], e["training"], e["validation"]) for e in t.history] for t in (training, expected)]
    assert histories[0] == histories[1]


def test_interrupted_twice_in_one_round_and_in_the_validation(tmp_path, signal_at):
    flow, *rows = make_cells()
    whole, _ = fit(flow, *rows, TINY)
    path = tmp_path / "c"
    for step, method in [(2, "train_step"), (6, "train_step"), (10, "_score_parts"), (20, "_score_parts")]:
        signal_at(step, lambda: fit(flow, *rows, TINY, checkpoint=path), method)
    assert have_same_state(fit(flow, *rows, TINY, checkpoint=path)[0], whole)


def test_a_second_signal_in_the_midst_of_a_step_stores_nothing(tmp_path, signal_at):
    """The state is that of the last round: the optimizer may have changed a part of the weights."""
    flow, *rows = make_cells()
    whole, _ = fit(flow, *rows, TINY)
    path = tmp_path / "c"
    signal_at(24, lambda: fit(flow, *rows, TINY, checkpoint=path), "_update_weights", times=2)
    stored = torch.load(io.BytesIO(path.read_bytes()[len(MAGIC) + 64 :]), weights_only=True)["state"]
    assert (stored["step"], stored["round"]) == (20, None)
    assert have_same_state(fit(flow, *rows, TINY, checkpoint=path)[0], whole)


def test_a_second_training_with_the_same_checkpoint_is_refused(tmp_path):
    path = tmp_path / "c"
    with locking(path), pytest.raises(ValueError, match="c must have one writer, got a second one"):
        fit(make_flow(), *make_data(), TINY, checkpoint=path)
    fit(make_flow(), *make_data(), TINY, checkpoint=path)
    assert os.listdir(tmp_path) == ["c"]


def test_damaged_checkpoints_are_refused(tmp_path):
    path = tmp_path / "c"
    write_checkpoint(path, {"weights": torch.randn(50), "step": 7}, "data")
    data = path.read_bytes()
    assert read_checkpoint(path, "data")["step"] == 7
    for position in [*range(0, len(data), 37), len(data) - 1]:
        path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
        with pytest.raises(ValueError, match="checkpoint must be a file written by"):
            read_checkpoint(path, "data")
    for damaged in (b"", data[:10], data[:-1], data + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="checkpoint must be a file written by"):
            read_checkpoint(path, "data")
    torch.save({"fingerprint": "data", "state": {}}, path)
    with pytest.raises(ValueError, match=r"got .*, which is damaged or of another version of elflow"):
        read_checkpoint(path, "data")
