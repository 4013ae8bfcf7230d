"""Memorization: whether samples of a density are closer to its training rows than chance explains."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial.distance import cdist
from scipy.stats import norm

from elflow.tabular._arrays import BoolArray, FloatArray, IntArray
from elflow.tabular.schema import Schema

__all__ = ["Distances", "Memorization", "find_memorization"]

MAX_Z = 8.0
"""Numbers are limited to this, in standard deviations, so that one outlier does not decide about a distance."""
MAX_CELLS = 2**23
"""Maximum number of distances that are computed at a time."""
MIN_ERRORS = 2.0
"""Number of standard errors from which on memorization may be more than chance."""
MAX_CHANCE = 0.001
"""p-value below which memorization may be strong: it is a grave verdict."""
MAX_SLIGHT = 0.05
"""Share of memorized samples up to which memorization is slight."""
MAX_ERROR = 0.25
"""Standard error of this share above which there are too few rows for a verdict."""


@dataclass(frozen=True)
class Distances:
    """Distances of rows to the closest training row: each number in standard deviations, plus 1 for each category or
    missing value that differs."""

    low: float
    """Quantile of 5 %."""
    median: float
    identical: float
    """Share of the rows that are identical to a training row."""

    @classmethod
    def of(cls, distances: FloatArray, is_identical: BoolArray) -> Distances:
        """Summary of distances, `(N,)`, and of which rows are identical to a training row, `(N,)`."""
        low, median = np.quantile(distances, [0.05, 0.5])
        return cls(float(low), float(median), float(is_identical.mean()))


@dataclass(frozen=True, repr=False)
class Memorization:
    """Result of `FlowDensity.memorization`.

    A sample is as close to a training row as to a held-out row by chance, since both have the same distribution. So the
    share of samples whose closest row is a training row is compared with the share of training rows among all rows.
    """

    n_samples: int
    n_training: int
    n_holdout: int
    memorized: float
    """Estimated share of samples that are copies of training rows: 0 if the closest row of a sample is a training row
    as often as chance explains, 1 if it always is. Chance may make it negative."""
    memorized_error: float
    """Its standard error if nothing is memorized."""
    samples: Distances
    """Distances of samples to the closest training row."""
    holdout: Distances
    """Distances of held-out rows to the closest training row: what is to be expected of samples."""
    gap: float
    """Mean log-density of training rows minus that of held-out rows, in nats: the extent of overfitting."""
    gap_error: float
    """Standard error of `gap`."""

    @property
    def p_value(self) -> float:
        """Probability of a memorized share as large, or larger, by chance."""
        return float(norm.sf(self.memorized / max(self.memorized_error, 1e-300)))

    @property
    def verdict(self) -> str:
        """`"none"`, `"slight"` or `"strong"` memorization, or `"unknown"` if there are too few rows."""
        if self.memorized_error > MAX_ERROR:
            return "unknown"
        if self.memorized > MAX_SLIGHT and self.p_value < MAX_CHANCE:
            return "strong"
        return "slight" if self.memorized > MIN_ERRORS * self.memorized_error else "none"

    def describe(self) -> str:
        """The verdict in one sentence."""
        share = f"{100 * self.memorized:.1f}% +- {100 * self.memorized_error:.1f}% of the samples are memorized"
        return {
            "strong": f"The model memorizes training rows: an estimated {share}.",
            "slight": f"Signs of memorization: an estimated {share}.",
            "none": f"No sign of memorization: an estimated {share}.",
            "unknown": f"Too few held-out rows for a verdict: an estimated {share}.",
        }[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """The whole result, for JSON."""
        return {"verdict": self.verdict, "p_value": self.p_value} | asdict(self)

    def __repr__(self) -> str:
        lines = [
            self.describe(),
            f"{self.n_samples:,} samples, {self.n_training:,} training rows, {self.n_holdout:,} held-out rows",
            "distance to the closest training row   5% quantile  median  identical",
        ]
        for name, part in (("of samples", self.samples), ("of held-out rows", self.holdout)):
            lines.append(f"  {name:37}{part.low:11.3g}  {part.median:6.3g}  {part.identical:9.1%}")
        return "\n".join([*lines, f"likelihood gap {self.gap:+.3g} +- {self.gap_error:.2g} nats"])


def find_memorization(
    schema: Schema,
    samples: pd.DataFrame,
    training: pd.DataFrame,
    holdout: pd.DataFrame,
    scores: tuple[FloatArray, FloatArray],
) -> Memorization:
    """Compare samples with training and held-out rows.

    Arguments:
        schema: The columns.
        samples: Samples of the density.
        training: Rows that it was trained on.
        holdout: Other rows of the same distribution.
        scores: Log-densities of training rows and of held-out rows, of as many of them as are known.
    """
    embedded = _Embedding(schema, pd.concat([training, holdout], ignore_index=True))
    is_training = np.arange(len(training) + len(holdout)) < len(training)
    others = _Embedding(schema, samples)
    closest, weights = np.zeros(len(samples)), np.zeros(len(is_training))
    for block, distances in others.iter_distances(embedded):
        closest[block] = distances[:, is_training].min(1)
        # Equally close rows share a sample.
        is_closest = distances <= distances.min(1, keepdims=True)
        weights += (is_closest / is_closest.sum(1, keepdims=True)).sum(0)
    of_training, rest = (embedded.take(np.flatnonzero(part)) for part in (is_training, ~is_training))
    of_holdout = np.concatenate([distances.min(1) for _, distances in rest.iter_distances(of_training)])
    share, error = _estimate_share(weights, is_training)
    finite = [part[np.isfinite(part)] for part in scores]
    errors = [part.std(ddof=1) / np.sqrt(len(part)) if len(part) > 1 else np.nan for part in finite]
    means = [part.mean() if len(part) else np.nan for part in finite]
    return Memorization(
        len(samples),
        len(training),
        len(holdout),
        share,
        error,
        Distances.of(closest, others.find_identical(of_training)),
        Distances.of(of_holdout, rest.find_identical(of_training)),
        float(means[0] - means[1]),
        float(np.hypot(errors[0], errors[1])),
    )


def _estimate_share(weights: FloatArray, is_training: BoolArray) -> tuple[float, float]:
    """Share of memorized samples, and its standard error under random exchange of training and held-out rows.

    Arguments:
        weights: Number of samples whose closest row each row is, `(N,)`.
        is_training: Whether each row is a training row, `(N,)`.
    """
    total, chance = weights.sum(), is_training.mean()
    observed = weights[is_training].sum() / total
    # The sum of the weights of rows that are drawn without replacement has this variance.
    variance = is_training.sum() * (1 - chance) * weights.var(ddof=1) / total**2
    return float((observed - chance) / (1 - chance)), float(np.sqrt(variance) / (1 - chance))


class _Embedding:
    """Rows as numbers whose differences count, and codes that are equal or not.

    Arguments:
        schema: The columns.
        frame: The rows, `(N, columns)`.
    """

    def __init__(self, schema: Schema, frame: pd.DataFrame) -> None:
        frame = schema.align(frame)
        numbers, exact, codes = [], [], []
        for column in schema.columns:
            values = frame[column.name]
            if column.shares:  # whether the value is missing, or an exact value of its own
                codes.append(column.encode_states(values).astype(np.float64))
            if column.has_order:
                z = column.encode_midpoints(values)
                exact.append(z)
                numbers.append(np.clip(z, -MAX_Z, MAX_Z))
            else:
                codes.append(column.encode(values)[0])
        self.numbers, self.exact, self.codes = (
            np.stack(part, 1) if part else np.zeros((len(frame), 0)) for part in (numbers, exact, codes)
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, rows: IntArray) -> _Embedding:
        """Some of the rows."""
        part = object.__new__(_Embedding)
        part.numbers, part.exact, part.codes = self.numbers[rows], self.exact[rows], self.codes[rows]
        return part

    def find_identical(self, others: _Embedding) -> BoolArray:
        """Whether each row is equal to one of the others, `(N,)`, also where distances are limited."""
        known = {row.tobytes() for row in np.hstack([others.exact, others.codes]) + 0.0}
        return np.array([row.tobytes() in known for row in np.hstack([self.exact, self.codes]) + 0.0], bool)

    def iter_distances(self, others: _Embedding) -> Any:
        """Slices of the rows, and the distances of these rows to all other rows, `(rows, N)`."""
        size = max(1, MAX_CELLS // max(len(others), 1))
        for start in range(0, len(self), size):
            block = slice(start, start + size)
            distances = np.zeros((len(self.numbers[block]), len(others)))
            if self.numbers.shape[1]:
                distances += cdist(self.numbers[block], others.numbers, "cityblock")
            if self.codes.shape[1]:
                distances += self.codes.shape[1] * cdist(self.codes[block], others.codes, "hamming")
            yield block, distances
