"""Reasons why rows are unlikely: how surprising each value is, given the other values of its row."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri
from sklearn.utils.validation import check_is_fitted

from elflow.tabular._arrays import FloatArray
from elflow.tabular._flow import encode_context
from elflow.tabular._inputs import TableEstimator
from elflow.tabular.columns._steps import Steps
from elflow.tabular.frames import ContextTable, Table
from elflow.tabular.integrals._integration import interpolate
from elflow.tabular.queries._conditional import Conditional, condition
from elflow.tabular.queries._conditional_queries import MAX_CONDITIONAL_ROWS

__all__ = ["EXPLAINED", "ExplanationQueries"]

EXPLAINED = ["row", "column", "value", "tail_probability", "surprise", "low", "high"]
"""Columns of an explanation."""
MIN_MASS = 1e-300


class ExplanationQueries(TableEstimator):
    """Methods of a fitted density that explain why rows are unlikely."""

    def explain(
        self,
        X: Table,
        columns: Sequence[Hashable] | None = None,
        level: float = 0.9,
        context: ContextTable | None = None,
    ) -> pd.DataFrame:
        """How surprising each value of each row is, given all other values of the row.

        Arguments:
            X: The table, `(N, columns)`.
            columns: Names of the columns to explain; their numbers if the table has no names. All columns if left out.
            level: Probability of the interval of ordinary values.
            context: Context of the rows, a table of N rows, if the density was fitted with one.

        Returns:
            A pandas table with a row for each value that is not missing, the most surprising ones of each row first:

            * `row`, `column`, `value`: Number of the row, name of the column, and the value.
            * `tail_probability`: Probability of values at least as extreme: of the two tails for values with an order,
                of all values that are not more likely for others.
            * `surprise`: Nats by which the value is less likely than values of this column are on average in such rows;
                numbers are measured on the scale on which the column is about standard normal.
            * `low`, `high`: Interval of ordinary values, or the most likely one if the values have no order.

        Example:
            >>> import elflow
            >>> rng = np.random.default_rng(0)
            >>> a = rng.normal(size=500)
            >>> table = pd.DataFrame({"a": a, "b": a + 0.1 * rng.normal(size=500)})
            >>> density = elflow.FlowDensity(max_steps=50, random_state=0).fit(table)
            >>> reasons = density.explain(pd.DataFrame({"a": [0.0, 1.0], "b": [0.0, -1.0]}))
            >>> bool(reasons["tail_probability"][reasons["row"] == 1].max() < 0.001)
            True
        """
        check_is_fitted(self, "model_")
        if not isinstance(level, float) or not 0 < level < 1:
            raise ValueError(f"level must be a probability in (0, 1), got {level!r}")
        names = self.schema_.names if columns is None else [self._column_name(column) for column in columns]
        blocks, start = [], 0
        for frame, context_frame in self._iter_blocks(X, context, MAX_CONDITIONAL_ROWS):
            frame = self.schema_.align(frame.reset_index(drop=True))
            c = encode_context(self.context_schema_, context_frame)
            parts = []
            for name in names:
                rows = np.flatnonzero(frame[name].notna().to_numpy())
                if not len(rows):
                    continue
                part = frame.iloc[rows].reset_index(drop=True)
                distribution = condition(self.model_, self.schema_, name, part, None if c is None else c[rows])
                parts.append(explain_column(distribution, part[name], level).assign(row=rows + start, column=name))
            start += len(frame)
            if parts:
                block = pd.concat([part.astype(object) for part in parts], ignore_index=True)
                blocks.append(block.sort_values(["row", "surprise"], ascending=[True, False], kind="stable"))
        table = pd.concat(blocks, ignore_index=True) if blocks else pd.DataFrame(columns=EXPLAINED)
        types = {"row": "int64", "tail_probability": "float64", "surprise": "float64"}
        return table[EXPLAINED].astype(types)


def explain_column(distribution: Conditional, values: pd.Series, level: float) -> pd.DataFrame:
    """Tail probability, surprise and ordinary values of one column in N rows."""
    column = distribution.column
    masses = _find_masses(distribution, values)
    if column.has_order:
        below = distribution.cdf(values)
        tail = np.clip(2 * np.minimum(below, 1 - below + masses.probability), 0.0, 1.0)
        low, high = distribution.quantile([(1 - level) / 2, (1 + level) / 2]).T
    else:
        at_most = masses.all_probabilities <= masses.probability[:, None] * (1 + 1e-9)
        tail = np.where(at_most, masses.all_probabilities, 0.0).sum(1)
        tail = np.clip(np.maximum(tail, masses.probability), 0.0, 1.0)
        levels = np.array(list(column.levels or ()), dtype=object)
        low = high = levels[masses.all_probabilities[:, : len(levels)].argmax(1)]
    return pd.DataFrame(
        {
            "value": values.astype(object).to_numpy(),
            "tail_probability": tail,
            "surprise": masses.surprise,
            "low": pd.Series(low, dtype=object),
            "high": pd.Series(high, dtype=object),
        }
    )


class _Masses(NamedTuple):
    """Probabilities of values in N rows."""

    probability: FloatArray
    """Probability of the value itself, `(N,)`: 0 if it has a density."""
    all_probabilities: FloatArray
    """Probabilities of all values of a discrete column, `(N, values)`."""
    surprise: FloatArray
    """Logarithm of the expected probability or density, less that of the value, `(N,)`."""


def _find_masses(distribution: Conditional, values: pd.Series) -> _Masses:
    """Probability of each value, and its logarithm below what is expected."""
    column = distribution.column
    if isinstance(column.map, Steps):
        return _find_cell_masses(distribution, values, column.map)
    # A mixture of atoms and of a density of z that is constant between knots.
    share = distribution.probabilities[:, column.position]
    width = np.diff(distribution.knots, axis=1)
    mass = np.diff(distribution.cumulative, axis=1)
    log_density = np.where(mass > 0, np.log(np.maximum(mass, MIN_MASS) / np.maximum(width, MIN_MASS)), 0.0)
    log_atoms = np.log(np.maximum(distribution.probabilities, MIN_MASS))
    expected = share * ((mass * log_density).sum(1) + log_atoms[:, column.position])
    states = column.encode_states(values) if column.shares else np.full(len(values), column.position)
    rows = np.arange(len(values))
    probability = np.zeros(len(values))
    for state in range(distribution.probabilities.shape[1]):
        if state != column.position:
            expected = expected + distribution.probabilities[:, state] * log_atoms[:, state]
            probability = np.where(states == state, distribution.probabilities[:, state], probability)
    low, width_of_cell, _ = column.encode(values)
    middle = np.where(width_of_cell > 0, 0.0, low - width_of_cell / 2)  # atoms have a cell of (0, 1)
    assert distribution.log_density is not None
    at_value = distribution.log_density(middle)
    is_atom = states != column.position
    found = np.where(is_atom, log_atoms[rows, np.clip(states, 0, log_atoms.shape[1] - 1)], 0.0)
    found = np.where(is_atom, found, np.log(np.maximum(share, MIN_MASS)) + at_value)
    if column.dithered:
        ends = np.stack([low, low - width_of_cell], 1)
        inside = np.diff(interpolate(ends, distribution.knots, distribution.cumulative), axis=1)[:, 0]
        probability = np.where(is_atom, probability, share * inside)
    return _Masses(probability, np.zeros((len(values), 0)), expected - found)


def _find_cell_masses(distribution: Conditional, values: pd.Series, steps: Steps) -> _Masses:
    """Probabilities of the cells of a discrete column."""
    column = distribution.column
    low = column.encode(values)[0]
    upper = column.encode_upper(values)
    lower = ndtri(np.clip(low, 0, 1))
    probability = np.diff(
        interpolate(np.stack([lower, upper], 1), distribution.knots, distribution.cumulative), axis=1
    )[:, 0]
    edges = np.broadcast_to(ndtri(steps.cumulative), (len(values), len(steps.cumulative)))
    bins = np.diff(interpolate(edges, distribution.knots, distribution.cumulative), axis=1)
    lengths = np.diff(steps.edges).astype(np.float64)
    single = np.log(np.maximum(bins / lengths, MIN_MASS))
    expected = (bins * np.where(bins > 0, single, 0.0)).sum(1) / np.maximum(bins.sum(1), MIN_MASS)
    all_probabilities = bins if (lengths == 1).all() else np.zeros((len(values), 0))
    probability = np.maximum(probability, 0.0)
    return _Masses(probability, all_probabilities, expected - np.log(np.maximum(probability, MIN_MASS)))
