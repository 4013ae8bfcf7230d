"""Faults drawn by Hypothesis: values of configurations, and columns of tables."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pandas as pd
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from experiments.faults.files import damage_model_content
from experiments.faults.outcomes import Case
from experiments.faults.tables import judge_values
from experiments.faults.victims import Victims

__all__ = ["draw_configurations", "draw_tables"]

N_EXAMPLES = 20
"""Number of examples of a batch."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
CELLS = {
    "float": st.floats(),
    "moderate": st.floats(-1e6, 1e6),
    "integer": st.integers(-(2**70), 2**70),
    "count": st.integers(0, 20),
    "text": st.text(max_size=12),
    "word": st.sampled_from(["a", "b", "c"]),
    "date": st.datetimes().map(str),
    "mixed": st.one_of(st.floats(), st.integers(), st.text(max_size=5), st.none(), st.booleans()),
}


@st.composite
def tables(draw: Any) -> pd.DataFrame:
    """Tables of up to four columns, of any values."""
    rows = draw(st.integers(1, 30))
    kinds = draw(st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=4))
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=len(kinds), max_size=len(kinds), unique=True))
    columns = [draw(st.lists(CELLS[kind], min_size=rows, max_size=rows)) for kind in kinds]
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in zip(names, columns, strict=True)})


def draw_configurations(rng: random.Random, victims: Victims) -> list[Case]:
    """Model files in whose configuration an entry has any JSON value, and whose digest fits."""
    return _collect(rng, JSON, lambda value: damage_model_content(rng, victims, value))


def draw_tables(rng: random.Random, victims: Victims) -> list[Case]:
    """Tables of any values."""
    return _collect(rng, tables(), judge_values)


def _collect(rng: random.Random, strategy: st.SearchStrategy[Any], judge: Callable[[Any], Case]) -> list[Case]:
    """Outcomes of a batch of examples. A defect is an outcome, so that Hypothesis does not stop at it."""
    cases: list[Case] = []

    @seed(rng.randrange(2**32))
    @settings(
        max_examples=N_EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def examine(value: Any) -> None:
        cases.append(judge(value))

    examine()
    return cases
