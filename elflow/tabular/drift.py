"""Drift: whether new rows have the distribution of the held-out rows of a fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular._drift_bins import ColumnBins
from elflow.tabular._drift_counts import CountedTable, Counter
from elflow.tabular._drift_statistics import (
    MIN_PAIRED,
    adjust_p_values,
    compare_association,
    compare_frequencies,
    compare_means,
    compare_order,
    compare_vectors,
    find_distance,
)
from elflow.tabular._text import shorten

__all__ = ["ColumnShares", "Drift", "DriftTest", "judge_drift"]

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


class LeftOut(NamedTuple):
    """Numbers of new rows that are not compared as others are."""

    n_fitted: int
    """Fitted rows that were left out."""
    n_impossible: int
    """New rows with a density of zero."""
    n_incomplete: int
    """Rows with missing values in columns that were fitted without them."""
    n_missing: IntArray
    """Number of such values in each column, `(columns,)`."""


def _rank(test: DriftTest) -> tuple[float, float]:
    """Order of tests: by p-values, and by the effect among the smallest p-value that exchanges of rows can give."""
    return test.p_value, -abs(test.effect)


def judge_drift(counter: Counter, reference: CountedTable, new: CountedTable, level: float, left_out: LeftOut) -> Drift:
    """Run all tests on the counts of held-out rows and of new rows.

    Arguments:
        counter: The bins.
        reference: Counts of the held-out rows.
        new: Counts of the new rows.
        level: Probability of a false alarm.
        left_out: Numbers of other rows.
    """
    columns, pairs = range(len(counter.columns)), range(len(counter.pairs))
    # The smallest p-value that Holm's method asks for, at least: a column may have two tests.
    resolution = level / 3 / max(2 * len(columns), len(pairs), 3)
    findings = [_compare_overall(reference, new, resolution)] if new.n_rows >= MIN_PAIRED else []
    sides = [(reference.n_rows, 0), *((new.n_rows + left_out.n_incomplete, int(n)) for n in left_out.n_missing)]
    findings.append([_compare_missing(counter.columns[k], sides[0], sides[k + 1]) for k in columns if sides[k + 1][1]])
    findings[-1].extend([test for k in columns for test in _compare_column(counter, k, reference, new, resolution)])
    # Pairs of these columns will not be judged, so that they need few exchanges of rows.
    certain = {test.identity[1] for test in findings[-1] if test.p_value <= level / 3 / len(findings[-1])}
    names = [
        {counter.columns[pair.first].column.name, counter.columns[pair.second].column.name} for pair in counter.pairs
    ]
    levels = [level if name & certain else resolution for name in names]
    findings.append([test for k in pairs for test in _compare_pair(counter, k, reference, new, levels[k])])
    findings = [group for group in findings if group]
    # Each group has the same share of the level, so that many pairs do not drown the columns.
    weights = np.concatenate([np.full(len(group), 1 / len(findings) / len(group)) for group in findings])
    flat = [test for group in findings for test in group]
    adjusted = adjust_p_values(np.array([test.p_value for test in flat]), weights)
    drifted = {
        test.identity[1] for test, p in zip(flat, adjusted, strict=True) if test.group == "column" and p <= level
    }
    tests = tuple(_judge(test, float(p), level, drifted) for test, p in zip(flat, adjusted, strict=True))
    moments = (reference.score_moments, new.score_moments)
    return Drift(
        level,
        new.n_rows,
        reference.n_rows,
        *left_out[:3],
        (moments[0].mean, moments[1].mean),
        (moments[0].error, moments[1].error),
        tests,
        tuple(
            _find_shares(bins, old, now, count / max(new.n_rows + left_out.n_incomplete, 1))
            for bins, old, now, count in zip(
                counter.columns, reference.columns, new.columns, left_out.n_missing.tolist(), strict=True
            )
        ),
    )


@dataclass(frozen=True)
class _Finding:
    """A test before its p-value is adjusted for the number of tests."""

    identity: tuple[str, str, tuple[str, ...], str]
    """Group, name, columns and aspect of the test."""
    p_value: float
    effect: float
    change: str

    @property
    def group(self) -> str:
        return self.identity[0]


def _judge(test: _Finding, adjusted: float, level: float, drifted: set[str]) -> DriftTest:
    """Result of a test; a pair is not judged if one of its columns has drifted, which changes its correlation, too."""
    names = [name for name in test.identity[2] if name in drifted]
    if test.group != "pair" or not names:
        return DriftTest(*test.identity, test.p_value, adjusted, test.effect, test.change, adjusted <= level)
    change = f"{test.change}, not judged: {' and '.join(names)} {'has' if len(names) == 1 else 'have'} drifted"
    return DriftTest(*test.identity, test.p_value, adjusted, test.effect, change, False, False)


def _compare_overall(reference: CountedTable, new: CountedTable, resolution: float) -> list[_Finding]:
    """Tests of all columns together."""
    old, now = reference.score_moments, new.score_moments
    difference = now.mean - old.mean
    error = float(np.hypot(old.error, now.error))
    change = f"mean {old.mean:.4g} -> {now.mean:.4g} ({difference:+.2g} +- {error:.2g})"
    if not old.n_values or not now.n_values:
        change = f"no {'new' if old.n_values else 'held-out'} row has a positive density"
    if min(old.n_values, now.n_values) < 2:  # no means to compare, but numbers of rows
        sides = [(part.score_moments.n_values, part.n_rows) for part in (reference, new)]
        counts = [np.array([n_values, n_rows - n_values]) for n_values, n_rows in sides]
        p_value = compare_frequencies(counts[0], counts[1])
    else:
        p_value = compare_means(old, now)
    distance = find_distance(reference.scores, new.scores, True)
    vectors = [(table.n_rows, table.feature_sums, table.feature_products) for table in (reference, new)]
    shift = float(np.abs(new.feature_sums / new.n_rows - reference.feature_sums / reference.n_rows).max())
    return [
        _Finding(("overall", "log-density", (), "log-density"), p_value, difference, change),
        _Finding(
            ("overall", "PIT of the log-density", (), "PIT"),
            compare_order(reference.scores, new.scores, resolution),
            distance,
            f"distance {distance:.1%}",
        ),
        _Finding(
            ("overall", "two-sample test", (), "two-sample"),
            compare_vectors(vectors[0], vectors[1]),
            shift,
            f"largest change of a mean {shift:.2g}",
        ),
    ]


def _compare_column(
    counter: Counter, k: int, reference: CountedTable, new: CountedTable, resolution: float
) -> list[_Finding]:
    """Tests of one column: its values, and the share of missing values if there may be any."""
    bins, old, now = counter.columns[k], reference.columns[k], new.columns[k]
    name = bins.column.name
    findings = []
    if bins.has_missing:
        sides = [(int(counts.sum()), int(counts[bins.n_bins])) for counts in (old, now)]
        if sides[1][0]:
            findings.append(_compare_missing(bins, sides[0], sides[1]))
    old, now = old[: bins.n_bins], now[: bins.n_bins]
    if bins.n_bins > 1 and old.sum() and now.sum():
        test = compare_order if bins.is_ordered else compare_frequencies
        distance = find_distance(old, now, bins.is_ordered)
        change = _describe_order(bins, old, now) if bins.is_ordered else _describe_frequencies(bins, old, now)
        findings.append(_Finding(("column", name, (name,), "values"), test(old, now, resolution), distance, change))
    return findings


def _compare_missing(bins: ColumnBins, old: tuple[int, int], now: tuple[int, int]) -> _Finding:
    """Test of the share of missing values; numbers of rows, and of those with a missing value, are given."""
    name = bins.column.name
    shares = [n_missing / n_rows for n_rows, n_missing in (old, now)]
    counts = [np.array([n_rows - n_missing, n_missing]) for n_rows, n_missing in (old, now)]
    change = f"missing {shares[0]:.1%} -> {shares[1]:.1%}"
    identity = ("column", name, (name,), "missing")
    return _Finding(identity, compare_frequencies(counts[0], counts[1]), shares[1] - shares[0], change)


def _describe_order(bins: ColumnBins, old: IntArray, now: IntArray) -> str:
    """Change of the median, or of the width of the distribution if that changes more."""
    medians = [bins.find_quantile(counts, 0.5) for counts in (old, now)]
    if len({*medians}) > 1 or bins.column.kind == "datetime":
        return f"median {_format_value(medians[0])} -> {_format_value(medians[1])}"
    ranges = [[bins.find_quantile(counts, q) for q in (0.05, 0.95)] for counts in (old, now)]
    texts = [f"{_format_value(low)} to {_format_value(high)}" for low, high in ranges]
    return f"5% to 95%: {texts[0]} -> {texts[1]}"


def _describe_frequencies(bins: ColumnBins, old: IntArray, now: IntArray) -> str:
    """Change of the share of the category that changes most."""
    shares = old / old.sum(), now / now.sum()
    most = int(np.argmax(np.abs(shares[1] - shares[0])))
    return f"{bins.describe_level(most)}: {shares[0][most]:.1%} -> {shares[1][most]:.1%}"


def _format_value(value: object) -> str:
    if isinstance(value, float | np.floating):
        number = float(value)
        return f"{number:.0f}" if 1e4 <= abs(number) < 1e9 else f"{number:.4g}"
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d %H:%M}".removesuffix(" 00:00")
    return str(value)


def _compare_pair(
    counter: Counter, k: int, reference: CountedTable, new: CountedTable, resolution: float
) -> list[_Finding]:
    """Test of the dependence of two columns; none if one of them is nearly constant."""
    pair = counter.pairs[k]
    both = counter.columns[pair.first], counter.columns[pair.second]
    is_ordered = (both[0].is_ordered, both[1].is_ordered)
    found = compare_association(reference.pairs[k], new.pairs[k], is_ordered, resolution=resolution)
    if found is None:
        return []
    names = both[0].column.name, both[1].column.name
    # Rounded at first: no "-0.00".
    old, now = (round(value, 2) + 0.0 for value in (found.reference, found.new))
    change = f"correlation {old:.2f} -> {now:.2f}"
    identity = ("pair", f"{names[0]} and {names[1]}", names, "dependence")
    return [_Finding(identity, found.p_value, found.new - found.reference, change)]


def _find_shares(bins: ColumnBins, old: IntArray, now: IntArray, unexpected: float) -> ColumnShares:
    """Distribution of a column; `unexpected` is the share of missing values if it was fitted without them."""
    indices = range(bins.n_bins)
    if bins.is_ordered:
        names = [_format_value(value) for value in bins.find_values(indices)]
    else:
        names = [bins.describe_level(k) for k in indices]
    parts: Sequence[FloatArray] = [
        counts[: bins.n_bins] / max(int(counts[: bins.n_bins].sum()), 1) for counts in (old, now)
    ]
    missing = [float(counts[bins.n_bins :].sum() / max(int(counts.sum()), 1)) for counts in (old, now)]
    return ColumnShares(
        bins.column.name,
        bins.column.kind,
        bins.is_context,
        bins.is_ordered,
        tuple(names),
        tuple(parts[0].tolist()),
        tuple(parts[1].tolist()),
        (missing[0], missing[1] if bins.has_missing else unexpected),
    )
