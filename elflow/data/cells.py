"""Rows of a table as numbers, some known, others anywhere in a cell."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Cells"]


class Cells(NamedTuple):
    """What a flow is given of N rows, as arrays or tensors.

    A flow sees numbers z. Continuous values have theirs. Any other value has a cell, a part of (0, 1), and z is the
    normal quantile of a point u of it. With u drawn uniformly from the cell,

        log p(row) >= E[log p(z) - log phi(z)] + log(width) + offset

    where phi is the normal density of those z that come from cells.
    """

    exact: Any
    """The numbers z that are known, `(N, E)`."""
    low: Any
    """The lower ends of cells, `(N, C)`, in double precision; where a width is zero, the number z itself."""
    width: Any
    """Their widths, `(N, C)`."""
    offset: Any
    """What else to add to the log-density of a row, `(N,)`."""
