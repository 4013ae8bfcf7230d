"""Results that are stored in the repository, for the documentation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from experiments.framework.experiment import Group
from experiments.framework.files import read_json, write_text

__all__ = ["keep_result", "keep_summary", "read_result"]

FOLDER = Path(__file__).parent.parent / "results"


def keep_result(group: Group, source: Path, name: str, folder: Path = FOLDER) -> Path:
    """Copy the result of a finished run and its figures.

    Arguments:
        group: The group of the experiment.
        source: The experiment's folder of the run.
        name: The name of the copy: that of the experiment, or another one for a run with other options.
        folder: The folder of stored results.

    Returns:
        The path of the copy, `GROUP/NAME.json`. Figures are beside it, as `NAME.png` or `NAME-FIGURE.png`.
    """
    content = (source / "result.json").read_text(encoding="utf-8")
    target = folder / group.name / f"{name}.json"
    write_text(target, content)
    for picture in read_json(target)["pictures"]:
        stem = Path(picture).stem
        copy = f"{name}.png" if stem == source.name else f"{name}-{stem}.png"
        shutil.copyfile(source / picture, target.with_name(copy))
    return target


def keep_summary(group: Group, output: Path, name: str, folder: Path = FOLDER) -> Path:
    """Copy the durations of a run of several experiments, `summary.json`, to `GROUP/NAME.json`, and return its path."""
    target = folder / group.name / f"{name}.json"
    write_text(target, (output / "summary.json").read_text(encoding="utf-8"))
    return target


def read_result(group: str, name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """A stored result that the runner wrote.

    Example:
        >>> read_result("paper", "networks")["title"]
        'One-layer networks and their Lipschitz constants'
    """
    path = folder / group / f"{name}.json"
    if not path.is_file():
        raise FileNotFoundError(f"NAME must be that of a stored result, got {name!r}: there is no {path}")
    result = read_json(path)
    if not isinstance(result, dict) or "tables" not in result or "records" not in result:
        raise ValueError(f"{path} must be a result of the runner, got a file of an earlier benchmark: run it again")
    return result
