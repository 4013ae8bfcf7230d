"""Categories without an order of their own follow the numbers that depend on them."""

import numpy as np
import pandas as pd
import pytest

from elflow import FlowDensity
from elflow.tabular import Column, Schema

MEANS = {"motor": 7.5, "home": 8.5, "travel": 5.0, "pet": 6.0}


def draw_claims(n_rows=800, seed=0, dtype="object", unused=()):
    """Amounts of products; the most frequent products have neither the smallest nor the largest ones."""
    rng = np.random.default_rng(seed)
    product = rng.choice(list(MEANS), n_rows, p=[0.5, 0.3, 0.15, 0.05])
    amount = np.exp(rng.normal([MEANS[name] for name in product], 0.4))
    frame = pd.DataFrame({"noise": rng.normal(size=n_rows), "product": product, "amount": amount})
    categories = [*sorted(MEANS), *unused]
    return frame.assign(product=pd.Categorical(product, categories)) if dtype == "category" else frame


@pytest.mark.parametrize("dtype", ["object", "category"])
def test_categories_follow_the_column_that_depends_on_them(dtype):
    table = draw_claims(dtype=dtype)
    column = Schema.fit(table).column("product")
    assert column.levels == ("travel", "pet", "motor", "home")
    assert column.is_arranged
    assert not column.has_order  # quantiles of products have no meaning
    low, width, _ = column.encode(table["product"])
    assert (column.decode(np.array([-8.0, 8.0])) == ["travel", "home"]).all()
    for name, share in table["product"].value_counts(normalize=True).items():
        assert width[table["product"] == name] == pytest.approx(share, abs=0.005)
        assert len(set(low[table["product"] == name])) == 1
    assert Column.from_dict(column.to_dict()).levels == column.levels
    assert Schema.fit(table).recount(table).column("product").levels == column.levels


def test_samples_have_the_categories_of_the_dtype():
    """The order of a pandas dtype, with categories that do not occur, is that of the data."""
    table = draw_claims(dtype="category", unused=["boat"])
    column = Schema.fit(table).column("product")
    assert column.levels == ("travel", "pet", "motor", "home", "boat")
    assert column.decode(np.random.default_rng(0).normal(size=50)).dtype == table["product"].dtype


def test_categories_without_influence_are_ordered_by_frequency():
    rng = np.random.default_rng(0)
    n_arranged = 0
    for _ in range(100):
        table = pd.DataFrame({"group": rng.choice(list("abcdefgh"), 100), "x": rng.normal(size=100)})
        n_arranged += Schema.fit(table).column("group").is_arranged
    assert n_arranged <= 5  # 1 is expected


def test_declared_orders_and_contexts_are_not_arranged():
    table = draw_claims(dtype="category")
    ordered = table.assign(product=table["product"].cat.as_ordered())
    assert not Schema.fit(ordered).column("product").is_arranged
    assert not Schema.fit(table, infer_bounds=False).column("product").is_arranged


def test_fields_that_contradict_each_other_are_refused():
    state = Schema.fit(draw_claims()).column("product").to_dict()
    with pytest.raises(ValueError, match="same categories in both orders"):
        Column.from_dict(state | {"categories": ["motor"]})


@pytest.mark.slow
def test_samples_of_categories_have_their_means():
    """Cells in the order of frequency, with uniform points, drew the means of small groups together by 5 to 10."""
    rng = np.random.default_rng(0)
    group = np.repeat(["middle", "high", "low"], [36, 30, 24])
    shift = np.repeat([0, 12, -12], [36, 30, 24])
    table = pd.DataFrame(
        {"group": group, "age": rng.normal(50, 10, 90), "pressure": 120 + shift + rng.normal(0, 8, 90)}
    )
    density = FlowDensity(max_steps=100, random_state=0).fit(table)
    means = density.sample(5000, random_state=0).groupby("group")["pressure"].mean()
    assert (means - table.groupby("group")["pressure"].mean()).abs().max() < 2.5
