"""Model files: atomic writes, and a clear error for every file that is not a model."""

import json
import os

import numpy as np
import pytest
import safetensors.torch
import torch
import zuko

import elflow
from elflow import _model_file
from elflow.activations import QELU, PiecewiseQuadratic
from elflow.serialization import read_notes, read_training
from elflow.training import Training
from experiments.faults.files import read_content, write_content


@pytest.fixture
def flow():
    return elflow.ELF(3, 2, transforms=2, units=4, hidden_features=(8,), order=(1, 0, 2), activation=QELU)


@pytest.fixture
def path(flow, tmp_path):
    elflow.save(flow, tmp_path / "model.elf")
    return tmp_path / "model.elf"


def test_header_is_readable_json(path):
    header, _ = read_content(path)
    assert header["format"] == "elflow"
    assert header["format_version"] == "2"
    config = json.loads(header["config"])
    assert config["features"] == 3
    assert config["order"] == [[1, 0, 2], [1, 0, 2]]
    assert config["activation"]["name"] == "QELU"


def test_custom_activations_are_restored(tmp_path):
    leaky = PiecewiseQuadratic((0.0,), ((0, 0.1, 0), (0, 1, 0)), name="leaky")
    flow = elflow.ELF(2, activation=leaky)
    elflow.save(flow, tmp_path / "m")
    assert elflow.load(tmp_path / "m").transform.transforms[1].activation == leaky


def test_dtype_device_and_mode(flow, tmp_path):
    elflow.save(flow.double(), str(tmp_path / "m"))
    loaded = elflow.load(str(tmp_path / "m"), device=torch.device("cpu"))
    assert {p.dtype for p in loaded.parameters()} == {torch.float64}
    assert not loaded.training


def test_loading_does_not_change_the_random_state(path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    elflow.load(path)
    assert (torch.rand(3) == expected).all()


def test_a_loaded_flow_can_be_trained_further(path):
    flow = elflow.load(path).train()
    loss = -flow(torch.randn(10, 2)).log_prob(torch.randn(10, 3)).mean()
    loss.backward()
    assert all(p.grad is not None for p in flow.parameters())


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_truncated(path, keep):
    whole = path.read_bytes()
    path.write_bytes(whole[:keep])
    with pytest.raises(
        ValueError, match=r"path must be a model saved by elflow, got .*damaged or not a safetensors file"
    ):
        elflow.load(path)


def test_any_damaged_header_byte_is_an_error_or_harmless(path):
    """No byte of the header makes loading raise anything but ValueError."""
    whole = path.read_bytes()
    for position in range(0, 600, 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :])
        try:
            elflow.load(path)
        except ValueError as error:
            assert "path must be" in str(error)  # noqa: PT017


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip file", b"\x80\x04\x95 a pickle", b"a,b\n1,2\n"])
def test_files_of_other_formats(tmp_path, content):
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(ValueError, match="path must be a model saved by elflow"):
        elflow.load(tmp_path / "m")


def test_safetensors_of_another_program(tmp_path):
    safetensors.torch.save_file({"a": torch.zeros(3)}, tmp_path / "m")
    with pytest.raises(ValueError, match="of another program"):
        elflow.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"format_version": "99"},
            "path must be a file of format version 1 or 2, got .* of version '99': load it with the elflow version",
        ),
        ({"flow": "os.system"}, "model must be one of .*, got 'os.system'"),
        ({"config": "{"}, "damaged header"),
        ({"config": "[]"}, "damaged header"),
        ({"config": "[" * 100_000}, "damaged header"),
        ({"config": '{"features": 3}'}, "do not match"),
        ({"training": "[]"}, "damaged header: training must be an object"),
    ],
)
def test_headers_that_do_not_fit(path, changed, message):
    header, tensors = read_content(path)
    write_content(path, header | changed, tensors)
    with pytest.raises(ValueError, match=message):
        elflow.load(path)


@pytest.mark.parametrize(
    "changed",
    [
        {"features": 4},
        {"features": 10**19},
        {"transforms": 10**9, "order": "shared"},
        {"features": -3},
        {"units": "many"},
        {"surprise": 1},
        {"bound": 2},
    ],
)
def test_configurations_that_do_not_fit(path, changed):
    header, tensors = read_content(path)
    header["config"] = json.dumps(json.loads(header["config"]) | changed)
    write_content(path, header, tensors)
    with pytest.raises(ValueError, match=r"do not match"):
        elflow.load(path)


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"path must be an existing file, got .*nothing"):
        elflow.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="path must be in an existing folder"):
        elflow.save(elflow.ELF(1), tmp_path / "no" / "folder")


def test_other_flows():
    with pytest.raises(TypeError, match=r"model must be one of ELF, ImageELF, FlowDensity, .* got MAF"):
        elflow.save(zuko.flows.MAF(2), "model.elf")


def test_the_old_file_survives_a_failure(path, flow, monkeypatch):
    before = path.read_bytes()

    def full(tensors, file, metadata):
        file.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(_model_file, "save_file", full)
    with pytest.raises(OSError, match="no space left"):
        elflow.save(flow, path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_permissions_are_those_of_any_file(path):
    other = path.parent / "other"
    other.write_bytes(b"")
    assert path.stat().st_mode == other.stat().st_mode


def test_masks_are_not_taken_from_a_file(path, flow):
    """A file whose masks let everything through would give wrong densities silently."""
    header, tensors = read_content(path)
    masks = {key: torch.ones_like(value) for key, value in flow.named_buffers() if key.endswith("mask")}
    assert masks
    assert not masks.keys() & tensors.keys()
    write_content(path, header, tensors | masks)
    with pytest.raises(ValueError, match=r"do not match: (?s:.*)Unexpected key"):
        elflow.load(path)


def test_several_dtypes(path):
    header, tensors = read_content(path)
    tensors["transform.transforms.0.loc"] = tensors["transform.transforms.0.loc"].double()
    write_content(path, header, tensors)
    with pytest.raises(ValueError, match="all tensors must have the same dtype"):
        elflow.load(path)


def test_numpy_arguments_can_be_saved(tmp_path):
    flow = elflow.ELF(np.int64(2), units=np.int64(4), hidden_features=np.array([8, 8]), order=np.array([1, 0]))
    elflow.save(flow, tmp_path / "m")
    assert elflow.load(tmp_path / "m").orders == ((1, 0),) * 3


def test_training_records_and_notes(tmp_path):
    training = Training([{"step": 10, "seconds": 1.0, "learning_rate": 1e-3, "training": 0.5}], 1.5, "max_steps", 2)
    elflow.save(elflow.ELF(2), tmp_path / "m", training, notes={"rows": 12})
    assert read_training(tmp_path / "m") == training
    assert read_notes(tmp_path / "m") == {"rows": 12}
    elflow.save(elflow.ELF(2), tmp_path / "m")
    assert read_training(tmp_path / "m") is None
    assert read_notes(tmp_path / "m") == {}
    with pytest.raises(TypeError, match=r"must be JSON, got a value that is not: .*object"):
        elflow.save(elflow.ELF(2), tmp_path / "m", notes={"rows": object()})


@pytest.mark.parametrize("record", [{"history": []}, {"stopped": "never"}, {"surprise": 1}, {"seconds": None}])
def test_damaged_training_records(path, record):
    header, tensors = read_content(path)
    good = {"history": [{"step": 1}], "seconds": 1.0, "stopped": "patience", "skipped": 0}
    write_content(path, header | {"training": json.dumps(good | record)}, tensors)
    with pytest.raises(ValueError, match="whose training record is damaged"):
        read_training(path)
