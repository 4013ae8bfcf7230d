"""How good a density is, on one page: see `write`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elflow._checks import check_count
from elflow._files import replacing
from elflow.report._measure import FEWEST_ROWS, Findings, measure
from elflow.report._page import page
from elflow.report._verdicts import Verdict, verdicts

if TYPE_CHECKING:
    from elflow.tabular import FlowDensity

__all__ = ["Findings", "Verdict", "verdicts", "write"]


def write(
    est: FlowDensity,
    X: Any,
    path: str | os.PathLike[str],
    context: Any = None,
    rows: int | None = None,
    random_state: int = 0,
) -> Findings:
    """Writes an HTML page that shows how good a fitted density is, and returns the numbers on it.

    The page is one file that needs nothing else: no network, no script. It is written whole or not at all, and the same
    arguments give the same page.

    Arguments:
        est: A fitted `elflow.FlowDensity`.
        X: A table with the columns that it was fitted to. If it is the very table, the rows that were held out then are
            those that the model is judged by; another table is split in halves, one of them for the baselines.
        path: Where to; a file that is there is replaced.
        context: The context of each row, if the model has one.
        rows: How many rows to look at, at most; others are left out at random. None for as many as take about half a
            minute.
        random_state: A seed for what is drawn at random.

    Example:
        >>> import numpy, tempfile
        >>> from elflow.tabular import FlowDensity
        >>> table = numpy.random.default_rng(0).normal(size=(100, 1))
        >>> density = FlowDensity(max_steps=20, random_state=0).fit(table)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found = write(density, table, f"{folder}/report.html")
        >>> [score.name for score in found.scores]
        ['This model', 'Gaussian', 'Gaussian mixture', 'Kernel density']
        >>> found.n_test
        10
    """
    rows = None if rows is None else check_count("rows", rows, FEWEST_ROWS)
    random_state = check_count("random_state", random_state, 0)
    path = Path(path)
    if not path.parent.is_dir():  # before the work, not after it
        raise FileNotFoundError(f"path must be in a folder that exists, got {path}")
    found = measure(est, X, context, rows, random_state)
    content = page(found, random_state)
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return found
