"""The command line for images: what it does, what it says, and what it refuses."""

import json
import math
import os
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from _command import fails, run, succeeds
from PIL import Image

import elflow
from elflow.cli import _images as steps
from elflow.datasets import example
from elflow.io import grids
from elflow.io.images import read_images
from elflow.serialization import read_notes, read_training
from elflow.training import recipe as recipes
from experiments.faults.files import write_content

QUICK = ["--max-steps", "4"]
CLASSES = 3


def pictures(count=40, size=8, channels=1, levels=17):
    """Images with something to learn: a bright bar, whose height is the class, on noise."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, count)
    labels[:CLASSES] = range(CLASSES)  # each at least once
    x = rng.integers(0, levels // 4, (count, channels, size, size))
    for i, label in enumerate(labels):
        x[i, :, 2 * label : 2 * label + 2] += levels // 2
    return x.astype(np.uint8), labels


def picture(path):
    """The mode of a picture, its width and its height."""
    with Image.open(path) as opened:
        return opened.mode, opened.size


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With data.npz, a model of it and one given the classes."""
    folder = tmp_path_factory.mktemp("images")
    x, y = pictures()
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    succeeds("fit-images", folder / "data.npz", "-o", folder / "model.elf", *QUICK, "-q")
    succeeds("fit-images", folder / "data.npz", "-o", folder / "given.elf", *QUICK, "-q", "--classes")
    elflow.save(elflow.ELF(2, transforms=1), folder / "flow.elf")
    return folder


@pytest.fixture
def brief(monkeypatch):
    """Rounds of one step, so that a few steps have several."""
    monkeypatch.setattr(recipes, "IMAGE_RECIPE_CPU", replace(recipes.IMAGE_RECIPE_CPU, round_steps=1))


# fit-images


@pytest.mark.slow
def test_fit_says_what_it_found_and_how_it_went(folder, tmp_path):
    options = ["--log-dir", tmp_path / "log", "--samples", tmp_path / "new" / "pictures", "--validation", 6]
    out, err = succeeds("fit-images", folder / "data.npz", "-o", tmp_path / "m.elf", *QUICK, "--classes", *options)
    lines = ["40, of which 6 for validation", "1 x 8 x 8, 17 levels", "3", "digits, cpu size", "bits/dim", "4 steps in"]
    for words in [*lines, "completed all steps", "m.elf"]:
        assert words in out
    assert err.startswith("elflow: step 4, ")  # where there is no terminal for a bar
    assert "held-out" in err
    assert err.endswith("bits/dim\n")
    assert sorted(os.listdir(tmp_path)) == ["log", "m.elf", "new"]
    assert list((tmp_path / "log").rglob("*.csv"))
    assert os.listdir(tmp_path / "new" / "pictures") == ["step-000004.png"]
    flow = elflow.load(tmp_path / "m.elf")
    assert (flow.shape, flow.levels, flow.classes) == ((1, 8, 8), 17, CLASSES)
    assert f"{sum(p.numel() for p in flow.parameters()):,}" in out


def test_held_out_images_were_not_trained_on(folder):
    images = read_images(folder / "data.npz")
    rows, kept = steps.split_rows(images, CLASSES, None, 0)
    assert (len(rows), len(kept)) == (36, 4)
    both = torch.cat([rows.x, kept.x]).flatten(1)
    assert len(torch.cat([both, images.x.flatten(1)]).unique(dim=0)) == len(images.x)
    again, _ = steps.split_rows(images, CLASSES, None, 0)
    other, _ = steps.split_rows(images, CLASSES, None, 1)
    assert torch.equal(rows.x, again.x)
    assert not torch.equal(rows.x, other.x)
    bars = rows.x.double().mean((1, 3)).reshape(-1, 4, 2).sum(2).argmax(1)
    assert torch.equal(bars, rows.context)  # labels went with their images


@pytest.mark.slow
def test_what_is_learned_shows(folder, tmp_path):
    """More steps are better than few."""
    succeeds("fit-images", folder / "data.npz", "-o", tmp_path / "m.elf", "--max-steps", 12, "-q")
    assert read_notes(tmp_path / "m.elf")["bits_per_dim"] < read_notes(folder / "model.elf")["bits_per_dim"]
    assert read_training(tmp_path / "m.elf").steps == 12


