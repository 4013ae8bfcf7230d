"""Stored results of `bench images`, in which models train for an hour, as records of the experiment `images`."""

from __future__ import annotations

from pathlib import Path

from experiments.data.images import DATASETS
from experiments.framework.experiment import Record
from experiments.framework.files import read_json

__all__ = ["read_image_benchmarks"]

NAMES = ("mnist", "cifar10")
MODELS = ("uniform", "variational", "glow")
EARLIER_NAMES = {"test_bits": "bits", "standard_error": "error", "seconds": "training_seconds"}
"""Keys of results of the earlier format, and the present ones."""


def read_image_benchmarks(results: Path) -> dict[str, Record]:
    """The records of `bench/images-NAME.json`, by data set and model.

    Arguments:
        results: The folder of stored results.
    """
    records: dict[str, Record] = {}
    for name in NAMES:
        path = results / "bench" / f"images-{name}.json"
        if not path.is_file():
            continue
        result = read_json(path)
        if "records" in result:
            stored = {record["model"]: record for record in result["records"].values()}
        else:
            stored = {model: _rename_keys(record) for model, record in result["models"].items()}
        for model in MODELS:
            if model in stored:
                records[f"{name}-{model}"] = _complete(name, stored[model])
    return records


def _rename_keys(record: Record) -> Record:
    return {EARLIER_NAMES.get(key, key): value for key, value in record.items()}


def _complete(name: str, record: Record) -> Record:
    """Add what the judges ask for. The benchmark scores all test images of a file, so that their number tells whether
    the file is a part of the data set."""
    n_train, n_test = DATASETS[name].sizes
    n_scored = record.get("test_images", n_test)
    is_part = n_scored < n_test
    sizes = {"train_images": 0 if is_part else n_train, "all_test_images": n_scored}
    return {**record, **sizes, "dataset": name, "scale": "cpu"}
