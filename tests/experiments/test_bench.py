"""Every benchmark, run on small generated data: from the jobs to the report."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

import elflow
from elflow import functional, testing
from elflow.datasets import example
from experiments import GROUPS, Plan, load, run
from experiments.bench import (
    crash,
    exactness,
    gpu,
    image_speed,
    images,
    kernels,
    larger_than_memory,
    mixed,
    quantiles,
    scale,
    tables,
    threads,
    wide,
)
from experiments.bench._gpu_kernels import find_papers_constants, sweep_kernel
from experiments.data import small_tables
from experiments.data.tables import FILES, load_table
from experiments.paper import toys as paper_toys

TINY = {"transforms": 1, "units": 4, "hidden_features": (8,)}


@pytest.fixture
def data(tmp_path):
    """Small tables, noise in the shapes of MNIST and CIFAR-10, and a model of MNIST."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    table = rng.normal(size=(300, 3)).cumsum(1)
    columns = np.array(["a", "b", "c"])
    for name in ("magic", "california", "wine"):
        np.savez(folder / FILES[name], X=table, columns=columns)
    np.savez(folder / FILES["higgs"], X=table)
    parts = {"train": table[:200], "val": table[200:250], "test": table[250:]}
    np.savez(folder / FILES["power"], columns=columns, **parts)
    np.savez(folder / FILES["stocks"], log_returns=0.01 * table, tickers=columns)
    patches = (rng.normal(0, 9, (400, 64)).cumsum(1) + 128).clip(0, 255).astype(np.uint8)
    np.savez(folder / FILES["bsds"], train=patches[:300], val=patches[300:320], test=patches[320:])
    adult = pd.DataFrame(
        {
            "age": rng.integers(17, 90, 400),
            "work": rng.choice(["private", "public", "?"], 400),
            "income": rng.choice(["<=50K", ">50K"], 400),
            "split": ["train"] * 300 + ["test"] * 100,
        }
    )
    adult.to_csv(folder / FILES["adult"], index=False)
    pixels = rng.integers(0, 256, (30, 28, 28), dtype=np.uint8)
    np.savez(folder / "mnist.npz", x_train=pixels[:24], x_test=pixels[24:])
    coloured = rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8)
    np.savez(folder / "cifar10_10k.npz", x_train=coloured[:6], x_test=coloured[6:])
    torch.manual_seed(0)
    model = elflow.ImageELF((1, 28, 28), scales=1, transforms=1, units=4, channels=4, blocks=1)
    model.initialize(torch.from_numpy(pixels)[:, None])
    elflow.save(model.eval(), folder / "mnist.elf")
    return folder


def run_bench(name, tmp_path, data=None, effort=0.001, **options):
    """The report of a benchmark, checked for what every report must have; and the records."""
    each = load("bench", name)
    plan = Plan(data=data, effort=effort, options=options)
    report = run(each, plan, tmp_path / "out", log=lambda line: None, group=GROUPS["bench"])[name]
    assert not (tmp_path / "out" / name / "error.txt").exists()
    assert not list((tmp_path / "out" / name / "jobs").glob("*/error.txt"))
    assert report.text
    for table in report.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert all(isinstance(cell, str) for row in table.rows for cell in row)
    for picture in report.pictures:
        assert (tmp_path / "out" / name / picture).read_bytes().startswith(b"\x89PNG")
    return report


def test_jobs_have_unique_keys_and_follow_from_the_plan(data):
    for name in GROUPS["bench"].members:
        each = load("bench", name)
        jobs = each.jobs(Plan(data=data))
        assert jobs
        assert len({job.key for job in jobs}) == len(jobs), name
        assert not any("/" in job.key or " " in job.key for job in jobs), name
        settings = [job.settings for job in jobs]
        assert json.loads(json.dumps(settings, allow_nan=False)), name


def test_timings_are_exclusive():
    timings = {"kernels", "flows", "digits", "crash", "race", "horizon", "scale", "image-sampling", "image-speed"}
    timings |= {"larger-than-memory", "serve", "threads", "versions"}
    assert {name for name in GROUPS["bench"].members if load("bench", name).exclusive} == timings


