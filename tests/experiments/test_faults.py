"""The campaign of injected faults, in small. Its findings are tests of `tests/test_file_faults.py`."""

import json
import random
from pathlib import Path

import pytest

from experiments.command import main
from experiments.faults.campaign import KINDS, run_campaign, run_case
from experiments.faults.mutations import list_paths, mutate_bytes, mutate_json
from experiments.faults.outcomes import BAD, Case, Tally

COUNTS = {
    "model-bytes": 400,
    "model-content": 150,
    "model-values": 4,
    "checkpoint-bytes": 200,
    "table-bytes": 60,
    "table-values": 4,
    "kill": 3,
    "disk": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.mark.slow
def test_no_fault_is_silent(folder):
    tally = run_campaign(folder, 120.0, seed=0, counts=COUNTS, log=lambda line: None)
    assert not tally.findings
    assert set(tally.counts) == set(COUNTS) == set(KINDS)
    assert tally.tried >= 900
    assert not any(tally.totals[outcome] for outcome in BAD)
    again = run_campaign(folder, 120.0, seed=0, counts=COUNTS, log=lambda line: None)  # complete already
    assert again.counts == tally.counts
    assert json.loads((folder / "campaign.json").read_text())["tried"] == tally.tried


@pytest.mark.slow
def test_a_case_can_be_repeated(folder):
    first, second = (run_case(folder, "model-bytes", 7, seed=0) for _ in range(2))
    assert [(case.fault, case.outcome) for case in first] == [(case.fault, case.outcome) for case in second]
    assert first[0].outcome == "refused"


def test_mutations_change_something():
    data = Path(__file__).read_bytes()
    for seed in range(50):
        fault, damaged = mutate_bytes(random.Random(seed), data)
        assert damaged != data, fault
    for seed in range(50):
        value = {"a": [1, {"b": 2.5}], "c": None}
        mutate_json(random.Random(seed), value)
    assert list_paths({"a": [1, {"b": 2}]}) == [("a",), ("a", 0), ("a", 1), ("a", 1, "b")]


def test_defects_are_described():
    tally = Tally(seed=0)
    tally.add("disk", 0, Case("a disk", "refused"))
    tally.add("disk", 1, Case("a disk", "wrong", "other content"))
    assert tally.findings == [{"case": "disk:1", "fault": "a disk", "outcome": "wrong", "detail": "other content"}]
    assert tally.render()[-1] == ["all", "2", "1", "0", "1", "0", "0", "0"]


def test_a_seed_belongs_to_a_folder(tmp_path, capsys):
    (tmp_path / "campaign.json").write_text(json.dumps({"seed": 3}))
    assert main(["faults", "--seed", "4", "-o", str(tmp_path)]) == 2
    assert "--seed must be that of the campaign" in capsys.readouterr().err
