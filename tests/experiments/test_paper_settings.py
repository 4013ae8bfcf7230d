"""The settings of `--scale paper` against those that appendix F of the paper prints."""

import numpy as np
import pytest

import elflow
from elflow.flows import preset
from elflow.training import Recipe, image_recipe
from experiments import Plan, load
from experiments.framework.measure import count_parameters
from experiments.paper.settings import TABLES, TOYS
from experiments.systems import available, build

TOY_WIDTHS = {  # F.1: Affine Coupling, Residual Flow, ELF-AR, CP-Flow, NAF
    "eight-gaussians": {"realnvp": 256, "residual": 256, "elf": 192, "cpflow": 384, "naf": 256},
    "checkerboard": {"realnvp": 196, "residual": 196, "elf": 128, "cpflow": 256, "naf": 160},
}
TOY_FLOWS = {"eight-gaussians": 1, "checkerboard": 5}
TOY_PARAMETERS = {"eight-gaussians": 250_000, "checkerboard": 500_000}
TABLE = {  # F.2
    "optimizer": "adam",
    "learning_rate": 1e-3,
    "batch_size": 1024,
    "max_grad_norm": 1.0,
    "schedule": "plateau",
    "plateau_patience": 5,
    "plateau_threshold": 1e-3,
    "plateau_floor": 1e-4,
    "ema_decay": 0.0,
}
IMAGES = {  # F.3: hidden size of the hypernetwork, blocks, flows per scale
    "mnist": (192, 5, 4),
    "cifar10": (192, 5, 4),
    "imagenet32": (192, 5, 8),
    "imagenet64": (192, 5, 8),
    "mnist-small": (84, 3, 4),
    "cifar10-small": (80, 3, 4),
    "cifar10-vardeq-4m": (88, 3, 4),
}
IMAGE = {
    "learning_rate": 1e-3,
    "batch_size": 64,
    "max_grad_norm": 1.0,
    "warmup_steps": 100,
    "hold_steps": 100_000,
    "gamma": 0.99999,
    "min_learning_rate": 2e-4,
    "ema_decay": 0.999,
    "weight_decay": 0.0,
}


@pytest.mark.parametrize("name", TOYS)
def test_toys(name):
    jobs = {job.key: job.settings for job in load("paper", name).jobs(Plan("paper")) if job.key != "speed"}
    assert TOYS[name].widths == TOY_WIDTHS[name]
    for settings in jobs.values():
        own = settings["setting"]
        assert settings["steps"] == 10_000
        assert settings["layers"] == 4
        assert own["batch_size"] == 128
        assert own["learning_rate"] in (2e-3, 5e-3)
        assert (own["ema_decay"], own["clip"]) == (0, False)
        assert own["parameters"] == TOY_PARAMETERS[name]
    for rate in ("0.002", "0.005"):
        assert {f"elf-paper-{rate}-{number}" for number in range(3)} <= set(jobs)
        readings = {f"{system}{reading}-{rate}-0" for system in ("naf", "cpflow") for reading in ("", "-widths")}
        assert readings <= set(jobs)
    flow = jobs["elf-paper-0.002-0"]["setting"]["flow"]
    width = TOY_WIDTHS[name]["elf"]
    assert (flow["transforms"], flow["units"], flow["hidden_features"]) == (TOY_FLOWS[name], width, [width] * 4)
    assert flow["parametrization"] == "weights"


@pytest.mark.slow
@pytest.mark.parametrize("name", TOYS)
def test_what_the_printed_widths_of_toys_give(name):
    """ELF's width gives the printed number of parameters if it is that of both networks; that of CP-Flow does not."""
    found = {"elf": count_parameters(elflow.ELF(2, **TOYS[name].make_elf()))}
    for system, width in TOYS[name].widths.items():
        if system != "elf" and available(system):
            found[system] = count_parameters(build(system, 2, TOY_FLOWS[name], width=width, layers=4))
    assert found["elf"] == {"eight-gaussians": 223_686, "checkerboard": 499_870}[name]
    assert found["naf"] == {"eight-gaussians": 217_122, "checkerboard": 438_570}[name]
    assert found["cpflow"] == {"eight-gaussians": 448_906, "checkerboard": 1_004_834}[name]


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    parts = {
        part: rng.normal(size=(n, 6)).astype(np.float32) for part, n in (("train", 300), ("val", 60), ("test", 60))
    }
    np.savez(tmp_path / "power_halfyear_maf.npz", **parts)
    return tmp_path


