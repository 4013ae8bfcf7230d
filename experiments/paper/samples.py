"""New images beside real ones: digits by class, and what the models of the experiment `images` have drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from elflow.datasets.example import digits
from elflow.flows import preset
from elflow.io.grids import make_grid
from elflow.training import image_recipe
from experiments.data import images as _image_data
from experiments.data.images import DATASETS, MODEL, given, spread
from experiments.framework import figure as _figure
from experiments.framework.experiment import Experiment, Job, Plan, Record, Report, Table
from experiments.paper._image_fit import SAMPLES_FILE, bits_of, keep_samples, record_of, shortened, trained
from experiments.paper._image_report import NAMES, bits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENTS"]

STEPS, HELD_OUT = 280, 150
CLASSES, OF_EACH = 10, 8
DRAWN = 40
"""How many images are drawn from `mnist.elf`."""
NEIGHBOURS = 3


def _jobs(plan: Plan) -> list[Job]:
    own = {"steps": plan.steps(STEPS), "changes": {"classes": CLASSES}, "held_out": HELD_OUT, "of_each": OF_EACH}
    jobs = [Job("digits", own | {"seed": plan.seed})]
    if given(plan) is not None:
        jobs.append(Job("mnist", {"model": MODEL, "stamp": plan.stamp(MODEL), "seed": plan.seed}))
    return jobs


def _work(plan: Plan, settings: Record, folder: Path) -> Record:
    torch.manual_seed(settings["seed"])
    if "model" in settings:
        model, classes = _image_data.load_given(plan)
        c = None if classes is None else classes.repeat(-(-DRAWN // len(classes)))[:DRAWN]
        keep_samples(folder / SAMPLES_FILE, model.sample(DRAWN, c), model.levels)
        return {"source": f"{settings['model']} of the data folder", "drawn": DRAWN}
    found = {name: torch.from_numpy(array) for name, array in digits().items()}
    chosen = preset("digits", size="cpu")
    recipe = shortened(image_recipe("cpu"), settings["steps"])
    flow = chosen.build(**settings["changes"])
    x, labels, seed = found["x_train"], found["y_train"], settings["seed"]
    best, training = trained(flow, recipe, x, labels, settings["held_out"], seed, folder, settings)
    asked = torch.arange(CLASSES).repeat(settings["of_each"])
    torch.manual_seed(seed)
    drawn = best.sample(len(asked), asked)
    keep_samples(folder / SAMPLES_FILE, drawn, best.levels)
    return {
        "source": f"trained here for {settings['steps']:,} steps",
        "drawn": len(drawn),
        **record_of(best, training, recipe, x[0].numel()),
        **bits_of(best, found["x_test"], found["y_test"], seed),
        **_judged(found, drawn, asked),
    }


def _judged(found: dict[str, Tensor], drawn: Tensor, asked: Tensor) -> Record:
    """Whether a classifier of real images sees what was asked for, and how far images are from those of training."""
    from sklearn.neighbors import KNeighborsClassifier

    rows = {name: found[name].flatten(1).numpy() for name in ("x_train", "x_test")}
    judge = KNeighborsClassifier(NEIGHBOURS).fit(rows["x_train"], found["y_train"].numpy())
    new = drawn.flatten(1).numpy()
    far = {name: judge.kneighbors(x, 1)[0][:, 0] for name, x in (("new", new), ("test", rows["x_test"]))}
    return {
        "recognised": float((judge.predict(new) == asked.numpy()).mean()),
        "test_recognised": float((judge.predict(rows["x_test"]) == found["y_test"].numpy()).mean()),
        "distance": float(np.median(far["new"])),
        "test_distance": float(np.median(far["test"])),
        "copies": int((far["new"] == 0).sum()),
    }


# --- the report -------------------------------------------------------------------------------------------------------


def _report(plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    rows, pictures = [], {}
    if record := records.get("digits"):
        _grids(folder / "digits.png", "Digits by class", _by_class(record["drawn"]), _drawn(folder, "digits"), CLASSES)
        pictures["digits.png"] = "Digits of 8x8 pixels, a column for each class: of the data, and new ones."
        rows.append(["ELF, by class", "Digits", record["source"], bits(record), str(record["drawn"])])
    if record := records.get("mnist"):
        test = _test_images(plan, "mnist", _image_data.find(plan, "mnist"), record["drawn"])
        _grids(folder / "mnist.png", "MNIST", test, _drawn(folder, "mnist"))
        pictures["mnist.png"] = f"MNIST: test images if they are here, and new ones of {record['source']}."
        rows.append(["ELF", "MNIST", record["source"], "", str(record["drawn"])])
    for key, record in _siblings(plan, folder).items():
        new = _drawn(folder.parent / "images", key)
        data, system = DATASETS[record["dataset"]].title, NAMES[record["system"]]
        source = f"the model of `images` after {record['steps']:,} steps, {record['dequantization']} dequantisation"
        test = _test_images(plan, record["dataset"], record["file"], len(new[0]))
        _grids(folder / f"images-{key}.png", f"{data}, {system}, {record['dequantization']}", test, new)
        pictures[f"images-{key}.png"] = f"{data}: test images if they are here, and new ones of {source}; {system}."
        rows.append([system, data, source, bits(record), str(len(new[0]))])
    note = "Bits per dimension are those of test images. The paper's samples are pictures, and have no figures."
    table = Table("Which models drew them", ["system", "data", "model", "bits/dim", "images drawn"], rows, note)
    return Report(_said(records["digits"]) if "digits" in records else "", [table], pictures)


def _said(record: Record) -> str:
    return (
        f"The model of digits by class ({record['source']}) has {bits(record)} bits per dimension of test images. A "
        f"classifier by {NEIGHBOURS} nearest neighbours, which has only seen real digits, finds the class that was "
        f"asked for on {record['recognised']:.0%} of the {record['drawn']} new images; on real test images it finds "
        f"theirs on {record['test_recognised']:.0%}. The median distance to the nearest image of training is "
        f"{record['distance']:.1f} for new images and {record['test_distance']:.1f} for test images; "
        f"{record['copies']} of the new images are copies of one of them."
    )


def _drawn(folder: Path, key: str) -> tuple[Tensor, int]:
    """Images that a job has drawn, and how many levels they have."""
    with np.load(folder / "jobs" / key / SAMPLES_FILE, allow_pickle=False) as found:
        return torch.from_numpy(found["x"]), int(found["levels"])


def _siblings(plan: Plan, folder: Path) -> dict[str, Record]:
    """The records of `images`, of the same plan and output folder, whose models have drawn images, by their keys."""
    found = {}
    for path in sorted((folder.parent / "images" / "jobs").glob(f"*/{SAMPLES_FILE}")):
        try:
            kept = json.loads((path.parent / "record.json").read_text())
            same = all(kept["settings"][name] == getattr(plan, name) for name in ("scale", "seed", "effort"))
            if same and "dataset" in kept["record"]:
                found[path.parent.name] = kept["record"]
        except (OSError, ValueError, KeyError, TypeError):  # a job that has not come to its end
            continue
    return found


def _by_class(count: int) -> Tensor:
    """So many real digits, one of each class after the other."""
    found = {name: torch.from_numpy(array) for name, array in digits().items()}
    of_each = [spread(found["x_train"][found["y_train"] == c], count // CLASSES) for c in range(CLASSES)]
    return torch.stack(of_each, dim=1).flatten(0, 1)


def _test_images(plan: Plan, name: str, file: str | None, count: int) -> Tensor | None:
    """Test images of a data set, if it is there."""
    if file is None and name != "digits":
        return None
    try:
        return spread(_image_data.images(plan, name, file)[1], count)
    except FileNotFoundError:
        return None


def _grids(path: Path, title: str, real: Tensor | None, new: tuple[Tensor, int], columns: int = 0) -> None:
    """Real images, where there are any, beside new ones."""
    plt = _figure.pyplot()
    images, levels = new
    columns = columns or _columns(len(images))
    parts = {"Real": real, "New": images}
    pictures = {heading: make_grid(some, columns, levels) for heading, some in parts.items() if some is not None}
    high, wide = pictures["New"].shape[:2]
    with plt.rc_context(_figure.STYLE):
        size = (4.5 * len(pictures), 0.75 + 4.4 * high / wide)
        figure, axes = plt.subplots(1, len(pictures), figsize=size, layout="constrained", squeeze=False)
        for place, (heading, picture) in zip(axes[0], pictures.items(), strict=True):
            _show(place, picture, heading)
        figure.get_layout_engine().set(wspace=0.04)
        figure.suptitle(title, fontsize=11)
        _figure.save(figure, path)
        plt.close(figure)


def _columns(count: int) -> int:
    """So many that rows are full, if that can be, and there are rather more columns than rows."""
    fitting = [columns for columns in range(4, 11) if count % columns == 0 and columns * columns >= count]
    return fitting[0] if fitting else 8


def _show(place: Axes, picture: Any, heading: str) -> None:
    colors: dict[str, Any] = {"cmap": "gray", "vmin": 0, "vmax": 255} if picture.ndim == 2 else {}
    place.imshow(picture, interpolation="nearest", **colors)
    place.set_title(heading)
    place.axis("off")


def _missing(plan: Plan) -> list[str]:
    if given(plan) is not None:
        return []
    return [f"images of MNIST are drawn by the models of the experiment images, or by {MODEL} in the folder of --data"]


EXPERIMENTS = {
    "samples": Experiment("samples", "New images", _jobs, _work, _report, _missing),
}
