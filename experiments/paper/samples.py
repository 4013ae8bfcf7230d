"""Sampled images beside real ones: digits by class, and samples of the models of the experiment `images`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elflow.datasets.example import digits
from elflow.flows import preset
from elflow.io.grids import make_grid
from elflow.training import image_recipe
from experiments.data import describe_missing
from experiments.data.images import DATASETS, MODEL, find_images, find_model, load_images, load_model, spread
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.framework.figure import draw_figure
from experiments.framework.files import read_json
from experiments.paper._image_report import SYSTEMS, format_bits
from experiments.paper.claims import with_claims
from experiments.paper.image_fit import (
    SAMPLES_FILE,
    save_samples,
    score_images,
    shorten_recipe,
    summarize_training,
    train_images,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT"]

STEPS, N_VALIDATION = 280, 150
N_CLASSES, N_PER_CLASS = 10, 8
N_SAMPLES = 40
"""Number of images that `mnist.elf` draws."""
N_NEIGHBOURS = 3


def jobs(plan: Plan) -> list[Job]:
    sizes = {"steps": plan.scaled(STEPS), "n_validation": N_VALIDATION, "n_per_class": N_PER_CLASS}
    jobs = [Job("digits", sizes | {"changes": {"classes": N_CLASSES}, "seed": plan.seed})]
    if find_model(plan) is not None:
        jobs.append(Job("mnist", {"model": MODEL, "stamp": plan.stamp(MODEL), "seed": plan.seed}))
    return jobs


def work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    if "model" in settings:
        model, classes = load_model(plan)
        c = None if classes is None else classes.repeat(-(-N_SAMPLES // len(classes)))[:N_SAMPLES]
        save_samples(folder / SAMPLES_FILE, model.sample(N_SAMPLES, c), model.levels)
        return {"source": f"{settings['model']} of the data folder", "n_samples": N_SAMPLES}
    data = _load_digits()
    recipe = shorten_recipe(image_recipe("cpu"), settings["steps"])
    flow = preset("digits", size="cpu").build(**settings["changes"])
    x, labels, seed = data["x_train"], data["y_train"], settings["seed"]
    best, training = train_images(flow, recipe, x, labels, settings["n_validation"], seed, folder, settings)
    classes = torch.arange(N_CLASSES).repeat(settings["n_per_class"])
    torch.manual_seed(seed)
    samples = best.sample(len(classes), classes)
    save_samples(folder / SAMPLES_FILE, samples, best.levels)
    return {
        "source": f"trained here for {settings['steps']:,} steps",
        "n_samples": len(samples),
        **summarize_training(best, training, recipe, x[0].numel()),
        **score_images(best, data["x_test"], data["y_test"], seed),
        **_judge(data, samples, classes),
    }


def _load_digits() -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in digits().items()}


def _judge(data: dict[str, Tensor], samples: Tensor, classes: Tensor) -> Record:
    """Agreement of a classifier of real images with the classes of samples, and distances to training images."""
    from sklearn.neighbors import KNeighborsClassifier

    rows = {name: data[name].flatten(1).numpy() for name in ("x_train", "x_test")}
    classifier = KNeighborsClassifier(N_NEIGHBOURS).fit(rows["x_train"], data["y_train"].numpy())
    new = samples.flatten(1).numpy()
    distances = {name: classifier.kneighbors(x, 1)[0][:, 0] for name, x in (("new", new), ("test", rows["x_test"]))}
    return {
        "recognised": float((classifier.predict(new) == classes.numpy()).mean()),
        "test_recognised": float((classifier.predict(rows["x_test"]) == data["y_test"].numpy()).mean()),
        "distance": float(np.median(distances["new"])),
        "test_distance": float(np.median(distances["test"])),
        "copies": int((distances["new"] == 0).sum()),
    }


# --- the report -------------------------------------------------------------------------------------------------------


def report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows, pictures = [], {}
    if record := records.get("digits"):
        real, new = _digits_by_class(record["n_samples"]), _load_samples(folder, "digits")
        _draw_grids(folder / "digits.png", "Digits by class", real, new, N_CLASSES)
        pictures["digits.png"] = "Digits of 8x8 pixels, one column for each class: real ones and samples."
        rows.append(["ELF, by class", "Digits", record["source"], format_bits(record), str(record["n_samples"])])
    if record := records.get("mnist"):
        test = _load_test_images(plan, "mnist", find_images(plan, "mnist"), record["n_samples"])
        _draw_grids(folder / "mnist.png", "MNIST", test, _load_samples(folder, "mnist"))
        pictures["mnist.png"] = f"MNIST: test images, if available, and samples of {record['source']}."
        rows.append(["ELF", "MNIST", record["source"], "", str(record["n_samples"])])
    for key, record in _read_image_records(plan, folder).items():
        new = _load_samples(folder.parent / "images", key)
        data, system = DATASETS[record["dataset"]].title, SYSTEMS[record["system"]]
        source = f"the model of `images` after {record['steps']:,} steps, {record['dequantization']} dequantisation"
        test = _load_test_images(plan, record["dataset"], record["file"], len(new[0]))
        _draw_grids(folder / f"images-{key}.png", f"{data}, {system}, {record['dequantization']}", test, new)
        pictures[f"images-{key}.png"] = f"{data}, {system}: test images, if available, and samples of {source}."
        rows.append([system, data, source, format_bits(record), str(len(new[0]))])
    note = "Bits per dimension are those of test images. The paper shows samples as images, without numbers."
    table = Table("Models", ["system", "data", "model", "bits/dim", "samples"], rows, note)
    return Report(_describe(records["digits"]) if "digits" in records else "", [table], pictures)


def _describe(record: Record) -> str:
    return (
        f"The model of digits by class ({record['source']}) has {format_bits(record)} bits per dimension of test "
        f"images. A classifier by {N_NEIGHBOURS} nearest neighbours, trained on real digits, recognises the requested "
        f"class in {record['recognised']:.0%} of the {record['n_samples']} samples, and the true class in "
        f"{record['test_recognised']:.0%} of the real test images. The median distance to the nearest training image "
        f"is {record['distance']:.1f} for samples and {record['test_distance']:.1f} for test images; "
        f"{record['copies']} of the samples are copies of a training image."
    )


def _load_samples(folder: Path, key: str) -> tuple[Tensor, int]:
    """The images that a job has sampled, and the number of levels of their pixels."""
    with np.load(folder / "jobs" / key / SAMPLES_FILE, allow_pickle=False) as file:
        return torch.from_numpy(file["x"]), int(file["levels"])


def _read_image_records(plan: Plan, folder: Path) -> dict[str, Record]:
    """Records of the experiment `images` with samples, of the same plan and output folder, by job key."""
    records = {}
    for path in sorted((folder.parent / "images" / "jobs").glob(f"*/{SAMPLES_FILE}")):
        kept = read_json(path.parent / "record.json") or {}  # None for a job that has not finished
        settings, record = kept.get("settings", {}), kept.get("record", {})
        is_same = all(settings.get(name) == getattr(plan, name) for name in ("scale", "seed", "effort"))
        if is_same and "dataset" in record:
            records[path.parent.name] = record
    return records


def _digits_by_class(count: int) -> Tensor:
    """Real digits, the classes in turn."""
    data = _load_digits()
    by_class = [spread(data["x_train"][data["y_train"] == c], count // N_CLASSES) for c in range(N_CLASSES)]
    return torch.stack(by_class, dim=1).flatten(0, 1)


def _load_test_images(plan: Plan, name: str, file: str | None, count: int) -> Tensor | None:
    """Test images of a data set, or None if it is not available."""
    if file is None and name != "digits":
        return None
    try:
        return spread(load_images(plan, name, file)[1], count)
    except FileNotFoundError:
        return None


def _draw_grids(path: Path, title: str, real: Tensor | None, new: tuple[Tensor, int], columns: int = 0) -> None:
    """Draw real images, if there are any, beside samples."""
    images, levels = new
    columns = columns or _choose_columns(len(images))
    parts = {"Real": real, "Sampled": images}
    pictures = {heading: make_grid(some, columns, levels) for heading, some in parts.items() if some is not None}
    height, width = pictures["Sampled"].shape[:2]
    size = (4.5 * len(pictures), 0.75 + 4.4 * height / width)
    with draw_figure(path, columns=len(pictures), figsize=size) as (figure, axes):
        for place, (heading, picture) in zip(axes[0], pictures.items(), strict=True):
            _draw_picture(place, picture, heading)
        figure.get_layout_engine().set(wspace=0.04)
        figure.suptitle(title, fontsize=11)


def _choose_columns(count: int) -> int:
    """A number of columns that fills all rows, if possible, with at least as many columns as rows."""
    fitting = [columns for columns in range(4, 11) if count % columns == 0 and columns * columns >= count]
    return fitting[0] if fitting else 8


def _draw_picture(place: Axes, picture: NDArray[np.uint8], heading: str) -> None:
    colors: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 255} if picture.ndim == 2 else {}
    place.imshow(picture, interpolation="nearest", **colors)
    place.set_title(heading)
    place.axis("off")


def missing(plan: Plan) -> list[str]:
    if find_model(plan) is not None:
        return []
    return [f"{describe_missing('A model of MNIST', MODEL)}; samples of the experiment images are shown without it"]


EXPERIMENT = with_claims(Experiment("samples", "Sampled images", jobs, work, report, missing))