def test_validation_is_a_share_or_a_number(folder):
    images = read_images(folder / "data.npz")
    for validation, count in [(None, 4), (0.25, 10), (0.001, 1), (1.0, 1), (7.0, 7)]:
        assert len(steps.split_rows(images, CLASSES, validation, 0)[1]) == count


@pytest.mark.parametrize(
    ("shape", "name"),
    [((1, 8, 8), "digits"), ((3, 12, 20), "digits"), ((1, 28, 28), "mnist"), ((1, 16, 64), "mnist"),
     ((3, 32, 32), "cifar10")],
)  # fmt: skip
def test_the_preset_follows_from_the_images(shape, name):
    assert steps.choose_preset(torch.zeros(1, *shape)) == name


@pytest.mark.slow
def test_colours_resized_pictures_and_levels(tmp_path):
    """A folder of pictures for each class, of any size."""
    x, y = pictures(10, channels=3, levels=256)
    for i, label in enumerate(y):
        (tmp_path / "data" / f"class{label}").mkdir(parents=True, exist_ok=True)
        Image.fromarray(x[i].transpose(1, 2, 0)).resize((9, 7)).save(tmp_path / "data" / f"class{label}" / f"{i}.png")
    options = ["--levels", 256, "--resize", "12x8", "--classes", "--dequantization", "variational"]
    options += ["--max-steps", 1, "--samples", tmp_path / "pictures", "--attention", 2]
    out, _ = succeeds("fit-images", tmp_path / "data", "-o", tmp_path / "m.elf", *options)
    model = elflow.load(tmp_path / "m.elf")
    assert model.noise is not None
    assert model.config["attention"] == 2
    assert "3 x 12 x 8, 256 levels" in out
    assert picture(tmp_path / "pictures" / "step-000001.png")[0] == "RGB"
    out, _ = succeeds("score-images", tmp_path / "m.elf", tmp_path / "data", "--resize", "12X8")
    assert "bits/dim" in out
    message = fails("score-images", tmp_path / "m.elf", tmp_path / "data")
    assert "must hold images of 3 x 12 x 8, as in the model, got 3 x 7 x 9: try --resize 12x8" in message


# What was interrupted


def interrupt(*_, **__):
    raise KeyboardInterrupt


@pytest.mark.slow
def test_interrupted_and_resumed(folder, tmp_path, monkeypatch, brief):
    """The weights are those of a run that nobody interrupted, bit for bit."""
    data, model, whole = folder / "data.npz", tmp_path / "m.elf", tmp_path / "whole.elf"
    checkpoint, steps = tmp_path / "m.elf.checkpoint", ["--max-steps", 3]
    succeeds("fit-images", data, "-o", whole, *steps, "-q")
    arguments = ["fit-images", data, "-o", model, *steps, "--samples", tmp_path / "pictures", "-q"]
    with monkeypatch.context() as patch:
        patch.setattr(grids, "write_grid", interrupt)
        code, _, err = run(*arguments)
    assert (code, err) == (130, f"elflow: interrupted; continue from {checkpoint} with --resume\n")
    assert not model.exists()
    assert "is left from an interrupted run: add --resume to continue, or delete it" in fails(*arguments)
    assert "checkpoint must belong to the same data and settings" in fails(*arguments, "--resume", "--seed", 1)
    assert succeeds(*arguments, "--resume") == ("", "")
    assert not checkpoint.exists()
    assert sorted(os.listdir(tmp_path / "pictures")) == ["step-000002.png", "step-000003.png"]  # the first was done
    tensors, others = (safetensors.torch.load_file(path) for path in (whole, model))
    assert all(torch.equal(tensors[key], others[key]) for key in tensors)
    assert read_notes(model)["fingerprint"] == read_notes(whole)["fingerprint"]


