"""The tabular experiment, on small files in the formats of the real ones."""

import json

import numpy as np
import pytest
import torch

from experiments import Plan, load, run
from experiments.paper import tabular


@pytest.fixture
def data(tmp_path):
    """Patches of random walks, and correlated columns."""
    rng = np.random.default_rng(0)
    sizes = {"train": 600, "val": 200, "test": 300}
    walks = {part: rng.normal(0, 9, (n, 64)).cumsum(1) + 128 for part, n in sizes.items()}
    patches = {part: walk.clip(0, 255).astype(np.uint8) for part, walk in walks.items()}
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "bsds300_patches_u8.npz", **patches)
    power = {part: rng.normal(size=(n, 6)).cumsum(1).astype(np.float32) for part, n in sizes.items()}
    np.savez(folder / "power_halfyear_maf.npz", **power)
    return folder


@pytest.mark.slow
def test_available_sets_are_fitted_and_the_others_named(data, tmp_path):
    lines = []
    report = run(tabular.EXPERIMENT, Plan(data=data, effort=0.006), tmp_path / "out", log=lines.append)["tabular"]
    patches, power, times, claims = report.tables
    assert claims.columns[-1] == "verdict"
    assert patches.title == "bsds300-patches"
    models = [row[0] for row in patches.rows]
    assert {"ELF-AR", "NSF", "MAF", "Gaussian"} <= set(models)
    here = [row for row in patches.rows if row[-1] == "measured here"]
    assert len(here) == 4
    published = [row for row in patches.rows if row[-1].startswith("*published*")]
    assert ("ELF-AR", "157.81 ± 0.09") in {(row[0], row[5]) for row in published}
    assert not any(row[-1].startswith("*published*") for row in power.rows)
    likelihoods = [float(row[5].split()[0]) for row in patches.rows]
    assert likelihoods == sorted(likelihoods, reverse=True)
    assert len(times.rows) == 6
    for picture in report.pictures:
        assert (tmp_path / "out" / "tabular" / picture).read_bytes().startswith(b"\x89PNG")
    missing = [line for line in lines if "gas" in line]
    assert missing == ["tabular: gas not found: --data must be a folder with gas/ethylene_CO.pickle"]


@pytest.mark.slow
def test_other_data_are_fitted_anew(data, tmp_path):
    def resume():
        lines = []
        run(tabular.EXPERIMENT, Plan(data=data, effort=0.002), tmp_path / "out", log=lines.append)
        return next((line for line in lines if "already done" in line), None)

    (data / "bsds300_patches_u8.npz").unlink()
    assert resume() is None
    assert resume() == "4 of 4 jobs were already done"
    with np.load(data / "power_halfyear_maf.npz") as file:
        other = {part: file[part] * 2 for part in file}
    np.savez(data / "power_halfyear_maf.npz", **other)
    assert resume() is None


def test_a_constant_column_is_named(data, tmp_path):
    with np.load(data / "power_halfyear_maf.npz") as file:
        other = {part: file[part] * [1, 1, 0, 1, 1, 1] for part in file}
    np.savez(data / "power_halfyear_maf.npz", **{part: x.astype(np.float32) for part, x in other.items()})
    with pytest.raises(ValueError, match=r"power-halfyear must have columns that vary.*constant columns \[2\]"):
        tabular.work(Plan(data=data), {"set": "power-halfyear", "model": "gaussian", "seed": 0}, tmp_path)


def test_without_data_there_is_nothing_to_do(tmp_path):
    assert load("paper", "tabular").jobs(Plan()) == []
    assert len(load("paper", "tabular").missing(Plan())) == 7
    assert run(tabular.EXPERIMENT, Plan(), tmp_path, log=lambda line: None) == {}


def test_a_gaussian_is_scored_in_the_units_of_the_data(data, tmp_path):
    record = tabular.work(Plan(data=data), {"set": "power-halfyear", "model": "gaussian", "seed": 0}, tmp_path)
    with np.load(data / "power_halfyear_maf.npz") as file:
        train, test = (torch.from_numpy(file[part]).double() for part in ("train", "test"))
    expected = torch.distributions.MultivariateNormal(train.mean(0), train.T.cov()).log_prob(test)
    assert record["test"] == pytest.approx(float(expected.mean()), abs=1e-5)
    assert record["error"] == pytest.approx(float(expected.std()) / 300**0.5, rel=1e-4)


def test_the_same_seed_gives_the_same_table(data, tmp_path):
    jobs = {job.key: job for job in load("paper", "tabular").jobs(Plan(data=data, effort=0.006))}
    settings = jobs["power-halfyear-elf"].settings
    found = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        found.append(tabular.work(Plan(data=data), settings, tmp_path / name))
    assert found[0]["test"] == found[1]["test"]


def test_a_run_resumes_from_its_checkpoint(data, tmp_path, monkeypatch):
    """A finished training whose record was lost is not repeated."""
    plan = Plan(data=data, effort=0.006)
    settings = next(job for job in load("paper", "tabular").jobs(plan) if job.key == "power-halfyear-elf").settings
    first = tabular.work(plan, settings, tmp_path)

    def refuse(*_):
        raise AssertionError("a step was taken")

    monkeypatch.setattr(torch.optim.AdamW, "step", refuse)
    assert tabular.work(plan, settings, tmp_path)["test"] == first["test"]


@pytest.mark.paper
def test_the_grid_of_the_paper(data):
    jobs = [job for job in load("paper", "tabular").jobs(Plan("paper", data)) if "power" in job.key]
    grid = {(job.settings["flow"]["hidden_features"][0], job.settings["recipe"]["weight_decay"]) for job in jobs[1:]}
    assert grid == {(6 * times, decay) for times in (8, 16, 32, 64) for decay in (1e-4, 1e-5, 1e-6)}
    assert all(json.loads(json.dumps(job.settings)) == job.settings for job in jobs)
