"""Reports on fitted densities, as HTML pages."""

from __future__ import annotations

import os
from pathlib import Path

from elflow._files import replacing
from elflow.report._page import render_page
from elflow.report.findings import Findings, measure
from elflow.tabular import ContextTable, FlowDensity, Table

__all__ = ["write"]


def write(
    est: FlowDensity,
    X: Table,
    path: str | os.PathLike[str],
    context: ContextTable | None = None,
    max_rows: int | None = None,
    random_state: int = 0,
    explore: str | None = None,
) -> Findings:
    """Write an HTML page about the quality of a fitted density, and return the numbers on it.

    The page is a single file that needs neither network nor scripts. It appears only when it is complete, and the same
    arguments give the same page.

    Arguments:
        est: A fitted `elflow.FlowDensity`.
        X: A table with the columns that `est` was fitted to, `(N, columns)`. Rows that `est` was trained on are
            recognised, in any order. The model is judged by the other rows, and the baselines are fitted to the
            training rows. Without enough of these, the other rows are split in half, and the baselines are fitted to
            one half.
        path: The file to write, which is overwritten.
        context: The context of each row, if the model has one.
        max_rows: Maximum number of rows to use, chosen at random. By default as many as take about half a minute.
        random_state: Seed of all random choices.
        explore: Address of a running `elflow explore` or `elflow serve`, to link to.

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
    if explore is not None and not explore.startswith(("http://", "https://")):
        raise ValueError(f"explore must begin with http:// or https://, got {explore!r}")
    path = Path(path)
    if not path.parent.is_dir():  # also checked by `replacing`, but only after the work
        raise FileNotFoundError(f"path must be in an existing folder, got {path}")
    found = measure(est, X, context, max_rows, random_state)
    content = render_page(found, random_state, explore)
    with replacing(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return found
