"""FlowDensity in steps: samples block by block, and the schema before training."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from elflow import FlowDensity
from elflow.tabular import SAMPLE_BLOCK, Schema, as_generator

SMALL = {"max_steps": 10, "random_state": 0, "flow_options": {"transforms": 1, "units": 4, "hidden_features": (8,)}}


def table(rows=200):
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=rows), "b": rng.poisson(3, rows), "c": rng.choice(["x", "y"], rows)})


def contexts(rows=200):
    return pd.DataFrame({"w": np.random.default_rng(1).lognormal(size=rows)})


@pytest.fixture(scope="module")
def density():
    return FlowDensity(**SMALL).fit(table())


@pytest.fixture(scope="module")
def conditional():
    return FlowDensity(**SMALL).fit(table(), context=contexts())


@pytest.mark.slow
@pytest.mark.parametrize("block", [SAMPLE_BLOCK, 30_000, 2 * SAMPLE_BLOCK])
def test_blocks_are_the_sample(density, block):
    n = SAMPLE_BLOCK + 3_000
    blocks = list(density.iter_samples(n, random_state=3, block=block))
    assert max(map(len, blocks)) == min(block, SAMPLE_BLOCK)
    pd.testing.assert_frame_equal(pd.concat(blocks, ignore_index=True), density.sample(n, random_state=3))


def test_samples_go_on_across_blocks(density):
    """Rows do not repeat, and the first block is the sample of one block."""
    n = SAMPLE_BLOCK + 100
    rows = density.sample(n, random_state=0)
    assert (rows["a"][SAMPLE_BLOCK:].to_numpy() != rows["a"][:100].to_numpy()).all()
    pd.testing.assert_frame_equal(rows[:SAMPLE_BLOCK], density.sample(SAMPLE_BLOCK, random_state=0))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3])
def test_contexts_in_parts_have_the_same_samples(conditional, n):
    given = contexts(SAMPLE_BLOCK + 50)
    whole = conditional.sample(n, context=given, random_state=5)
    blocks = list(conditional.iter_samples(n, context=given, random_state=5))
    pd.testing.assert_frame_equal(pd.concat(blocks, ignore_index=True), whole)
    generator = as_generator(5)
    parts = [
        block
        for part in (given[:SAMPLE_BLOCK], given[SAMPLE_BLOCK:])
        for block in conditional.iter_samples(n, context=part, random_state=generator)
    ]
    pd.testing.assert_frame_equal(pd.concat(parts, ignore_index=True), whole)


def test_sampling_leaves_the_global_generator_alone(density):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    blocks = density.iter_samples(5, random_state=0)
    next(blocks)
    assert torch.equal(torch.rand(3), expected)


def test_no_contexts_no_rows(conditional):
    assert conditional.sample(3, context=contexts(0)).shape == (0, 3)


# The schema


@pytest.fixture
def schemas(monkeypatch):
    """The tables that schemas are fitted to, in order."""
    tables = []
    fit = Schema.fit

    def count(table, *arguments, **options):
        tables.append(table)
        return fit(table, *arguments, **options)

    monkeypatch.setattr(Schema, "fit", count)
    return tables


def test_the_schema_is_fitted_once(schemas):
    est = FlowDensity(**SMALL).fit_schema(table(), context=contexts())
    assert est.schema_.names == ["a", "b", "c"]
    assert est.context_schema_.names == ["w"]
    shown = est.schema_, est.context_schema_
    est.fit(table(), context=contexts())
    assert len(schemas) == 2
    # Frequencies are those of training rows, which the split decides later.
    assert [str(est.schema_), est.context_schema_] == [str(shown[0]), shown[1]]
    assert est.sample(2, context=contexts(3)).shape == (6, 3)


def test_fit_does_not_reuse_the_schema_of_other_data(schemas):
    est = FlowDensity(**SMALL).fit_schema(table())
    est.fit(table()[::-1])
    assert len(schemas) == 2
    est.fit_schema(table())
    est.set_params(columns={"b": "category"}).fit(table())
    assert len(schemas) == 4
    assert est.schema_.column("b").kind == "category"
    est.fit_schema(table()).fit(table(), sample_weight=np.arange(200) % 2)
    assert len(schemas) == 6
    est.set_params(columns=None).fit_schema(table()).fit(table().to_numpy(object)[:, :2].astype(float))
    assert est.schema_.table == "numpy"


def test_fitting_again_warns_again():
    frame = table().assign(a=np.where(np.arange(200) < 50, -999.0, table()["a"]))
    est = FlowDensity(**SMALL)
    for _ in range(2):
        with pytest.warns(UserWarning, match="far from all others: -999") as caught:
            est.fit(frame)
        assert len(caught) == 1
    with pytest.warns(UserWarning, match="far from all others: -999"):
        est.fit_schema(frame)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        est.fit(frame)
