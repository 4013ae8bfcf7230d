"""The image experiments: from jobs and records to tables and pictures, with complete and partial data sets."""

import json

import numpy as np
import pytest
import torch

import elflow
from elflow.flows import preset
from elflow.training import Training, image_recipe
from experiments import Plan, load
from experiments.data import images as data
from experiments.paper.image_fit import score_histogram, score_images, shorten_recipe, train_images
from experiments.paper.parameter_efficiency import SMALL
from experiments.paper.published import IMAGES

HASTE = Plan(effort=0.002)
TINY = {"transforms": 1, "units": 4, "channels": 4, "blocks": 1}
PNG = b"\x89PNG"


def images(count, *shape):
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path):
    """Few random images in the shapes of MNIST and of CIFAR-10."""
    found = tmp_path / "data"
    found.mkdir()
    np.savez(found / "mnist.npz", x_train=images(24, 28, 28), x_test=images(6, 28, 28))
    np.savez(found / "cifar10_10k.npz", x_train=images(24, 32, 32, 3), x_test=images(6, 32, 32, 3))
    return found


def small(settings):
    """Settings of a job with as little to do as can be, and a model that is not the preset's."""
    sizes = (
        {"scales": 1, "steps": 1, "hidden_channels": 4} if settings.get("system") == "glow" else TINY | {"scales": 1}
    )
    less = {"n_test": 40, "n_validation": 20, "n_samples": 4, "n_per_class": 2, "few": 2, "many": 3}
    less |= {"changes": settings.get("changes", {}) | sizes} if "changes" in settings else {}
    less |= {"flow": {"transforms": 2, "units": 4, "hidden_features": [16]}} if "flow" in settings else {}
    return settings | {key: value for key, value in less.items() if key in settings}


def done(name, plan, output, keys=None):
    """The records of an experiment's jobs, each in its folder as the runner has it, and what follows from them."""
    each, records = load("paper", name), {}
    for job in each.jobs(plan):
        if keys is None or job.key in keys:
            own = output / name / "jobs" / job.key
            own.mkdir(parents=True, exist_ok=True)
            record = each.work(plan, small(job.settings), own)
            stamp = {"scale": plan.scale, "seed": plan.seed, "effort": plan.effort}
            (own / "record.json").write_text(json.dumps({"settings": stamp, "record": record}, allow_nan=False))
            records[job.key] = record
    return records, each.report(plan, records, output / name)


def check_files(report, folder):
    for name in report.pictures:
        assert (folder / name).read_bytes().startswith(PNG), name
    for table in report.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) and all(isinstance(c, str) for c in row) for row in table.rows)


# --- data -------------------------------------------------------------------------------------------------------------


def test_missing_data_sets_are_named_with_their_files(folder):
    lines = "\n".join(load("paper", "images").missing(Plan()))
    assert "MNIST not found: --data must be a folder with mnist.npz" in lines
    assert "CIFAR-10 not found" in lines
    paper = "\n".join(load("paper", "images").missing(Plan(scale="paper", data=folder)))
    assert "MNIST" not in paper
    assert "cifar-10-batches-py" in paper  # a part is not enough at the scale of the paper
    assert "imagenet32.npz" in paper
    assert "imagenet64.npz" in paper
    assert "mnist.elf" in "\n".join(load("paper", "sampling").missing(Plan()))
    assert not load("paper", "sampling").missing(Plan(data=folder))


def test_complete_data_are_preferred_to_a_part_of_them(folder):
    plan = Plan(data=folder)
    assert data.find_images(plan, "cifar10") == "cifar10_10k.npz"
    (folder / "cifar10.npz").write_bytes(b"")
    assert data.find_images(plan, "cifar10") == "cifar10.npz"
    assert data.find_images(plan, "imagenet32") is None
    assert data.is_complete("mnist", 60_000, 10_000)
    assert not data.is_complete("cifar10", 10_000, 2_000)


def test_idx_files_of_mnist_may_lie_in_the_folder_itself(tmp_path):
    for part, count in (("train", 3), ("t10k", 2)):
        header = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in (count, 28, 28))
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(header + images(count, 28, 28).tobytes())
    plan = Plan(data=tmp_path)
    train, test = data.load_images(plan, "mnist", data.find_images(plan, "mnist"))
    assert train.shape == (3, 1, 28, 28)
    assert test.shape == (2, 1, 28, 28)
    with pytest.raises(FileNotFoundError, match=r"MNIST not found: --data must be a folder with .*, got no mnist\.npz"):
        data.load_images(plan, "mnist", "mnist.npz")