@pytest.mark.slow
def test_resume_with_nothing_to_go_on_from(folder, tmp_path):
    model = tmp_path / "m.elf"
    arguments = ["fit-images", folder / "data.npz", "-o", model, "--max-steps", 1, "--resume"]
    assert "starting a new run" in succeeds(*arguments)[1]
    before = model.read_bytes()
    assert "m.elf is complete" in succeeds(*arguments)[1]
    assert "m.elf is complete" in succeeds(*arguments, "--time-limit", "1h")[1]
    assert succeeds(*arguments, "-q") == ("", "")
    assert model.read_bytes() == before
    for changed in [["--seed", "1"], ["--classes"]]:  # what is there is another model
        assert "starting a new run" in succeeds(*arguments, *changed)[1]
    assert model.read_bytes() != before


@pytest.mark.slow
def test_pictures_every_few_rounds(folder, tmp_path, brief):
    options = ["-q", "--samples", tmp_path / "pictures", "--samples-every", 2]
    succeeds("fit-images", folder / "data.npz", "-o", tmp_path / "m.elf", *QUICK, *options)
    assert sorted(os.listdir(tmp_path / "pictures")) == ["step-000002.png", "step-000004.png"]


@pytest.mark.slow
def test_a_time_limit(folder, tmp_path):
    out, _ = succeeds("fit-images", folder / "data.npz", "-o", tmp_path / "m.elf", "--time-limit", "0.5s")
    assert "stopped at the time limit" in out


# score-images


@pytest.mark.slow
def test_score(folder, tmp_path, monkeypatch):
    arguments = ["score-images", folder / "given.elf", folder / "data.npz"]
    out, _ = succeeds(*arguments, "-o", tmp_path / "s.parquet")
    scores = pd.read_parquet(tmp_path / "s.parquet")
    images = read_images(folder / "data.npz")
    assert list(scores) == ["index", "label", "bits_per_dim", "log_prob"]
    assert scores["index"].to_list() == list(range(40))
    assert scores["label"].to_list() == images.labels.tolist()
    np.testing.assert_allclose(scores["log_prob"], -scores["bits_per_dim"] * 64 * math.log(2))
    torch.manual_seed(0)
    expected = elflow.load(folder / "given.elf").bits_per_dim(images.x, images.labels).double().numpy()
    np.testing.assert_array_equal(scores["bits_per_dim"], expected)
    assert f"{expected.mean():.4f} +- {expected.std(ddof=1) / 40**0.5:.4f} bits/dim" in out
    monkeypatch.setattr(steps, "SCORE_BLOCK", 16)
    blocks, _ = succeeds(*arguments, "-o", tmp_path / "b.csv")
    assert "40" in blocks
    assert len(pd.read_csv(tmp_path / "b.csv")) == 40
    assert succeeds(*arguments)[0] == succeeds(*arguments)[0] != succeeds(*arguments, "--seed", 1)[0]


def test_score_some_from_many_points(folder):
    arguments = ["score-images", folder / "model.elf", folder / "data.npz", "--split", "test", "-o", "-"]
    out, err = succeeds(*arguments)
    assert out.splitlines()[0] == "index,label,bits_per_dim,log_prob"
    assert len(out.splitlines()) == 11
    assert "bits/dim" in err
    some, err = succeeds(*arguments, "--limit", 1, "--n-draws", 20)
    assert len(some.splitlines()) == 2
    assert "+-" not in err


def test_images_without_labels(folder, tmp_path):
    np.save(tmp_path / "x.npy", pictures()[0])
    out, _ = succeeds("score-images", folder / "model.elf", tmp_path / "x.npy", "-o", "-")
    assert out.splitlines()[0] == "index,bits_per_dim,log_prob"
    assert "must have labels, because the model is conditioned on classes" in fails(
        "score-images", folder / "given.elf", tmp_path / "x.npy"
    )
    options = ["-o", tmp_path / "m.elf", "--classes"]
    assert "must have labels for --classes, got none" in fails("fit-images", tmp_path / "x.npy", *options)


# sample-images


def test_the_first_images_of_a_model_with_classes(folder):
    out, _ = succeeds("score-images", folder / "given.elf", folder / "data.npz", "--limit", 7)
    assert re.search(r"images +7\b", out)


