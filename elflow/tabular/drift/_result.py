"""Result of a comparison of new rows with the held-out rows of a fit: whether their distribution has drifted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from elflow.tabular._text import shorten

__all__ = ["ColumnShares", "Drift", "DriftTest", "format_p"]

MAX_SHOWN = 12
"""Maximum number of tests in the text of a result."""
MAX_TEXT = 44
"""Maximum number of characters of a change in the text of a result."""


@dataclass(frozen=True)
class DriftTest:
    """One test of a comparison: of all columns together, of one column, or of a pair of columns."""

    group: str
    """`"overall"`, `"column"` or `"pair"`."""
    name: str
    """Name of the test, or of the columns."""
    columns: tuple[str, ...]
    """Names of the columns; empty for tests of all columns together."""
    aspect: str
    """What is compared: `"log-density"`, `"PIT"`, `"two-sample"`, `"values"`, `"missing"` or `"dependence"`."""
    p_value: float
    """Probability of a difference as large, or larger, if nothing has drifted."""
    adjusted_p_value: float
    """The same for the number of tests: drift is found at a level if this is at most the level, and if `is_judged`."""
    effect: float
    """Size of the difference: nats for log-densities (NaN if all rows have a density of zero), the difference of
    correlations for pairs, the distance of the distributions for values (from 0 to 1), and the difference of the shares
    of missing values."""
    change: str
    """The difference in words."""
    has_drifted: bool
    """Whether the adjusted p-value is at most the level, and the test is judged."""
    is_judged: bool = True
    """False for a pair of a column that has drifted itself, which changes the correlation of the pair, too."""


@dataclass(frozen=True)
class ColumnShares:
    """Distribution of one column among the held-out rows and the new rows."""

    name: str
    kind: str
    is_context: bool
    """Whether it is a column of the context."""
    is_ordered: bool
    """Whether bins are intervals of numbers or times, in their order; otherwise they are categories."""
    labels: tuple[str, ...]
    """Names of the bins: categories, or a value in the middle of each interval."""
    reference: tuple[float, ...]
    """Share of the held-out rows in each bin, without missing values."""
    new: tuple[float, ...]
    """Share of the new rows in each bin."""
    missing: tuple[float, float]
    """Share of missing values among the held-out rows and the new rows."""


@dataclass(frozen=True, repr=False)
class Drift:
    """Result of a comparison of new rows with held-out rows: see `FlowDensity.compare`.

    Example:
        >>> from elflow import FlowDensity
        >>> rng = np.random.default_rng(0)
        >>> density = FlowDensity(max_steps=20, random_state=0).fit(rng.normal(size=(1000, 2)))
        >>> density.compare(rng.normal(size=(500, 2))).has_drift
        False
        >>> found = density.compare(rng.normal(1.0, 1.0, size=(500, 2)))
        >>> found.has_drift, sorted(test.name for test in found.drifted if test.group == "column")
        (True, ['x0', 'x1'])
    """

    level: float
    """Probability of a false alarm."""
    n_rows: int
    """Number of new rows."""
    n_reference: int
    """Number of held-out rows that they are compared with."""
    n_fitted: int
    """Number of other rows that are left out, because the density was fitted to them, or may have been."""
    n_impossible: int
    """Number of new rows with a density of zero."""
    n_incomplete: int
    """Number of other new rows with missing values in columns that were fitted without them: these have no density, and
    only the missing values are tested."""
    log_density: tuple[float, float]
    """Mean log-density of the held-out rows and of the new rows, without rows of density zero; NaN if all are such."""
    log_density_errors: tuple[float, float]
    """Their standard errors."""
    tests: tuple[DriftTest, ...]
    """All tests: overall, then columns, then pairs."""
    shares: tuple[ColumnShares, ...]
    """Distributions of the columns."""

    @property
    def p_value(self) -> float:
        """p-value of all tests together: the smallest adjusted one."""
        return min(test.adjusted_p_value for test in self.tests)

    @property
    def has_drift(self) -> bool:
        """Whether any test finds a difference at the level."""
        return self.p_value <= self.level

    @property
    def drifted(self) -> tuple[DriftTest, ...]:
        """The tests that find a difference, the smallest p-values first."""
        return tuple(sorted((test for test in self.tests if test.has_drifted), key=_rank))

    def to_frame(self) -> pd.DataFrame:
        """All tests as a pandas table, a row for each."""
        return pd.DataFrame([asdict(test) for test in self.tests])

    def to_dict(self) -> dict[str, Any]:
        """The whole result, for JSON, which has no NaN: None takes its place."""
        state = asdict(self)
        state["log_density"] = tuple(None if np.isnan(mean) else mean for mean in self.log_density)
        for test in state["tests"]:
            test["effect"] = None if np.isnan(test["effect"]) else test["effect"]
        return {"has_drift": self.has_drift, "p_value": self.p_value} | state

    def describe(self) -> str:
        """The result in one sentence."""
        p_value = f"p = {format_p(self.p_value)}".replace("= <", "< ")
        if not self.has_drift:
            return f"No drift: no test finds a difference at the level {self.level:g} ({p_value})."
        n_columns = len({test.columns for test in self.drifted if test.group == "column"})
        n_pairs = sum(test.group == "pair" for test in self.drifted)
        where = " and ".join(
            f"{count} {noun}{'' if count == 1 else 's'}"
            for count, noun in ((n_columns, "column"), (n_pairs, "pair"))
            if count
        )
        return f"Drift ({p_value})" + (f", in {where}." if where else ", in all columns together.")

    def __repr__(self) -> str:
        overall = [test for test in self.tests if test.group == "overall"]
        shown = [*overall, *(test for test in self.drifted if test.group != "overall")]
        rows = [("test", "p-value", "adjusted", "change")]
        for test in shown[:MAX_SHOWN]:
            name = shorten(f"{test.name} ({test.aspect})" if test.group == "column" else test.name, MAX_TEXT)
            p_values = (format_p(test.p_value), format_p(test.adjusted_p_value))
            rows.append((name, *p_values, shorten(test.change, MAX_TEXT)))
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        lines = ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        head = f"{self.n_rows:,} new rows against {self.n_reference:,} held-out rows"
        more = [f"and {len(shown) - MAX_SHOWN} more"] if len(shown) > MAX_SHOWN else []
        return "\n".join([self.describe(), head, *lines, *more])


def format_p(p_value: float) -> str:
    """Text of a p-value.

    Example:
        >>> format_p(0.25), format_p(0.00123), format_p(1e-30)
        ('0.25', '0.0012', '<1e-16')
    """
    if p_value < 1e-16:
        return "<1e-16"
    return f"{p_value:.2g}" if p_value >= 1e-4 else f"{p_value:.0e}"


def _rank(test: DriftTest) -> tuple[float, float]:
    """Order of tests: by p-values, and by the effect among the smallest p-value that exchanges of rows can give."""
    return test.p_value, -abs(test.effect)