def test_jobs_follow_from_the_data_and_the_scale(folder):
    def keys(plan):
        return [job.key for job in load("paper", "images").jobs(plan) if not job.key.endswith("glow")]

    assert keys(Plan()) == ["digits-uniform", "digits-variational"]
    assert keys(Plan(data=folder))[2:] == ["mnist-uniform", "mnist-variational", "cifar10-uniform"]
    (folder / "imagenet64.npz").write_bytes(b"")
    paper = load("paper", "images").jobs(Plan(scale="paper", data=folder, effort=0.5))
    found = {job.key: job.settings for job in paper}
    assert [key for key in found if key.startswith("imagenet64")] == ["imagenet64-uniform", "imagenet64-variational"]
    assert not any(key.startswith("cifar10") for key in found)
    assert found["mnist-uniform"]["steps"] == image_recipe().max_steps // 2
    assert found["mnist-uniform"]["n_test"] is None
    assert found["digits-uniform"]["scale"] == "cpu"


# --- training ---------------------------------------------------------------------------------------------------------


def test_the_recipe_of_the_paper_stays_as_it_is():
    recipe = image_recipe()
    assert shorten_recipe(recipe, recipe.max_steps, rounds=None) == recipe
    short = shorten_recipe(image_recipe("cpu"), 90)
    assert (short.max_steps, short.time_limit, short.hold_steps) == (90, None, 60)
    assert short.gamma**30 == pytest.approx(0.1)


