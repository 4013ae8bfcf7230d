"""The ablation: equal parameters and steps, and the report."""

import pytest
import torch

from elflow.datasets import toy
from experiments import Plan, load, run
from experiments.framework.measure import count_parameters
from experiments.paper import ablation
from experiments.paper.judges import training

FEATURES = {"power-halfyear": 6, "magic": 10, "digits": 64}


@pytest.mark.slow
@pytest.mark.parametrize("name", ablation.TASKS)
def test_models_of_a_task_have_equal_sizes(name):
    task, features = ablation.TASKS[name], FEATURES.get(name, 2)
    sizes = {model: count_parameters(task.make_flow(features, model)) for model in ablation.MODELS}
    assert max(sizes.values()) <= 1.04 * min(sizes.values())
    assert abs(sizes["weights"] - sizes["bumps"]) <= 2 * features * task.transforms + 2
    jobs = [job.settings for job in load("paper", "ablation").jobs(Plan()) if job.settings["task"] == name]
    assert len({settings["steps"] for settings in jobs}) <= 1
    assert len(jobs) == (0 if task.table else 9)  # three models with three seeds each


def test_modes_of_the_truth_are_found():
    for noise in (0.1, 0.5):
        distribution = toy.EightGaussians(noise)
        x = distribution.sample((8_000,))
        assert ablation._count_modes(x, distribution) == 8
        few = x[x[:, 0] > 0.5]  # three of the modes, and nothing elsewhere
        assert ablation._count_modes(few, distribution) == 3
    assert ablation._count_modes(torch.zeros(100, 2), distribution) == 0


@pytest.mark.slow
def test_from_the_jobs_to_the_report(tmp_path, monkeypatch):
    tasks = {name: ablation.TASKS[name] for name in ("tight-modes", "digits")}
    monkeypatch.setattr(ablation, "TASKS", tasks)
    report = run(ablation.EXPERIMENT, Plan(effort=0.001), tmp_path, log=lambda line: None)["ablation"]
    table, verdicts = report.tables
    assert [row[1] for row in table.rows] == 2 * list(ablation.TITLES.values())
    assert all(row[5].startswith("gap") == (row[0] == "Tight modes") for row in table.rows)
    assert all(bool(row[6]) == (row[0] == "Tight modes") for row in table.rows)
    assert "Tight modes: bumps are " in report.text
    assert len(verdicts.rows) == 1


def test_tables_that_are_missing_are_named():
    lines = load("paper", "ablation").missing(Plan())
    assert [line.split()[0] for line in lines] == ["power", "magic"]


@pytest.mark.parametrize(("n_seeds", "expected"), [(1, "no verdict"), (2, "bumps are better than weights")])
def test_one_seed_gives_no_verdict(n_seeds, expected, tmp_path):
    """The spread between seeds is not known then."""
    gaps = {"weights": 0.5, "bumps": 0.1}
    records = {
        f"tight-modes-{model}-{seed}": {"task": "tight-modes", "model": model, "gap": gap + 0.001 * seed, "error": 0.01}
        | {"parameters": 1, "steps": 1, "training": 1.0, "modes": 8}
        for model, gap in gaps.items()
        for seed in range(n_seeds)
    }
    report = ablation.report(Plan(), records, tmp_path)
    assert expected in report.text
    verdict = training.judge_minima(records).verdict
    assert verdict == ("reproduced" if n_seeds > 1 else "not comparable: one seed, modes of width 0.1")
