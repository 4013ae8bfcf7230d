"""The benchmarks beside sbi and PyOD, run on small data: from the jobs to the report."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments import GROUPS, Plan, load, run
from experiments.bench import anomalies
from experiments.data.anomalies import ANOMALY_TABLES, find_file, make_anomalies
from experiments.data.tables import FILES


def run_bench(name, tmp_path, **options):
    plan = Plan(effort=0.01, options=options)
    report = run(load("bench", name), plan, tmp_path, log=lambda line: None, group=GROUPS["bench"])[name]
    assert not list((tmp_path / name / "jobs").glob("*/error.txt"))
    return report


@pytest.mark.slow
def test_sbi(tmp_path):
    report = run_bench("sbi", tmp_path, sets="gaussian-linear", models="elf,maf", simulations="1000", seeds="1")
    test, sizes = report.tables
    assert [row[:2] for row in test.rows] == [["gaussian-linear", "1,000"]]
    # One epoch each: ELF starts from the linear regression, which is the posterior; MAF from the prior.
    elf, maf = (float(cell.split(" ± ")[0]) for cell in test.rows[0][2:])
    assert elf < maf
    assert len(sizes.rows) == 1


@pytest.mark.slow
def test_anomalies(tmp_path):
    report = run_bench("anomalies", tmp_path, sets="ring", systems="elflow,knn", seeds="1")
    assert len(report.tables) == 4
    assert all([row[0] for row in table.rows] == ["ring", "mean"] for table in report.tables)
    novelty = dict(zip(report.tables[2].columns, report.tables[2].rows[0], strict=True))
    assert float(novelty["KNN"]) > 0.55
    assert 0 < float(novelty["its density alone"]) < 1


def test_protocols(tmp_path, monkeypatch):
    """Anomalies are among the fitted rows of one protocol, and not of the other."""
    seen = {}

    def keep(settings, fitted, scored):
        seen[settings["protocol"]] = fitted, scored
        return {"": np.arange(len(scored))}

    monkeypatch.setattr(anomalies, "_score", keep)
    for job in anomalies.jobs(Plan(effort=0.1, options={"sets": ["ring"], "systems": ["knn"], "seeds": 1})):
        record = anomalies.work(Plan(), job.settings, tmp_path)
        fitted, scored = seen[job.settings["protocol"]]
        is_common = scored.merge(fitted, how="left", indicator=True)["_merge"].eq("both")
        assert record["rows"] == len(fitted)
        assert is_common.all() if job.settings["protocol"] == "unsupervised" else not is_common.any()
        assert record["auc"] == 1.0  # the anomalies are the last rows
        if job.settings["protocol"] == "unsupervised":
            assert record["anomalies"] / len(fitted) == pytest.approx(anomalies.CONTAMINATION, abs=0.01)


@pytest.mark.parametrize("name", [name for name in ANOMALY_TABLES if find_file(name) is None])
def test_tables_with_anomalies(name):
    table = make_anomalies(Plan(), name, seed=0, effort=0.05)
    assert list(table.ordinary) == list(table.anomalies)
    assert (table.ordinary.dtypes == table.anomalies.dtypes).all()
    assert len(table.ordinary) >= 60
    assert len(table.anomalies) >= 20


def test_tables_of_a_data_folder(tmp_path):
    rng = np.random.default_rng(0)
    columns, labels = np.array(["a", "b"]), np.repeat([0, 1], 100)
    np.savez(tmp_path / FILES["magic"], X=rng.normal(size=(200, 2)), y=labels, columns=columns)
    np.savez(tmp_path / FILES["wine"], X=labels[:, None] + np.zeros((200, 2)), is_white=labels, columns=columns)
    adult = pd.DataFrame({"age": rng.integers(17, 90, 300), "work": rng.choice(["private", "public", "?"], 300)})
    adult.assign(split=["train"] * 200 + ["test"] * 100).to_csv(tmp_path / FILES["adult"], index=False)
    plan = Plan(data=tmp_path)
    assert not anomalies.missing(plan)
    assert len(anomalies.missing(Plan())) == 3
    wine = make_anomalies(plan, "wine-red", seed=0)
    assert (wine.ordinary == 1).all().all()
    assert (wine.anomalies == 0).all().all()
    assert len(make_anomalies(plan, "magic", seed=0).anomalies) == 100
    odd = make_anomalies(plan, "adult-swapped", seed=0).anomalies
    assert odd["work"].isin(["private", "public"]).all()
