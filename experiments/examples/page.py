"""Pages of the documentation whose Python code is run, with the settings of the page or with full ones.

A line such as `n_rows = 500  # in full: 10_000` has the quick setting of the page, and the full one of the figures. A
block of Python that is followed by a block of text prints this text with full settings.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from experiments.framework.experiment import Experiment, Job, Option, Plan, Record, Report, Table
from experiments.framework.files import write_text

__all__ = ["FOLDER", "build_experiment", "fill_outputs", "find_code", "run_page", "use_full_settings"]

FOLDER = Path(__file__).parent.parent.parent / "docs" / "examples"
CODE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", flags=re.DOTALL | re.MULTILINE)
"""A block of Python, and the block of its output if there is one."""
SETTING = re.compile(r"^(\s*\w+ = ).*  # in full: (.*)$", flags=re.MULTILINE)

Namespace = dict[str, Any]
Draw = Callable[[Namespace, Path], dict[str, str]]
"""Draws figures from the variables of a page into a folder, and returns their captions by file name."""


def find_code(text: str) -> list[str]:
    """The Python blocks of a page.

    Example:
        >>> find_code("```python\\nx = 1\\n```\\n")
        ['x = 1\\n']
    """
    return [match.group(1) for match in CODE.finditer(text)]


def use_full_settings(code: str) -> str:
    """Replace quick settings by full ones.

    Example:
        >>> use_full_settings("n = 5  # in full: 1_000")
        'n = 1_000'
    """
    return SETTING.sub(r"\1\2", code)


def run_page(text: str) -> tuple[Namespace, list[str]]:
    """Run all Python blocks of a page in one namespace, in a temporary folder.

    Returns:
        The namespace, and the text that each block printed.

    Example:
        >>> namespace, printed = run_page("```python\\nx = 1\\n```\\n\\n```python\\nprint(x + 1)\\n```\\n")
        >>> namespace["x"], printed
        (1, ['', '2\\n'])
    """
    namespace: Namespace = {}
    printed = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for block in find_code(text):
            stream = io.StringIO()
            with contextlib.redirect_stdout(stream):
                exec(compile(block, "<page>", "exec"), namespace)
            printed.append(stream.getvalue())
    return namespace, printed


def fill_outputs(text: str, printed: list[str]) -> str:
    """Replace the output of each block of a page; a block without a block of text has none.

    Example:
        >>> fill_outputs("```python\\nprint(1)\\n```\\n\\n```text\\n```\\n", ["1\\n"])
        '```python\\nprint(1)\\n```\\n\\n```text\\n1\\n```\\n'
    """
    outputs = iter(printed)

    def fill(match: re.Match[str]) -> str:
        output = next(outputs)
        return match.group() if match.group(2) is None else f"```python\n{match.group(1)}```\n\n```text\n{output}```\n"

    return CODE.sub(fill, text)


def build_experiment(name: str, title: str, draw: Draw) -> Experiment:
    """Experiment that runs one page with full settings, draws its figures, and updates the page if it is told to.

    Arguments:
        name: Name of the page, without `.md`.
        title: Title of the experiment.
        draw: Draws the figures.
    """
    return Experiment(
        name,
        title,
        partial(_list_jobs, name),
        partial(_work, draw),
        partial(_report, name),
        options={"write": Option(_parse_flag, "yes: update the page and its figures in docs (default: no)")},
    )


def _list_jobs(name: str, plan: Plan) -> list[Job]:
    if plan.options.get("write", False) and plan.effort < 1:
        raise ValueError(f"write must be no with an effort below 1, got an effort of {plan.effort}")
    code = "".join(find_code((FOLDER / f"{name}.md").read_text(encoding="utf-8")))
    return [Job("page", {"name": name, "full": plan.effort >= 1, "code": code})]


def _work(draw: Draw, plan: Plan, settings: Record, folder: Path) -> Record:
    """Run the page, with the quick settings if the effort is below 1."""
    text = (FOLDER / f"{settings['name']}.md").read_text(encoding="utf-8")
    namespace, printed = run_page(use_full_settings(text) if settings["full"] else text)
    return {"printed": printed, "pictures": draw(namespace, folder)}


def _report(name: str, plan: Plan, records: dict[str, Record], folder: Path) -> Report:
    if "page" not in records:
        return Report("The page failed.")
    record = records["page"]
    drawn = folder / "jobs" / "page"
    for file in record["pictures"]:
        shutil.copyfile(drawn / file, folder / file)
    if plan.options.get("write", False):
        path = FOLDER / f"{name}.md"
        write_text(path, fill_outputs(path.read_text(encoding="utf-8"), record["printed"]))
        for file in record["pictures"]:
            shutil.copyfile(drawn / file, FOLDER.parent / "images" / file)
    rows = [[str(i + 1), f"`{line}`"] for i, text in enumerate(record["printed"]) for line in text.splitlines()]
    return Report("Output of the page.", [Table("Output", ["block", "line"], rows)], record["pictures"])


def _parse_flag(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"write must be yes or no, got {text!r}")
    return text == "yes"
