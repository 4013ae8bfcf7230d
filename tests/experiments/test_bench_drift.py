"""The benchmark of drift, on few small tables."""

import numpy as np
import pytest

from experiments import Plan
from experiments.bench import drift


def test_changes_change_one_thing():
    def draw(change, size):
        return drift.make_table(20_000, np.random.default_rng(0), change, size)

    assert draw("mean", 0.3)["a"].mean() == pytest.approx(0.3, abs=0.03)
    assert draw("scale", 0.3)["a"].std() == pytest.approx(1.3, abs=0.03)
    assert draw("correlation", 0.2)[["a", "b"]].corr().iloc[0, 1] == pytest.approx(0.4, abs=0.03)
    assert (draw("share", 0.12)["kind"] == "y").mean() == pytest.approx(0.42, abs=0.02)
    assert draw("missing", 0.06)["size"].isna().mean() == pytest.approx(0.11, abs=0.01)


@pytest.mark.slow
def test_level_and_power(tmp_path, monkeypatch):
    monkeypatch.setattr(drift, "N_REFERENCES", 1)
    monkeypatch.setattr(drift, "CHANGES", {"mean": (0.1, 0.2, 0.5, 1.0)})
    monkeypatch.setattr(drift, "MODEL_ROWS", (100,))
    monkeypatch.setattr(drift, "POWER_ROWS", 600)
    rng = np.random.default_rng(0)
    level = drift.measure_level({"fits": 1}, rng)
    assert level["held_out"] == 120
    power = drift.measure_power({"seed": 0, "repeats": 1}, rng)
    assert power["alarms"]["mean"]["1"] == power["named"]["mean"]["1"] == 1
    report = drift.report(Plan(), {"level": level, "power": power}, tmp_path)
    assert [table.title for table in report.tables] == ["Level", "Power", "False alarms by the reference"]
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    assert (tmp_path / "drift-power.png").exists()