def test_tables(data):
    jobs = [job.settings for job in load("paper", "tabular").jobs(Plan("paper", data)) if "flow" in job.settings]
    grid = {(s["flow"]["hidden_features"][0], s["recipe"]["weight_decay"], s["flow"]["units"]) for s in jobs}
    widths = {(width, decay) for width, decay, _ in grid}
    assert widths == {(6 * times, decay) for times in (8, 16, 32, 64) for decay in (1e-4, 1e-5, 1e-6)}
    assert len({units for _, _, units in grid}) > 1  # its width was searched, too
    assert len(jobs) == 3 * len(grid)
    for settings in jobs:
        assert settings["flow"]["transforms"] == 5
        assert len(settings["flow"]["hidden_features"]) == 5
        assert settings["flow"]["parametrization"] == "weights"
        assert settings["epochs"] == 1000
        recipe = Recipe(**settings["recipe"])
        assert {key: getattr(recipe, key) for key in TABLE} == TABLE
    assert {name: TABLES.make_recipe(name, 0.0)["batch_size"] for name in ("gas", "miniboone")} == {
        "gas": 1024,
        "miniboone": 128,
    }


def test_a_part_of_the_grid_of_tables(data):
    options = {"widths": "8,64", "decays": "1e-05", "units": "64", "models": "1"}
    each = load("paper", "tabular")
    jobs = [job.key for job in each.jobs(Plan("paper", data, options=options).for_experiment(each))]
    assert jobs == ["power-halfyear-gaussian", *(f"power-halfyear-elf-{width}d-64-1e-05-0" for width in (8, 64))]


@pytest.mark.slow
def test_rounds_of_tables_are_epochs(data, tmp_path):
    each, plan = load("paper", "tabular"), Plan("paper", data, effort=0.002)
    job = next(job for job in each.jobs(plan) if "8d-32" in job.key)
    record = each.work(plan, job.settings, tmp_path)
    assert record["steps"] == 2  # 300 rows in batches of 1,024: one step is an epoch
    report = each.report(plan, {"a": record, "b": record | {"test": record["test"] + 2}}, tmp_path)
    row = next(row for row in report.tables[0].rows if row[0].startswith("ELF-AR (the paper's), 8d, 32 units"))
    assert row[0].endswith("decay 0.0001, 2 models")
    assert row[5] == f"{record['test'] + 1:.3f} ± {2**0.5:.3f}"


@pytest.mark.parametrize("name", IMAGES)
def test_images(name):
    flow = preset(name, "paper").flow
    assert (flow["channels"], flow["blocks"], flow["transforms"]) == IMAGES[name]
    assert (flow["units"], flow["scales"], flow["parametrization"]) == (256, 3, "weights")
    assert flow.get("warp", "none") == ("zeros" if "mnist" in name else "none")
    assert flow.get("dequantization", "uniform") == ("variational" if "vardeq" in name else "uniform")
    noise = {"channels": flow["channels"], "blocks": flow["blocks"]} | flow["noise_sizes"]
    full = IMAGES["cifar10"] if "vardeq" in name else IMAGES[name]  # "the same dequantisation model"
    assert (noise["channels"], noise["blocks"]) == full[:2]


def test_recipe_of_images():
    recipe = image_recipe("paper")
    assert recipe.schedule == "warmup-exponential"
    assert {key: getattr(recipe, key) for key in IMAGE} == IMAGE


def test_jobs_of_images(tmp_path):
    for name, shape in (("mnist", (28, 28)), ("cifar10", (32, 32, 3))):
        np.savez(
            tmp_path / f"{name}.npz", x_train=np.zeros((2, *shape), np.uint8), x_test=np.zeros((2, *shape), np.uint8)
        )
    plan = Plan("paper", tmp_path)
    full = {job.key: job.settings for job in load("paper", "images").jobs(plan)}
    assert {full[key]["size"] for key in ("mnist-uniform", "mnist-variational", "cifar10-variational")} == {"paper"}
    assert full["mnist-uniform"]["time_limit"] == 14 * 24 * 3600
    small = {job.key: job.settings for job in load("paper", "parameter-efficiency").jobs(plan) if job.key != "counts"}
    names = "mnist-small", "cifar10-small", "cifar10-vardeq-4m"
    assert set(small) == {f"{name}-{reading}" for name in names for reading in ("counts", "widths")}
    assert small["mnist-small-counts"]["size"] == "gpu"
    assert small["mnist-small-widths"]["size"] == "paper"
    assert {settings["time_limit"] for settings in small.values()} == {24 * 3600}