@pytest.mark.slow
def test_sample_a_picture(folder, tmp_path):
    sizes = {}
    for name, options in {"a": [], "b": ["--columns", 4], "c": ["--seed", 1]}.items():
        out, _ = succeeds("sample-images", folder / "given.elf", "-o", tmp_path / f"{name}.png", "-n", 9, *options)
        sizes[name] = picture(tmp_path / f"{name}.png")[1]
    for words in ["images", "network evaluations", "in 12 layers", "residual", "time", "c.png"]:
        assert words in out
    assert sizes == {"a": (100, 100), "b": (134, 100), "c": (100, 100)}  # a column for each class, then four
    assert (tmp_path / "a.png").read_bytes() != (tmp_path / "c.png").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["exact", "fixed-point", "sequential"])
def test_sample_arrays(folder, tmp_path, method):
    options = ["-n", 7, "--seed", 3, "--method", method]
    succeeds("sample-images", folder / "given.elf", "-o", tmp_path / "new.npz", *options)
    images = read_images(tmp_path / "new.npz")
    assert images.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
    torch.manual_seed(3)
    expected = elflow.load(folder / "given.elf").sample(7, images.labels)
    assert (images.x != expected).double().mean() < 0.01  # but for what rounds to another level
    assert "bits/dim" in succeeds("score-images", folder / "given.elf", tmp_path / "new.npz")[0]


@pytest.mark.slow
def test_sample_a_class_or_none(folder, tmp_path):
    succeeds("sample-images", folder / "given.elf", "-o", tmp_path / "new.npz", "-n", 3, "--class", 2)
    assert np.load(tmp_path / "new.npz")["y"].tolist() == [2, 2, 2]
    succeeds("sample-images", folder / "model.elf", "-o", tmp_path / "new.npz", "-n", 3)
    with np.load(tmp_path / "new.npz") as arrays:
        assert arrays.files == ["x"]
        assert arrays["x"].shape == (3, 1, 8, 8)
        assert arrays["x"].dtype == np.uint8


def test_samples_that_did_not_settle(folder, tmp_path, monkeypatch):
    sample = elflow.ImageELF.sample

    def unsettled(*arguments, **options):
        images, info = sample(*arguments, **options)
        return images, replace(info, converged=False)

    monkeypatch.setattr(elflow.ImageELF, "sample", unsettled)
    _, err = succeeds("sample-images", folder / "model.elf", "-o", tmp_path / "g.png", "-n", 1)
    assert "the images may be inexact" in err


# info, and what goes wrong


def test_info(folder, tmp_path):
    out, _ = succeeds("info", folder / "given.elf")
    for words in ["ImageELF", "1 x 8 x 8, 17 levels", "3 classes", "uniform", "36 images", "4 steps in", "bits/dim"]:
        assert words in out
    facts = json.loads(succeeds("info", folder / "model.elf", "--json")[0])
    assert (facts["shape"], facts["classes"], facts["training"]["steps"]) == ([1, 8, 8], 0, 4)
    assert (facts["activation"], facts["images"]) == ("FELU", 36)
    sizes = {"scales": 1, "transforms": 1, "units": 2, "channels": 2, "blocks": 1}
    elflow.save(elflow.ImageELF((2, 4, 4), levels=2, context=5, **sizes), tmp_path / "own.elf")
    out, _ = succeeds("info", tmp_path / "own.elf")
    assert "5 numbers" in out
    assert "training" not in out
    message = fails("sample-images", tmp_path / "own.elf", "-o", tmp_path / "g.npz")
    assert "MODEL must be a model without context, got" in message
    elflow.save(elflow.ImageELF((2, 4, 4), levels=2, **sizes), tmp_path / "own.elf")
    message = fails("sample-images", tmp_path / "own.elf", "-o", tmp_path / "g.png")
    assert "--output must end in .npz for images of 2 channels" in message