def test_training_resumes_from_a_checkpoint_of_the_same_settings_only(tmp_path):
    x = torch.from_numpy(images(40, 1, 4, 4))
    model = elflow.ImageELF((1, 4, 4), scales=1, **TINY)
    recipe = shorten_recipe(image_recipe("cpu"), 4, rounds=4)
    (tmp_path / "other.ckpt").write_bytes(b"of other settings")
    best, training = train_images(model, recipe, x, None, 8, 0, tmp_path, {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["model.elf"]

    class Failing(elflow.ImageELF):
        scored = 0

        def log_prob(self, x, c=None, *noise):
            Failing.scored += 1
            if Failing.scored == 6:  # in the third round, each of which scores a batch and what is held out
                raise KeyError("as if the machine had failed")
            return super().log_prob(x, c, *noise)

    failing = Failing((1, 4, 4), scales=1, **TINY)
    failing.load_state_dict(model.state_dict())
    with pytest.raises(KeyError):
        train_images(failing, recipe, x, None, 8, 0, tmp_path, {"a": 1})
    assert len(list(tmp_path.glob("*.ckpt"))) == 1
    again, _ = train_images(model, recipe, x, None, 8, 0, tmp_path, {"a": 1})
    for a, b in zip(best.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert score_images(elflow.load(tmp_path / "model.elf"), x, seed=3) == score_images(best, x, seed=3)
    assert training.stopped == "max_steps"


def test_the_histogram_is_a_distribution():
    x = torch.from_numpy(images(700, 1, 1, 1)) % 3
    every = torch.arange(3).reshape(3, 1, 1, 1)
    bits = [score_histogram(x, one[None], 3)["bits"] for one in every]
    assert sum(2**-b for b in bits) == pytest.approx(1)


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_digits_from_the_jobs_to_the_report(tmp_path):
    records, report = done("images", HASTE, tmp_path)
    check_files(report, tmp_path / "images")
    assert records["digits-uniform"]["steps"] == 1
    assert records["digits-variational"]["parameters"] > records["digits-uniform"]["parameters"]
    table = report.tables[0]
    assert [row[0] for row in table.rows[:2]] == ["ELF", "ELF"]
    assert table.rows[-1][0] == "histogram of each pixel"
    assert f"{records['digits-uniform']['bits']:.3f}" in table.rows[0][4]
    assert all(row[-1] == "measured here, 40 test images" for row in table.rows)
    published = {row[0] for table in report.tables for row in table.rows if row[-1].startswith("*published*")}
    assert published == {one.system for one in IMAGES}
    assert f"{records['digits-variational']['bits']:.3f}" in report.text
    assert elflow.load(tmp_path / "images" / "jobs" / "digits-uniform" / "model.elf").shape == (1, 8, 8)
    again, same = done("images", HASTE, tmp_path / "again", keys=["digits-uniform"])
    assert again["digits-uniform"]["bits"] == records["digits-uniform"]["bits"]
    assert same.tables[0].rows[0] == table.rows[0]

    drawn, report = done("samples", HASTE, tmp_path)
    check_files(report, tmp_path / "samples")
    assert "images-digits-uniform.png" in report.pictures  # what the other experiment left is shown, too
    assert len(report.tables[0].rows) == 1 + len(records)
    assert 0 <= drawn["digits"]["recognised"] <= 1
    assert f"{drawn['digits']['test_recognised']:.0%}" in report.text


@pytest.mark.slow
def test_a_part_of_a_data_set_is_never_in_one_table_with_published_figures(tmp_path, folder):
    plan = Plan(data=folder, effort=0.002)
    records, report = done("images", plan, tmp_path, keys=["mnist-uniform", "cifar10-uniform"])
    check_files(report, tmp_path / "images")
    assert records["cifar10-uniform"]["train_images"] == 24
    for table in report.tables:
        kinds = {row[-1].split(":")[0].split(",")[0] for row in table.rows}
        assert not {"measured here", "*published*"} <= kinds, table.title
    assert any("cifar10_10k.npz is a part of CIFAR-10" in table.note for table in report.tables)
    assert "published.png" not in report.pictures
    whole = records["mnist-uniform"] | {"train_images": 60_000, "all_test_images": 10_000}
    report = load("paper", "images").report(plan, {"mnist-uniform": whole}, tmp_path / "images")
    both = next(table for table in report.tables if table.title.startswith("MNIST"))
    assert {row[-1].split(":")[0].split(",")[0] for row in both.rows} == {"measured here", "*published*"}
    check_files(report, tmp_path / "images")


def test_small_models_are_counted_and_compared(tmp_path):
    each = load("paper", "parameter-efficiency")
    jobs = {job.key: job.settings for job in each.jobs(HASTE)}
    assert list(jobs) == ["counts", "digits-8-channels", "digits-16-channels", "digits-32-channels"]
    records = {"counts": each.work(HASTE, {"count": ["mnist-small", "mnist-small:paper"]}, tmp_path)}
    expected = {"mnist-small": preset("mnist-small").parameters, "mnist-small:paper": 7_775_292}
    assert records["counts"]["counts"] == expected
    for key in ("digits-8-channels", "digits-16-channels"):
        quick = small(jobs[key])
        records[key] = each.work(HASTE, quick | {"changes": quick["changes"] | jobs[key]["changes"]}, tmp_path)
    report = each.report(HASTE, records, tmp_path)
    check_files(report, tmp_path)
    assert f"{records['counts']['counts']['mnist-small']:,} parameters (mnist-small)" in report.text
    assert [row[0] for row in report.tables[0].rows] == ["ELF, mnist-small, size gpu", "ELF, mnist-small, size paper"]
    assert [row[0] for row in report.tables[1].rows] == ["ELF, 8 channels", "ELF, 16 channels"]
    assert records["digits-8-channels"]["parameters"] < records["digits-16-channels"]["parameters"]


def test_the_small_models_of_the_paper_are_jobs_at_its_scale(folder):
    (folder / "cifar10.npz").write_bytes(b"")
    jobs = {job.key: job.settings for job in load("paper", "parameter-efficiency").jobs(Plan("paper", folder))}
    names = [f"{name}-{reading}" for name in SMALL for reading in ("counts", "widths")]
    assert list(jobs) == ["counts", *names]
    assert jobs["cifar10-vardeq-4m-widths"]["preset"] == "cifar10-vardeq-4m"
    assert jobs["mnist-small-counts"]["scale"] == "paper"


@pytest.mark.slow
def test_ways_of_sampling_are_counted(tmp_path, folder):
    torch.manual_seed(0)
    model = elflow.ImageELF((1, 28, 28), scales=1, **TINY)
    model.initialize(torch.from_numpy(images(24, 1, 28, 28)))
    elflow.save(model.eval(), folder / "mnist.elf", Training([{"step": 7}], seconds=60.0, stopped="max_steps"))
    plan = Plan(data=folder, effort=0.002)
    records, report = done("sampling", plan, tmp_path)
    check_files(report, tmp_path / "sampling")
    for name, features in (("digits", 64), ("mnist", 784)):
        exact, fixed, one, many = records[name]["methods"]
        assert [each["method"] for each in (exact, fixed, one, many)] == ["exact", "fixed-point", "sequential", "exact"]
        assert exact["converged"]
        assert one["converged"]
        assert sum(exact["calls"]) < sum(one["calls"]) < features * len(one["calls"]) + 1
        assert (exact["samples"], many["samples"]) == (2, 3)
    source = "mnist.elf of the data folder, trained for 7 steps, 1 min 0 s of wall-clock time"
    assert records["mnist"]["source"] == source
    assert "mnist.elf of the data folder" in report.tables[1].note
    assert f"{sum(records['digits']['methods'][0]['calls']):,} network evaluations" in report.text

    drawn, report = done("samples", plan, tmp_path, keys=["mnist"])
    check_files(report, tmp_path / "samples")
    assert list(report.pictures) == ["mnist.png"]
    assert drawn["mnist"]["n_samples"] == int(report.tables[0].rows[0][-1])


def test_a_model_of_something_else_is_refused(folder):
    elflow.save(elflow.ELF(2, transforms=1, units=4, hidden_features=(8,)), folder / "mnist.elf")
    with pytest.raises(ValueError, match=r"mnist\.elf must be a model of images of \(1, 28, 28\) .* got ELF"):
        data.load_model(Plan(data=folder))