def test_missing_data_are_named():
    for name in ("tables", "mixed", "quantiles", "wide", "image-sampling"):
        each = load("bench", name)
        assert each.jobs(Plan()) == []
        assert all("not found: --data must be a folder with " in line for line in each.missing(Plan()))
        assert each.missing(Plan())
    with pytest.raises(FileNotFoundError, match=r"adult not found: --data must be a folder with adult\.csv\.gz"):
        load_table(Plan(), "adult", 0)


@pytest.mark.slow
def test_kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "UNITS", [4, 64, 256])
    monkeypatch.setattr(kernels, "STEPS", {"small": (16, 2, (8,))})
    monkeypatch.setattr(kernels, "N_NETWORKS", 64)
    monkeypatch.setattr(
        kernels, "ALGORITHMS", {name: (f, lambda h: 1, most) for name, (f, _, most) in kernels.ALGORITHMS.items()}
    )
    report = run_bench("kernels", tmp_path)
    assert "times as long as elflow" in report.text
    assert "peak memory" in report.text
    assert [table.title for table in report.tables] == [
        "Microseconds per Lipschitz constant",
        "Training step",
        "One thread and two",
    ]
    assert [row[0] for row in report.tables[0].rows] == ["4", "64", "256"]


@pytest.mark.slow
def test_gpu_kernels_are_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert [job.key for job in gpu.jobs(Plan())] == ["sm_80", "sm_90", "gfx942", "exactness"]
    settings = {"target": "sm_80", "units": [8], "kernels": ["elf_backward", "paper"]}
    report = gpu.report(Plan(), {"sm_80": gpu.work(Plan(), settings, tmp_path)}, tmp_path)
    assert report.text == "The kernels were compiled, not run on hardware: all times are estimates."
    assert not report.failures
    (resources,) = report.tables
    rows = {row[0]: dict(zip(resources.columns, row, strict=True)) for row in resources.rows}
    assert list(rows) == ["elf_backward", "the paper's, Lipschitz constants"]
    assert 32 <= int(rows["elf_backward"]["registers"]) <= 255
    assert rows["elf_backward"]["spills"] == "0"


def test_gpu_failures(tmp_path):
    record = {"kernels": {"elf 128": {"spilled registers": 2, "registers": 255, "warps": 1, "shared": 0}}}
    assert gpu.report(Plan(), {"sm_80": record}, tmp_path).failures == ["sm_80: elf with 128 units spills 2 registers"]
    bad = {"errors": {"float32": {"networks": 1, "constants": 1e-3, "inverse": 0.0}}}
    assert gpu.report(Plan(), {"exactness": bad}, tmp_path).failures == ["float32: error 1.0e-03"]


@pytest.mark.slow
def test_gpu_exactness(triton_device, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "PROMISED", {"float32": gpu.PROMISED["float32"]})
    errors = gpu.find_largest_errors(30, [2], 0, triton_device)
    report = gpu.report(Plan(), {"exactness": {"errors": errors}}, tmp_path)
    assert not report.failures
    assert [row[:2] for row in report.tables[0].rows] == [["float32", "33"]]


@pytest.mark.slow
def test_measurements_on_a_gpu(triton_device, tmp_path, monkeypatch):
    """The code that measures, with one call of each function; in the interpreter the times mean nothing."""
    monkeypatch.setattr(gpu, "median_times", lambda functions, _: {n: f() or 1.0 for n, f in functions.items()})
    monkeypatch.setattr(gpu, "HYPERNETWORK", (2, 2, (4,)))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    record = gpu.measure(6, [2], 0.0, triton_device)
    assert set(record["times"]["2"]) == {*gpu.TIMED, "hypernetwork", "training step"}
    (table,) = gpu.report(Plan(), {"measured-6": record}, tmp_path).tables
    assert len(table.rows[0]) == len(table.columns)


