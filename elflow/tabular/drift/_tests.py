"""Tests of drift: of all columns together, of each column and of pairs, and the judgement of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from elflow.tabular._arrays import FloatArray, IntArray
from elflow.tabular.drift._bins import ColumnBins
from elflow.tabular.drift._counts import CountedTable, Counter
from elflow.tabular.drift._result import ColumnShares, Drift, DriftTest
from elflow.tabular.drift._statistics import (
    MIN_PAIRED,
    adjust_p_values,
    compare_association,
    compare_frequencies,
    compare_means,
    compare_order,
    compare_vectors,
    find_distance,
)

__all__ = ["LeftOut", "judge_drift"]


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
