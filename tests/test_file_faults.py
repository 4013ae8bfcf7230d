"""Damaged, hostile and oversized model files, and their verification."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import elflow
from elflow._json_types import check_arguments, check_json
from elflow._model_file import find_constants, read_model
from elflow._sizes import check_integers, limit_sizes
from elflow.flows.named import FLOW_NAMES, build_flow
from elflow.verification import verify
from experiments.faults.files import read_content, write_content

GOLDEN = Path(__file__).parent / "golden" / "v2"


@pytest.fixture
def path(tmp_path):
    return Path(shutil.copy(GOLDEN / "table-nsf.elf", tmp_path / "model.elf"))


@pytest.mark.parametrize("name", ["elf", "table-nsf"])
def test_any_flipped_bit_is_refused(name, tmp_path):
    data, path = (GOLDEN / f"{name}.elf").read_bytes(), tmp_path / "model.elf"
    header = 8 + int.from_bytes(data[:8], "little")
    positions = [*range(0, header, 41), *range(header, len(data), 97), len(data) - 1]
    for position in positions:
        for bit in (0, 5):  # 5: the case of letters, hexadecimal digits among them
            path.write_bytes(data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :])
            with pytest.raises(ValueError, match="path must be a"):
                read_model(path)


def test_every_bit_of_the_digest_counts(tmp_path):
    data, path = (GOLDEN / "elf.elf").read_bytes(), tmp_path / "model.elf"
    start = data.index(b'"digest":"')
    for position in range(start, start + 76):
        path.write_bytes(data[:position] + bytes([data[position] ^ 0x20]) + data[position + 1 :])
        with pytest.raises(ValueError, match="path must be a"):
            read_model(path)


def test_a_file_without_digest_is_refused(path):
    header, tensors = read_content(path)
    from safetensors.torch import save_file

    del header["digest"]
    save_file(tensors, path, metadata=header)
    with pytest.raises(ValueError, match="does not match its digest"):
        elflow.load(path)


def test_notes_may_contain_anything(tmp_path):
    notes = {"text": '"digest":"' + "0" * 64 + '"', "digest": "a" * 64}
    elflow.save(elflow.ELF(2), tmp_path / "m", notes=notes)
    assert elflow.serialization.read_notes(tmp_path / "m") == notes


@pytest.mark.parametrize("name", FLOW_NAMES)
def test_constants_are_not_stored(name, tmp_path):
    """A changed base distribution or mask in a file would change the scores."""
    rng = np.random.default_rng(0)
    flow = build_flow(name, 3, 0, {})
    constants = find_constants(flow)
    assert constants
    assert not constants & {key for key, _ in flow.named_parameters()}
    random_order = {"maf": "randperm", "nice": "randmask"}
    if name in random_order:
        shuffled = build_flow(name, 3, 0, {random_order[name]: True})
        assert {key.rpartition(".")[2] for key in find_constants(flow) - find_constants(shuffled)} <= {"mask", "order"}
        assert len(find_constants(shuffled)) == 2
        model = elflow.FlowDensity(
            name, members=["plain"], max_steps=2, random_state=0, flow_options={random_order[name]: True}
        )
        table = rng.normal(size=(50, 5))
        model.fit(table).save(tmp_path / "m")
        np.testing.assert_array_equal(elflow.load(tmp_path / "m").score_samples(table), model.score_samples(table))


def test_a_constant_in_a_file_is_refused_or_ignored(path, tmp_path):
    header, tensors = read_content(path)
    write_content(path, header, tensors | {"flow.base.loc": torch.full((4,), 2.0)})
    with pytest.raises(ValueError, match="must not include the constants"):
        elflow.load(path)
    old = GOLDEN.with_name("v1") / "table-nsf.elf"
    header, tensors = read_content(old)
    expected = elflow.load(old).score_fixed_rows()
    from safetensors.torch import save_file

    save_file(tensors | {"flow.base.loc": torch.full((4,), 2.0)}, path, metadata=header)
    assert elflow.load(path).score_fixed_rows() == expected


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(path, value):
    header, tensors = read_content(path)
    key = next(key for key, tensor in tensors.items() if tensor.is_floating_point() and "log_weights" not in key)
    tensors[key].view(-1)[0] = value
    write_content(path, header, tensors)
    with pytest.raises(ValueError, match="weights must be finite, got NaN or infinite values in"):
        elflow.load(path)
    flow = elflow.ELF(2)
    with torch.no_grad():
        next(flow.parameters())[0] = value
    with pytest.raises(ValueError, match="weights must be finite"):
        elflow.save(flow, path)


def test_weights_of_a_mixture_must_add_up_to_one(path):
    """Found by the campaign: without any weight, the file loaded and `sample` raised a RuntimeError."""
    header, tensors = read_content(GOLDEN / "table.elf")
    for value in (-np.inf, 1.0, np.nan):
        changed = tensors | {"flow.log_weights": torch.full_like(tensors["flow.log_weights"], value)}
        write_content(path, header, changed)
        with pytest.raises(ValueError, match=r"weights of a mixture must add up to 1, got others in flow\.log_weights"):
            elflow.load(path)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        (("schema", "columns", 0, "map", "scale"), "1", r"config\.schema\.columns\[0\]\.map\.scale must be a number"),
        (("schema", "columns", 0, "map", "scale"), -1.0, "positive scale"),
        (("schema", "columns", 0, "dtype"), "float99", "not understood|float99"),
        (("schema", "columns", 0, "name"), None, r"config\.schema\.columns\[0\]\.name must be a string, got null"),
        (("schema", "columns", 0, "kind"), "complex", "kind of column 'height' must be one of"),
        (("schema", "columns", 1, "name"), "height", "columns with different names"),
        (("schema", "table"), "spark", "table must be one of"),
        (("schema", "surprise"), 1, "has an entry surprise, which Schema does not have"),
        (("parameters", "flow"), "os.system", "flow must be one of"),
        (("parameters", "log_dir"), "/etc", r"config\.parameters\.log_dir must be null"),
        (("parameters", "surprise"), 1, r"config\.parameters\.surprise must be left out"),
        (("parameters", "random_state"), "0", r"config\.parameters\.random_state must be an integer or null"),
        (("fitted", "options_", "bins"), 4.0, r"config\.fitted\.options_\.bins must be an integer"),
        (("fitted", "options_", "members"), [[0]], r"config\.fitted\.options_\.members\[0\] must have 2 entries"),
        (("fitted", "options_", "bins"), 10**9, r"config\.fitted\.options_\.bins must be at most 65536"),
        (("fitted", "warnings_"), [1], r"config\.fitted\.warnings_\[0\] must be a string"),
        (("fitted", "n_rows_"), -1, "n_rows_ must be at least 0"),
        (("reference_scores",), [float("nan")], r"config\.reference_scores\[0\] must be a number"),
        (("reference_scores",), [2.0, 1.0], "reference_scores must be finite and increasing"),
        (("hash_limit",), "many", r"config\.hash_limit must be an integer or null"),
    ],
)
def test_wrong_entries_are_named(path, entry, value, message):
    header, tensors = read_content(path)
    config = json.loads(header["config"])
    parent = config
    for key in entry[:-1]:
        parent = parent[key]
    parent[entry[-1]] = value
    write_content(path, header | {"config": json.dumps(config)}, tensors)
    with pytest.raises(ValueError, match=message):
        elflow.load(path)


def test_wrong_entries_of_the_training_record_are_refused_on_load(path):
    header, tensors = read_content(path)
    training = json.loads(header["training"])
    training["history"][0]["validation"] = "high"
    write_content(path, header | {"training": json.dumps(training)}, tensors)
    with pytest.raises(ValueError, match=r"training\.history\[0\] must have numbers"):
        elflow.load(path)


OVERSIZED = [
    ("elf", {"rank": 60_000}), ("elf", {"units": 60_000}), ("elf", {"transforms": 60_000}),
    ("elf", {"hidden_features": (60_000, 60_000)}), ("naf", {"signal": 60_000}),
    ("naf", {"network": {"hidden_features": (60_000, 60_000)}}), ("unaf", {"signal": 60_000}),
    ("cnf", {"freqs": 10**7}), ("sospf", {"polynomials": 60_000}), ("sospf", {"degree": 60_000}),
    ("bpf", {"degree": 60_000}), ("gf", {"components": 10**8}), ("gf", {"transforms": 60_000}),
    ("nsf", {"bins": 60_000}), ("maf", {"hidden_features": (10**9,)}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), OVERSIZED, ids=[f"{name}-{next(iter(o))}" for name, o in OVERSIZED])
def test_a_configuration_cannot_allocate_more_than_the_file_holds(name, options):
    with pytest.raises(ValueError, match="the configuration requires"), limit_sizes(n_values=3_700, n_tensors=60):
        build_flow(name, 5, 0, options)


@pytest.mark.parametrize("name", FLOW_NAMES)
def test_limits_let_every_model_pass(name):
    flow = build_flow(name, 4, 2, {})
    weights = {key: value for key, value in flow.state_dict().items() if key not in find_constants(flow)}
    with limit_sizes(sum(value.numel() for value in weights.values()), len(weights)):
        build_flow(name, 4, 2, {})


def test_components_of_a_mixture_are_limited(path):
    header, tensors = read_content(GOLDEN / "table.elf")
    config = json.loads(header["config"])
    config["fitted"]["options_"]["components"] = 60_000
    write_content(path, header | {"config": json.dumps(config)}, tensors)
    with pytest.raises(ValueError, match="the configuration requires over"):
        elflow.load(path)


def test_types_of_json():
    check_json([1, 2.5, None], list[float | None], "x")
    with pytest.raises(ValueError, match=r"x\[1\] must be a number, got true"):
        check_json([1, True], list[float], "x")
    with pytest.raises(ValueError, match="x must be a number, got NaN"):
        check_json(float("nan"), float, "x")
    with pytest.raises(ValueError, match=r"config\.units must be an integer, got 4\.0"):
        check_arguments(elflow.ELF, {"features": 2, "units": 4.0}, "config")
    with pytest.raises(ValueError, match=r"x\.a\[1\] must be at most 65536 in a file of 5 values"):
        check_integers({"a": [1, 2**40]}, 5, "x")


def test_verify(path):
    found = verify(path)
    assert found.format_version == 2
    assert found.n_scores == 8
    assert found.max_difference < 1e-9
    header, tensors = read_content(path)
    known = json.loads(header["known_scores"])
    write_content(path, header | {"known_scores": json.dumps([known[0] + 0.01, *known[1:]])}, tensors)
    with pytest.raises(ValueError, match=r"scores here as where it was saved, to 1e-06, got .*model\.elf with a diff"):
        verify(path)
    write_content(path, header | {"known_scores": json.dumps(known[1:])}, tensors)
    with pytest.raises(ValueError, match="scores here as where it was saved"):
        verify(path)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_golden_files_are_verified(version):
    for file in sorted(GOLDEN.with_name(version).glob("*.elf"))[:3]:
        assert verify(file).format_version == int(version[1:])


def test_saving_does_not_change_a_flow(tmp_path):
    """Known scores are computed in evaluation mode, in which nothing is initialised."""
    flow = elflow.ELF(2).train()
    elflow.save(flow, tmp_path / "m")
    assert flow.training
    assert not flow.initialized
    assert all(part.training for part in flow.modules())


def test_a_link_as_output(tmp_path):
    """Models and tables replace the target of a link, also of one whose target does not exist yet."""
    table = pd.DataFrame({"a": [1.0, 2.0]})
    for name, write in {
        "model.elf": lambda path: elflow.save(elflow.ELF(1, transforms=1, units=2), path),
        "table.csv": lambda path: write_table(path, table),
    }.items():
        (tmp_path / "real").mkdir(exist_ok=True)
        link, target = tmp_path / name, tmp_path / "real" / name
        link.symlink_to(target)
        for _ in range(2):
            write(link)
            assert link.is_symlink()
            assert target.is_file()
    assert sorted(os.listdir(tmp_path / "real")) == ["model.elf", "table.csv"]


def write_table(path, table):
    with elflow.io.TableWriter(path) as writer:
        writer.write(table)


@pytest.mark.parametrize("name", ["elf", "elf-weights", "images", "table"])
def test_known_scores_hold_on_every_implementation(implementation, name):
    """Other instruction sets and the reference round differently, far within the tolerances of `verify`."""
    if name == "elf-weights" and implementation.startswith("native"):
        pytest.skip("the native kernels do not support the activation of this file")
    found = verify(GOLDEN / f"{name}.elf")
    assert found.n_scores in (4, 8)
    assert found.max_difference < found.tolerance / 10