@pytest.mark.slow
def test_compared_kernels_are_right(triton_device):
    generator = torch.Generator().manual_seed(0)
    for units in (3, 4):
        made = testing.make_networks("ordinary", 5, units, torch.float32, generator)
        w1, b1, w2 = (w.to(triton_device) for w in made)
        expected = functional.lipschitz(w1, b1, w2)
        torch.testing.assert_close(find_papers_constants(w1, b1, w2), expected, rtol=1e-4, atol=1e-5)
        found = torch.empty_like(expected)
        sweep_kernel[(5,)](w1, b1, w2, found, units, 4)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_exactness(tmp_path, monkeypatch):
    monkeypatch.setattr(exactness, "SHARES", {1: 0.5, 8: 0.5})
    report = run_bench("exactness", tmp_path)
    assert report.text.startswith("No error is larger than promised")
    assert not report.failures
    monkeypatch.setitem(exactness.PROMISED, "float32", {"lipschitz": 0.0, "dense search": 1.0, "inverse": 1.0})
    record = {"instruction_set": "avx2", "dtype": "float32", "kind": "ordinary", "networks": 1}
    records = {"bad": record | {"errors": {"lipschitz": 1e-3, "dense search": 0.0, "inverse": 0.0}}}
    report = load("bench", "exactness").report(Plan(), records, tmp_path)
    assert report.failures == ["avx2 float32 ordinary: lipschitz has an error of 1.0e-03, promised is 0e+00"]


@pytest.mark.slow
def test_versions(tmp_path):
    report = run_bench("versions", tmp_path, effort=0.02)
    (table,) = report.tables
    assert "training step of ELF" in [row[0] for row in table.rows]
    ratios = {"elf": [1.0, 1.01, 1.02], "slow": [1.0, 1.5, 1.6]}
    records = {"operations": {"ratios": ratios, "microseconds": dict.fromkeys(ratios, 10.0)}}
    failures = load("bench", "versions").report(Plan(), records, tmp_path).failures
    assert failures == ["slow: takes 1.500 times as long as the other version"]


@pytest.fixture
def small_toys(monkeypatch):
    for name, setting in paper_toys.SETTINGS.items():
        monkeypatch.setitem(paper_toys.SETTINGS, name, type(setting)(TINY, parameters=500))


@pytest.mark.slow
def test_flows(tmp_path, small_toys, monkeypatch):
    monkeypatch.setattr(
        "experiments.bench.flows.NSF", {name: {"hidden_features": (8,)} for name in paper_toys.SETTINGS}
    )
    report = run_bench("flows", tmp_path)
    assert [table.title for table in report.tables] == list(paper_toys.SETTINGS)
    for table in report.tables:
        for _, ours, theirs, ratio in table.rows:
            assert float(theirs) / float(ours) == pytest.approx(float(ratio), abs=0.2, rel=0.1)


