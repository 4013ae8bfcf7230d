"""The limits of the paper: small runs, their tables, and the verdicts."""

import math

import pytest
import torch

from experiments import Plan, load, run
from experiments.paper import limits, theory
from experiments.paper.judges import training


@pytest.mark.slow
def test_from_the_jobs_to_the_report(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "ROWS", (500,))
    report = run(limits.EXPERIMENT, Plan(effort=0.002), tmp_path, log=lambda line: None)["limits"]
    training, circles, rows, verdicts = report.tables
    assert [row[:3] for row in training.rows] == [
        ["no", "no", "2"],
        ["no", "yes", "2"],
        ["yes", "no", "2"],
        ["yes", "yes", "2"],
    ]
    assert [row[0] for row in circles.rows] == list(limits.EXTRAPOLATED.values())
    assert [row[0] for row in rows.rows] == ["500"]
    assert 0 < float(rows.rows[0][3]) < float(rows.rows[0][1])  # one normal distribution is nearer than two steps
    assert len(verdicts.rows) == 2


def test_every_check_has_jobs_with_steps():
    jobs = load("paper", "limits").jobs(Plan())
    assert {job.settings["check"] for job in jobs} == set(limits.CHECKS)
    assert all(job.settings["steps"] > 1 for job in jobs)


def training_records(plain, both):
    def make(decay, norm, gap, seed):
        return {f"training-{decay}-{norm}-{seed}": {"check": "training", "decay": decay, "norm": norm, "gap": gap}}

    records = {}
    for seed, noise in enumerate((-0.001, 0.001)):
        records |= make(0.0, None, plain + noise, seed) | make(0.999, None, both + noise, seed)
        records |= make(0.999, 1.0, both + noise, seed)
    return records


@pytest.mark.parametrize(
    ("plain", "both", "verdict"),
    [(0.14, 0.12, "reproduced"), (0.12, 0.12, "not reproduced"), (0.1, 0.2, "not reproduced")],
)
def test_averaging_must_help_clearly(plain, both, verdict):
    assert training.judge_averaging(training_records(plain, both)).verdict == verdict


@pytest.mark.parametrize(("error", "verdict"), [(3.0, "reproduced"), (0.2, "not reproduced")])
def test_a_flow_without_error_far_out_is_simple(error, verdict):
    records = {
        model: {"check": "extrapolation", "model": model, "errors": [{"radius": 6.0, "mean": 0.0, "absolute": error}]}
        for model in limits.EXTRAPOLATED
    }
    assert training.judge_simplicity(records).verdict == verdict


def test_iterations_until_a_tolerance():
    """Halving takes log2 of 1 / tolerance steps; a map that does not settle has no number."""
    counts = theory._count_steps(lambda x: x / 2, torch.ones(3))
    assert counts == [math.ceil(math.log2(1 / tolerance)) for tolerance in theory.TOLERANCES]
    assert theory._count_steps(lambda x: x + 1, torch.ones(3)) == [None] * 3