def test_a_header_without_training_facts(folder, tmp_path):
    tensors = safetensors.torch.load_file(folder / "model.elf")
    with safetensors.safe_open(folder / "model.elf", "pt") as file:
        header = file.metadata()
    model = tmp_path / "m.elf"
    for notes in ["{}", '{"images": "3", "bits_per_dim": "x"}', '{"bits_per_dim": 1.5, "standard_error": "x"}']:
        write_content(model, header | {"notes": notes}, tensors)
        assert "4 steps in" in succeeds("info", model)[0]
        write_content(model, {k: v for k, v in header.items() if k != "training"}, tensors)
        assert "steps in" not in succeeds("info", model)[0]
    for damaged in [{"notes": "[]"}, {"notes": ""}, {"training": "[]"}, {"training": "{}"}, {"training": "{"}]:
        write_content(model, header | damaged, tensors)
        assert "MODEL must be a model saved by elflow" in fails("info", model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit-images"], "Missing argument 'DATA'"),
        (["fit-images", "DATA"], "Missing option '--output'"),
        (["fit-images", "nothing.npz", "-o", "NEW"], "DATA must be a file or a folder that exists, got nothing.npz"),
        (["fit-images", "DATA", "-o", "DATA"], "--output must not be one of the input files"),
        (["fit-images", "DATA", "-o", "no/folder/m.elf"], "--output must be in an existing folder"),
        (["fit-images", "DATA", "-o", "NEW", "--preset", "nix"], "--preset must be one of ['mnist'"),
        (["fit-images", "DATA", "-o", "NEW", "--size", "nix"], "'--size'"),
        (["fit-images", "DATA", "-o", "NEW", "--split", "nix"], "'--split'"),
        (["fit-images", "DATA", "-o", "NEW", "--resize", "8"], "--resize must be a height and width such as 32x32"),
        (["fit-images", "DATA", "-o", "NEW", "--resize", "0x8"], "--resize must be a height and width such as 32x32"),
        (["fit-images", "DATA", "-o", "NEW", "--resize", "10x9"], "divisible by 4 for the preset digits, got 10 x "
         "9: try --resize 8x8"),
        (["fit-images", "DATA", "-o", "NEW", "--levels", "9"], "--levels must be above the largest pixel of"),
        (["fit-images", "DATA", "-o", "NEW", "--levels", "1"], "'--levels'"),
        (["fit-images", "DATA", "-o", "NEW", "--attention", "5"], "--attention must be 0 or a divisor of channels, 16"),
        (["fit-images", "DATA", "-o", "NEW", "--validation", "39"], "--validation must leave at least two of 40 "
         "images"),
        (["fit-images", "DATA", "-o", "NEW", "--validation", "0.99"], "--validation must leave at least two of 40"),
        (["fit-images", "DATA", "-o", "NEW", "--validation", "2.5"], "--validation must be a fraction in (0, 1) or a"),
        (["fit-images", "DATA", "-o", "NEW", "--validation", "0"], "--validation must be a fraction in (0, 1) or a"),
        (["fit-images", "DATA", "-o", "NEW", "--time-limit", "soon"], "--time-limit must be a duration"),
        (["fit-images", "DATA", "-o", "NEW", "--samples", "DATA"], "--samples must be a folder, got the file"),
        (["fit-images", "FOLDER", "-o", "NEW", "--samples", "INSIDE"], "--samples must not be a folder in"),
        (["fit-images", "DATA", "-o", "NEW", "--seed", "99999999999"], "'--seed'"),
        (["score-images", "MODEL", "nothing.npz"], "DATA must be a file or a folder that exists, got nothing.npz"),
        (["score-images", "nothing.elf", "DATA"], "MODEL must be an existing file, got nothing.elf"),
        (["score-images", "DATA", "DATA"], "MODEL must be a model saved by elflow"),
        (["score-images", "FLOW", "DATA"], "must be a model written by `elflow fit-images`, got"),
        (["score-images", "MODEL", "DATA", "-o", "DATA"], "--output must not be one of the input files"),
        (["score-images", "MODEL", "DATA", "-o", "scores.pdf"], "has an unsupported format; supported: .csv"),
        (["score-images", "MODEL", "DATA", "--resize", "4x4"], "must hold images of 1 x 8 x 8, as in the model"),
        (["score-images", "MODEL", "DATA", "--n-draws", "0"], "'--n-draws'"),
        (["sample-images", "MODEL"], "Missing option '--output'"),
        (
            ["sample-images", "MODEL", "-o", "new.jpg"],
            "--output must end in .png, for an image grid, or .npz, for arrays",
        ),
        (["sample-images", "MODEL", "-o", "no/new.png"], "--output must be in an existing folder"),
        (["sample-images", "MODEL", "-o", "new.png", "-n", "0"], "'-n'"),
        (["sample-images", "MODEL", "-o", "new.npz", "--columns", "3"], "--columns must be left out unless"),
        (["sample-images", "MODEL", "-o", "new.png", "--class", "1"], "--class must be left out, as"),
        (["sample-images", "GIVEN", "-o", "new.png", "--class", "3"], "--class must be from 0 to 2"),
        (["sample-images", "GIVEN", "-o", "new.png", "--method", "nix"], "'--method'"),
        (["score", "MODEL", "DATA"], "use `elflow score-images` or `elflow sample-images`"),
        (["sample", "MODEL", "-o", "new.csv"], "got the model of images"),
    ],
)  # fmt: skip
def test_wrong_arguments(folder, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    names = {"DATA": "data.npz", "MODEL": "model.elf", "GIVEN": "given.elf", "FLOW": "flow.elf", "INSIDE": "pictures"}
    names = {key: folder / name for key, name in names.items()} | {"NEW": "m.elf", "FOLDER": folder}
    assert message in fails(*(names.get(argument, argument) for argument in arguments))
    assert os.listdir(tmp_path) == []


def test_small_images_may_have_all_levels(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=pictures(levels=256)[0])
    assert "256 levels" in succeeds("fit-images", "data.npz", "-o", "m.elf", *QUICK)[0]


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": pictures()[0] / 16}, [], "must hold integers from 0 to 255, got float64: save it as"),
        ({"x": pictures(4)[0]}, [], "DATA must hold at least 5 images, got 4"),
        (
            {"x": pictures()[0], "y": np.arange(40) - 1},
            ["--classes"],
            "must have labels 0, 1, ... for --classes, got -1 to 38",
        ),
        ({"x": pictures()[0], "y": np.full(40, 40)}, ["--classes"], "for --classes, got 40 to 40"),
        (
            {"x": pictures(channels=4)[0]},
            ["--samples", "pictures"],
            "--samples must be left out for images of 4 channels",
        ),
    ],
)
def test_data_that_cannot_be_fitted(tmp_path, monkeypatch, arrays, options, message):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", **arrays)
    assert message in fails("fit-images", "data.npz", "-o", "m.elf", *QUICK, *options)
    assert os.listdir(tmp_path) == ["data.npz"]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": pictures(channels=3)[0]}, "must hold images of 1 x 8 x 8, as in the model, got 3 x 8 x 8\n"),
        ({"x": pictures(levels=256)[0]}, "must hold pixels from 0 to 16, as in the model, got"),
        ({"x": pictures()[0], "y": np.full(40, 3)}, "must have labels from 0 to 2, as in the model, got 3"),
        ({"x": pictures()[0], "y": np.full(40, -1)}, "must have labels from 0 to 2, as in the model, got -1"),
    ],
)
def test_data_that_cannot_be_scored(folder, tmp_path, monkeypatch, arrays, message):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", **arrays)
    assert message in fails("score-images", folder / "given.elf", "data.npz", "-o", "s.csv")
    assert os.listdir(tmp_path) == ["data.npz"]


def test_help_has_examples():
    assert "elflow fit-images images.npz -o model.elf" in run()[1]
    for command in ["fit-images", "score-images", "sample-images"]:
        out, _ = succeeds(command, "--help")
        assert f"elflow {command} " in out.replace("\n", " ").split("Usage")[1][40:]


def test_the_example():
    digits = example.digits()
    assert [len(digits[name]) for name in ("x_train", "y_train", "x_test", "y_test")] == [1497, 1497, 300, 300]
    x = np.concatenate([digits["x_train"], digits["x_test"]])
    assert (x.dtype, x.min(), x.max()) == (np.uint8, 0, 16)
    assert len(np.unique(x.reshape(1797, 64), axis=0)) == 1797
    assert set(digits["y_test"]) == set(range(10))
    assert all(np.array_equal(array, digits[name]) for name, array in example.digits().items())