def test_digits(tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.bench.digits.FLOW", TINY | {"hidden_features": [8]})
    monkeypatch.setattr("experiments.bench.digits.N_SAMPLES", 20)
    monkeypatch.setattr("experiments.bench.digits.N_SLOW_SAMPLES", 2)
    report = run_bench("digits", tmp_path)
    assert len(report.tables[0].rows) == 5
    assert "times as fast as one coordinate after the other" in report.text


def test_toys(tmp_path, small_toys):
    report = run_bench("toys", tmp_path, effort=0.0005)
    (table,) = report.tables
    assert [(row[0], row[2], row[3]) for row in table.rows] == [
        ("eight-gaussians", "5", "3"),
        ("checkerboard", "5", "3"),
        ("tight-modes", "5", "10"),
    ]
    assert all(float(row[4].split()[0]) > 0 for row in table.rows)


@pytest.mark.slow
def test_tables(tmp_path, data):
    options = {"sets": "magic,power", "seeds": "2", "time_limit": "0.2"}
    report = run_bench("tables", tmp_path, data, **options)
    likelihoods, costs, differences = report.tables
    assert [row[0] for row in likelihoods.rows] == ["magic", "power"]
    assert list(likelihoods.columns)[1:-1] == list(tables.MODELS.values())
    assert all(row[-1] == "2" and all(row) for row in likelihoods.rows)
    assert len(costs.rows) == 2
    assert len(differences.rows) == 2 * 4
    assert report.text.startswith("ELF is best on")


def test_floor(tmp_path, data):
    sets = "factor-0.1,categories,iris,wine"
    report = run_bench("floor", tmp_path, data, sets=sets, models="elf,nsf,gaussian,kde")
    (table,) = report.tables
    assert [row[0] for row in table.rows] == sets.split(",")
    assert table.rows[0][-2] != ""  # the truth is known
    assert table.rows[2][-2] == ""
    assert all(row[-1].endswith("%") for row in table.rows)
    assert "of 4 tables" in report.text
    assert list(report.pictures) == ["gaps.png"]
    assert len(load("bench", "floor").jobs(Plan())) == len(small_tables.SMALL_TABLES) * 6 >= 24 * 6


@pytest.mark.parametrize("name", small_tables.SMALL_TABLES)
def test_small_tables(name):
    table = small_tables.make_table(name, seed=0, effort=0.02)
    again = small_tables.make_table(name, seed=0, effort=0.02)
    pd.testing.assert_frame_equal(table.training, again.training)
    assert list(table.training.columns) == list(table.test.columns)
    assert len(table.training) >= 40
    if table.truth is not None:
        assert table.truth.shape == (len(table.test),)
        assert np.isfinite(table.truth).all()


def test_race(tmp_path):
    report = run_bench("race", tmp_path, sets="ring,categories", seeds="1")
    (table,) = report.tables
    assert [row[0] for row in table.rows] == ["ring", "categories"]
    assert "of 2 tables" in report.text


def test_horizon(tmp_path):
    report = run_bench("horizon", tmp_path, sets="time-series")
    (table,) = report.tables
    assert [row[:2] for row in table.rows] == [["time-series", "60 x 8"]]
    assert "of 1 tables" in report.text


def test_simulators(tmp_path):
    report = run_bench("simulators", tmp_path, seeds="2")
    (table,) = report.tables
    assert [row[0] for row in table.rows] == ["two-moons", "slcp", "gaussian-mixture", "gaussian-linear"]
    assert "Of 4 simulators" in report.text


def test_some_models_of_tables(tmp_path, data):
    report = run_bench("tables", tmp_path, data, sets="wine", seeds="1", models="elf,kde", time_limit="0.2")
    assert len(load("bench", "tables").jobs(Plan(data=data))) == 7 * 3 * 5
    assert report.tables[0].columns == ["table", "ELF", "kernel density", "seeds"]
    with pytest.raises(ValueError, match="option models of tables: must be some of elf, nsf, maf, gmm, kde"):
        run_bench("tables", tmp_path / "b", data, models="elf,knn")
    with pytest.raises(ValueError, match="option time_limit of tables: must be a number of seconds, got 'soon'"):
        run_bench("tables", tmp_path / "b", data, time_limit="soon")


@pytest.mark.slow
def test_mixed(tmp_path, data):
    report = run_bench("mixed", tmp_path, data, effort=0.005, time_limit="0.5")
    assert [row[0] for row in report.tables[0].rows] == ["age", "work", "income"]
    assert "AUC" in report.text
    assert not report.failures


def test_differences_of_samples():
    real = pd.DataFrame({"n": [1, 2, 3], "c": pd.Categorical(["a", "b", None])})
    assert mixed._find_differences(real, real) == {}
    wrong = pd.DataFrame({"n": [1.0, 9.0, None], "c": pd.Categorical(["a", "x", None])})
    assert mixed._find_differences(wrong, real) == {
        "dtypes": ["n", "c"],
        "categories": ["c"],
        "out of range": {"n": 1},
        "unseen categories": {"c": 1},
        "missing values": ["n"],
    }
    assert mixed._measure_total_variation(pd.Series([1, 1, 2]), pd.Series([1, 2, 2])) == pytest.approx(1 / 3)


@pytest.mark.slow
def test_quantiles(tmp_path, data):
    report = run_bench("quantiles", tmp_path, data, time_limit="0.3", weight_decay="0.1")
    assert [row[0] for row in report.tables[0].rows] == [
        "random, seed 0",
        "random, seed 1",
        "random, seed 2",
        "last fifth, seed 0",
    ]
    assert not report.failures  # quantiles and distribution function agree
    levels = {"0.5": {"coverage": 0.9, "error": 0.1, "z": 4.0}}
    record = {"test_rows": "random", "seed": 0, "levels": levels, "rows": 100, "agreement": 0.99}
    report = quantiles.report(Plan(), {"random-0": record}, tmp_path)
    assert "is not within 3 standard errors" in report.text
    assert report.failures == ["random-0: quantiles and distribution function agree for 99.00% only"]


@pytest.mark.slow
def test_crash(tmp_path, monkeypatch):
    monkeypatch.setattr(crash, "STEPS", 20_000)
    report = run_bench("crash", tmp_path)
    assert not report.failures
    assert report.text.startswith("After 1 kills of ")
    assert "equal bit for bit" in report.text


@pytest.mark.slow
def test_scale(tmp_path, monkeypatch):
    monkeypatch.setattr(scale, "GROUP_ROWS", 400)
    monkeypatch.setattr(scale, "N_COMPARED_ROWS", {"floats": 8, "mixed": 8})
    monkeypatch.setattr(scale, "time_calls", partial(scale.time_calls, least=2))
    monkeypatch.setattr(scale, "N_ROWS", {"mixed": 9_000_000})
    report = run_bench("scale", tmp_path, effort=0.0001)
    assert [row[:2] for row in report.tables[0].rows] == [["eight columns of every kind", "900"]]
    (path,) = (tmp_path / "out" / "scale" / "jobs").glob("*/record.json")
    record = json.loads(path.read_text())["record"]
    assert record["largest_difference"] == 0
    assert record["kernel_difference"] < 1e-9
    assert record["scored_rows"] == 900
    poor = scale.report(Plan(), {"mixed": record | {"scored_rows": 8, "peak_gib": 2.0}}, tmp_path)
    assert len(poor.failures) == 2


@pytest.mark.slow
def test_larger_than_memory(tmp_path, monkeypatch):
    assert [job.settings["rows"] for job in larger_than_memory.jobs(Plan(options={"rows": 7000}))] == [7000]
    monkeypatch.setattr(larger_than_memory, "FILE_ROWS", 300)
    record = larger_than_memory.EXPERIMENT.work(Plan(), {"seed": 0, "threads": 1, "steps": 2, "rows": 1000}, tmp_path)
    assert record["n_rows_fitted"] == 1000
    assert 0.1 < record["beyond_cache_gib"] <= record["peak_gib"] < 1.5
    large = record | {"rows": 10**6, "encoded_bytes": 10**8, "preparation_cpu_seconds": 1.0}
    larger = large | {"rows": 2 * 10**6, "beyond_cache_gib": 1.6, "preparation_cpu_seconds": 4.0}
    report = larger_than_memory.report(Plan(), {"a": record, "b": large, "c": larger}, tmp_path)
    assert "Reading and encoding takes 3.0 microseconds of CPU time per row" in report.text
    assert [row[0] for row in report.tables[0].rows] == ["1,000", "1,000,000", "2,000,000"]
    assert len(report.failures) == 3  # rows that were not fitted, twice, and memory


def test_wide(tmp_path, data, monkeypatch):
    monkeypatch.setattr(wide, "TEST_STRIDE", 1)
    monkeypatch.setattr(
        wide, "MODELS", {"full-8": {"hidden_features": [8]}, "rank-2-8": {"hidden_features": [8], "rank": 2}}
    )
    report = run_bench("wide", tmp_path, data, effort=0.003)
    assert {row[0] for row in report.tables[0].rows} == {"ELF, full, hidden 8", "ELF, rank 2, hidden 8"}
    assert list(report.pictures) == ["wide.png"]


@pytest.mark.slow
def test_images(tmp_path, data):
    options = {"datasets": "digits", "models": "uniform,attention,glow", "max_steps": "2"}
    report = run_bench("images", tmp_path, data, **options)
    (table,) = report.tables
    assert {row[0] for row in table.rows} == {"ELF", "ELF, attention", "Glow of normflows", "histogram of each pixel"}
    assert {row[3] for row in table.rows} == {"2", ""}
    models = ("uniform", "attention", "glow")
    assert set(report.pictures) == {"digits-curves.png", *(f"digits-{model}.png" for model in models)}


@pytest.mark.slow
def test_images_in_colour(tmp_path, data, monkeypatch):
    monkeypatch.setattr(images, "N_SAMPLES", 2)
    options = {"datasets": "cifar10", "models": "uniform,glow", "max_steps": "1", "sizes": "transforms=1,channels=12"}
    (table,) = run_bench("images", tmp_path, data, **options).tables
    sizes = {row[0]: row[4] for row in table.rows}
    assert sizes == {"ELF": "16", "Glow of normflows": "32", "histogram of each pixel": ""}


def test_limits_of_images(data):
    def limits(**options):
        plan = Plan(data=data, effort=0.5, options=options).for_experiment(images.EXPERIMENT)
        return {job.key: job.settings.get("limits") for job in images.EXPERIMENT.jobs(plan)}

    by_default = limits()
    assert by_default["digits-uniform"] == {"steps": None, "time_limit": 60.0}
    assert by_default["mnist-uniform"]["time_limit"] == by_default["cifar10-glow"]["time_limit"] == 1800.0
    assert limits(max_steps="5")["digits-uniform"] == {"steps": 5, "time_limit": None}
    assert limits(max_steps="133", models="attention")["digits-attention"]["steps"] == 100
    assert limits(time_limit="90")["digits-glow"] == {"steps": None, "time_limit": 90.0}
    assert "digits-variational" in limits(models="variational")


def test_optimizer_and_sizes_of_images_are_those_of_elf_only():
    options = {"datasets": "digits", "optimizer": "muon", "learning_rate": "0.015", "sizes": "channels=24,blocks=3"}
    plan = Plan(options=options).for_experiment(images.EXPERIMENT)
    settings = {job.key: job.settings for job in images.EXPERIMENT.jobs(plan)}
    assert settings["digits-uniform"]["recipe"] == {"optimizer": "muon", "learning_rate": 0.015}
    assert settings["digits-uniform"]["sizes"] == {"channels": 24, "blocks": 3}
    assert settings["digits-glow"]["sizes"] == images.GLOW_SIZES["digits"]
    assert settings["digits-glow"]["recipe"] == images.GLOW_RECIPES["digits"]
    for name, wrong in [("optimizer", "sgd"), ("sizes", "depth=3"), ("sizes", "blocks=0"), ("learning_rate", "-1")]:
        with pytest.raises(ValueError, match=f"option {name} of images"):
            Plan(options={name: wrong}).for_experiment(images.EXPERIMENT)


@pytest.mark.slow
def test_image_sampling(tmp_path, data):
    report = run_bench("image-sampling", tmp_path, data, effort=0.05)
    assert [row[:2] for row in report.tables[0].rows] == [
        ["ELF, exact sweeps", "1"],
        ["ELF, fixed point (the paper's)", "1"],
        ["ELF, one coordinate after the other", "1"],
        ["ELF, exact sweeps", "3"],
    ]
    named = Plan(options={"model": str(data / "mnist.elf")}).for_experiment(load("bench", "image-sampling"))
    assert load("bench", "image-sampling").jobs(named)
    assert load("bench", "image-sampling").missing(named) == []
    with pytest.raises(ValueError, match="option model of image-sampling: must be the file of a model"):
        Plan(options={"model": "nowhere.elf"}).for_experiment(load("bench", "image-sampling"))


def test_image_speed(tmp_path, monkeypatch):
    monkeypatch.setattr(
        image_speed, "SIZES", {"one": {"shape": [1, 4, 4], "transforms": 1, "channels": 4, "blocks": 1}}
    )
    monkeypatch.setattr(image_speed, "UNITS", 4)
    report = run_bench("image-speed", tmp_path)
    assert report.tables[0].rows[0][0] == "ELF, one"


def test_threads(tmp_path, monkeypatch):
    tiny = {"features": 2, "transforms": 1, "width": 4, "units": 2, "batch_size": 8}
    monkeypatch.setattr(threads, "SIZES", {"tiny": tiny})
    before = torch.get_num_threads()
    report = run_bench("threads", tmp_path)
    assert [row[0] for row in report.tables[0].rows] == ["tiny", "tiny"]
    assert torch.get_num_threads() == before


@pytest.mark.slow
def test_serve(tmp_path):
    """A short siege: a killed worker is replaced, and every good request has the answer of Python."""
    table = example.cells()
    density = elflow.FlowDensity(flow_options=TINY, members=["cholesky", "gaussian"], max_steps=2, random_state=0)
    density.fit(table).save(tmp_path / "cells.elf")
    report = run_bench("serve", tmp_path, model=str(tmp_path / "cells.elf"), seconds="0.1", siege="3")
    load_table, siege_table = report.tables
    assert [row[-1] for row in load_table.rows] == ["0"] * 6
    outcomes = {row[0]: int(row[1].replace(",", "")) for row in siege_table.rows}
    assert outcomes["good: right"] > 0
    assert set(outcomes) <= {"good: right", "good: lost", "bad: refused", "hostile: refused"}
    assert not [failure for failure in report.failures if "goal" not in failure and "memory" not in failure]
